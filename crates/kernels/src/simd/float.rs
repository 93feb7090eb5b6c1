//! Linear layers with float weights.

use std::ops::Range;

use basert_quant::FloatDtype;

use super::element::{Bf16, Element, F16, F32};
use crate::reference::float::FloatLinear;
use crate::vector::{LANES, Simd, padded};

/// Tokens whose activations stay in the second-level cache while the rows of a task pass.
const TOKEN_BLOCK: usize = 24;

/// Most products of a tile, a multiple of eight.
const MOST: usize = 24;

/// Bytes ahead of the current position that are fetched while weights stream from memory.
const PREFETCH: usize = 1024;

/// See [`FloatLinear`].
#[inline(always)]
pub(crate) fn float_linear<S: Simd>(s: S, a: FloatLinear<'_>) {
    match a.dtype {
        FloatDtype::F32 => linear::<S, F32>(s, a),
        FloatDtype::F16 => linear::<S, F16>(s, a),
        FloatDtype::Bf16 => linear::<S, Bf16>(s, a),
    }
}

#[inline(always)]
fn linear<S: Simd, E: Element>(s: S, mut a: FloatLinear<'_>) {
    let (tokens, rows) = (a.out.rows(), a.out.width());
    for first in (0..tokens).step_by(TOKEN_BLOCK) {
        let block = first..tokens.min(first + TOKEN_BLOCK);
        let mut row = 0;
        while row < rows {
            // Enough independent sums to keep the multipliers busy, few enough to stay in registers.
            row += match rows - row {
                4.. if S::ROOMY => some_rows::<S, E, 4, 6>(s, &mut a, row, &block),
                4.. if block.len() == 1 => some_rows::<S, E, 4, 1>(s, &mut a, row, &block),
                2.. => some_rows::<S, E, 2, 3>(s, &mut a, row, &block),
                _ => some_rows::<S, E, 1, 1>(s, &mut a, row, &block),
            };
        }
    }
}

/// `ROWS` rows times all tokens of a block, `TOKENS` at a time; returns how many rows that is.
#[inline(always)]
fn some_rows<S: Simd, E: Element, const ROWS: usize, const TOKENS: usize>(
    s: S,
    a: &mut FloatLinear<'_>,
    row: usize,
    block: &Range<usize>,
) -> usize {
    let mut token = block.start;
    while token < block.end {
        if token + TOKENS <= block.end {
            tile::<S, E, ROWS, TOKENS>(s, a, row, token);
            token += TOKENS;
        } else {
            tile::<S, E, ROWS, 1>(s, a, row, token);
            token += 1;
        }
    }
    ROWS
}

/// `ROWS` rows times `TOKENS` tokens, at most [`MOST`] products.
#[inline(always)]
fn tile<S: Simd, E: Element, const ROWS: usize, const TOKENS: usize>(
    s: S,
    a: &mut FloatLinear<'_>,
    first_row: usize,
    first_token: usize,
) {
    let (row_bytes, whole) = (a.cols * E::DTYPE.bytes(), a.cols / LANES);
    let mut w = [(&[][..], &[][..]); ROWS];
    for (r, w) in w.iter_mut().enumerate() {
        let (chunks, tail) = E::chunks(&a.data[(first_row + r) * row_bytes..][..row_bytes]);
        *w = (&chunks[..whole], tail);
    }
    let mut x = [(&[][..], &[][..]); TOKENS];
    for (t, x) in x.iter_mut().enumerate() {
        let (chunks, tail) = a.x[(first_token + t) * a.cols..][..a.cols].as_chunks::<LANES>();
        *x = (&chunks[..whole], tail);
    }
    let mut acc = [[s.splat(0.0); TOKENS]; ROWS];
    for c in 0..whole {
        for r in 0..ROWS {
            if TOKENS == 1 {
                prefetch(&w[r].0[c]);
            }
            let weights = E::load(s, &w[r].0[c]);
            for t in 0..TOKENS {
                acc[r][t] = s.fma(weights, s.load(&x[t].0[c]), acc[r][t]);
            }
        }
    }
    if !a.cols.is_multiple_of(LANES) {
        // In two steps, because the accumulators would not stay in registers around a longer loop.
        let (w, x) = (w.map(|(_, tail)| E::tail(tail)), x.map(|(_, tail)| padded(tail, 0.0)));
        for r in 0..ROWS {
            for t in 0..TOKENS {
                acc[r][t] = s.fma(s.load(&w[r]), s.load(&x[t]), acc[r][t]);
            }
        }
    }
    let mut folded = [s.fold(s.splat(0.0)); MOST];
    for r in 0..ROWS {
        for t in 0..TOKENS {
            folded[r * TOKENS + t] = s.fold(acc[r][t]);
        }
    }
    for first in (0..ROWS * TOKENS).step_by(8) {
        let mut eight = [folded[first]; 8];
        eight.copy_from_slice(&folded[first..first + 8]);
        let mut sums = [0.0; 8];
        s.store_half(s.sum8(eight), &mut sums);
        for (i, sum) in (first..ROWS * TOKENS).zip(sums) {
            a.out.row_mut(first_token + i % TOKENS)[first_row + i / TOKENS] = sum;
        }
    }
}

/// Asks for the memory behind `at`, wherever that is; nothing is read.
#[inline(always)]
fn prefetch<T>(at: &T) {
    super::prefetch(std::ptr::from_ref(at).cast::<u8>().wrapping_add(PREFETCH));
}
