//! Grouped affine codes: `w = code·scale + bias`, or `(code - 2^(bits-1))·scale` when symmetric.
//!
//! A payload is all packed codes, then one scale per group, then (asymmetric only) one bias per group. Groups run
//! over the flattened tensor. Sources: `.base` v1; the quantiser is the original converter's round-to-nearest.

use crate::pack::{pack, unpack};
use crate::{QuantError, ScaleDtype};

/// Codes unpacked at a time; a multiple of 8, so that every block but the last starts on a byte.
const BLOCK: usize = 256;

/// The parameters of an affine encoding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Affine {
    pub bits: u32,
    pub group: usize,
    pub scale: ScaleDtype,
    pub symmetric: bool,
}

/// The three regions of a payload; `biases` is empty when symmetric.
#[derive(Clone, Copy)]
pub(crate) struct Payload<'a> {
    pub codes: &'a [u8],
    pub scales: &'a [u8],
    pub biases: &'a [u8],
}

impl Affine {
    /// Decodes elements `first..first + out.len()`, which the caller has checked to be inside the payload.
    pub fn decode(&self, payload: Payload<'_>, first: usize, out: &mut [f32]) -> Result<(), QuantError> {
        match self.bits {
            2 => self.decode_bits::<2>(payload, first, out),
            3 => self.decode_bits::<3>(payload, first, out),
            4 => self.decode_bits::<4>(payload, first, out),
            5 => self.decode_bits::<5>(payload, first, out),
            6 => self.decode_bits::<6>(payload, first, out),
            8 => self.decode_bits::<8>(payload, first, out),
            bits => Err(QuantError::Bits(bits)),
        }
    }

    fn decode_bits<const B: usize>(
        &self,
        payload: Payload<'_>,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), QuantError> {
        let zero_point = if self.symmetric { (1u32 << (B - 1)) as f32 } else { 0.0 };
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            let group = at / self.group;
            let count = (self.group - at % self.group).min(rest.len());
            let (run, later) = rest.split_at_mut(count);
            let scale = self.scale.get(payload.scales, group)?;
            let bias = if self.symmetric { 0.0 } else { self.scale.get(payload.biases, group)? };
            decode_run::<B>(payload.codes, at, zero_point, scale, bias, run);
            at += count;
            rest = later;
        }
        Ok(())
    }

    /// Quantises `values`, a whole number of groups, and appends codes, scales and biases.
    pub fn encode(&self, values: &[f32], out: &mut Vec<u8>) -> Result<(), QuantError> {
        match self.bits {
            2 => self.encode_bits::<2>(values, out),
            3 => self.encode_bits::<3>(values, out),
            4 => self.encode_bits::<4>(values, out),
            5 => self.encode_bits::<5>(values, out),
            6 => self.encode_bits::<6>(values, out),
            8 => self.encode_bits::<8>(values, out),
            bits => Err(QuantError::Bits(bits)),
        }
    }

    fn encode_bits<const B: usize>(&self, values: &[f32], out: &mut Vec<u8>) -> Result<(), QuantError> {
        let groups = values.len() / self.group;
        let mut scales = Vec::with_capacity(groups * self.scale.bytes());
        let mut biases = Vec::with_capacity(if self.symmetric { 0 } else { groups * self.scale.bytes() });
        let mut codes = vec![0u8; self.group];
        for (index, group) in values.chunks_exact(self.group).enumerate() {
            let first = index * self.group;
            if self.symmetric {
                let scale = self.store(symmetric_scale::<B>(group), first, &mut scales)?;
                symmetric_codes::<B>(group, scale, &mut codes);
            } else {
                let (scale, bias) = asymmetric_scale::<B>(group);
                let scale = self.store(scale, first, &mut scales)?;
                let bias = self.store(bias, first, &mut biases)?;
                asymmetric_codes::<B>(group, scale, bias, &mut codes);
            }
            pack::<B>(&codes, out);
        }
        out.append(&mut scales);
        out.append(&mut biases);
        Ok(())
    }

    /// Appends a scale or bias and returns it as a decoder will see it.
    pub fn store(&self, value: f32, first: usize, region: &mut Vec<u8>) -> Result<f32, QuantError> {
        if !self.scale.fits(value) {
            return Err(QuantError::ScaleRange { index: first, value, dtype: self.scale });
        }
        Ok(self.scale.encode(value, region))
    }
}

/// Decodes a run inside one group; `at` is the flat index of its first element.
#[inline(always)]
fn decode_run<const B: usize>(
    codes: &[u8],
    at: usize,
    zero_point: f32,
    scale: f32,
    bias: f32,
    out: &mut [f32],
) {
    let mut unpacked = [0u8; BLOCK];
    let mut start = at - at % 8;
    let mut skip = at % 8;
    let mut rest = out;
    while !rest.is_empty() {
        let count = (BLOCK - skip).min(rest.len());
        let (run, later) = rest.split_at_mut(count);
        let unpacked = &mut unpacked[..skip + count];
        let first_byte = start / 8 * B;
        unpack::<B>(&codes[first_byte..first_byte + (unpacked.len() * B).div_ceil(8)], unpacked);
        for (value, &code) in run.iter_mut().zip(&unpacked[skip..]) {
            *value = (f32::from(code) - zero_point) * scale + bias;
        }
        start += BLOCK;
        skip = 0;
        rest = later;
    }
}

