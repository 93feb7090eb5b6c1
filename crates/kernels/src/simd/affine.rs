//! Quantised linear layers for few tokens: weights are read in place, sixteen rows side by side.
//!
//! A row's codes meet the activations in blocks of 64 columns. Products are summed within the registers' lanes, eight
//! rows are reduced together by a tree of horizontal additions, and from there on rows are lanes: scales, biases and
//! accumulators of sixteen rows are vectors. The reduction keeps the two halves of a block apart, so that one kernel
//! serves blocks of 64 (halves added) and of 32; blocks of 16 take two passes with every other 16 columns masked.

use super::scales::{PANEL, Panel};
use super::tile::affine_tiles;
use crate::matrix::{Coding, FP4_CODES, Quantized};
use crate::reference::affine::{Activations, AffineLinear};
use crate::vector::{Simd, padded};

/// Columns that are taken at a time.
pub(crate) const BLOCK: usize = 64;

/// Output rows that are computed together.
pub(crate) const TILE_ROWS: usize = 16;

/// From this many tokens on, weights are unpacked to interleaved tiles.
pub(crate) const TILE_TOKENS: usize = 8;

/// See [`AffineLinear`].
#[inline(always)]
pub(crate) fn affine_linear<S: Simd>(s: S, a: AffineLinear<'_>) {
    if a.x.tokens >= TILE_TOKENS {
        return affine_tiles(s, a);
    }
    match (a.weights.coding, a.weights.bits()) {
        (Coding::Fp4, _) => affine_rows::<S, Fp4Codes>(s, a),
        (_, 4) => affine_rows::<S, Nibbles>(s, a),
        (_, 8) => affine_rows::<S, Bytes>(s, a),
        _ => affine_rows::<S, Narrow>(s, a),
    }
}

/// A stored form of codes.
trait Source {
    /// Dot product of 64 columns, whose packed codes are at the start of `packed`, with activations in the order of
    /// [`Source::activations`], by half-block.
    fn dot<S: Simd>(s: S, packed: &[u8], bits: usize, x: S::Bytes) -> S::Partial;

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
    fn dot<S: Simd>(s: S, packed: &[u8], _bits: usize, x: S::Bytes) -> S::Partial {
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
    fn dot<S: Simd>(s: S, packed: &[u8], _bits: usize, x: S::Bytes) -> S::Partial {
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
    fn dot<S: Simd>(s: S, packed: &[u8], _bits: usize, x: S::Bytes) -> S::Partial {
        s.dot_bytes(s.split(&packed.as_chunks().0[0]), x)
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

/// Codes of any other width.
struct Narrow;

impl Source for Narrow {
    #[inline(always)]
    fn dot<S: Simd>(s: S, packed: &[u8], bits: usize, x: S::Bytes) -> S::Partial {
        s.dot_codes(s.split_words(unpack(s, packed, bits)), x)
    }

    #[inline(always)]
    fn activations<'a>(x: &Activations<'a>) -> &'a [[i8; BLOCK]] {
        x.packed.split
    }
}

/// Bytes that a block of packed codes and the reads of [`unpack`] span.
#[inline(always)]
pub(crate) fn span(bits: usize) -> usize {
    7 * bits + 8
}

/// 64 codes of `bits` bits, eight to a word. Every word is read as 8 bytes, so `packed` has [`span`] bytes.
#[inline(always)]
pub(crate) fn unpack<S: Simd>(s: S, packed: &[u8], bits: usize) -> [u64; BLOCK / 8] {
    let packed = &packed[..span(bits)];
    let mut words = [0; BLOCK / 8];
    for (i, word) in words.iter_mut().enumerate() {
        *word = s.spread(u64::from_le_bytes(packed[i * bits..].as_chunks().0[0]), bits);
    }
    words
}

/// Row numbers of a tile. Behind the last row they repeat it; those results are dropped.
#[inline(always)]
pub(crate) fn tile_rows(first: usize, count: usize) -> [usize; TILE_ROWS] {
    let mut rows = [first; TILE_ROWS];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = first + i.min(count - 1);
    }
    rows
}

#[inline(always)]
fn affine_rows<S: Simd, W: Source>(s: S, mut a: AffineLinear<'_>) {
    let rows = a.out.width();
    for first in (0..rows).step_by(TILE_ROWS) {
        let count = TILE_ROWS.min(rows - first);
        let numbers = tile_rows(a.first_row + first, count);
        let acc = tile_sums::<S, W>(s, &a.weights, &a.x, &numbers);
        for token in 0..a.x.tokens {
            let mut lanes = [0.0; TILE_ROWS];
            s.store(acc[token], &mut lanes);
            a.out.row_mut(token)[first..first + count].copy_from_slice(&lanes[..count]);
        }
    }
}

/// All outputs of one tile: lane r of vector t is row r for token t.
#[inline(always)]
fn tile_sums<S: Simd, W: Source>(
    s: S,
    w: &Quantized<'_>,
    x: &Activations<'_>,
    numbers: &[usize; TILE_ROWS],
) -> [S::F; TILE_TOKENS] {
    let mut acc = [s.splat(0.0); TILE_TOKENS];
    let mut panel = Panel::new();
    let per_block = BLOCK / x.block;
    let per_group = w.group / x.block;
    for first in (0..w.groups()).step_by(PANEL) {
        let count = PANEL.min(w.groups() - first);
        panel.decode(s, w, numbers, first, count);
        for token in 0..x.tokens {
            let view = TokenView::new::<W>(x, token);
            // Eight groups of any width are whole blocks; only the last panel may end inside one.
            for block in first * w.group / BLOCK..((first + count) * w.group).div_ceil(BLOCK) {
                let sums = block_sums::<S, W>(s, w, numbers, &view, block);
                let present = per_block.min(view.sums.len() - block * per_block);
                for (i, sum) in sums.iter().enumerate().take(present) {
                    let index = block * per_block + i;
                    let group = index / per_group - first;
                    let scaled = s.mul(*sum, s.splat(view.scales[index]));
                    acc[token] = s.fma(scaled, s.load(&panel.scales[group]), acc[token]);
                    let weighted = s.splat(view.weighted[index]);
                    acc[token] = s.fma(weighted, s.load(&panel.biases[group]), acc[token]);
                }
            }
        }
    }
    acc
}

/// The activations of one token, in `n` blocks.
struct TokenView<'a> {
    packed: &'a [[i8; BLOCK]],     // [passes, ceil(cols / 64)]
    passes: usize,
    sums: &'a [i32],               // [n]
    scales: &'a [f32],             // [n]
    weighted: &'a [f32],           // [n]
}

