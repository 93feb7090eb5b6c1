//! Attention over a paged cache.

use std::ops::Range;

use super::element::{Bf16, F16, F32};
use super::kv::{Cached, Q4, Q8};
use super::math::exp;
use crate::kv::KvDtype;
use crate::reference::attention::{self, AttentionSegment, STATE_HEADER, TILE, reset};
use crate::reference::math;
use crate::scratch::{Line, line_bytes};
use crate::vector::{LANES, Simd, lanes, lanes_mut};

/// From this many query rows on, a tile of the cache is decoded once for all of them.
const DECODE_ROWS: usize = 3;

/// See [`AttentionSegment`]. Tile by tile, so that a tile of the cache is still near for the next query row.
#[inline(always)]
pub(crate) fn attention_segment<S: Simd>(s: S, mut a: AttentionSegment<'_>) {
    let (head_dim, rows) = (a.geometry.head_dim, a.rows());
    if !head_dim.is_multiple_of(LANES) {
        return attention::attention_segment(a);
    }
    reset(a.state, head_dim);
    let decoded = std::mem::take(&mut a.decoded);
    let all = a.visible(a.first_position + rows - 1);
    for start in all.clone().step_by(TILE) {
        let first = start.saturating_sub(a.first_position).min(rows);
        let (keys, values) = a.tile(start, TILE.min(all.end - start));
        let (mut k, mut v) =
            (Side { rows: keys, dtype: a.geometry.k }, Side { rows: values, dtype: a.geometry.v });
        let decode = rows - first >= DECODE_ROWS;
        if decode {
            let (k_lines, v_lines) = decoded.split_at_mut(TILE * head_dim / LANES);
            (k, v) = (k.decoded(s, k_lines), v.decoded(s, v_lines));
        }
        for row in first..rows {
            let count = (a.visible(a.first_position + row).end - start).min(TILE);
            let mut g = 0;
            while g < a.group() {
                let step = Step { row, g, count, fetch: S::ROOMY && !decode && row == first && g == 0 };
                g += match a.group() - g {
                    4.. => heads::<S, 4>(s, &mut a, k, v, step),
                    2.. => heads::<S, 2>(s, &mut a, k, v, step),
                    _ => heads::<S, 1>(s, &mut a, k, v, step),
                };
            }
        }
    }
}

/// Keys or values of up to [`TILE`] positions.
#[derive(Clone, Copy)]
struct Side<'a> {
    rows: &'a [u8],
    dtype: KvDtype,
}

impl<'a> Side<'a> {
    /// The same in f32, which is exact.
    #[inline(always)]
    fn decoded<S: Simd>(self, s: S, lines: &'a mut [Line<[f32; LANES]>]) -> Side<'a> {
        let count = match self.dtype {
            KvDtype::F32 => return self,
            KvDtype::F16 => decode::<S, F16>(s, self.rows, lines),
            KvDtype::Bf16 => decode::<S, Bf16>(s, self.rows, lines),
            KvDtype::Q8 => decode::<S, Q8>(s, self.rows, lines),
            KvDtype::Q4 => decode::<S, Q4>(s, self.rows, lines),
        };
        Side { rows: line_bytes(&lines[..count]), dtype: KvDtype::F32 }
    }

    /// The rows of the first `count` positions.
    fn first(self, count: usize, head_dim: usize) -> &'a [u8] {
        &self.rows[..count * self.dtype.row_bytes(head_dim)]
    }
}

/// Decodes whole rows; returns the number of vectors.
#[inline(always)]
fn decode<S: Simd, C: Cached>(s: S, rows: &[u8], lines: &mut [Line<[f32; LANES]>]) -> usize {
    let blocks = C::blocks(rows);
    for (block, lines) in blocks.iter().zip(lines.chunks_exact_mut(C::VECTORS)) {
        for (i, line) in lines.iter_mut().enumerate() {
            s.store(C::vector(s, block, i), &mut line.0);
        }
    }
    blocks.len() * C::VECTORS
}

