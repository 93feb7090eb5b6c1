//! Packing of unsigned codes into a little-endian bit stream.
//!
//! Code `i` of `b` bits occupies bits `i·b .. i·b+b` of the stream, counted from bit 0 of byte 0. Eight codes fill
//! exactly `b` bytes for every width. The stream is byte for byte the one of MLX's packed `U32` tensors.

use crate::QuantError;

/// Bytes of `count` codes of `bits` bits, the last byte padded with zero bits; `None` if it overflows.
pub fn packed_len(bits: u32, count: usize) -> Option<usize> {
    let bits = bits as usize;
    (count / 8).checked_mul(bits)?.checked_add(((count % 8) * bits).div_ceil(8))
}

/// Appends `codes` as a stream of `bits`-bit codes; bits of a code above the width are dropped.
///
/// # Errors
/// If `bits` is not 2, 3, 4, 5, 6 or 8.
pub fn pack_codes(bits: u32, codes: &[u8], out: &mut Vec<u8>) -> Result<(), QuantError> {
    match bits {
        2 => pack::<2>(codes, out),
        3 => pack::<3>(codes, out),
        4 => pack::<4>(codes, out),
        5 => pack::<5>(codes, out),
        6 => pack::<6>(codes, out),
        8 => out.extend_from_slice(codes),
        _ => return Err(QuantError::Bits(bits)),
    }
    Ok(())
}

/// Reads `out.len()` codes of `bits` bits from the start of `packed`.
///
/// # Errors
/// If `bits` is not 2, 3, 4, 5, 6 or 8, or `packed` is not exactly [`packed_len`] bytes.
pub fn unpack_codes(bits: u32, packed: &[u8], out: &mut [u8]) -> Result<(), QuantError> {
    let expected = packed_len(bits, out.len()).unwrap_or(usize::MAX);
    if !matches!(bits, 2..=6 | 8) {
        return Err(QuantError::Bits(bits));
    }
    if packed.len() != expected {
        return Err(QuantError::Length {
            what: "packed codes (bytes)",
            expected: expected as u64,
            found: packed.len() as u64,
        });
    }
    match bits {
        2 => unpack::<2>(packed, out),
        3 => unpack::<3>(packed, out),
        4 => unpack::<4>(packed, out),
        5 => unpack::<5>(packed, out),
        6 => unpack::<6>(packed, out),
        _ => out.copy_from_slice(packed),
    }
    Ok(())
}

/// Eight codes at a time through one 64-bit word; `B` is both bits per code and bytes per eight codes.
pub(crate) fn pack<const B: usize>(codes: &[u8], out: &mut Vec<u8>) {
    let (eights, rest) = codes.as_chunks::<8>();
    out.reserve(eights.len() * B + B);
    for codes in eights {
        out.extend_from_slice(&word::<B>(codes).to_le_bytes()[..B]);
    }
    let tail = (rest.len() * B).div_ceil(8);
    out.extend_from_slice(&word::<B>(rest).to_le_bytes()[..tail]);
}

fn word<const B: usize>(codes: &[u8]) -> u64 {
    let mask = (1u64 << B) - 1;
    codes.iter().enumerate().fold(0, |word, (i, &code)| word | (u64::from(code) & mask) << (i * B))
}

/// The inverse of [`pack`], for a `packed` of the right length.
#[inline(always)]
pub(crate) fn unpack<const B: usize>(packed: &[u8], out: &mut [u8]) {
    let (eights, rest) = out.as_chunks_mut::<8>();
    let (whole, tail) = packed.split_at(eights.len() * B);
    for (codes, unit) in eights.iter_mut().zip(whole.as_chunks::<B>().0) {
        spread::<B>(unit, codes);
    }
    spread::<B>(tail, rest);
}

/// Codes of at most `B` bytes.
#[inline(always)]
fn spread<const B: usize>(bytes: &[u8], codes: &mut [u8]) {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(word);
    let mask = (1u64 << B) - 1;
    for (i, code) in codes.iter_mut().enumerate() {
        *code = (word >> (i * B) & mask) as u8;
    }
}