impl<'a> TokenView<'a> {
    #[inline(always)]
    fn new<W: Source>(x: &Activations<'a>, token: usize) -> TokenView<'a> {
        let passes = passes(x.block);
        let packed = passes * x.cols.div_ceil(BLOCK);
        let blocks = x.cols / x.block;
        TokenView {
            packed: &W::activations(x)[token * packed..][..packed],
            passes,
            sums: &x.sums[token * blocks..][..blocks],
            scales: &x.scales[token * blocks..][..blocks],
            weighted: &x.weighted[token * blocks..][..blocks],
        }
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
fn block_sums<S: Simd, W: Source>(
    s: S,
    w: &Quantized<'_>,
    numbers: &[usize; TILE_ROWS],
    x: &TokenView<'_>,
    block: usize,
) -> [S::F; 4] {
    let mut out = [s.splat(0.0); 4];
    let wide = x.packed.len() / x.passes;
    let per_block = BLOCK / w.block();
    for pass in 0..x.passes {
        let activations = s.activations(&x.packed[pass * wide + block]);
        let mut halves = [(s.zero_partial(), s.zero_partial()); 2];
        for (half, numbers) in halves.iter_mut().zip(numbers.as_chunks::<8>().0) {
            *half = eight_rows::<S, W>(s, w, numbers, block, activations);
        }
        let [low, high] = halves;
        if per_block == 1 {
            let (low, high) = (s.add_partial(low.0, low.1), s.add_partial(high.0, high.1));
            out[0] = s.partials_to_f32(low, high, x.offset::<S, W>(block));
        } else {
            // Half-blocks in blocks of 32; in blocks of 16 the quarters 0 and 2, then 1 and 3.
            let second = pass + per_block / 2;
            let index = block * per_block;
            out[pass] = s.partials_to_f32(low.0, high.0, x.offset::<S, W>(index + pass));
            out[second] = s.partials_to_f32(low.1, high.1, x.offset::<S, W>(index + second));
        }
    }
    out
}

/// Products of eight rows with one block, summed by half-block.
#[inline(always)]
fn eight_rows<S: Simd, W: Source>(
    s: S,
    w: &Quantized<'_>,
    numbers: &[usize; 8],
    block: usize,
    x: S::Bytes,
) -> (S::Partial, S::Partial) {
    let mut partials = [s.zero_partial(); 8];
    let (bits, row_bytes) = (w.bits(), w.row_bytes());
    let bytes = BLOCK / 8 * bits;
    for (partial, number) in partials.iter_mut().zip(numbers) {
        let packed = &w.codes[number * row_bytes + block * bytes..];
        // The same place of the next tile.
        super::prefetch(packed.as_ptr().wrapping_add(TILE_ROWS * row_bytes));
        // What follows a row's last codes meets activations that are zero, but it has to be there.
        *partial = if packed.len() >= BLOCK { W::dot(s, packed, bits, x) } else { edge::<S, W>(s, packed, bits, x) };
    }
    s.sum_halves(partials)
}

/// The last codes of a matrix, where a whole read would leave it.
#[cold]
#[inline(always)]
fn edge<S: Simd, W: Source>(s: S, packed: &[u8], bits: usize, x: S::Bytes) -> S::Partial {
    W::dot(s, &padded::<u8, BLOCK>(packed, 0), bits, x)
}