/// A query row and its first query head of a step, and how many of the tile's positions it sees.
#[derive(Clone, Copy)]
struct Step {
    row: usize,
    g: usize,
    count: usize,
    /// Whether the memory of the next tile is fetched meanwhile: worth its instructions where they are wide.
    fetch: bool,
}

/// One step of the running maximum for `HEADS` query heads; returns how many that is.
#[inline(always)]
fn heads<S: Simd, const HEADS: usize>(
    s: S,
    a: &mut AttentionSegment<'_>,
    k: Side<'_>,
    v: Side<'_>,
    step: Step,
) -> usize {
    let head_dim = a.geometry.head_dim;
    let width = STATE_HEADER + head_dim;
    let first = (step.row * a.group() + step.g) * width;
    let (keys, values) = (k.first(step.count, head_dim), v.first(step.count, head_dim));
    let q = a.q[a.query(step.row, step.g)..][..HEADS * head_dim].as_chunks().0;
    let mut weights = match k.dtype {
        KvDtype::F32 => scores::<S, F32, HEADS>(s, q, keys, a.scale, step.fetch),
        KvDtype::F16 => scores::<S, F16, HEADS>(s, q, keys, a.scale, step.fetch),
        KvDtype::Bf16 => scores::<S, Bf16, HEADS>(s, q, keys, a.scale, step.fetch),
        KvDtype::Q8 => scores::<S, Q8, HEADS>(s, q, keys, a.scale, step.fetch),
        KvDtype::Q4 => scores::<S, Q4, HEADS>(s, q, keys, a.scale, step.fetch),
    };
    let state = &mut a.state[first..][..HEADS * width];
    let mut alphas = [0.0; HEADS];
    for h in 0..HEADS {
        alphas[h] = softmax_step(s, &mut state[h * width..][..STATE_HEADER], &mut weights[h]);
    }
    match v.dtype {
        KvDtype::F32 => add_values::<S, F32, HEADS>(s, state, values, &alphas, &weights, step.fetch),
        KvDtype::F16 => add_values::<S, F16, HEADS>(s, state, values, &alphas, &weights, step.fetch),
        KvDtype::Bf16 => add_values::<S, Bf16, HEADS>(s, state, values, &alphas, &weights, step.fetch),
        KvDtype::Q8 => add_values::<S, Q8, HEADS>(s, state, values, &alphas, &weights, step.fetch),
        KvDtype::Q4 => add_values::<S, Q4, HEADS>(s, state, values, &alphas, &weights, step.fetch),
    }
    HEADS
}

/// Fetches part `part` of `parts` of the bytes behind `tile`, where the next tile is unless a page ends.
#[inline(always)]
fn fetch_next(tile: &[u8], part: usize, parts: usize) {
    let next = tile.as_ptr().wrapping_add(tile.len());
    let bytes: Range<usize> = tile.len() * part / parts..tile.len() * (part + 1) / parts;
    for line in bytes.step_by(64) {
        super::prefetch(next.wrapping_add(line));
    }
}

/// `o = o·alpha`, then `o = fma(p_j, v_j, o)` over the rows of the tile.
#[inline(always)]
fn add_values<S: Simd, V: Cached, const HEADS: usize>(
    s: S,
    state: &mut [f32], // [HEADS, STATE_HEADER + head_dim]
    values: &[u8],     // rows of V
    alphas: &[f32; HEADS],
    weights: &[[f32; TILE]; HEADS],
    fetch: bool,
) {
    let vectors = (state.len() / HEADS - STATE_HEADER) / LANES;
    let mut n = 0;
    while n < vectors {
        if fetch {
            fetch_next(values, n, vectors);
        }
        if S::ROOMY && n + 2 <= vectors {
            if fetch {
                fetch_next(values, n + 1, vectors);
            }
            add_columns::<S, V, HEADS, 2>(s, state, V::blocks(values), n, alphas, weights);
            n += 2;
        } else {
            add_columns::<S, V, HEADS, 1>(s, state, V::blocks(values), n, alphas, weights);
            n += 1;
        }
    }
}

