//! Scales and biases of a tile of rows, decoded and transposed so that rows are lanes.

use basert_quant::ggml::{SUPER, super_scales};

use super::affine::TILE_ROWS;
use crate::matrix::{Coding, Quantized, ScaleFormat, ScaleReader, Scales};
use crate::scratch::Line;
use crate::vector::Simd;

/// Groups that are decoded together.
const PANEL: usize = 8;

/// One value of all rows of a tile.
pub(crate) type Rows = Line<[f32; TILE_ROWS]>;

/// Decodes `s` and `b` of all groups of the given rows.
#[inline(always)]
pub(crate) fn decode_scales<S: Simd>(
    simd: S,
    w: &Quantized<'_>,
    rows: &[usize; TILE_ROWS],
    scales: &mut [Rows], // [groups]
    biases: &mut [Rows], // [groups]
) {
    let (format, regions) = match w.scales {
        Scales::Stored { format, scales, biases } => (format, [scales, biases]),
        Scales::InBlocks => return from_blocks(w, rows, scales, biases),
    };
    decode(simd, w, format, regions[0], rows, scales);
    match w.bias_factor() {
        None => decode(simd, w, format, regions[1], rows, biases),
        Some(factor) => {
            let factor = simd.splat(factor);
            for (s, b) in scales.iter().zip(biases) {
                simd.store(simd.mul(factor, simd.load(&s.0)), &mut b.0);
            }
        }
    }
}

#[inline(always)]
fn decode<S: Simd>(
    simd: S,
    w: &Quantized<'_>,
    format: ScaleFormat,
    region: &[u8],
    rows: &[usize; TILE_ROWS],
    out: &mut [Rows],
) {
    let bf16 = match format.reader() {
        ScaleReader::Bf16 => true,
        ScaleReader::F16 => false,
        ScaleReader::Table(values) => return decode_bytes(values, region, w.groups(), rows, out),
    };
    for (panel, out) in out.chunks_mut(PANEL).enumerate() {
        let columns = transposed(region, w.groups(), rows, panel * PANEL, out.len());
        for (column, out) in columns.iter().zip(out) {
            let values = if bf16 { simd.load_bf16(column) } else { simd.load_f16(column) };
            simd.store(values, &mut out.0);
        }
    }
}

/// Scales and biases inside super-blocks, one block at a time.
fn from_blocks(w: &Quantized<'_>, rows: &[usize; TILE_ROWS], scales: &mut [Rows], biases: &mut [Rows]) {
    let Coding::Super(kind) = w.coding else { return };
    let per_block = SUPER / w.group;
    for (lane, row) in rows.iter().enumerate() {
        let blocks = scales.chunks_exact_mut(per_block).zip(biases.chunks_exact_mut(per_block));
        for (index, (scales, biases)) in blocks.enumerate() {
            let (mut s, mut b) = ([0.0; 16], [0.0; 16]);
            super_scales(kind, w.super_block(*row, index), &mut s, &mut b);
            for (group, (scales, biases)) in scales.iter_mut().zip(biases).enumerate() {
                (scales.0[lane], biases.0[lane]) = (s[group], b[group]);
            }
        }
    }
}

/// One-byte scales, one at a time.
fn decode_bytes(
    values: &[f32; 256],
    region: &[u8],
    groups: usize,
    rows: &[usize; TILE_ROWS],
    out: &mut [Rows],
) {
    for (lane, row) in rows.iter().enumerate() {
        for (out, byte) in out.iter_mut().zip(&region[row * groups..][..groups]) {
            out.0[lane] = values[usize::from(*byte)];
        }
    }
}

/// Two-byte scales of `count` groups: row r's scale of a group is the r-th pair of bytes of the group's column.
#[inline(always)]
fn transposed(
    region: &[u8],
    groups: usize,
    rows: &[usize; TILE_ROWS],
    first: usize,
    count: usize,
) -> [[u8; 2 * TILE_ROWS]; PANEL] {
    let mut lines = [[0u8; 2 * PANEL]; TILE_ROWS];
    for (line, row) in lines.iter_mut().zip(rows) {
        let start = 2 * (row * groups + first);
        if count == PANEL {
            // A length that the compiler knows is one load.
            *line = region[start..].as_chunks().0[0];
        } else {
            line[..2 * count].copy_from_slice(&region[start..][..2 * count]);
        }
    }
    transpose(&lines)
}

/// Transposes 16 rows of 8 two-byte values.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transpose(lines: &[[u8; 2 * PANEL]; TILE_ROWS]) -> [[u8; 2 * TILE_ROWS]; PANEL] {
    use std::arch::x86_64::*;
    let mut out = [[0; 2 * TILE_ROWS]; PANEL];
    for half in 0..2 {
        // SAFETY: SSE2 is part of x86-64; every load reads one 16-byte line and every store writes one half of a
        // 32-byte column.
        unsafe {
            let r: [__m128i; 8] =
                std::array::from_fn(|i| _mm_loadu_si128(lines[8 * half + i].as_ptr().cast()));
            // Pairs of rows, then fours, then eights, interleaved value by value.
            let a: [__m128i; 8] = [
                _mm_unpacklo_epi16(r[0], r[1]),
                _mm_unpackhi_epi16(r[0], r[1]),
                _mm_unpacklo_epi16(r[2], r[3]),
                _mm_unpackhi_epi16(r[2], r[3]),
                _mm_unpacklo_epi16(r[4], r[5]),
                _mm_unpackhi_epi16(r[4], r[5]),
                _mm_unpacklo_epi16(r[6], r[7]),
                _mm_unpackhi_epi16(r[6], r[7]),
            ];
            for part in 0..2 {
                let fours = [
                    _mm_unpacklo_epi32(a[part], a[2 + part]),
                    _mm_unpackhi_epi32(a[part], a[2 + part]),
                    _mm_unpacklo_epi32(a[4 + part], a[6 + part]),
                    _mm_unpackhi_epi32(a[4 + part], a[6 + part]),
                ];
                let columns = [
                    _mm_unpacklo_epi64(fours[0], fours[2]),
                    _mm_unpackhi_epi64(fours[0], fours[2]),
                    _mm_unpacklo_epi64(fours[1], fours[3]),
                    _mm_unpackhi_epi64(fours[1], fours[3]),
                ];
                for (i, column) in columns.into_iter().enumerate() {
                    _mm_storeu_si128(out[4 * part + i].as_mut_ptr().add(16 * half).cast(), column);
                }
            }
        }
    }
    out
}

/// Transposes 16 rows of 8 two-byte values.
#[cfg(not(target_arch = "x86_64"))]
fn transpose(lines: &[[u8; 2 * PANEL]; TILE_ROWS]) -> [[u8; 2 * TILE_ROWS]; PANEL] {
    std::array::from_fn(|group| std::array::from_fn(|i| lines[i / 2][2 * group + i % 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_lanes() {
        let lines = std::array::from_fn(|row| std::array::from_fn(|i| (16 * row + i) as u8));
        let columns = transpose(&lines);
        for (group, column) in columns.iter().enumerate() {
            for row in 0..TILE_ROWS {
                assert_eq!(column[2 * row..][..2], lines[row][2 * group..][..2]);
            }
        }
    }
}
