//! Attention over a paged cache.

use super::element::{Bf16, F16, F32};
use super::kv::{Cached, Q4, Q8};
use super::math::exp;
use crate::kv::KvDtype;
use crate::reference::attention::{self, AttentionSegment, STATE_HEADER, TILE, reset};
use crate::reference::math;
use crate::vector::{LANES, Simd, lanes, lanes_mut};

/// See [`AttentionSegment`]. Tile by tile, so that a tile of the cache is still near for the next query row.
#[inline(always)]
pub(crate) fn attention_segment<S: Simd>(s: S, mut a: AttentionSegment<'_>) {
    let (group, head_dim, rows) = (a.group(), a.geometry.head_dim, a.rows());
    if !head_dim.is_multiple_of(LANES) {
        return attention::attention_segment(a);
    }
    reset(a.state, head_dim);
    let all = a.visible(a.first_position + rows - 1);
    for start in all.step_by(TILE) {
        for row in start.saturating_sub(a.first_position).min(rows)..rows {
            let mut g = 0;
            while g < group {
                let tile = TileStep { row, g, start };
                g += match group - g {
                    4.. => heads::<S, 4>(s, &mut a, tile),
                    2.. => heads::<S, 2>(s, &mut a, tile),
                    _ => heads::<S, 1>(s, &mut a, tile),
                };
            }
        }
    }
}

/// A query row, its first query head of a step, and the first position of the tile.
#[derive(Clone, Copy)]
struct TileStep {
    row: usize,
    g: usize,
    start: usize,
}

/// One step of the running maximum for `HEADS` query heads; returns how many that is.
#[inline(always)]
fn heads<S: Simd, const HEADS: usize>(s: S, a: &mut AttentionSegment<'_>, at: TileStep) -> usize {
    let head_dim = a.geometry.head_dim;
    let width = STATE_HEADER + head_dim;
    let count = (a.visible(a.first_position + at.row).end - at.start).min(TILE);
    let first = (at.row * a.group() + at.g) * width;
    let (keys, values) = a.tile(at.start, count);
    let q = a.q[a.query(at.row, at.g)..][..HEADS * head_dim].as_chunks().0;
    let mut weights = match a.geometry.k {
        KvDtype::F32 => scores::<S, F32, HEADS>(s, q, keys, a.scale),
        KvDtype::F16 => scores::<S, F16, HEADS>(s, q, keys, a.scale),
        KvDtype::Bf16 => scores::<S, Bf16, HEADS>(s, q, keys, a.scale),
        KvDtype::Q8 => scores::<S, Q8, HEADS>(s, q, keys, a.scale),
        KvDtype::Q4 => scores::<S, Q4, HEADS>(s, q, keys, a.scale),
    };
    let state = &mut a.state[first..][..HEADS * width];
    let mut alphas = [0.0; HEADS];
    for h in 0..HEADS {
        alphas[h] = softmax_step(s, &mut state[h * width..][..STATE_HEADER], &mut weights[h]);
    }
    match a.geometry.v {
        KvDtype::F32 => add_values::<S, F32, HEADS>(s, state, values, &alphas, &weights),
        KvDtype::F16 => add_values::<S, F16, HEADS>(s, state, values, &alphas, &weights),
        KvDtype::Bf16 => add_values::<S, Bf16, HEADS>(s, state, values, &alphas, &weights),
        KvDtype::Q8 => add_values::<S, Q8, HEADS>(s, state, values, &alphas, &weights),
        KvDtype::Q4 => add_values::<S, Q4, HEADS>(s, state, values, &alphas, &weights),
    }
    HEADS
}

/// `o = o·alpha`, then `o = fma(p_j, v_j, o)` over the rows of the tile.
#[inline(always)]
fn add_values<S: Simd, V: Cached, const HEADS: usize>(
    s: S,
    state: &mut [f32], // [HEADS, STATE_HEADER + head_dim]
    values: &[u8],     // rows of V
    alphas: &[f32; HEADS],
    weights: &[[f32; TILE]; HEADS],
) {
    let width = state.len() / HEADS;
    let blocks = V::blocks(values);
    let per_row = (width - STATE_HEADER) / (V::VECTORS * LANES);
    for c in 0..per_row {
        for i in 0..V::VECTORS {
            let at = STATE_HEADER + (c * V::VECTORS + i) * LANES;
            let mut o = [s.splat(0.0); HEADS];
            for h in 0..HEADS {
                o[h] = s.mul(s.load(lanes(state, h * width + at)), s.splat(alphas[h]));
            }
            for (j, block) in blocks.iter().skip(c).step_by(per_row).enumerate() {
                let value = V::vector(s, block, i);
                for h in 0..HEADS {
                    o[h] = s.fma(s.splat(weights[h][j]), value, o[h]);
                }
            }
            for h in 0..HEADS {
                s.store(o[h], lanes_mut(state, h * width + at));
            }
        }
    }
}

/// Scaled scores of every head; -inf behind the last key.
#[inline(always)]
fn scores<S: Simd, K: Cached, const HEADS: usize>(
    s: S,
    q: &[[f32; LANES]], // [HEADS, head_dim / 16]
    keys: &[u8],        // rows of K
    scale: f32,
) -> [[f32; TILE]; HEADS] {
    let vectors = q.len() / HEADS;
    let per_row = vectors / K::VECTORS;
    let mut out = [[f32::NEG_INFINITY; TILE]; HEADS];
    for (eight, keys) in K::blocks(keys).chunks(8 * per_row).enumerate() {
        let mut folded = [[s.fold(s.splat(0.0)); 8]; HEADS];
        let count = keys.len() / per_row;
        for (j, key) in keys.chunks_exact(per_row).enumerate() {
            let mut acc = [s.splat(0.0); HEADS];
            for (c, block) in key.iter().enumerate() {
                for i in 0..K::VECTORS {
                    let key = K::vector(s, block, i);
                    for h in 0..HEADS {
                        acc[h] = s.fma(s.load(&q[h * vectors + c * K::VECTORS + i]), key, acc[h]);
                    }
                }
            }
            for h in 0..HEADS {
                folded[h][j] = s.fold(acc[h]);
            }
        }
        for h in 0..HEADS {
            let mut sums = [0.0; 8];
            s.store_half(s.sum8(folded[h]), &mut sums);
            for (out, sum) in out[h][8 * eight..].iter_mut().zip(&sums[..count]) {
                *out = sum * scale;
            }
        }
    }
    out
}

/// Updates the running maximum and sum; scores become weights. Returns the factor on what was summed before.
#[inline(always)]
fn softmax_step<S: Simd>(s: S, header: &mut [f32], scores: &mut [f32; TILE]) -> f32 {
    let (first, second) = (s.load(lanes(scores, 0)), s.load(lanes(scores, LANES)));
    // Scores that are NaN lose against -inf, as in the reference.
    let largest = s.max(second, s.max(first, s.splat(f32::NEG_INFINITY)));
    let largest = s.largest(largest);
    let max = if largest > header[0] { largest } else { header[0] };
    let alpha = math::exp(header[0] - max);
    // Behind the last key stands e^-inf = 0, which changes no sum.
    let first = exp(s, s.sub(first, s.splat(max)));
    let second = exp(s, s.sub(second, s.splat(max)));
    s.store(first, lanes_mut(scores, 0));
    s.store(second, lanes_mut(scores, LANES));
    header[1] = header[1].mul_add(alpha, s.sum(s.add(first, second)));
    header[0] = max;
    alpha
}
