//! ggml tensor types: numbers, names, block sizes, and decoding of the supported ones.
//!
//! Sources: ggml's `ggml.h` (type numbers) and `ggml-common.h` (block structs).

mod blocks;
mod exact;
mod parts;

use std::fmt;

use crate::{FloatDtype, QuantError, float};
pub use exact::repack;
pub use parts::{SUPER, super_codes, super_group, super_scales};

/// A ggml tensor type. All assigned types are here, so that files can be sized and listed; [`decode`] covers those
/// for which [`GgmlType::is_supported`] holds.
#[allow(missing_docs)] // the variants are ggml's own names
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum GgmlType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2K = 10,
    Q3K = 11,
    Q4K = 12,
    Q5K = 13,
    Q6K = 14,
    Q8K = 15,
    Iq2Xxs = 16,
    Iq2Xs = 17,
    Iq3Xxs = 18,
    Iq1S = 19,
    Iq4Nl = 20,
    Iq3S = 21,
    Iq2S = 22,
    Iq4Xs = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    Iq1M = 29,
    BF16 = 30,
    Tq1_0 = 34,
    Tq2_0 = 35,
    MxFp4 = 39,
    NvFp4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

impl GgmlType {
    /// Every assigned type in order of its number.
    pub const ALL: [GgmlType; 35] = [
        GgmlType::F32,
        GgmlType::F16,
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::Q5_0,
        GgmlType::Q5_1,
        GgmlType::Q8_0,
        GgmlType::Q8_1,
        GgmlType::Q2K,
        GgmlType::Q3K,
        GgmlType::Q4K,
        GgmlType::Q5K,
        GgmlType::Q6K,
        GgmlType::Q8K,
        GgmlType::Iq2Xxs,
        GgmlType::Iq2Xs,
        GgmlType::Iq3Xxs,
        GgmlType::Iq1S,
        GgmlType::Iq4Nl,
        GgmlType::Iq3S,
        GgmlType::Iq2S,
        GgmlType::Iq4Xs,
        GgmlType::I8,
        GgmlType::I16,
        GgmlType::I32,
        GgmlType::I64,
        GgmlType::F64,
        GgmlType::Iq1M,
        GgmlType::BF16,
        GgmlType::Tq1_0,
        GgmlType::Tq2_0,
        GgmlType::MxFp4,
        GgmlType::NvFp4,
        GgmlType::Q1_0,
        GgmlType::Q2_0,
    ];

    /// The type with number `id`, whether or not [`decode`] supports it.
    ///
    /// # Errors
    /// If the number was never assigned or has been withdrawn.
    pub fn from_id(id: u32) -> Result<GgmlType, QuantError> {
        GgmlType::ALL.into_iter().find(|ty| ty.id() == id).ok_or(QuantError::UnknownGgmlType {
            id,
            state: match id {
                4 => "the withdrawn Q4_2",
                5 => "the withdrawn Q4_3",
                31 => "the withdrawn Q4_0_4_4 (a repacked Q4_0)",
                32 => "the withdrawn Q4_0_4_8 (a repacked Q4_0)",
                33 => "the withdrawn Q4_0_8_8 (a repacked Q4_0)",
                36 => "the withdrawn IQ4_NL_4_4 (a repacked IQ4_NL)",
                37 => "the withdrawn IQ4_NL_4_8 (a repacked IQ4_NL)",
                38 => "the withdrawn IQ4_NL_8_8 (a repacked IQ4_NL)",
                _ => "unknown",
            },
        })
    }

