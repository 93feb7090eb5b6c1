//! Grouped affine codes: the quantiser's exact arithmetic, and decoding of any range.

use basert_quant::{Encoding, QuantError, ScaleDtype, pack_codes, unpack_codes};
use proptest::prelude::*;

const WIDTHS: [u32; 6] = [2, 3, 4, 5, 6, 8];

fn affine(bits: u32, group: usize, scale: ScaleDtype, symmetric: bool) -> Encoding {
    Encoding::Affine { bits, group, scale, symmetric }
}

fn encode(encoding: Encoding, values: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    encoding.encode(values, &mut out).unwrap();
    assert_eq!(out.len() as u64, encoding.payload_len(values.len() as u64).unwrap());
    out
}

fn decode(encoding: Encoding, payload: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; elements];
    encoding.decode(payload, elements, 0, &mut out).unwrap();
    out
}

/// A payload put together by hand: codes, scales, biases.
fn payload(bits: u32, scale: ScaleDtype, codes: &[u8], scales: &[f32], biases: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    pack_codes(bits, codes, &mut out).unwrap();
    for &value in scales.iter().chain(biases) {
        scale.encode(value, &mut out);
    }
    out
}

#[test]
fn the_bias_is_the_value_of_code_zero_and_scales_may_be_negative() {
    let codes: Vec<u8> = (0..16).collect();
    let bytes = payload(4, ScaleDtype::F16, &codes, &[-0.5, 2.0], &[3.0, -1.0]);
    let expected: Vec<f32> =
        codes.iter().map(|&c| if c < 8 { c as f32 * -0.5 + 3.0 } else { c as f32 * 2.0 - 1.0 }).collect();
    assert_eq!(decode(affine(4, 8, ScaleDtype::F16, false), &bytes, 16), expected);
}

#[test]
fn symmetric_codes_are_centred_and_have_no_bias_region() {
    let encoding = affine(3, 8, ScaleDtype::Bf16, true);
    let bytes = payload(3, ScaleDtype::Bf16, &[0, 1, 2, 3, 4, 5, 6, 7], &[0.25], &[]);
    let expected = [-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75];
    assert_eq!(decode(encoding, &bytes, 8), expected);
    assert_eq!(encoding.regions(8).unwrap().biases, 0);
}

#[test]
fn an_e8m0_scale_of_zero_decodes_to_zero() {
    let mut bytes = payload(4, ScaleDtype::E8m0, &[15; 8], &[], &[]);
    bytes.push(0);
    assert_eq!(decode(affine(4, 8, ScaleDtype::E8m0, true), &bytes, 8), [0.0; 8]);
}

/// 0, 0.5, 1.5, ... at scale 1: halves go away from zero, so 0.5 becomes 1 and 2.5 becomes 3.
#[test]
fn codes_round_half_away_from_zero() {
    let values = [0.0, 15.0, 0.5, 1.5, 2.5, 0.499_999_97, 13.5, 14.499_999];
    let bytes = encode(affine(4, 8, ScaleDtype::F16, false), &values);
    let mut codes = [0; 8];
    unpack_codes(4, &bytes[..4], &mut codes).unwrap();
    assert_eq!(codes, [0, 15, 1, 2, 3, 0, 14, 14]);

    let values = [-7.0, 7.0, -0.5, -1.5, 0.5, -2.5, 2.5, -0.499_999_97];
    let bytes = encode(affine(4, 8, ScaleDtype::F16, true), &values);
    unpack_codes(4, &bytes[..4], &mut codes).unwrap();
    assert_eq!(codes.map(|c| i16::from(c) - 8), [-7, 7, -1, -2, 1, -3, 3, 0]);
}

