//! The gated delta rule.

use super::*;
use crate::{DeltaScratch, DeltaShape};

/// One sequence's inputs.
struct Case {
    shape: DeltaShape,
    qkv: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    neg_a: Vec<f32>,
    dt_bias: Vec<f32>,
}

impl Case {
    fn new(shape: DeltaShape, tokens: usize, seed: u64) -> Case {
        let mut rng = Rng::new(seed);
        let heads = shape.value_heads;
        Case {
            shape,
            qkv: rng.floats(tokens * shape.qkv_width()),
            a: rng.floats(tokens * heads),
            b: rng.floats(tokens * heads),
            // Distinct for every value head, so that indexing by key head shows.
            neg_a: (0..heads).map(|h| -0.1 - 4.9 * h as f32 / heads as f32).collect(),
            dt_bias: rng.floats(heads),
        }
    }

    fn tokens(&self) -> usize {
        self.a.len() / self.shape.value_heads
    }

    fn state_len(&self) -> usize {
        self.shape.value_heads * self.shape.key_dim * self.shape.value_dim
    }

    /// Outputs and final state, fed in chunks.
    fn run(&self, cpu: &Cpu, chunks: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let kept: Vec<_> = chunks.iter().map(|&chunk| (chunk, chunk)).collect();
        self.run_kept(cpu, &kept)
    }

    /// The same, with the tokens of every chunk that the state keeps: the next chunk begins after them.
    fn run_kept(&self, cpu: &Cpu, chunks: &[(usize, usize)]) -> (Vec<f32>, Vec<f32>) {
        let Case { shape, .. } = self;
        let mut scratch = DeltaScratch::default();
        let mut state = vec![0.0; self.state_len()];
        let mut out = vec![0.0; self.tokens() * shape.value_width()];
        let mut at = 0;
        for &(chunk, keep) in chunks {
            let rows = |width: usize| at * width..(at + chunk) * width;
            cpu.gated_delta(
                shape,
                &mut scratch,
                &self.qkv[rows(shape.qkv_width())],
                &self.a[rows(shape.value_heads)],
                &self.b[rows(shape.value_heads)],
                &self.neg_a,
                &self.dt_bias,
                &mut state,
                keep,
                &mut out[rows(shape.value_width())],
            );
            at += keep;
        }
        (out, state)
    }

    /// The textbook loop in f64.
    fn truth(&self) -> (Vec<f64>, Vec<f64>) {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim } = self.shape;
        let mut state = vec![0.0; self.state_len()];
        let mut out = Vec::new();
        for t in 0..self.tokens() {
            let token: Vec<f64> = self.qkv[t * self.shape.qkv_width()..][..self.shape.qkv_width()]
                .iter()
                .map(|&x| x.into())
                .collect();
            let unit = |x: &[f64]| {
                let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / norm).collect::<Vec<_>>()
            };
            for h in 0..value_heads {
                let kh = h / (value_heads / key_heads);
                let q = unit(&token[kh * key_dim..][..key_dim]);
                let k = unit(&token[(key_heads + kh) * key_dim..][..key_dim]);
                let v = &token[2 * key_heads * key_dim + h * value_dim..][..value_dim];
                let dt = f64::from(self.a[t * value_heads + h]) + f64::from(self.dt_bias[h]);
                let decay = (f64::from(self.neg_a[h]) * dt.exp().ln_1p()).exp();
                let beta = 1.0 / (1.0 + (-f64::from(self.b[t * value_heads + h])).exp());
                let s = &mut state[h * key_dim * value_dim..][..key_dim * value_dim];
                s.iter_mut().for_each(|s| *s *= decay);
                for j in 0..value_dim {
                    let m: f64 = (0..key_dim).map(|i| s[i * value_dim + j] * k[i]).sum();
                    let d = (v[j] - m) * beta;
                    (0..key_dim).for_each(|i| s[i * value_dim + j] += k[i] * d);
                    let o: f64 = (0..key_dim).map(|i| s[i * value_dim + j] * q[i]).sum();
                    out.push(o / (key_dim as f64).sqrt());
                }
            }
        }
        (out, state)
    }
}

fn shapes() -> Vec<DeltaShape> {
    let shape = |key_heads, value_heads, key_dim, value_dim| DeltaShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
    };
    vec![
        shape(1, 1, 16, 16),
        shape(2, 2, 7, 16),
        shape(2, 4, 32, 48),
        shape(1, 3, 64, 33),
        shape(3, 3, 5, 3),
        shape(2, 4, 128, 128),
    ]
}

#[test]
fn every_device_and_every_chunking_has_the_references_bits() {
    for (seed, shape) in shapes().into_iter().enumerate() {
        let case = Case::new(shape, 9, seed as u64);
        let expected = case.run(&reference(), &[9]);
        for cpu in devices() {
            for chunks in [&[9][..], &[1; 9], &[1, 3, 5], &[8, 1]] {
                let (out, state) = case.run(&cpu, chunks);
                assert_same(&out, &expected.0, format_args!("{shape:?} {chunks:?} on {cpu:?}"));
                assert_same(&state, &expected.1, format_args!("state of {shape:?} {chunks:?} on {cpu:?}"));
            }
        }
    }
}

#[test]
fn tokens_that_are_not_kept_have_outputs_and_leave_no_trace() {
    for (seed, shape) in shapes().into_iter().enumerate() {
        let case = Case::new(shape, 9, seed as u64);
        let (expected, after) = case.run(&reference(), &[9]);
        for cpu in devices() {
            let (out, state) = case.run_kept(&cpu, &[(4, 1), (5, 5), (3, 0), (3, 3)]);
            assert_same(&out, &expected, format_args!("{shape:?} on {cpu:?}"));
            assert_same(&state, &after, format_args!("state of {shape:?} on {cpu:?}"));
            let (out, _) = case.run_kept(&cpu, &[(9, 2)]);
            assert_same(&out, &expected, format_args!("{shape:?} ahead of its state on {cpu:?}"));
        }
    }
}

#[test]
fn the_rule_follows_the_textbook_over_hundreds_of_tokens() {
    for shape in shapes() {
        let case = Case::new(shape, 300, 77);
        let (out, state) = case.run(&Cpu::new(Isa::best(), 2).unwrap(), &[300]);
        let truth = case.truth();
        assert_close(&out, &truth.0, 1e-5, format_args!("{shape:?}"));
        assert_close(&state, &truth.1, 1e-5, format_args!("state of {shape:?}"));
    }
}

#[test]
fn a_broken_token_spoils_the_same_numbers_everywhere() {
    let mut case = Case::new(shapes()[2], 5, 3);
    let width = case.shape.qkv_width();
    case.qkv[2 * width + 1] = f32::NAN;
    case.qkv[3 * width - 1] = f32::INFINITY;
    let expected = case.run(&reference(), &[5]);
    assert!(expected.0.iter().any(|x| x.is_nan()) && !expected.0.iter().all(|x| x.is_nan()));
    for cpu in devices() {
        let (out, state) = case.run(&cpu, &[5]);
        assert_same(&out, &expected.0, format_args!("{cpu:?}"));
        assert_same(&state, &expected.1, format_args!("state on {cpu:?}"));
    }
}
