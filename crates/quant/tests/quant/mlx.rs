//! MLX arrays against values measured with mlx itself, and against the container's own decoder.

use basert_quant::{Encoding, FloatDtype, Fp4, Mlx, MlxArrays, QuantError, ScaleDtype};
use half::{bf16, f16};
use proptest::prelude::*;

fn words(hex: &str) -> Vec<u8> {
    hex.split(' ').flat_map(|word| u32::from_str_radix(word, 16).unwrap().to_le_bytes()).collect()
}

fn affine(bits: u32, group: usize, scale: FloatDtype) -> Mlx {
    Mlx::Affine { bits, group, scale }
}

fn decode(mlx: Mlx, codes: &[u8], scales: &[u8], biases: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; codes.len() * 8 / mlx.bits() as usize];
    mlx.decode(MlxArrays { codes, scales, biases }, &mut out).unwrap();
    out
}

/// Field case: a width computed as `32 / bits` codes per word. Codes cross the borders of words.
#[test]
fn three_five_and_six_bit_codes_cross_words() {
    let one = [1.0f32.to_le_bytes(), 0.5f32.to_le_bytes()];
    let five: Vec<f32> = (0..32).map(|i| ((7 * i + 3) % 32) as f32 + 0.5).collect();
    let three: Vec<f32> = (0..32).map(|i| ((5 * i + 1) % 8) as f32 + 0.5).collect();
    let six: Vec<f32> = (0..32).map(|i| (i % 16) as f32 + 0.5).collect();
    let cases = [
        (5, "4dfc4543 78245ba3 0753617d 4b276cf4 e55c7066", five),
        (3, "f19d50f1 50f19d50 9d50f19d", three),
        (6, "440c2040 a2481c61 3ce34c2c 440c2040 a2481c61 3ce34c2c", six),
    ];
    for (bits, hex, expected) in cases {
        let mlx = affine(bits, 32, FloatDtype::F32);
        assert_eq!(decode(mlx, &words(hex), &one[0], &one[1]), expected, "{bits} bits");
    }
}

#[test]
fn small_floats_read_their_scales_by_the_standard() {
    // Codes 2 (1.0) and 15 (-6.0).
    let codes = [0xf2; 16];
    let pairs = |mlx, codes: &[u8], scales: &[u8]| decode(mlx, codes, scales, &[])[..2].to_vec();
    assert_eq!(pairs(Mlx::MxFp4, &codes, &[129]), [4.0, -24.0]);
    assert_eq!(pairs(Mlx::MxFp4, &codes, &[0])[0], f32::from_bits(1 << 22));
    assert!(pairs(Mlx::MxFp4, &codes, &[255])[0].is_nan());
    // 2^0·(1 + 4/8), zero, the smallest subnormal.
    for (scale, value) in [(0x3c, 1.5), (0x00, 0.0), (0x01, 1.0 / 512.0)] {
        assert_eq!(pairs(Mlx::NvFp4, &codes[..8], &[scale]), [value, -6.0 * value]);
    }
    assert!(pairs(Mlx::NvFp4, &codes[..8], &[0x7f])[0].is_nan());
    assert_eq!(pairs(Mlx::MxFp8, &[[0x38, 0xc0]; 16].concat(), &[128]), [2.0, -4.0]);
}

#[test]
fn what_the_container_cannot_hold_has_no_exact_encoding() {
    let mx = [0u8, 1, 254];
    assert_eq!(Mlx::MxFp4.exact_encoding(&mx, &[]), Some(Encoding::Fp4(Fp4::Mx)));
    assert_eq!(Mlx::NvFp4.exact_encoding(&[0x08, 0x7e], &[]), Some(Encoding::Fp4(Fp4::Nv)));
    for bad in [0x00, 0x07, 0x7f, 0x80, 0xb8] {
        assert_eq!(Mlx::NvFp4.exact_encoding(&[0x38, bad], &[]), None, "{bad:#x}");
    }
    assert_eq!(Mlx::MxFp8.exact_encoding(&mx, &[]), None);

    let wide = affine(4, 64, FloatDtype::F32);
    let encoding = |scales: [f32; 2]| {
        let bytes: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        wide.exact_encoding(&bytes, &bytes)
    };
    let stored = |scale| Some(Encoding::Affine { bits: 4, group: 64, scale, symmetric: false });
    assert_eq!(encoding([0.5, f16::from_f32(0.1).to_f32()]), stored(ScaleDtype::F16));
    assert_eq!(encoding([0.5, bf16::from_f32(1e30).to_f32()]), stored(ScaleDtype::Bf16));
    assert_eq!(encoding([0.5, 0.1]), None);
}

#[test]
fn arrays_that_do_not_belong_together_are_refused() {
    let mlx = affine(4, 32, FloatDtype::Bf16);
    let refuse = |codes: usize, scales: usize, biases: usize, out: usize| {
        let (codes, scales, biases) = (vec![0; codes], vec![0; scales], vec![0; biases]);
        let arrays = MlxArrays { codes: &codes, scales: &scales, biases: &biases };
        mlx.decode(arrays, &mut vec![0.0; out]).unwrap_err()
    };
    assert!(matches!(refuse(16, 2, 2, 31), QuantError::Elements { .. }));
    for (codes, scales, biases) in [(15, 2, 2), (16, 1, 2), (16, 2, 0)] {
        assert!(matches!(refuse(codes, scales, biases, 32), QuantError::Length { .. }));
    }
}

proptest! {
    #[test]
    fn affine_arrays_are_the_regions_of_the_container(
        bits in prop::sample::select(vec![2u32, 3, 4, 5, 6, 8]),
        group in prop::sample::select(vec![32usize, 64, 128]),
        seed in prop::collection::vec(any::<u8>(), 3 * 128),
        scales in prop::collection::vec(-2.0f32..2.0, 6),
    ) {
        let codes = &seed[..3 * group / 8 * bits as usize];
        let stored: Vec<u8> = scales.iter().flat_map(|s| bf16::from_f32(*s).to_le_bytes()).collect();
        let (scales, biases) = stored.split_at(6);
        let mlx = affine(bits, group, FloatDtype::Bf16);
        let encoding = mlx.exact_encoding(scales, biases).unwrap();
        let payload = [codes, scales, biases].concat();
        let mut container = vec![f32::NAN; 3 * group];
        encoding.decode(&payload, 3 * group, 0, &mut container).unwrap();
        prop_assert_eq!(decode(mlx, codes, scales, biases), container);
    }
}