#[test]
fn codes_are_taken_against_the_rounded_scale_and_bias() {
    // bf16 keeps 8 significant bits: the minimum 1.003 becomes 1.0 and the scale 1/15 becomes 0.066895.
    let values = [1.003, 2.003, 1.5, 1.2, 1.4, 1.7, 1.9, 1.1];
    let bytes = encode(affine(4, 8, ScaleDtype::Bf16, false), &values);
    assert_eq!(ScaleDtype::Bf16.get(&bytes[4..], 0).unwrap(), 0.066_894_53);
    assert_eq!(ScaleDtype::Bf16.get(&bytes[6..], 0).unwrap(), 1.0);
    let mut codes = [0; 8];
    unpack_codes(4, &bytes[..4], &mut codes).unwrap();
    // (1.5 - 1.0) / 0.066895 = 7.47; against the unrounded pair it would be 7.45; 1.7 tells: 10.46 and 10.45.
    assert_eq!(codes, [0, 15, 7, 3, 6, 10, 13, 1]);
}

#[test]
fn constant_groups_decode_to_their_constant() {
    for bits in WIDTHS {
        for value in [0.0, -0.0, 1.5, -3.25] {
            let bytes = encode(affine(bits, 32, ScaleDtype::F16, false), &[value; 32]);
            assert_eq!(decode(affine(bits, 32, ScaleDtype::F16, false), &bytes, 32), [value; 32]);
        }
        let zeros = encode(affine(bits, 32, ScaleDtype::F16, true), &[0.0; 32]);
        assert_eq!(decode(affine(bits, 32, ScaleDtype::F16, true), &zeros, 32), [0.0; 32]);
    }
}

/// The scale underflows f16, its reciprocal is infinite, and yet no NaN comes out.
#[test]
fn a_group_too_narrow_for_its_scale_dtype_decodes_to_its_bias() {
    let values: Vec<f32> = (0..32).map(|i| 1e-9 * i as f32).collect();
    let encoding = affine(4, 32, ScaleDtype::F16, false);
    assert_eq!(decode(encoding, &encode(encoding, &values), 32), [0.0; 32]);
}

#[test]
fn non_finite_values_are_refused_with_their_index() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for symmetric in [false, true] {
            let mut values = [0.5; 64];
            values[37] = bad;
            let mut out = vec![7];
            let error = affine(4, 32, ScaleDtype::F16, symmetric).encode(&values, &mut out).unwrap_err();
            assert!(matches!(error, QuantError::NonFinite { index: 37, .. }), "{error}");
            assert_eq!(out, [7], "a failed encode leaves nothing behind");
        }
    }
}

#[test]
fn a_scale_or_bias_beyond_its_dtype_is_refused_not_stored_as_infinity() {
    let mut values = [0.0; 64];
    values[40] = -70_000.0;
    let error = affine(8, 32, ScaleDtype::F16, false).encode(&values, &mut Vec::new()).unwrap_err();
    assert_eq!(error, QuantError::ScaleRange { index: 32, value: -70_000.0, dtype: ScaleDtype::F16 });
    // max - min overflows f32 itself.
    values[41] = f32::MAX;
    values[40] = f32::MIN;
    let error = affine(8, 32, ScaleDtype::Bf16, false).encode(&values, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, QuantError::ScaleRange { index: 32, .. }), "{error}");
}

#[test]
fn biases_without_a_sign_are_refused() {
    let error = affine(4, 32, ScaleDtype::E8m0, false).encode(&[0.0; 32], &mut Vec::new()).unwrap_err();
    assert_eq!(error, QuantError::UnsignedBias);
}

#[test]
fn sizes() {
    let encoding = affine(5, 64, ScaleDtype::Bf16, false);
    let regions = encoding.regions(128 * 64).unwrap();
    assert_eq!((regions.codes, regions.scales, regions.biases), (5120, 256, 256));
    assert_eq!(encoding.payload_len(128 * 64), Ok(5632));
    assert_eq!(affine(8, 128, ScaleDtype::E4m3, true).payload_len(256), Ok(258));
    assert_eq!(encoding.payload_len(0), Ok(0));
}

