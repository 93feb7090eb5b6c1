//! Norms, activations, rope and the convolution: operations that read their input once.

use super::Cpu;
use crate::reference::conv::ConvSilu;
use crate::reference::elementwise::{AddScaled, SigmoidMul, SigmoidScaleRows, SiluMul};
use crate::reference::norm::{GatedRmsNorm, RmsNorm};
use crate::reference::rope::{Pairing, Rope};
use crate::reference::rotate::Rotate;
use crate::shared::SharedMut;

/// Elements below which one thread is faster than waking others.
const LEAST: usize = 8192;

impl Cpu {
    /// `out = rmsnorm(x)·weight`, row by row: `(x·(1 / sqrt(Σx²/n + eps)))·weight`. `x` and `out` are `[rows, n]` with n
    /// the length of `weight`.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        out.copy_from_slice(x);
        self.rms_norm_inplace(out, weight, eps);
    }

    /// [`Cpu::rms_norm`] in place. Rows may be heads: `[tokens·heads, head_dim]`.
    pub fn rms_norm_inplace(&self, x: &mut [f32], weight: &[f32], eps: f32) {
        let n = weight.len();
        self.rows(x, n, &|_, x| self.level.run(RmsNorm { x, weight, eps }));
    }

    /// `x = rmsnorm(x)·weight·silu(z)`, row by row. `x` and `z` are `[rows, n]` with n the length of `weight`.
    pub fn gated_rms_norm(&self, x: &mut [f32], weight: &[f32], z: &[f32], eps: f32) {
        assert_eq!(x.len(), z.len(), "gate and values differ in shape");
        let n = weight.len();
        self.rows(x, n, &|at, x| {
            let gate = &z[at..at + x.len()];
            self.level.run(GatedRmsNorm { x, weight, gate, eps });
        });
    }

    /// Rotates the first `2·pairs` elements of every head of `x` `[tokens, heads, head_dim]`, with `cos` and `sin`
    /// `[tokens, pairs]`.
    pub fn rope(
        &self,
        x: &mut [f32],
        heads: usize,
        head_dim: usize,
        cos: &[f32],
        sin: &[f32],
        pairing: Pairing,
    ) {
        let width = heads * head_dim;
        let tokens = x.len().checked_div(width).unwrap_or(0);
        let pairs = cos.len().checked_div(tokens).unwrap_or(0);
        assert_eq!(cos.len(), sin.len(), "rope tables differ in shape");
        assert!(pairs * tokens == cos.len() && 2 * pairs <= head_dim, "rope tables do not fit the heads");
        self.rows(x, width, &|at, x| {
            let table = at / width * pairs..(at + x.len()) / width * pairs;
            let (cos, sin) = (&cos[table.clone()], &sin[table]);
            self.level.run(Rope { x, heads, head_dim, cos, sin, pairing });
        });
    }

    /// Rotates every head of `x` `[rows, head_dim]` by a Walsh-Hadamard transform over as many neighbouring elements as
    /// the largest power of two in `head_dim`, a multiple of 16. Rotating twice gives back what was there, and dot
    /// products of two rotated heads are those of the heads, but for rounding.
    ///
    /// This is for caches whose type [is rotated](crate::KvDtype::is_rotated): queries with keys, and what attention makes
    /// of rotated values once more.
    pub fn rotate(&self, x: &mut [f32], head_dim: usize) {
        assert!(head_dim > 0 && head_dim.is_multiple_of(16), "heads of {head_dim} cannot be rotated");
        let width = 1 << head_dim.trailing_zeros();
        self.rows(x, width, &|_, x| self.level.run(Rotate { x, width }));
    }

    /// `out = silu(gate)·up`, all of one length.
    pub fn silu_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        out.copy_from_slice(gate);
        self.silu_mul_inplace(out, up);
    }

    /// `gate = silu(gate)·up`, both of one length.
    pub fn silu_mul_inplace(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "gate and up differ in shape");
        self.rows(gate, 1, &|at, x| {
            let up = &up[at..at + x.len()];
            self.level.run(SiluMul { x, up });
        });
    }

    /// `x = x·sigmoid(gate)`, both of one length.
    pub fn sigmoid_mul(&self, x: &mut [f32], gate: &[f32]) {
        assert_eq!(x.len(), gate.len(), "gate and values differ in shape");
        self.rows(x, 1, &|at, x| {
            let gate = &gate[at..at + x.len()];
            self.level.run(SigmoidMul { x, gate });
        });
    }

    /// `x[r, :] = x[r, :]·sigmoid(gate[r])` for `x` `[rows, n]` and `gate` `[rows]`.
    pub fn sigmoid_scale_rows(&self, x: &mut [f32], gate: &[f32]) {
        let n = x.len().checked_div(gate.len()).unwrap_or(0);
        assert_eq!(n * gate.len(), x.len(), "one gate per row");
        self.rows(x, n, &|at, x| {
            let gate = &gate[at / n..(at + x.len()) / n];
            self.level.run(SigmoidScaleRows { x, gate });
        });
    }

    /// `x = x + y`, both of one length.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        // 1·y is exact, so the fused multiply-add is the addition.
        self.add_scaled(x, 1.0, y);
    }

    /// `out = fma(alpha, y, out)`, both of one length.
    pub fn add_scaled(&self, out: &mut [f32], alpha: f32, y: &[f32]) {
        assert_eq!(out.len(), y.len(), "summands differ in shape");
        self.rows(out, 1, &|at, x| {
            let y = &y[at..at + x.len()];
            self.level.run(AddScaled { x, alpha, y });
        });
    }

    /// Causal depthwise convolution, then SiLU: `out[t, c] = silu(Σ_j weight[c, j]·in[t - kernel + 1 + j, c])`, where the
    /// inputs before the run come from `state`. Afterwards `state` holds the last `kernel - 1` inputs of the first `keep`
    /// tokens, also when they are fewer than that.
    ///
    /// `x` and `out` are `[tokens, channels]`, `weight` is `[channels, kernel]`, `state` is `[kernel - 1, channels]`,
    /// oldest first, zero at the start of a sequence.
    pub fn conv1d_silu(&self, x: &[f32], weight: &[f32], state: &mut [f32], keep: usize, out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "convolution changes no shape");
        // weight and state differ by one row of channels.
        let channels =
            weight.len().checked_sub(state.len()).filter(|&c| c > 0 && weight.len().is_multiple_of(c));
        assert!(channels.is_some(), "convolution state does not fit its weights");
        let channels = channels.unwrap_or(1);
        let kernel = weight.len() / channels;
        let (state, out) = (SharedMut::new(state, channels), SharedMut::new(out, channels));
        let tokens = x.len() / channels;
        assert!(keep <= tokens, "{keep} of {tokens} tokens cannot be kept");
        let least = LEAST / (tokens * kernel).max(1);
        self.split(channels, 16, least, &|range| {
            // SAFETY: ranges are disjoint, and each block holds only its range's columns.
            let (state, out) =
                unsafe { (state.block(0..kernel - 1, range.clone()), out.block(0..tokens, range.clone())) };
            let weight = &weight[range.start * kernel..range.end * kernel];
            self.level.run(ConvSilu { x, channels, first: range.start, kernel, keep, weight, state, out });
        });
    }

    /// Calls `task` on disjoint runs of whole rows of `n` elements, with the index of their first element.
    fn rows(&self, x: &mut [f32], n: usize, task: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        assert!(n > 0 && x.len().is_multiple_of(n) || x.is_empty(), "{} values are not rows of {n}", x.len());
        let rows = x.len().checked_div(n).unwrap_or(0);
        // One long row, so that a run of rows is one block.
        let len = x.len();
        let matrix = SharedMut::new(x, len);
        let unit = if n == 1 { 16 } else { 1 };
        self.split(rows, unit, LEAST.div_ceil(n.max(1)), &|range| {
            // SAFETY: ranges are disjoint.
            let mut block = unsafe { matrix.block(0..1, range.start * n..range.end * n) };
            task(range.start * n, block.row_mut(0));
        });
    }
}