/// Scale and bias before rounding to the scale dtype: the group's range in `2^B - 1` steps from its minimum.
pub(crate) fn asymmetric_scale<const B: usize>(group: &[f32]) -> (f32, f32) {
    let (min, max) = range(group);
    let scale = (max - min) / ((1u32 << B) - 1) as f32;
    (if scale == 0.0 { 1.0 } else { scale }, min)
}

/// Minimum and maximum of finite values, a multiple of 8 of them. Eight running pairs, because one would wait for
/// its own last result with every element.
fn range(group: &[f32]) -> (f32, f32) {
    let mut min = [f32::INFINITY; 8];
    let mut max = [f32::NEG_INFINITY; 8];
    for values in group.as_chunks::<8>().0 {
        for ((min, max), &value) in min.iter_mut().zip(&mut max).zip(values) {
            *min = less(value, *min);
            *max = greater(value, *max);
        }
    }
    // Of zeros of both signs the first stays.
    let min = min.into_iter().fold(f32::INFINITY, |min, value| less(value, min));
    (min, max.into_iter().fold(f32::NEG_INFINITY, |max, value| greater(value, max)))
}

/// The smaller one; `b` if either is NaN. One instruction, where `f32::min` takes five.
#[inline(always)]
fn less(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// The larger one; `b` if either is NaN.
#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

pub(crate) fn asymmetric_codes<const B: usize>(group: &[f32], scale: f32, bias: f32, codes: &mut [u8]) {
    let top = ((1u32 << B) - 1) as f32;
    // Multiplying by the reciprocal and dividing differ in the last bit; the original multiplies.
    let inverse = 1.0 / scale;
    for (code, &value) in codes.iter_mut().zip(group) {
        // NaN is 0 times an infinite reciprocal, when the scale underflowed to zero; it becomes 0.
        *code = round_half_up(less(greater((value - bias) * inverse, 0.0), top));
    }
}

pub(crate) fn symmetric_scale<const B: usize>(group: &[f32]) -> f32 {
    let (min, max) = range(group);
    let scale = max.max(-min) / ((1u32 << (B - 1)) - 1) as f32;
    if scale == 0.0 { 1.0 } else { scale }
}

pub(crate) fn symmetric_codes<const B: usize>(group: &[f32], scale: f32, codes: &mut [u8]) {
    let half = 1i32 << (B - 1);
    let inverse = 1.0 / scale;
    for (code, &value) in codes.iter_mut().zip(group) {
        *code = (round_half_away((value * inverse).clamp(-half as f32, (half - 1) as f32)) + half) as u8;
    }
}

/// Rounds a number of `0..=255` to the nearest integer, ties up. Adding 2^23 rounds ties to even and leaves the integer in
/// the low bits, without the checks that a conversion makes; what was rounded down from a tie is one too low. The
/// difference is exact.
#[inline(always)]
fn round_half_up(value: f32) -> u8 {
    const SHIFT: f32 = 8_388_608.0;
    let shifted = value + SHIFT;
    let tie = value - (shifted - SHIFT) >= 0.5;
    shifted.to_bits() as u8 + u8::from(tie)
}

/// Rounds to the nearest integer, ties away from zero; NaN (0 times an infinite reciprocal, when the scale
/// underflowed to zero) is 0. Unlike `f32::round` it compiles to vector code.
#[inline(always)]
fn round_half_away(value: f32) -> i32 {
    let whole = value as i32;
    let fraction = value - whole as f32;
    whole + i32::from(fraction >= 0.5) - i32::from(fraction <= -0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_by_shifting_is_rounding() {
        for whole in 0..=255u8 {
            for part in [0.0, f32::EPSILON, 0.25, 0.499_999_97, 0.5, 0.500_000_06, 0.75, 0.999_999_94] {
                for neighbour in [f32::next_down as fn(f32) -> f32, f32::next_up, |value| value] {
                    let value = less(greater(neighbour(f32::from(whole) + part), 0.0), 255.0);
                    assert_eq!(i32::from(round_half_up(value)), round_half_away(value), "{value:?}");
                    assert_eq!(f32::from(round_half_up(value)), value.round(), "{value:?}");
                }
            }
        }
        assert_eq!(round_half_up(greater(f32::NAN, 0.0)), 0);
    }

    #[test]
    fn the_range_is_found_wherever_its_ends_are() {
        for length in [8, 16, 64, 128] {
            for at in 0..length {
                let mut values: Vec<f32> = (0..length).map(|i| (i * 37 % 11) as f32).collect();
                values[at] = -5.0;
                values[(at + 3) % length] = 50.0;
                assert_eq!(range(&values), (-5.0, 50.0), "{length} {at}");
            }
        }
    }
}
