//! Root-mean-square norms (Zhang and Sennrich 2019).

use super::math::silu;
use super::sum::dot;

/// Norms in place: every row of `x` becomes `(x·inv)·weight` with `inv = 1 / sqrt(Σx²/n + eps)`.
pub(crate) struct RmsNorm<'a> {
    pub x: &'a mut [f32],  // [rows, n]
    pub weight: &'a [f32], // [n]
    pub eps: f32,
}

/// As [`RmsNorm`], then times `silu(gate)`: `((x·inv)·weight)·silu(gate)`.
pub(crate) struct GatedRmsNorm<'a> {
    pub x: &'a mut [f32],  // [rows, n]
    pub weight: &'a [f32], // [n]
    pub gate: &'a [f32],   // [rows, n]
    pub eps: f32,
}

/// `1 / sqrt(sum/n + eps)`.
#[inline(always)]
pub(crate) fn inverse_rms(sum_of_squares: f32, n: usize, eps: f32) -> f32 {
    1.0 / (sum_of_squares / n as f32 + eps).sqrt()
}

/// See [`RmsNorm`].
pub(crate) fn rms_norm(a: RmsNorm<'_>) {
    for row in a.x.chunks_exact_mut(a.weight.len()) {
        let inverse = inverse_rms(dot(row, row), row.len(), a.eps);
        for (x, w) in row.iter_mut().zip(a.weight) {
            *x = (*x * inverse) * w;
        }
    }
}

/// See [`GatedRmsNorm`].
pub(crate) fn gated_rms_norm(a: GatedRmsNorm<'_>) {
    let n = a.weight.len();
    rms_norm(RmsNorm { x: &mut *a.x, weight: a.weight, eps: a.eps });
    for (row, gate) in a.x.chunks_exact_mut(n).zip(a.gate.chunks_exact(n)) {
        for (x, z) in row.iter_mut().zip(gate) {
            *x *= silu(*z);
        }
    }
}