#[test]
fn parameters_and_sizes_that_cannot_be_are_refused() {
    let f16 = ScaleDtype::F16;
    assert_eq!(affine(7, 32, f16, false).regions(32), Err(QuantError::Bits(7)));
    assert_eq!(affine(4, 0, f16, false).regions(32), Err(QuantError::Group(0)));
    assert_eq!(affine(4, 12, f16, false).regions(36), Err(QuantError::Group(12)));
    assert_eq!(
        affine(4, 64, f16, false).regions(96),
        Err(QuantError::Elements { elements: 96, encoding: "base_q4", unit: 64 })
    );
    assert_eq!(
        affine(8, 32, f16, false).regions(u64::MAX - 31),
        Err(QuantError::TooLarge { elements: u64::MAX - 31, encoding: "base_q8" })
    );
}

#[test]
fn short_payloads_and_ranges_outside_are_refused() {
    let encoding = affine(4, 32, ScaleDtype::F16, false);
    let bytes = encode(encoding, &[0.5; 64]);
    for length in [0, 1, bytes.len() - 1] {
        let error = encoding.decode(&bytes[..length], 64, 0, &mut [0.0; 1]).unwrap_err();
        assert!(matches!(error, QuantError::Length { .. }), "{length}: {error}");
    }
    for (first, count) in [(64, 1), (0, 65), (60, 5), (usize::MAX, 2)] {
        let error = encoding.decode(&bytes, 64, first, &mut vec![0.0; count]).unwrap_err();
        assert!(matches!(error, QuantError::Range { .. }), "{first}+{count}: {error}");
    }
    encoding.decode(&bytes, 64, 64, &mut []).unwrap();
}

/// The quantiser written out as the format describes it, one group at a time.
fn reference_group(
    bits: u32,
    scale: ScaleDtype,
    symmetric: bool,
    group: &[f32],
) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    let max = group.iter().copied().reduce(f32::max).unwrap();
    let min = group.iter().copied().reduce(f32::min).unwrap();
    let nonzero = |s: f32| if s == 0.0 { 1.0 } else { s };
    let codes = if symmetric {
        let half = 1 << (bits - 1);
        let s = scale.encode(nonzero(max.max(-min) / (half - 1) as f32), &mut scales);
        let quantise = |x: f32| (x * (1.0 / s)).round().clamp(-half as f32, (half - 1) as f32) as i32;
        group.iter().map(|&x| (quantise(x) + half) as u8).collect()
    } else {
        let top = ((1u32 << bits) - 1) as f32;
        let s = scale.encode(nonzero((max - min) / top), &mut scales);
        let m = scale.encode(min, &mut biases);
        group.iter().map(|&x| ((x - m) * (1.0 / s)).round().clamp(0.0, top) as u8).collect()
    };
    (codes, scales, biases)
}

fn cases() -> impl Strategy<Value = (u32, usize, ScaleDtype, bool, Vec<f32>)> {
    let scale = prop::sample::select(vec![ScaleDtype::Bf16, ScaleDtype::F16, ScaleDtype::E4m3]);
    let parameters = (
        prop::sample::select(WIDTHS.to_vec()),
        prop::sample::select(vec![8, 32, 64, 128]),
        scale,
        any::<bool>(),
    );
    (parameters, 1usize..5, prop::sample::select(vec![0.02f32, 1.0, 60.0])).prop_flat_map(
        |((bits, group, scale, symmetric), groups, range)| {
            let values = prop::collection::vec(-range..range, group * groups);
            (Just(bits), Just(group), Just(scale), Just(symmetric), values)
        },
    )
}

