//! Quantised linear layers for few tokens: weights are read in place, sixteen rows side by side.
//!
//! A row's codes meet the activations in blocks of 64 columns. Products are summed within the registers' lanes, eight
//! rows are reduced together by a tree of horizontal additions, and from there on rows are lanes: scales, biases and
//! accumulators of sixteen rows are vectors. The reduction keeps the two halves of a block apart, so that one kernel
//! serves blocks of 64 (halves added) and of 32; blocks of 16 take two passes with every other 16 columns masked.

use super::scales::{Rows, decode_scales};
use super::tile::many_tokens;
use crate::matrix::{Coding, FP4_CODES, Quantized, Scales};
use crate::reference::affine::{Activations, AffineLinear, unpack_row};
use crate::scratch::{Line, Local, grown};
use crate::shared::ColumnBlock;
use crate::vector::{Simd, padded};

/// Columns that are taken at a time.
pub(crate) const BLOCK: usize = 64;

/// Output rows that are computed together.
pub(crate) const TILE_ROWS: usize = 16;

/// From this many tokens on, weights are unpacked to interleaved tiles.
pub(crate) const TILE_TOKENS: usize = 8;

/// See [`AffineLinear`].
#[inline(always)]
pub(crate) fn affine_linear<S: Simd>(s: S, mut a: AffineLinear<'_>) {
    let (w, x, rows) = (a.weights, a.x, a.out.width());
    let Local { lines, biases, tile: units, bytes, .. } = a.local;
    let scales = grown(lines, w.groups(), Line([0.0; TILE_ROWS]));
    let biases = grown(biases, w.groups(), Line([0.0; TILE_ROWS]));
    for first in (0..rows).step_by(TILE_ROWS) {
        let count = TILE_ROWS.min(rows - first);
        let numbers = tile_rows(a.first_row + first, count);
        decode_scales(s, &w, &numbers, scales, biases);
        let (w, numbers) = match w.coding {
            Coding::Super(_) => taken_apart(w, &numbers, bytes),
            _ => (w, numbers),
        };
        let mut tile = Tile { w, numbers, scales, biases, copies: [[0; BLOCK]; 8] };
        let mut out = TileOut { out: &mut a.out, first, count };
        if x.tokens >= TILE_TOKENS {
            many_tokens(s, &tile, &x, &mut out, units);
            continue;
        }
        match (w.coding, w.bits()) {
            (Coding::Fp4, _) => by_block::<S, Fp4Codes>(s, &mut tile, &x, &mut out),
            (Coding::Plain, _) => by_block::<S, Plain>(s, &mut tile, &x, &mut out),
            (_, 4) => by_block::<S, Nibbles>(s, &mut tile, &x, &mut out),
            (_, 8) => by_block::<S, Bytes>(s, &mut tile, &x, &mut out),
            _ => by_block::<S, Narrow>(s, &mut tile, &x, &mut out),
        }
    }
}

/// Sixteen rows of a matrix.
pub(crate) struct Tile<'a> {
    pub w: Quantized<'a>,
    pub numbers: [usize; TILE_ROWS],
    pub scales: &'a [Rows], // [groups]
    pub biases: &'a [Rows], // [groups]
    /// Eight rows' codes where they cannot be read in place.
    copies: [[u8; BLOCK]; 8],
}

/// Where the outputs of a tile go.
pub(crate) struct TileOut<'a, 'b> {
    out: &'a mut ColumnBlock<'b, f32>,
    first: usize,
    count: usize,
}

impl TileOut<'_, '_> {
    /// Writes the outputs of one token.
    #[inline(always)]
    pub fn store<S: Simd>(&mut self, s: S, token: usize, values: S::F) {
        let mut lanes = [0.0; TILE_ROWS];
        s.store(values, &mut lanes);
        self.out.row_mut(token)[self.first..][..self.count].copy_from_slice(&lanes[..self.count]);
    }
}

