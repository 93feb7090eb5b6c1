//! What quantisation costs: divergence from the f32 model falls with every bit, inside stated bands.

use crate::common::{Golden, KV_F32, converted, converted_as, fixture, load, load_with, logits};
use basert_convert::{Method, Options as ConvertOptions};
use basert_engine::Options;

/// Mean KL divergence in nats of `other` from `reference`, both `[positions, vocab]` logits.
fn mean_kl(reference: &[f32], other: &[f32], vocab: usize) -> f64 {
    let rows = reference.chunks_exact(vocab).zip(other.chunks_exact(vocab));
    let positions = rows.len() as f64;
    rows.map(|(p, q)| kl(&log_softmax(p), &log_softmax(q))).sum::<f64>() / positions
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
    logits.iter().map(|&l| f64::from(l) - max - sum.ln()).collect()
}

fn kl(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
}

const TARGETS: [&str; 6] = ["base-q2", "base-q3", "base-q4", "base-q5", "base-q6", "base-q8"];

fn divergences(model: &str, method: Method, targets: &[&str]) -> Vec<f64> {
    let source = fixture(model);
    let ids = Golden::of(&source).prompt("p300").ids.clone();
    let reference = logits(&mut load(&converted(&source, "f32").path, KV_F32), &ids, &[512]);
    let run = |target: &&str| {
        let target = target.parse().unwrap();
        let options = ConvertOptions { target, method: Some(method), ..ConvertOptions::default() };
        let mut engine = load(&converted_as(&source, &options).path, KV_F32);
        let vocab = engine.spec().vocab;
        mean_kl(&reference, &logits(&mut engine, &ids, &[512]), vocab)
    };
    targets.iter().map(run).collect()
}

/// Measured mean KL in nats per model and target, rounded to nearest. Random weights quantise badly, so q2 and q3 are large; what
/// counts is that a change of arithmetic or of the quantiser shows.
const MEASURED: [(&str, [f64; 6]); 3] = [
    ("qwen35-dense-tiny", [5.494, 1.505, 0.5332, 0.1283, 0.03565, 0.005192]),
    ("llama-tiny", [3.942, 0.8991, 0.2795, 0.06581, 0.01685, 0.002397]),
    ("qwen3-moe-tiny", [4.199, 1.182, 0.4098, 0.1119, 0.04675, 0.01235]),
];
/// Half width of the band around each figure.
const BAND: f64 = 0.25;

#[test]
fn divergence_falls_with_every_bit_and_stays_in_its_band() {
    for (model, measured) in MEASURED {
        let found = divergences(model, Method::Rtn, &TARGETS);
        for pair in found.windows(2) {
            assert!(pair[0] > pair[1], "{model}: {found:?} does not fall");
        }
        for ((target, kl), expected) in TARGETS.iter().zip(&found).zip(measured) {
            let off = (kl / expected - 1.0).abs();
            assert!(off < BAND, "{model} {target}: KL {kl:.3e} is {:.0} % off {expected:.3e}", off * 100.0);
        }
    }
}

#[test]
fn searched_scales_come_closer_than_rounded_ones() {
    const FEW_BITS: [&str; 3] = ["base-q2", "base-q3", "base-q4"];
    for (model, measured) in MEASURED {
        let found = divergences(model, Method::Mse, &FEW_BITS);
        for ((target, kl), rounded) in FEW_BITS.iter().zip(&found).zip(measured) {
            assert!(*kl < 0.95 * rounded, "{model} {target}: KL {kl:.3e} against {rounded:.3e}");
        }
    }
}

/// The part of the divergence that 8-bit activations cause: weights decoded to f32 against integer kernels.
#[test]
fn integer_activations_cost_little_beside_the_weights() {
    let source = fixture("qwen35-dense-tiny");
    let ids = Golden::of(&source).prompt("p130").ids.clone();
    let file = converted(&source, "base-q4");
    let exact = Options { dequantize: true, kv: KV_F32, ..Options::default() };
    let exact = logits(&mut load_with(&file.path, exact), &ids, &[512]);
    let mut engine = load(&file.path, KV_F32);
    let vocab = engine.spec().vocab;
    let kl = mean_kl(&exact, &logits(&mut engine, &ids, &[512]), vocab);
    assert!(kl > 1e-4 && kl < 1e-2, "KL {kl:.2e}");
}
