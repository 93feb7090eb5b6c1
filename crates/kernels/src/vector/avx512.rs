//! The virtual vector on AVX-512 F, BW, DQ and VL: one 512-bit register; with VNNI, and VBMI with GFNI, where the
//! processor has them, and AMX.
//!
//! Reductions leave 512 bits in their first step and go on with the AVX2 code, so that there is one tree.

use std::arch::x86_64::*;

use super::Simd;
use super::amx::Tiles;
use super::avx2::{self, UNPACKING, avx2, four_bytes};
use crate::level::{Vectorized, run_amx, run_avx512, run_avx512_vbmi, run_avx512_vnni};

/// The token of this instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VNNI: bool, const VBMI: bool, const AMX: bool = false>(());

impl<const VNNI: bool, const VBMI: bool, const AMX: bool> Avx512<VNNI, VBMI, AMX> {
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ and VL, everything that `Avx2` needs, with `VNNI` that,
    /// with `VBMI` that and GFNI, and with `AMX` that as well.
    #[inline(always)]
    pub unsafe fn new_unchecked() -> Self {
        Avx512(())
    }
}

/// Four times sixteen bytes, one to each quarter.
#[inline(always)]
fn quarters(x: [&[u8; 16]; 4]) -> __m512i {
    avx2! {
        let v = _mm512_castsi128_si512(_mm_loadu_si128(x[0].as_ptr().cast()));
        let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(x[1].as_ptr().cast()));
        let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(x[2].as_ptr().cast()));
        _mm512_inserti32x4::<3>(v, _mm_loadu_si128(x[3].as_ptr().cast()))
    }
}

/// Sixteen bytes in every quarter.
#[inline(always)]
fn every<T, const N: usize>(x: &[T; N]) -> __m512i {
    const { assert!(size_of::<T>() * N == 16) };
    avx2!(_mm512_broadcast_i32x4(_mm_loadu_si128(x.as_ptr().cast())))
}

/// 64 codes: sixteen from the low end of each quarter.
#[inline(always)]
fn unpack_quarters(packed: __m512i, bits: usize) -> __m512i {
    let how = &UNPACKING[bits % 8];
    avx2! {
        let even = _mm512_mullo_epi16(_mm512_shuffle_epi8(packed, every(&how.even)), every(&how.even_factors));
        let odd = _mm512_mullo_epi16(_mm512_shuffle_epi8(packed, every(&how.odd)), every(&how.odd_factors));
        let both = _mm512_mask_mov_epi8(_mm512_srli_epi16::<8>(even), 0xaaaa_aaaa_aaaa_aaaa, odd);
        _mm512_and_si512(both, _mm512_set1_epi8((1 << bits) - 1))
    }
}

/// The bit matrix that moves a byte's upper four bits down: its last byte says where the result's lowest bit comes from.
const HIGH_NIBBLE: i64 = 0x1020_4080 << 32;

/// Where VBMI finds codes: the first of a word's bytes, and each code's first bit in the word.
struct Spreading {
    bytes: [u8; 64],
    bits: [u8; 64],
}

/// By bits per code.
static SPREADING: [Spreading; 8] = [
    spreading(0),
    spreading(1),
    spreading(2),
    spreading(3),
    spreading(4),
    spreading(5),
    spreading(6),
    spreading(7),
];

const fn spreading(bits: usize) -> Spreading {
    let mut out = Spreading { bytes: [0; 64], bits: [0; 64] };
    let mut i = 0;
    while i < 64 {
        out.bytes[i] = (i / 8 * bits + i % 8) as u8;
        out.bits[i] = (i % 8 * bits) as u8;
        i += 1;
    }
    out
}

/// 64 codes from the low end.
#[inline(always)]
fn unpack_words(packed: __m512i, bits: usize) -> __m512i {
    let how = &SPREADING[bits % 8];
    avx2! {
        let words = _mm512_permutexvar_epi8(_mm512_loadu_si512(how.bytes.as_ptr().cast()), packed);
        let codes = _mm512_multishift_epi64_epi8(_mm512_loadu_si512(how.bits.as_ptr().cast()), words);
        _mm512_and_si512(codes, _mm512_set1_epi8((1 << bits) - 1))
    }
}

/// The first four 4-bit codes of every four bytes' lower half, one to a byte.
#[inline(always)]
fn spread(packed: __m512i) -> __m512i {
    avx2! {
        let codes = _mm512_and_si512(packed, _mm512_set1_epi32(0xffff));
        let pairs = _mm512_or_si512(codes, _mm512_slli_epi32::<8>(codes));
        let pairs = _mm512_and_si512(pairs, _mm512_set1_epi16(0xff));
        _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi32::<4>(pairs)), _mm512_set1_epi8(15))
    }
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

