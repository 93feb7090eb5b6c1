//! ggml types against gguf-py's sizes and values, and against formulas written per element.

use basert_quant::{Encoding, GgmlType, QuantError, ggml};
use half::f16;
use proptest::prelude::*;
use serde_json::Value;

const BLOCKED: [GgmlType; 13] = [
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q4K,
    GgmlType::Q5K,
    GgmlType::Q6K,
    GgmlType::Q2K,
    GgmlType::Q3K,
    GgmlType::Iq4Nl,
    GgmlType::Iq4Xs,
    GgmlType::MxFp4,
];

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// Made by `tools/fixtures/ggml_vectors.py`.
fn vectors() -> Value {
    serde_json::from_str(include_str!("data/ggml_vectors.json")).unwrap()
}

fn by_name(name: &str) -> GgmlType {
    GgmlType::ALL.into_iter().find(|ty| ty.name() == name).unwrap_or_else(|| panic!("no type {name}"))
}

fn decode(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / ty.block_bytes() * ty.block_size()];
    ggml::decode(ty, bytes, &mut out).unwrap();
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn numbers_names_and_block_sizes_are_ggmls() {
    let vectors = vectors();
    let sizes = vectors["sizes"].as_array().unwrap();
    for row in sizes {
        let ty = GgmlType::from_id(row["id"].as_u64().unwrap() as u32).unwrap();
        assert_eq!(ty.name(), row["name"]);
        assert_eq!(ty.block_size() as u64, row["elements"].as_u64().unwrap(), "{ty}");
        // gguf-py counts Q8_1's two halves as floats; ggml's struct has 36 bytes. Files never hold it.
        let bytes = if ty == GgmlType::Q8_1 { 40 } else { ty.block_bytes() as u64 };
        assert_eq!(bytes, row["bytes"].as_u64().unwrap(), "{ty}");
    }
    // Q2_0 is younger than that gguf-py.
    assert_eq!(sizes.len() + 1, GgmlType::ALL.len());
    assert_eq!(GgmlType::from_id(42), Ok(GgmlType::Q2_0));
}

#[test]
fn unknown_and_withdrawn_types_are_named() {
    for (id, text) in [
        (4, "ggml type 4 is the withdrawn Q4_2"),
        (31, "ggml type 31 is the withdrawn Q4_0_4_4 (a repacked Q4_0)"),
        (38, "ggml type 38 is the withdrawn IQ4_NL_8_8 (a repacked IQ4_NL)"),
        (43, "ggml type 43 is unknown"),
        (u32::MAX, "ggml type 4294967295 is unknown"),
    ] {
        assert_eq!(GgmlType::from_id(id).unwrap_err().to_string(), text);
    }
}

#[test]
fn types_without_a_decoder_are_refused_by_name() {
    for ty in GgmlType::ALL {
        let result = ggml::decode(ty, &vec![0; ty.block_bytes()], &mut vec![0.0; ty.block_size()]);
        match result {
            Ok(()) => assert!(ty.is_supported(), "{ty}"),
            Err(error) => {
                assert!(!ty.is_supported(), "{ty}");
                assert_eq!(error.to_string(), format!("ggml type {ty} is not supported yet"));
            }
        }
    }
    assert_eq!(GgmlType::ALL.into_iter().filter(|ty| ty.is_supported()).count(), 16);
}

