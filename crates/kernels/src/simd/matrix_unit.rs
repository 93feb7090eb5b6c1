//! Quantised linear layers on a matrix unit, which multiplies a block of columns of a party of tokens with sixteen rows.
//!
//! The unit leaves a block's integers in memory; scaled, they join accumulators that stay in vector registers while a
//! chunk's columns pass. A block is given to the unit before the vectors turn to the one in front of it, so that both
//! work at a time.

use std::ops::Range;

use super::tile::{Chunk, Sums, UNIT};
use crate::scratch::Line;
use crate::shared::ColumnBlock;
use crate::vector::{LANES, MatrixUnit, PARTY, Products, Simd};

/// The unit, and the sums of the block that it works at and of the one before.
pub(super) struct Multiplier<M> {
    unit: M,
    products: [Products; 2],
}

impl<M: MatrixUnit> Multiplier<M> {
    pub fn new(unit: M) -> Multiplier<M> {
        Multiplier { unit, products: [[Line([0; LANES]); PARTY]; 2] }
    }
}

impl<const TILES: usize, const P: usize> Chunk<'_, TILES, P> {
    /// Adds the chunk's products to the sums of a party. Behind the last columns the sums are the outputs.
    #[inline(always)]
    pub(super) fn multiply_party<S: Simd>(
        &self,
        s: S,
        multiplier: &mut Multiplier<S::Matrix>,
        party: usize,
        sums: &mut [[Sums; TILES]],
        out: &mut ColumnBlock<'_, f32>,
    ) {
        for (r, tile) in self.tiles.iter().enumerate().filter(|(_, tile)| tile.span.count > 0) {
            let tokens = party * P..party * P + sums.len();
            if self.ends() {
                tokens.clone().for_each(|token| tile.span.fetch(out, token));
            }
            match sums.len() {
                ..=8 => self.multiply_tile::<S, 8>(s, multiplier, party, r, sums),
                _ => self.multiply_tile::<S, PARTY>(s, multiplier, party, r, sums),
            }
            if self.ends() {
                for (token, sums) in tokens.zip(&*sums) {
                    tile.span.store(s, out, token, s.load(&sums[r].0));
                }
            }
        }
    }

    /// Adds the products of tile `r` to the sums of up to `TOKENS` tokens of a party.
    #[inline(always)]
    fn multiply_tile<S: Simd, const TOKENS: usize>(
        &self,
        s: S,
        multiplier: &mut Multiplier<S::Matrix>,
        party: usize,
        r: usize,
        sums: &mut [[Sums; TILES]],
    ) {
        let (tile, x, last) = (&self.tiles[r], self.x, sums.len() - 1);
        let Range { start, end } = self.blocks_of(party);
        let codes = x.codes[start * PARTY * x.block..end * PARTY * x.block].chunks_exact(PARTY * x.block);
        let scales = &x.scales.as_chunks::<PARTY>().0[start..end];
        let weighted = &x.weighted.as_chunks::<PARTY>().0[start..end];
        let mut blocks = codes.zip(self.units[r].chunks_exact(x.block / UNIT));

        let mut acc = [s.splat(0.0); TOKENS];
        if !self.begins() {
            for t in 0..TOKENS {
                acc[t] = s.load(&sums[t.min(last)][r].0);
            }
        }
        let Multiplier { unit, products: [now, next] } = multiplier;
        let (mut now, mut next) = (now, next);
        if let Some((codes, units)) = blocks.next() {
            unit.products::<TOKENS>(codes, units, now);
        }
        for (i, (scales, weighted)) in scales.iter().zip(weighted).enumerate() {
            if let Some((codes, units)) = blocks.next() {
                unit.products::<TOKENS>(codes, units, next);
            }
            let group = self.group(i);
            let factors = (s.load(&tile.scales[group].0), s.load(&tile.biases[group].0));
            acc = add_scaled(s, acc, now, factors, scales, weighted);
            std::mem::swap(&mut now, &mut next);
        }
        for t in 0..TOKENS.min(last + 1) {
            s.store(acc[t], &mut sums[t][r].0);
        }
    }
}

/// The accumulators plus a block's sums, scaled by the group's factors `(s, b)` and every token's `sx` and `xs`.
#[inline(always)]
fn add_scaled<S: Simd, const TOKENS: usize>(
    s: S,
    mut acc: [S::F; TOKENS],
    products: &Products,
    (scale, bias): (S::F, S::F),
    scales: &[f32; PARTY],
    weighted: &[f32; PARTY],
) -> [S::F; TOKENS] {
    for t in 0..TOKENS {
        let sums = s.sums_to_f32(s.load_sums(&products[t].0), 0);
        acc[t] = s.fma(s.mul(sums, s.splat(scales[t])), scale, acc[t]);
        acc[t] = s.fma(s.splat(weighted[t]), bias, acc[t]);
    }
    acc
}
