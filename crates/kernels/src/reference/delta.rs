//! The gated delta rule (Yang, Kautz and Hatamizadeh 2024) in its recurrent form, as Qwen3.5 uses it.

use super::math::{exp, sigmoid, softplus};
use super::sum::dot;
use crate::scratch::Local;
use crate::shared::ColumnBlock;

/// Heads and widths of a gated delta layer. Value head h uses key head `h / (value_heads / key_heads)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v, of the state and of the output; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a q or k head.
    pub key_dim: usize,
    /// Elements of a v head.
    pub value_dim: usize,
}

impl DeltaShape {
    /// Elements of all q heads of a token, and of all k heads.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of all v heads of a token.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Elements of q, k and v of a token.
    pub fn qkv_width(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }
}

/// Under the root of the L2 norm of q and k.
pub(crate) const NORM_EPS: f32 = 1e-6;

/// Normalises the q and k heads of some tokens.
pub(crate) struct NormalizeKeys<'a> {
    pub shape: &'a DeltaShape,
    pub qkv: &'a [f32],             // [tokens, qkv_width]
    pub keys: ColumnBlock<'a, f32>, // [tokens, 2·key_width]
}

/// `1 / sqrt(Σx² + 1e-6)`.
#[inline(always)]
pub(crate) fn inverse_norm(sum_of_squares: f32) -> f32 {
    1.0 / (sum_of_squares + NORM_EPS).sqrt()
}

/// The factor on normalised queries.
#[inline(always)]
pub(crate) fn query_scale(key_dim: usize) -> f32 {
    1.0 / (key_dim as f32).sqrt()
}

/// Every head becomes `x·inv`, q heads then `·(1 / sqrt(key_dim))`.
pub(crate) fn normalize_keys(mut a: NormalizeKeys<'_>) {
    let (width, dim) = (a.shape.key_width(), a.shape.key_dim);
    for (token, qkv) in a.qkv.chunks_exact(a.shape.qkv_width()).enumerate() {
        let keys = a.keys.row_mut(token);
        for (index, (x, out)) in
            qkv[..2 * width].chunks_exact(dim).zip(keys.chunks_exact_mut(dim)).enumerate()
        {
            let inverse = inverse_norm(dot(x, x));
            let query = index < a.shape.key_heads;
            for (x, out) in x.iter().zip(out) {
                *out = x * inverse;
                if query {
                    *out *= query_scale(dim);
                }
            }
        }
    }
}

/// Decay `e^(neg_a·softplus(a + dt_bias))` and `beta = sigmoid(b)` of one token and head.
pub(crate) fn gates(a: f32, b: f32, neg_a: f32, dt_bias: f32) -> (f32, f32) {
    (exp(neg_a * softplus(a + dt_bias)), sigmoid(b))
}

/// Some value columns of one head over all tokens of a run.
pub(crate) struct DeltaColumns<'a> {
    pub shape: &'a DeltaShape,
    pub head: usize,
    /// First of this piece's columns within the head.
    pub first: usize,
    pub keys: &'a [f32],             // [tokens, 2·key_width], normalised
    pub qkv: &'a [f32],              // [tokens, qkv_width]; v is read from here
    pub decay: &'a [f32],            // [tokens, value_heads]
    pub beta: &'a [f32],             // [tokens, value_heads]
    pub state: ColumnBlock<'a, f32>, // [key_dim, width]
    pub out: ColumnBlock<'a, f32>,   // [tokens, width]
    pub local: &'a mut Local,
}

/// What one token brings to one head.
#[derive(Clone, Copy)]
pub(crate) struct DeltaToken<'a> {
    pub q: &'a [f32], // [key_dim]
    pub k: &'a [f32], // [key_dim]
    pub v: &'a [f32], // [width]
    pub decay: f32,
    pub beta: f32,
}

impl<'a> DeltaColumns<'a> {
    /// The inputs of one token.
    #[inline(always)]
    pub fn token(&self, token: usize) -> DeltaToken<'a> {
        let (shape, head) = (self.shape, self.head);
        let key_head = head / (shape.value_heads / shape.key_heads);
        let keys = &self.keys[token * 2 * shape.key_width()..][..2 * shape.key_width()];
        let v = token * shape.qkv_width() + 2 * shape.key_width() + head * shape.value_dim + self.first;
        DeltaToken {
            q: &keys[key_head * shape.key_dim..][..shape.key_dim],
            k: &keys[shape.key_width() + key_head * shape.key_dim..][..shape.key_dim],
            v: &self.qkv[v..][..self.out.width()],
            decay: self.decay[token * shape.value_heads + head],
            beta: self.beta[token * shape.value_heads + head],
        }
    }
}

/// Per token and column j, with S the column of the state: `S = S·decay`; `m = Σ S_i·k_i`; `d = (v - m)·beta`;
/// `S_i = fma(k_i, d, S_i)`; `o = Σ S_i·q_i`. Both sums run in four chains, i mod 4, of fused multiply-adds from +0,
/// added as (0 + 1) + (2 + 3).
#[inline(always)]
pub(crate) fn delta_columns(mut a: DeltaColumns<'_>) {
    for token in 0..a.out.rows() {
        for j in 0..a.out.width() {
            let DeltaToken { decay, beta, .. } = a.token(token);
            let mut chains = [0.0f32; 4];
            for i in 0..a.shape.key_dim {
                let s = a.state.row(i)[j] * decay;
                a.state.row_mut(i)[j] = s;
                chains[i % 4] = s.mul_add(a.token(token).k[i], chains[i % 4]);
            }
            let d = (a.token(token).v[j] - sum_chains(chains)) * beta;
            let mut chains = [0.0f32; 4];
            for i in 0..a.shape.key_dim {
                let s = a.token(token).k[i].mul_add(d, a.state.row(i)[j]);
                a.state.row_mut(i)[j] = s;
                chains[i % 4] = s.mul_add(a.token(token).q[i], chains[i % 4]);
            }
            a.out.row_mut(token)[j] = sum_chains(chains);
        }
    }
}

#[inline(always)]
fn sum_chains(chains: [f32; 4]) -> f32 {
    (chains[0] + chains[1]) + (chains[2] + chains[3])
}
