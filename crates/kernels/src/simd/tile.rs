//! Quantised linear layers for several tokens: weights are unpacked once and reused.
//!
//! A tile's codes are interleaved in units of four columns of all sixteen rows, so that one multiply-add instruction
//! meets four broadcast activations and rows are lanes from the start: no horizontal sums at all. Tiles and tokens are
//! computed side by side, in registers. Columns are taken in chunks while all tokens pass; between chunks the
//! accumulators wait in the thread's scratch. Long chunks keep many tokens busy and still fit the first-level cache; short
//! ones let few tokens multiply while memory delivers what comes next.

use std::ops::Range;

use basert_quant::ggml::{GgmlType, SUPER};

use super::affine::{BLOCK, Span, TILE_ROWS, Tile, TileScratch};
use super::parties::Multiplier;
use super::supers;
use crate::level::Vectorized;
use crate::matrix::{Coding, FP4_CODES, Quantized};
use crate::reference::affine::{Activations, AffineLinear, Order};
use crate::scratch::{Line, grown};
use crate::shared::ColumnBlock;
use crate::vector::Simd;

/// Columns of a unit.
pub(super) const UNIT: usize = 4;

/// Columns that many tokens pass at a time: 16 KiB of units for each tile.
const CHUNK: usize = 1024;

/// Columns that few tokens pass at a time: 64 bytes of 4-bit codes.
const STEP: usize = 128;

/// Units of a chunk of one tile.
pub(crate) const UNITS: usize = CHUNK / UNIT;

/// One unit: byte `4·row + column`.
pub(crate) type Unit = Line<[u8; UNIT * TILE_ROWS]>;

/// One output of all rows of a tile.
pub(super) type Sums = Line<[f32; TILE_ROWS]>;

const ZERO: Sums = Line([0.0; TILE_ROWS]);

/// See [`AffineLinear`]: `TILES` tiles side by side.
#[inline(always)]
pub(crate) fn by_tiles<S: Simd, const TILES: usize>(s: S, a: AffineLinear<'_>) {
    if S::ROOMY {
        return match a.x.tokens {
            _ if a.x.order == Order::Parties => many_tokens::<S, TILES>(s, a),
            ..=8 => few_tokens::<S, TILES, 8>(s, a),
            _ => many_tokens::<S, TILES>(s, a),
        };
    }
    match a.x.tokens {
        ..=2 => few_tokens::<S, TILES, 2>(s, a),
        3..=4 => few_tokens::<S, TILES, 4>(s, a),
        _ => many_tokens::<S, TILES>(s, a),
    }
}

/// Up to `TOKENS` tokens, whose accumulators stay while the columns pass.
#[inline(always)]
fn few_tokens<S: Simd, const TILES: usize, const TOKENS: usize>(s: S, mut a: AffineLinear<'_>) {
    let (w, x, rows) = (a.weights, a.x, a.out.width());
    let tokens: [TokenRow; TOKENS] = std::array::from_fn(|t| TokenRow::new(&x, x.cols / x.block, t));
    let mut scratch: [TileScratch<'_>; TILES] = TileScratch::new(&w, a.local);
    let mut units = [[Line([0; UNIT * TILE_ROWS]); STEP / UNIT]; TILES];
    for first in (0..rows).step_by(TILES * TILE_ROWS) {
        let mut tiles = side_by_side(&mut scratch, &a.weights, a.first_row, first..rows);
        let mut acc = [[s.splat(0.0); TOKENS]; TILES];
        for start in (0..x.cols).step_by(STEP) {
            let columns = start..x.cols.min(start + STEP);
            let units_mut = units.each_mut().map(|units| &mut units[..]);
            s.outline(Unpack { tiles: &mut tiles, columns: &columns, units: units_mut });
            let units = units.each_ref().map(|units| units.as_chunks().0.as_chunks().0);
            acc = Chunk::new(&tiles, units, &x, &columns).add(s, &tokens, acc);
        }
        for (tile, acc) in tiles.iter().zip(acc) {
            for (token, acc) in acc.into_iter().enumerate().take(x.tokens) {
                tile.span.store(s, &mut a.out, token, acc);
            }
        }
    }
}

/// Any number of tokens: all of them pass a chunk of columns before the next one is unpacked.
#[inline(always)]
fn many_tokens<S: Simd, const TILES: usize>(s: S, mut a: AffineLinear<'_>) {
    let (w, x, rows) = (a.weights, a.x, a.out.width());
    let (mut units, mut sums) = (std::mem::take(&mut a.local.tile), std::mem::take(&mut a.local.sums));
    let (chunks, _) = grown(&mut units, TILES * UNITS, Line([0; UNIT * TILE_ROWS])).as_chunks_mut::<UNITS>();
    let (acc, _) = grown(&mut sums, TILES * x.tokens, ZERO).as_chunks_mut::<TILES>();
    let mut scratch: [TileScratch<'_>; TILES] = TileScratch::new(&w, a.local);
    let mut multiplier = s.matrix_unit(x.block).map(Multiplier::new);
    for first in (0..rows).step_by(TILES * TILE_ROWS) {
        let mut tiles = side_by_side(&mut scratch, &a.weights, a.first_row, first..rows);
        for start in (0..x.cols).step_by(CHUNK) {
            let columns = start..x.cols.min(start + CHUNK);
            let mut each = chunks.iter_mut();
            let units = std::array::from_fn(|_| each.next().map_or(&mut [][..], |c| c));
            s.outline(Unpack { tiles: &mut tiles, columns: &columns, units });
            let units = std::array::from_fn(|t| chunks[t].as_chunks().0.as_chunks().0);
            let chunk = Chunk::new(&tiles, units, &x, &columns);
            match &mut multiplier {
                Some(multiplier) => chunk.add_parties(s, multiplier, acc, &mut a.out),
                None => chunk.add_all(s, acc, &mut a.out),
            }
        }
    }
    (a.local.tile, a.local.sums) = (units, sums);
}

/// The next tiles of the outputs `rows`, whose first one is row `first_row` of the matrix.
#[inline(always)]
fn side_by_side<'a, const TILES: usize>(
    scratch: &'a mut [TileScratch<'_>; TILES],
    w: &'a Quantized<'_>,
    first_row: usize,
    rows: Range<usize>,
) -> [Tile<'a>; TILES] {
    let mut starts = rows.clone().step_by(TILE_ROWS);
    scratch
        .each_mut()
        .map(|scratch| scratch.tile(*w, first_row, Span::new(starts.next().unwrap_or(rows.end), rows.end)))
}

