//! The causal convolution, sixteen channels at a time.

use super::math::silu;
use crate::reference::conv::ConvSilu;
use crate::vector::{LANES, Simd, lanes, lanes_mut};

/// Longest kernel whose taps are kept transposed; longer ones run the reference.
const MAX_KERNEL: usize = 8;

/// See [`ConvSilu`].
#[inline(always)]
pub(crate) fn conv_silu<S: Simd>(s: S, mut a: ConvSilu<'_>) {
    let whole = if a.kernel <= MAX_KERNEL { a.out.width() / LANES * LANES } else { 0 };
    for c in (0..whole).step_by(LANES) {
        let mut taps = [[0.0; LANES]; MAX_KERNEL];
        for lane in 0..LANES {
            for j in 0..a.kernel {
                taps[j][lane] = a.weight[(c + lane) * a.kernel + j];
            }
        }
        for token in 0..a.out.rows() {
            let mut acc = s.splat(0.0);
            for (j, taps) in taps[..a.kernel].iter().enumerate() {
                acc = s.fma(s.load(taps), s.load(lanes(a.input(token + j), c)), acc);
            }
            s.store(silu(s, acc), lanes_mut(a.out.row_mut(token), c));
        }
    }
    a.outputs(whole);
    a.advance();
}
