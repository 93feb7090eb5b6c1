//! Quantised linear layers for few tokens: weights are read in place, sixteen rows side by side.
//!
//! A step takes 64 bytes of codes of every row: 128 columns of 4-bit codes, else 64. Products are summed within quads,
//! the four lanes of sixteen bytes; then four rows at a time are reduced together, each to one lane of every quad, and
//! the quads of sixteen rows are turned so that rows are lanes: scales, biases and accumulators are vectors from there
//! on. A quad is 32 columns of 4-bit codes and 16 of others, so that quads add up to every width of activation block;
//! for blocks of 16, 4-bit codes take two passes with every other 16 columns masked.

use super::affine::{BLOCK, Span, TILE_ROWS, Tile, TileScratch};
use crate::matrix::{Coding, FP4_CODES};
use crate::reference::affine::{Activations, AffineLinear};
use crate::shared::ColumnBlock;
use crate::vector::{Simd, padded};

/// Steps ahead of the current one whose codes are fetched.
const AHEAD: usize = 8;

/// See [`AffineLinear`].
#[inline(always)]
pub(crate) fn few_tokens<S: Simd>(s: S, mut a: AffineLinear<'_>) {
    let (x, rows) = (a.x, a.out.width());
    let [mut scratch] = TileScratch::new(&a.weights, a.local);
    for first in (0..rows).step_by(TILE_ROWS) {
        let (tile, out) = (&mut scratch.tile(a.weights, a.first_row, Span::new(first, rows)), &mut a.out);
        match (tile.w.coding, tile.w.bits()) {
            (Coding::Fp4, _) => by_block::<S, Fp4Codes>(s, tile, &x, out),
            (Coding::Plain, _) => by_block::<S, Plain>(s, tile, &x, out),
            (_, 4) => by_block::<S, Nibbles>(s, tile, &x, out),
            (_, 8) => by_block::<S, Bytes>(s, tile, &x, out),
            _ => by_block::<S, Narrow>(s, tile, &x, out),
        }
    }
}

#[inline(always)]
fn by_block<S: Simd, W: Source>(
    s: S,
    tile: &mut Tile<'_>,
    x: &Activations<'_>,
    out: &mut ColumnBlock<'_, f32>,
) {
    let codes = Codes::new::<W>(tile);
    for token in 0..x.tokens {
        let view = &TokenView::new::<W>(x, token);
        // The first condition is a constant, so that only what can be is compiled.
        let sum = if W::COLUMNS == BLOCK {
            match x.block {
                64 => row_sums::<S, W, 1>(s, tile, codes, view),
                32 => row_sums::<S, W, 2>(s, tile, codes, view),
                _ => row_sums::<S, W, 4>(s, tile, codes, view),
            }
        } else {
            match x.block {
                64 => row_sums::<S, W, 2>(s, tile, codes, view),
                32 => row_sums::<S, W, 4>(s, tile, codes, view),
                _ => row_sums::<S, W, 8>(s, tile, codes, view),
            }
        };
        let mut outputs = [0.0; TILE_ROWS];
        s.store(sum, &mut outputs);
        tile.span.store(out, token, &outputs);
    }
}

/// A stored form of codes.
trait Source {
    /// Columns of 64 bytes.
    const COLUMNS: usize = 64;

    /// Dot product of the columns whose packed codes are at the start of `packed` with the activations.
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], bits: usize, x: [S::Bytes; 2]) -> S::Quads;

    /// Sums over the quads of four rows.
    #[inline(always)]
    fn sum<S: Simd>(s: S, rows: [S::Quads; 4]) -> S::Quads {
        s.sum_quads(rows)
    }

    /// What [`Source::dot`] subtracts from every code.
    #[inline(always)]
    fn offset<S: Simd>() -> i32 {
        0
    }
}

/// 4-bit codes: even columns in low nibbles, odd ones in high.
struct Nibbles;

impl Source for Nibbles {
    const COLUMNS: usize = 128;

