//! The virtual vector: what one kernel algorithm needs from an instruction set.
//!
//! A value of a [`Simd`] type is a token. It exists only where the processor has the instruction set, so its methods
//! are safe, and a kernel that receives one can be written once for all sets. Every method is `#[inline(always)]`, as
//! every kernel must be, so that the whole kernel ends up inside one function compiled for the instruction set.
//!
//! Floats come in vectors of sixteen lanes whatever the registers' width, because the arithmetic is defined over
//! sixteen virtual lanes. Integers come in the shapes that the quantised linear layers use.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod peak;
#[cfg(test)]
pub(crate) mod portable;

use crate::level::Vectorized;
use crate::scratch::Line;
use crate::simd::tile::Unit;

/// Lanes of a float vector.
pub(crate) const LANES: usize = 16;

/// Tokens that a matrix unit takes together.
pub(crate) const PARTY: usize = 16;

/// A block's sums of products, of sixteen rows for each token of a party.
pub(crate) type Products = [Line<[i32; 16]>; PARTY];

/// A matrix unit, set up for blocks of some width.
pub(crate) trait MatrixUnit {
    /// Sums of the products of a block of `TOKENS` tokens, 8 or 16, and sixteen rows: `sums[token][row]`.
    ///
    /// `codes` are `[TOKENS, block]`, `units` hold unsigned codes, `[block / 4]`.
    fn products<const TOKENS: usize>(&self, codes: &[i8], units: &[Unit], sums: &mut Products);
}

/// Stands for the matrix unit of instruction sets that have none.
pub(crate) enum NoMatrixUnit {}

impl MatrixUnit for NoMatrixUnit {
    #[inline(always)]
    fn products<const TOKENS: usize>(&self, _: &[i8], _: &[Unit], _: &mut Products) {
        match *self {}
    }
}

/// One instruction set.
pub(crate) trait Simd: Copy + peak::Peak {
    /// Sixteen f32 lanes.
    type F: Copy;
    /// Eight f32 lanes: a vector after the first step of the lane tree.
    type H: Copy;
    /// Sixty-four bytes: codes or quantised activations.
    type Bytes: Copy;
    /// Four times four i32 lanes, the quads: dot products, quad q being those of bytes 16q to 16q + 15.
    type Quads: Copy;
    /// Sixteen i32 lanes, one per row of a tile.
    type Sums: Copy;
    /// Products of many tokens at a time.
    type Matrix: MatrixUnit;

    /// What [`Simd::dot_bytes`] and [`Simd::tile_bytes`] subtract from every code.
    const CODE_OFFSET: i32;

    /// Whether there are registers for the sums of 32 rows and 4 tokens side by side, or only for 16 rows and 2 tokens.
    const ROOMY: bool;

    /// The matrix unit, set up for blocks of `block` columns, where there is one.
    fn matrix_unit(self, block: usize) -> Option<Self::Matrix>;

    /// Does `work` in a function of its own: where kernels would otherwise be compiled into one function many times over.
    fn outline<W: Vectorized>(self, work: W);

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Lane i is `x[i]`.
    fn load(self, x: &[f32; 16]) -> Self::F;
    /// The same from little-endian bytes.
    fn load_f32(self, x: &[u8; 64]) -> Self::F;
    /// The same from little-endian binary16, exactly.
    fn load_f16(self, x: &[u8; 32]) -> Self::F;
    /// The same from little-endian bfloat16, exactly.
    fn load_bf16(self, x: &[u8; 32]) -> Self::F;
    /// All lanes the little-endian binary16 `x`.
    fn splat_f16(self, x: [u8; 2]) -> Self::F;
    /// Lane i is the signed byte `x[i]`.
    fn load_i8(self, x: &[u8; 16]) -> Self::F;
    /// Lane i is `table[n]`, n being the high or the low nibble of `x[i]`.
    fn load_nibbles(self, x: &[u8; 16], high: bool, table: &[i8; 16]) -> Self::F;
    /// Writes the lanes in order.
    fn store(self, v: Self::F, out: &mut [f32; 16]);
    /// Writes the lanes as little-endian binary16, rounded to nearest even.
    fn store_f16(self, v: Self::F, out: &mut [u8; 32]);

    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`, correctly rounded.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `-a`.
    fn neg(self, a: Self::F) -> Self::F;
    /// `|a|`.
    fn abs(self, a: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`: `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a > border { height } else { 0 }`: 0 where either is NaN.
    fn above(self, a: Self::F, border: Self::F, height: Self::F) -> Self::F;
    /// The nearest integer, halves to even.
    fn round(self, a: Self::F) -> Self::F;
    /// `y · 2^n` for integral `n` in -252..=252, as `(y · 2^(n>>1)) · 2^(n - (n>>1))`. Where `n` is NaN the factors are
    /// unspecified.
    fn scale2(self, y: Self::F, n: Self::F) -> Self::F;
    /// The lanes, integers in -127..=127, as bytes.
    fn to_i8(self, v: Self::F) -> [i8; 16];

