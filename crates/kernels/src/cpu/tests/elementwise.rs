//! Norms, activations, rope, convolution.

use super::*;
use crate::Pairing;

const LENGTHS: [usize; 9] = [1, 7, 15, 16, 17, 63, 64, 65, 576];

/// Inputs with every kind of special value among ordinary ones.
fn with_specials(rng: &mut Rng, len: usize) -> Vec<f32> {
    let specials = [
        0.0,
        -0.0,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        -88.5,
        -104.0,
        89.0,
        1e-40,
        f32::MIN_POSITIVE,
    ];
    let mut x = rng.spread(len);
    for x in &mut x {
        if rng.bits().is_multiple_of(8) {
            *x = specials[rng.bits() as usize % specials.len()];
        }
    }
    x
}

/// Runs `operation` on every device and compares with the reference.
fn check(what: &str, operation: impl Fn(&Cpu) -> Vec<f32>) {
    let expected = operation(&reference());
    for cpu in devices() {
        assert_same(&operation(&cpu), &expected, format_args!("{what} on {cpu:?}"));
    }
}

#[test]
fn gated_activations_have_the_references_bits() {
    let mut rng = Rng::new(1);
    for n in LENGTHS.into_iter().chain([40_000]) {
        let (x, y) = (with_specials(&mut rng, n), with_specials(&mut rng, n));
        check("silu_mul", |cpu| {
            let mut out = vec![0.0; n];
            cpu.silu_mul(&x, &y, &mut out);
            out
        });
        check("silu_mul_inplace", |cpu| {
            let mut out = x.clone();
            cpu.silu_mul_inplace(&mut out, &y);
            out
        });
        check("sigmoid_mul", |cpu| {
            let mut out = x.clone();
            cpu.sigmoid_mul(&mut out, &y);
            out
        });
        check("add", |cpu| {
            let mut out = x.clone();
            cpu.add(&mut out, &y);
            out
        });
        check("add_scaled", |cpu| {
            let mut out = x.clone();
            cpu.add_scaled(&mut out, 0.37, &y);
            out
        });
    }
}

#[test]
fn adding_is_plain_addition() {
    let mut rng = Rng::new(2);
    let (x, y) = (rng.spread(100), rng.spread(100));
    let mut out = x.clone();
    Cpu::new(Isa::best(), 1).unwrap().add(&mut out, &y);
    let sums: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    assert_same(&out, &sums, "add");
}

#[test]
fn silu_mul_follows_the_textbook() {
    let mut rng = Rng::new(3);
    let (x, y) = (rng.spread(1000), rng.floats(1000));
    let mut out = vec![0.0; 1000];
    reference().silu_mul(&x, &y, &mut out);
    for ((out, x), y) in out.iter().zip(&x).zip(&y) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        let truth = x / (1.0 + (-x).exp()) * y;
        assert!((f64::from(*out) - truth).abs() <= 5e-7 * truth.abs() + 1e-37, "silu({x})·{y} = {out}");
    }
}

#[test]
fn one_gate_scales_a_whole_row() {
    let mut rng = Rng::new(4);
    for (rows, n) in [(1, 1), (3, 17), (33, 512)] {
        let (x, gate) = (with_specials(&mut rng, rows * n), with_specials(&mut rng, rows));
        check("sigmoid_scale_rows", |cpu| {
            let mut out = x.clone();
            cpu.sigmoid_scale_rows(&mut out, &gate);
            out
        });
    }
    let mut out = vec![2.0, 3.0, 4.0, 5.0];
    reference().sigmoid_scale_rows(&mut out, &[0.0, f32::INFINITY]);
    assert_eq!(out, [1.0, 1.5, 4.0, 5.0]);
}

#[test]
fn norms_have_the_references_bits_for_any_number_of_rows() {
    let mut rng = Rng::new(5);
    for n in LENGTHS {
        let weight = rng.floats(n);
        for rows in [1, 2, 5, 33] {
            let (x, z) = (rng.spread(rows * n), rng.spread(rows * n));
            let whole = |cpu: &Cpu| {
                let mut out = vec![0.0; rows * n];
                cpu.rms_norm(&x, &weight, 1e-6, &mut out);
                out
            };
            check("rms_norm", whole);
            let mut single = x.clone();
            single.chunks_mut(n).for_each(|row| reference().rms_norm_inplace(row, &weight, 1e-6));
            assert_same(&single, &whole(&reference()), "row by row");
            check("gated_rms_norm", |cpu| {
                let mut out = x.clone();
                cpu.gated_rms_norm(&mut out, &weight, &z, 1e-6);
                out
            });
        }
    }
    let broken = with_specials(&mut rng, 3 * 65);
    check("rms_norm of specials", |cpu| {
        let mut out = broken.clone();
        cpu.rms_norm_inplace(&mut out, &broken[..65], 1e-6);
        out
    });
}

#[test]
fn norms_follow_the_textbook() {
    let mut rng = Rng::new(6);
    let n = 576;
    let (x, weight, z) = (rng.spread(n), rng.floats(n), rng.floats(n));
    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n as f64;
    let normed = |i: usize| f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
    let mut out = vec![0.0; n];
    reference().rms_norm(&x, &weight, 1e-5, &mut out);
    assert_close(&out, &(0..n).map(normed).collect::<Vec<_>>(), 1e-6, "rms_norm");
    let mut out = x.clone();
    reference().gated_rms_norm(&mut out, &weight, &z, 1e-5);
    let silu = |i: usize| f64::from(z[i]) / (1.0 + (-f64::from(z[i])).exp());
    assert_close(&out, &(0..n).map(|i| normed(i) * silu(i)).collect::<Vec<_>>(), 1e-6, "gated");
    let mut zero = vec![0.0; n];
    reference().rms_norm_inplace(&mut zero, &weight, 1e-6);
    assert!(zero.iter().all(|x| *x == 0.0));
}

