//! Quantised linear layers for many tokens: weights are unpacked once per sixteen rows and reused.
//!
//! A tile's codes are interleaved in units of four columns of all sixteen rows, so that one multiply-add instruction
//! meets four broadcast activations and rows are lanes from the start: no horizontal sums at all.

use super::affine::{BLOCK, TILE_ROWS, Tile, TileOut, unpack};
use crate::matrix::{Coding, FP4_CODES, Quantized};
use crate::reference::affine::Activations;
use crate::scratch::{Line, grown};
use crate::vector::{Simd, padded};

/// Columns of a unit.
const UNIT: usize = 4;

/// Tokens that share a walk over the tile.
const TOKENS: usize = 2;

/// One unit: byte `4·row + column`.
pub(crate) type Unit = Line<[u8; UNIT * TILE_ROWS]>;

/// See [`AffineLinear`](crate::reference::affine::AffineLinear), for one tile.
#[inline(always)]
pub(crate) fn many_tokens<S: Simd>(
    s: S,
    tile: &Tile<'_>,
    x: &Activations<'_>,
    out: &mut TileOut<'_, '_>,
    units: &mut Vec<Unit>,
) {
    let units = grown(units, x.cols.next_multiple_of(BLOCK) / UNIT, Line([0; UNIT * TILE_ROWS]));
    unpack_tile(s, tile, units);
    for token in (0..x.tokens).step_by(TOKENS) {
        // An odd last token is computed twice.
        let tokens = [token, (token + 1).min(x.tokens - 1)];
        let acc = match tile.w.is_wide() {
            true => token_pair::<S, true>(s, tile, units, x, tokens),
            false => token_pair::<S, false>(s, tile, units, x, tokens),
        };
        for t in 0..TOKENS {
            out.store(s, tokens[t], acc[t]);
        }
    }
}

/// The sixteen outputs of each of two tokens.
#[inline(always)]
fn token_pair<S: Simd, const WIDE: bool>(
    s: S,
    tile: &Tile<'_>,
    units: &[Unit],
    x: &Activations<'_>,
    tokens: [usize; TOKENS],
) -> [S::F; TOKENS] {
    let blocks = x.cols / x.block;
    let per_group = tile.w.group / x.block;
    let mut codes = [&[][..]; TOKENS];
    for (codes, token) in codes.iter_mut().zip(tokens) {
        *codes = x.codes[token * x.cols..][..x.cols].as_chunks::<UNIT>().0;
    }
    let mut acc = [s.splat(0.0); TOKENS];
    for block in 0..blocks {
        let range = block * x.block / UNIT..(block + 1) * x.block / UNIT;
        let (pairs, _) = units[range.clone()].as_chunks::<2>();
        let mut sums = [s.zero_sums(); TOKENS];
        let first = codes[0][range.clone()].as_chunks::<2>().0;
        let second = codes[1][range].as_chunks::<2>().0;
        for ((pair, first), second) in pairs.iter().zip(first).zip(second) {
            let weights = [s.bytes(&pair[0].0), s.bytes(&pair[1].0)];
            if WIDE {
                sums[0] = s.tile_bytes(sums[0], weights, *first);
                sums[1] = s.tile_bytes(sums[1], weights, *second);
            } else {
                sums[0] = s.tile_codes(sums[0], weights, *first);
                sums[1] = s.tile_codes(sums[1], weights, *second);
            }
        }
        let group = block / per_group;
        let (scale, bias) = (s.load(&tile.scales[group].0), s.load(&tile.biases[group].0));
        for t in 0..TOKENS {
            let index = tokens[t] * blocks + block;
            let offset = if WIDE { S::CODE_OFFSET * x.sums[index] } else { 0 };
            let scaled = s.mul(s.sums_to_f32(sums[t], offset), s.splat(x.scales[index]));
            acc[t] = s.fma(scaled, scale, acc[t]);
            acc[t] = s.fma(s.splat(x.weighted[index]), bias, acc[t]);
        }
    }
    acc
}

