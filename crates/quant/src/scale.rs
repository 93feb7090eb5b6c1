//! Scale dtypes: how the scales and biases of affine groups are stored.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::QuantError;
use crate::dtype::unknown_name;

/// The number format of scales and biases. The two 8-bit formats follow the `.base` container, not the standards
/// they are named after; FP4 tensors read their scale bytes differently again, by their own rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaleDtype {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// Power of two: 0 is 0.0, otherwise 2^(e-127); 255 is infinity. No sign.
    E8m0,
    /// Sign, 4 exponent bits, 3 mantissa bits: ±2^(E-7)·(1+M/8). 0x00 and 0x80 are zero; there are no subnormals
    /// and no NaN, so 0x01 is 1.125·2^-7 and 0x7f is 480.
    E4m3,
}

impl ScaleDtype {
    /// Every scale dtype.
    pub const ALL: [ScaleDtype; 4] = [ScaleDtype::Bf16, ScaleDtype::F16, ScaleDtype::E8m0, ScaleDtype::E4m3];

    /// Bytes of one scale or bias.
    pub const fn bytes(self) -> usize {
        match self {
            ScaleDtype::Bf16 | ScaleDtype::F16 => 2,
            ScaleDtype::E8m0 | ScaleDtype::E4m3 => 1,
        }
    }

    /// The spelling in `.base` headers.
    pub fn name(self) -> &'static str {
        match self {
            ScaleDtype::Bf16 => "bf16",
            ScaleDtype::F16 => "f16",
            ScaleDtype::E8m0 => "e8m0",
            ScaleDtype::E4m3 => "e4m3",
        }
    }

    /// The value at position `index` of a scale or bias region.
    ///
    /// # Errors
    /// If the region ends before it.
    pub fn get(self, region: &[u8], index: usize) -> Result<f32, QuantError> {
        let start = index.saturating_mul(self.bytes());
        match (self, region.get(start..).unwrap_or_default()) {
            (ScaleDtype::Bf16, &[low, high, ..]) => Ok(bf16::from_le_bytes([low, high]).to_f32()),
            (ScaleDtype::F16, &[low, high, ..]) => Ok(f16::from_le_bytes([low, high]).to_f32()),
            (ScaleDtype::E8m0, &[byte, ..]) => Ok(e8m0_to_f32(byte)),
            (ScaleDtype::E4m3, &[byte, ..]) => Ok(e4m3_to_f32(byte)),
            _ => Err(QuantError::Range { first: index, count: 1, elements: region.len() / self.bytes() }),
        }
    }

    /// Decodes a whole scale or bias region.
    ///
    /// # Errors
    /// If the region is not exactly that long.
    pub fn decode(self, region: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
        let expected = out.len() * self.bytes();
        if region.len() != expected {
            return Err(QuantError::Length {
                what: "scale region (bytes)",
                expected: expected as u64,
                found: region.len() as u64,
            });
        }
        match self {
            ScaleDtype::Bf16 => {
                let pairs = region.as_chunks::<2>().0;
                out.iter_mut().zip(pairs).for_each(|(o, b)| *o = bf16::from_le_bytes(*b).to_f32());
            }
            ScaleDtype::F16 => {
                let pairs = region.as_chunks::<2>().0;
                out.iter_mut().zip(pairs).for_each(|(o, b)| *o = f16::from_le_bytes(*b).to_f32());
            }
            ScaleDtype::E8m0 => out.iter_mut().zip(region).for_each(|(o, b)| *o = e8m0_to_f32(*b)),
            ScaleDtype::E4m3 => out.iter_mut().zip(region).for_each(|(o, b)| *o = e4m3_to_f32(*b)),
        }
        Ok(())
    }

    /// Appends `value`, rounded to the nearest number of this format, and returns what was stored.
    ///
    /// bf16 and f16 round half to even and overflow to infinity. E8m0 rounds log2|value| to nearest and drops the
    /// sign. E4m3 takes the nearest decodable value, ties away from zero, and saturates at ±480. (The original
    /// converter's own E4m3 encoder is approximate: it does not invert this decoding for mantissas from √2 on.)
    pub fn encode(self, value: f32, out: &mut Vec<u8>) -> f32 {
        match self {
            ScaleDtype::Bf16 => {
                let stored = bf16::from_f32(value);
                out.extend_from_slice(&stored.to_le_bytes());
                stored.to_f32()
            }
            ScaleDtype::F16 => {
                let stored = f16::from_f32(value);
                out.extend_from_slice(&stored.to_le_bytes());
                stored.to_f32()
            }
            ScaleDtype::E8m0 => {
                let stored = e8m0_from_f32(value);
                out.push(stored);
                e8m0_to_f32(stored)
            }
            ScaleDtype::E4m3 => {
                let stored = e4m3_from_f32(value);
                out.push(stored);
                e4m3_to_f32(stored)
            }
        }
    }

    /// Whether a finite `value` is inside the format's range, so that encoding it is ordinary rounding.
    pub fn fits(self, value: f32) -> bool {
        match self {
            ScaleDtype::Bf16 => bf16::from_f32(value).is_finite(),
            ScaleDtype::F16 => f16::from_f32(value).is_finite(),
            ScaleDtype::E8m0 => value.is_finite() && e8m0_from_f32(value) != u8::MAX,
            // Half a step above the largest value, 480 = 2^8 · 1.875.
            ScaleDtype::E4m3 => value.abs() < 496.0,
        }
    }
}

