//! The virtual vector on AVX2 with FMA, F16C and BMI2: two 256-bit registers.

use std::arch::x86_64::*;

use super::Simd;

/// The token of this instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The processor has AVX2, FMA, F16C and BMI2.
    #[inline(always)]
    pub unsafe fn new_unchecked() -> Avx2 {
        Avx2(())
    }
}

/// Intrinsics of this instruction set, called where a token exists.
macro_rules! avx2 {
    ($($body:tt)*) => {{
        // SAFETY: an `Avx2` (or wider) token is made only where the processor has the instructions, and every pointer
        // comes from a reference to an array of at least the bytes that the instruction touches.
        unsafe { $($body)* }
    }};
}
pub(crate) use avx2;

/// Applies an intrinsic to both registers.
macro_rules! both {
    ($f:ident($($a:expr),*)) => { avx2!([$f($($a[0]),*), $f($($a[1]),*)]) };
}

/// Sixteen bytes of a longer array.
#[inline(always)]
fn load128(x: &[u8; 64], quarter: usize) -> __m128i {
    avx2!(_mm_loadu_si128(x.as_ptr().add(16 * (quarter % 4)).cast()))
}

/// Sums of adjacent lanes: the tree's last three steps over eight vectors.
#[inline(always)]
pub(super) fn sum8(r: [__m256; 8]) -> __m256 {
    /// Lanes four apart: `a`'s four sums, then `b`'s.
    #[inline(always)]
    fn four(a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b)))
    }
    /// Lanes two apart, within each 128-bit half: `a`'s two sums, then `b`'s.
    #[inline(always)]
    fn two(a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_add_ps(
            _mm256_shuffle_ps::<0b01_00_01_00>(a, b),
            _mm256_shuffle_ps::<0b11_10_11_10>(a, b)
        ))
    }
    // Rows 0..4 end up in the low half and rows 4..8 in the high half, each in order.
    let a = two(four(r[0], r[4]), four(r[1], r[5]));
    let b = two(four(r[2], r[6]), four(r[3], r[7]));
    avx2!(_mm256_add_ps(_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b)))
}

/// The tree's last three steps over one vector.
#[inline(always)]
pub(super) fn sum1(v: __m256) -> f32 {
    avx2! {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// The largest of eight lanes without NaN.
#[inline(always)]
pub(super) fn largest8(v: __m256) -> f32 {
    avx2! {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// See [`Simd::sum_halves`].
#[inline(always)]
pub(super) fn sum_halves(r: [__m256i; 8]) -> (__m256i, __m256i) {
    avx2! {
        let a = _mm256_hadd_epi32(_mm256_hadd_epi32(r[0], r[1]), _mm256_hadd_epi32(r[2], r[3]));
        let b = _mm256_hadd_epi32(_mm256_hadd_epi32(r[4], r[5]), _mm256_hadd_epi32(r[6], r[7]));
        (_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b))
    }
}

/// See [`Simd::spread`].
#[inline(always)]
pub(super) fn spread(packed: u64, bits: usize) -> u64 {
    avx2!(_pdep_u64(packed, 0x0101_0101_0101_0101 * ((1 << bits) - 1)))
}

/// Unsigned codes times signed activations in adjacent pairs; exact while codes are at most 129.
#[inline(always)]
fn pairs(codes: __m256i, x: __m256i) -> __m256i {
    avx2!(_mm256_maddubs_epi16(codes, x))
}

/// (code - 128) times activation, summed in fours. |code - 128| is at most 128, so pairs stay below 2^15.
#[inline(always)]
fn offset_fours(codes: __m256i, x: __m256i) -> __m256i {
    let centred = avx2!(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)));
    fours(avx2!(_mm256_maddubs_epi16(_mm256_abs_epi8(centred), _mm256_sign_epi8(x, centred))))
}

/// Adjacent 16-bit lanes summed to 32 bits.
#[inline(always)]
fn fours(v: __m256i) -> __m256i {
    avx2!(_mm256_madd_epi16(v, _mm256_set1_epi16(1)))
}

/// 2^n for eight integers in -126..=127.
#[inline(always)]
fn power(n: __m256i) -> __m256 {
    avx2!(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127)))))
}

#[inline(always)]
fn scale2(y: __m256, n: __m256) -> __m256 {
    avx2! {
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        _mm256_mul_ps(_mm256_mul_ps(y, power(half)), power(_mm256_sub_epi32(n, half)))
    }
}

#[inline(always)]
fn nearest(a: __m256) -> __m256 {
    avx2!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
}

/// Sixteen signed bytes as floats.
#[inline(always)]
fn bytes_to_f32(x: __m128i) -> [__m256; 2] {
    avx2! {
        let high = _mm_unpackhi_epi64(x, x);
        [_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))]
    }
}

