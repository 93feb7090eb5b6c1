//! Causal softmax attention over a paged cache: one pass with a running maximum (Milakov and Gimelshein 2018; Dao et
//! al. 2022), in an order that depends on positions only.
//!
//! Positions are walked in tiles of [`TILE`] from absolute zero, whatever the page size. [`SEGMENT`] positions form a
//! segment; segments are computed independently of each other and merged in ascending order.

use super::kv::cached;
use super::math::exp;
use super::sum::Lanes;
use crate::kv::{KvDtype, KvGeometry};
use crate::scratch::Line;
use crate::vector::LANES;

/// Positions whose scores share one step of the running maximum.
pub(crate) const TILE: usize = 32;

/// Positions of a segment, the unit of parallel work over a long context.
pub(crate) const SEGMENT: usize = 1024;

/// State of one query head before its `head_dim` weighted values: the running maximum and the running sum.
pub(crate) const STATE_HEADER: usize = 2;

/// The query heads of one KV head over one segment, for some query rows. Row r stands at `first_position + r` and sees
/// the positions up to its own; rows before the segment keep the empty state.
pub(crate) struct AttentionSegment<'a> {
    pub geometry: &'a KvGeometry,
    pub k: &'a [u8],
    pub v: &'a [u8],
    pub pages: &'a [u32],
    pub q: &'a [f32], // [rows, heads, head_dim]
    pub heads: usize,
    pub scale: f32,
    pub first_position: usize,
    pub kv_head: usize,
    pub segment: usize,
    pub state: &'a mut [f32], // [rows, heads / kv_heads, STATE_HEADER + head_dim]
    /// Scratch for a decoded tile of K and of V.
    pub decoded: &'a mut [Line<[f32; LANES]>], // [2, TILE, head_dim / LANES]
}

impl<'a> AttentionSegment<'a> {
    /// Query heads per KV head.
    pub fn group(&self) -> usize {
        self.heads / self.geometry.kv_heads
    }

    /// Query rows.
    pub fn rows(&self) -> usize {
        self.q.len() / (self.heads * self.geometry.head_dim)
    }

    /// Positions of the segment that the row at `position` sees, of the whole segment at most.
    pub fn visible(&self, position: usize) -> std::ops::Range<usize> {
        let start = self.segment * SEGMENT;
        start..(start + SEGMENT).min(position + 1)
    }

    /// Rows of K and of V of the first `count` positions of the tile that starts at `start`.
    #[inline(always)]
    pub fn tile(&self, start: usize, count: usize) -> (&'a [u8], &'a [u8]) {
        let first = self.geometry.row(self.pages, self.kv_head, start);
        let rows = |dtype: KvDtype| {
            let bytes = dtype.row_bytes(self.geometry.head_dim);
            first * bytes..(first + count) * bytes
        };
        (&self.k[rows(self.geometry.k)], &self.v[rows(self.geometry.v)])
    }

    /// Index in `q` of the first element of a row's query head `g` of this KV head.
    pub fn query(&self, row: usize, g: usize) -> usize {
        (row * self.heads + self.kv_head * self.group() + g) * self.geometry.head_dim
    }
}

/// Adds the states of a later segment to those of the earlier ones.
pub(crate) struct MergeSegments<'a> {
    pub head_dim: usize,
    pub state: &'a mut [f32], // [n, STATE_HEADER + head_dim]
    pub later: &'a [f32],     // the same
}

/// The empty state: maximum -inf, sum 0, values 0.
#[inline(always)]
pub(crate) fn reset(state: &mut [f32], head_dim: usize) {
    for state in state.chunks_exact_mut(STATE_HEADER + head_dim) {
        state.fill(0.0);
        state[0] = f32::NEG_INFINITY;
    }
}

