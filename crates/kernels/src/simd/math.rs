//! exp, sigmoid and SiLU over the virtual vector, step by step as in `reference::math`.

use crate::reference::math::{EXP_MAX, EXP_MIN, EXP_POLY, LN2_HIGH, LN2_LOW, LOG2_E};
use crate::vector::Simd;

/// e^x.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    let x = s.min(s.splat(EXP_MAX), x);
    let x = s.max(s.splat(EXP_MIN), x);
    let n = s.round(s.mul(x, s.splat(LOG2_E)));
    let minus_n = s.neg(n);
    let r = s.fma(minus_n, s.splat(LN2_HIGH), x);
    let r = s.fma(minus_n, s.splat(LN2_LOW), r);
    let mut poly = s.splat(EXP_POLY[0]);
    for coefficient in &EXP_POLY[1..] {
        poly = s.fma(poly, r, s.splat(*coefficient));
    }
    let y = s.add(s.fma(poly, s.mul(r, r), r), s.splat(1.0));
    s.scale2(y, n)
}

/// 1 + e^-x.
#[inline(always)]
fn one_plus_exp_neg<S: Simd>(s: S, x: S::F) -> S::F {
    s.add(s.splat(1.0), exp(s, s.neg(x)))
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(s.splat(1.0), one_plus_exp_neg(s, x))
}

/// x / (1 + e^-x).
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(x, one_plus_exp_neg(s, x))
}
