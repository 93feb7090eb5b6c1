//! Linear layers with float weights, and decoding of single rows.

use basert_quant::{FloatDtype, GgmlType};
use half::{bf16, f16};

use super::affine::unpack_row;
use super::sum::Lanes;
use crate::matrix::{Coding, Matrix, Quantized, Weights};
use crate::scratch::{Local, grown};
use crate::shared::ColumnBlock;

/// `y = W·x` for some rows of a float matrix and all tokens.
pub(crate) struct FloatLinear<'a> {
    pub dtype: FloatDtype,
    /// Exactly the rows of this piece of work.
    pub data: &'a [u8], // [rows, cols]
    pub cols: usize,
    pub x: &'a [f32],              // [tokens, cols]
    pub out: ColumnBlock<'a, f32>, // [tokens, rows]
}

/// Element `index` of a float region.
#[inline(always)]
pub(crate) fn float_at(dtype: FloatDtype, data: &[u8], index: usize) -> f32 {
    match dtype {
        FloatDtype::F32 => f32::from_le_bytes(data.as_chunks().0[index]),
        FloatDtype::F16 => f16::from_le_bytes(data.as_chunks().0[index]).to_f32(),
        FloatDtype::Bf16 => bf16::from_le_bytes(data.as_chunks().0[index]).to_f32(),
    }
}

/// Every output is the sixteen-lane dot product of its row and the token.
pub(crate) fn float_linear(mut a: FloatLinear<'_>) {
    for token in 0..a.out.rows() {
        let x = &a.x[token * a.cols..][..a.cols];
        for row in 0..a.out.width() {
            let mut lanes = Lanes::new();
            for (i, x) in x.iter().enumerate() {
                lanes.fma(i, float_at(a.dtype, a.data, row * a.cols + i), *x);
            }
            a.out.row_mut(token)[row] = lanes.sum();
        }
    }
}

/// Decodes row `row` of any matrix: floats exactly, `code·s + b` and `value·s` rounded after each operation, which is
/// what the container's arithmetic says.
pub(crate) fn decode_row(matrix: &Matrix<'_>, row: usize, out: &mut [f32], local: &mut Local) {
    match (matrix.weights, matrix.quantized()) {
        (Weights::Float { dtype, data }, _) => {
            let start = row * matrix.cols;
            for (i, out) in out.iter_mut().enumerate() {
                *out = float_at(dtype, data, start + i);
            }
        }
        (_, Some(quantized)) => decode_quantized(&quantized, row, out, local),
        (_, None) => {}
    }
}

fn decode_quantized(w: &Quantized<'_>, row: usize, out: &mut [f32], local: &mut Local) {
    let codes = grown(&mut local.bytes, w.cols, 0);
    unpack_row(w, row, codes);
    let groups = out.chunks_exact_mut(w.group).zip(codes.chunks_exact(w.group));
    for (group, (out, codes)) in groups.enumerate() {
        let (s, b) = w.scale_and_bias(row, group);
        // Centred codes times a scale lose nothing by going through the integer form.
        let (centre, b) = match (w.coding, w.bias_factor()) {
            (Coding::Super(GgmlType::Q6K), _) => (32.0, None),
            (_, None) => (0.0, Some(b)),
            (_, Some(factor)) => (-factor, None),
        };
        for (out, code) in out.iter_mut().zip(codes) {
            let scaled = (f32::from(*code) - centre) * s;
            *out = b.map_or(scaled, |b| scaled + b);
        }
    }
}
