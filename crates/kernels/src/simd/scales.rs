//! Scales and biases of a tile of rows, decoded and transposed so that rows are lanes.

use basert_quant::ggml::SUPER;

use super::affine::TILE_ROWS;
use super::supers::decode_block;
use crate::matrix::{Coding, Quantized, ScaleReader, Scales};
use crate::scratch::Line;
use crate::vector::Simd;

/// Groups that are decoded together.
const PANEL: usize = 8;

/// One value of all rows of a tile.
pub(crate) type Rows = Line<[f32; TILE_ROWS]>;

/// Decodes stored `s` and `b` of some groups of the given rows from group `first` on; returns the end of the groups that
/// are decoded now. Two-byte scales come in panels, those of super-blocks block by block, others all at once.
#[inline(always)]
pub(crate) fn decode_from<S: Simd>(
    simd: S,
    w: &Quantized<'_>,
    rows: &[usize; TILE_ROWS],
    first: usize,
    scales: &mut [Rows], // [groups]
    biases: &mut [Rows], // [groups]
) -> usize {
    let groups = scales.len();
    if let Coding::Super(kind) = w.coding {
        let end = first + SUPER / w.group;
        let (scales, biases) = (&mut scales[first..end], &mut biases[first..end]);
        decode_block(simd, w, kind, rows, first * w.group / SUPER, scales, biases);
        return end;
    }
    let Scales::Stored { format, scales: stored, biases: stored_biases } = w.scales else { return groups };
    let bf16 = match format.reader() {
        ScaleReader::Bf16 => true,
        ScaleReader::F16 => false,
        ScaleReader::Table(values) => {
            decode_bytes(values, stored, groups, rows, scales);
            match w.bias_factor() {
                None => decode_bytes(values, stored_biases, groups, rows, biases),
                Some(factor) => multiply(simd, factor, scales, biases),
            }
            return groups;
        }
    };
    let end = groups.min(first + PANEL);
    let (scales, biases) = (&mut scales[first..end], &mut biases[first..end]);
    decode(simd, bf16, stored, groups, rows, first, scales);
    match w.bias_factor() {
        None => decode(simd, bf16, stored_biases, groups, rows, first, biases),
        Some(factor) => multiply(simd, factor, scales, biases),
    }
    end
}

/// `biases = factor·scales`.
#[inline(always)]
fn multiply<S: Simd>(simd: S, factor: f32, scales: &[Rows], biases: &mut [Rows]) {
    for (s, b) in scales.iter().zip(biases) {
        simd.store(simd.mul(simd.splat(factor), simd.load(&s.0)), &mut b.0);
    }
}

#[inline(always)]
fn decode<S: Simd>(
    simd: S,
    bf16: bool,
    region: &[u8],
    groups: usize,
    rows: &[usize; TILE_ROWS],
    first: usize,
    out: &mut [Rows],
) {
    // The same part of the next tile's scales.
    let next = region.as_ptr().wrapping_add(2 * TILE_ROWS * (rows[0] / TILE_ROWS * groups + groups + first));
    for line in (0..2 * TILE_ROWS * PANEL).step_by(64) {
        super::prefetch(next.wrapping_add(line));
    }
    let columns = transposed(simd, region, groups, rows, first, out.len());
    for (column, out) in columns.iter().zip(out) {
        let values = if bf16 { simd.load_bf16(column) } else { simd.load_f16(column) };
        simd.store(values, &mut out.0);
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
fn transposed<S: Simd>(
    simd: S,
    region: &[u8],
    groups: usize,
    rows: &[usize; TILE_ROWS],
    first: usize,
    count: usize,
) -> [[u8; 2 * TILE_ROWS]; PANEL] {
    let mut copies = [[0u8; 2 * PANEL]; TILE_ROWS];
    let mut lines = [&[0; 2 * PANEL]; TILE_ROWS];
    if count == PANEL {
        for (line, row) in lines.iter_mut().zip(rows) {
            *line = &region[2 * (row * groups + first)..].as_chunks().0[0];
        }
    } else {
        for (copy, row) in copies.iter_mut().zip(rows) {
            copy[..2 * count].copy_from_slice(&region[2 * (row * groups + first)..][..2 * count]);
        }
        for (line, copy) in lines.iter_mut().zip(&copies) {
            *line = copy;
        }
    }
    simd.transpose(lines)
}
