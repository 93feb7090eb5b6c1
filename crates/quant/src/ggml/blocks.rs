//! Decoders of single ggml blocks. All fields are little-endian, `d`, `m` and `dmin` are binary16, and products are
//! taken in ggml's order so that values are bit-identical to its own.

use half::f16;

/// The binary16 at byte `at`.
#[inline(always)]
fn half_at<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The u32 at byte `at`.
#[inline(always)]
fn u32_at<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// d, qs[16]: `(q - 8)·d`; low nibbles are elements 0..16, high nibbles 16..32.
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for j in 0..16 {
        let q = block[2 + j];
        out[j] = (f32::from(q & 15) - 8.0) * d;
        out[j + 16] = (f32::from(q >> 4) - 8.0) * d;
    }
}

/// d, m, qs[16]: `q·d + m`.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for j in 0..16 {
        let q = block[4 + j];
        out[j] = f32::from(q & 15) * d + m;
        out[j + 16] = f32::from(q >> 4) * d + m;
    }
}

/// d, qh u32, qs[16]: as Q4_0 with bit 4 of element `j` in bit `j` of `qh`, and 16 for 8.
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    let qh = u32_at(block, 2);
    for j in 0..16 {
        let (low, high) = fifth_bit(block[6 + j], qh, j);
        out[j] = (low - 16.0) * d;
        out[j + 16] = (high - 16.0) * d;
    }
}

/// d, m, qh u32, qs[16]: `q·d + m`.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let qh = u32_at(block, 4);
    for j in 0..16 {
        let (low, high) = fifth_bit(block[8 + j], qh, j);
        out[j] = low * d + m;
        out[j + 16] = high * d + m;
    }
}

/// The 5-bit codes of elements `j` and `j + 16`.
#[inline(always)]
fn fifth_bit(q: u8, qh: u32, j: usize) -> (f32, f32) {
    let low = u32::from(q & 15) | (qh >> j & 1) << 4;
    let high = u32::from(q >> 4) | (qh >> (j + 16) & 1) << 4;
    (low as f32, high as f32)
}

/// d, i8[32]: `q·d`.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (value, &q) in out.iter_mut().zip(&block[2..]) {
        *value = f32::from(q as i8) * d;
    }
}

/// The eight 6-bit (scale, minimum) pairs of Q4_K and Q5_K, from twelve bytes at byte 4.
#[inline(always)]
fn scales_and_mins<const BYTES: usize>(block: &[u8; BYTES]) -> [(f32, f32); 8] {
    let s = &block[4..16];
    std::array::from_fn(|j| {
        let (scale, min) = if j < 4 {
            (s[j] & 63, s[j + 4] & 63)
        } else {
            (s[j + 4] & 15 | (s[j - 4] >> 6) << 4, s[j + 4] >> 4 | (s[j] >> 6) << 4)
        };
        (f32::from(scale), f32::from(min))
    })
}

/// d, dmin, scales[12], qs[128]: `d·sc·q - dmin·m` in sub-blocks of 32; each 32 bytes of `qs` hold one sub-block
/// in the low nibbles and the next in the high ones.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let scales = scales_and_mins(block);
    for (i, values) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let qs = &block[16 + 32 * i..48 + 32 * i];
        let [low, high] = [scales[2 * i], scales[2 * i + 1]].map(|(sc, m)| (d * sc, dmin * m));
        for l in 0..32 {
            values[l] = low.0 * f32::from(qs[l] & 15) - low.1;
            values[l + 32] = high.0 * f32::from(qs[l] >> 4) - high.1;
        }
    }
}

/// d, dmin, scales[12], qh[32], qs[128]: as Q4_K with bit 4 of sub-block `j` in bit `j` of `qh[l]`.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let scales = scales_and_mins(block);
    let qh = &block[16..48];
    for (i, values) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let qs = &block[48 + 32 * i..80 + 32 * i];
        let [low, high] = [scales[2 * i], scales[2 * i + 1]].map(|(sc, m)| (d * sc, dmin * m));
        for l in 0..32 {
            let top = qh[l] >> (2 * i);
            values[l] = low.0 * f32::from(qs[l] & 15 | (top & 1) << 4) - low.1;
            values[l + 32] = high.0 * f32::from(qs[l] >> 4 | (top >> 1 & 1) << 4) - high.1;
        }
    }
}

/// ql[128], qh[64], scales i8[16], d: `d·sc·(q - 32)` in sub-blocks of 16. Each half of 128 elements takes 64 bytes
/// of `ql` (low nibbles: elements 0..64, high: 64..128) and 32 of `qh` (two bits for each quarter).
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at(block, 208);
    for (half, values) in out.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let ql = &block[64 * half..64 * half + 64];
        let qh = &block[128 + 32 * half..160 + 32 * half];
        let scales: [f32; 8] = std::array::from_fn(|i| d * f32::from(block[192 + 8 * half + i] as i8));
        for l in 0..32 {
            let quarters = [
                ql[l] & 15 | (qh[l] & 3) << 4,
                ql[l + 32] & 15 | (qh[l] >> 2 & 3) << 4,
                ql[l] >> 4 | (qh[l] >> 4 & 3) << 4,
                ql[l + 32] >> 4 | (qh[l] >> 6) << 4,
            ];
            for (quarter, q) in quarters.into_iter().enumerate() {
                values[32 * quarter + l] = scales[2 * quarter + l / 16] * (f32::from(q) - 32.0);
            }
        }
    }
}
