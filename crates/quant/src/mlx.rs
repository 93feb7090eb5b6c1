//! Quantised modules of MLX checkpoints: packed codes, scales and (affine) biases as arrays of their own.
//!
//! Every row of codes is one little-endian bit stream, which is also the container's packing, so most modes are
//! stored byte for byte. Source: mlx `quantize` (0.32), as published.

use std::fmt;

use crate::pack::unpack;
use crate::{Encoding, FloatDtype, Fp4, QuantError, ScaleDtype, float};

/// How a module is quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mlx {
    /// `q·scale + bias`; scales are often negative.
    Affine {
        /// Bits per code: 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Elements per scale: 32, 64 or 128.
        group: usize,
        /// Type of scales and biases.
        scale: FloatDtype,
    },
    /// E2M1 codes in groups of 32 with a power of two each.
    MxFp4,
    /// E2M1 codes in groups of 16 with an E4M3 scale each, in the standard's reading: zero and subnormals exist.
    NvFp4,
    /// E4M3 elements in groups of 32 with a power of two each.
    MxFp8,
}

/// The arrays of a module, or of some of its rows.
#[derive(Debug, Clone, Copy)]
pub struct MlxArrays<'a> {
    /// Packed codes.
    pub codes: &'a [u8],
    /// One scale per group.
    pub scales: &'a [u8],
    /// One bias per group; empty unless affine.
    pub biases: &'a [u8],
}

impl Mlx {
    /// Bits per element.
    pub const fn bits(self) -> u32 {
        match self {
            Mlx::Affine { bits, .. } => bits,
            Mlx::MxFp4 | Mlx::NvFp4 => 4,
            Mlx::MxFp8 => 8,
        }
    }

    /// Elements per scale.
    pub const fn group(self) -> usize {
        match self {
            Mlx::Affine { group, .. } => group,
            Mlx::MxFp4 | Mlx::MxFp8 => 32,
            Mlx::NvFp4 => 16,
        }
    }

    /// Bytes of one scale, and of one bias.
    pub const fn scale_bytes(self) -> (usize, usize) {
        match self {
            Mlx::Affine { scale, .. } => (scale.bytes(), scale.bytes()),
            _ => (1, 0),
        }
    }

    /// The smallest float type that holds every value, short of the far ends of the exponent.
    pub const fn exact_float(self) -> FloatDtype {
        match self {
            Mlx::Affine { .. } => FloatDtype::F32,
            // At most 2 significant bits times 4.
            _ => FloatDtype::Bf16,
        }
    }

    /// The encoding whose regions these arrays are, if their scales allow it. F32 scales fit if all of them are
    /// binary16 or all bfloat16 numbers. NVFP4 fits if no scale is zero or subnormal, which the container reads
    /// differently.
    pub fn exact_encoding(self, scales: &[u8], biases: &[u8]) -> Option<Encoding> {
        match self {
            Mlx::Affine { bits, group, scale } => {
                let scale = match scale {
                    FloatDtype::Bf16 => ScaleDtype::Bf16,
                    FloatDtype::F16 => ScaleDtype::F16,
                    FloatDtype::F32 => [ScaleDtype::F16, ScaleDtype::Bf16]
                        .into_iter()
                        .find(|&dtype| all_fit(dtype, scales) && all_fit(dtype, biases))?,
                };
                Some(Encoding::Affine { bits, group, scale, symmetric: false })
            }
            Mlx::MxFp4 => Some(Encoding::Fp4(Fp4::Mx)),
            Mlx::NvFp4 => {
                scales.iter().all(|byte| matches!(byte, 0x08..=0x7e)).then_some(Encoding::Fp4(Fp4::Nv))
            }
            Mlx::MxFp8 => None,
        }
    }