/// A token, and the first of its activation blocks.
#[derive(Clone, Copy, Default)]
struct TokenRow {
    token: usize,
    block: usize,
}

impl TokenRow {
    /// Rows have `per_row` blocks. Behind the last token it is computed again.
    #[inline(always)]
    fn new(x: &Activations<'_>, per_row: usize, token: usize) -> TokenRow {
        let token = token.min(x.tokens - 1);
        TokenRow { token, block: token * per_row }
    }
}

/// A chunk of columns of some tiles.
pub(super) struct Chunk<'a, const TILES: usize> {
    pub tiles: &'a [Tile<'a>; TILES],
    pub units: [&'a [[[Unit; 2]; 2]]; TILES],
    pub x: &'a Activations<'a>,
    /// The columns in activation blocks, of which there are `per_group` in a group.
    pub blocks: Range<usize>,
    pub per_group: usize,
    pub per_row: usize,
}

impl<'a, const TILES: usize> Chunk<'a, TILES> {
    #[inline(always)]
    fn new(
        tiles: &'a [Tile<'a>; TILES],
        units: [&'a [[[Unit; 2]; 2]]; TILES],
        x: &'a Activations<'a>,
        columns: &Range<usize>,
    ) -> Self {
        let blocks = columns.start / x.block..columns.end / x.block;
        Chunk { tiles, units, x, blocks, per_group: tiles[0].w.group / x.block, per_row: x.cols / x.block }
    }

    /// Whether no columns come before these.
    #[inline(always)]
    pub fn begins(&self) -> bool {
        self.blocks.start == 0
    }

    /// Whether no columns come behind these.
    #[inline(always)]
    pub fn ends(&self) -> bool {
        self.blocks.end == self.per_row
    }

    /// Adds the chunk's products to the sums of all tokens: as many side by side as there are registers for, and the
    /// rest in smaller parties. Behind the last columns the sums are the outputs.
    #[inline(always)]
    fn add_all<S: Simd>(&self, s: S, sums: &mut [[Sums; TILES]], out: &mut ColumnBlock<'_, f32>) {
        let mut token = 0;
        while token < sums.len() {
            token += match sums.len() - token {
                left if !S::ROOMY || left <= 2 => self.add_party::<S, 2>(s, token, sums, out),
                3 | 4 | 7 | 8 => self.add_party::<S, 4>(s, token, sums, out),
                _ => self.add_party::<S, 6>(s, token, sums, out),
            };
        }
    }