proptest! {
    #[test]
    fn encoding_equals_the_written_out_quantiser((bits, group, scale, symmetric, values) in cases()) {
        let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        for group in values.chunks(group) {
            let (c, s, b) = reference_group(bits, scale, symmetric, group);
            codes.extend(c);
            scales.extend(s);
            biases.extend(b);
        }
        let mut expected = Vec::new();
        pack_codes(bits, &codes, &mut expected).unwrap();
        expected.extend(scales);
        expected.extend(biases);
        prop_assert_eq!(encode(affine(bits, group, scale, symmetric), &values), expected);
    }

    /// Half a step, plus what rounding the scale and bias to their dtype can move the ends of the range.
    #[test]
    fn the_error_is_half_a_step((bits, group, scale, symmetric, values) in cases()) {
        prop_assume!(scale != ScaleDtype::E4m3);
        let encoding = affine(bits, group, scale, symmetric);
        let decoded = decode(encoding, &encode(encoding, &values), values.len());
        for (values, decoded) in values.chunks(group).zip(decoded.chunks(group)) {
            let max = values.iter().copied().fold(f32::MIN, f32::max);
            let min = values.iter().copied().fold(f32::MAX, f32::min);
            let (span, steps) = if symmetric {
                (max.max(-min), (1 << (bits - 1)) - 1)
            } else {
                (max - min, (1 << bits) - 1)
            };
            let step = span / steps as f32;
            let largest = max.abs().max(min.abs());
            // bf16 rounds by 2^-9 of the value, f16 by 2^-12; f16 scales below its normal range by 2^-25.
            let scale_error = (span + largest) / 256.0 + 3e-8 * steps as f32;
            for (x, y) in values.iter().zip(decoded) {
                prop_assert!((x - y).abs() <= step / 2.0 + scale_error, "{x} became {y}, step {step}");
            }
        }
    }

    #[test]
    fn any_range_equals_that_part_of_the_whole(
        (bits, group, scale, symmetric, values) in cases(),
        a in any::<prop::sample::Index>(),
        b in any::<prop::sample::Index>(),
    ) {
        let encoding = affine(bits, group, scale, symmetric);
        let bytes = encode(encoding, &values);
        let whole = decode(encoding, &bytes, values.len());
        let (a, b) = (a.index(values.len() + 1), b.index(values.len() + 1));
        let (first, end) = (a.min(b), a.max(b));
        let mut part = vec![f32::NAN; end - first];
        encoding.decode(&bytes, values.len(), first, &mut part).unwrap();
        prop_assert_eq!(&part, &whole[first..end]);
    }

    /// Rows of 48 under groups of 32 or 64: groups straddle rows, and a row starts inside a group.
    #[test]
    fn rows_may_share_groups(values in prop::collection::vec(-1.0f32..1.0, 48 * 8)) {
        for group in [32, 64] {
            let encoding = affine(5, group, ScaleDtype::Bf16, false);
            let bytes = encode(encoding, &values);
            let whole = decode(encoding, &bytes, values.len());
            for (row, expected) in whole.chunks(48).enumerate() {
                let mut decoded = [f32::NAN; 48];
                encoding.decode(&bytes, values.len(), row * 48, &mut decoded).unwrap();
                prop_assert_eq!(&decoded[..], expected);
            }
        }
    }

    /// Groups longer than the decoder's internal block.
    #[test]
    fn long_groups(values in prop::collection::vec(-1.0f32..1.0, 1040), first in 0usize..1040) {
        let encoding = affine(3, 520, ScaleDtype::F16, false);
        let bytes = encode(encoding, &values);
        let whole = decode(encoding, &bytes, values.len());
        let mut codes = vec![0; 1040];
        unpack_codes(3, &bytes[..390], &mut codes).unwrap();
        for (i, (&code, &value)) in codes.iter().zip(&whole).enumerate() {
            let scale = ScaleDtype::F16.get(&bytes[390..], i / 520).unwrap();
            let bias = ScaleDtype::F16.get(&bytes[394..], i / 520).unwrap();
            prop_assert_eq!(value, f32::from(code) * scale + bias);
        }
        let mut part = vec![f32::NAN; 1040 - first];
        encoding.decode(&bytes, 1040, first, &mut part).unwrap();
        prop_assert_eq!(&part, &whole[first..]);
    }
}