#[test]
fn values_are_bit_equal_to_gguf_py() {
    let vectors = vectors();
    let rows = vectors["vectors"].as_array().unwrap();
    for ty in BLOCKED {
        assert_eq!(rows.iter().filter(|row| row["type"] == ty.name()).count(), 4, "{ty}");
    }
    for row in rows {
        let ty = by_name(row["type"].as_str().unwrap());
        let expected: Vec<u32> = hex(row["values"].as_str().unwrap())
            .chunks(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let block = row["block"].as_str().unwrap();
        assert_eq!(bits(&decode(ty, &hex(block))), expected, "{ty} {block}");
    }
}

#[test]
fn plain_floats_decode() {
    assert_eq!(decode(GgmlType::F32, &1.5f32.to_le_bytes()), [1.5]);
    assert_eq!(decode(GgmlType::F16, &[0x00, 0x3e]), [1.5]);
    assert_eq!(decode(GgmlType::BF16, &[0xc0, 0x3f]), [1.5]);
}

#[test]
fn partial_blocks_and_wrong_lengths_are_refused() {
    for ty in BLOCKED {
        let (n, size) = (ty.block_size(), ty.block_bytes());
        let partial = ggml::decode(ty, &vec![0; size], &mut vec![0.0; n - 1]).unwrap_err();
        assert!(matches!(partial, QuantError::Elements { .. }), "{ty}: {partial}");
        for length in [size - 1, size + 1, 0] {
            let error = ggml::decode(ty, &vec![0; length], &mut vec![0.0; n]).unwrap_err();
            assert!(matches!(error, QuantError::Length { .. }), "{ty}, {length}: {error}");
        }
    }
}

#[test]
fn blocks_that_nothing_holds_exactly_are_not_rearranged() {
    for ty in [GgmlType::Q2K, GgmlType::Q3K, GgmlType::Iq4Nl, GgmlType::Iq4Xs] {
        assert_eq!(ty.exact_encoding(), None);
        let error = ggml::repack(ty, &vec![0; ty.block_bytes()], &mut [], &mut [], &mut []).unwrap_err();
        assert_eq!(error, QuantError::NotEncodable(ty.name()));
    }
    let error = ggml::assemble(GgmlType::Q4_1, &[0; 16], &[0; 2], &[0; 4], &mut Vec::new()).unwrap_err();
    assert!(matches!(error, QuantError::Length { what: "biases (bytes)", expected: 2, found: 4 }), "{error}");
    let error = ggml::repack(GgmlType::Q8_0, &[0; 34], &mut [0; 31], &mut [0; 2], &mut []).unwrap_err();
    assert!(
        matches!(error, QuantError::Length { what: "codes (bytes)", expected: 32, found: 31 }),
        "{error}"
    );
}

#[test]
fn only_the_three_super_blocks_pass_through() {
    for ty in GgmlType::ALL {
        let result = Encoding::Super(ty).payload_len(512);
        match ty {
            GgmlType::Q4K | GgmlType::Q5K | GgmlType::Q6K => {
                assert_eq!(result, Ok(2 * ty.block_bytes() as u64));
                let error = Encoding::Super(ty).encode(&[0.0; 512], &mut Vec::new()).unwrap_err();
                assert_eq!(error, QuantError::NotEncodable(ty.name()));
            }
            _ => assert_eq!(result, Err(QuantError::NotSuperBlock(ty.name()))),
        }
    }
}

/// Element `i` of a block, from ggml's definition of the format, in ggml's order of operations.
fn element(ty: GgmlType, b: &[u8], i: usize) -> f32 {
    let half = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f32();
    let nibble = |at: usize| f32::from(b[at + i % 16] >> (4 * (i / 16)) & 15);
    let bit = |at: usize, n: usize| f32::from(b[at + n / 8] >> (n % 8) & 1);
    // 6-bit scale and minimum of sub-block j, as a 12-byte table read bit by bit.
    let six = |j: usize, min: bool| {
        let s = &b[4..16];
        let at = if min { j + 4 } else { j };
        f32::from(match (j < 4, min) {
            (true, _) => s[at] & 63,
            (false, false) => s[j + 4] & 15 | s[j - 4] >> 6 << 4,
            (false, true) => s[j + 4] >> 4 | s[j] >> 6 << 4,
        })
    };
    let k_nibble = |at: usize| f32::from(b[at + i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2)) & 15);
    match ty {
        GgmlType::Q4_0 => (nibble(2) - 8.0) * half(0),
        GgmlType::Q4_1 => nibble(4) * half(0) + half(2),
        GgmlType::Q5_0 => (nibble(6) + 16.0 * bit(2, i) - 16.0) * half(0),
        GgmlType::Q5_1 => (nibble(8) + 16.0 * bit(4, i)) * half(0) + half(2),
        GgmlType::Q8_0 => f32::from(b[2 + i] as i8) * half(0),
        GgmlType::Q4K => half(0) * six(i / 32, false) * k_nibble(16) - half(2) * six(i / 32, true),
        GgmlType::Q5K => {
            let q = k_nibble(48) + 16.0 * f32::from(b[16 + i % 32] >> (i / 32) & 1);
            half(0) * six(i / 32, false) * q - half(2) * six(i / 32, true)
        }
        GgmlType::Q6K => {
            let (part, within) = (i / 128, i % 128);
            let low = b[64 * part + within % 64] >> (4 * (within / 64)) & 15;
            let high = b[128 + 32 * part + within % 32] >> (2 * (within / 32)) & 3;
            half(208) * f32::from(b[192 + i / 16] as i8) * (f32::from(low | high << 4) - 32.0)
        }
        GgmlType::Q2K => {
            let s = b[i / 16];
            half(80) * f32::from(s & 15) * two_bits(b, 16, i) - half(82) * f32::from(s >> 4)
        }
        GgmlType::Q3K => {
            let high = f32::from(b[i % 32] >> (i / 32) & 1);
            half(108) * (q3_scale(&b[96..108], i / 16) - 32.0) * (two_bits(b, 32, i) + 4.0 * high - 4.0)
        }
        GgmlType::Iq4Nl => IQ4[nibble(2) as usize] * half(0),
        GgmlType::Iq4Xs => {
            let group = i / 32;
            let low = b[4 + group / 2] >> (4 * (group % 2)) & 15;
            let high = b[2 + group / 4] >> (2 * (group % 4)) & 3;
            let code = b[8 + 16 * group + i % 16] >> (4 * (i % 32 / 16)) & 15;
            half(0) * (f32::from(low | high << 4) - 32.0) * IQ4[usize::from(code)]
        }
        GgmlType::MxFp4 => {
            let code = nibble(1) as u8;
            let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
            let signed = if code > 8 { -magnitude } else { magnitude };
            (signed * (f64::from(b[0]) - 127.0).exp2()) as f32
        }
        _ => unreachable!(),
    }
}

