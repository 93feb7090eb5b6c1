//! The virtual vector on AVX-512 F, BW, DQ and VL: one 512-bit register; with VNNI where the processor has it.
//!
//! Reductions leave 512 bits in their first step and go on with the AVX2 code, so that there is one tree.

use std::arch::x86_64::*;

use super::Simd;
use super::avx2::{self, avx2, four_bytes};

/// The token of this instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VNNI: bool>(());

impl<const VNNI: bool> Avx512<VNNI> {
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ and VL, everything that `Avx2` needs, and with `VNNI` that too.
    #[inline(always)]
    pub unsafe fn new_unchecked() -> Self {
        Avx512(())
    }
}

/// The upper half of a register added to the lower.
#[inline(always)]
fn fold_i32(v: __m512i) -> __m256i {
    avx2!(_mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v)))
}

/// Adds products of unsigned codes and signed activations in fours; codes at most 129 without VNNI.
#[inline(always)]
fn fours<const VNNI: bool>(acc: __m512i, codes: __m512i, x: __m512i) -> __m512i {
    if VNNI {
        avx2!(_mm512_dpbusd_epi32(acc, codes, x))
    } else {
        avx2! {
            let pairs = _mm512_maddubs_epi16(codes, x);
            _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }
}

/// The same for any codes, each less `CODE_OFFSET`.
#[inline(always)]
fn offset_fours<const VNNI: bool>(acc: __m512i, codes: __m512i, x: __m512i) -> __m512i {
    if VNNI {
        return fours::<VNNI>(acc, codes, x);
    }
    avx2! {
        let centred = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
        let negative = _mm512_movepi8_mask(centred);
        let signed = _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
        fours::<VNNI>(acc, _mm512_abs_epi8(centred), signed)
    }
}

/// 2^n for sixteen integers in -126..=127.
#[inline(always)]
fn power(n: __m512i) -> __m512 {
    avx2!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(n, _mm512_set1_epi32(127)))))
}

impl<const VNNI: bool> Simd for Avx512<VNNI> {
    type F = __m512;
    type H = __m256;
    type Bytes = __m512i;
    type Partial = __m256i;
    type Sums = __m512i;

