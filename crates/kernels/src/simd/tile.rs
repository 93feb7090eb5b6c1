//! Quantised linear layers for many tokens: weights are unpacked once and reused.
//!
//! A tile's codes are interleaved in units of four columns of all sixteen rows, so that one multiply-add instruction
//! meets four broadcast activations and rows are lanes from the start: no horizontal sums at all. One or two tiles by
//! some tokens are computed side by side, in registers. Columns are taken in chunks whose units stay in the first-level
//! cache while all tokens pass; between chunks the accumulators wait in the output.

use std::ops::Range;

use super::affine::{BLOCK, Span, TILE_ROWS, Tile, TileScratch};
use crate::matrix::{Coding, FP4_CODES, Quantized};
use crate::reference::affine::{Activations, AffineLinear};
use crate::scratch::{Line, grown};
use crate::shared::ColumnBlock;
use crate::vector::{Simd, padded};

/// Columns of a unit.
const UNIT: usize = 4;

/// Columns of a chunk: 16 KiB of units for each tile.
const CHUNK: usize = 1024;

/// Units of a chunk of one tile.
pub(crate) const UNITS: usize = CHUNK / UNIT;

/// One unit: byte `4·row + column`.
pub(crate) type Unit = Line<[u8; UNIT * TILE_ROWS]>;

/// See [`AffineLinear`]: `TILES` tiles and `TOKENS` tokens side by side.
#[inline(always)]
pub(crate) fn many_tokens<S: Simd, const TILES: usize, const TOKENS: usize>(s: S, mut a: AffineLinear<'_>) {
    let (w, x, rows) = (a.weights, a.x, a.out.width());
    let mut units = std::mem::take(&mut a.local.tile);
    let (chunks, _) = grown(&mut units, TILES * UNITS, Line([0; UNIT * TILE_ROWS])).as_chunks_mut::<UNITS>();
    let mut scratch: [TileScratch<'_>; TILES] = TileScratch::new(&w, a.local);
    for first in (0..rows).step_by(TILES * TILE_ROWS) {
        let mut starts = (first..).step_by(TILE_ROWS);
        let mut tiles = scratch
            .each_mut()
            .map(|scratch| scratch.tile(w, a.first_row, Span::new(starts.next().unwrap_or(rows), rows)));
        for tile in &mut tiles {
            tile.need(s, w.groups() - 1);
        }
        for start in (0..x.cols).step_by(CHUNK) {
            let columns = start..x.cols.min(start + CHUNK);
            for (tile, units) in tiles.iter().zip(&mut *chunks) {
                unpack_tile(s, tile, &columns, units);
            }
            let units = std::array::from_fn(|t| chunks[t].as_chunks().0);
            for token in (0..x.tokens).step_by(TOKENS) {
                let step = Step { tiles: &tiles, units, x: &x, columns: columns.clone(), token };
                match w.is_wide() {
                    true => step.run::<S, TOKENS, true>(s, &mut a.out),
                    false => step.run::<S, TOKENS, false>(s, &mut a.out),
                }
            }
        }
    }
    a.local.tile = units;
}

/// Tiles and tokens side by side, over a chunk of columns.
struct Step<'a, const TILES: usize> {
    tiles: &'a [Tile<'a>; TILES],
    units: [&'a [[Unit; 2]]; TILES],
    x: &'a Activations<'a>,
    columns: Range<usize>,
    /// The first token.
    token: usize,
}

/// What a token brings to a chunk.
#[derive(Clone, Copy, Default)]
struct TokenChunk<'a> {
    token: usize,
    codes: &'a [[[i8; UNIT]; 2]],
    sums: &'a [i32],     // [blocks]
    scales: &'a [f32],   // [blocks]
    weighted: &'a [f32], // [blocks]
}

