//! Plain floats as little-endian bytes of any alignment.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::{FloatDtype, QuantError};

/// Elements converted at a time through an aligned buffer on the stack.
const CHUNK: usize = 1024;

/// Widens `out.len()` elements to f32; exact for every value (a signalling NaN may come out quiet).
///
/// # Errors
/// If `bytes` is not exactly `out.len()` elements long.
pub fn decode(dtype: FloatDtype, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    if Some(bytes.len()) != out.len().checked_mul(dtype.bytes()) {
        return Err(QuantError::Length {
            what: "float payload (bytes)",
            expected: (out.len() as u64).saturating_mul(dtype.bytes() as u64),
            found: bytes.len() as u64,
        });
    }
    match dtype {
        FloatDtype::F32 => {
            out.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(o, b)| *o = f32::from_le_bytes(*b));
        }
        FloatDtype::Bf16 => {
            out.iter_mut()
                .zip(bytes.as_chunks::<2>().0)
                .for_each(|(o, b)| *o = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16));
        }
        FloatDtype::F16 => {
            // `half` converts slices with the hardware instruction where there is one.
            let mut halves = [f16::ZERO; CHUNK];
            for (out, bytes) in out.chunks_mut(CHUNK).zip(bytes.chunks(2 * CHUNK)) {
                let halves = &mut halves[..out.len()];
                halves
                    .iter_mut()
                    .zip(bytes.as_chunks::<2>().0)
                    .for_each(|(h, b)| *h = f16::from_le_bytes(*b));
                halves.convert_to_f32_slice(out);
            }
        }
    }
    Ok(())
}

/// Appends `values` as `dtype`, rounding to nearest even. Magnitudes beyond the type become infinity and those
/// below its subnormals zero, as IEEE 754 has it; [`crate::Encoding::encode`] is the variant that refuses.
pub fn encode(dtype: FloatDtype, values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + values.len() * dtype.bytes(), 0);
    let bytes = &mut out[start..];
    match dtype {
        FloatDtype::F32 => {
            bytes.as_chunks_mut::<4>().0.iter_mut().zip(values).for_each(|(b, v)| *b = v.to_le_bytes());
        }
        FloatDtype::Bf16 => {
            let pairs = bytes.as_chunks_mut::<2>().0;
            pairs.iter_mut().zip(values).for_each(|(b, v)| *b = bf16::from_f32(*v).to_le_bytes());
        }
        FloatDtype::F16 => {
            let mut halves = [f16::ZERO; CHUNK];
            for (bytes, values) in bytes.chunks_mut(2 * CHUNK).zip(values.chunks(CHUNK)) {
                let halves = &mut halves[..values.len()];
                halves.convert_from_f32_slice(values);
                bytes.as_chunks_mut::<2>().0.iter_mut().zip(halves).for_each(|(b, h)| *b = h.to_le_bytes());
            }
        }
    }
}

/// The largest finite magnitude of `dtype`, plus half a step: from here on values round to infinity.
pub(crate) fn overflow_bound(dtype: FloatDtype) -> f32 {
    match dtype {
        FloatDtype::F32 => f32::INFINITY,
        FloatDtype::F16 => 65520.0,
        // 0x7f7f plus half of its last place, halfway to 2^128.
        FloatDtype::Bf16 => f32::from_bits(0x7f7f_8000),
    }
}
