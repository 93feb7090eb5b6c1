//! The virtual vector: what one kernel algorithm needs from an instruction set.
//!
//! A value of a [`Simd`] type is a token. It exists only where the processor has the instruction set, so its methods
//! are safe, and a kernel that receives one can be written once for all sets. Every method is `#[inline(always)]`, as
//! every kernel must be, so that the whole kernel ends up inside one function compiled for the instruction set.
//!
//! Floats come in vectors of sixteen lanes whatever the registers' width, because the arithmetic is defined over
//! sixteen virtual lanes. Integers come in the shapes that the quantised linear layers use.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod peak;
#[cfg(test)]
pub(crate) mod portable;

/// Lanes of a float vector.
pub(crate) const LANES: usize = 16;

/// One instruction set.
pub(crate) trait Simd: Copy + peak::Peak {
    /// Sixteen f32 lanes.
    type F: Copy;
    /// Eight f32 lanes: a vector after the first step of the lane tree.
    type H: Copy;
    /// Sixty-four bytes: codes or quantised activations.
    type Bytes: Copy;
    /// Eight i32 lanes: dot products of one row. The first four belong to the first half of a 64-column block, the
    /// last four to the second half.
    type Partial: Copy;
    /// Sixteen i32 lanes, one per row of a tile.
    type Sums: Copy;

    /// What [`Simd::dot_bytes`] and [`Simd::tile_bytes`] subtract from every code.
    const CODE_OFFSET: i32;

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
    /// Bytes in split order (see [`split_order`]).
    fn split(self, x: &[u8; 64]) -> Self::Bytes;
    /// Bytes in split order from words in memory order.
    fn split_words(self, x: [u64; 8]) -> Self::Bytes;
    /// The low nibbles of the bytes, then the high ones: nibble order (see [`nibble_order`]).
    fn nibbles(self, x: &[u8; 32]) -> Self::Bytes;
    /// `table[byte]` for bytes below 16.
    fn lookup(self, bytes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;
    /// Eight codes of `bits` bits from the low end of `packed`, one per byte.
    fn spread(self, packed: u64, bits: usize) -> u64;

    /// No products yet.
    fn zero_partial(self) -> Self::Partial;
    /// Products of unsigned codes below 64 and activations, summed by half-block; both in the same order.
    fn dot_codes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Partial;
    /// The same for any codes, each less [`Simd::CODE_OFFSET`].
    fn dot_bytes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Partial;
    /// Sums of eight rows (lane r is row r), for the first halves and for the second halves of their blocks.
    fn sum_halves(self, rows: [Self::Partial; 8]) -> (Self::Partial, Self::Partial);
    /// Lane-wise sum.
    fn add_partial(self, a: Self::Partial, b: Self::Partial) -> Self::Partial;
    /// The first eight rows and the last eight, each plus `offset`, as floats.
    fn partials_to_f32(self, first: Self::Partial, last: Self::Partial, offset: i32) -> Self::F;

    /// No sums yet.
    fn zero_sums(self) -> Self::Sums;
    /// Adds the products of two units: `codes` hold four columns of sixteen rows, `x` the four activations. Codes are
    /// below 64.
    fn tile_codes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: [[i8; 4]; 2]) -> Self::Sums;
    /// The same for any codes, each less [`Simd::CODE_OFFSET`].
    fn tile_bytes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: [[i8; 4]; 2]) -> Self::Sums;
    /// Every sum plus `offset`, as floats.
    fn sums_to_f32(self, sums: Self::Sums, offset: i32) -> Self::F;
}

/// Activations of a 64-column block in the order of [`Simd::nibbles`]: even columns, then odd ones. Each 16 bytes then
/// belong to one half of the block: first, second, first, second.
pub(crate) fn nibble_order(natural: &[i8; 64]) -> [i8; 64] {
    std::array::from_fn(|i| natural[2 * (i % 32) + i / 32])
}

/// Activations of a 64-column block in the order of [`Simd::split`]: 16 columns of the first half, 16 of the second,
/// then the rest of each.
pub(crate) fn split_order(natural: &[i8; 64]) -> [i8; 64] {
    std::array::from_fn(|i| natural[[0, 32, 16, 48][i / 16] + i % 16])
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