impl<const VNNI: bool, const VBMI: bool, const AMX: bool> Simd for Avx512<VNNI, VBMI, AMX> {
    type F = __m512;
    type H = __m256;
    type Bytes = __m512i;
    type Quads = __m512i;
    type Sums = __m512i;
    type Matrix = Tiles;

    const CODE_OFFSET: i32 = if VNNI { 0 } else { 128 };
    const ROOMY: bool = true;

    fn outline<W: Vectorized>(self, work: W) {
        avx2! {
            match (VNNI, VBMI, AMX) {
                (false, ..) => run_avx512(work),
                (true, false, _) => run_avx512_vnni(work),
                (true, true, false) => run_avx512_vbmi(work),
                (true, true, true) => run_amx(work),
            }
        }
    }

    #[inline(always)]
    fn matrix_unit(self, block: usize) -> Option<Tiles> {
        // SAFETY: with `AMX` there is that.
        AMX.then(|| unsafe { Tiles::new(block) })
    }

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
    fn nibbles(self, x: Self::Bytes) -> [Self::Bytes; 2] {
        avx2! {
            let mask = _mm512_set1_epi8(15);
            let high = if VBMI {
                _mm512_gf2p8affine_epi64_epi8::<0>(x, _mm512_set1_epi64(HIGH_NIBBLE))
            } else {
                _mm512_and_si512(_mm512_srli_epi16::<4>(x), mask)
            };
            [_mm512_and_si512(x, mask), high]
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
    fn twice(self, x: &[u8; 32]) -> Self::Bytes {
        avx2!(_mm512_broadcast_i64x4(_mm256_loadu_si256(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn fields(self, x: Self::Bytes, shifts: [u32; 2], mask: u8) -> Self::Bytes {
        avx2! {
            let [low, high] = [_mm256_set1_epi16(shifts[0] as i16), _mm256_set1_epi16(shifts[1] as i16)];
            let counts = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            _mm512_and_si512(_mm512_srlv_epi16(x, counts), _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    fn join(self, low: Self::Bytes, high: Self::Bytes) -> Self::Bytes {
        avx2!(_mm512_or_si512(low, _mm512_slli_epi16::<4>(high)))
    }
    #[inline(always)]
    fn unpack(self, packed: &[u8; 64], bits: usize) -> Self::Bytes {
        if VBMI {
            return unpack_words(self.bytes(packed), bits);
        }
        let mut sixteens = [&[0; 16]; 4];
        for (quarter, sixteen) in sixteens.iter_mut().enumerate() {
            *sixteen = &packed[quarter * 2 * bits..].as_chunks().0[0];
        }
        unpack_quarters(quarters(sixteens), bits)
    }
    #[inline(always)]
    fn interleave(self, rows: [&[u8; 64]; 16]) -> [Self::Bytes; 16] {
        // Four rows at a time: lane r of quarter q is row r's value 4q + i. The quarters are then turned like quads.
        let mut fours = [[self.zero_quads(); 4]; 4]; // [i, row / 4]
        for four in 0..4 {
            let (a, b) = (self.bytes(rows[4 * four]), self.bytes(rows[4 * four + 1]));
            let (c, d) = (self.bytes(rows[4 * four + 2]), self.bytes(rows[4 * four + 3]));
            avx2! {
                let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
                let (low2, high2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
                fours[0][four] = _mm512_unpacklo_epi64(low, low2);
                fours[1][four] = _mm512_unpackhi_epi64(low, low2);
                fours[2][four] = _mm512_unpacklo_epi64(high, high2);
                fours[3][four] = _mm512_unpackhi_epi64(high, high2);
            }
        }
        let mut out = [self.zero_sums(); 16];
        for i in 0..4 {
            let turned = self.turn(fours[i]);
            for quarter in 0..4 {
                out[4 * quarter + i] = turned[quarter];
            }
        }
        out
    }
    #[inline(always)]
    fn spread(self, packed: Self::Bytes) -> [Self::Bytes; 2] {
        if !VBMI {
            return [spread(packed), spread(avx2!(_mm512_srli_epi32::<16>(packed)))];
        }
        avx2! {
            // First bits of the codes of eight bytes.
            let first = _mm512_set1_epi64(0x2c28_2420_0c08_0400);
            let other = _mm512_add_epi8(first, _mm512_set1_epi8(16));
            let mask = _mm512_set1_epi8(15);
            [
                _mm512_and_si512(_mm512_multishift_epi64_epi8(first, packed), mask),
                _mm512_and_si512(_mm512_multishift_epi64_epi8(other, packed), mask),
            ]
        }
    }
    #[inline(always)]
    fn transpose(self, r: [&[u8; 16]; 16]) -> [[u8; 32]; 8] {
        let mut out = [[0; 32]; 8];
        // Every fourth row in one register, so that neighbouring rows meet in one quarter.
        let (a, b) = (quarters([r[0], r[4], r[8], r[12]]), quarters([r[1], r[5], r[9], r[13]]));
        let (c, d) = (quarters([r[2], r[6], r[10], r[14]]), quarters([r[3], r[7], r[11], r[15]]));
        avx2! {
            let pairs = [
                (_mm512_unpacklo_epi16(a, b), _mm512_unpacklo_epi16(c, d)),
                (_mm512_unpackhi_epi16(a, b), _mm512_unpackhi_epi16(c, d)),
            ];
            let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
            for (half, (ab, cd)) in pairs.into_iter().enumerate() {
                let values = [_mm512_unpacklo_epi32(ab, cd), _mm512_unpackhi_epi32(ab, cd)];
                for (i, two) in values.into_iter().enumerate() {
                    let out = out.as_mut_ptr().add(4 * half + 2 * i);
                    _mm512_storeu_si512(out.cast(), _mm512_permutexvar_epi64(order, two));
                }
            }
        }
        out
    }

    #[inline(always)]
    fn zero_quads(self) -> Self::Quads {
        avx2!(_mm512_setzero_si512())
    }
    #[inline(always)]
    fn dot_pair(self, codes: [Self::Bytes; 2], x: [Self::Bytes; 2]) -> Self::Quads {
        fours::<VNNI>(self.dot_codes(codes[0], x[0]), codes[1], x[1])
    }
    #[inline(always)]
    fn dot_codes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Quads {
        fours::<VNNI>(self.zero_sums(), codes, x)
    }
    #[inline(always)]
    fn dot_bytes(self, codes: Self::Bytes, x: Self::Bytes) -> Self::Quads {
        offset_fours::<VNNI>(self.zero_sums(), codes, x)
    }
    #[inline(always)]
    fn sum_quads(self, r: [Self::Quads; 4]) -> Self::Quads {
        avx2! {
            let a = _mm512_add_epi32(_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
            let b = _mm512_add_epi32(_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
            _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
        }
    }
    #[inline(always)]
    fn sum_small_quads(self, r: [Self::Quads; 4]) -> Self::Quads {
        avx2! {
            let ones = _mm512_set1_epi16(1);
            let a = _mm512_madd_epi16(_mm512_packs_epi32(r[0], r[1]), ones);
            let b = _mm512_madd_epi16(_mm512_packs_epi32(r[2], r[3]), ones);
            _mm512_madd_epi16(_mm512_packs_epi32(a, b), ones)
        }
    }
    #[inline(always)]
    fn turn(self, r: [Self::Quads; 4]) -> [Self::Sums; 4] {
        avx2! {
            let low = [_mm512_shuffle_i32x4::<0x44>(r[0], r[1]), _mm512_shuffle_i32x4::<0x44>(r[2], r[3])];
            let high = [_mm512_shuffle_i32x4::<0xee>(r[0], r[1]), _mm512_shuffle_i32x4::<0xee>(r[2], r[3])];
            [
                _mm512_shuffle_i32x4::<0x88>(low[0], low[1]),
                _mm512_shuffle_i32x4::<0xdd>(low[0], low[1]),
                _mm512_shuffle_i32x4::<0x88>(high[0], high[1]),
                _mm512_shuffle_i32x4::<0xdd>(high[0], high[1]),
            ]
        }
    }

    #[inline(always)]
    fn load_sums(self, x: &[i32; 16]) -> Self::Sums {
        avx2!(_mm512_loadu_si512(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn zero_sums(self) -> Self::Sums {
        avx2!(_mm512_setzero_si512())
    }
    #[inline(always)]
    fn add_sums(self, a: Self::Sums, b: Self::Sums) -> Self::Sums {
        avx2!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn tile_codes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: &[[i8; 4]; 2]) -> Self::Sums {
        avx2! {
            let acc = fours::<VNNI>(acc, codes[0], _mm512_set1_epi32(four_bytes(x[0])));
            fours::<VNNI>(acc, codes[1], _mm512_set1_epi32(four_bytes(x[1])))
        }
    }
    #[inline(always)]
    fn tile_bytes(self, acc: Self::Sums, codes: [Self::Bytes; 2], x: &[[i8; 4]; 2]) -> Self::Sums {
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
