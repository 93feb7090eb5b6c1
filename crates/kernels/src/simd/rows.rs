//! Quantised linear layers for few tokens: weights are read in place, sixteen rows side by side.
//!
//! A step takes 64 bytes of codes of every row: 128 columns of 4-bit codes, else 64. Products are summed within quads,
//! the four lanes of sixteen bytes; then four rows at a time are reduced together, each to one lane of every quad, and
//! the quads of sixteen rows are turned so that rows are lanes: scales, biases and accumulators are vectors from there
//! on. A quad is 32 columns of 4-bit codes and 16 of others, so that quads add up to every width of activation block;
//! for blocks of 16, 4-bit codes take two passes with every other 16 columns masked.

use std::marker::PhantomData;

use basert_quant::ggml::GgmlType;

use super::affine::{AHEAD, BLOCK, Span, TILE_ROWS, Tile, TileScratch};
use super::supers::{PARTS, codes4, codes5, codes6};
use crate::level::Vectorized;
use crate::matrix::{Coding, FP4_CODES};
use crate::reference::affine::{Activations, AffineLinear};
use crate::vector::Simd;

/// Most tokens at a time.
pub(crate) const TOKENS: usize = 4;

/// See [`AffineLinear`]; for up to [`TOKENS`] tokens, or one where registers are few.
#[inline(always)]
pub(crate) fn by_rows<S: Simd>(s: S, a: AffineLinear<'_>) {
    match (a.weights.coding, a.weights.bits()) {
        (Coding::Fp4, _) => with_tokens::<S, Fp4Codes>(s, a),
        (Coding::Super(GgmlType::Q4K), _) => with_tokens::<S, Super4>(s, a),
        (Coding::Super(GgmlType::Q5K), _) => with_tokens::<S, Super5>(s, a),
        (Coding::Super(_), _) => with_tokens::<S, Super6>(s, a),
        (_, 4) => with_tokens::<S, Nibbles>(s, a),
        (_, 8) => with_tokens::<S, Bytes>(s, a),
        _ => with_tokens::<S, Narrow>(s, a),
    }
}

#[inline(always)]
fn with_tokens<S: Simd, W: Source>(s: S, linear: AffineLinear<'_>) {
    let form = PhantomData;
    if linear.x.tokens == 1 || !S::ROOMY {
        s.outline(RowsOf::<W, 1> { linear, form });
    } else if linear.x.tokens == 2 {
        s.outline(RowsOf::<W, 2> { linear, form });
    } else {
        s.outline(RowsOf::<W, TOKENS> { linear, form });
    }
}

/// All rows with codes of one form, for up to `N` tokens.
struct RowsOf<'a, W, const N: usize> {
    linear: AffineLinear<'a>,
    form: PhantomData<W>,
}

impl<W: Source, const N: usize> Vectorized for RowsOf<'_, W, N> {
    #[inline(always)]
    fn vectorized<S: Simd>(self, s: S) {
        let AffineLinear { weights, first_row, x, mut out, local } = self.linear;
        let (rows, view) = (out.width(), &std::array::from_fn(|token| TokenView::new::<W>(&x, token)));
        let [mut scratch] = TileScratch::new(&weights, local);
        for first in (0..rows).step_by(TILE_ROWS) {
            let tile = &mut scratch.tile(weights, first_row, Span::new(first, rows));
            let codes = Codes::new::<W>(tile);
            // All but the block are constants, so that only what can be is compiled.
            let sums: [S::F; N] = match (W::COLUMNS / BLOCK, W::PARTS, x.block) {
                (1, 1, 64) => row_sums::<S, W, 1, N>(s, tile, codes, view),
                (1, _, 32) | (2, _, 64) => row_sums::<S, W, 2, N>(s, tile, codes, view),
                (1, ..) | (_, _, 32) => row_sums::<S, W, 4, N>(s, tile, codes, view),
                _ => row_sums::<S, W, 8, N>(s, tile, codes, view),
            };
            for (token, sums) in sums.into_iter().enumerate().take(x.tokens) {
                tile.span.store(s, &mut out, token, sums);
            }
        }
    }
}

