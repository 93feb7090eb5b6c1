//! Operations on one element at a time.

use super::math::{sigmoid, silu};

/// `x = silu(x)·up`.
pub(crate) struct SiluMul<'a> {
    pub x: &'a mut [f32],
    pub up: &'a [f32],
}

/// `x = x·sigmoid(gate)`.
pub(crate) struct SigmoidMul<'a> {
    pub x: &'a mut [f32],
    pub gate: &'a [f32],
}

/// `x = fma(alpha, y, x)`; with alpha 1 that is `x + y`.
pub(crate) struct AddScaled<'a> {
    pub x: &'a mut [f32],
    pub alpha: f32,
    pub y: &'a [f32],
}

/// `x[r, :] = x[r, :]·sigmoid(gate[r])`.
pub(crate) struct SigmoidScaleRows<'a> {
    pub x: &'a mut [f32], // [rows, n]
    pub gate: &'a [f32],  // [rows]
}

/// See [`SiluMul`].
#[inline(always)]
pub(crate) fn silu_mul(a: SiluMul<'_>) {
    for (x, up) in a.x.iter_mut().zip(a.up) {
        *x = silu(*x) * up;
    }
}

/// See [`SigmoidMul`].
#[inline(always)]
pub(crate) fn sigmoid_mul(a: SigmoidMul<'_>) {
    for (x, gate) in a.x.iter_mut().zip(a.gate) {
        *x *= sigmoid(*gate);
    }
}

/// See [`AddScaled`].
#[inline(always)]
pub(crate) fn add_scaled(a: AddScaled<'_>) {
    for (x, y) in a.x.iter_mut().zip(a.y) {
        *x = a.alpha.mul_add(*y, *x);
    }
}

/// See [`SigmoidScaleRows`].
#[inline(always)]
pub(crate) fn sigmoid_scale_rows(a: SigmoidScaleRows<'_>) {
    let n = a.x.len().checked_div(a.gate.len()).unwrap_or(0).max(1);
    for (row, gate) in a.x.chunks_exact_mut(n).zip(a.gate) {
        let scale = sigmoid(*gate);
        row.iter_mut().for_each(|x| *x *= scale);
    }
}
