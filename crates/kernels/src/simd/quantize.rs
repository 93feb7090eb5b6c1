//! Quantised activations.

use crate::reference::quantize::{Quantize, block_scale};
use crate::vector::{LANES, Simd};

/// See [`Quantize`].
#[inline(always)]
pub(crate) fn quantize<S: Simd>(s: S, a: Quantize<'_>) {
    let per_block = a.block / LANES;
    let (x, codes) = (a.x.as_chunks::<LANES>().0, a.codes.as_chunks_mut::<LANES>().0);
    let blocks = x.chunks_exact(per_block).zip(codes.chunks_exact_mut(per_block));
    for (i, (x, codes)) in blocks.enumerate() {
        let mut largest = s.splat(0.0);
        // 0·x is a zero for finite x and NaN otherwise, and NaN stays.
        let mut finite = s.splat(0.0);
        for x in x {
            let x = s.load(x);
            largest = s.max(s.abs(x), largest);
            finite = s.fma(x, s.splat(0.0), finite);
        }
        let (scale, reciprocal) = block_scale(s.largest(largest), !s.sum(finite).is_nan());
        let sum = match reciprocal {
            Some(reciprocal) => round_codes(s, x, reciprocal, codes),
            None => {
                codes.fill([0; LANES]);
                0
            }
        };
        a.sums[i] = sum;
        a.scales[i] = scale;
        a.weighted[i] = sum as f32 * scale;
    }
}

/// Rounds a block and returns the sum of its codes.
#[inline(always)]
fn round_codes<S: Simd>(s: S, x: &[[f32; LANES]], reciprocal: f32, codes: &mut [[i8; LANES]]) -> i32 {
    let (low, high) = (s.splat(-127.0), s.splat(127.0));
    let mut sum = 0;
    for (x, codes) in x.iter().zip(codes) {
        let rounded = s.round(s.mul(s.load(x), s.splat(reciprocal)));
        *codes = s.to_i8(s.min(s.max(rounded, low), high));
        for code in *codes {
            sum += i32::from(code);
        }
    }
    sum
}
