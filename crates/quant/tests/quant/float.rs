//! Plain floats: special values, rounding and unaligned bytes.

use basert_quant::{FloatDtype, QuantError, float};
use proptest::prelude::*;

const ALL: [FloatDtype; 3] = [FloatDtype::F32, FloatDtype::F16, FloatDtype::Bf16];

fn decode(dtype: FloatDtype, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.bytes()];
    float::decode(dtype, bytes, &mut out).unwrap();
    out
}

fn encode(dtype: FloatDtype, values: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    float::encode(dtype, values, &mut out);
    out
}

/// Bit pattern of a half and its value.
#[test]
fn special_values_decode() {
    let table = [
        (FloatDtype::F16, 0x0000, 0.0),
        (FloatDtype::F16, 0x8000, -0.0),
        (FloatDtype::F16, 0x0001, 5.960_464_5e-8), // smallest subnormal
        (FloatDtype::F16, 0x03ff, 6.097_555e-5),   // largest subnormal
        (FloatDtype::F16, 0x0400, 6.103_515_6e-5), // smallest normal
        (FloatDtype::F16, 0x7bff, 65504.0),
        (FloatDtype::F16, 0x7c00, f32::INFINITY),
        (FloatDtype::F16, 0xfc00, f32::NEG_INFINITY),
        (FloatDtype::Bf16, 0x8000, -0.0),
        (FloatDtype::Bf16, 0x0001, 9.183_55e-41), // smallest subnormal
        (FloatDtype::Bf16, 0x3f80, 1.0),
        (FloatDtype::Bf16, 0x7f7f, 3.389_531_4e38), // largest
        (FloatDtype::Bf16, 0xff80, f32::NEG_INFINITY),
    ];
    for (dtype, bits, value) in table {
        let bytes = u16::to_le_bytes(bits);
        assert_eq!(decode(dtype, &bytes)[0].to_bits(), f32::to_bits(value), "{dtype} {bits:#06x}");
        assert_eq!(encode(dtype, &[value]), bytes, "{dtype} {value:e}");
    }
    for (dtype, bits) in [(FloatDtype::F16, 0x7e01u16), (FloatDtype::F16, 0xfc01), (FloatDtype::Bf16, 0x7f81)]
    {
        assert!(decode(dtype, &bits.to_le_bytes())[0].is_nan(), "{dtype} {bits:#06x}");
    }
    for dtype in ALL {
        assert!(decode(dtype, &encode(dtype, &[f32::NAN]))[0].is_nan(), "{dtype} NaN became a number");
    }
}

#[test]
fn narrowing_rounds_to_even_overflows_and_flushes() {
    let table = [
        (FloatDtype::F16, 2049.0, 2048.0), // tie, down to even
        (FloatDtype::F16, 2051.0, 2052.0), // tie, up to even
        (FloatDtype::F16, 65519.996, 65504.0),
        (FloatDtype::F16, 65520.0, f32::INFINITY),
        (FloatDtype::F16, 2.980_232_2e-8, 0.0), // half of the smallest subnormal, tie to even
        (FloatDtype::F16, 2.980_233e-8, 5.960_464_5e-8),
        (FloatDtype::F16, 1e-40, 0.0),
        (FloatDtype::Bf16, 257.0, 256.0), // tie, down to even
        (FloatDtype::Bf16, 259.0, 260.0), // tie, up to even
        (FloatDtype::Bf16, f32::MAX, f32::INFINITY),
        (FloatDtype::Bf16, 1e-45, 0.0),
    ];
    for (dtype, value, stored) in table {
        for sign in [1.0, -1.0] {
            assert_eq!(decode(dtype, &encode(dtype, &[sign * value])), [sign * stored], "{dtype} {value:e}");
        }
    }
}

/// Long enough to take the vectorised path, at every alignment.
#[test]
fn slices_equal_single_values_at_any_alignment() {
    for dtype in [FloatDtype::F16, FloatDtype::Bf16] {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let whole = decode(dtype, &bytes);
        let mut shifted = vec![0];
        shifted.extend_from_slice(&bytes);
        let pairs = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(pairs(&decode(dtype, &shifted[1..])), pairs(&whole));
        for (pair, &value) in bytes.chunks(2).zip(&whole) {
            let single = decode(dtype, pair)[0];
            assert!(
                single.to_bits() == value.to_bits() || (single.is_nan() && value.is_nan()),
                "{pair:02x?}"
            );
        }
    }
}

#[test]
fn a_payload_of_the_wrong_length_is_refused() {
    for dtype in ALL {
        let error = float::decode(dtype, &[0; 7], &mut [0.0; 2]).unwrap_err();
        assert!(matches!(error, QuantError::Length { found: 7, .. }), "{dtype}: {error}");
    }
}

proptest! {
    #[test]
    fn f32_is_kept_bit_for_bit(values in prop::collection::vec(any::<f32>(), 0..50)) {
        let bytes = encode(FloatDtype::F32, &values);
        prop_assert_eq!(encode(FloatDtype::F32, &decode(FloatDtype::F32, &bytes)), bytes);
    }

    #[test]
    fn halves_survive_a_round_trip_through_f32(bits in prop::collection::vec(any::<u16>(), 1..3000)) {
        for dtype in [FloatDtype::F16, FloatDtype::Bf16] {
            let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
            let values = decode(dtype, &bytes);
            let again = encode(dtype, &values);
            for ((value, a), b) in values.iter().zip(bytes.chunks(2)).zip(again.chunks(2)) {
                prop_assert!(value.is_nan() || a == b, "{dtype} {a:02x?} {b:02x?}");
            }
        }
    }
}
