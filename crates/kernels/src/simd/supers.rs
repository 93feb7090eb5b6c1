//! K-quant super-blocks of 256 columns, read in place.
//!
//! Layouts as in ggml-common.h: a block of Q4_K or Q5_K begins with `d` and `dmin` (binary16) and twelve bytes of 6-bit
//! scales and minima; then come, for Q5_K, 32 bytes of fifth bits, and 32 bytes for every 64 columns, whose low nibbles are
//! the first 32 codes. Q6_K has 64 bytes of low nibbles and 32 of upper bits for every 128 columns, then sixteen scales and
//! `d`.

use basert_quant::ggml::{GgmlType, SUPER};

use super::affine::TILE_ROWS;
use super::scales::Rows;
use crate::matrix::Quantized;
use crate::vector::Simd;

/// Parts of a super-block that are unpacked at a time, of 64 columns each.
pub(crate) const PARTS: usize = SUPER / 64;

/// The codes of part `part` of a Q4_K block.
#[inline(always)]
pub(crate) fn codes4<S: Simd>(s: S, block: &[u8; 144], part: usize) -> S::Bytes {
    let (_, nibbles) = block.split_at(16);
    s.fields(s.twice(&nibbles.as_chunks().0[part]), [0, 4], 15)
}

/// The codes of part `part` of a Q5_K block.
#[inline(always)]
pub(crate) fn codes5<S: Simd>(s: S, block: &[u8; 176], part: usize) -> S::Bytes {
    let (_, bits) = block.split_at(16);
    let lines = bits.as_chunks().0;
    let (first, fifth) = (2 * part as u32, s.twice(&lines[0]));
    s.join(s.fields(s.twice(&lines[1 + part]), [0, 4], 15), s.fields(fifth, [first, first + 1], 1))
}

/// The codes of part `part` of a Q6_K block.
#[inline(always)]
pub(crate) fn codes6<S: Simd>(s: S, block: &[u8; 210], part: usize) -> S::Bytes {
    let (nibbles, rest) = block.split_at(128);
    let shift = 4 * (part % 2) as u32;
    let low = s.fields(s.bytes(&nibbles.as_chunks().0[part / 2]), [shift; 2], 15);
    s.join(low, s.fields(s.twice(&rest.as_chunks().0[part / 2]), [shift, shift + 2], 3))
}

/// The codes of part `part` of a block of any of them.
#[inline(always)]
pub(crate) fn codes<S: Simd>(s: S, kind: GgmlType, block: &[u8], part: usize) -> S::Bytes {
    match kind {
        GgmlType::Q4K => codes4(s, &block.as_chunks().0[0], part),
        GgmlType::Q5K => codes5(s, &block.as_chunks().0[0], part),
        _ => codes6(s, &block.as_chunks().0[0], part),
    }
}

/// Decodes `s` and `b` of the groups of super-block `index` of the given rows.
#[inline(always)]
pub(crate) fn decode_block<S: Simd>(
    s: S,
    w: &Quantized<'_>,
    kind: GgmlType,
    rows: &[usize; TILE_ROWS],
    index: usize,
    scales: &mut [Rows], // [groups of a block]
    biases: &mut [Rows], // [groups of a block]
) {
    let (stride, bytes) = (w.row_bytes(), kind.block_bytes());
    let blocks = rows.map(|row| &w.codes[row * stride + index * bytes..][..bytes]);
    let mut packed = [[0; TILE_ROWS]; TILE_ROWS];
    if kind == GgmlType::Q6K {
        for (packed, block) in packed.iter_mut().zip(blocks) {
            *packed = block[192..].as_chunks().0[0];
        }
        let d = halves(s, &blocks, 208);
        for (value, (scale, bias)) in by_value(s, &packed).iter().zip(scales.iter_mut().zip(biases)) {
            let factor = s.mul(d, s.load_i8(value));
            s.store(factor, &mut scale.0);
            s.store(s.mul(s.splat(-32.0), factor), &mut bias.0);
        }
        return;
    }
    for (packed, block) in packed.iter_mut().zip(blocks) {
        *packed = scales_and_minima(&block[4..].as_chunks().0[0]);
    }
    let (d, dmin, values) = (halves(s, &blocks, 0), halves(s, &blocks, 2), by_value(s, &packed));
    let (factors, minima) = values.split_at(TILE_ROWS / 2);
    for (value, scale) in factors.iter().zip(scales) {
        s.store(s.mul(d, s.load_i8(value)), &mut scale.0);
    }
    for (value, bias) in minima.iter().zip(biases) {
        s.store(s.neg(s.mul(dmin, s.load_i8(value))), &mut bias.0);
    }
}

/// The binary16 at byte `at` of every block.
#[inline(always)]
fn halves<S: Simd>(s: S, blocks: &[&[u8]; TILE_ROWS], at: usize) -> S::F {
    let mut bytes = [0; 2 * TILE_ROWS];
    for (half, block) in bytes.as_chunks_mut().0.iter_mut().zip(blocks) {
        *half = [block[at], block[at + 1]];
    }
    s.load_f16(&bytes)
}

/// Eight 6-bit scales and eight minima, one to a byte: the first four of either are low bits of a byte, the others are a
/// nibble and the two bits above one of the former.
#[inline(always)]
fn scales_and_minima(packed: &[u8; 12]) -> [u8; TILE_ROWS] {
    let words = packed.as_chunks().0;
    let [a, b, c] = [0, 1, 2].map(|i| u32::from_le_bytes(words[i]));
    let (low, nibbles, pairs) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x3030_3030);
    let values = [a & low, c & nibbles | a >> 2 & pairs, b & low, c >> 4 & nibbles | b >> 2 & pairs];
    let mut out = [0; TILE_ROWS];
    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *out = value.to_le_bytes();
    }
    out
}

/// Sixteen bytes of sixteen rows, transposed.
#[inline(always)]
fn by_value<S: Simd>(s: S, rows: &[[u8; TILE_ROWS]; TILE_ROWS]) -> [[u8; TILE_ROWS]; TILE_ROWS] {
    let mut out = [[0; TILE_ROWS]; TILE_ROWS];
    for (pair, out) in s.transpose(rows.each_ref()).iter().zip(out.as_chunks_mut::<2>().0) {
        for (row, values) in pair.as_chunks::<2>().0.iter().enumerate() {
            (out[0][row], out[1][row]) = (values[0], values[1]);
        }
    }
    out
}