impl FromStr for ScaleDtype {
    type Err = QuantError;

    fn from_str(name: &str) -> Result<ScaleDtype, QuantError> {
        ScaleDtype::ALL
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| unknown_name("scale_dtype", name, ScaleDtype::ALL.map(ScaleDtype::name)))
    }
}

impl fmt::Display for ScaleDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// 2^(e-127), with 0 as zero: a binary32's exponent field without its sign and mantissa.
fn e8m0_to_f32(byte: u8) -> f32 {
    f32::from_bits(u32::from(byte) << 23)
}

/// The byte whose power of two is nearest to |value| in the logarithm.
fn e8m0_from_f32(value: f32) -> u8 {
    let value = f64::from(value.abs());
    if value == 0.0 {
        return 0;
    }
    let exponent = floor_log2(value);
    let mantissa = value / 2f64.powi(exponent);
    // log2 rounds up from √2; the square of a 24-bit mantissa is exact in f64.
    let rounded = exponent + i32::from(mantissa * mantissa >= 2.0);
    // 0 would read as zero, so the smallest magnitudes become 2^-126.
    (rounded + 127).clamp(1, 255) as u8
}

/// floor(log2(value)) for a positive finite f64 that came from an f32, hence is a normal number.
fn floor_log2(value: f64) -> i32 {
    ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

fn e4m3_to_f32(byte: u8) -> f32 {
    if byte & 0x7f == 0 {
        return 0.0;
    }
    let sign = u32::from(byte & 0x80) << 24;
    let exponent = u32::from((byte >> 3) & 15) + 120;
    f32::from_bits(sign | exponent << 23 | u32::from(byte & 7) << 20)
}

fn e4m3_from_f32(value: f32) -> u8 {
    /// 1.125 · 2^-7, the smallest magnitude above zero.
    const SMALLEST: f32 = 0.008_789_062_5;
    let magnitude = value.abs();
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    if magnitude < SMALLEST / 2.0 {
        return 0;
    }
    if magnitude <= SMALLEST {
        return sign | 1;
    }
    // Codes are the top bits of a binary32 with the exponent rebased, so adding half of the last kept bit and
    // cutting rounds half away from zero, with the carry into the exponent for free.
    let code = ((magnitude.to_bits() + (1 << 19)) >> 20).saturating_sub(120 << 3);
    sign | code.min(0x7f) as u8
}