/// Bytes of [`Simd::load_nibbles`].
#[inline(always)]
pub(super) fn nibbles(x: &[u8; 16], high: bool, table: &[i8; 16]) -> __m128i {
    avx2! {
        let x = _mm_loadu_si128(x.as_ptr().cast());
        let x = _mm_srl_epi16(x, _mm_cvtsi32_si128(if high { 4 } else { 0 }));
        let table = _mm_loadu_si128(table.as_ptr().cast());
        _mm_shuffle_epi8(table, _mm_and_si128(x, _mm_set1_epi8(15)))
    }
}

/// Four activations in every 32-bit lane.
#[inline(always)]
fn four_activations(x: [i8; 4]) -> __m256i {
    avx2!(_mm256_set1_epi32(four_bytes(x)))
}

/// Four signed bytes as one integer, first byte lowest.
#[inline(always)]
pub(super) fn four_bytes(x: [i8; 4]) -> i32 {
    i32::from_le_bytes([x[0] as u8, x[1] as u8, x[2] as u8, x[3] as u8])
}

/// See [`Simd::tile_codes`], for eight rows; 16-bit sums as in `dot_codes`.
#[inline(always)]
fn tile_codes(acc: __m256i, codes: [__m256i; 2], x: [__m256i; 2]) -> __m256i {
    let sums = avx2!(_mm256_add_epi16(pairs(codes[0], x[0]), pairs(codes[1], x[1])));
    avx2!(_mm256_add_epi32(acc, fours(sums)))
}

/// See [`Simd::tile_bytes`], for eight rows.
#[inline(always)]
fn tile_bytes(acc: __m256i, codes: [__m256i; 2], x: [__m256i; 2]) -> __m256i {
    let sums = avx2!(_mm256_add_epi32(offset_fours(codes[0], x[0]), offset_fours(codes[1], x[1])));
    avx2!(_mm256_add_epi32(acc, sums))
}

impl Simd for Avx2 {
    type F = [__m256; 2];
    type H = __m256;
    type Bytes = [__m256i; 2];
    type Partial = __m256i;
    type Sums = [__m256i; 2];

