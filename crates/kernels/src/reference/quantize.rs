//! Quantised activations: what the integer linear layers multiply with.

/// Below this largest magnitude a block counts as zero; its scale could not be inverted in f32.
pub(crate) const TINY: f32 = 1.0 / (1u128 << 100) as f32;

/// A row of activations to quantise in blocks, and where the result goes.
pub(crate) struct Quantize<'a> {
    pub x: &'a [f32], // [cols]
    /// Columns per block: 16, 32 or 64.
    pub block: usize,
    /// Places from a block to the next one in what is written; other rows' blocks may lie between.
    pub stride: usize,
    pub codes: &'a mut [i8], // [cols / block, stride, block], of which a row's are the first
    /// Sums of the codes of each block.
    pub sums: &'a mut [i32], // [cols / block, stride]
    /// Scale `sx` of each block.
    pub scales: &'a mut [f32], // [cols / block, stride]
    /// `f32(sum)·sx` of each block.
    pub weighted: &'a mut [f32], // [cols / block, stride]
}

/// Scale and reciprocal of a block from its largest magnitude (meaningless if not `finite`): `(sx, 127 / amax)`, or
/// `None` for the reciprocal where all codes are zero.
#[inline(always)]
pub(crate) fn block_scale(amax: f32, finite: bool) -> (f32, Option<f32>) {
    if !finite {
        (f32::NAN, None)
    } else if amax < TINY {
        (0.0, None)
    } else {
        (amax / 127.0, Some(127.0 / amax))
    }
}

/// Per block: `amax = max |x|`; if any x is not finite, `sx = NaN` and codes 0; if `amax < 2^-100`, `sx = 0` and codes
/// 0; else `sx = amax / 127` and `code = clamp(round_ties_even(x·(127 / amax)), -127, 127)`.
pub(crate) fn quantize(a: Quantize<'_>) {
    let places = (0..).step_by(a.stride);
    let blocks = a.x.chunks_exact(a.block).zip(a.codes.chunks_exact_mut(a.block).step_by(a.stride));
    for (i, (x, codes)) in places.zip(blocks) {
        let finite = x.iter().all(|x| x.is_finite());
        let amax = x.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
        let (scale, reciprocal) = block_scale(amax, finite);
        for (code, x) in codes.iter_mut().zip(x) {
            *code = reciprocal.map_or(0, |r| (x * r).round_ties_even().clamp(-127.0, 127.0) as i8);
        }
        let sum = codes.iter().map(|&code| i32::from(code)).sum();
        a.sums[i] = sum;
        a.scales[i] = scale;
        a.weighted[i] = sum as f32 * scale;
    }
}
