//! The virtual vector in plain Rust, to test the generic kernels apart from any instruction set.

use half::{bf16, f16};

use super::{MatrixUnit, Products, Simd};
use crate::level::Vectorized;
use crate::simd::tile::Unit;

/// The token; every machine has it.
#[derive(Clone, Copy)]
pub(crate) struct Portable<const MATRIX: bool>;

/// A matrix unit for blocks of so many columns.
pub(crate) struct PlainUnit(usize);

impl MatrixUnit for PlainUnit {
    fn products<const TOKENS: usize>(&self, codes: &[i8], units: &[Unit], sums: &mut Products) {
        for (codes, sums) in codes.chunks_exact(self.0).zip(sums).take(TOKENS) {
            sums.0 = [0; 16];
            for (x, unit) in codes.as_chunks::<4>().0.iter().zip(units) {
                for (sum, codes) in sums.0.iter_mut().zip(unit.0.as_chunks::<4>().0) {
                    *sum += codes.iter().zip(x).map(|(q, x)| i32::from(*q) * i32::from(*x)).sum::<i32>();
                }
            }
        }
    }
}

fn zip(a: [f32; 16], b: [f32; 16], f: impl Fn(f32, f32) -> f32) -> [f32; 16] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

fn halve<const N: usize, const M: usize>(v: [f32; N]) -> [f32; M] {
    std::array::from_fn(|i| v[i] + v[i + M])
}

impl<const MATRIX: bool> Simd for Portable<MATRIX> {
    type F = [f32; 16];
    type H = [f32; 8];
    type Bytes = [u8; 64];
    type Quads = [i32; 16];
    type Sums = [i32; 16];
    type Matrix = PlainUnit;

    const CODE_OFFSET: i32 = 0;
    const ROOMY: bool = true;

    fn matrix_unit(self, block: usize) -> Option<PlainUnit> {
        MATRIX.then_some(PlainUnit(block))
    }

    fn outline<W: Vectorized>(self, work: W) {
        work.vectorized(self);
    }

    fn splat(self, x: f32) -> [f32; 16] {
        [x; 16]
    }
    fn load(self, x: &[f32; 16]) -> [f32; 16] {
        *x
    }
    fn load_f32(self, x: &[u8; 64]) -> [f32; 16] {
        std::array::from_fn(|i| f32::from_le_bytes(x.as_chunks().0[i]))
    }
    fn load_f16(self, x: &[u8; 32]) -> [f32; 16] {
        std::array::from_fn(|i| f16::from_le_bytes(x.as_chunks().0[i]).to_f32())
    }
    fn load_bf16(self, x: &[u8; 32]) -> [f32; 16] {
        std::array::from_fn(|i| bf16::from_le_bytes(x.as_chunks().0[i]).to_f32())
    }
    fn splat_f16(self, x: [u8; 2]) -> [f32; 16] {
        [f16::from_le_bytes(x).to_f32(); 16]
    }
    fn load_i8(self, x: &[u8; 16]) -> [f32; 16] {
        x.map(|x| f32::from(x.cast_signed()))
    }
    fn load_nibbles(self, x: &[u8; 16], high: bool, table: &[i8; 16]) -> [f32; 16] {
        x.map(|x| f32::from(table[usize::from(if high { x >> 4 } else { x & 15 })]))
    }
    fn store(self, v: [f32; 16], out: &mut [f32; 16]) {
        *out = v;
    }
    fn store_f16(self, v: [f32; 16], out: &mut [u8; 32]) {
        for (out, v) in out.as_chunks_mut().0.iter_mut().zip(v) {
            *out = f16::from_f32(v).to_le_bytes();
        }
    }

