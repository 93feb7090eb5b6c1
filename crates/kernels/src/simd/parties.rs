//! Quantised linear layers on a matrix unit, which multiplies a block of columns of a party of tokens with sixteen rows.
//!
//! The unit leaves a block's integers in memory; scaled, they join accumulators that stay in vector registers while a
//! chunk's columns pass. A block is given to the unit before the vectors turn to the one in front of it, so that both
//! work at a time.

use super::tile::{Chunk, Sums, UNIT};
use crate::reference::affine::Order;
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

impl<const TILES: usize> Chunk<'_, TILES> {
    /// Adds the chunk's products to the sums of all tokens, party by party. Behind the last columns the sums are the
    /// outputs.
    #[inline(always)]
    pub(super) fn add_parties<S: Simd>(
        &self,
        s: S,
        multiplier: &mut Multiplier<S::Matrix>,
        sums: &mut [[Sums; TILES]],
        out: &mut ColumnBlock<'_, f32>,
    ) {
        debug_assert_eq!(self.x.order, Order::Parties);
        for (party, sums) in sums.chunks_mut(PARTY).enumerate() {
            let tiles = self.tiles.iter().enumerate().filter(|(_, tile)| tile.span.count > 0);
            for (r, tile) in tiles {
                let tokens = party * PARTY..party * PARTY + sums.len();
                if self.ends() {
                    tokens.clone().for_each(|token| tile.span.fetch(out, token));
                }
                match sums.len() {
                    ..=8 => self.add_party_tile::<S, 8>(s, multiplier, party, r, sums),
                    _ => self.add_party_tile::<S, PARTY>(s, multiplier, party, r, sums),
                }
                if self.ends() {
                    for (token, sums) in tokens.zip(&*sums) {
                        tile.span.store(s, out, token, s.load(&sums[r].0));
                    }
                }
            }
        }
    }

    /// Adds the products of tile `r` to the sums of a party of up to `TOKENS` tokens.
    #[inline(always)]
    fn add_party_tile<S: Simd, const TOKENS: usize>(
        &self,
        s: S,
        multiplier: &mut Multiplier<S::Matrix>,
        party: usize,
        r: usize,
        sums: &mut [[Sums; TILES]],
    ) {
        let (tile, x, last) = (&self.tiles[r], self.x, sums.len() - 1);
        let first = (party * self.per_row + self.blocks.start) * PARTY;
        let (scales, weighted) = (x.scales[first..].as_chunks().0, x.weighted[first..].as_chunks().0);
        let codes = x.codes[first * x.block..].chunks_exact(PARTY * x.block);
        let units = self.units[r].as_flattened().as_flattened().chunks_exact(x.block / UNIT);
        let mut blocks = codes.zip(units).take(self.blocks.len());

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
        for (i, index) in self.blocks.clone().enumerate() {
            if let Some((codes, units)) = blocks.next() {
                unit.products::<TOKENS>(codes, units, next);
            }
            let group = if self.per_group == 1 { index } else { index / self.per_group };
            let factors = (s.load(&tile.scales[group].0), s.load(&tile.biases[group].0));
            acc = add_scaled(s, acc, now, factors, &scales[i], &weighted[i]);
            std::mem::swap(&mut now, &mut next);
        }
        for t in 0..TOKENS {
            if t <= last {
                s.store(acc[t], &mut sums[t][r].0);
            }
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
