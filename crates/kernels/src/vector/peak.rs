//! Multiply-adds at the rate of the execution units: loops over registers alone, to hold measured speeds against.
//!
//! Chains of dependent instructions run side by side, more of them than latency times units, so that no unit waits. Every
//! chain feeds its sums back as the next factors: no round is known to repeat another, and none can be left out.

use std::hint::black_box;

/// The highest multiply-add rates of an instruction set.
pub(crate) trait Peak {
    /// `rounds` rounds of products of unsigned and signed bytes, summed in 32 bits by the instructions of the linear
    /// kernels. Returns how many multiply-adds they were.
    fn multiply_bytes(self, rounds: usize) -> u64;

    /// The same for f32, fused.
    fn multiply_floats(self, rounds: usize) -> u64;
}

/// Lanes of the plain loops.
const PLAIN: usize = 16;

/// [`Peak::multiply_bytes`] as the reference multiplies.
pub(crate) fn plain_bytes(rounds: usize) -> u64 {
    let code = black_box(3u8);
    let mut sums: [i32; PLAIN] = black_box(std::array::from_fn(|lane| lane as i32));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = sum.wrapping_add(i32::from(code) * i32::from(*sum as i8));
        }
    }
    black_box(sums);
    (rounds * PLAIN) as u64
}

/// [`Peak::multiply_floats`] as the reference multiplies.
pub(crate) fn plain_floats(rounds: usize) -> u64 {
    let half = black_box(0.5f32);
    let mut sums: [f32; PLAIN] = black_box(std::array::from_fn(|lane| lane as f32));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = sum.mul_add(half, half);
        }
    }
    black_box(sums);
    (rounds * PLAIN) as u64
}

#[cfg(test)]
impl Peak for super::portable::Portable {
    fn multiply_bytes(self, rounds: usize) -> u64 {
        plain_bytes(rounds)
    }

    fn multiply_floats(self, rounds: usize) -> u64 {
        plain_floats(rounds)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::Peak;
    use crate::vector::avx2::{Avx2, avx2};
    use crate::vector::avx512::Avx512;

    /// Chains of bytes on AVX2, whose sixteen registers also hold factors and intermediate sums.
    const BYTE_CHAINS: usize = 8;
    /// Chains everywhere else: an instruction takes up to five cycles, and two can start in each.
    const CHAINS: usize = 12;

    impl<const VNNI: bool> Peak for Avx2<VNNI> {
        /// As the linear kernels do it: VPDPBUSD, or without VNNI two VPMADDUBSW that share one VPMADDWD.
        #[inline(always)]
        fn multiply_bytes(self, rounds: usize) -> u64 {
            let codes = black_box(avx2!([_mm256_set1_epi8(3), _mm256_set1_epi8(5)]));
            let ones = avx2!(_mm256_set1_epi16(1));
            let mut sums: [__m256i; BYTE_CHAINS] = black_box(avx2!([_mm256_set1_epi32(1); BYTE_CHAINS]));
            for _ in 0..rounds {
                for sum in &mut sums {
                    if VNNI {
                        avx2! {
                            *sum = _mm256_dpbusd_avx_epi32(*sum, codes[0], *sum);
                            *sum = _mm256_dpbusd_avx_epi32(*sum, codes[1], *sum);
                        }
                        continue;
                    }
                    avx2! {
                        let first = _mm256_maddubs_epi16(codes[0], *sum);
                        let pairs = _mm256_add_epi16(first, _mm256_maddubs_epi16(codes[1], *sum));
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            black_box(sums);
            (rounds * BYTE_CHAINS * 2 * size_of::<__m256i>()) as u64
        }

        #[inline(always)]
        fn multiply_floats(self, rounds: usize) -> u64 {
            let half = black_box(avx2!(_mm256_set1_ps(0.5)));
            let mut sums: [__m256; CHAINS] = black_box(avx2!([_mm256_set1_ps(2.0); CHAINS]));
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = avx2!(_mm256_fmadd_ps(*sum, half, half));
                }
            }
            black_box(sums);
            (rounds * CHAINS * size_of::<__m256>() / size_of::<f32>()) as u64
        }
    }

    impl<const VNNI: bool, const VBMI: bool> Peak for Avx512<VNNI, VBMI> {
        /// VPDPBUSD, or without VNNI what AVX2 does.
        #[inline(always)]
        fn multiply_bytes(self, rounds: usize) -> u64 {
            let codes = black_box(avx2!([_mm512_set1_epi8(3), _mm512_set1_epi8(5)]));
            let ones = avx2!(_mm512_set1_epi16(1));
            let mut sums: [__m512i; CHAINS] = black_box(avx2!([_mm512_set1_epi32(1); CHAINS]));
            for _ in 0..rounds {
                for sum in &mut sums {
                    if VNNI {
                        avx2! {
                            *sum = _mm512_dpbusd_epi32(*sum, codes[0], *sum);
                            *sum = _mm512_dpbusd_epi32(*sum, codes[1], *sum);
                        }
                    } else {
                        avx2! {
                            let first = _mm512_maddubs_epi16(codes[0], *sum);
                            let pairs = _mm512_add_epi16(first, _mm512_maddubs_epi16(codes[1], *sum));
                            *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(pairs, ones));
                        }
                    }
                }
            }
            black_box(sums);
            (rounds * CHAINS * 2 * size_of::<__m512i>()) as u64
        }

        #[inline(always)]
        fn multiply_floats(self, rounds: usize) -> u64 {
            let half = black_box(avx2!(_mm512_set1_ps(0.5)));
            let mut sums: [__m512; CHAINS] = black_box(avx2!([_mm512_set1_ps(2.0); CHAINS]));
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = avx2!(_mm512_fmadd_ps(*sum, half, half));
                }
            }
            black_box(sums);
            (rounds * CHAINS * size_of::<__m512>() / size_of::<f32>()) as u64
        }
    }
}