const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Element `i` of the two-bit codes that begin at byte `at`.
fn two_bits(b: &[u8], at: usize, i: usize) -> f32 {
    f32::from(b[at + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3)
}

/// The published unpacking of Q3_K's sixteen scales, line by line.
fn q3_scale(s: &[u8], index: usize) -> f32 {
    let mut scales = [0u8; 16];
    for k in 0..4 {
        scales[k] = s[k] & 15 | (s[8 + k] & 3) << 4;
        scales[4 + k] = s[4 + k] & 15 | (s[8 + k] >> 2 & 3) << 4;
        scales[8 + k] = s[k] >> 4 | (s[8 + k] >> 4 & 3) << 4;
        scales[12 + k] = s[4 + k] >> 4 | (s[8 + k] >> 6) << 4;
    }
    f32::from(scales[index])
}

fn random_blocks() -> impl Strategy<Value = (GgmlType, Vec<u8>)> {
    (prop::sample::select(BLOCKED.to_vec()), 1usize..4).prop_flat_map(|(ty, blocks)| {
        (Just(ty), prop::collection::vec(any::<u8>(), blocks * ty.block_bytes()))
    })
}

proptest! {
    #[test]
    fn rearranged_blocks_decode_to_the_same_values((ty, mut bytes) in random_blocks()) {
        // Large fields would overflow both sides to infinities that do not compare.
        for block in bytes.chunks_mut(ty.block_bytes()) {
            let halves: &[usize] = match ty {
                GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
                GgmlType::Q6K => &[208],
                GgmlType::MxFp4 => &[],
                _ => &[0],
            };
            halves.iter().for_each(|&at| block[at + 1] &= 0xbb);
            if ty == GgmlType::MxFp4 {
                block[0] &= 0x7f;
            }
        }
        let Some(encoding) = ty.exact_encoding() else { return Ok(()) };
        let values = decode(ty, &bytes);
        let regions = encoding.regions(values.len() as u64).unwrap();
        let mut payload = vec![0; regions.total().unwrap() as usize];
        let (codes, rest) = payload.split_at_mut(regions.codes as usize);
        let (scales, biases) = rest.split_at_mut(regions.scales as usize);
        ggml::repack(ty, &bytes, codes, scales, biases).unwrap();
        let mut back = vec![f32::NAN; values.len()];
        encoding.decode(&payload, values.len(), 0, &mut back).unwrap();
        prop_assert!(values == back, "{ty}");
        let (codes, rest) = payload.split_at(regions.codes as usize);
        let (scales, biases) = rest.split_at(regions.scales as usize);
        let mut assembled = Vec::new();
        ggml::assemble(ty, codes, scales, biases, &mut assembled).unwrap();
        prop_assert!(assembled == bytes, "{ty}");
    }

    #[test]
    fn every_element_equals_the_formula((ty, bytes) in random_blocks()) {
        let values = decode(ty, &bytes);
        for (i, value) in values.iter().enumerate() {
            let block = &bytes[i / ty.block_size() * ty.block_bytes()..][..ty.block_bytes()];
            let expected = element(ty, block, i % ty.block_size());
            let same = value.to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan());
            prop_assert!(same, "{ty} element {i}: {value}, should be {expected}");
        }
    }

    #[test]
    fn any_range_of_super_blocks_equals_that_part_of_the_whole(
        bytes in prop::collection::vec(any::<u8>(), 3 * 210),
        a in 0usize..=768,
        b in 0usize..=768,
    ) {
        for ty in [GgmlType::Q4K, GgmlType::Q5K, GgmlType::Q6K] {
            let bytes = &bytes[..3 * ty.block_bytes()];
            let whole = decode(ty, bytes);
            let (first, end) = (a.min(b), a.max(b));
            let mut part = vec![f32::NAN; end - first];
            Encoding::Super(ty).decode(bytes, 768, first, &mut part).unwrap();
            prop_assert_eq!(bits(&part), bits(&whole[first..end]));
        }
    }
}