    /// The number in GGUF files.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// ggml's name, upper case.
    pub const fn name(self) -> &'static str {
        self.layout().0
    }

    /// Elements of one block; rows are whole blocks.
    pub const fn block_size(self) -> usize {
        self.layout().1
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.layout().2
    }

    /// The plain float type, if it is one.
    pub const fn float(self) -> Option<FloatDtype> {
        match self {
            GgmlType::F32 => Some(FloatDtype::F32),
            GgmlType::F16 => Some(FloatDtype::F16),
            GgmlType::BF16 => Some(FloatDtype::Bf16),
            _ => None,
        }
    }

    /// Whether [`decode`] reads this type.
    pub const fn is_supported(self) -> bool {
        use GgmlType::*;
        matches!(
            self,
            F32 | F16
                | BF16
                | Q4_0
                | Q4_1
                | Q5_0
                | Q5_1
                | Q8_0
                | Q2K
                | Q3K
                | Q4K
                | Q5K
                | Q6K
                | Iq4Nl
                | Iq4Xs
                | MxFp4
        )
    }

    /// Name, elements and bytes of a block.
    const fn layout(self) -> (&'static str, usize, usize) {
        match self {
            GgmlType::F32 => ("F32", 1, 4),
            GgmlType::F16 => ("F16", 1, 2),
            GgmlType::BF16 => ("BF16", 1, 2),
            GgmlType::F64 => ("F64", 1, 8),
            GgmlType::I8 => ("I8", 1, 1),
            GgmlType::I16 => ("I16", 1, 2),
            GgmlType::I32 => ("I32", 1, 4),
            GgmlType::I64 => ("I64", 1, 8),
            GgmlType::Q4_0 => ("Q4_0", 32, 18),
            GgmlType::Q4_1 => ("Q4_1", 32, 20),
            GgmlType::Q5_0 => ("Q5_0", 32, 22),
            GgmlType::Q5_1 => ("Q5_1", 32, 24),
            GgmlType::Q8_0 => ("Q8_0", 32, 34),
            GgmlType::Q8_1 => ("Q8_1", 32, 36),
            GgmlType::Q1_0 => ("Q1_0", 128, 18),
            GgmlType::Q2_0 => ("Q2_0", 64, 18),
            GgmlType::Q2K => ("Q2_K", 256, 84),
            GgmlType::Q3K => ("Q3_K", 256, 110),
            GgmlType::Q4K => ("Q4_K", 256, 144),
            GgmlType::Q5K => ("Q5_K", 256, 176),
            GgmlType::Q6K => ("Q6_K", 256, 210),
            GgmlType::Q8K => ("Q8_K", 256, 292),
            GgmlType::Iq1S => ("IQ1_S", 256, 50),
            GgmlType::Iq1M => ("IQ1_M", 256, 56),
            GgmlType::Iq2Xxs => ("IQ2_XXS", 256, 66),
            GgmlType::Iq2Xs => ("IQ2_XS", 256, 74),
            GgmlType::Iq2S => ("IQ2_S", 256, 82),
            GgmlType::Iq3Xxs => ("IQ3_XXS", 256, 98),
            GgmlType::Iq3S => ("IQ3_S", 256, 110),
            GgmlType::Iq4Nl => ("IQ4_NL", 32, 18),
            GgmlType::Iq4Xs => ("IQ4_XS", 256, 136),
            GgmlType::Tq1_0 => ("TQ1_0", 256, 54),
            GgmlType::Tq2_0 => ("TQ2_0", 256, 66),
            GgmlType::MxFp4 => ("MXFP4", 32, 17),
            GgmlType::NvFp4 => ("NVFP4", 64, 36),
        }
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Decodes whole blocks: `bytes` holds exactly the blocks of `out`.
///
/// # Errors
/// If the type is not supported, `out` is not whole blocks, or `bytes` has another length than they take.
pub fn decode(ty: GgmlType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let block = ty.block_size();
    if !out.len().is_multiple_of(block) {
        return Err(QuantError::Elements {
            elements: out.len() as u64,
            encoding: ty.name(),
            unit: block as u64,
        });
    }
    let expected = (out.len() / block) as u64 * ty.block_bytes() as u64;
    if bytes.len() as u64 != expected {
        return Err(QuantError::Length { what: "blocks (bytes)", expected, found: bytes.len() as u64 });
    }
    if let Some(dtype) = ty.float() {
        return float::decode(dtype, bytes, out);
    }
    match ty {
        GgmlType::Q4_0 => each_block(bytes, out, blocks::q4_0),
        GgmlType::Q4_1 => each_block(bytes, out, blocks::q4_1),
        GgmlType::Q5_0 => each_block(bytes, out, blocks::q5_0),
        GgmlType::Q5_1 => each_block(bytes, out, blocks::q5_1),
        GgmlType::Q8_0 => each_block(bytes, out, blocks::q8_0),
        GgmlType::Q2K => each_block(bytes, out, blocks::q2_k),
        GgmlType::Q3K => each_block(bytes, out, blocks::q3_k),
        GgmlType::Q4K => each_block(bytes, out, blocks::q4_k),
        GgmlType::Q5K => each_block(bytes, out, blocks::q5_k),
        GgmlType::Q6K => each_block(bytes, out, blocks::q6_k),
        GgmlType::Iq4Nl => each_block(bytes, out, blocks::iq4_nl),
        GgmlType::Iq4Xs => each_block(bytes, out, blocks::iq4_xs),
        GgmlType::MxFp4 => each_block(bytes, out, blocks::mxfp4),
        _ => return Err(QuantError::UnsupportedGgmlType(ty.name())),
    }
    Ok(())
}

/// Decodes elements `first..first + out.len()` of a tensor of whole blocks; the caller has checked the range.
pub(crate) fn decode_range(
    ty: GgmlType,
    bytes: &[u8],
    first: usize,
    out: &mut [f32],
) -> Result<(), QuantError> {
    let (block, size) = (ty.block_size(), ty.block_bytes());
    let (skip, index) = (first % block, first / block);
    let head_len = if skip == 0 { 0 } else { (block - skip).min(out.len()) };
    let (head, rest) = out.split_at_mut(head_len);
    let whole = rest.len() / block;
    let (body, tail) = rest.split_at_mut(whole * block);
    let mut scratch = vec![0.0; if head.is_empty() && tail.is_empty() { 0 } else { block }];
    let mut at = index * size;
    if !head.is_empty() {
        decode(ty, &bytes[at..at + size], &mut scratch)?;
        head.copy_from_slice(&scratch[skip..skip + head_len]);
        at += size;
    }
    decode(ty, &bytes[at..at + whole * size], body)?;
    at += whole * size;
    if !tail.is_empty() {
        decode(ty, &bytes[at..at + size], &mut scratch)?;
        tail.copy_from_slice(&scratch[..tail.len()]);
    }
    Ok(())
}

/// Runs a block decoder over matching blocks of bytes and values.
fn each_block<const BYTES: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: fn(&[u8; BYTES], &mut [f32; N]),
) {
    for (block, values) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<N>().0) {
        decode(block, values);
    }
}
