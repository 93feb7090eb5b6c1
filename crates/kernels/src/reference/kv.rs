//! Keys and values on their way into the cache, and what is read back.
//!
//! A block of the quantised types is chosen so that what is read back, `level · scale` with the binary16 scale as it is
//! stored, is near: codes are made with the rounded scale, not with the one it was rounded from.

use half::{bf16, f16};

use super::sum::Lanes;
use crate::kv::{BLOCK, KvDtype, Q4_BYTES, Q8_BYTES};

/// Largest code of a `q8` block.
pub(crate) const Q8_MAX: f32 = 127.0;

/// What the codes of a `q4` block stand for, before the scale. Blocks are rotated before they come here (see
/// `reference::rotate`), which makes normal deviates of them; these levels have the least squared error on blocks of 32
/// normal deviates whose scale is chosen as [`store_q4`] does (Lloyd's algorithm, rounded to integers). They are not
/// symmetric: one end of the block meets one end of the levels, whichever sign the scale gives it.
pub(crate) const Q4_LEVELS: [i8; 16] =
    [-127, -101, -79, -61, -47, -34, -21, -9, 2, 14, 25, 36, 50, 65, 83, 107];

/// Candidates for the scale of a `q4` block, as multiples of what brings the largest element to an end of the levels.
pub(crate) const Q4_STRETCH: [f32; 5] = [0.88, 0.94, 1.0, 1.06, 1.12];

/// One head's key or value on its way into the cache.
pub(crate) struct StoreKv<'a> {
    pub dtype: KvDtype,
    pub x: &'a [f32],      // [head_dim]
    pub out: &'a mut [u8], // a row of `dtype`
}

/// Rounds to the cache's type: the float types to nearest even, the quantised types as [`store_q8`] and [`store_q4`]
/// say.
#[inline(always)]
pub(crate) fn store_kv(a: StoreKv<'_>) {
    let StoreKv { dtype, x, out } = a;
    match dtype {
        KvDtype::F32 => x.iter().zip(out.as_chunks_mut().0).for_each(|(x, out)| *out = x.to_le_bytes()),
        KvDtype::F16 => {
            x.iter().zip(out.as_chunks_mut().0).for_each(|(x, out)| *out = f16::from_f32(*x).to_le_bytes());
        }
        KvDtype::Bf16 => {
            x.iter().zip(out.as_chunks_mut().0).for_each(|(x, out)| *out = bf16::from_f32(*x).to_le_bytes());
        }
        KvDtype::Q8 => {
            x.as_chunks().0.iter().zip(out.as_chunks_mut().0).for_each(|(x, out)| store_q8(x, out))
        }
        KvDtype::Q4 => {
            x.as_chunks().0.iter().zip(out.as_chunks_mut().0).for_each(|(x, out)| store_q4(x, out))
        }
    }
}

/// `scale = amax / 127`, rounded up to binary16 so that nothing is clipped below the largest binary16;
/// `code = clamp(round_ties_even(x·(1 / scale)), -127, 127)`. A block with an element that is not finite has the scale
/// NaN and codes 0, so all of it reads as NaN; where the scale is 0, so are the codes.
#[inline(always)]
fn store_q8(x: &[f32; BLOCK], out: &mut [u8; Q8_BYTES]) {
    let amax = x.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    let (scale, reciprocal) = q8_scale(amax, all_finite(x));
    let (head, codes) = out.split_at_mut(2);
    head.copy_from_slice(&scale.to_le_bytes());
    for (x, code) in x.iter().zip(codes) {
        let rounded = (x * reciprocal).round_ties_even().clamp(-Q8_MAX, Q8_MAX);
        *code = if reciprocal == 0.0 { 0 } else { (rounded as i8).cast_unsigned() };
    }
}

/// Scale of a `q8` block with the largest magnitude `amax` (meaningless if not `finite`), and its reciprocal; 0 for the
/// reciprocal where all codes are 0.
#[inline(always)]
pub(crate) fn q8_scale(amax: f32, finite: bool) -> (f16, f32) {
    if !finite {
        return (f16::NAN, 0.0);
    }
    let exact = amax / Q8_MAX;
    let nearest = f16::from_f32(exact).min(f16::MAX);
    let below = nearest.to_f32() < exact && nearest < f16::MAX;
    // The next binary16 above a positive one is the next integer above its bits.
    let scale = f16::from_bits(nearest.to_bits() + u16::from(below));
    (scale, if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() })
}

