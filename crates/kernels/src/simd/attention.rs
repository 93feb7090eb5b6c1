//! Attention over a paged cache.

use std::ops::Range;

use super::element::{Bf16, F16, F32};
use super::kv::{Cached, Q4, Q8};
use super::math::exp;
use crate::kv::KvDtype;
use crate::reference::attention::{self, AttentionSegment, STATE_HEADER, TILE, reset};
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
        let group = a.group();
        let seen_by_all = first < rows && seen(&a, first, start) == TILE.min(all.end - start);
        let mut next = first * group;
        while next < rows * group {
            let (row, count) = (next / group, seen(&a, next / group, start));
            let end = if seen_by_all { rows * group } else { (row + 1) * group };
            let step = Step { first: next, count, fetch: S::ROOMY && !decode && next == first * group };
            next += match end - next {
                4.. => queries::<S, 4>(s, &mut a, k, v, step),
                2.. => queries::<S, 2>(s, &mut a, k, v, step),
                _ => queries::<S, 1>(s, &mut a, k, v, step),
            };
        }
    }
}

/// How many positions of the tile at `start` a row sees.
#[inline(always)]
fn seen(a: &AttentionSegment<'_>, row: usize, start: usize) -> usize {
    (a.visible(a.first_position + row).end - start).min(TILE)
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

/// The first of some queries, counted by row and then by head of the group, and how many of the tile's positions they
/// see.
#[derive(Clone, Copy)]
struct Step {
    first: usize,
    count: usize,
    /// Whether the memory of the next tile is fetched meanwhile: worth its instructions where they are wide.
    fetch: bool,
}

/// One step of the running maximum for `N` queries; returns how many that is.
#[inline(always)]
fn queries<S: Simd, const N: usize>(
    s: S,
    a: &mut AttentionSegment<'_>,
    k: Side<'_>,
    v: Side<'_>,
    step: Step,
) -> usize {
    let (head_dim, group) = (a.geometry.head_dim, a.group());
    let width = STATE_HEADER + head_dim;
    let (keys, values) = (k.first(step.count, head_dim), v.first(step.count, head_dim));
    let mut q = [&[][..]; N];
    for (i, q) in q.iter_mut().enumerate() {
        let at = a.query((step.first + i) / group, (step.first + i) % group);
        *q = a.q[at..at + head_dim].as_chunks().0;
    }
    let mut weights = match k.dtype {
        KvDtype::F32 => scores::<S, F32, N>(s, q, keys, a.scale, step.fetch),
        KvDtype::F16 => scores::<S, F16, N>(s, q, keys, a.scale, step.fetch),
        KvDtype::Bf16 => scores::<S, Bf16, N>(s, q, keys, a.scale, step.fetch),
        KvDtype::Q8 => scores::<S, Q8, N>(s, q, keys, a.scale, step.fetch),
        KvDtype::Q4 => scores::<S, Q4, N>(s, q, keys, a.scale, step.fetch),
    };
    let state = &mut a.state[step.first * width..][..N * width];
    let alphas = softmax_step(s, state, &mut weights);
    match v.dtype {
        KvDtype::F32 => add_values::<S, F32, N>(s, state, values, &alphas, &weights, step.fetch),
        KvDtype::F16 => add_values::<S, F16, N>(s, state, values, &alphas, &weights, step.fetch),
        KvDtype::Bf16 => add_values::<S, Bf16, N>(s, state, values, &alphas, &weights, step.fetch),
        KvDtype::Q8 => add_values::<S, Q8, N>(s, state, values, &alphas, &weights, step.fetch),
        KvDtype::Q4 => add_values::<S, Q4, N>(s, state, values, &alphas, &weights, step.fetch),
    }
    N
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
fn add_values<S: Simd, V: Cached, const QUERIES: usize>(
    s: S,
    state: &mut [f32], // [QUERIES, STATE_HEADER + head_dim]
    values: &[u8],     // rows of V
    alphas: &[f32; LANES],
    weights: &[[f32; TILE]; QUERIES],
    fetch: bool,
) {
    let vectors = (state.len() / QUERIES - STATE_HEADER) / LANES;
    let mut n = 0;
    while n < vectors {
        let columns = match vectors - n {
            4.. if S::ROOMY && V::ABREAST == 4 => 4,
            2.. if S::ROOMY => 2,
            _ => 1,
        };
        if fetch {
            (n..n + columns).for_each(|part| fetch_next(values, part, vectors));
        }
        let blocks = V::blocks(values);
        match columns {
            4 => add_columns::<S, V, QUERIES, 4>(s, state, blocks, n, alphas, weights),
            2 => add_columns::<S, V, QUERIES, 2>(s, state, blocks, n, alphas, weights),
            _ => add_columns::<S, V, QUERIES, 1>(s, state, blocks, n, alphas, weights),
        }
        n += columns;
    }
}

/// [`add_values`] for `N` vectors of every row from vector `n` on. Independent sums side by side keep the multipliers
/// busy.
#[inline(always)]
fn add_columns<S: Simd, V: Cached, const QUERIES: usize, const N: usize>(
    s: S,
    state: &mut [f32],
    blocks: &[V::Block],
    n: usize,
    alphas: &[f32; LANES],
    weights: &[[f32; TILE]; QUERIES],
) {
    let width = state.len() / QUERIES;
    let per_row = (width - STATE_HEADER) / (V::VECTORS * LANES);
    let mut o = [[s.splat(0.0); N]; QUERIES];
    for h in 0..QUERIES {
        for p in 0..N {
            let old = s.load(lanes(state, h * width + STATE_HEADER + (n + p) * LANES));
            o[h][p] = s.mul(old, s.splat(alphas[h]));
        }
    }
    for (j, row) in blocks.chunks_exact(per_row).enumerate().take(TILE) {
        let mut value = [s.splat(0.0); N];
        for p in 0..N {
            // Several vectors begin with a block.
            let i = if N > 1 { p % V::VECTORS } else { n % V::VECTORS };
            value[p] = V::vector(s, &row[(n + p) / V::VECTORS], i);
        }
        for h in 0..QUERIES {
            let weight = s.splat(weights[h][j]);
            for p in 0..N {
                o[h][p] = s.fma(weight, value[p], o[h][p]);
            }
        }
    }
    for h in 0..QUERIES {
        for p in 0..N {
            s.store(o[h][p], lanes_mut(state, h * width + STATE_HEADER + (n + p) * LANES));
        }
    }
}

/// Scaled scores of every query; -inf behind the last key.
#[inline(always)]
fn scores<S: Simd, K: Cached, const QUERIES: usize>(
    s: S,
    q: [&[[f32; LANES]]; QUERIES], // [head_dim / 16] each
    keys: &[u8],                   // rows of K
    scale: f32,
    fetch: bool,
) -> [[f32; TILE]; QUERIES] {
    let per_row = q[0].len() / K::VECTORS;
    let mut out = [[f32::NEG_INFINITY; TILE]; QUERIES];
    for (eight, blocks) in K::blocks(keys).chunks(8 * per_row).enumerate() {
        if fetch {
            fetch_next(keys, eight, TILE / 8);
        }
        let mut folded = [[s.fold(s.splat(0.0)); 8]; QUERIES];
        let count = blocks.len() / per_row;
        let mut j = 0;
        while j < count {
            let blocks = &blocks[j * per_row..];
            j += match count - j {
                4.. if S::ROOMY && K::ABREAST == 4 => dots::<S, K, QUERIES, 4>(s, q, blocks, j, &mut folded),
                2.. if S::ROOMY => dots::<S, K, QUERIES, 2>(s, q, blocks, j, &mut folded),
                _ => dots::<S, K, QUERIES, 1>(s, q, blocks, j, &mut folded),
            };
        }
        for i in 0..QUERIES {
            let mut sums = [0.0; 8];
            s.store_half(s.sum8(folded[i]), &mut sums);
            for (out, sum) in out[i][8 * eight..].iter_mut().zip(&sums[..count]) {
                *out = sum * scale;
            }
        }
    }
    out
}

/// The first step of the sums over `N` keys side by side, to `folded[..][j..]`; returns how many that is.
#[inline(always)]
fn dots<S: Simd, K: Cached, const QUERIES: usize, const N: usize>(
    s: S,
    q: [&[[f32; LANES]]; QUERIES],
    blocks: &[K::Block], // [N, head_dim / 16 / VECTORS]
    j: usize,
    folded: &mut [[S::H; 8]; QUERIES],
) -> usize {
    let vectors = q[0].len();
    let per_row = vectors / K::VECTORS;
    let (mut queries, mut keys) = ([&[][..]; QUERIES], [&[][..]; N]);
    for i in 0..QUERIES {
        queries[i] = &q[i][..per_row * K::VECTORS];
    }
    for n in 0..N {
        keys[n] = &blocks[n * per_row..][..per_row];
    }
    let mut acc = [[s.splat(0.0); QUERIES]; N];
    for c in 0..per_row {
        for part in 0..K::VECTORS {
            let mut key = [s.splat(0.0); N];
            for n in 0..N {
                key[n] = K::vector(s, &keys[n][c], part);
            }
            for i in 0..QUERIES {
                let query = s.load(&queries[i][c * K::VECTORS + part]);
                for n in 0..N {
                    acc[n][i] = s.fma(query, key[n], acc[n][i]);
                }
            }
        }
    }
    for n in 0..N {
        for i in 0..QUERIES {
            folded[i][j + n] = s.fold(acc[n][i]);
        }
    }
    N
}

/// Updates every query's running maximum and sum; scores become weights. Returns the factors on what was summed before.
#[inline(always)]
fn softmax_step<S: Simd, const QUERIES: usize>(
    s: S,
    state: &mut [f32], // [QUERIES, STATE_HEADER + head_dim]
    scores: &mut [[f32; TILE]; QUERIES],
) -> [f32; LANES] {
    let width = state.len() / QUERIES;
    let mut maxima = [0.0; QUERIES];
    let mut fallen = [0.0; LANES];
    for i in 0..QUERIES {
        let (first, second) = (s.load(lanes(&scores[i], 0)), s.load(lanes(&scores[i], LANES)));
        // Scores that are NaN lose against -inf, as in the reference.
        let largest = s.max(second, s.max(first, s.splat(f32::NEG_INFINITY)));
        let (largest, old) = (s.largest(largest), state[i * width]);
        maxima[i] = if largest > old { largest } else { old };
        fallen[i] = old - maxima[i];
    }
    let mut alphas = [0.0; LANES];
    s.store(exp(s, s.load(&fallen)), &mut alphas);
    for i in 0..QUERIES {
        let (first, second) = (s.load(lanes(&scores[i], 0)), s.load(lanes(&scores[i], LANES)));
        // Behind the last key stands e^-inf = 0, which changes no sum.
        let first = exp(s, s.sub(first, s.splat(maxima[i])));
        let second = exp(s, s.sub(second, s.splat(maxima[i])));
        s.store(first, lanes_mut(&mut scores[i], 0));
        s.store(second, lanes_mut(&mut scores[i], LANES));
        let header = &mut state[i * width..][..STATE_HEADER];
        header[1] = header[1].mul_add(alphas[i], s.sum(s.add(first, second)));
        header[0] = maxima[i];
    }
    alphas
}
