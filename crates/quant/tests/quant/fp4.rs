//! MXFP4 and NVFP4 as the container stores them.

use basert_quant::{Encoding, Fp4, QuantError, ScaleDtype};
use proptest::prelude::*;

const MX: Encoding = Encoding::Fp4(Fp4::Mx);
const NV: Encoding = Encoding::Fp4(Fp4::Nv);

fn encode(encoding: Encoding, values: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    encoding.encode(values, &mut out).unwrap();
    out
}

fn decode(encoding: Encoding, payload: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; elements];
    encoding.decode(payload, elements, 0, &mut out).unwrap();
    out
}

#[test]
fn the_sixteen_codes_in_sequential_nibbles_even_index_low() {
    let mut payload: Vec<u8> = (0..8).map(|i| (2 * i) | (2 * i + 1) << 4).collect();
    payload.push(0x40); // NVFP4: 2.0
    let expected = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    assert_eq!(decode(NV, &payload, 16), expected.map(|v: f32| 2.0 * v));
}

#[test]
fn all_codes_come_before_all_scales() {
    let mut payload = vec![0x22; 32]; // code 2: 1.0
    payload.extend([127, 128]);
    let values = decode(MX, &payload, 64);
    assert_eq!(values[..32], [1.0; 32]);
    assert_eq!(values[32..], [2.0; 32]);
}

#[test]
fn scale_bytes_have_their_own_rules() {
    let table = [
        (Fp4::Mx, 0, 5.877_472e-39), // 2^-127, where an affine e8m0 scale is 0
        (Fp4::Mx, 1, 1.175_494_4e-38),
        (Fp4::Mx, 127, 1.0),
        (Fp4::Mx, 254, 1.701_411_8e38),
        (Fp4::Nv, 0, 1.0), // where an affine e4m3 scale is 0
        (Fp4::Nv, 1, 0.008_789_062_5),
        (Fp4::Nv, 0x38, 1.0),
        (Fp4::Nv, 0xb8, 1.0),   // the sign is ignored
        (Fp4::Nv, 0x7f, 480.0), // not NaN
    ];
    for (kind, byte, value) in table {
        assert_eq!(kind.scale(byte), value, "{kind} {byte:#04x}");
    }
    assert_eq!(Fp4::Mx.scale(255), f32::INFINITY);
}

/// Group scale 1 (largest magnitude 6): a tie takes the larger magnitude, and nothing rounds to -0.
#[test]
fn codes_round_at_the_midpoints_with_ties_up() {
    let values =
        [6.0, 0.25, 0.249, -0.25, -0.249, 0.75, 1.25, 1.749, 1.75, 2.5, 2.49, 3.5, 3.49, 5.0, 4.99, -5.0];
    let expected = [6.0, 0.5, 0.0, -0.5, 0.0, 1.0, 1.5, 1.5, 2.0, 3.0, 2.0, 4.0, 3.0, 6.0, 4.0, -6.0];
    let payload = encode(NV, &values);
    assert_eq!(payload[8], 0x38);
    let decoded = decode(NV, &payload, 16);
    assert_eq!(decoded, expected);
    assert!(decoded.iter().all(|v| *v != 0.0 || v.is_sign_positive()), "a -0 was stored");
}

#[test]
fn mxfp4_scales_are_the_power_of_two_at_or_above() {
    for (magnitude, byte) in
        [(6.0, 127), (6.1, 128), (3.0, 126), (12.0, 128), (0.0, 127), (1e-45, 0), (1e38, 251)]
    {
        let mut values = [0.0; 32];
        values[5] = -magnitude;
        assert_eq!(encode(MX, &values)[16], byte, "{magnitude:e}");
    }
}

#[test]
fn nvfp4_scales_have_a_floor_exponent_and_no_carry() {
    let table = [
        (6.0, 0x38),
        (6.0 * 1.5, 0x3c),
        (6.0 * 1.0625, 0x39), // tie up
        (6.0 * 1.97, 0x3f),   // would carry to 2.0
        (6.0 * 480.0, 0x7f),
        (6.0 * 0.0078125, 0x01), // 2^-7 would be byte 0, which reads as 1.0
        (1e-9, 0x01),
        (0.0, 0x00),
    ];
    for (magnitude, byte) in table {
        let mut values = [0.0; 16];
        values[3] = magnitude;
        assert_eq!(encode(NV, &values)[8], byte, "{magnitude:e}");
    }
    let mut values = [0.0; 32];
    values[20] = 6.0 * 512.0;
    let error = NV.encode(&values, &mut Vec::new()).unwrap_err();
    assert_eq!(error, QuantError::ScaleRange { index: 16, value: 512.0, dtype: ScaleDtype::E4m3 });
}

#[test]
fn sizes() {
    assert_eq!(MX.payload_len(64), Ok(34));
    assert_eq!(NV.payload_len(64), Ok(36));
    assert!(matches!(MX.payload_len(48), Err(QuantError::Elements { unit: 32, .. })));
    assert!(matches!(NV.payload_len(24), Err(QuantError::Elements { unit: 16, .. })));
}

proptest! {
    /// Half of the widest gap (4 to 6) below the largest magnitude, and a sixteenth more for NVFP4's scale.
    #[test]
    fn the_error_is_a_sixth_of_the_largest_magnitude(
        values in prop::collection::vec(-8.0f32..8.0, 64),
        first in 0usize..64,
    ) {
        for encoding in [MX, NV] {
            let payload = encode(encoding, &values);
            let decoded = decode(encoding, &payload, 64);
            for (xs, ys) in values.chunks(encoding.group()).zip(decoded.chunks(encoding.group())) {
                let largest = xs.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                // The power of two may be twice what the range needs.
                let bound = largest / 6.0 * if encoding == MX { 2.0 } else { 1.0625 };
                for (x, y) in xs.iter().zip(ys) {
                    prop_assert!((x - y).abs() <= bound, "{x} became {y}, largest {largest}");
                }
            }
            let mut part = vec![f32::NAN; 64 - first];
            encoding.decode(&payload, 64, first, &mut part).unwrap();
            prop_assert_eq!(&part, &decoded[first..]);
        }
    }

    /// A value that the group can represent comes back exactly.
    #[test]
    fn representable_groups_are_kept(codes in prop::collection::vec(0u8..16, 31), exponent in -20i32..20) {
        let scale = 2f32.powi(exponent);
        let mut values: Vec<f32> = codes.iter().map(|&c| Fp4::Mx.value(c) * scale).collect();
        values.push(6.0 * scale);
        prop_assert_eq!(decode(MX, &encode(MX, &values), 32), values);
    }
}
