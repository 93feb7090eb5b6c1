//! What the processor can do at most: reading memory, and multiplying in registers. Nothing is computed that anyone
//! needs; the time is the result, and the caller takes it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Cpu, PIECES_PER_THREAD};
use crate::level::{Kernel, Vectorized};
use crate::vector::Simd;
use crate::vector::peak::{ReadBlock, plain_bytes, plain_floats, plain_words};

/// Bytes that a thread reads at a time.
const PIECE: usize = 1 << 20;

/// Kinds of multiply-adds that the kernels are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Product {
    /// Unsigned times signed bytes, summed in 32 bits: quantised linear layers.
    Bytes,
    /// f32, fused: float linear layers, attention and the delta rule.
    Floats,
}

impl Cpu {
    /// Reads every byte of `parts` once, on all threads, and returns the sum of their little-endian 64-bit words, modulo
    /// 2^64; what is left behind a part's last whole word counts as one padded with zeros.
    pub fn read(&self, parts: &[&[u8]]) -> u64 {
        let pieces: Vec<&[u8]> = parts.iter().flat_map(|part| part.chunks(PIECE)).collect();
        let sum = AtomicU64::new(0);
        self.pool.run(pieces.len(), &|index| self.level.run(Read { bytes: pieces[index], sum: &sum }));
        sum.into_inner()
    }

    /// Does multiply-adds in registers on all threads, as fast as the instruction set can, and returns how many: a number
    /// for each round and thread that depends on the instruction set.
    pub fn multiply(&self, product: Product, rounds: usize) -> u64 {
        let done = AtomicU64::new(0);
        self.pool.run(self.threads() * PIECES_PER_THREAD, &|_| {
            self.level.run(Multiply { product, rounds, done: &done });
        });
        done.into_inner()
    }
}

/// Adds the words of `bytes` to `sum`.
struct Read<'a> {
    bytes: &'a [u8],
    sum: &'a AtomicU64,
}

impl Read<'_> {
    /// Adds the sum of the whole blocks, and what is left behind them.
    fn add(self, blocks: u64) {
        let (_, rest) = self.bytes.as_chunks::<{ size_of::<ReadBlock>() }>();
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        self.sum.fetch_add(rest.chunks(8).map(word).fold(blocks, u64::wrapping_add), Ordering::Relaxed);
    }
}

impl Kernel for Read<'_> {
    fn reference(self) {
        let sum = plain_words(self.bytes.as_chunks().0);
        self.add(sum);
    }
}

impl Vectorized for Read<'_> {
    #[inline(always)]
    fn vectorized<S: Simd>(self, simd: S) {
        let sum = simd.sum_words(self.bytes.as_chunks().0);
        self.add(sum);
    }
}

/// Adds the number of its multiply-adds to `done`.
struct Multiply<'a> {
    product: Product,
    rounds: usize,
    done: &'a AtomicU64,
}

impl Kernel for Multiply<'_> {
    const INTEGER: bool = true;

    fn reference(self) {
        let count = match self.product {
            Product::Bytes => plain_bytes(self.rounds),
            Product::Floats => plain_floats(self.rounds),
        };
        self.done.fetch_add(count, Ordering::Relaxed);
    }
}

impl Vectorized for Multiply<'_> {
    #[inline(always)]
    fn vectorized<S: Simd>(self, simd: S) {
        let count = match self.product {
            Product::Bytes => simd.multiply_bytes(self.rounds),
            Product::Floats => simd.multiply_floats(self.rounds),
        };
        self.done.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::level::Level;

    #[test]
    fn every_byte_is_read_once_by_every_level() {
        let bytes: Vec<u8> = (0..PIECE as u32 + 1003).map(|i| (i * 7 % 251) as u8).collect();
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        let parts = [&bytes[..], &bytes[3..1000], &[], &bytes[5..6]];
        let expected = parts.iter().flat_map(|part| part.chunks(8)).map(word).fold(0, u64::wrapping_add);
        for level in Level::all() {
            for threads in [1, 3] {
                let cpu = Cpu::with_level(Isa::Reference, level, threads).unwrap();
                assert_eq!(cpu.read(&parts), expected, "{cpu:?}");
            }
        }
    }

    #[test]
    fn multiply_adds_grow_with_rounds_and_threads() {
        for level in Level::all() {
            let count = |threads, product, rounds| {
                Cpu::with_level(Isa::Reference, level, threads).unwrap().multiply(product, rounds)
            };
            for product in [Product::Bytes, Product::Floats] {
                let one = count(1, product, 1);
                assert!(one > 0);
                assert_eq!(count(1, product, 10), 10 * one, "{level:?}");
                assert_eq!(count(3, product, 10), 30 * one, "{level:?}");
            }
        }
    }
}
