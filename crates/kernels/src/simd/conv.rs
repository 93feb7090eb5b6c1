//! The causal convolution, sixteen channels at a time.

use super::math::silu;
use super::prefetch;
use crate::reference::conv::ConvSilu;
use crate::vector::{LANES, Simd, lanes, lanes_mut};

/// Blocks of sixteen channels side by side.
const BLOCKS: usize = 8;

/// Tokens ahead of the current one that are asked for.
const AHEAD: usize = 4;

/// See [`ConvSilu`]. Kernels of other widths than models have run the reference.
#[inline(always)]
pub(crate) fn conv_silu<S: Simd>(s: S, mut a: ConvSilu<'_>) {
    let whole = match a.kernel {
        2 => blocks::<S, 2>(s, &mut a),
        3 => blocks::<S, 3>(s, &mut a),
        4 => blocks::<S, 4>(s, &mut a),
        _ => 0,
    };
    a.outputs(whole);
    a.advance();
}

/// All blocks of sixteen channels, some of them side by side; returns how many channels that is.
#[inline(always)]
fn blocks<S: Simd, const KERNEL: usize>(s: S, a: &mut ConvSilu<'_>) -> usize {
    let (weights, _) = a.weight.as_chunks::<KERNEL>().0.as_chunks::<LANES>();
    let (parties, rest) = weights.as_chunks::<BLOCKS>();
    for (party, weights) in parties.iter().enumerate() {
        side_by_side(s, a, party * BLOCKS * LANES, weights);
    }
    for (block, weights) in rest.iter().enumerate() {
        side_by_side(s, a, (parties.len() * BLOCKS + block) * LANES, &[*weights]);
    }
    weights.len() * LANES
}

/// The blocks from channel `first` on, token by token: what a token has of them is some neighbouring cache lines.
#[inline(always)]
fn side_by_side<S: Simd, const KERNEL: usize, const N: usize>(
    s: S,
    a: &mut ConvSilu<'_>,
    first: usize,
    weights: &[[[f32; KERNEL]; LANES]; N],
) {
    let mut taps = [[[0.0; LANES]; KERNEL]; N];
    for (taps, weights) in taps.iter_mut().zip(weights) {
        for (lane, weights) in weights.iter().enumerate() {
            for (tap, weight) in taps.iter_mut().zip(weights) {
                tap[lane] = *weight;
            }
        }
    }
    let tokens = a.out.rows();
    for token in 0..tokens {
        let soon = (token + AHEAD).min(tokens - 1);
        for (block, taps) in taps.iter().enumerate() {
            let c = first + block * LANES;
            prefetch(lanes(a.input(soon + KERNEL - 1), c).as_ptr().cast());
            prefetch(lanes(a.out.row(soon), c).as_ptr().cast());
            let mut acc = s.splat(0.0);
            for (j, taps) in taps.iter().enumerate() {
                acc = s.fma(s.load(taps), s.load(lanes(a.input(token + j), c)), acc);
            }
            s.store(silu(s, acc), lanes_mut(a.out.row_mut(token), c));
        }
    }
}