impl<'a, const TILES: usize> Step<'a, TILES> {
    fn token(&self, token: usize) -> TokenChunk<'a> {
        let (x, first) = (self.x, self.columns.start / self.x.block);
        // Behind the last token it is computed again.
        let token = token.min(x.tokens - 1);
        let blocks = token * (x.cols / x.block) + first..(token + 1) * (x.cols / x.block);
        TokenChunk {
            token,
            codes: x.codes[token * x.cols..][self.columns.clone()].as_chunks().0.as_chunks().0,
            sums: &x.sums[blocks.clone()],
            scales: &x.scales[blocks.clone()],
            weighted: &x.weighted[blocks],
        }
    }

    /// Adds the chunk's products to the outputs.
    #[inline(always)]
    fn run<S: Simd, const TOKENS: usize, const WIDE: bool>(&self, s: S, out: &mut ColumnBlock<'_, f32>) {
        let (block, per_group) = (self.x.block, self.tiles[0].w.group / self.x.block);
        let mut tokens = [TokenChunk::default(); TOKENS];
        for (t, token) in tokens.iter_mut().enumerate() {
            *token = self.token(self.token + t);
        }
        let mut outputs = [[[0.0; TILE_ROWS]; TOKENS]; TILES];
        if self.columns.start > 0 {
            for (outputs, tile) in outputs.iter_mut().zip(self.tiles) {
                for (outputs, token) in outputs.iter_mut().zip(&tokens) {
                    *outputs = tile.span.load(out, token.token);
                }
            }
        }
        let mut acc = [[s.splat(0.0); TOKENS]; TILES];
        for r in 0..TILES {
            for t in 0..TOKENS {
                acc[r][t] = s.load(&outputs[r][t]);
            }
        }
        for (i, index) in (self.columns.start / block..self.columns.end / block).enumerate() {
            let sums = self.products::<S, TOKENS, WIDE>(s, i, &tokens);
            let group = if per_group == 1 { index } else { index / per_group };
            for r in 0..TILES {
                let tile = &self.tiles[r];
                let (scale, bias) = (s.load(&tile.scales[group].0), s.load(&tile.biases[group].0));
                for t in 0..TOKENS {
                    let offset = if WIDE { S::CODE_OFFSET * tokens[t].sums[i] } else { 0 };
                    let scaled = s.mul(s.sums_to_f32(sums[r][t], offset), s.splat(tokens[t].scales[i]));
                    acc[r][t] = s.fma(scaled, scale, acc[r][t]);
                    acc[r][t] = s.fma(s.splat(tokens[t].weighted[i]), bias, acc[r][t]);
                }
            }
        }
        for r in 0..TILES {
            for t in 0..TOKENS {
                s.store(acc[r][t], &mut outputs[r][t]);
            }
        }
        for (outputs, tile) in outputs.iter().zip(self.tiles) {
            for (outputs, token) in outputs.iter().zip(&tokens) {
                tile.span.store(out, token.token, outputs);
            }
        }
    }

    /// Sums of the products of the chunk's activation block `index`.
    #[inline(always)]
    fn products<S: Simd, const TOKENS: usize, const WIDE: bool>(
        &self,
        s: S,
        index: usize,
        tokens: &[TokenChunk<'_>; TOKENS],
    ) -> [[S::Sums; TOKENS]; TILES] {
        let pairs = self.x.block / (2 * UNIT);
        let mut units = self.units;
        for r in 0..TILES {
            units[r] = &units[r][index * pairs..][..pairs];
        }
        let mut codes = [&[][..]; TOKENS];
        for t in 0..TOKENS {
            codes[t] = &tokens[t].codes[index * pairs..][..pairs];
        }
        let mut sums = [[s.zero_sums(); TOKENS]; TILES];
        for pair in 0..pairs {
            for r in 0..TILES {
                let weights = [s.bytes(&units[r][pair][0].0), s.bytes(&units[r][pair][1].0)];
                for t in 0..TOKENS {
                    sums[r][t] = match WIDE {
                        true => s.tile_bytes(sums[r][t], weights, &codes[t][pair]),
                        false => s.tile_codes(sums[r][t], weights, &codes[t][pair]),
                    };
                }
            }
        }
        sums
    }
}

/// Unpacks and interleaves some columns of sixteen rows.
#[inline(always)]
fn unpack_tile<S: Simd>(s: S, tile: &Tile<'_>, columns: &Range<usize>, units: &mut [Unit; UNITS]) {
    let w = &tile.w;
    let blocks = units.as_chunks_mut::<{ BLOCK / UNIT }>().0.iter_mut();
    for (units, column) in blocks.zip(columns.clone().step_by(BLOCK)) {
        let mut codes = [[0; BLOCK]; TILE_ROWS];
        for (codes, number) in codes.iter_mut().zip(&tile.numbers) {
            let packed = &w.codes[number * w.row_bytes() + column / 8 * w.bits()..];
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
    let unpacked = s.unpack(packed, w.bits());
    let fp4 = w.coding == Coding::Fp4;
    s.store_bytes(if fp4 { s.lookup(unpacked, &FP4_CODES) } else { unpacked }, codes);
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