/// For every query row and head, tile by tile over the visible positions j of the tile in ascending order:
///
/// - score: `s_j = dot(q, k_j)·scale` with the sixteen-lane dot product;
/// - maximum: `m' = max(m, max s_j)`, in which NaN loses every comparison; `alpha = e^(m - m')`;
/// - weights: `p_j = e^(s_j - m')`; their sum is taken in sixteen lanes, j mod 16;
/// - `l = fma(l, alpha, Σ p_j)`, `o = o·alpha`, then `o = fma(p_j, v_j, o)` for each j.
#[inline(always)]
pub(crate) fn attention_segment(a: AttentionSegment<'_>) {
    let (group, head_dim) = (a.group(), a.geometry.head_dim);
    reset(a.state, head_dim);
    for row in 0..a.rows() {
        for g in 0..group {
            let q = &a.q[a.query(row, g)..][..head_dim];
            let visible = a.visible(a.first_position + row);
            let index = (row * group + g) * (STATE_HEADER + head_dim);
            for start in visible.clone().step_by(TILE) {
                let count = TILE.min(visible.end - start);
                let (keys, values) = a.tile(start, count);
                let (k_row, v_row) = (keys.len() / count, values.len() / count);
                let mut scores = [0.0; TILE];
                for (j, score) in scores[..count].iter_mut().enumerate() {
                    let mut lanes = Lanes::new();
                    let key = &keys[j * k_row..(j + 1) * k_row];
                    for (i, q) in q.iter().enumerate() {
                        lanes.fma(i, *q, cached(a.geometry.k, key, i));
                    }
                    *score = lanes.sum() * a.scale;
                }
                let state = &mut a.state[index..][..STATE_HEADER + head_dim];
                let value = |j: usize, i: usize| cached(a.geometry.v, &values[j * v_row..(j + 1) * v_row], i);
                add_tile(state, &scores[..count], value);
            }
        }
    }
}

/// One step of the running maximum.
#[inline(always)]
fn add_tile(state: &mut [f32], scores: &[f32], value: impl Fn(usize, usize) -> f32) {
    let (header, values) = state.split_at_mut(STATE_HEADER);
    let max = scores.iter().fold(header[0], |max, &s| if s > max { s } else { max });
    let alpha = exp(header[0] - max);
    let mut lanes = Lanes::new();
    values.iter_mut().for_each(|o| *o *= alpha);
    for (j, score) in scores.iter().enumerate() {
        let p = exp(score - max);
        lanes.add(j, p);
        for (i, o) in values.iter_mut().enumerate() {
            *o = p.mul_add(value(j, i), *o);
        }
    }
    header[1] = header[1].mul_add(alpha, lanes.sum());
    header[0] = max;
}

/// Per head, with `m = max(m_1, m_2)`, `a = e^(m_1 - m)` and `b = e^(m_2 - m)`: `l = fma(l_2, b, l_1·a)` and
/// `o = fma(o_2, b, o_1·a)`.
#[inline(always)]
pub(crate) fn merge_segments(a: MergeSegments<'_>) {
    let width = STATE_HEADER + a.head_dim;
    for (state, later) in a.state.chunks_exact_mut(width).zip(a.later.chunks_exact(width)) {
        let max = if later[0] > state[0] { later[0] } else { state[0] };
        let (first, second) = (exp(state[0] - max), exp(later[0] - max));
        for (o, o2) in state[1..].iter_mut().zip(&later[1..]) {
            *o = o2.mul_add(second, *o * first);
        }
        state[0] = max;
    }
}

/// Writes the outputs of some heads.
pub(crate) struct FinishHeads<'a> {
    pub head_dim: usize,
    pub state: &'a [f32],   // [n, STATE_HEADER + head_dim]
    pub out: &'a mut [f32], // [n, head_dim]
}

/// `out = o / l`.
#[inline(always)]
pub(crate) fn finish_heads(a: FinishHeads<'_>) {
    let heads = a.state.chunks_exact(STATE_HEADER + a.head_dim);
    for (state, out) in heads.zip(a.out.chunks_exact_mut(a.head_dim)) {
        for (o, value) in out.iter_mut().zip(&state[STATE_HEADER..]) {
            *o = value / state[1];
        }
    }
}