    /// Adds the chunk's products to the sums of `TOKENS` tokens; returns how many that are.
    #[inline(always)]
    fn add_party<S: Simd, const TOKENS: usize>(
        &self,
        s: S,
        first: usize,
        sums: &mut [[Sums; TILES]],
        out: &mut ColumnBlock<'_, f32>,
    ) -> usize {
        let (begins, ends) = (self.begins(), self.ends());
        let per_row = self.per_row;
        let mut tokens = [TokenRow::default(); TOKENS];
        let mut acc = [[s.splat(0.0); TOKENS]; TILES];
        for t in 0..TOKENS {
            tokens[t] = TokenRow::new(self.x, per_row, first + t);
            for r in 0..TILES {
                if !begins {
                    acc[r][t] = s.load(&sums[tokens[t].token][r].0);
                }
                if ends {
                    self.tiles[r].span.fetch(out, tokens[t].token);
                }
            }
        }
        for t in first + TOKENS..(first + 2 * TOKENS).min(self.x.tokens) {
            self.fetch(t, &sums[t]);
        }
        acc = self.add(s, &tokens, acc);
        for t in 0..TOKENS {
            for r in 0..TILES {
                match ends {
                    true => self.tiles[r].span.store(s, out, tokens[t].token, acc[r][t]),
                    false => s.store(acc[r][t], &mut sums[tokens[t].token][r].0),
                }
            }
        }
        TOKENS
    }

    /// Asks for what the chunk's products with a token need first.
    #[inline(always)]
    fn fetch(&self, token: usize, sums: &[Sums; TILES]) {
        let (block, x) = (token * self.per_row + self.blocks.start, self.x);
        super::prefetch(x.codes.as_ptr().wrapping_add(block * x.block).cast());
        super::prefetch(x.codes.as_ptr().wrapping_add((block + 1) * x.block).cast());
        super::prefetch(x.scales.as_ptr().wrapping_add(block).cast());
        super::prefetch(x.weighted.as_ptr().wrapping_add(block).cast());
        for sums in sums {
            super::prefetch(sums.0.as_ptr().cast());
        }
    }

    /// The accumulators plus the chunk's products. Where nothing has to be subtracted from wide codes, all codes are
    /// multiplied alike.
    #[inline(always)]
    fn add<S: Simd, const TOKENS: usize>(
        &self,
        s: S,
        tokens: &[TokenRow; TOKENS],
        acc: [[S::F; TOKENS]; TILES],
    ) -> [[S::F; TOKENS]; TILES] {
        match S::CODE_OFFSET == 0 || self.tiles[0].w.is_wide() {
            true => self.add_codes::<S, TOKENS, true>(s, tokens, acc),
            false => self.add_codes::<S, TOKENS, false>(s, tokens, acc),
        }
    }

    /// See [`Chunk::add`]; `WIDE` are codes of any size, else they are below 64.
    #[inline(always)]
    fn add_codes<S: Simd, const TOKENS: usize, const WIDE: bool>(
        &self,
        s: S,
        tokens: &[TokenRow; TOKENS],
        mut acc: [[S::F; TOKENS]; TILES],
    ) -> [[S::F; TOKENS]; TILES] {
        for index in self.blocks.clone() {
            let sums = self.products::<S, TOKENS, WIDE>(s, index, tokens);
            let group = if self.per_group == 1 { index } else { index / self.per_group };
            for r in 0..TILES {
                let tile = &self.tiles[r];
                let (scale, bias) = (s.load(&tile.scales[group].0), s.load(&tile.biases[group].0));
                for t in 0..TOKENS {
                    let (x, at) = (self.x, tokens[t].block + index);
                    let offset = if WIDE && S::CODE_OFFSET != 0 { S::CODE_OFFSET * x.sums[at] } else { 0 };
                    let scaled = s.mul(s.sums_to_f32(sums[r][t], offset), s.splat(x.scales[at]));
                    acc[r][t] = s.fma(scaled, scale, acc[r][t]);
                    acc[r][t] = s.fma(s.splat(x.weighted[at]), bias, acc[r][t]);
                }
            }
        }
        acc
    }

    /// Sums of the products of activation block `index`.
    #[inline(always)]
    fn products<S: Simd, const TOKENS: usize, const WIDE: bool>(
        &self,
        s: S,
        index: usize,
        tokens: &[TokenRow; TOKENS],
    ) -> [[S::Sums; TOKENS]; TILES] {
        let steps = self.x.block / (4 * UNIT);
        let mut units = self.units;
        for r in 0..TILES {
            units[r] = &units[r][(index - self.blocks.start) * steps..][..steps];
        }
        let all = self.x.codes.as_chunks().0.as_chunks().0.as_chunks().0;
        let mut codes: [&[[[[i8; UNIT]; 2]; 2]]; TOKENS] = [&[]; TOKENS];
        for t in 0..TOKENS {
            codes[t] = &all[(tokens[t].block + index) * steps..][..steps];
        }
        let mut sums = [[s.zero_sums(); TOKENS]; TILES];
        for step in 0..steps {
            for pair in 0..2 {
                let mut weights = [[s.bytes(&[0; BLOCK]); 2]; TILES];
                for r in 0..TILES {
                    let [first, second] = &units[r][step][pair];
                    weights[r] = [s.bytes(&first.0), s.bytes(&second.0)];
                }
                for t in 0..TOKENS {
                    for r in 0..TILES {
                        sums[r][t] = match WIDE {
                            true => s.tile_bytes(sums[r][t], weights[r], &codes[t][step][pair]),
                            false => s.tile_codes(sums[r][t], weights[r], &codes[t][step][pair]),
                        };
                    }
                }
            }
        }
        sums
    }
}

