//! K-quant super-blocks taken apart: unsigned codes and, per group, a scale and a bias, element = `q·s + b`.

use super::GgmlType;
use super::blocks::{half_at, scales_and_mins};

/// Elements of a super-block.
pub const SUPER: usize = 256;

/// Elements that share a scale in a super-block of type `ty`; `None` for types that have no such parts.
pub fn super_group(ty: GgmlType) -> Option<usize> {
    match ty {
        GgmlType::Q4K | GgmlType::Q5K => Some(32),
        GgmlType::Q6K => Some(16),
        _ => None,
    }
}

/// The codes of one super-block in order of elements, at most 63. Other types than those of [`super_group`], and blocks of
/// another length, leave `codes` as they are.
pub fn super_codes(ty: GgmlType, block: &[u8], codes: &mut [u8; SUPER]) {
    match ty {
        GgmlType::Q4K => {
            if let Some(block) = block.first_chunk::<144>() {
                nibbles(&block[16..], codes);
            }
        }
        GgmlType::Q5K => {
            if let Some(block) = block.first_chunk::<176>() {
                nibbles(&block[48..], codes);
                for (j, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    for (code, top) in codes.iter_mut().zip(&block[16..48]) {
                        *code |= (top >> j & 1) << 4;
                    }
                }
            }
        }
        GgmlType::Q6K => {
            if let Some(block) = block.first_chunk::<210>() {
                six_bits(block, codes);
            }
        }
        _ => {}
    }
}

/// 32 bytes hold 32 elements in their low nibbles and the next 32 in the high ones. Inlined it is not vectorised and ten
/// times slower.
#[inline(never)]
fn nibbles(qs: &[u8], codes: &mut [u8; SUPER]) {
    for (codes, qs) in codes.as_chunks_mut::<64>().0.iter_mut().zip(qs.as_chunks::<32>().0) {
        for (l, q) in qs.iter().enumerate() {
            codes[l] = q & 15;
            codes[l + 32] = q >> 4;
        }
    }
}

/// See [`super::blocks::q6_k`].
fn six_bits(block: &[u8; 210], codes: &mut [u8; SUPER]) {
    for (half, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let ql = &block[64 * half..64 * half + 64];
        let qh = &block[128 + 32 * half..160 + 32 * half];
        for l in 0..32 {
            codes[l] = ql[l] & 15 | (qh[l] & 3) << 4;
            codes[l + 32] = ql[l + 32] & 15 | (qh[l] >> 2 & 3) << 4;
            codes[l + 64] = ql[l] >> 4 | (qh[l] >> 4 & 3) << 4;
            codes[l + 96] = ql[l + 32] >> 4 | (qh[l] >> 6) << 4;
        }
    }
}

/// Scales and biases of one super-block, eight or sixteen of each: `d·sc` with `-dmin·m` (Q4_K, Q5_K) or with `-32·d·sc`
/// (Q6_K), every product rounded once.
pub fn super_scales(ty: GgmlType, block: &[u8], scales: &mut [f32; 16], biases: &mut [f32; 16]) {
    match ty {
        GgmlType::Q4K | GgmlType::Q5K => {
            if let Some(block) = block.first_chunk::<16>() {
                let (d, dmin) = (half_at(block, 0), half_at(block, 2));
                for (group, (sc, m)) in scales_and_mins(block).into_iter().enumerate() {
                    scales[group] = d * sc;
                    biases[group] = -(dmin * m);
                }
            }
        }
        GgmlType::Q6K => {
            if let Some(block) = block.first_chunk::<210>() {
                let d = half_at(block, 208);
                for (group, sc) in block[192..208].iter().enumerate() {
                    scales[group] = d * f32::from(*sc as i8);
                    biases[group] = -32.0 * scales[group];
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ggml::decode;

    /// Arbitrary bytes with ordinary factors.
    fn block(ty: GgmlType, seed: u32) -> Vec<u8> {
        let mut state = seed;
        let mut block: Vec<u8> = (0..ty.block_bytes())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        let factors = if ty == GgmlType::Q6K { 208..210 } else { 0..4 };
        for factor in block[factors].chunks_exact_mut(2) {
            factor.copy_from_slice(&half::f16::from_f32(0.0123).to_le_bytes());
        }
        block
    }

    #[test]
    fn parts_decode_to_ggmls_values() {
        for ty in [GgmlType::Q4K, GgmlType::Q5K, GgmlType::Q6K] {
            let group = super_group(ty).unwrap();
            for seed in 0..20 {
                let block = block(ty, seed);
                let mut expected = [0.0; SUPER];
                decode(ty, &block, &mut expected).unwrap();
                let (mut codes, mut scales, mut biases) = ([0; SUPER], [0.0; 16], [0.0; 16]);
                super_codes(ty, &block, &mut codes);
                super_scales(ty, &block, &mut scales, &mut biases);
                for (i, expected) in expected.iter().enumerate() {
                    let (s, b) = (scales[i / group], biases[i / group]);
                    // Q6_K's own formula subtracts 32 before it multiplies.
                    let value = match ty {
                        GgmlType::Q6K => (f32::from(codes[i]) - 32.0) * s,
                        _ => f32::from(codes[i]) * s + b,
                    };
                    assert_eq!(value, *expected, "{ty:?} {seed} element {i}");
                    assert!(codes[i] < 64);
                }
            }
        }
    }

    #[test]
    fn other_types_have_no_such_parts() {
        let without = GgmlType::ALL.into_iter().filter(|&ty| super_group(ty).is_none());
        assert_eq!(without.count(), GgmlType::ALL.len() - 3);
    }
}
