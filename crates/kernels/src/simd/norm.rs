//! Norms and dot products of single rows.

use super::math::silu;
use crate::reference::delta::{NormalizeKeys, inverse_norm, query_scale};
use crate::reference::math;
use crate::reference::norm::{GatedRmsNorm, RmsNorm, inverse_rms};
use crate::vector::{LANES, Simd, padded};

/// Σ a·b in sixteen lanes.
#[inline(always)]
pub(crate) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    let mut acc = s.splat(0.0);
    for (a, b) in a.iter().zip(b) {
        acc = s.fma(s.load(a), s.load(b), acc);
    }
    if !a_tail.is_empty() {
        // Adding 0·-0 = -0 leaves every lane as it is, a -0 included.
        acc = s.fma(s.load(&padded(a_tail, 0.0)), s.load(&padded(b_tail, -0.0)), acc);
    }
    s.sum(acc)
}

/// `row = (row·factor)·weight`.
#[inline(always)]
fn scale_row<S: Simd>(s: S, row: &mut [f32], factor: f32, weight: &[f32]) {
    let (row, tail) = row.as_chunks_mut::<LANES>();
    let (weight, weight_tail) = weight.as_chunks::<LANES>();
    let factors = s.splat(factor);
    for (x, w) in row.iter_mut().zip(weight) {
        s.store(s.mul(s.mul(s.load(x), factors), s.load(w)), x);
    }
    for (x, w) in tail.iter_mut().zip(weight_tail) {
        *x = (*x * factor) * w;
    }
}

/// See [`RmsNorm`].
#[inline(always)]
pub(crate) fn rms_norm<S: Simd>(s: S, a: RmsNorm<'_>) {
    for row in a.x.chunks_exact_mut(a.weight.len()) {
        let inverse = inverse_rms(dot(s, row, row), row.len(), a.eps);
        scale_row(s, row, inverse, a.weight);
    }
}

/// See [`GatedRmsNorm`].
#[inline(always)]
pub(crate) fn gated_rms_norm<S: Simd>(s: S, a: GatedRmsNorm<'_>) {
    let n = a.weight.len();
    for (row, gate) in a.x.chunks_exact_mut(n).zip(a.gate.chunks_exact(n)) {
        let inverse = inverse_rms(dot(s, row, row), n, a.eps);
        scale_row(s, row, inverse, a.weight);
        let (row, tail) = row.as_chunks_mut::<LANES>();
        let (gate, gate_tail) = gate.as_chunks::<LANES>();
        for (x, z) in row.iter_mut().zip(gate) {
            s.store(s.mul(s.load(x), silu(s, s.load(z))), x);
        }
        for (x, z) in tail.iter_mut().zip(gate_tail) {
            *x *= math::silu(*z);
        }
    }
}

/// See [`NormalizeKeys`].
#[inline(always)]
pub(crate) fn normalize_keys<S: Simd>(s: S, mut a: NormalizeKeys<'_>) {
    let (width, dim) = (a.shape.key_width(), a.shape.key_dim);
    for (token, qkv) in a.qkv.chunks_exact(a.shape.qkv_width()).enumerate() {
        let (q, k) = a.keys.row_mut(token).split_at_mut(width);
        for (x, out) in qkv[..width].chunks_exact(dim).zip(q.chunks_exact_mut(dim)) {
            scaled_copy(x, inverse_norm(dot(s, x, x)), Some(query_scale(dim)), out);
        }
        for (x, out) in qkv[width..2 * width].chunks_exact(dim).zip(k.chunks_exact_mut(dim)) {
            scaled_copy(x, inverse_norm(dot(s, x, x)), None, out);
        }
    }
}

/// `out = x·factor`, then `·second` if there is one.
#[inline(always)]
fn scaled_copy(x: &[f32], factor: f32, second: Option<f32>, out: &mut [f32]) {
    match second {
        Some(second) => out.iter_mut().zip(x).for_each(|(out, x)| *out = (x * factor) * second),
        None => out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor),
    }
}