/// Row numbers of a tile. Behind the last row they repeat it; those results are dropped.
#[inline(always)]
fn tile_rows(first: usize, count: usize) -> [usize; TILE_ROWS] {
    let mut rows = [first; TILE_ROWS];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = first + i.min(count - 1);
    }
    rows
}

/// The codes of sixteen rows of super-blocks, one to a byte, as a matrix of their own.
fn taken_apart<'a>(
    w: Quantized<'_>,
    numbers: &[usize; TILE_ROWS],
    bytes: &'a mut Vec<u8>,
) -> (Quantized<'a>, [usize; TILE_ROWS]) {
    let codes = grown(bytes, TILE_ROWS * w.cols, 0);
    for (codes, row) in codes.chunks_exact_mut(w.cols).zip(numbers) {
        // The same rows of the next tile.
        super::prefetch(w.row(*row).as_ptr().wrapping_add(TILE_ROWS * w.row_bytes()));
        unpack_row(&w, *row, codes);
    }
    let apart =
        Quantized { cols: w.cols, group: w.group, coding: Coding::Plain, scales: Scales::InBlocks, codes };
    (apart, std::array::from_fn(|row| row))
}

#[inline(always)]
fn by_block<S: Simd, W: Source>(s: S, tile: &mut Tile<'_>, x: &Activations<'_>, out: &mut TileOut<'_, '_>) {
    for token in 0..x.tokens {
        let sum = match x.block {
            16 => row_sums::<S, W, 4>(s, tile, &TokenView::new::<W, 4>(x, token)),
            32 => row_sums::<S, W, 2>(s, tile, &TokenView::new::<W, 2>(x, token)),
            _ => row_sums::<S, W, 1>(s, tile, &TokenView::new::<W, 1>(x, token)),
        };
        out.store(s, token, sum);
    }
}

/// A stored form of codes.
trait Source {
    /// Dot product of 64 columns, whose packed codes are at the start of `packed`, with activations in the order of
    /// [`Source::activations`], by half-block.
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], bits: usize, x: S::Bytes) -> S::Partial;

    /// The activations in this source's order.
    fn activations<'a>(x: &Activations<'a>) -> &'a [[i8; BLOCK]];

    /// What [`Source::dot`] subtracts from every code.
    fn offset<S: Simd>() -> i32 {
        0
    }
}

/// 4-bit codes: even columns in low nibbles, odd ones in high.
struct Nibbles;

impl Source for Nibbles {
    #[inline(always)]
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], _bits: usize, x: S::Bytes) -> S::Partial {
        s.dot_codes(s.nibbles(&packed.as_chunks().0[0]), x)
    }

    #[inline(always)]
    fn activations<'a>(x: &Activations<'a>) -> &'a [[i8; BLOCK]] {
        x.packed.nibble
    }
}

/// 4-bit floats, mapped to codes 0..=24.
struct Fp4Codes;

impl Source for Fp4Codes {
    #[inline(always)]
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], _bits: usize, x: S::Bytes) -> S::Partial {
        s.dot_codes(s.lookup(s.nibbles(&packed.as_chunks().0[0]), &FP4_CODES), x)
    }

    #[inline(always)]
    fn activations<'a>(x: &Activations<'a>) -> &'a [[i8; BLOCK]] {
        x.packed.nibble
    }
}

/// 8-bit codes.
struct Bytes;

impl Source for Bytes {
    #[inline(always)]
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], _bits: usize, x: S::Bytes) -> S::Partial {
        s.dot_bytes(s.split(packed), x)
    }

    #[inline(always)]
    fn activations<'a>(x: &Activations<'a>) -> &'a [[i8; BLOCK]] {
        x.packed.split
    }

    #[inline(always)]
    fn offset<S: Simd>() -> i32 {
        S::CODE_OFFSET
    }
}

/// Codes of at most 63, one to a byte.
struct Plain;