/// A stored form of codes.
trait Source {
    /// What is read in a step, at least.
    type Packed: Copy;

    /// Columns of a step.
    const COLUMNS: usize = 64;

    /// Steps that read the same bytes, each other codes of them.
    const PARTS: usize = 1;

    /// The codes of a step, once or twice 64; `how` is the bits of a code, or which part it is.
    fn codes<S: Simd>(s: S, packed: &Self::Packed, how: usize) -> [S::Bytes; 2];

    /// Their dot products with the activations.
    fn dot<S: Simd>(s: S, codes: [S::Bytes; 2], x: [S::Bytes; 2]) -> S::Quads;

    /// Copies of what is read of all rows from `byte` on, see [`Tile::copied_lines`].
    fn copies(tile: &Tile<'_>, byte: usize) -> [Self::Packed; TILE_ROWS];

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
    type Packed = [u8; BLOCK];

    const COLUMNS: usize = 128;

    fn copies(tile: &Tile<'_>, byte: usize) -> [Self::Packed; TILE_ROWS] {
        tile.copied_lines(byte)
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, packed: &[u8; BLOCK], _bits: usize) -> [S::Bytes; 2] {
        s.nibbles(s.bytes(packed))
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, codes: [S::Bytes; 2], x: [S::Bytes; 2]) -> S::Quads {
        s.dot_pair(codes, x)
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
    type Packed = [u8; BLOCK];

    const COLUMNS: usize = 128;

    fn copies(tile: &Tile<'_>, byte: usize) -> [Self::Packed; TILE_ROWS] {
        tile.copied_lines(byte)
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, packed: &[u8; BLOCK], _bits: usize) -> [S::Bytes; 2] {
        let [low, high] = s.nibbles(s.bytes(packed));
        [s.lookup(low, &FP4_CODES), s.lookup(high, &FP4_CODES)]
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, codes: [S::Bytes; 2], x: [S::Bytes; 2]) -> S::Quads {
        s.dot_pair(codes, x)
    }
}

/// 8-bit codes.
struct Bytes;

impl Source for Bytes {
    type Packed = [u8; BLOCK];

    fn copies(tile: &Tile<'_>, byte: usize) -> [Self::Packed; TILE_ROWS] {
        tile.copied_lines(byte)
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, packed: &[u8; BLOCK], _bits: usize) -> [S::Bytes; 2] {
        [s.bytes(packed); 2]
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, codes: [S::Bytes; 2], x: [S::Bytes; 2]) -> S::Quads {
        s.dot_bytes(codes[0], x[0])
    }

    #[inline(always)]
    fn offset<S: Simd>() -> i32 {
        S::CODE_OFFSET
    }
}

/// Codes of any other width.
struct Narrow;

impl Source for Narrow {
    type Packed = [u8; BLOCK];

    fn copies(tile: &Tile<'_>, byte: usize) -> [Self::Packed; TILE_ROWS] {
        tile.copied_lines(byte)
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, packed: &[u8; BLOCK], bits: usize) -> [S::Bytes; 2] {
        [s.unpack(packed, bits); 2]
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, codes: [S::Bytes; 2], x: [S::Bytes; 2]) -> S::Quads {
        s.dot_codes(codes[0], x[0])
    }
}

/// K-quant super-blocks, a quarter at a time.
macro_rules! super_blocks {
    ($name:ident, $bytes:literal, $codes:path) => {
        struct $name;

        impl Source for $name {
            type Packed = [u8; $bytes];

            const PARTS: usize = PARTS;

            fn copies(tile: &Tile<'_>, byte: usize) -> [Self::Packed; TILE_ROWS] {
                tile.copied_lines(byte)
            }

            #[inline(always)]
            fn codes<S: Simd>(s: S, packed: &Self::Packed, part: usize) -> [S::Bytes; 2] {
                [$codes(s, packed, part); 2]
            }

            #[inline(always)]
            fn dot<S: Simd>(s: S, codes: [S::Bytes; 2], x: [S::Bytes; 2]) -> S::Quads {
                s.dot_codes(codes[0], x[0])
            }
        }
    };
}

super_blocks!(Super4, 144, codes4);
super_blocks!(Super5, 176, codes5);
super_blocks!(Super6, 210, codes6);

/// The codes of a tile's rows, in steps.
#[derive(Clone, Copy)]
struct Codes<'a> {
    /// The first row's, with the others behind it, `stride` apart, up to the last one's last step.
    start: &'a [u8],
    stride: usize,
    steps: usize,
    /// Bytes from the codes of a step, or of its parts, to the next ones.
    bytes: usize,
    /// Whether all that is read is inside the matrix.
    in_place: bool,
}

impl<'a> Codes<'a> {
    #[inline(always)]
    fn new<W: Source>(tile: &Tile<'a>) -> Codes<'a> {
        let (w, first, last) = (&tile.w, tile.numbers[0], tile.numbers[TILE_ROWS - 1]);
        let (stride, steps) = (w.row_bytes(), w.cols.div_ceil(W::COLUMNS));
        let bytes = if W::PARTS > 1 { size_of::<W::Packed>() } else { W::COLUMNS / 8 * w.bits() };
        let start = &w.codes[first * stride..];
        // What follows a row's last codes meets activations that are zero, but it has to be there.
        let end = (TILE_ROWS - 1) * stride + (steps - 1) / W::PARTS * bytes + size_of::<W::Packed>();
        let in_place = last == first + TILE_ROWS - 1 && end <= start.len();
        Codes { start, stride, steps, bytes, in_place }
    }
}

impl Codes<'_> {
    /// Where a step's codes are, and what is worth fetching meanwhile: what comes a little later, or in the next tile.
    #[inline(always)]
    fn place<W: Source>(&self, step: usize) -> Place {
        let byte = step / W::PARTS * self.bytes;
        let within = step % W::PARTS * (self.bytes / W::PARTS) + AHEAD;
        let next = if byte + within < self.stride { 0 } else { (TILE_ROWS - 1) * self.stride };
        Place { base: self.start.as_ptr().wrapping_add(byte), stride: self.stride, ahead: within + next }
    }
}

/// Sixteen rows of something packed.
#[derive(Clone, Copy)]
struct Place {
    /// The first row's.
    base: *const u8,
    /// Bytes to the next row's.
    stride: usize,
    /// Bytes to what is to be fetched.
    ahead: usize,
}

/// Passes over the weights for `PER` activation blocks in 128 columns of 4-bit codes, or 64 of others.
#[inline(always)]
const fn passes(per: usize) -> usize {
    if per == 8 { 2 } else { 1 }
}

/// Every block of `N` tokens; `PER` is the number of activation blocks in a step.
#[inline(always)]
fn row_sums<S: Simd, W: Source, const PER: usize, const N: usize>(
    s: S,
    tile: &mut Tile<'_>,
    codes: Codes<'_>,
    x: &[TokenView<'_>; N],
) -> [S::F; N] {
    let (blocks, mut acc) = (x[0].scales.len(), [s.splat(0.0); N]);
    let per_group = blocks / tile.scales.len();
    for step in 0..codes.steps {
        // Before the codes fill the registers. A row's last step may be incomplete.
        let end = blocks.min((step + 1) * PER);
        tile.need(s, (end - 1) / per_group);
        let sums: [[S::Sums; N]; PER] = step_sums::<S, W, PER, N>(s, tile, codes, x, step);
        for (index, sums) in (step * PER..end).zip(sums) {
            let group = if per_group == 1 { index } else { index / per_group };
            let (scale, bias) = (s.load(&tile.scales[group].0), s.load(&tile.biases[group].0));
            for t in 0..N {
                let offset = if W::offset::<S>() == 0 { 0 } else { W::offset::<S>() * x[t].sums[index] };
                // acc = fma(sum·sx, s, acc), then fma(xs, b, acc)
                let scaled = s.mul(s.sums_to_f32(sums[t], offset), s.splat(x[t].scales[index]));
                acc[t] = s.fma(scaled, scale, acc[t]);
                acc[t] = s.fma(s.splat(x[t].weighted[index]), bias, acc[t]);
            }
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
    /// Behind the last token it is computed again.
    #[inline(always)]
    fn new<W: Source>(x: &Activations<'a>, token: usize) -> TokenView<'a> {
        let token = token.min(x.tokens - 1);
        let all = if W::COLUMNS == 128 { x.packed.nibble } else { x.packed.plain };
        let (packed, blocks) = (all.len() / x.tokens, x.cols / x.block);
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
fn step_sums<S: Simd, W: Source, const PER: usize, const N: usize>(
    s: S,
    tile: &Tile<'_>,
    codes: Codes<'_>,
    x: &[TokenView<'_>; N],
    step: usize,
) -> [[S::Sums; N]; PER] {
    let mut out = [[s.zero_sums(); N]; PER];
    let registers = W::COLUMNS / BLOCK;
    let how = if W::PARTS > 1 { step % W::PARTS } else { tile.w.bits() };
    for pass in 0..passes(PER) {
        let mut packed = [[s.bytes(&[0; BLOCK]); 2]; N];
        for (packed, x) in packed.iter_mut().zip(x) {
            let x = &x.packed[(pass * codes.steps + step) * registers..][..registers];
            *packed = [s.activations(&x[0]), s.activations(&x[registers - 1])];
        }
        let (copies, mut place);
        place = codes.place::<W>(step);
        if !codes.in_place {
            copies = W::copies(tile, step / W::PARTS * codes.bytes);
            place = Place { base: copies.as_ptr().cast(), stride: size_of::<W::Packed>(), ahead: 0 };
        }
        let quads = quads::<S, W, N>(s, place, how, packed);
        for t in 0..N {
            let [a, b, c, d] = quads[t];
            match PER {
                1 => out[0][t] = s.add_sums(s.add_sums(a, b), s.add_sums(c, d)),
                2 => (out[0][t], out[1][t]) = (s.add_sums(a, b), s.add_sums(c, d)),
                _ => {
                    for (quad, sums) in [a, b, c, d].into_iter().enumerate() {
                        out[quad * passes(PER) + pass][t] = sums;
                    }
                }
            }
        }
    }
    out
}

/// The four quads of sixteen rows, for every token.
#[inline(always)]
fn quads<S: Simd, W: Source, const N: usize>(
    s: S,
    place: Place,
    how: usize,
    x: [[S::Bytes; 2]; N],
) -> [[S::Sums; 4]; N] {
    let mut fours = [[s.zero_quads(); 4]; N];
    for i in 0..4 {
        let mut rows = [[s.zero_quads(); 4]; N];
        for r in 0..4 {
            let at = place.base.wrapping_add((4 * i + r) * place.stride);
            super::prefetch(at.wrapping_add(place.ahead));
            // SAFETY: `Codes::new` found all that is read inside the matrix, or it was copied.
            let codes = W::codes(s, unsafe { &*at.cast() }, how);
            for t in 0..N {
                rows[t][r] = W::dot(s, codes, x[t]);
            }
        }
        for t in 0..N {
            fours[t][i] = W::sum(s, rows[t]);
        }
    }
    let mut out = [[s.zero_sums(); 4]; N];
    for t in 0..N {
        out[t] = s.turn(fours[t]);
    }
    out
}
