//! ggml blocks that an encoding of the container holds exactly, and the rearrangement of their bytes, both ways.
//!
//! | blocks | encoding |
//! |---|---|
//! | Q4_0, Q5_0, Q8_0 | symmetric affine codes with f16 scales in groups of 32 |
//! | Q4_1, Q5_1 | affine codes with f16 scales and biases in groups of 32 |
//! | MXFP4 | MXFP4 |
//! | Q4_K, Q5_K, Q6_K | themselves |
//!
//! The symmetric form of Q4_0 and its relatives has the very formula of ggml, `(q - 2^(bits-1))·d`. With a bias
//! instead, a large `d` would overflow it. No other type fits: Q2_K, Q3_K and Q6_K have groups of 16, Q4_K and Q5_K
//! scales of 17 bits, IQ types codebooks.

use super::GgmlType;
use crate::pack::{pack, unpack};
use crate::{Encoding, Fp4, QuantError, ScaleDtype};

impl GgmlType {
    /// The encoding that holds every value of this type, if there is one. For plain floats that is themselves.
    pub fn exact_encoding(self) -> Option<Encoding> {
        let affine =
            |bits, symmetric| Some(Encoding::Affine { bits, group: 32, scale: ScaleDtype::F16, symmetric });
        match self {
            GgmlType::Q4_0 => affine(4, true),
            GgmlType::Q5_0 => affine(5, true),
            GgmlType::Q8_0 => affine(8, true),
            GgmlType::Q4_1 => affine(4, false),
            GgmlType::Q5_1 => affine(5, false),
            GgmlType::MxFp4 => Some(Encoding::Fp4(Fp4::Mx)),
            GgmlType::Q4K | GgmlType::Q5K | GgmlType::Q6K => Some(Encoding::Super(self)),
            other => other.float().map(Encoding::Float),
        }
    }
}

/// Rearranges whole blocks into the regions of [`GgmlType::exact_encoding`]: `codes`, `scales` and `biases` are the
/// parts of the regions that belong to `bytes`.
///
/// # Errors
/// If the type has no exact encoding, or a length is not that of the blocks.
pub fn repack(
    ty: GgmlType,
    bytes: &[u8],
    codes: &mut [u8],
    scales: &mut [u8],
    biases: &mut [u8],
) -> Result<(), QuantError> {
    let Some(encoding) = ty.exact_encoding() else { return Err(QuantError::NotEncodable(ty.name())) };
    let blocks = bytes.len() / ty.block_bytes();
    let regions = encoding.regions((blocks * ty.block_size()) as u64)?;
    let lengths = [
        ("blocks (bytes)", bytes.len(), (blocks * ty.block_bytes()) as u64),
        ("codes (bytes)", codes.len(), regions.codes),
        ("scales (bytes)", scales.len(), regions.scales),
        ("biases (bytes)", biases.len(), regions.biases),
    ];
    if let Some((what, found, expected)) = lengths.into_iter().find(|&(_, n, expected)| n as u64 != expected)
    {
        return Err(QuantError::Length { what, expected, found: found as u64 });
    }
    match ty {
        GgmlType::Q4_0 => affine::<4, 18, 2>(bytes, codes, scales, biases, |block| nibbles(&block[2..])),
        GgmlType::Q4_1 => affine::<4, 20, 4>(bytes, codes, scales, biases, |block| nibbles(&block[4..])),
        GgmlType::Q5_0 => {
            affine::<5, 22, 2>(bytes, codes, scales, biases, |block| fives(&block[2..6], &block[6..]));
        }
        GgmlType::Q5_1 => {
            affine::<5, 24, 4>(bytes, codes, scales, biases, |block| fives(&block[4..8], &block[8..]));
        }
        // Two's complement to offset binary.
        GgmlType::Q8_0 => affine::<8, 34, 2>(bytes, codes, scales, biases, |block| {
            std::array::from_fn(|i| block[2 + i] ^ 0x80)
        }),
        GgmlType::MxFp4 => {
            for (i, block) in bytes.as_chunks::<17>().0.iter().enumerate() {
                scales[i] = block[0];
                store::<4>(&nibbles(&block[1..]), &mut codes[16 * i..16 * i + 16]);
            }
        }
        _ => codes.copy_from_slice(bytes),
    }
    Ok(())
}