impl Source for Plain {
    #[inline(always)]
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], _bits: usize, x: S::Bytes) -> S::Partial {
        s.dot_codes(s.split(packed), x)
    }

    #[inline(always)]
    fn activations<'a>(x: &Activations<'a>) -> &'a [[i8; BLOCK]] {
        x.packed.split
    }
}

/// Codes of any other width.
struct Narrow;

impl Source for Narrow {
    #[inline(always)]
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], bits: usize, x: S::Bytes) -> S::Partial {
        s.dot_codes(s.split_words(unpack(s, packed, bits)), x)
    }

    #[inline(always)]
    fn activations<'a>(x: &Activations<'a>) -> &'a [[i8; BLOCK]] {
        x.packed.split
    }
}

/// 64 codes of `bits` < 8 bits, eight to a word. Every word is read as 8 bytes, the last one from byte 7·`bits`.
#[inline(always)]
pub(crate) fn unpack<S: Simd>(s: S, packed: &[u8; BLOCK], bits: usize) -> [u64; BLOCK / 8] {
    let mut words = [0; BLOCK / 8];
    for (i, word) in words.iter_mut().enumerate() {
        *word = s.spread(u64::from_le_bytes(packed[i * bits..].as_chunks().0[0]), bits);
    }
    words
}

/// All blocks of one token; `PER` is the number of activation blocks in 64 columns.
#[inline(always)]
fn row_sums<S: Simd, W: Source, const PER: usize>(s: S, tile: &mut Tile<'_>, x: &TokenView<'_>) -> S::F {
    let mut acc = s.splat(0.0);
    if PER == 1 {
        let blocks = tile.w.group / BLOCK;
        for (group, (scale, bias)) in tile.scales.iter().zip(tile.biases).enumerate() {
            let (scale, bias) = (s.load(&scale.0), s.load(&bias.0));
            for block in group * blocks..(group + 1) * blocks {
                let [sum] = block_sums::<S, W, 1>(s, tile, x, block);
                acc = x.add_block(s, block, sum, scale, bias, acc);
            }
        }
        return acc;
    }
    for block in 0..tile.scales.len().div_ceil(PER) {
        let sums = block_sums::<S, W, PER>(s, tile, x, block);
        // A row's last block may be incomplete.
        for (index, sum) in (block * PER..tile.scales.len()).zip(sums) {
            let (scale, bias) = (s.load(&tile.scales[index].0), s.load(&tile.biases[index].0));
            acc = x.add_block(s, index, sum, scale, bias, acc);
        }
    }
    acc
}

/// The activations of one token, in `n` blocks.
struct TokenView<'a> {
    packed: &'a [[i8; BLOCK]], // [passes, ceil(cols / 64)]
    sums: &'a [i32],           // [n]
    scales: &'a [f32],         // [n]
    weighted: &'a [f32],       // [n]
}

