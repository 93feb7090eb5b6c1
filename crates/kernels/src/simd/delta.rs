//! The gated delta rule, sixteen value columns at a time.

use crate::reference::delta::{self, DeltaColumns, DeltaToken};
use crate::scratch::{Line, grown};
use crate::vector::{LANES, Simd, lanes, lanes_mut};

/// See [`DeltaColumns`].
///
/// The block of state moves to contiguous scratch for the run: in its place its rows lie a multiple of the value width
/// apart and would fight for a few sets of the cache.
#[inline(always)]
pub(crate) fn delta_columns<S: Simd>(s: S, mut a: DeltaColumns<'_>) {
    let width = a.out.width();
    if !width.is_multiple_of(LANES) {
        return delta::delta_columns(a);
    }
    let key_dim = a.shape.key_dim;
    let mut buffer = std::mem::take(&mut a.local.lines);
    let block = grown(&mut buffer, key_dim * width / LANES, Line([0.0; LANES]));
    for c in (0..width).step_by(LANES) {
        let block = &mut block[c / LANES * key_dim..][..key_dim];
        for (i, row) in block.iter_mut().enumerate() {
            row.0 = *lanes(a.state.row(i), c);
        }
    }
    for token in 0..a.out.rows() {
        for c in (0..width).step_by(LANES) {
            let block = &mut block[c / LANES * key_dim..][..key_dim];
            let out = step(s, a.token(token), c, block);
            s.store(out, lanes_mut(a.out.row_mut(token), c));
        }
    }
    for c in (0..width).step_by(LANES) {
        let block = &block[c / LANES * key_dim..][..key_dim];
        for (i, row) in block.iter().enumerate() {
            *lanes_mut(a.state.row_mut(i), c) = row.0;
        }
    }
    a.local.lines = buffer;
}

/// One token, sixteen columns from `c` on; rows of the block are contiguous.
#[inline(always)]
fn step<S: Simd>(s: S, token: DeltaToken<'_>, c: usize, block: &mut [Line<[f32; LANES]>]) -> S::F {
    let (q, k) = (&token.q[..block.len()], &token.k[..block.len()]);
    let decay = s.splat(token.decay);
    let mut chains = [s.splat(0.0); 4];
    let (fours, tail) = block.as_chunks_mut::<4>();
    let (k_fours, k_tail) = k.as_chunks::<4>();
    for (rows, k) in fours.iter_mut().zip(k_fours) {
        for i in 0..4 {
            chains[i] = decayed(s, &mut rows[i], decay, k[i], chains[i]);
        }
    }
    for (i, (row, k)) in tail.iter_mut().zip(k_tail).enumerate() {
        chains[i] = decayed(s, row, decay, *k, chains[i]);
    }
    let v = s.load(lanes(token.v, c));
    let d = s.mul(s.sub(v, sum_chains(s, chains)), s.splat(token.beta));
    let mut chains = [s.splat(0.0); 4];
    let (q_fours, q_tail) = q.as_chunks::<4>();
    for ((rows, k), q) in fours.iter_mut().zip(k_fours).zip(q_fours) {
        for i in 0..4 {
            chains[i] = updated(s, &mut rows[i], d, k[i], q[i], chains[i]);
        }
    }
    for (i, ((row, k), q)) in tail.iter_mut().zip(k_tail).zip(q_tail).enumerate() {
        chains[i] = updated(s, row, d, *k, *q, chains[i]);
    }
    sum_chains(s, chains)
}

/// `row = row·decay`; the chain with `row·k` added.
#[inline(always)]
fn decayed<S: Simd>(s: S, row: &mut Line<[f32; LANES]>, decay: S::F, k: f32, chain: S::F) -> S::F {
    let value = s.mul(s.load(&row.0), decay);
    s.store(value, &mut row.0);
    s.fma(value, s.splat(k), chain)
}

/// `row = fma(k, d, row)`; the chain with `row·q` added.
#[inline(always)]
fn updated<S: Simd>(s: S, row: &mut Line<[f32; LANES]>, d: S::F, k: f32, q: f32, chain: S::F) -> S::F {
    let value = s.fma(s.splat(k), d, s.load(&row.0));
    s.store(value, &mut row.0);
    s.fma(value, s.splat(q), chain)
}

/// (0 + 1) + (2 + 3).
#[inline(always)]
fn sum_chains<S: Simd>(s: S, chains: [S::F; 4]) -> S::F {
    s.add(s.add(chains[0], chains[1]), s.add(chains[2], chains[3]))
}
