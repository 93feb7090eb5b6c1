//! Quantised activations.

use crate::reference::quantize::{Quantize, block_scale};
use crate::vector::{LANES, Simd};

/// See [`Quantize`].
#[inline(always)]
pub(crate) fn quantize<S: Simd>(s: S, a: Quantize<'_>) {
    match a.block / LANES {
        1 => blocks::<S, 1>(s, a),
        2 => blocks::<S, 2>(s, a),
        _ => blocks::<S, 4>(s, a),
    }
}

/// Blocks of `VECTORS` vectors.
#[inline(always)]
fn blocks<S: Simd, const VECTORS: usize>(s: S, a: Quantize<'_>) {
    let (x, codes) = (a.x.as_chunks::<LANES>().0, a.codes.as_chunks_mut::<LANES>().0);
    let all_finite = finite(s, x);
    let codes = codes.as_chunks_mut::<VECTORS>().0;
    for (i, x) in (0..).step_by(a.stride).zip(x.as_chunks::<VECTORS>().0) {
        let codes = &mut codes[i];
        let mut largest = s.splat(0.0);
        for x in x {
            largest = s.max(s.abs(s.load(x)), largest);
        }
        let (scale, reciprocal) = block_scale(s.largest(largest), all_finite || finite(s, x));
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

/// 0·x is a zero for finite x and NaN otherwise, and NaN stays in a sum. Four sums, so that none waits for another.
#[inline(always)]
fn finite<S: Simd>(s: S, x: &[[f32; LANES]]) -> bool {
    let mut zeros = [s.splat(0.0); 4];
    let (fours, rest) = x.as_chunks::<4>();
    for x in fours {
        for i in 0..4 {
            zeros[i] = s.fma(s.load(&x[i]), s.splat(0.0), zeros[i]);
        }
    }
    for x in rest {
        zeros[0] = s.fma(s.load(x), s.splat(0.0), zeros[0]);
    }
    let zeros = s.add(s.add(zeros[0], zeros[1]), s.add(zeros[2], zeros[3]));
    !s.sum(zeros).is_nan()
}

/// Rounds a block and returns the sum of its codes, whose magnitudes are at most 127: no product exceeds that by more than two roundings.
#[inline(always)]
fn round_codes<S: Simd, const VECTORS: usize>(
    s: S,
    x: &[[f32; LANES]; VECTORS],
    reciprocal: f32,
    codes: &mut [[i8; LANES]; VECTORS],
) -> i32 {
    let (reciprocal, mut sum) = (s.splat(reciprocal), s.splat(0.0));
    for (x, codes) in x.iter().zip(codes) {
        let rounded = s.round(s.mul(s.load(x), reciprocal));
        *codes = s.to_i8(rounded);
        sum = s.add(rounded, sum);
    }
    s.sum(sum) as i32
}