    const CODE_OFFSET: i32 = 128;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        avx2!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Self::F {
        avx2!([_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))])
    }
    #[inline(always)]
    fn load_f32(self, x: &[u8; 64]) -> Self::F {
        avx2!([_mm256_loadu_ps(x.as_ptr().cast()), _mm256_loadu_ps(x.as_ptr().add(32).cast())])
    }
    #[inline(always)]
    fn load_f16(self, x: &[u8; 32]) -> Self::F {
        avx2! {
            let x = x.as_ptr().cast::<__m128i>();
            [_mm256_cvtph_ps(_mm_loadu_si128(x)), _mm256_cvtph_ps(_mm_loadu_si128(x.add(1)))]
        }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u8; 32]) -> Self::F {
        avx2! {
            let x = x.as_ptr().cast::<__m128i>();
            let low = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(x)));
            let high = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(x.add(1))));
            [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
        }
    }
    #[inline(always)]
    fn splat_f16(self, x: [u8; 2]) -> Self::F {
        avx2!([_mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(x))); 2])
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; 16]) -> Self::F {
        bytes_to_f32(avx2!(_mm_loadu_si128(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_nibbles(self, x: &[u8; 16], high: bool, table: &[i8; 16]) -> Self::F {
        bytes_to_f32(nibbles(x, high, table))
    }
    #[inline(always)]
    fn store(self, v: Self::F, out: &mut [f32; 16]) {
        avx2! {
            _mm256_storeu_ps(out.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), v[1]);
        }
    }
    #[inline(always)]
    fn store_f16(self, v: Self::F, out: &mut [u8; 32]) {
        avx2! {
            let out = out.as_mut_ptr().cast::<__m128i>();
            _mm_storeu_si128(out, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(out.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        let sign = self.splat(-0.0);
        both!(_mm256_xor_ps(a, sign))
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        let sign = self.splat(-0.0);
        both!(_mm256_andnot_ps(sign, a))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn above(self, a: Self::F, border: Self::F, height: Self::F) -> Self::F {
        avx2!([
            _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a[0], border[0]), height[0]),
            _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a[1], border[1]), height[1]),
        ])
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        [nearest(a[0]), nearest(a[1])]
    }
    #[inline(always)]
    fn scale2(self, y: Self::F, n: Self::F) -> Self::F {
        [scale2(y[0], n[0]), scale2(y[1], n[1])]
    }
    #[inline(always)]
    fn to_i8(self, v: Self::F) -> [i8; 16] {
        let mut out = [0; 16];
        avx2! {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1]));
            // The pack works within 128-bit halves; put the four quarters back in order.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
        }
        out
    }

    #[inline(always)]
    fn fold(self, v: Self::F) -> Self::H {
        avx2!(_mm256_add_ps(v[0], v[1]))
    }
    #[inline(always)]
    fn sum8(self, rows: [Self::H; 8]) -> Self::H {
        sum8(rows)
    }
    #[inline(always)]
    fn store_half(self, v: Self::H, out: &mut [f32; 8]) {
        avx2!(_mm256_storeu_ps(out.as_mut_ptr(), v))
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        sum1(self.fold(v))
    }
    #[inline(always)]
    fn largest(self, v: Self::F) -> f32 {
        largest8(avx2!(_mm256_max_ps(v[0], v[1])))
    }

    #[inline(always)]
    fn bytes(self, x: &[u8; 64]) -> Self::Bytes {
        let x = x.as_ptr().cast::<__m256i>();
        avx2!([_mm256_loadu_si256(x), _mm256_loadu_si256(x.add(1))])
    }
    #[inline(always)]
    fn store_bytes(self, v: Self::Bytes, out: &mut [u8; 64]) {
        let out = out.as_mut_ptr().cast::<__m256i>();
        avx2! {
            _mm256_storeu_si256(out, v[0]);
            _mm256_storeu_si256(out.add(1), v[1]);
        }
    }
    #[inline(always)]
    fn activations(self, x: &[i8; 64]) -> Self::Bytes {
        let x = x.as_ptr().cast::<__m256i>();
        avx2!([_mm256_loadu_si256(x), _mm256_loadu_si256(x.add(1))])
    }
    #[inline(always)]
    fn split(self, x: &[u8; 64]) -> Self::Bytes {
        avx2!([
            _mm256_set_m128i(load128(x, 2), load128(x, 0)),
            _mm256_set_m128i(load128(x, 3), load128(x, 1)),
        ])
    }
    #[inline(always)]
    fn split_words(self, x: [u64; 8]) -> Self::Bytes {
        avx2!([
            _mm256_set_epi64x(x[5] as i64, x[4] as i64, x[1] as i64, x[0] as i64),
            _mm256_set_epi64x(x[7] as i64, x[6] as i64, x[3] as i64, x[2] as i64),
        ])
    }
    #[inline(always)]
    fn nibbles(self, x: &[u8; 32]) -> Self::Bytes {
        avx2! {
            let x = _mm256_loadu_si256(x.as_ptr().cast());
            let mask = _mm256_set1_epi8(15);
            [_mm256_and_si256(x, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(x), mask)]
        }
    }
    #[inline(always)]
    fn lookup(self, bytes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        let table = avx2!(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())));
        avx2!([_mm256_shuffle_epi8(table, bytes[0]), _mm256_shuffle_epi8(table, bytes[1])])
    }
    #[inline(always)]
    fn spread(self, packed: u64, bits: usize) -> u64 {
        spread(packed, bits)
    }

    #[inline(always)]
    fn zero_partial(self) -> Self::Partial {
        avx2!(_mm256_setzero_si256())
    }
    #[inline(always)]
    fn dot_codes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Partial {
        // Two pairs of products of at most 63·127 fit 16 bits twice.
        fours(avx2!(_mm256_add_epi16(pairs(codes[0], x[0]), pairs(codes[1], x[1]))))
    }
    #[inline(always)]
    fn dot_bytes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Partial {
        avx2!(_mm256_add_epi32(offset_fours(codes[0], x[0]), offset_fours(codes[1], x[1])))
    }
    #[inline(always)]
    fn sum_halves(self, rows: [Self::Partial; 8]) -> (Self::Partial, Self::Partial) {
        sum_halves(rows)
    }
    #[inline(always)]
    fn add_partial(self, a: Self::Partial, b: Self::Partial) -> Self::Partial {
        avx2!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn partials_to_f32(self, first: Self::Partial, last: Self::Partial, offset: i32) -> Self::F {
        self.sums_to_f32([first, last], offset)
    }

    #[inline(always)]
    fn zero_sums(self) -> Self::Sums {
        avx2!([_mm256_setzero_si256(); 2])
    }
    #[inline(always)]
    fn tile_codes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: [[i8; 4]; 2]) -> Self::Sums {
        let x = [four_activations(x[0]), four_activations(x[1])];
        [tile_codes(acc[0], [codes[0][0], codes[1][0]], x), tile_codes(acc[1], [codes[0][1], codes[1][1]], x)]
    }
    #[inline(always)]
    fn tile_bytes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: [[i8; 4]; 2]) -> Self::Sums {
        let x = [four_activations(x[0]), four_activations(x[1])];
        [tile_bytes(acc[0], [codes[0][0], codes[1][0]], x), tile_bytes(acc[1], [codes[0][1], codes[1][1]], x)]
    }
    #[inline(always)]
    fn sums_to_f32(self, sums: Self::Sums, offset: i32) -> Self::F {
        avx2! {
            let offset = _mm256_set1_epi32(offset);
            [
                _mm256_cvtepi32_ps(_mm256_add_epi32(sums[0], offset)),
                _mm256_cvtepi32_ps(_mm256_add_epi32(sums[1], offset)),
            ]
        }
    }
}
