//! The rates of the execution units and of memory: loops that do nothing else, to hold measured speeds against.
//!
//! Multiply-adds run over registers alone. Chains of dependent instructions run side by side, more of them than latency times units, so that no unit waits. Every
//! chain feeds its sums back as the next factors: no round is known to repeat another, and none can be left out.

use std::hint::black_box;

use crate::simd::prefetch;

/// The highest rates of an instruction set.
pub(crate) trait Peak {
    /// `rounds` rounds of products of unsigned and signed bytes, summed in 32 bits by the instructions of the linear
    /// kernels. Returns how many multiply-adds they were.
    fn multiply_bytes(self, rounds: usize) -> u64;

    /// The same for f32, fused.
    fn multiply_floats(self, rounds: usize) -> u64;

    /// The sum of the little-endian 64-bit words of `blocks`, modulo 2^64, by loads of whole registers.
    fn sum_words(self, blocks: &[ReadBlock]) -> u64;
}

/// Bytes that a round of [`Peak::sum_words`] reads, four cache lines.
pub(crate) type ReadBlock = [u8; 256];

/// Bytes ahead of the current ones that [`Peak::sum_words`] fetches meanwhile.
const AHEAD: usize = 4 << 10;

/// Asks for the block that is [`AHEAD`] of `block`.
#[inline(always)]
fn fetch_ahead(block: &ReadBlock) {
    for line in (0..size_of::<ReadBlock>()).step_by(64) {
        prefetch(block.as_ptr().wrapping_add(AHEAD + line));
    }
}

/// [`Peak::sum_words`] word by word.
pub(crate) fn plain_words(blocks: &[ReadBlock]) -> u64 {
    let words = blocks.as_flattened().as_chunks().0;
    words.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)))
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
impl<const MATRIX: bool> Peak for super::portable::Portable<MATRIX> {
    fn multiply_bytes(self, rounds: usize) -> u64 {
        plain_bytes(rounds)
    }

    fn multiply_floats(self, rounds: usize) -> u64 {
        plain_floats(rounds)
    }

    fn sum_words(self, blocks: &[ReadBlock]) -> u64 {
        plain_words(blocks)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{Peak, ReadBlock, fetch_ahead};
    use crate::vector::amx;
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

        #[inline(always)]
        fn sum_words(self, blocks: &[ReadBlock]) -> u64 {
            let mut sums = avx2!([_mm256_setzero_si256(); 8]);
            for block in blocks {
                fetch_ahead(block);
                for (sum, line) in sums.iter_mut().zip(block.as_chunks::<32>().0) {
                    *sum = avx2!(_mm256_add_epi64(*sum, _mm256_loadu_si256(line.as_ptr().cast())));
                }
            }
            let mut words = [[0u64; 4]; 8];
            for (words, sum) in words.iter_mut().zip(sums) {
                avx2!(_mm256_storeu_si256(words.as_mut_ptr().cast(), sum));
            }
            words.as_flattened().iter().fold(0, |sum, word| sum.wrapping_add(*word))
        }
    }

    impl<const VNNI: bool, const VBMI: bool, const AMX: bool> Peak for Avx512<VNNI, VBMI, AMX> {
        /// TDPBSUD, or without AMX VPDPBUSD, or without VNNI what AVX2 does.
        #[inline(always)]
        fn multiply_bytes(self, rounds: usize) -> u64 {
            if AMX {
                // SAFETY: there is AMX.
                return unsafe { amx::multiply_bytes(rounds) };
            }
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

        #[inline(always)]
        fn sum_words(self, blocks: &[ReadBlock]) -> u64 {
            let mut sums = avx2!([_mm512_setzero_si512(); 4]);
            for block in blocks {
                fetch_ahead(block);
                for (sum, line) in sums.iter_mut().zip(block.as_chunks::<64>().0) {
                    *sum = avx2!(_mm512_add_epi64(*sum, _mm512_loadu_si512(line.as_ptr().cast())));
                }
            }
            let mut words = [[0u64; 8]; 4];
            for (words, sum) in words.iter_mut().zip(sums) {
                avx2!(_mm512_storeu_si512(words.as_mut_ptr().cast(), sum));
            }
            words.as_flattened().iter().fold(0, |sum, word| sum.wrapping_add(*word))
        }
    }
}