/// [`add_values`] for `N` vectors of every row from vector `n` on. Independent sums side by side keep the multipliers
/// busy.
#[inline(always)]
fn add_columns<S: Simd, V: Cached, const HEADS: usize, const N: usize>(
    s: S,
    state: &mut [f32],
    blocks: &[V::Block],
    n: usize,
    alphas: &[f32; HEADS],
    weights: &[[f32; TILE]; HEADS],
) {
    let width = state.len() / HEADS;
    let per_row = (width - STATE_HEADER) / (V::VECTORS * LANES);
    let mut o = [[s.splat(0.0); N]; HEADS];
    for h in 0..HEADS {
        for p in 0..N {
            let old = s.load(lanes(state, h * width + STATE_HEADER + (n + p) * LANES));
            o[h][p] = s.mul(old, s.splat(alphas[h]));
        }
    }
    for (j, row) in blocks.chunks_exact(per_row).enumerate().take(TILE) {
        let mut value = [s.splat(0.0); N];
        for p in 0..N {
            // With pairs on both sides, n is even.
            let i = if V::VECTORS == N { p } else { (n + p) % V::VECTORS };
            value[p] = V::vector(s, &row[(n + p) / V::VECTORS], i);
        }
        for h in 0..HEADS {
            let weight = s.splat(weights[h][j]);
            for p in 0..N {
                o[h][p] = s.fma(weight, value[p], o[h][p]);
            }
        }
    }
    for h in 0..HEADS {
        for p in 0..N {
            s.store(o[h][p], lanes_mut(state, h * width + STATE_HEADER + (n + p) * LANES));
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
    fetch: bool,
) -> [[f32; TILE]; HEADS] {
    let per_row = q.len() / HEADS / K::VECTORS;
    let mut out = [[f32::NEG_INFINITY; TILE]; HEADS];
    for (eight, blocks) in K::blocks(keys).chunks(8 * per_row).enumerate() {
        if fetch {
            fetch_next(keys, eight, TILE / 8);
        }
        let mut folded = [[s.fold(s.splat(0.0)); 8]; HEADS];
        let count = blocks.len() / per_row;
        let mut j = 0;
        while j < count {
            if S::ROOMY && j + 2 <= count {
                dots::<S, K, HEADS, 2>(s, q, &blocks[j * per_row..], j, &mut folded);
                j += 2;
            } else {
                dots::<S, K, HEADS, 1>(s, q, &blocks[j * per_row..], j, &mut folded);
                j += 1;
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

/// The first step of the sums over `N` keys side by side, to `folded[..][j..]`.
#[inline(always)]
fn dots<S: Simd, K: Cached, const HEADS: usize, const N: usize>(
    s: S,
    q: &[[f32; LANES]],
    blocks: &[K::Block], // [N, head_dim / 16 / VECTORS]
    j: usize,
    folded: &mut [[S::H; 8]; HEADS],
) {
    let vectors = q.len() / HEADS;
    let per_row = vectors / K::VECTORS;
    let mut acc = [[s.splat(0.0); HEADS]; N];
    for c in 0..per_row {
        for i in 0..K::VECTORS {
            let mut key = [s.splat(0.0); N];
            for n in 0..N {
                key[n] = K::vector(s, &blocks[n * per_row + c], i);
            }
            for h in 0..HEADS {
                let query = s.load(&q[h * vectors + c * K::VECTORS + i]);
                for n in 0..N {
                    acc[n][h] = s.fma(query, key[n], acc[n][h]);
                }
            }
        }
    }
    for n in 0..N {
        for h in 0..HEADS {
            folded[h][j + n] = s.fold(acc[n][h]);
        }
    }
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
