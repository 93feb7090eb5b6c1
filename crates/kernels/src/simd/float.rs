//! Linear layers with float weights.

use basert_quant::FloatDtype;

use super::element::{Bf16, Element, F16, F32};
use crate::reference::float::FloatLinear;
use crate::vector::{LANES, Simd, padded};

/// Tokens whose activations stay in the second-level cache while the rows of a task pass.
const TOKEN_BLOCK: usize = 24;

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
        let last = tokens.min(first + TOKEN_BLOCK);
        let mut row = 0;
        while row < rows {
            let mut token = first;
            // Enough independent sums to keep the multipliers busy, few enough to stay in registers.
            if last - token == 1 && row + 4 <= rows {
                tile::<S, E, 4, 1>(s, &mut a, row, token);
                row += 4;
                continue;
            }
            let pair = if row + 2 <= rows { 2 } else { 1 };
            while token + 3 <= last && pair == 2 {
                tile::<S, E, 2, 3>(s, &mut a, row, token);
                token += 3;
            }
            for token in token..last {
                for row in row..row + pair {
                    tile::<S, E, 1, 1>(s, &mut a, row, token);
                }
            }
            row += pair;
        }
    }
}

/// `ROWS` rows times `TOKENS` tokens, at most eight products.
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
        for r in 0..ROWS {
            let weights = E::load_tail(s, w[r].1);
            for t in 0..TOKENS {
                acc[r][t] = s.fma(weights, s.load(&padded(x[t].1, 0.0)), acc[r][t]);
            }
        }
    }
    let mut folded = [s.fold(s.splat(0.0)); 8];
    for (folded, acc) in folded.iter_mut().zip(acc.as_flattened()) {
        *folded = s.fold(*acc);
    }
    let mut sums = [0.0; 8];
    s.store_half(s.sum8(folded), &mut sums);
    for t in 0..TOKENS {
        for r in 0..ROWS {
            a.out.row_mut(first_token + t)[first_row + r] = sums[r * TOKENS + t];
        }
    }
}

/// Asks for the memory behind `at`, wherever that is; nothing is read.
#[inline(always)]
fn prefetch<T>(at: &T) {
    super::prefetch(std::ptr::from_ref(at).cast::<u8>().wrapping_add(PREFETCH));
}