/// The scale with the least squared error among [`q4_candidates`], the first of them if there are several. With it each
/// element gets the code of the level nearest to `x·(1 / scale)`, the lower of two. The errors `fma(-level, scale, x)`
/// are squared and summed in sixteen lanes. A block with an element that is not finite has the scale NaN and codes 0, so
/// all of it reads as NaN.
#[inline(always)]
fn store_q4(x: &[f32; BLOCK], out: &mut [u8; Q4_BYTES]) {
    if !all_finite(x) {
        *out = q4_not_finite();
        return;
    }
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let min = x.iter().copied().fold(f32::INFINITY, f32::min);
    let candidates = q4_candidates(max, min);
    let mut best = (f32::INFINITY, candidates[0]);
    for scale in candidates {
        let error = q4_error(x, scale.to_f32());
        if error < best.0 {
            best = (error, scale);
        }
    }
    let code = |x: f32| q4_code(x * (1.0 / best.1.to_f32()));
    let (head, codes) = out.split_at_mut(2);
    head.copy_from_slice(&best.1.to_le_bytes());
    for (i, byte) in codes.iter_mut().enumerate() {
        *byte = code(x[i]) | code(x[i + BLOCK / 2]) << 4;
    }
}

/// Scale NaN and codes 0.
#[inline(always)]
pub(crate) fn q4_not_finite() -> [u8; Q4_BYTES] {
    let mut out = [0; Q4_BYTES];
    out[..2].copy_from_slice(&f16::NAN.to_le_bytes());
    out
}

/// Scales to try: `(peak / end)·stretch` for both ends of the levels and every [`Q4_STRETCH`], where the peak is the
/// largest element if it is farther from 0 than the least, else the least. Rounded to nearest even, and at most the
/// largest binary16.
#[inline(always)]
pub(crate) fn q4_candidates(max: f32, min: f32) -> [f16; 2 * Q4_STRETCH.len()] {
    // Adding 0 makes one zero of both.
    let peak = if max > -min { max } else { min } + 0.0;
    std::array::from_fn(|i| {
        let end = Q4_LEVELS[if i < Q4_STRETCH.len() { 0 } else { 15 }];
        let scale = peak / f32::from(end) * Q4_STRETCH[i % Q4_STRETCH.len()];
        f16::from_f32(scale.clamp(-f16::MAX.to_f32(), f16::MAX.to_f32()))
    })
}

/// Squared error of a block.
#[inline(always)]
fn q4_error(x: &[f32; BLOCK], scale: f32) -> f32 {
    let reciprocal = 1.0 / scale;
    let mut lanes = Lanes::new();
    for (i, x) in x.iter().enumerate() {
        let level = f32::from(Q4_LEVELS[usize::from(q4_code(x * reciprocal))]);
        let error = (-level).mul_add(scale, *x);
        lanes.fma(i, error, error);
    }
    lanes.sum()
}

/// Halfway between levels `i` and `i + 1`.
#[inline(always)]
pub(crate) fn q4_border(i: usize) -> f32 {
    (f32::from(Q4_LEVELS[i]) + f32::from(Q4_LEVELS[i + 1])) * 0.5
}

/// Code of the level nearest to `x`: the number of borders below it, so 0 for NaN.
#[inline(always)]
fn q4_code(x: f32) -> u8 {
    (0..15).map(|i| u8::from(x > q4_border(i))).sum()
}

#[inline(always)]
fn all_finite(x: &[f32; BLOCK]) -> bool {
    x.iter().all(|x| x.is_finite())
}

/// Element `i` of a stored row. Products of a binary16 and a code are exact.
#[inline(always)]
pub(crate) fn cached(dtype: KvDtype, row: &[u8], i: usize) -> f32 {
    let (block, at) = (i / BLOCK, i % BLOCK);
    match dtype {
        KvDtype::F32 => f32::from_le_bytes(row.as_chunks().0[i]),
        KvDtype::F16 => f16::from_le_bytes(row.as_chunks().0[i]).to_f32(),
        KvDtype::Bf16 => bf16::from_le_bytes(row.as_chunks().0[i]).to_f32(),
        KvDtype::Q8 => {
            let block: &[u8; Q8_BYTES] = &row.as_chunks().0[block];
            f16::from_le_bytes([block[0], block[1]]).to_f32() * f32::from(block[2 + at].cast_signed())
        }
        KvDtype::Q4 => {
            let block: &[u8; Q4_BYTES] = &row.as_chunks().0[block];
            let byte = block[2 + at % (BLOCK / 2)];
            let code = if at < BLOCK / 2 { byte & 15 } else { byte >> 4 };
            f16::from_le_bytes([block[0], block[1]]).to_f32() * f32::from(Q4_LEVELS[usize::from(code)])
        }
    }
}