/// Unpacks and interleaves some columns of all tiles.
struct Unpack<'a, 'b, const TILES: usize> {
    tiles: &'a mut [Tile<'b>; TILES],
    columns: &'a Range<usize>,
    units: [&'a mut [Unit]; TILES],
}

impl<const TILES: usize> Vectorized for Unpack<'_, '_, TILES> {
    #[inline(always)]
    fn vectorized<S: Simd>(self, s: S) {
        let Unpack { tiles, columns, units } = self;
        for (tile, units) in tiles.iter_mut().zip(units) {
            tile.need(s, (columns.end - 1) / tile.w.group);
            match tile.w.coding {
                Coding::Super(kind) => unpack_blocks(s, tile, TILES, kind, columns, units),
                _ => unpack_packed(s, tile, TILES, columns, units),
            }
        }
    }
}

/// Super-blocks.
#[inline(always)]
fn unpack_blocks<S: Simd>(
    s: S,
    tile: &Tile<'_>,
    tiles: usize,
    kind: GgmlType,
    columns: &Range<usize>,
    units: &mut [Unit],
) {
    let bytes = kind.block_bytes();
    for (units, column) in units.chunks_exact_mut(BLOCK / UNIT).zip(columns.clone().step_by(BLOCK)) {
        let byte = column / SUPER * bytes;
        tile.fetch_ahead(byte + column % SUPER * bytes / SUPER, tiles);
        let mut codes = [[0; BLOCK]; TILE_ROWS];
        for (codes, row) in codes.iter_mut().zip(&tile.numbers) {
            let block = &tile.w.row(*row)[byte..][..bytes];
            s.store_bytes(supers::codes(s, kind, block, column % SUPER / BLOCK), codes);
        }
        store(s, s.interleave(codes.each_ref()), units);
    }
}

/// Codes that lie one after the other.
#[inline(always)]
fn unpack_packed<S: Simd>(s: S, tile: &Tile<'_>, tiles: usize, columns: &Range<usize>, units: &mut [Unit]) {
    let (bits, fp4) = (tile.w.bits(), tile.w.coding == Coding::Fp4);
    let step = if bits == 4 { 2 * BLOCK } else { BLOCK };
    for (units, column) in units.chunks_exact_mut(step / UNIT).zip(columns.clone().step_by(step)) {
        let byte = column / 8 * bits;
        tile.fetch_ahead(byte, tiles);
        let copies;
        let lines = match tile.lines(byte) {
            Some(lines) => lines,
            None => {
                copies = tile.copied_lines(byte);
                copies.each_ref()
            }
        };
        unpack_lines(s, lines, bits, fp4, units);
    }
}

/// The units of 64 columns of sixteen rows, or of 128 columns if their codes have 4 bits.
#[inline(always)]
fn unpack_lines<S: Simd>(s: S, lines: [&[u8; BLOCK]; TILE_ROWS], bits: usize, fp4: bool, units: &mut [Unit]) {
    match bits {
        4 => {
            let packed = s.interleave(lines);
            for (i, pair) in units.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let mut codes = s.spread(packed[i]);
                if fp4 {
                    codes = [s.lookup(codes[0], &FP4_CODES), s.lookup(codes[1], &FP4_CODES)];
                }
                s.store_bytes(codes[0], &mut pair[0].0);
                s.store_bytes(codes[1], &mut pair[1].0);
            }
        }
        8 => store(s, s.interleave(lines), units),
        _ => {
            let mut codes = [[0; BLOCK]; TILE_ROWS];
            for (codes, line) in codes.iter_mut().zip(lines) {
                s.store_bytes(s.unpack(line, bits), codes);
            }
            store(s, s.interleave(codes.each_ref()), units);
        }
    }
}

#[inline(always)]
fn store<S: Simd>(s: S, codes: [S::Bytes; TILE_ROWS], units: &mut [Unit]) {
    for (i, unit) in units.iter_mut().enumerate() {
        s.store_bytes(codes[i], &mut unit.0);
    }
}