    #[inline(always)]
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], _bits: usize, x: [S::Bytes; 2]) -> S::Quads {
        s.dot_pair(s.nibbles(s.bytes(packed)), x)
    }

    /// Eight products of at most 15·127 are below 2^14.
    #[inline(always)]
    fn sum<S: Simd>(s: S, rows: [S::Quads; 4]) -> S::Quads {
        s.sum_small_quads(rows)
    }
}

/// 4-bit floats, mapped to codes 0..=24.
struct Fp4Codes;

impl Source for Fp4Codes {
    const COLUMNS: usize = 128;

    #[inline(always)]
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], _bits: usize, x: [S::Bytes; 2]) -> S::Quads {
        let [low, high] = s.nibbles(s.bytes(packed));
        s.dot_pair([s.lookup(low, &FP4_CODES), s.lookup(high, &FP4_CODES)], x)
    }
}

/// 8-bit codes.
struct Bytes;

impl Source for Bytes {
    #[inline(always)]
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], _bits: usize, x: [S::Bytes; 2]) -> S::Quads {
        s.dot_bytes(s.bytes(packed), x[0])
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
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], _bits: usize, x: [S::Bytes; 2]) -> S::Quads {
        s.dot_codes(s.bytes(packed), x[0])
    }
}

/// Codes of any other width.
struct Narrow;

impl Source for Narrow {
    #[inline(always)]
    fn dot<S: Simd>(s: S, packed: &[u8; BLOCK], bits: usize, x: [S::Bytes; 2]) -> S::Quads {
        s.dot_codes(s.unpack(packed, bits), x[0])
    }
}

/// The codes of a tile's rows, in steps.
#[derive(Clone, Copy)]
struct Codes<'a> {
    /// The first row's, with the others behind it, `stride` apart, up to the last one's last step.
    start: &'a [u8],
    stride: usize,
    steps: usize,
    /// Bytes of a step, of which 64 can be read.
    bytes: usize,
    /// Whether all of that is inside the matrix.
    in_place: bool,
}

impl<'a> Codes<'a> {
    #[inline(always)]
    fn new<W: Source>(tile: &Tile<'a>) -> Codes<'a> {
        let (w, first, last) = (&tile.w, tile.numbers[0], tile.numbers[TILE_ROWS - 1]);
        let (stride, steps, bytes) = (w.row_bytes(), w.cols.div_ceil(W::COLUMNS), W::COLUMNS / 8 * w.bits());
        let start = &w.codes[first * stride..];
        // What follows a row's last codes meets activations that are zero, but it has to be there.
        let end = (TILE_ROWS - 1) * stride + (steps - 1) * bytes + BLOCK;
        let in_place = last == first + TILE_ROWS - 1 && end <= start.len();
        Codes { start, stride, steps, bytes, in_place }
    }
}

/// Passes over the weights for `PER` activation blocks in 128 columns of 4-bit codes, or 64 of others.
#[inline(always)]
const fn passes(per: usize) -> usize {
    if per == 8 { 2 } else { 1 }
}

/// Every block of one token; `PER` is the number of activation blocks in a step.
#[inline(always)]
fn row_sums<S: Simd, W: Source, const PER: usize>(
    s: S,
    tile: &mut Tile<'_>,
    codes: Codes<'_>,
    x: &TokenView<'_>,
) -> S::F {
    let (blocks, mut acc) = (x.scales.len(), s.splat(0.0));
    let per_group = blocks / tile.scales.len();
    for step in 0..codes.steps {
        let sums = step_sums::<S, W, PER>(s, tile, codes, x, step);
        // A row's last step may be incomplete.
        for (index, sum) in (step * PER..blocks).zip(sums) {
            let group = if per_group == 1 { index } else { index / per_group };
            tile.need(s, group);
            let (scale, bias) = (s.load(&tile.scales[group].0), s.load(&tile.biases[group].0));
            let offset = if W::offset::<S>() == 0 { 0 } else { W::offset::<S>() * x.sums[index] };
            // acc = fma(sum·sx, s, acc), then fma(xs, b, acc)
            let scaled = s.mul(s.sums_to_f32(sum, offset), s.splat(x.scales[index]));
            acc = s.fma(scaled, scale, acc);
            acc = s.fma(s.splat(x.weighted[index]), bias, acc);
        }
    }
    acc
}

/// The activations of one token.
struct TokenView<'a> {
    packed: &'a [[i8; BLOCK]], // [passes, steps, columns / 64]
    sums: &'a [i32],           // [blocks]
    scales: &'a [f32],         // [blocks]
    weighted: &'a [f32],       // [blocks]
}

