//! Rows on their way into the cache, and rotation.

use super::*;
use crate::reference::kv::{cached, q4_candidates};
use crate::{Buffer, KvDtype, KvGeometry};

const BLOCK: usize = 32;

/// The bytes of a row as a device stores it.
fn store(cpu: &Cpu, dtype: KvDtype, x: &[f32]) -> Vec<u8> {
    let geo = KvGeometry { kv_heads: 1, head_dim: x.len(), page_tokens: 32, k: dtype, v: dtype };
    let mut pools = [0; 2].map(|_| Buffer::zeroed(geo.page_bytes(dtype)));
    let [k, v] = &mut pools;
    cpu.store_kv(&geo, k, v, &[0], 0, x, x);
    assert_eq!(k.as_bytes(), v.as_bytes());
    assert!(
        k.as_bytes()[dtype.row_bytes(x.len())..].iter().all(|&byte| byte == 0),
        "other rows are untouched"
    );
    k.as_bytes()[..dtype.row_bytes(x.len())].to_vec()
}

fn read(dtype: KvDtype, row: &[u8], len: usize) -> Vec<f32> {
    (0..len).map(|i| cached(dtype, row, i)).collect()
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |max, x| max.max(x.abs()))
}

/// Blocks with everything that can go wrong in one.
fn awkward_blocks() -> Vec<Vec<f32>> {
    let mut rng = Rng::new(9);
    let mut blocks = vec![
        vec![0.0; BLOCK],
        vec![-0.0; BLOCK],
        vec![1.0; BLOCK],
        vec![-65504.0; BLOCK],
        vec![f32::MAX; BLOCK],
        vec![f32::MIN; BLOCK],
        vec![f32::MIN_POSITIVE / 4.0; BLOCK],
        (0..32).map(|i| i as f32 - 16.0).collect(),
        (0..32).map(|i| if i % 2 == 0 { 3.0 } else { -3.0 }).collect(),
    ];
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-7, -1e30] {
        let mut block = rng.floats(BLOCK);
        block[rng.bits() as usize % BLOCK] = special;
        blocks.push(block);
    }
    // Scales from below the smallest binary16 to above the largest.
    blocks.extend((-40..30).map(|power| {
        let size = (power as f32).exp2();
        rng.floats(BLOCK).into_iter().map(|x| x * size).collect()
    }));
    blocks.extend((0..40).map(|_| rng.spread(BLOCK)));
    blocks
}

#[test]
fn every_device_stores_the_references_bytes() {
    let x = awkward_blocks().concat();
    for dtype in KvDtype::ALL {
        let expected = store(&reference(), dtype, &x);
        for cpu in devices() {
            let found = store(&cpu, dtype, &x);
            let different = (0..expected.len()).find(|&i| found[i] != expected[i]);
            let block = different.map(|i| i / dtype.block_bytes());
            assert_eq!(block, None, "{dtype} on {cpu:?}");
        }
    }
}

#[test]
fn q8_is_within_half_a_step_and_clips_nothing() {
    for x in awkward_blocks() {
        let row = store(&reference(), KvDtype::Q8, &x);
        let found = read(KvDtype::Q8, &row, BLOCK);
        if !x.iter().all(|x| x.is_finite()) {
            assert!(found.iter().all(|x| x.is_nan()), "one broken element breaks its block");
            continue;
        }
        let scale = half::f16::from_le_bytes([row[0], row[1]]).to_f32();
        let amax = largest(&x);
        if amax > 127.0 * 65504.0 {
            assert_eq!(largest(&found), 127.0 * 65504.0, "what no scale reaches is clipped");
            continue;
        }
        assert!(scale >= amax / 127.0 && scale <= (amax / 127.0) * 1.001 + 6e-8, "{scale} for {amax}");
        for (found, x) in found.iter().zip(&x) {
            assert!((found - x).abs() <= 0.50001 * scale, "{found} for {x} with steps of {scale}");
        }
    }
}

#[test]
fn q4_takes_the_candidate_with_the_least_error() {
    for x in awkward_blocks() {
        let row = store(&reference(), KvDtype::Q4, &x);
        let found = read(KvDtype::Q4, &row, BLOCK);
        if !x.iter().all(|x| x.is_finite()) {
            assert!(found.iter().all(|x| x.is_nan()), "one broken element breaks its block");
            continue;
        }
        let error = |scale: f32| -> f64 {
            let errors = x.iter().map(|x| {
                let levels = crate::reference::kv::Q4_LEVELS.into_iter();
                levels
                    .map(|l| (f64::from(*x) - f64::from(l) * f64::from(scale)).powi(2))
                    .fold(f64::INFINITY, f64::min)
            });
            errors.sum()
        };
        let (max, min) = x.iter().fold((f32::MIN, f32::MAX), |(max, min), x| (max.max(*x), min.min(*x)));
        let candidates = q4_candidates(max, min).map(|scale| error(scale.to_f32()));
        let least = candidates.into_iter().fold(f64::INFINITY, f64::min);
        let taken: f64 =
            x.iter().zip(&found).map(|(x, found)| (f64::from(*x) - f64::from(*found)).powi(2)).sum();
        if largest(&x) < 1e18 {
            assert!(taken <= least * 1.001, "{taken} where {least} can be had: {x:?}");
        }
        assert!(found.iter().all(|x| x.is_finite()));
    }
}

/// The numbers behind the choice of levels and candidates.
#[test]
fn the_error_of_normal_deviates_is_what_was_designed() {
    let mut rng = Rng::new(3);
    // Sums of twelve uniform numbers.
    let x: Vec<f32> = (0..1 << 15).map(|_| (0..12).map(|_| rng.unit()).sum::<f32>() * 0.5).collect();
    let power: f64 = x.iter().map(|x| f64::from(x * x)).sum();
    for (dtype, designed) in [(KvDtype::Q8, 2.85e-5), (KvDtype::Q4, 5.6e-3)] {
        let found = read(dtype, &store(&reference(), dtype, &x), x.len());
        let error: f64 = x.iter().zip(&found).map(|(x, found)| f64::from(x - found).powi(2)).sum();
        assert!((error / power / designed - 1.0).abs() < 0.1, "{dtype}: {}", error / power);
    }
}

#[test]
fn rotation_is_the_hadamard_matrix_and_its_own_inverse() {
    let mut rng = Rng::new(1);
    for (head_dim, width) in [(32, 32), (64, 64), (96, 32), (128, 128), (192, 64), (256, 256)] {
        let x = rng.floats(3 * head_dim);
        let truth: Vec<f64> = (0..x.len())
            .map(|i| {
                let start = i / width * width;
                let sign =
                    |j: usize| if ((i % width) & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                let sum: f64 = (0..width).map(|j| sign(j) * f64::from(x[start + j])).sum();
                sum / (width as f64).sqrt()
            })
            .collect();
        let mut expected = x.clone();
        reference().rotate(&mut expected, head_dim);
        assert_close(&expected, &truth, 1e-6, format_args!("heads of {head_dim}"));
        for cpu in devices() {
            let mut found = x.clone();
            cpu.rotate(&mut found, head_dim);
            assert_same(&found, &expected, format_args!("heads of {head_dim} on {cpu:?}"));
            cpu.rotate(&mut found, head_dim);
            let twice: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            assert_close(&found, &twice, 1e-6, format_args!("heads of {head_dim} on {cpu:?}, twice"));
        }
    }
}