/// The inverse of [`repack`]: appends the blocks whose regions these are. All three regions together decide the number of
/// blocks.
///
/// # Errors
/// If the type has no exact encoding, or a length is not that of the others.
pub fn assemble(
    ty: GgmlType,
    codes: &[u8],
    scales: &[u8],
    biases: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), QuantError> {
    let Some(encoding) = ty.exact_encoding() else { return Err(QuantError::NotEncodable(ty.name())) };
    let per_block = encoding.regions(ty.block_size() as u64)?;
    let blocks = codes.len() as u64 / per_block.codes;
    let lengths = [
        ("codes (bytes)", codes.len(), blocks * per_block.codes),
        ("scales (bytes)", scales.len(), blocks * per_block.scales),
        ("biases (bytes)", biases.len(), blocks * per_block.biases),
    ];
    if let Some((what, found, expected)) = lengths.into_iter().find(|&(_, n, expected)| n as u64 != expected)
    {
        return Err(QuantError::Length { what, expected, found: found as u64 });
    }
    out.reserve(blocks as usize * ty.block_bytes());
    match ty {
        GgmlType::Q4_0 => each_block::<4>(codes, scales, &[], 2, out, put_nibbles),
        GgmlType::Q4_1 => each_block::<4>(codes, scales, biases, 2, out, put_nibbles),
        GgmlType::Q5_0 => each_block::<5>(codes, scales, &[], 2, out, put_fives),
        GgmlType::Q5_1 => each_block::<5>(codes, scales, biases, 2, out, put_fives),
        GgmlType::Q8_0 => {
            each_block::<8>(codes, scales, &[], 2, out, |codes, out| {
                out.extend(codes.map(|code| code ^ 0x80))
            });
        }
        GgmlType::MxFp4 => each_block::<4>(codes, scales, &[], 1, out, put_nibbles),
        _ => out.extend_from_slice(codes),
    }
    Ok(())
}

/// For each block: scale and bias of `size` bytes, then what `put` makes of its 32 codes of `B` bits.
fn each_block<const B: usize>(
    codes: &[u8],
    scales: &[u8],
    biases: &[u8],
    size: usize,
    out: &mut Vec<u8>,
    put: impl Fn(&[u8; 32], &mut Vec<u8>),
) {
    let mut unpacked = [0; 32];
    let mut biases = biases.chunks_exact(size);
    for (codes, scale) in codes.chunks_exact(4 * B).zip(scales.chunks_exact(size)) {
        out.extend_from_slice(scale);
        out.extend_from_slice(biases.next().unwrap_or_default());
        unpack::<B>(codes, &mut unpacked);
        put(&unpacked, out);
    }
}

/// The inverse of [`nibbles`].
fn put_nibbles(codes: &[u8; 32], out: &mut Vec<u8>) {
    let bytes: [u8; 16] = std::array::from_fn(|i| codes[i] & 15 | codes[i + 16] << 4);
    out.extend_from_slice(&bytes);
}

/// The inverse of [`fives`].
fn put_fives(codes: &[u8; 32], out: &mut Vec<u8>) {
    let high = (0..32).fold(0u32, |high, i| high | u32::from(codes[i] >> 4) << i);
    out.extend_from_slice(&high.to_le_bytes());
    put_nibbles(codes, out);
}

/// Blocks of `HALVES` bytes of d (and m), then what `read` makes 32 codes of `B` bits from.
fn affine<const B: usize, const BYTES: usize, const HALVES: usize>(
    bytes: &[u8],
    codes: &mut [u8],
    scales: &mut [u8],
    biases: &mut [u8],
    read: impl Fn(&[u8; BYTES]) -> [u8; 32],
) {
    for (i, block) in bytes.as_chunks::<BYTES>().0.iter().enumerate() {
        scales[2 * i..2 * i + 2].copy_from_slice(&block[..2]);
        if HALVES == 4 {
            biases[2 * i..2 * i + 2].copy_from_slice(&block[2..4]);
        }
        store::<B>(&read(block), &mut codes[4 * B * i..4 * B * (i + 1)]);
    }
}

/// 32 codes of `B` bits as a stream of `4·B` bytes.
fn store<const B: usize>(codes: &[u8; 32], out: &mut [u8]) {
    let mut packed = Vec::with_capacity(4 * B + B);
    pack::<B>(codes, &mut packed);
    out.copy_from_slice(&packed);
}

/// Low nibbles, then high nibbles of 16 bytes.
fn nibbles(qs: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

/// [`nibbles`] with the fifth bit of element `i` from bit `i` of `qh`.
fn fives(qh: &[u8], qs: &[u8]) -> [u8; 32] {
    let low = nibbles(qs);
    std::array::from_fn(|i| low[i] | (qh[i / 8] >> (i % 8) & 1) << 4)
}
