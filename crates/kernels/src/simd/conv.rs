//! The causal convolution, sixteen channels at a time.

use super::math::silu;
use crate::reference::conv::ConvSilu;
use crate::vector::{LANES, Simd, lanes, lanes_mut};

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

/// All blocks of sixteen channels; returns how many channels that is.
#[inline(always)]
fn blocks<S: Simd, const KERNEL: usize>(s: S, a: &mut ConvSilu<'_>) -> usize {
    let (weights, _) = a.weight.as_chunks::<KERNEL>().0.as_chunks::<LANES>();
    for (block, weights) in weights.iter().enumerate() {
        let c = block * LANES;
        let mut taps = [[0.0; LANES]; KERNEL];
        for (lane, weights) in weights.iter().enumerate() {
            for (tap, weight) in taps.iter_mut().zip(weights) {
                tap[lane] = *weight;
            }
        }
        for token in 0..a.out.rows() {
            let mut acc = s.splat(0.0);
            for (j, taps) in taps.iter().enumerate() {
                acc = s.fma(s.load(taps), s.load(lanes(a.input(token + j), c)), acc);
            }
            s.store(silu(s, acc), lanes_mut(a.out.row_mut(token), c));
        }
    }
    weights.len() * LANES
}