#[test]
fn rope_rotates_pairs_and_leaves_the_rest() {
    let mut rng = Rng::new(7);
    for (heads, head_dim, pairs) in [(1, 2, 1), (3, 64, 32), (2, 80, 9), (4, 256, 32), (2, 16, 0)] {
        for tokens in [1, 5, 33] {
            let x = rng.floats(tokens * heads * head_dim);
            let angles = rng.spread(tokens * pairs);
            let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
            let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
            for pairing in [Pairing::Half, Pairing::Interleaved] {
                let rotated = |cpu: &Cpu| {
                    let mut out = x.clone();
                    cpu.rope(&mut out, heads, head_dim, &cos, &sin, pairing);
                    out
                };
                check("rope", rotated);
                let out = rotated(&reference());
                for (row, (x, out)) in x.chunks(head_dim).zip(out.chunks(head_dim)).enumerate() {
                    for i in 0..pairs {
                        let (a, b) = match pairing {
                            Pairing::Half => (i, i + pairs),
                            Pairing::Interleaved => (2 * i, 2 * i + 1),
                        };
                        let (s, c) = f64::from(angles[row / heads * pairs + i]).sin_cos();
                        let (x0, x1) = (f64::from(x[a]), f64::from(x[b]));
                        assert!((f64::from(out[a]) - (x0 * c - x1 * s)).abs() < 1e-6);
                        assert!((f64::from(out[b]) - (x1 * c + x0 * s)).abs() < 1e-6);
                    }
                    assert_same(&out[2 * pairs..], &x[2 * pairs..], "beyond the rotary dimensions");
                }
            }
        }
    }
}

/// A convolution in chunks: outputs and the final state.
fn convolve(cpu: &Cpu, x: &[f32], weight: &[f32], kernel: usize, chunks: &[usize]) -> (Vec<f32>, Vec<f32>) {
    let channels = weight.len() / kernel;
    let mut state = vec![0.0; (kernel - 1) * channels];
    let mut out = vec![0.0; x.len()];
    let mut at = 0;
    for chunk in chunks {
        let range = at..at + chunk * channels;
        cpu.conv1d_silu(&x[range.clone()], weight, &mut state, *chunk, &mut out[range]);
        at += chunk * channels;
    }
    assert_eq!(at, x.len());
    (out, state)
}

#[test]
fn a_run_shorter_than_the_kernel_leaves_a_state_padded_on_the_left() {
    for cpu in devices() {
        for tokens in 1..=5 {
            let x: Vec<f32> = (1..=tokens * 17).map(|i| i as f32).collect();
            let (_, state) = convolve(&cpu, &x, &[0.5; 17 * 4], 4, &[tokens]);
            let mut history = vec![0.0; 3 * 17];
            history.extend(&x);
            assert_same(&state, &history[tokens * 17..], format_args!("{tokens} tokens on {cpu:?}"));
        }
    }
}

#[test]
fn chunked_convolution_equals_the_whole() {
    let mut rng = Rng::new(8);
    for (channels, kernel) in [(1, 4), (16, 4), (17, 2), (100, 4), (33, 1), (48, 9), (8192, 4)] {
        let tokens = 9;
        let (x, weight) = (rng.spread(tokens * channels), rng.floats(channels * kernel));
        let expected = convolve(&reference(), &x, &weight, kernel, &[tokens]);
        for cpu in devices() {
            for chunks in [&[9][..], &[1; 9], &[1, 2, 3, 3], &[2, 7], &[8, 1]] {
                let (out, state) = convolve(&cpu, &x, &weight, kernel, chunks);
                assert_same(&out, &expected.0, format_args!("{chunks:?} on {cpu:?}"));
                assert_same(&state, &expected.1, format_args!("state of {chunks:?} on {cpu:?}"));
            }
        }
    }
}

#[test]
fn a_convolution_forgets_what_is_not_kept() {
    let mut rng = Rng::new(10);
    let (channels, kernel, tokens) = (33, 4, 6);
    let (x, weight) = (rng.floats(tokens * channels), rng.floats(channels * kernel));
    let (expected, _) = convolve(&reference(), &x, &weight, kernel, &[tokens]);
    for cpu in devices() {
        for keep in 0..=tokens {
            let (mut state, mut out) = (vec![0.0; (kernel - 1) * channels], vec![0.0; x.len()]);
            cpu.conv1d_silu(&x, &weight, &mut state, keep, &mut out);
            assert_same(&out, &expected, format_args!("{keep} kept on {cpu:?}"));
            let (_, kept) = convolve(&cpu, &x[..keep * channels], &weight, kernel, &[keep]);
            assert_same(&state, &kept, format_args!("state, {keep} kept on {cpu:?}"));
        }
    }
}

#[test]
fn convolution_follows_the_textbook() {
    let mut rng = Rng::new(9);
    let (channels, kernel, tokens) = (5, 4, 8);
    let (x, weight) = (rng.floats(tokens * channels), rng.floats(channels * kernel));
    let (out, _) = convolve(&reference(), &x, &weight, kernel, &[tokens]);
    let mut truth = Vec::new();
    for t in 0..tokens {
        for c in 0..channels {
            let taps = (0..kernel).filter(|j| t + j + 1 >= kernel);
            let products = taps.map(|j| {
                f64::from(weight[c * kernel + j]) * f64::from(x[(t + j + 1 - kernel) * channels + c])
            });
            let sum: f64 = products.sum();
            truth.push(sum / (1.0 + (-sum).exp()));
        }
    }
    assert_close(&out, &truth, 1e-6, "convolution");
}