    fn add(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a + b)
    }
    fn sub(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a - b)
    }
    fn mul(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a * b)
    }
    fn div(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a / b)
    }
    fn fma(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    fn neg(self, a: [f32; 16]) -> [f32; 16] {
        a.map(|a| -a)
    }
    fn abs(self, a: [f32; 16]) -> [f32; 16] {
        a.map(f32::abs)
    }
    fn max(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    fn min(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    fn above(self, a: [f32; 16], border: [f32; 16], height: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| if a[i] > border[i] { height[i] } else { 0.0 })
    }
    fn round(self, a: [f32; 16]) -> [f32; 16] {
        a.map(f32::round_ties_even)
    }
    fn scale2(self, y: [f32; 16], n: [f32; 16]) -> [f32; 16] {
        zip(y, n, |y, n| {
            let n = n as i32;
            let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
            y * power(n >> 1) * power(n - (n >> 1))
        })
    }
    fn to_i8(self, v: [f32; 16]) -> [i8; 16] {
        v.map(|v| v as i8)
    }

    fn fold(self, v: [f32; 16]) -> [f32; 8] {
        halve(v)
    }
    fn sum8(self, rows: [[f32; 8]; 8]) -> [f32; 8] {
        rows.map(|row| halve::<2, 1>(halve::<4, 2>(halve::<8, 4>(row)))[0])
    }
    fn store_half(self, v: [f32; 8], out: &mut [f32; 8]) {
        *out = v;
    }
    fn sum(self, v: [f32; 16]) -> f32 {
        self.sum8([self.fold(v); 8])[0]
    }
    fn largest(self, v: [f32; 16]) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    fn bytes(self, x: &[u8; 64]) -> [u8; 64] {
        *x
    }
    fn store_bytes(self, v: [u8; 64], out: &mut [u8; 64]) {
        *out = v;
    }
    fn activations(self, x: &[i8; 64]) -> [u8; 64] {
        x.map(|x| x as u8)
    }
    fn nibbles(self, x: [u8; 64]) -> [[u8; 64]; 2] {
        [x.map(|x| x & 15), x.map(|x| x >> 4)]
    }
    fn lookup(self, bytes: [u8; 64], table: &[u8; 16]) -> [u8; 64] {
        bytes.map(|byte| table[usize::from(byte)])
    }
    fn twice(self, x: &[u8; 32]) -> [u8; 64] {
        std::array::from_fn(|i| x[i % 32])
    }
    fn fields(self, x: [u8; 64], shifts: [u32; 2], mask: u8) -> [u8; 64] {
        assert!(shifts.iter().all(|shift| shift + 8 - mask.leading_zeros() <= 8));
        std::array::from_fn(|i| x[i] >> shifts[i / 32] & mask)
    }
    fn join(self, low: [u8; 64], high: [u8; 64]) -> [u8; 64] {
        assert!(high.iter().all(|&high| high < 16));
        std::array::from_fn(|i| low[i] | high[i] << 4)
    }
    fn unpack(self, packed: &[u8; 64], bits: usize) -> [u8; 64] {
        std::array::from_fn(|i| {
            let at = i * bits;
            let pair = u16::from_le_bytes([packed[at / 8], packed[at / 8 + 1]]);
            (pair >> (at % 8)) as u8 & ((1 << bits) - 1)
        })
    }
    fn interleave(self, rows: [&[u8; 64]; 16]) -> [[u8; 64]; 16] {
        std::array::from_fn(|value| std::array::from_fn(|i| rows[i / 4][4 * value + i % 4]))
    }
    fn spread(self, packed: [u8; 64]) -> [[u8; 64]; 2] {
        let code = |part: usize, i: usize| packed[i / 4 * 4 + 2 * part + i % 4 / 2] >> (4 * (i % 2)) & 15;
        std::array::from_fn(|part| std::array::from_fn(|i| code(part, i)))
    }
    fn transpose(self, rows: [&[u8; 16]; 16]) -> [[u8; 32]; 8] {
        std::array::from_fn(|value| std::array::from_fn(|i| rows[i / 2][2 * value + i % 2]))
    }

    fn zero_quads(self) -> [i32; 16] {
        [0; 16]
    }
    fn dot_pair(self, codes: [[u8; 64]; 2], x: [[u8; 64]; 2]) -> [i32; 16] {
        assert!(codes.as_flattened().iter().all(|&code| code < 32));
        let [a, b] = [self.dot_codes(codes[0], x[0]), self.dot_codes(codes[1], x[1])];
        std::array::from_fn(|i| a[i] + b[i])
    }
    fn dot_codes(self, codes: [u8; 64], x: [u8; 64]) -> [i32; 16] {
        assert!(codes.iter().all(|&code| code < 64));
        self.dot_bytes(codes, x)
    }
    fn dot_bytes(self, codes: [u8; 64], x: [u8; 64]) -> [i32; 16] {
        let mut out = [0; 16];
        for (i, (code, x)) in codes.into_iter().zip(x).enumerate() {
            out[i / 4] += i32::from(code) * i32::from(x as i8);
        }
        out
    }
    fn sum_quads(self, rows: [[i32; 16]; 4]) -> [i32; 16] {
        std::array::from_fn(|i| rows[i % 4][i / 4 * 4..][..4].iter().sum())
    }
    fn sum_small_quads(self, rows: [[i32; 16]; 4]) -> [i32; 16] {
        assert!(rows.as_flattened().iter().all(|lane| lane.abs() <= 1 << 14));
        self.sum_quads(rows)
    }
    fn turn(self, rows: [[i32; 16]; 4]) -> [[i32; 16]; 4] {
        std::array::from_fn(|quad| std::array::from_fn(|row| rows[row / 4][4 * quad + row % 4]))
    }

    fn load_sums(self, x: &[i32; 16]) -> [i32; 16] {
        *x
    }
    fn zero_sums(self) -> [i32; 16] {
        [0; 16]
    }
    fn add_sums(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    fn tile_codes(self, acc: [i32; 16], codes: [[u8; 64]; 2], x: &[[i8; 4]; 2]) -> [i32; 16] {
        assert!(codes.as_flattened().iter().all(|&code| code < 64));
        self.tile_bytes(acc, codes, x)
    }
    fn tile_bytes(self, mut acc: [i32; 16], codes: [[u8; 64]; 2], x: &[[i8; 4]; 2]) -> [i32; 16] {
        for (codes, x) in codes.iter().zip(x) {
            for (i, &code) in codes.iter().enumerate() {
                acc[i / 4] += i32::from(code) * i32::from(x[i % 4]);
            }
        }
        acc
    }
    fn sums_to_f32(self, sums: [i32; 16], offset: i32) -> [f32; 16] {
        sums.map(|sum| (sum + offset) as f32)
    }
}
