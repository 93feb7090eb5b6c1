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
use super::matrix_unit::Multiplier;
use super::supers;
use crate::level::Vectorized;
use crate::matrix::{Coding, FP4_CODES, Quantized};
use crate::reference::affine::{Activations, AffineLinear};
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

static ZERO: Sums = Line([0.0; TILE_ROWS]);

/// A party of up to `P` tokens, whose accumulators stay while the columns pass.
#[inline(always)]
pub(super) fn few_tokens<S: Simd, const TILES: usize, const P: usize>(s: S, mut a: AffineLinear<'_>) {
    let (w, x, rows) = (a.weights, a.x, a.out.width());
    let mut scratch: [TileScratch<'_>; TILES] = TileScratch::new(&w, a.local);
    let mut units = [[Line([0; UNIT * TILE_ROWS]); STEP / UNIT]; TILES];
    for first in (0..rows).step_by(TILES * TILE_ROWS) {
        let mut tiles = side_by_side(&mut scratch, &a.weights, a.first_row, first..rows);
        let mut acc = [[s.splat(0.0); P]; TILES];
        for start in (0..x.cols).step_by(STEP) {
            let columns = start..x.cols.min(start + STEP);
            let units_mut = units.each_mut().map(|units| &mut units[..]);
            s.outline(Unpack { tiles: &mut tiles, columns: &columns, units: units_mut });
            let units = units.each_ref().map(|units| &units[..]);
            acc = Chunk::<TILES, P>::new(&tiles, units, &x, &columns).add(s, 0, acc);
        }
        for (tile, acc) in tiles.iter().zip(acc) {
            for (token, acc) in acc.into_iter().enumerate().take(x.tokens) {
                tile.span.store(s, &mut a.out, token, acc);
            }
        }
    }
}

/// Any number of tokens, in parties of `P`: all of them pass a chunk of columns before the next one is unpacked.
#[inline(always)]
pub(super) fn many_tokens<S: Simd, const TILES: usize, const P: usize>(s: S, mut a: AffineLinear<'_>) {
    let (w, x, rows) = (a.weights, a.x, a.out.width());
    let (mut units, mut sums) = (std::mem::take(&mut a.local.tile), std::mem::take(&mut a.local.sums));
    let (chunks, _) = grown(&mut units, TILES * UNITS, Line([0; UNIT * TILE_ROWS])).as_chunks_mut::<UNITS>();
    let (acc, _) = grown(&mut sums, TILES * x.tokens, Line([0.0; TILE_ROWS])).as_chunks_mut::<TILES>();
    let mut scratch: [TileScratch<'_>; TILES] = TileScratch::new(&w, a.local);
    let mut multiplier = s.matrix_unit(x.block).map(Multiplier::new);
    for first in (0..rows).step_by(TILES * TILE_ROWS) {
        let mut tiles = side_by_side(&mut scratch, &a.weights, a.first_row, first..rows);
        for start in (0..x.cols).step_by(CHUNK) {
            let columns = start..x.cols.min(start + CHUNK);
            let mut each = chunks.iter_mut();
            let units = std::array::from_fn(|_| each.next().map_or(&mut [][..], |c| c));
            s.outline(Unpack { tiles: &mut tiles, columns: &columns, units });
            let units = std::array::from_fn(|t| &chunks[t][..]);
            let chunk = Chunk::<TILES, P>::new(&tiles, units, &x, &columns);
            for (party, acc) in acc.chunks_mut(P).enumerate() {
                match &mut multiplier {
                    Some(multiplier) => chunk.multiply_party(s, multiplier, party, acc, &mut a.out),
                    None if acc.len() <= 2 => chunk.add_party::<S, 2>(s, party, acc, &mut a.out),
                    None => chunk.add_party::<S, P>(s, party, acc, &mut a.out),
                }
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

/// A chunk of columns of some tiles, for tokens in parties of `P`.
pub(super) struct Chunk<'a, const TILES: usize, const P: usize> {
    pub tiles: &'a [Tile<'a>; TILES],
    pub units: [&'a [Unit]; TILES],
    pub x: &'a Activations<'a>,
    /// The columns in activation blocks, of which there are `per_group` in a group.
    pub blocks: Range<usize>,
    pub per_group: usize,
    per_row: usize,
}

/// The codes of a token's block, as they meet a pair of units.
type Codes<const STEPS: usize> = [[[[i8; UNIT]; 2]; 2]; STEPS];

/// A party's activations in the columns of a chunk; `STEPS` times sixteen of them are a block.
struct Party<'a, const P: usize, const STEPS: usize> {
    codes: &'a [[Codes<STEPS>; P]], // [blocks]
    sums: &'a [[i32; P]],
    scales: &'a [[f32; P]],
    weighted: &'a [[f32; P]],
}

impl<'a, const TILES: usize, const P: usize> Chunk<'a, TILES, P> {
    #[inline(always)]
    fn new(
        tiles: &'a [Tile<'a>; TILES],
        units: [&'a [Unit]; TILES],
        x: &'a Activations<'a>,
        columns: &Range<usize>,
    ) -> Self {
        debug_assert_eq!(x.party, P);
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

    /// The chunk's blocks of a party among those of all parties.
    #[inline(always)]
    pub fn blocks_of(&self, party: usize) -> Range<usize> {
        let first = party * self.per_row;
        first + self.blocks.start..first + self.blocks.end
    }

    /// The group of the chunk's block `i`.
    #[inline(always)]
    pub fn group(&self, i: usize) -> usize {
        let block = self.blocks.start + i;
        if self.per_group == 1 { block } else { block / self.per_group }
    }

    /// Adds the chunk's products to the sums of up to `TOKENS` tokens of a party. Behind the last columns the sums are the
    /// outputs.
    #[inline(always)]
    fn add_party<S: Simd, const TOKENS: usize>(
        &self,
        s: S,
        party: usize,
        sums: &mut [[Sums; TILES]],
        out: &mut ColumnBlock<'_, f32>,
    ) {
        let (begins, ends, last) = (self.begins(), self.ends(), sums.len() - 1);
        let mut acc = [[s.splat(0.0); TOKENS]; TILES];
        for t in 0..TOKENS {
            for r in 0..TILES {
                if !begins {
                    acc[r][t] = s.load(&sums[t.min(last)][r].0);
                }
                if ends {
                    self.tiles[r].span.fetch(out, party * P + t.min(last));
                }
            }
        }
        self.fetch(party + 1, sums.as_ptr_range().end);
        acc = self.add(s, party, acc);
        for t in 0..TOKENS.min(last + 1) {
            for r in 0..TILES {
                match ends {
                    true => self.tiles[r].span.store(s, out, party * P + t, acc[r][t]),
                    false => s.store(acc[r][t], &mut sums[t][r].0),
                }
            }
        }
    }

    /// Asks for what the chunk's products with a party need first.
    #[inline(always)]
    fn fetch(&self, party: usize, sums: *const [Sums; TILES]) {
        let (x, first) = (self.x, self.blocks_of(party).start * P);
        for byte in (0..P * x.block).step_by(BLOCK) {
            super::prefetch(x.codes.as_ptr().wrapping_add(first * x.block + byte).cast());
        }
        super::prefetch(x.scales.as_ptr().wrapping_add(first).cast());
        super::prefetch(x.weighted.as_ptr().wrapping_add(first).cast());
        for line in 0..P * TILES {
            super::prefetch(sums.cast::<Sums>().wrapping_add(line).cast());
        }
    }

    /// The accumulators of some tokens of a party plus the chunk's products. Where nothing has to be subtracted from wide
    /// codes, all codes are multiplied alike.
    #[inline(always)]
    fn add<S: Simd, const TOKENS: usize>(
        &self,
        s: S,
        party: usize,
        acc: [[S::F; TOKENS]; TILES],
    ) -> [[S::F; TOKENS]; TILES] {
        let alike = S::CODE_OFFSET == 0 || self.tiles[0].w.is_wide();
        match (self.x.block / (4 * UNIT), alike) {
            (1, true) => self.add_codes::<S, TOKENS, 1, true>(s, party, acc),
            (1, false) => self.add_codes::<S, TOKENS, 1, false>(s, party, acc),
            (2, true) => self.add_codes::<S, TOKENS, 2, true>(s, party, acc),
            (2, false) => self.add_codes::<S, TOKENS, 2, false>(s, party, acc),
            (_, true) => self.add_codes::<S, TOKENS, 4, true>(s, party, acc),
            (_, false) => self.add_codes::<S, TOKENS, 4, false>(s, party, acc),
        }
    }

    #[inline(always)]
    fn party<const STEPS: usize>(&self, party: usize) -> Party<'a, P, STEPS> {
        let (x, blocks) = (self.x, self.blocks_of(party));
        let steps = x.codes.as_chunks().0.as_chunks().0.as_chunks().0;
        Party {
            codes: &steps.as_chunks().0.as_chunks().0[blocks.clone()],
            sums: &x.sums.as_chunks().0[blocks.clone()],
            scales: &x.scales.as_chunks().0[blocks.clone()],
            weighted: &x.weighted.as_chunks().0[blocks],
        }
    }

    /// See [`Chunk::add`]; `WIDE` are codes of any size, else they are below 64.
    #[inline(always)]
    fn add_codes<S: Simd, const TOKENS: usize, const STEPS: usize, const WIDE: bool>(
        &self,
        s: S,
        party: usize,
        mut acc: [[S::F; TOKENS]; TILES],
    ) -> [[S::F; TOKENS]; TILES] {
        let x = self.party::<STEPS>(party);
        let mut units = [&[][..]; TILES];
        for r in 0..TILES {
            units[r] = &self.units[r].as_chunks().0.as_chunks().0.as_chunks().0[..x.codes.len()];
        }
        for (i, codes) in x.codes.iter().enumerate() {
            let mut blocks = [&units[0][i]; TILES];
            for r in 1..TILES {
                blocks[r] = &units[r][i];
            }
            // Found before there are products: behind a branch they would be formed one tile after the other.
            let group = self.group(i);
            let mut factors = [[&ZERO; 2]; TILES];
            for r in 0..TILES {
                factors[r] = [&self.tiles[r].scales[group], &self.tiles[r].biases[group]];
            }
            let sums = products::<S, TILES, P, TOKENS, STEPS, WIDE>(s, blocks, codes);
            for r in 0..TILES {
                let [scale, bias] = [s.load(&factors[r][0].0), s.load(&factors[r][1].0)];
                for t in 0..TOKENS {
                    let offset = if WIDE && S::CODE_OFFSET != 0 { S::CODE_OFFSET * x.sums[i][t] } else { 0 };
                    let scaled = s.mul(s.sums_to_f32(sums[r][t], offset), s.splat(x.scales[i][t]));
                    acc[r][t] = s.fma(scaled, scale, acc[r][t]);
                    acc[r][t] = s.fma(s.splat(x.weighted[i][t]), bias, acc[r][t]);
                }
            }
        }
        acc
    }
}

/// Sums of the products of a block.
#[inline(always)]
fn products<
    S: Simd,
    const TILES: usize,
    const P: usize,
    const TOKENS: usize,
    const STEPS: usize,
    const WIDE: bool,
>(
    s: S,
    units: [&[[[Unit; 2]; 2]; STEPS]; TILES],
    codes: &[Codes<STEPS>; P],
) -> [[S::Sums; TOKENS]; TILES] {
    let mut sums = [[s.zero_sums(); TOKENS]; TILES];
    for step in 0..STEPS {
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
