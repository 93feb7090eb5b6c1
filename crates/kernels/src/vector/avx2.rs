//! The virtual vector on AVX2 with FMA and F16C: two 256-bit registers; with AVX-VNNI where the processor has it.

use std::arch::x86_64::*;

use super::{NoMatrixUnit, Simd};
use crate::level::{Vectorized, run_avx2, run_avx2_vnni};

/// The token of this instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// # Safety
    /// The processor has AVX2, FMA and F16C, and with `VNNI` AVX-VNNI too.
    #[inline(always)]
    pub unsafe fn new_unchecked() -> Self {
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

/// See [`Simd::transpose`].
#[inline(always)]
fn transpose(rows: [&[u8; 16]; 16]) -> [[u8; 32]; 8] {
    let mut out = [[0; 32]; 8];
    for half in 0..2 {
        avx2! {
            let r: [__m128i; 8] = std::array::from_fn(|i| _mm_loadu_si128(rows[8 * half + i].as_ptr().cast()));
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

/// How sixteen codes of some width come apart. A code is in two neighbouring bytes; a shuffle brings these two to a
/// 16-bit lane, a multiplication shifts the code to the lane's upper byte. Codes at even places do so in one register,
/// codes at odd ones in another.
pub(super) struct Unpacking {
    pub even: [u8; 16],
    pub odd: [u8; 16],
    pub even_factors: [u16; 8],
    pub odd_factors: [u16; 8],
}

/// By bits per code.
pub(super) static UNPACKING: [Unpacking; 8] = {
    [
        unpacking(0),
        unpacking(1),
        unpacking(2),
        unpacking(3),
        unpacking(4),
        unpacking(5),
        unpacking(6),
        unpacking(7),
    ]
};

const fn unpacking(bits: usize) -> Unpacking {
    let mut out = Unpacking { even: [0; 16], odd: [0; 16], even_factors: [0; 8], odd_factors: [0; 8] };
    let mut lane = 0;
    while lane < 8 {
        let (even, odd) = (2 * lane * bits, (2 * lane + 1) * bits);
        out.even[2 * lane] = (even / 8) as u8;
        out.even[2 * lane + 1] = (even / 8 + 1) as u8;
        out.odd[2 * lane] = (odd / 8) as u8;
        out.odd[2 * lane + 1] = (odd / 8 + 1) as u8;
        out.even_factors[lane] = 1 << (8 - even % 8);
        out.odd_factors[lane] = 1 << (8 - odd % 8);
        lane += 1;
    }
    out
}

/// Sixteen bytes in both halves.
#[inline(always)]
fn twice<T, const N: usize>(x: &[T; N]) -> __m256i {
    const { assert!(size_of::<T>() * N == 16) };
    avx2!(_mm256_broadcastsi128_si256(_mm_loadu_si128(x.as_ptr().cast())))
}

/// 32 codes: sixteen from the low end of each half.
#[inline(always)]
fn unpack(packed: __m256i, bits: usize) -> __m256i {
    let how = &UNPACKING[bits % 8];
    avx2! {
        let even = _mm256_mullo_epi16(_mm256_shuffle_epi8(packed, twice(&how.even)), twice(&how.even_factors));
        let odd = _mm256_mullo_epi16(_mm256_shuffle_epi8(packed, twice(&how.odd)), twice(&how.odd_factors));
        let both = _mm256_or_si256(
            _mm256_srli_epi16::<8>(even),
            _mm256_and_si256(odd, _mm256_set1_epi16(0xff00u16 as i16)),
        );
        _mm256_and_si256(both, _mm256_set1_epi8((1 << bits) - 1))
    }
}

/// Sixteen bytes of one row from byte `at` on, and of another.
#[inline(always)]
fn two_rows(low: &[u8; 64], high: &[u8; 64], at: usize) -> __m256i {
    let (low, high) = (&low[at..].as_chunks::<16>().0[0], &high[at..].as_chunks::<16>().0[0]);
    avx2!(_mm256_set_m128i(_mm_loadu_si128(high.as_ptr().cast()), _mm_loadu_si128(low.as_ptr().cast())))
}

/// [`Simd::interleave`] for eight rows.
#[inline(always)]
fn interleave8(r: &[&[u8; 64]; 8]) -> [__m256i; 16] {
    let mut out = [avx2!(_mm256_setzero_si256()); 16];
    for part in 0..4 {
        let (a, b) = (two_rows(r[0], r[4], 16 * part), two_rows(r[1], r[5], 16 * part));
        let (c, d) = (two_rows(r[2], r[6], 16 * part), two_rows(r[3], r[7], 16 * part));
        avx2! {
            let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (low2, high2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            out[4 * part] = _mm256_unpacklo_epi64(low, low2);
            out[4 * part + 1] = _mm256_unpackhi_epi64(low, low2);
            out[4 * part + 2] = _mm256_unpacklo_epi64(high, high2);
            out[4 * part + 3] = _mm256_unpackhi_epi64(high, high2);
        }
    }
    out
}

/// The first four 4-bit codes of every four bytes' lower half, one to a byte.
#[inline(always)]
fn spread(packed: __m256i) -> __m256i {
    avx2! {
        let codes = _mm256_and_si256(packed, _mm256_set1_epi32(0xffff));
        let pairs = _mm256_or_si256(codes, _mm256_slli_epi32::<8>(codes));
        let pairs = _mm256_and_si256(pairs, _mm256_set1_epi16(0xff));
        _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi32::<4>(pairs)), _mm256_set1_epi8(15))
    }
}

/// Sixteen bytes from `at` on and sixteen from `step` later.
#[inline(always)]
fn halves(x: &[u8; 64], at: usize, step: usize) -> __m256i {
    let (low, high) = (&x[at..].as_chunks::<16>().0[0], &x[at + step..].as_chunks::<16>().0[0]);
    avx2!(_mm256_set_m128i(_mm_loadu_si128(high.as_ptr().cast()), _mm_loadu_si128(low.as_ptr().cast())))
}

/// See [`Simd::sum_quads`], for two quads.
#[inline(always)]
fn sum_quads(r: [__m256i; 4]) -> __m256i {
    avx2!(_mm256_hadd_epi32(_mm256_hadd_epi32(r[0], r[1]), _mm256_hadd_epi32(r[2], r[3])))
}

/// See [`Simd::sum_small_quads`], for two quads.
#[inline(always)]
fn sum_small_quads(r: [__m256i; 4]) -> __m256i {
    avx2! {
        let a = fours(_mm256_packs_epi32(r[0], r[1]));
        let b = fours(_mm256_packs_epi32(r[2], r[3]));
        fours(_mm256_packs_epi32(a, b))
    }
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

/// Adds products in fours.
#[inline(always)]
fn vnni(acc: __m256i, codes: __m256i, x: __m256i) -> __m256i {
    avx2!(_mm256_dpbusd_avx_epi32(acc, codes, x))
}

/// Products of two registers of codes below 64 in fours, added to `acc`. Two pairs of products of at most 63·127 fit 16
/// bits twice.
#[inline(always)]
fn add_codes<const VNNI: bool>(acc: __m256i, codes: [__m256i; 2], x: [__m256i; 2]) -> __m256i {
    if VNNI {
        return vnni(vnni(acc, codes[0], x[0]), codes[1], x[1]);
    }
    avx2!(_mm256_add_epi32(acc, fours(_mm256_add_epi16(pairs(codes[0], x[0]), pairs(codes[1], x[1])))))
}

/// Products of any codes, each less `CODE_OFFSET`.
#[inline(always)]
fn any_codes<const VNNI: bool>(acc: __m256i, codes: __m256i, x: __m256i) -> __m256i {
    if VNNI { vnni(acc, codes, x) } else { avx2!(_mm256_add_epi32(acc, offset_fours(codes, x))) }
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type F = [__m256; 2];
    type H = __m256;
    type Bytes = [__m256i; 2];
    type Quads = [__m256i; 2];
    type Sums = [__m256i; 2];
    type Matrix = NoMatrixUnit;

    const CODE_OFFSET: i32 = if VNNI { 0 } else { 128 };
    const ROOMY: bool = false;

    fn outline<W: Vectorized>(self, work: W) {
        avx2!(if VNNI { run_avx2_vnni(work) } else { run_avx2(work) });
    }

    #[inline(always)]
    fn matrix_unit(self, _: usize) -> Option<NoMatrixUnit> {
        None
    }

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
    fn nibbles(self, x: Self::Bytes) -> [Self::Bytes; 2] {
        let mask = avx2!([_mm256_set1_epi8(15); 2]);
        let high = avx2!([_mm256_srli_epi16::<4>(x[0]), _mm256_srli_epi16::<4>(x[1])]);
        [both!(_mm256_and_si256(x, mask)), both!(_mm256_and_si256(high, mask))]
    }
    #[inline(always)]
    fn lookup(self, bytes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        let table = avx2!(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())));
        avx2!([_mm256_shuffle_epi8(table, bytes[0]), _mm256_shuffle_epi8(table, bytes[1])])
    }
    #[inline(always)]
    fn twice(self, x: &[u8; 32]) -> Self::Bytes {
        avx2!([_mm256_loadu_si256(x.as_ptr().cast()); 2])
    }
    #[inline(always)]
    fn fields(self, x: Self::Bytes, shifts: [u32; 2], mask: u8) -> Self::Bytes {
        avx2! {
            let [low, high] = [_mm_cvtsi32_si128(shifts[0] as i32), _mm_cvtsi32_si128(shifts[1] as i32)];
            let mask = _mm256_set1_epi8(mask as i8);
            [
                _mm256_and_si256(_mm256_srl_epi16(x[0], low), mask),
                _mm256_and_si256(_mm256_srl_epi16(x[1], high), mask),
            ]
        }
    }
    #[inline(always)]
    fn join(self, low: Self::Bytes, high: Self::Bytes) -> Self::Bytes {
        avx2!([
            _mm256_or_si256(low[0], _mm256_slli_epi16::<4>(high[0])),
            _mm256_or_si256(low[1], _mm256_slli_epi16::<4>(high[1])),
        ])
    }
    #[inline(always)]
    fn unpack(self, packed: &[u8; 64], bits: usize) -> Self::Bytes {
        [unpack(halves(packed, 0, 2 * bits), bits), unpack(halves(packed, 4 * bits, 2 * bits), bits)]
    }
    #[inline(always)]
    fn interleave(self, rows: [&[u8; 64]; 16]) -> [Self::Bytes; 16] {
        let (halves, _) = rows.as_chunks::<8>();
        let (low, high) = (interleave8(&halves[0]), interleave8(&halves[1]));
        let mut out = [self.zero_sums(); 16];
        for i in 0..16 {
            out[i] = [low[i], high[i]];
        }
        out
    }
    #[inline(always)]
    fn spread(self, packed: Self::Bytes) -> [Self::Bytes; 2] {
        let upper = avx2!([_mm256_srli_epi32::<16>(packed[0]), _mm256_srli_epi32::<16>(packed[1])]);
        [[spread(packed[0]), spread(packed[1])], [spread(upper[0]), spread(upper[1])]]
    }
    #[inline(always)]
    fn transpose(self, rows: [&[u8; 16]; 16]) -> [[u8; 32]; 8] {
        transpose(rows)
    }

    #[inline(always)]
    fn zero_quads(self) -> Self::Quads {
        avx2!([_mm256_setzero_si256(); 2])
    }
    #[inline(always)]
    fn dot_pair(self, codes: [Self::Bytes; 2], x: [Self::Bytes; 2]) -> Self::Quads {
        let zero = avx2!(_mm256_setzero_si256());
        [
            add_codes::<VNNI>(zero, [codes[0][0], codes[1][0]], [x[0][0], x[1][0]]),
            add_codes::<VNNI>(zero, [codes[0][1], codes[1][1]], [x[0][1], x[1][1]]),
        ]
    }
    #[inline(always)]
    fn dot_codes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Quads {
        if VNNI {
            return self.dot_bytes(codes, x);
        }
        [fours(pairs(codes[0], x[0])), fours(pairs(codes[1], x[1]))]
    }
    #[inline(always)]
    fn dot_bytes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Quads {
        let zero = avx2!(_mm256_setzero_si256());
        [any_codes::<VNNI>(zero, codes[0], x[0]), any_codes::<VNNI>(zero, codes[1], x[1])]
    }
    #[inline(always)]
    fn sum_quads(self, r: [Self::Quads; 4]) -> Self::Quads {
        [sum_quads([r[0][0], r[1][0], r[2][0], r[3][0]]), sum_quads([r[0][1], r[1][1], r[2][1], r[3][1]])]
    }
    #[inline(always)]
    fn sum_small_quads(self, r: [Self::Quads; 4]) -> Self::Quads {
        [
            sum_small_quads([r[0][0], r[1][0], r[2][0], r[3][0]]),
            sum_small_quads([r[0][1], r[1][1], r[2][1], r[3][1]]),
        ]
    }
    #[inline(always)]
    fn turn(self, r: [Self::Quads; 4]) -> [Self::Sums; 4] {
        let mut out = [self.zero_sums(); 4];
        for h in 0..2 {
            avx2! {
                out[2 * h] = [
                    _mm256_permute2x128_si256::<0x20>(r[0][h], r[1][h]),
                    _mm256_permute2x128_si256::<0x20>(r[2][h], r[3][h]),
                ];
                out[2 * h + 1] = [
                    _mm256_permute2x128_si256::<0x31>(r[0][h], r[1][h]),
                    _mm256_permute2x128_si256::<0x31>(r[2][h], r[3][h]),
                ];
            }
        }
        out
    }

    #[inline(always)]
    fn load_sums(self, x: &[i32; 16]) -> Self::Sums {
        avx2!([_mm256_loadu_si256(x.as_ptr().cast()), _mm256_loadu_si256(x.as_ptr().add(8).cast())])
    }
    #[inline(always)]
    fn zero_sums(self) -> Self::Sums {
        avx2!([_mm256_setzero_si256(); 2])
    }
    #[inline(always)]
    fn add_sums(self, a: Self::Sums, b: Self::Sums) -> Self::Sums {
        both!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn tile_codes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: &[[i8; 4]; 2]) -> Self::Sums {
        let x = [four_activations(x[0]), four_activations(x[1])];
        [
            add_codes::<VNNI>(acc[0], [codes[0][0], codes[1][0]], x),
            add_codes::<VNNI>(acc[1], [codes[0][1], codes[1][1]], x),
        ]
    }
    #[inline(always)]
    fn tile_bytes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: &[[i8; 4]; 2]) -> Self::Sums {
        let x = [four_activations(x[0]), four_activations(x[1])];
        let first =
            [any_codes::<VNNI>(acc[0], codes[0][0], x[0]), any_codes::<VNNI>(acc[1], codes[0][1], x[0])];
        [any_codes::<VNNI>(first[0], codes[1][0], x[1]), any_codes::<VNNI>(first[1], codes[1][1], x[1])]
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