    /// First step of the lane tree: lane i + lane i+8.
    fn fold(self, v: Self::F) -> Self::H;
    /// The remaining steps for eight vectors: lane r is the sum over `rows[r]`, adding lanes 4, then 2, then 1 apart.
    fn sum8(self, rows: [Self::H; 8]) -> Self::H;
    /// Writes the lanes in order.
    fn store_half(self, v: Self::H, out: &mut [f32; 8]);
    /// The sum of all lanes by the tree: 8, 4, 2, 1 apart.
    fn sum(self, v: Self::F) -> f32;
    /// The largest lane; no lane is NaN.
    fn largest(self, v: Self::F) -> f32;

    /// Bytes in memory order.
    fn bytes(self, x: &[u8; 64]) -> Self::Bytes;
    /// Writes bytes in memory order.
    fn store_bytes(self, v: Self::Bytes, out: &mut [u8; 64]);
    /// Signed bytes in memory order.
    fn activations(self, x: &[i8; 64]) -> Self::Bytes;
    /// The low nibbles of the bytes, and the high ones.
    fn nibbles(self, x: Self::Bytes) -> [Self::Bytes; 2];
    /// `table[byte]` for bytes below 16.
    fn lookup(self, bytes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;
    /// 32 bytes, twice.
    fn twice(self, x: &[u8; 32]) -> Self::Bytes;
    /// Every byte shifted right, those of either half by its `shifts`, and masked; `shifts[h]` and the bits of `mask` are
    /// at most 8 together.
    fn fields(self, x: Self::Bytes, shifts: [u32; 2], mask: u8) -> Self::Bytes;
    /// `low | high << 4` of every byte of `high` below 16.
    fn join(self, low: Self::Bytes, high: Self::Bytes) -> Self::Bytes;
    /// The first 64 codes of `bits` < 8 bits, in order, one per byte.
    fn unpack(self, packed: &[u8; 64], bits: usize) -> Self::Bytes;
    /// Sixteen rows of sixteen four-byte values, transposed: all rows' first values, then all second ones, and so on.
    fn interleave(self, rows: [&[u8; 64]; 16]) -> [Self::Bytes; 16];
    /// Of every four bytes, which are eight 4-bit codes: the first four, one to a byte, and the other four.
    fn spread(self, packed: Self::Bytes) -> [Self::Bytes; 2];
    /// Sixteen rows of eight two-byte values, transposed: all rows' first values, then all second ones, and so on.
    fn transpose(self, rows: [&[u8; 16]; 16]) -> [[u8; 32]; 8];

    /// No products yet.
    fn zero_quads(self) -> Self::Quads;
    /// Products of two registers of codes below 32 with their activations, in one sum.
    fn dot_pair(self, codes: [Self::Bytes; 2], x: [Self::Bytes; 2]) -> Self::Quads;
    /// Products of unsigned codes below 64 and activations.
    fn dot_codes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Quads;
    /// The same for any codes, each less [`Simd::CODE_OFFSET`].
    fn dot_bytes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Quads;
    /// The quads of four rows summed: lane r of every quad is the sum of row r's quad.
    fn sum_quads(self, rows: [Self::Quads; 4]) -> Self::Quads;
    /// The same where no lane exceeds 2^14 in magnitude.
    fn sum_small_quads(self, rows: [Self::Quads; 4]) -> Self::Quads;
    /// Four times four rows, as [`Simd::sum_quads`] leaves them: sixteen rows of each quad.
    fn turn(self, rows: [Self::Quads; 4]) -> [Self::Sums; 4];

    /// No sums yet.
    fn zero_sums(self) -> Self::Sums;
    /// Lane i is `x[i]`.
    fn load_sums(self, x: &[i32; 16]) -> Self::Sums;
    /// Lane-wise sum.
    fn add_sums(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// Adds the products of two units: `codes` hold four columns of sixteen rows, `x` the four activations. Codes are
    /// below 64.
    fn tile_codes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: &[[i8; 4]; 2]) -> Self::Sums;
    /// The same for any codes, each less [`Simd::CODE_OFFSET`].
    fn tile_bytes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: &[[i8; 4]; 2]) -> Self::Sums;
    /// Every sum plus `offset`, as floats.
    fn sums_to_f32(self, sums: Self::Sums, offset: i32) -> Self::F;
}

/// The first elements `x` and `fill` in the rest.
#[inline(always)]
pub(crate) fn padded<T: Copy, const N: usize>(x: &[T], fill: T) -> [T; N] {
    let mut out = [fill; N];
    out[..x.len()].copy_from_slice(x);
    out
}

/// Sixteen elements from `at` on.
#[inline(always)]
pub(crate) fn lanes(x: &[f32], at: usize) -> &[f32; LANES] {
    &x[at..].as_chunks().0[0]
}

/// Sixteen elements from `at` on, to write.
#[inline(always)]
pub(crate) fn lanes_mut(x: &mut [f32], at: usize) -> &mut [f32; LANES] {
    &mut x[at..].as_chunks_mut().0[0]
}
