//! Decoders of single ggml blocks. All fields are little-endian, `d`, `m` and `dmin` are binary16, and products are
//! taken in ggml's order so that values are bit-identical to its own.

use half::f16;

/// The binary16 at byte `at`.
#[inline(always)]
pub(super) fn half_at<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> f32 {
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
pub(super) fn scales_and_mins<const BYTES: usize>(block: &[u8; BYTES]) -> [(f32, f32); 8] {
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

/// The sixteen runs of 16 elements of Q2_K and Q3_K, as (two-bit codes in the low bits of 16 bytes, shift, first
/// element's place in the 32 bytes). Each half of 128 elements takes 32 bytes of `qs`, two bits at a time.
#[inline(always)]
fn two_bit_runs(qs: &[u8]) -> impl Iterator<Item = (&[u8], usize, usize)> {
    (0..16).map(move |run| {
        let (half, shift, part) = (run / 8, run % 8 / 2 * 2, run % 2);
        (&qs[32 * half + 16 * part..][..16], shift, 16 * part)
    })
}

/// scales[16], qs[64], d, dmin: `d·(s & 15)·q - dmin·(s >> 4)` in runs of 16.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    let runs = out.as_chunks_mut::<16>().0.iter_mut().zip(two_bit_runs(&block[16..80]));
    for ((values, (qs, shift, _)), &s) in runs.zip(&block[..16]) {
        let (scale, min) = (d * f32::from(s & 15), dmin * f32::from(s >> 4));
        for (value, &q) in values.iter_mut().zip(qs) {
            *value = scale * f32::from(q >> shift & 3) - min;
        }
    }
}

/// hmask[32], qs[64], scales[12], d: `d·(sc - 32)·q` in runs of 16, where `q` is a two-bit code less 4 unless its bit
/// in `hmask` is set.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half_at(block, 108);
    let s = &block[96..108];
    let scale = |run: usize| {
        let low = if run < 8 { s[run] & 15 } else { s[run - 8] >> 4 };
        let high = s[8 + run % 4] >> (run / 4 * 2) & 3;
        d * (f32::from(low | high << 4) - 32.0)
    };
    let runs = out.as_chunks_mut::<16>().0.iter_mut().zip(two_bit_runs(&block[32..96]));
    for (run, (values, (qs, shift, first))) in runs.enumerate() {
        let (scale, bit) = (scale(run), run / 8 * 4 + shift / 2);
        for (j, (value, &q)) in values.iter_mut().zip(qs).enumerate() {
            let low = if block[first + j] >> bit & 1 == 1 { 0.0 } else { 4.0 };
            *value = scale * (f32::from(q >> shift & 3) - low);
        }
    }
}

/// The codebook of IQ4_NL and IQ4_XS.
const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// d, qs[16]: `table[q]·d`, nibbles as in Q4_0.
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    table_run(&IQ4, half_at(block, 0), &block[2..], out);
}

/// d, scales_h u16, scales_l[4], qs[128]: `d·(ls - 32)·table[q]` in eight groups laid out as in IQ4_NL.
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (g, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
        let scale = u16::from(low) | (high >> (2 * g) & 3) << 4;
        table_run(&IQ4, d * (f32::from(scale) - 32.0), &block[8 + 16 * g..24 + 16 * g], values);
    }
}

/// E2M1 values times two, as ggml has them: with half the scale, every factor is a whole number.
const DOUBLED_FP4: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// e u8, qs[16]: `fp4·2^(e-127)`, nibbles as in Q4_0.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    // 2^(e-128), which is subnormal for the two smallest exponents.
    let half_scale = match block[0] {
        e @ 0..=1 => f32::from_bits(0x0020_0000 << e),
        e => f32::from_bits((u32::from(e) - 1) << 23),
    };
    table_run(&DOUBLED_FP4, half_scale, &block[1..], out);
}

/// 32 nibbles through a table; low nibbles are elements 0..16, high nibbles 16..32.
#[inline(always)]
fn table_run(table: &[f32; 16], scale: f32, qs: &[u8], out: &mut [f32; 32]) {
    for (j, &q) in qs.iter().enumerate().take(16) {
        out[j] = table[usize::from(q & 15)] * scale;
        out[j + 16] = table[usize::from(q >> 4)] * scale;
    }
}
