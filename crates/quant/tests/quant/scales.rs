//! Scale dtypes: the two ordinary halves, and the container's own 8-bit formats with their quirks.

use basert_quant::{QuantError, ScaleDtype};
use proptest::prelude::*;

fn decode(dtype: ScaleDtype, bytes: &[u8]) -> f32 {
    let mut out = [f32::NAN];
    dtype.decode(bytes, &mut out).unwrap();
    assert_eq!(dtype.get(bytes, 0).unwrap().to_bits(), out[0].to_bits(), "get and decode differ");
    out[0]
}

fn encode(dtype: ScaleDtype, value: f32) -> Vec<u8> {
    let mut out = Vec::new();
    let stored = dtype.encode(value, &mut out);
    assert_eq!(stored.to_bits(), decode(dtype, &out).to_bits(), "encode reports what it stored");
    out
}

#[test]
fn spellings_are_the_headers() {
    for (dtype, name, bytes) in [
        (ScaleDtype::Bf16, "bf16", 2),
        (ScaleDtype::F16, "f16", 2),
        (ScaleDtype::E8m0, "e8m0", 1),
        (ScaleDtype::E4m3, "e4m3", 1),
    ] {
        assert_eq!(dtype.to_string(), name);
        assert_eq!(name.parse(), Ok(dtype));
        assert_eq!(serde_json::to_string(&dtype).unwrap(), format!("\"{name}\""));
        assert_eq!(serde_json::from_str::<ScaleDtype>(&format!("\"{name}\"")).unwrap(), dtype);
        assert_eq!(dtype.bytes(), bytes);
    }
    let error = "E8M0".parse::<ScaleDtype>().unwrap_err().to_string();
    assert_eq!(error, "unknown scale_dtype `E8M0`; known are bf16, f16, e8m0, e4m3");
}

#[test]
fn values_and_bytes() {
    let table: [(ScaleDtype, f32, &[u8]); 18] = [
        (ScaleDtype::Bf16, 1.0, &[0x80, 0x3f]),
        (ScaleDtype::Bf16, -0.03125, &[0x00, 0xbd]),
        (ScaleDtype::F16, 1.0, &[0x00, 0x3c]),
        (ScaleDtype::F16, -65504.0, &[0xff, 0xfb]),
        (ScaleDtype::F16, 5.960_464_5e-8, &[0x01, 0x00]), // smallest subnormal
        (ScaleDtype::E8m0, 0.0, &[0]),
        (ScaleDtype::E8m0, 1.175_494_4e-38, &[1]), // 2^-126
        (ScaleDtype::E8m0, 1.0, &[127]),
        (ScaleDtype::E8m0, 0.25, &[125]),
        (ScaleDtype::E8m0, 1.701_411_8e38, &[254]), // 2^127
        (ScaleDtype::E4m3, 0.0, &[0x00]),
        (ScaleDtype::E4m3, 0.008_789_062_5, &[0x01]), // 1.125 * 2^-7: no subnormals
        (ScaleDtype::E4m3, 0.015_625, &[0x08]),       // 2^-6
        (ScaleDtype::E4m3, 1.0, &[0x38]),
        (ScaleDtype::E4m3, -1.0, &[0xb8]),
        (ScaleDtype::E4m3, 1.875, &[0x3f]), // a mantissa beyond sqrt(2)
        (ScaleDtype::E4m3, 480.0, &[0x7f]), // not NaN
        (ScaleDtype::E4m3, -480.0, &[0xff]),
    ];
    for (dtype, value, bytes) in table {
        assert_eq!(decode(dtype, bytes), value, "{dtype} {bytes:02x?}");
        assert_eq!(encode(dtype, value), bytes, "{dtype} {value}");
    }
}

#[test]
fn bytes_that_only_decode() {
    assert_eq!(decode(ScaleDtype::E8m0, &[255]), f32::INFINITY);
    assert_eq!(decode(ScaleDtype::E4m3, &[0x80]), 0.0, "0x80 is zero, not -2^-7");
}

#[test]
fn rounding() {
    let table: [(ScaleDtype, f32, f32); 12] = [
        (ScaleDtype::Bf16, 1.003_906_3, 1.0),       // tie to even
        (ScaleDtype::Bf16, 1.011_718_8, 1.015_625), // tie to even, upwards
        (ScaleDtype::F16, 65519.0, 65504.0),
        (ScaleDtype::F16, 2.0e-8, 0.0),  // below half of the smallest subnormal
        (ScaleDtype::E8m0, 1.414, 1.0),  // below sqrt(2), nearest in the logarithm
        (ScaleDtype::E8m0, 1.4143, 2.0), // above
        (ScaleDtype::E8m0, -4.0, 4.0),   // no sign
        (ScaleDtype::E8m0, 1e-45, 1.175_494_4e-38), // never to the byte that reads as zero
        (ScaleDtype::E4m3, 1.0625, 1.125), // tie away from zero
        (ScaleDtype::E4m3, 1.97, 2.0),   // carries into the exponent
        (ScaleDtype::E4m3, 1e6, 480.0),  // saturates
        (ScaleDtype::E4m3, 0.004, 0.0),  // below half of the smallest value
    ];
    for (dtype, value, stored) in table {
        assert_eq!(decode(dtype, &encode(dtype, value)), stored, "{dtype} {value}");
    }
}

#[test]
fn range_is_reported() {
    for (dtype, inside, outside) in [
        (ScaleDtype::F16, 65519.0, 65520.0),
        (ScaleDtype::Bf16, 3.38e38, f32::MAX),
        (ScaleDtype::E8m0, 2.0e38, 3.0e38),
        (ScaleDtype::E4m3, 495.0, 496.0),
    ] {
        assert!(dtype.fits(inside) && dtype.fits(-inside), "{dtype} {inside}");
        assert!(!dtype.fits(outside) && !dtype.fits(-outside), "{dtype} {outside}");
        assert!(!dtype.fits(f32::INFINITY) && !dtype.fits(f32::NAN), "{dtype}");
    }
}

#[test]
fn regions_of_the_wrong_length_are_refused() {
    for dtype in ScaleDtype::ALL {
        assert!(matches!(dtype.decode(&[0; 5], &mut [0.0; 3]), Err(QuantError::Length { .. })), "{dtype}");
        assert!(matches!(dtype.get(&[0; 4], 4 / dtype.bytes()), Err(QuantError::Range { .. })), "{dtype}");
        assert!(matches!(dtype.get(&[0; 4], usize::MAX), Err(QuantError::Range { .. })), "{dtype}");
    }
}

#[test]
fn every_byte_of_the_8_bit_formats_round_trips() {
    for dtype in [ScaleDtype::E8m0, ScaleDtype::E4m3] {
        for byte in 0..=255u8 {
            let canonical = if (dtype, byte) == (ScaleDtype::E4m3, 0x80) { 0 } else { byte };
            assert_eq!(encode(dtype, decode(dtype, &[byte])), [canonical], "{dtype} {byte:#04x}");
        }
    }
}

proptest! {
    #[test]
    fn e4m3_takes_the_nearest_value(value in -500.0f32..500.0) {
        let stored = decode(ScaleDtype::E4m3, &encode(ScaleDtype::E4m3, value));
        let best = (0..=255u8)
            .map(|byte| (decode(ScaleDtype::E4m3, &[byte]) - value).abs())
            .fold(f32::INFINITY, f32::min);
        prop_assert_eq!((stored - value).abs(), best);
    }
}