impl<'a> TokenView<'a> {
    #[inline(always)]
    fn new<W: Source, const PER: usize>(x: &Activations<'a>, token: usize) -> TokenView<'a> {
        let packed = passes(BLOCK / PER) * x.cols.div_ceil(BLOCK);
        let blocks = x.cols / (BLOCK / PER);
        TokenView {
            packed: &W::activations(x)[token * packed..][..packed],
            sums: &x.sums[token * blocks..][..blocks],
            scales: &x.scales[token * blocks..][..blocks],
            weighted: &x.weighted[token * blocks..][..blocks],
        }
    }

    /// `acc = fma(sum·sx, s, acc)`, then `acc = fma(xs, b, acc)`.
    #[inline(always)]
    fn add_block<S: Simd>(&self, s: S, index: usize, sum: S::F, scale: S::F, bias: S::F, acc: S::F) -> S::F {
        let acc = s.fma(s.mul(sum, s.splat(self.scales[index])), scale, acc);
        s.fma(s.splat(self.weighted[index]), bias, acc)
    }

    /// What is missing from the products of activation block `index`, if there is such a block.
    #[inline(always)]
    fn offset<S: Simd, W: Source>(&self, index: usize) -> i32 {
        match W::offset::<S>() {
            0 => 0,
            offset => offset * self.sums.get(index).copied().unwrap_or(0),
        }
    }
}

/// Passes over a block of weights for activation blocks of `block` columns. The kernel tells half-blocks of 32 columns
/// apart; with every other 16 columns masked, two passes tell quarters apart.
#[inline(always)]
pub(crate) const fn passes(block: usize) -> usize {
    if block == 16 { 2 } else { 1 }
}

/// `f32(Σ q·code)` of the activation blocks in a block of 64 columns, for all rows of the tile.
#[inline(always)]
fn block_sums<S: Simd, W: Source, const PER: usize>(
    s: S,
    tile: &mut Tile<'_>,
    x: &TokenView<'_>,
    block: usize,
) -> [S::F; PER] {
    let mut out = [s.splat(0.0); PER];
    let passes = passes(BLOCK / PER);
    for pass in 0..passes {
        let activations = s.activations(&x.packed[pass * (x.packed.len() / passes) + block]);
        let low = eight_rows::<S, W>(s, tile, 0, block, activations);
        let high = eight_rows::<S, W>(s, tile, 8, block, activations);
        if PER == 1 {
            let (low, high) = (s.add_partial(low.0, low.1), s.add_partial(high.0, high.1));
            out[0] = s.partials_to_f32(low, high, x.offset::<S, W>(block));
        } else {
            // Half-blocks; of blocks of 16 the quarters 0 and 2, then 1 and 3.
            let second = pass + PER / 2;
            out[pass] = s.partials_to_f32(low.0, high.0, x.offset::<S, W>(block * PER + pass));
            out[second] = s.partials_to_f32(low.1, high.1, x.offset::<S, W>(block * PER + second));
        }
    }
    out
}

/// Products of eight rows of a tile, from row `first` on, with one block, summed by half-block.
#[inline(always)]
fn eight_rows<S: Simd, W: Source>(
    s: S,
    tile: &mut Tile<'_>,
    first: usize,
    block: usize,
    x: S::Bytes,
) -> (S::Partial, S::Partial) {
    let (bits, row_bytes, codes) = (tile.w.bits(), tile.w.row_bytes(), tile.w.codes);
    let column = BLOCK / 8 * bits * block;
    let start = tile.numbers[first] * row_bytes + column;
    // What follows a row's last codes meets activations that are zero, but it has to be there.
    let in_place =
        tile.numbers[first + 7] == tile.numbers[first] + 7 && start + 7 * row_bytes + BLOCK <= codes.len();
    let (base, stride) = if in_place {
        (codes[start..].as_ptr(), row_bytes)
    } else {
        tile.copy_rows(first, column);
        (tile.copies.as_ptr().cast(), BLOCK)
    };
    let mut partials = [s.zero_partial(); 8];
    for (r, partial) in partials.iter_mut().enumerate() {
        // SAFETY: the read of the last of the eight rows was checked to end inside the codes, or these are the copies.
        let packed = unsafe { &*base.add(r * stride).cast::<[u8; BLOCK]>() };
        // The same place of the next tile.
        super::prefetch(packed.as_ptr().wrapping_add(TILE_ROWS * row_bytes));
        *partial = W::dot(s, packed, bits, x);
    }
    s.sum_halves(partials)
}

impl Tile<'_> {
    /// Copies the codes of eight rows from byte `column` on, followed by zeros where the matrix ends. Kept apart so that
    /// the common case stays one small loop.
    #[cold]
    #[inline(never)]
    fn copy_rows(&mut self, first: usize, column: usize) {
        for (copy, number) in self.copies.iter_mut().zip(&self.numbers[first..]) {
            let packed = &self.w.codes[number * self.w.row_bytes() + column..];
            *copy = padded(&packed[..packed.len().min(BLOCK)], 0);
        }
    }
}