    /// Decodes whole groups.
    ///
    /// # Errors
    /// If the lengths do not belong together.
    pub fn decode(self, arrays: MlxArrays<'_>, out: &mut [f32]) -> Result<(), QuantError> {
        let group = self.group();
        if !out.len().is_multiple_of(group) {
            return Err(QuantError::Elements {
                elements: out.len() as u64,
                encoding: "MLX",
                unit: group as u64,
            });
        }
        let groups = out.len() / group;
        let (scale_bytes, bias_bytes) = self.scale_bytes();
        length("codes (bytes)", arrays.codes, out.len() / 8 * self.bits() as usize)?;
        length("scales (bytes)", arrays.scales, groups * scale_bytes)?;
        length("biases (bytes)", arrays.biases, groups * bias_bytes)?;
        match self {
            Mlx::Affine { bits: 2, scale, .. } => affine::<2>(scale, group, arrays, out),
            Mlx::Affine { bits: 3, scale, .. } => affine::<3>(scale, group, arrays, out),
            Mlx::Affine { bits: 4, scale, .. } => affine::<4>(scale, group, arrays, out),
            Mlx::Affine { bits: 5, scale, .. } => affine::<5>(scale, group, arrays, out),
            Mlx::Affine { bits: 6, scale, .. } => affine::<6>(scale, group, arrays, out),
            Mlx::Affine { bits: 8, scale, .. } => affine::<8>(scale, group, arrays, out),
            Mlx::Affine { bits, .. } => Err(QuantError::Bits(bits)),
            Mlx::MxFp4 => {
                nibbles(group, arrays, out, e8m0);
                Ok(())
            }
            Mlx::NvFp4 => {
                nibbles(group, arrays, out, e4m3);
                Ok(())
            }
            Mlx::MxFp8 => {
                let groups = out.chunks_exact_mut(group).zip(arrays.codes.chunks_exact(group));
                for ((values, codes), &scale) in groups.zip(arrays.scales) {
                    let scale = e8m0(scale);
                    values.iter_mut().zip(codes).for_each(|(value, &code)| *value = e4m3(code) * scale);
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Mlx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mlx::Affine { bits, group, scale } => write!(f, "mlx {bits}-bit group {group} {scale}"),
            Mlx::MxFp4 => f.write_str("mlx mxfp4"),
            Mlx::NvFp4 => f.write_str("mlx nvfp4"),
            Mlx::MxFp8 => f.write_str("mlx mxfp8"),
        }
    }
}

fn length(what: &'static str, bytes: &[u8], expected: usize) -> Result<(), QuantError> {
    if bytes.len() == expected {
        return Ok(());
    }
    Err(QuantError::Length { what, expected: expected as u64, found: bytes.len() as u64 })
}

fn all_fit(dtype: ScaleDtype, f32s: &[u8]) -> bool {
    let mut stored = Vec::with_capacity(2);
    f32s.as_chunks::<4>().0.iter().all(|bytes| {
        stored.clear();
        let value = f32::from_le_bytes(*bytes);
        dtype.encode(value, &mut stored).to_bits() == value.to_bits()
    })
}

fn affine<const B: usize>(
    scale: FloatDtype,
    group: usize,
    arrays: MlxArrays<'_>,
    out: &mut [f32],
) -> Result<(), QuantError> {
    let groups = out.len() / group;
    let (mut scales, mut biases) = (vec![0.0; groups], vec![0.0; groups]);
    float::decode(scale, arrays.scales, &mut scales)?;
    float::decode(scale, arrays.biases, &mut biases)?;
    let mut codes = vec![0u8; group];
    let packed = arrays.codes.chunks_exact((group / 8 * B).max(1));
    let factors = scales.into_iter().zip(biases);
    for ((values, packed), (scale, bias)) in out.chunks_exact_mut(group).zip(packed).zip(factors) {
        unpack::<B>(packed, &mut codes);
        values.iter_mut().zip(&codes).for_each(|(value, &code)| *value = f32::from(code) * scale + bias);
    }
    Ok(())
}

fn nibbles(group: usize, arrays: MlxArrays<'_>, out: &mut [f32], scale: fn(u8) -> f32) {
    let groups = out.chunks_exact_mut(group).zip(arrays.codes.chunks_exact(group / 2));
    for ((values, codes), &byte) in groups.zip(arrays.scales) {
        let scale = scale(byte);
        for (pair, &code) in values.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
            *pair = [code & 15, code >> 4].map(|code| Fp4::Mx.value(code) * scale);
        }
    }
}

/// 2^(byte-127); 255 is NaN.
fn e8m0(byte: u8) -> f32 {
    if byte == u8::MAX { f32::NAN } else { Fp4::Mx.scale(byte) }
}

/// The standard's E4M3: with subnormals, 0x7f and 0xff are NaN, no infinity.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, byte & 7);
    let magnitude = match exponent {
        15 if mantissa == 7 => f32::NAN,
        0 => f32::from(mantissa) / 512.0,
        _ => f32::from_bits((u32::from(exponent) + 120) << 23 | u32::from(mantissa) << 20),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}
