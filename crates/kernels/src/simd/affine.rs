//! Quantised linear layers: tiles of sixteen rows, and which of two ways they go.
//!
//! Few tokens go through [`rows`](super::rows), which reads weights in place; many through [`tile`](super::tile), which
//! unpacks them first.

use super::rows::few_tokens;
use super::scales::{Rows, decode_from, from_blocks};
use super::tile::many_tokens;
use crate::matrix::{Coding, Quantized};
use crate::needs::TILES;
use crate::reference::affine::{AffineLinear, unpack_row};
use crate::scratch::{Line, Local, grown};
use crate::shared::ColumnBlock;
use crate::vector::{Simd, padded};

/// Bytes of a row's codes that are taken at a time.
pub(crate) const BLOCK: usize = 64;

/// Output rows that are lanes of one vector.
pub(crate) const TILE_ROWS: usize = 16;

/// From this many tokens on, weights are unpacked to interleaved tiles.
pub(crate) const TILE_TOKENS: usize = 8;

/// See [`AffineLinear`].
#[inline(always)]
pub(crate) fn affine_linear<S: Simd>(s: S, a: AffineLinear<'_>) {
    match (a.x.tokens < TILE_TOKENS, S::ROOMY) {
        (true, _) => few_tokens(s, a),
        (false, true) => many_tokens::<S, TILES, 4>(s, a),
        (false, false) => many_tokens::<S, 1, 2>(s, a),
    }
}

/// Outputs of a tile: the first one, and how many there are.
#[derive(Clone, Copy, Default)]
pub(crate) struct Span {
    pub first: usize,
    pub count: usize,
}

impl Span {
    /// As many of a tile's outputs from `first` on as there are among `rows`, if any.
    pub fn new(first: usize, rows: usize) -> Span {
        let first = first.min(rows);
        Span { first, count: TILE_ROWS.min(rows - first) }
    }

    /// One token's outputs so far.
    pub fn load(self, out: &ColumnBlock<'_, f32>, token: usize) -> [f32; TILE_ROWS] {
        padded(&out.row(token)[self.first..][..self.count], 0.0)
    }

    /// Writes one token's outputs.
    pub fn store(self, out: &mut ColumnBlock<'_, f32>, token: usize, values: &[f32; TILE_ROWS]) {
        out.row_mut(token)[self.first..][..self.count].copy_from_slice(&values[..self.count]);
    }
}

/// Sixteen rows of a matrix.
pub(crate) struct Tile<'a> {
    pub w: Quantized<'a>,
    pub numbers: [usize; TILE_ROWS],
    /// Of the groups that were needed so far.
    pub scales: &'a mut [Rows], // [groups]
    pub biases: &'a mut [Rows], // [groups]
    /// How many groups that is.
    decoded: usize,
    pub span: Span,
}

impl Tile<'_> {
    /// Decodes the scales up to those of `group`, if they are not yet: next to the codes that they belong to, so that
    /// memory keeps streaming meanwhile.
    #[inline(always)]
    pub fn need<S: Simd>(&mut self, s: S, group: usize) {
        while group >= self.decoded {
            self.decoded = decode_from(s, &self.w, &self.numbers, self.decoded, self.scales, self.biases);
        }
    }
}

/// What is kept of a tile outside of the matrix.
pub(crate) struct TileScratch<'a> {
    scales: &'a mut [Rows], // [groups]
    biases: &'a mut [Rows], // [groups]
    /// The codes of super-blocks, one to a byte; else empty.
    codes: &'a mut [u8], // [TILE_ROWS, cols]
}

impl TileScratch<'_> {
    /// Memory for `N` tiles of `w`, from a thread's.
    pub fn new<'a, const N: usize>(w: &Quantized<'_>, local: &'a mut Local) -> [TileScratch<'a>; N] {
        let codes = if matches!(w.coding, Coding::Super(_)) { TILE_ROWS * w.cols } else { 0 };
        let zero = Line([0.0; TILE_ROWS]);
        let mut scales = grown(&mut local.lines, N * w.groups(), zero).chunks_exact_mut(w.groups());
        let mut biases = grown(&mut local.biases, N * w.groups(), zero).chunks_exact_mut(w.groups());
        let mut bytes = grown(&mut local.bytes, N * codes, 0);
        std::array::from_fn(|_| {
            let (codes, rest) = std::mem::take(&mut bytes).split_at_mut(codes);
            bytes = rest;
            let (scales, biases) = (scales.next().unwrap_or_default(), biases.next().unwrap_or_default());
            TileScratch { scales, biases, codes }
        })
    }

    /// The rows of `w` from `first_row + span.first` on. Behind the last row of the span it is repeated; those results
    /// are dropped. Super-blocks are taken apart.
    pub fn tile<'a>(&'a mut self, w: Quantized<'a>, first_row: usize, span: Span) -> Tile<'a> {
        let last = (first_row + span.first + span.count).max(1) - 1;
        let mut numbers = [last; TILE_ROWS];
        for (i, row) in numbers.iter_mut().enumerate() {
            *row = (first_row + span.first + i).min(last);
        }
        let TileScratch { scales, biases, codes } = self;
        if !matches!(w.coding, Coding::Super(_)) {
            return Tile { w, numbers, scales, biases, decoded: 0, span };
        }
        from_blocks(&w, &numbers, scales, biases);
        take_apart(&w, &numbers, codes);
        let apart = Quantized { coding: Coding::Plain, codes, ..w };
        Tile { w: apart, numbers: std::array::from_fn(|row| row), scales, biases, decoded: w.groups(), span }
    }
}

/// Writes the codes of sixteen rows of super-blocks, one to a byte.
fn take_apart(w: &Quantized<'_>, numbers: &[usize; TILE_ROWS], codes: &mut [u8]) {
    for (codes, row) in codes.chunks_exact_mut(w.cols).zip(numbers) {
        // The same rows of the next tile.
        super::prefetch(w.row(*row).as_ptr().wrapping_add(TILE_ROWS * w.row_bytes()));
        unpack_row(w, *row, codes);
    }
}
