//! The 4-bit float formats MXFP4 and NVFP4 as the `.base` container defines them.
//!
//! A payload is all codes (two per byte, even index in the low nibble), then one scale byte per group.
//! `w = value(code)·scale`, with code bit 3 the sign and the rest an index into [`MAGNITUDES`].

use crate::{Fp4, QuantError, ScaleDtype};

/// E2M1 magnitudes by the low three bits of a code.
const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Midpoints between neighbouring magnitudes; a value on one takes the upper.
const THRESHOLDS: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

/// Smallest NVFP4 scale byte with the meaning its bits suggest: byte 0 reads as 1.0.
const NV_SMALLEST: u8 = 1;

impl Fp4 {
    /// The value of a scale byte. Unlike [`ScaleDtype`]: for MXFP4 byte 0 is 2^-127; for NVFP4 the sign is ignored,
    /// byte 0 is 1.0 and 0x7f is 480.
    pub fn scale(self, byte: u8) -> f32 {
        match self {
            Fp4::Mx if byte == 0 => f32::from_bits(1 << 22),
            Fp4::Mx => f32::from_bits(u32::from(byte) << 23),
            Fp4::Nv if byte == 0 => 1.0,
            Fp4::Nv => f32::from_bits((u32::from((byte >> 3) & 15) + 120) << 23 | u32::from(byte & 7) << 20),
        }
    }

    /// The value of a 4-bit code before scaling; higher bits are ignored.
    pub fn value(self, code: u8) -> f32 {
        let magnitude = MAGNITUDES[usize::from(code & 7)];
        if code & 8 == 0 { magnitude } else { -magnitude }
    }

    /// Decodes elements `first..first + out.len()`, which the caller has checked to be inside the payload.
    pub(crate) fn decode(self, codes: &[u8], scales: &[u8], first: usize, out: &mut [f32]) {
        let values: [f32; 16] = std::array::from_fn(|code| self.value(code as u8));
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            let count = (self.group() - at % self.group()).min(rest.len());
            let (run, later) = rest.split_at_mut(count);
            let scale = self.scale(scales[at / self.group()]);
            for (i, value) in run.iter_mut().enumerate() {
                let code = codes[(at + i) / 2] >> (4 * ((at + i) % 2)) & 15;
                *value = values[usize::from(code)] * scale;
            }
            at += count;
            rest = later;
        }
    }

    /// Quantises `values`, a whole number of groups, and appends codes and scales.
    pub(crate) fn encode(self, values: &[f32], out: &mut Vec<u8>) -> Result<(), QuantError> {
        let mut scales = Vec::with_capacity(values.len() / self.group());
        for (index, group) in values.chunks_exact(self.group()).enumerate() {
            let magnitude = group.iter().fold(0.0, |max: f32, value| max.max(value.abs()));
            let target = magnitude / 6.0;
            let byte = match self {
                Fp4::Mx => mx_scale(target, magnitude == 0.0),
                Fp4::Nv => nv_scale(target, magnitude == 0.0).ok_or(QuantError::ScaleRange {
                    index: index * self.group(),
                    value: target,
                    dtype: ScaleDtype::E4m3,
                })?,
            };
            scales.push(byte);
            let scale = self.scale(byte);
            out.extend(
                group
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .map(|&[low, high]| code(low / scale) | code(high / scale) << 4),
            );
        }
        out.append(&mut scales);
        Ok(())
    }
}

/// The code nearest to a scaled value; zero has no sign.
fn code(value: f32) -> u8 {
    let magnitude = value.abs();
    let index = THRESHOLDS.iter().map(|&t| u8::from(magnitude >= t)).sum::<u8>();
    index | u8::from(index > 0 && value < 0.0) << 3
}

/// Exponent byte of the smallest power of two at or above `target`.
fn mx_scale(target: f32, zero_group: bool) -> u8 {
    if zero_group {
        return 127;
    }
    let bits = f64::from(target).to_bits();
    let floor = (bits >> 52) as i32 - 1023;
    let ceil = floor + i32::from(bits & ((1 << 52) - 1) != 0);
    (ceil + 127).clamp(0, 254) as u8
}

/// Exponent of `target` rounded down, 3 mantissa bits rounded half up without carry; `None` above the range.
/// Byte 0 would be read as 1.0, so it stands for a group of zeros only, and scales too small for the format take
/// the next byte, 1.125·2^-7.
fn nv_scale(target: f32, zero_group: bool) -> Option<u8> {
    if zero_group {
        return Some(0);
    }
    let bits = target.to_bits();
    let exponent = (bits >> 23) as i32 - 120;
    if exponent > 15 {
        return None;
    }
    let Ok(exponent) = u8::try_from(exponent) else {
        return Some(NV_SMALLEST);
    };
    // Half of the last kept mantissa bit is bit 19.
    let mantissa = ((bits & 0x7f_ffff) + (1 << 19)) >> 20;
    Some((exponent << 3 | mantissa.min(7) as u8).max(NV_SMALLEST))
}