impl<'a> TokenView<'a> {
    #[inline(always)]
    fn new<W: Source>(x: &Activations<'a>, token: usize) -> TokenView<'a> {
        let (all, blocks) =
            (if W::COLUMNS == 128 { x.packed.nibble } else { x.packed.plain }, x.cols / x.block);
        let packed = all.len() / x.tokens;
        TokenView {
            packed: &all[token * packed..][..packed],
            sums: &x.sums[token * blocks..][..blocks],
            scales: &x.scales[token * blocks..][..blocks],
            weighted: &x.weighted[token * blocks..][..blocks],
        }
    }
}

/// Sums of the activation blocks in a step, for all rows of the tile.
#[inline(always)]
fn step_sums<S: Simd, W: Source, const PER: usize>(
    s: S,
    tile: &Tile<'_>,
    codes: Codes<'_>,
    x: &TokenView<'_>,
    step: usize,
) -> [S::Sums; PER] {
    let mut out = [s.zero_sums(); PER];
    let registers = W::COLUMNS / BLOCK;
    for pass in 0..passes(PER) {
        let packed = &x.packed[(pass * codes.steps + step) * registers..][..registers];
        let packed = [s.activations(&packed[0]), s.activations(&packed[registers - 1])];
        let [a, b, c, d] = if codes.in_place {
            quads::<S, W>(s, codes, tile.w.bits(), step, packed)
        } else {
            let copies = copy_rows(tile, step * codes.bytes);
            let copied = Codes { start: copies.as_flattened(), stride: BLOCK, steps: 1, ..codes };
            quads::<S, W>(s, copied, tile.w.bits(), 0, packed)
        };
        match PER {
            1 => out[0] = s.add_sums(s.add_sums(a, b), s.add_sums(c, d)),
            2 => (out[0], out[1]) = (s.add_sums(a, b), s.add_sums(c, d)),
            _ => {
                for (quad, sums) in [a, b, c, d].into_iter().enumerate() {
                    out[quad * passes(PER) + pass] = sums;
                }
            }
        }
    }
    out
}

/// The four quads of sixteen rows.
#[inline(always)]
fn quads<S: Simd, W: Source>(
    s: S,
    codes: Codes<'_>,
    bits: usize,
    step: usize,
    x: [S::Bytes; 2],
) -> [S::Sums; 4] {
    debug_assert!((TILE_ROWS - 1) * codes.stride + step * codes.bytes + BLOCK <= codes.start.len());
    let base = codes.start.as_ptr().wrapping_add(step * codes.bytes);
    // Behind the last step come the first ones of the next tile.
    let next =
        if step + AHEAD < codes.steps { 0 } else { TILE_ROWS * codes.stride - codes.steps * codes.bytes };
    let ahead = AHEAD * codes.bytes + next;
    let mut fours = [s.zero_quads(); 4];
    for (i, four) in fours.iter_mut().enumerate() {
        let mut rows = [s.zero_quads(); 4];
        for (r, row) in rows.iter_mut().enumerate() {
            let at = base.wrapping_add((4 * i + r) * codes.stride);
            super::prefetch(at.wrapping_add(ahead));
            // SAFETY: `Codes::new` or the copying checked that the last step of the last row ends inside the codes.
            *row = W::dot(s, unsafe { &*at.cast() }, bits, x);
        }
        *four = W::sum(s, rows);
    }
    s.turn(fours)
}

/// The codes of sixteen rows from byte `column` on, followed by zeros where the matrix ends. Kept apart so that the
/// common case stays one small loop.
#[cold]
#[inline(never)]
fn copy_rows(tile: &Tile<'_>, column: usize) -> [[u8; BLOCK]; TILE_ROWS] {
    tile.numbers.map(|number| {
        let packed = &tile.w.codes[number * tile.w.row_bytes() + column..];
        padded(&packed[..packed.len().min(BLOCK)], 0)
    })
}