/// Unpacks and interleaves the codes of sixteen rows.
#[inline(always)]
fn unpack_tile<S: Simd>(s: S, tile: &Tile<'_>, units: &mut [Unit]) {
    let w = &tile.w;
    let bytes = BLOCK / 8 * w.bits();
    for (block, units) in units.as_chunks_mut::<{ BLOCK / UNIT }>().0.iter_mut().enumerate() {
        let mut codes = [[0; BLOCK]; TILE_ROWS];
        for (codes, number) in codes.iter_mut().zip(&tile.numbers) {
            let packed = &w.codes[number * w.row_bytes() + block * bytes..];
            // As in the row kernel, columns behind the row's end are never used.
            match packed.first_chunk() {
                Some(packed) => unpack_block(s, w, packed, codes),
                None => unpack_block(s, w, &padded(packed, 0), codes),
            }
        }
        interleave(&codes, units);
    }
}

/// 64 codes of one row.
#[inline(always)]
fn unpack_block<S: Simd>(s: S, w: &Quantized<'_>, packed: &[u8; BLOCK], codes: &mut [u8; BLOCK]) {
    if w.bits() == 8 {
        *codes = *packed;
        return;
    }
    for (codes, word) in codes.as_chunks_mut::<8>().0.iter_mut().zip(unpack(s, packed, w.bits())) {
        *codes = word.to_le_bytes();
    }
    if w.coding == Coding::Fp4 {
        s.store_bytes(s.lookup(s.bytes(codes), &FP4_CODES), codes);
    }
}

/// Transposes a block of four-byte units.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn interleave(codes: &[[u8; BLOCK]; TILE_ROWS], units: &mut [Unit; BLOCK / UNIT]) {
    use std::arch::x86_64::*;
    for row in (0..TILE_ROWS).step_by(4) {
        for unit in (0..BLOCK / UNIT).step_by(4) {
            // SAFETY: SSE2 is part of x86-64. The loads read 16 bytes from column 4·unit <= 48 on of four 64-byte rows,
            // the stores write 16 bytes from byte 4·row <= 48 on of four 64-byte units.
            unsafe {
                let load = |r: usize| _mm_loadu_si128(codes[row + r].as_ptr().add(UNIT * unit).cast());
                let (a, b, c, d) = (load(0), load(1), load(2), load(3));
                let (low, high) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
                let (low2, high2) = (_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
                let columns = [
                    _mm_unpacklo_epi64(low, low2),
                    _mm_unpackhi_epi64(low, low2),
                    _mm_unpacklo_epi64(high, high2),
                    _mm_unpackhi_epi64(high, high2),
                ];
                for (i, column) in columns.into_iter().enumerate() {
                    _mm_storeu_si128(units[unit + i].0.as_mut_ptr().add(UNIT * row).cast(), column);
                }
            }
        }
    }
}

/// Transposes a block of four-byte units.
#[cfg(not(target_arch = "x86_64"))]
fn interleave(codes: &[[u8; BLOCK]; TILE_ROWS], units: &mut [Unit; BLOCK / UNIT]) {
    for (row, codes) in codes.iter().enumerate() {
        for (unit, four) in units.iter_mut().zip(codes.as_chunks::<UNIT>().0) {
            unit.0[UNIT * row..][..UNIT].copy_from_slice(four);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_holds_four_columns_of_every_row() {
        let codes = std::array::from_fn(|row| std::array::from_fn(|column| (row * 16 + column) as u8));
        let mut units = [Line([0; UNIT * TILE_ROWS]); BLOCK / UNIT];
        interleave(&codes, &mut units);
        for (row, codes) in codes.iter().enumerate() {
            for (column, code) in codes.iter().enumerate() {
                assert_eq!(units[column / UNIT].0[UNIT * row + column % UNIT], *code);
            }
        }
    }
}
