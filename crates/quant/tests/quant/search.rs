//! Searched scales and biases against round-to-nearest.

use basert_quant::{Encoding, QuantError, ScaleDtype};

/// Repeatable values, roughly normal; every 50th is ten times as large.
fn normal(count: usize) -> Vec<f32> {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let value = |index: usize| {
        let normal: f32 = (0..12).map(|_| next()).sum();
        if index % 50 == 49 { 10.0 * normal } else { normal }
    };
    (0..count).map(value).collect()
}

/// Weighted squared error of every group.
fn errors(encoding: Encoding, values: &[f32], weights: &[f32], payload: &[u8]) -> Vec<f64> {
    let mut decoded = vec![0.0; values.len()];
    encoding.decode(payload, values.len(), 0, &mut decoded).unwrap();
    let square = |((v, d), w): ((&f32, &f32), &f32)| f64::from(*w) * f64::from(v - d).powi(2);
    let squares: Vec<f64> = values.iter().zip(&decoded).zip(weights).map(square).collect();
    squares.chunks(encoding.group()).map(|group| group.iter().sum()).collect()
}

fn encodings() -> impl Iterator<Item = Encoding> {
    [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| {
        [32, 64, 128].into_iter().flat_map(move |group| {
            [(ScaleDtype::F16, false), (ScaleDtype::Bf16, false), (ScaleDtype::F16, true)]
                .map(move |(scale, symmetric)| Encoding::Affine { bits, group, scale, symmetric })
        })
    })
}

#[test]
fn no_group_is_worse_than_rounded_to_nearest_and_all_together_are_better() {
    let values = normal(128 * 60);
    let ones = vec![1.0; values.len()];
    let importance: Vec<f32> = normal(values.len()).iter().map(|v| v * v).collect();
    for encoding in encodings() {
        for weights in [None, Some(&importance)] {
            let (mut nearest, mut searched) = (Vec::new(), Vec::new());
            encoding.encode(&values, &mut nearest).unwrap();
            encoding.encode_searched(&values, weights.map(|w| &w[..]), &mut searched).unwrap();
            assert_eq!(nearest.len(), searched.len());
            let weights = weights.unwrap_or(&ones);
            let nearest = errors(encoding, &values, weights, &nearest);
            let searched = errors(encoding, &values, weights, &searched);
            for (group, (nearest, searched)) in nearest.iter().zip(&searched).enumerate() {
                // The search compares sums in f32.
                assert!(*searched <= nearest * 1.0001, "{encoding:?} group {group}: {searched} {nearest}");
            }
            let (nearest, searched): (f64, f64) = (nearest.iter().sum(), searched.iter().sum());
            // Without a bias there is only one end to clip.
            let bound = match encoding {
                Encoding::Affine { symmetric: true, .. } => 0.985,
                Encoding::Affine { bits: 2, .. } => 0.75,
                Encoding::Affine { bits: 3, .. } => 0.85,
                Encoding::Affine { bits: 4, .. } => 0.92,
                _ => 0.97,
            };
            assert!(searched < bound * nearest, "{encoding:?}: {}", searched / nearest);
        }
    }
}

#[test]
fn values_on_a_grid_stay_exact() {
    let values: Vec<f32> = (0..64).map(|i| (i * 7 % 16) as f32 * 0.25 - 1.0).collect();
    let encoding = Encoding::Affine { bits: 4, group: 64, scale: ScaleDtype::F16, symmetric: false };
    let mut payload = Vec::new();
    encoding.encode_searched(&values, None, &mut payload).unwrap();
    let ones = vec![1.0; 64];
    assert_eq!(errors(encoding, &values, &ones, &payload), [0.0]);
}

#[test]
fn constant_tiny_and_unweighted_groups_are_what_round_to_nearest_makes_of_them() {
    let encoding = Encoding::Affine { bits: 3, group: 32, scale: ScaleDtype::F16, symmetric: false };
    let tiny: Vec<f32> = (0..32).map(|i| i as f32 * 1e-41).collect();
    for values in [vec![0.0; 32], vec![-3.5; 32], tiny] {
        let (mut nearest, mut searched) = (Vec::new(), Vec::new());
        encoding.encode(&values, &mut nearest).unwrap();
        encoding.encode_searched(&values, Some(&[0.0; 32]), &mut searched).unwrap();
        assert_eq!(nearest, searched);
    }
    let values = normal(32);
    let (mut zero, mut none) = (Vec::new(), Vec::new());
    encoding.encode_searched(&values, Some(&[0.0; 32]), &mut zero).unwrap();
    encoding.encode_searched(&values, None, &mut none).unwrap();
    assert_eq!(zero, none);
}

#[test]
fn errors_leave_the_output_as_it_was() {
    let encoding = Encoding::Affine { bits: 4, group: 32, scale: ScaleDtype::F16, symmetric: false };
    let mut out = vec![1, 2, 3];
    let mut values = normal(64);
    assert!(matches!(
        encoding.encode_searched(&values, Some(&[1.0; 32]), &mut out),
        Err(QuantError::Length { expected: 64, found: 32, .. })
    ));
    values[40] = f32::NAN;
    let refused = encoding.encode_searched(&values, None, &mut out);
    assert!(matches!(refused, Err(QuantError::NonFinite { index: 40, .. })));
    values[40] = 1e6;
    let refused = encoding.encode_searched(&values, None, &mut out);
    assert!(matches!(refused, Err(QuantError::ScaleRange { index: 32, .. })), "{refused:?}");
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn other_encodings_are_encoded_as_ever() {
    let values = normal(64);
    for encoding in [
        Encoding::Float(basert_quant::FloatDtype::Bf16),
        Encoding::Fp4(basert_quant::Fp4::Mx),
        Encoding::Affine { bits: 8, group: 32, scale: ScaleDtype::E4m3, symmetric: false },
    ] {
        let (mut plain, mut searched) = (Vec::new(), Vec::new());
        encoding.encode(&values, &mut plain).unwrap();
        encoding.encode_searched(&values, None, &mut searched).unwrap();
        assert_eq!(plain, searched);
    }
}
