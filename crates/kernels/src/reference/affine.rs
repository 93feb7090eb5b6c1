//! Quantised linear layers: integer products inside a block, a fixed order of fused multiply-adds across blocks.

use basert_quant::ggml::super_codes;
use basert_quant::unpack_codes;

use crate::matrix::{Coding, FP4_CODES, Quantized};
use crate::scratch::{Local, grown};
use crate::shared::ColumnBlock;

/// Quantised activations of some tokens, all in blocks of one width.
#[derive(Clone, Copy)]
pub(crate) struct Activations<'a> {
    pub tokens: usize,
    pub cols: usize,
    /// Columns per block.
    pub block: usize,
    /// Tokens that lie together, block by block; 1 if they lie one behind the other. What stands for tokens that are
    /// missing from the last party is unspecified.
    pub party: usize,
    pub codes: &'a [i8], // [parties, cols / block, party, block]
    /// In the orders that the row kernels want; unspecified where no matrix of the call needs them, or with many tokens.
    pub packed: Packed<'a>,
    pub sums: &'a [i32],     // [parties, cols / block, party]
    pub scales: &'a [f32],   // [parties, cols / block, party]
    pub weighted: &'a [f32], // [parties, cols / block, party]
}

/// Codes as the row kernels read them, padded with zeros to whole registers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Packed<'a> {
    /// For 4-bit weights: the even ones of 128 columns, then the odd ones. For blocks of 16 there are two passes, one
    /// with zeros in every second 16 columns and one with zeros in the others.
    pub nibble: &'a [[i8; 64]], // [tokens, passes, ceil(cols / 128), 2]
    /// For all other widths: in column order.
    pub plain: &'a [[i8; 64]], // [tokens, ceil(cols / 64)]
}

/// `y = W·x` for some rows of a quantised matrix and all tokens.
pub(crate) struct AffineLinear<'a> {
    pub weights: Quantized<'a>,
    /// First of the rows; `out` says how many.
    pub first_row: usize,
    pub x: Activations<'a>,
    pub out: ColumnBlock<'a, f32>, // [tokens, rows]
    pub local: &'a mut Local,
}

/// For every output, over blocks in ascending order, with s and b of the block's group:
/// `acc = fma(f32(Σ q·code)·sx, s, acc)`, then `acc = fma(xs, b, acc)`.
pub(crate) fn affine_linear(mut a: AffineLinear<'_>) {
    let (w, x) = (a.weights, a.x);
    debug_assert_eq!(x.party, 1);
    let blocks = w.cols / x.block;
    let blocks_per_group = w.group / x.block;
    let codes = grown(&mut a.local.bytes, w.cols, 0);
    for row in 0..a.out.width() {
        unpack_row(&w, a.first_row + row, codes);
        for token in 0..x.tokens {
            let mut acc = 0.0f32;
            for block in 0..blocks {
                let columns = block * x.block..(block + 1) * x.block;
                let xq = &x.codes[token * w.cols..][columns.clone()];
                let products = codes[columns].iter().zip(xq).map(|(&q, &x)| i32::from(q) * i32::from(x));
                let sum: i32 = products.sum();
                let (s, b) = w.scale_and_bias(a.first_row + row, block / blocks_per_group);
                let index = token * blocks + block;
                acc = (sum as f32 * x.scales[index]).mul_add(s, acc);
                acc = x.weighted[index].mul_add(b, acc);
            }
            a.out.row_mut(token)[row] = acc;
        }
    }
}

/// The codes `q` of one row, one per byte.
pub(crate) fn unpack_row(w: &Quantized<'_>, row: usize, out: &mut [u8]) {
    if let Coding::Super(kind) = w.coding {
        for (index, codes) in out.as_chunks_mut().0.iter_mut().enumerate() {
            super_codes(kind, w.super_block(row, index), codes);
        }
        return;
    }
    // `Matrix::new` admits only widths that unpack, and the row has the length of its codes.
    let unpacked = unpack_codes(w.bits() as u32, w.row(row), out);
    debug_assert!(unpacked.is_ok());
    if w.coding == Coding::Fp4 {
        out.iter_mut().for_each(|code| *code = FP4_CODES[usize::from(*code)]);
    }
}
