//! Quantised linear layers: tiles of sixteen rows, and which of two ways they go.
//!
//! Few tokens go through [`rows`](super::rows), which reads weights in place; many through [`tile`](super::tile), which
//! unpacks them first.

use super::rows::{self, by_rows};
use super::scales::{Rows, decode_from};
use super::tile::{few_tokens, many_tokens};
use crate::level::Vectorized;
use crate::matrix::Quantized;
use crate::needs::TILES;
use crate::reference::affine::AffineLinear;
use crate::scratch::{Line, Local, grown};
use crate::shared::ColumnBlock;
use crate::vector::{PARTY, Simd, padded};

/// Bytes of a row's codes that are taken at a time.
pub(crate) const BLOCK: usize = 64;

/// Output rows that are lanes of one vector.
pub(crate) const TILE_ROWS: usize = 16;

/// Bytes of a row ahead of the current ones that are fetched.
pub(crate) const AHEAD: usize = 8 * BLOCK;

/// How many tokens' activations lie together where so many are multiplied: what one call of the innermost loop takes.
/// Alone are those of the row kernels.
pub(crate) fn party(tokens: usize, roomy: bool, matrix_unit: bool) -> usize {
    match tokens {
        1 => 1,
        ..=rows::TOKENS if roomy => 1,
        _ if matrix_unit => PARTY,
        ..=8 if roomy => 8,
        _ if roomy => 6,
        3..=4 => 4,
        _ => 2,
    }
}

/// See [`AffineLinear`].
#[inline(always)]
pub(crate) fn affine_linear<S: Simd>(s: S, a: AffineLinear<'_>) {
    match (a.x.party, S::ROOMY) {
        (1, _) => by_rows(s, a),
        (PARTY, true) => many_tokens::<S, TILES, PARTY>(s, a),
        (8, true) => few_tokens::<S, TILES, 8>(s, a),
        (_, true) => many_tokens::<S, TILES, 6>(s, a),
        (4, false) => few_tokens::<S, 1, 4>(s, a),
        (_, false) if a.x.tokens <= 2 => few_tokens::<S, 1, 2>(s, a),
        (_, false) => many_tokens::<S, 1, 2>(s, a),
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

    /// Writes one token's outputs.
    #[inline(always)]
    pub fn store<S: Simd>(self, s: S, out: &mut ColumnBlock<'_, f32>, token: usize, values: S::F) {
        let row = &mut out.row_mut(token)[self.first..];
        match row.first_chunk_mut() {
            Some(whole) if self.count == TILE_ROWS => s.store(values, whole),
            _ => {
                let mut all = [0.0; TILE_ROWS];
                s.store(values, &mut all);
                row[..self.count].copy_from_slice(&all[..self.count]);
            }
        }
    }

    /// Asks for the memory of one token's outputs.
    #[inline(always)]
    pub fn fetch(self, out: &ColumnBlock<'_, f32>, token: usize) {
        super::prefetch(out.row(token)[self.first..].as_ptr().cast());
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
        if group >= self.decoded {
            s.outline(DecodeScales { tile: self, group });
        }
    }

    /// A block of every row from `byte` on, if there is that much in the matrix.
    #[inline(always)]
    pub fn lines(&self, byte: usize) -> Option<[&[u8; BLOCK]; TILE_ROWS]> {
        let (w, stride) = (&self.w, self.w.row_bytes());
        let (first, last) = (self.numbers[0], self.numbers[TILE_ROWS - 1]);
        if last != first + TILE_ROWS - 1 || last * stride + byte + BLOCK > w.codes.len() {
            return None;
        }
        let base = w.codes.as_ptr().wrapping_add(first * stride + byte);
        let mut lines = [&[0; BLOCK]; TILE_ROWS];
        for (row, line) in lines.iter_mut().enumerate() {
            // SAFETY: the last row's bytes were found to lie inside the codes, and the others come before them.
            *line = unsafe { &*base.wrapping_add(row * stride).cast() };
        }
        Some(lines)
    }

    /// `N` bytes of every row from `byte` on, followed by zeros where the matrix ends. Kept apart so that the common case stays one small loop.
    #[cold]
    #[inline(never)]
    pub fn copied_lines<const N: usize>(&self, byte: usize) -> [[u8; N]; TILE_ROWS] {
        self.numbers.map(|number| {
            let packed = &self.w.codes[number * self.w.row_bytes() + byte..];
            padded(&packed[..packed.len().min(N)], 0)
        })
    }

    /// Asks for what comes a little after the block at `byte`: of the same rows, or of their successors `tiles` tiles
    /// later.
    #[inline(always)]
    pub fn fetch_ahead(&self, byte: usize, tiles: usize) {
        let stride = self.w.row_bytes();
        let next = if byte + AHEAD < stride { 0 } else { tiles * TILE_ROWS * stride - stride };
        let base = self.w.codes.as_ptr().wrapping_add(self.numbers[0] * stride + byte + AHEAD + next);
        for row in 0..TILE_ROWS {
            super::prefetch(base.wrapping_add(row * stride));
        }
    }
}

/// See [`Tile::need`].
struct DecodeScales<'a, 'b> {
    tile: &'a mut Tile<'b>,
    group: usize,
}

impl Vectorized for DecodeScales<'_, '_> {
    #[inline(always)]
    fn vectorized<S: Simd>(self, s: S) {
        let DecodeScales { tile, group } = self;
        while group >= tile.decoded {
            tile.decoded = decode_from(s, &tile.w, &tile.numbers, tile.decoded, tile.scales, tile.biases);
        }
    }
}

/// What is kept of a tile outside of the matrix.
pub(crate) struct TileScratch<'a> {
    scales: &'a mut [Rows], // [groups]
    biases: &'a mut [Rows], // [groups]
}

impl TileScratch<'_> {
    /// Memory for `N` tiles of `w`, from a thread's.
    pub fn new<'a, const N: usize>(w: &Quantized<'_>, local: &'a mut Local) -> [TileScratch<'a>; N] {
        let zero = Line([0.0; TILE_ROWS]);
        let mut scales = grown(&mut local.lines, N * w.groups(), zero).chunks_exact_mut(w.groups());
        let mut biases = grown(&mut local.biases, N * w.groups(), zero).chunks_exact_mut(w.groups());
        std::array::from_fn(|_| {
            let (scales, biases) = (scales.next().unwrap_or_default(), biases.next().unwrap_or_default());
            TileScratch { scales, biases }
        })
    }

    /// The rows of `w` from `first_row + span.first` on. Behind the last row of the span it is repeated; those results
    /// are dropped.
    pub fn tile<'a>(&'a mut self, w: Quantized<'a>, first_row: usize, span: Span) -> Tile<'a> {
        let last = (first_row + span.first + span.count).max(1) - 1;
        let mut numbers = [last; TILE_ROWS];
        for (i, row) in numbers.iter_mut().enumerate() {
            *row = (first_row + span.first + i).min(last);
        }
        Tile { w, numbers, scales: self.scales, biases: self.biases, decoded: 0, span }
    }
}