    const CODE_OFFSET: i32 = if VNNI { 0 } else { 128 };

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        avx2!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Self::F {
        avx2!(_mm512_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn load_f32(self, x: &[u8; 64]) -> Self::F {
        avx2!(_mm512_loadu_ps(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn load_f16(self, x: &[u8; 32]) -> Self::F {
        avx2!(_mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u8; 32]) -> Self::F {
        avx2! {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn splat_f16(self, x: [u8; 2]) -> Self::F {
        avx2!(_mm512_cvtph_ps(_mm256_set1_epi16(i16::from_le_bytes(x))))
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; 16]) -> Self::F {
        avx2!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))))
    }
    #[inline(always)]
    fn load_nibbles(self, x: &[u8; 16], high: bool, table: &[i8; 16]) -> Self::F {
        avx2!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(avx2::nibbles(x, high, table))))
    }
    #[inline(always)]
    fn store(self, v: Self::F, out: &mut [f32; 16]) {
        avx2!(_mm512_storeu_ps(out.as_mut_ptr(), v))
    }
    #[inline(always)]
    fn store_f16(self, v: Self::F, out: &mut [u8; 32]) {
        avx2! {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), halves)
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        avx2!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        avx2!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        avx2!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        avx2!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        avx2!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        avx2!(_mm512_xor_ps(a, _mm512_set1_ps(-0.0)))
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        avx2!(_mm512_andnot_ps(_mm512_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        avx2!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        avx2!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn above(self, a: Self::F, border: Self::F, height: Self::F) -> Self::F {
        avx2!(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, border), height))
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        avx2!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn scale2(self, y: Self::F, n: Self::F) -> Self::F {
        avx2! {
            let n = _mm512_cvtps_epi32(n);
            let half = _mm512_srai_epi32::<1>(n);
            _mm512_mul_ps(_mm512_mul_ps(y, power(half)), power(_mm512_sub_epi32(n, half)))
        }
    }
    #[inline(always)]
    fn to_i8(self, v: Self::F) -> [i8; 16] {
        let mut out = [0; 16];
        avx2!(_mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v))));
        out
    }

    #[inline(always)]
    fn fold(self, v: Self::F) -> Self::H {
        avx2!(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
    }
    #[inline(always)]
    fn sum8(self, rows: [Self::H; 8]) -> Self::H {
        avx2::sum8(rows)
    }
    #[inline(always)]
    fn store_half(self, v: Self::H, out: &mut [f32; 8]) {
        avx2!(_mm256_storeu_ps(out.as_mut_ptr(), v))
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        avx2::sum1(self.fold(v))
    }
    #[inline(always)]
    fn largest(self, v: Self::F) -> f32 {
        avx2::largest8(avx2!(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))))
    }

    #[inline(always)]
    fn bytes(self, x: &[u8; 64]) -> Self::Bytes {
        avx2!(_mm512_loadu_si512(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn store_bytes(self, v: Self::Bytes, out: &mut [u8; 64]) {
        avx2!(_mm512_storeu_si512(out.as_mut_ptr().cast(), v))
    }
    #[inline(always)]
    fn activations(self, x: &[i8; 64]) -> Self::Bytes {
        avx2!(_mm512_loadu_si512(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn split(self, x: &[u8; 64]) -> Self::Bytes {
        let x = self.bytes(x);
        avx2!(_mm512_shuffle_i64x2::<0b11_01_10_00>(x, x))
    }
    #[inline(always)]
    fn split_words(self, x: [u64; 8]) -> Self::Bytes {
        let [a, b, c, d, e, f, g, h] = x.map(u64::cast_signed);
        avx2!(_mm512_set_epi64(h, g, d, c, f, e, b, a))
    }
    #[inline(always)]
    fn nibbles(self, x: &[u8; 32]) -> Self::Bytes {
        avx2! {
            let x = _mm256_loadu_si256(x.as_ptr().cast());
            let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(x), _mm256_srli_epi16::<4>(x));
            _mm512_and_si512(both, _mm512_set1_epi8(15))
        }
    }
    #[inline(always)]
    fn lookup(self, bytes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        avx2! {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, bytes)
        }
    }
    #[inline(always)]
    fn spread(self, packed: u64, bits: usize) -> u64 {
        avx2::spread(packed, bits)
    }

    #[inline(always)]
    fn zero_partial(self) -> Self::Partial {
        avx2!(_mm256_setzero_si256())
    }
    #[inline(always)]
    fn dot_codes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Partial {
        fold_i32(fours::<VNNI>(self.zero_sums(), codes, x))
    }
    #[inline(always)]
    fn dot_bytes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Partial {
        fold_i32(offset_fours::<VNNI>(self.zero_sums(), codes, x))
    }
    #[inline(always)]
    fn sum_halves(self, rows: [Self::Partial; 8]) -> (Self::Partial, Self::Partial) {
        avx2::sum_halves(rows)
    }
    #[inline(always)]
    fn add_partial(self, a: Self::Partial, b: Self::Partial) -> Self::Partial {
        avx2!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn partials_to_f32(self, first: Self::Partial, last: Self::Partial, offset: i32) -> Self::F {
        self.sums_to_f32(avx2!(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), last)), offset)
    }

    #[inline(always)]
    fn zero_sums(self) -> Self::Sums {
        avx2!(_mm512_setzero_si512())
    }
    #[inline(always)]
    fn tile_codes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: [[i8; 4]; 2]) -> Self::Sums {
        avx2! {
            let acc = fours::<VNNI>(acc, codes[0], _mm512_set1_epi32(four_bytes(x[0])));
            fours::<VNNI>(acc, codes[1], _mm512_set1_epi32(four_bytes(x[1])))
        }
    }
    #[inline(always)]
    fn tile_bytes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: [[i8; 4]; 2]) -> Self::Sums {
        avx2! {
            let acc = offset_fours::<VNNI>(acc, codes[0], _mm512_set1_epi32(four_bytes(x[0])));
            offset_fours::<VNNI>(acc, codes[1], _mm512_set1_epi32(four_bytes(x[1])))
        }
    }
    #[inline(always)]
    fn sums_to_f32(self, sums: Self::Sums, offset: i32) -> Self::F {
        avx2!(_mm512_cvtepi32_ps(_mm512_add_epi32(sums, _mm512_set1_epi32(offset))))
    }
}
