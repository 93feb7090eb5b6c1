//! The KV cache is what was asked for, and no width lets a result depend on anything but the tokens.
//!
//! The report that this answers: `--kv-bits 4|8|84` was accepted for a hybrid model while K and V stayed f16, in
//! contiguous and in paged caches, and nothing showed it.

use std::path::PathBuf;

use crate::common::{
    Converted, Golden, KV_F16, KV_F32, assert_same_bits, converted, fixture, load_with, logits,
    shared_fixture,
};
use basert_convert::{Options as ConvertOptions, Silent, Synthetic, synthesize};
use basert_engine::{Engine, EngineError, KvTypes, Options, SequenceId, TokenRun, WantLogits};
use basert_format::Output;
use basert_kernels::{Isa, KvDtype};
use basert_model::Config;

/// Hybrids, dense and with experts, and models of attention alone.
fn models() -> Vec<PathBuf> {
    let own = ["qwen35-dense-tiny", "toy-hybrid", "toy-moe", "qwen3-dense-tiny", "llama-tiny"];
    own.map(fixture).into_iter().chain(shared_fixture("qwen35-moe-tiny")).collect()
}

fn prompt(model: &std::path::Path) -> Vec<u32> {
    Golden::of(model).prompt("p130").ids.clone()
}

/// `--kv-bits 16`, `8`, `4` and `84`, and the type that only `--kv-type` names. With bytes per 32 elements of K and V.
const TYPES: [(KvTypes, u64); 5] = [
    (KV_F16, 64 + 64),
    (KvTypes { k: KvDtype::Q8, v: KvDtype::Q8 }, 34 + 34),
    (KvTypes { k: KvDtype::Q4, v: KvDtype::Q4 }, 18 + 18),
    (KvTypes { k: KvDtype::Q8, v: KvDtype::Q4 }, 34 + 18),
    (KvTypes { k: KvDtype::Bf16, v: KvDtype::Bf16 }, 64 + 64),
];

/// Contiguous, and paged.
const PAGES: [Option<usize>; 2] = [None, Some(32)];

fn options(kv: KvTypes, page_tokens: Option<usize>) -> Options {
    Options { kv, page_tokens, sequences: 3, context: Some(160), threads: Some(1), ..Options::default() }
}

#[test]
fn kv_bits_84_on_a_hybrid_is_not_f16() {
    for model in models() {
        let file = converted(&model, "base-q4");
        for page_tokens in PAGES {
            for (kv, bytes) in TYPES {
                let engine = load_with(&file.path, options(kv, page_tokens));
                let what = format!("{} {kv} {page_tokens:?}", model.display());
                let selected = engine.selected();
                assert_eq!(selected.kv, kv, "{what}");
                let attention = engine.spec().layers.iter().filter_map(|layer| layer.mixer.attention());
                let elements: u64 = attention.map(|a| (a.kv_heads * a.head_dim) as u64).sum();
                assert_eq!(selected.pools.bytes_per_token, elements / 32 * bytes, "{what}");
                assert_eq!(selected.pools.bytes_per_token, kv.bytes_per_token(engine.spec()), "{what}");
                let tokens = (selected.pools.pages * selected.page_tokens) as u64;
                assert_eq!(tokens, 3 * 160, "{what}");
                assert_eq!(selected.pools.bytes, tokens * selected.pools.bytes_per_token, "{what}");
                assert_eq!(selected.pools.bytes, selected.memory.kv, "{what}: allocated is planned");
            }
        }
    }
}

/// Logits of the last tokens of some prompts of one length, read ragged and together.
fn batch(engine: &mut Engine, prompts: &[&[u32]]) -> Vec<f32> {
    let sequences: Vec<_> = prompts.iter().map(|_| engine.new_sequence().unwrap()).collect();
    let mut last = Vec::new();
    for (range, logits) in [(0..7, WantLogits::None), (7..59, WantLogits::None), (59..60, WantLogits::Last)] {
        let runs: Vec<_> = sequences
            .iter()
            .zip(prompts)
            .map(|(&sequence, prompt)| TokenRun { sequence, tokens: &prompt[range.clone()], logits })
            .collect();
        last = engine.step(&runs).unwrap().data.to_vec();
    }
    sequences.into_iter().for_each(|sequence| engine.release(sequence));
    last
}

#[test]
fn pages_chunks_threads_and_neighbours_change_no_bit_at_any_width() {
    for model in models() {
        let file = converted(&model, "base-q4");
        let ids = prompt(&model);
        for (kv, _) in TYPES {
            let whole = logits(&mut load_with(&file.path, options(kv, None)), &ids, &[512]);
            let mut alone = Vec::new();
            for page_tokens in PAGES {
                for threads in [1, 2] {
                    let what = format!("{} {kv} {page_tokens:?} on {threads} threads", model.display());
                    let options = Options { threads: Some(threads), ..options(kv, page_tokens) };
                    let mut engine = load_with(&file.path, options);
                    assert_same_bits(&whole, &logits(&mut engine, &ids, &[31, 2, 1, 64, 5, 1]), &what);
                    let prompts = [&ids[..60], &ids[35..95], &ids[70..130]];
                    if alone.is_empty() {
                        alone = prompts.iter().flat_map(|prompt| batch(&mut engine, &[prompt])).collect();
                    }
                    assert_same_bits(&alone, &batch(&mut engine, &prompts), &format!("{what}, batch of 3"));
                }
            }
        }
    }
}

/// The likeliest tokens after a prompt, one after the other, and their logits.
fn greedy(engine: &mut Engine, sequence: SequenceId, prompt: &[u32], count: usize) -> (Vec<u32>, Vec<f32>) {
    let (mut tokens, mut all) = (Vec::new(), Vec::new());
    let mut next = prompt.to_vec();
    for _ in 0..count {
        let run = TokenRun { sequence, tokens: &next, logits: WantLogits::Last };
        let logits = engine.step(&[run]).unwrap().data;
        all.extend_from_slice(logits);
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32;
        tokens.push(best);
        next = vec![best];
    }
    engine.release(sequence);
    (tokens, all)
}

/// Pages that were given back in another order than they were taken are handed out in no order at all.
fn shuffle_pages(engine: &mut Engine) {
    let sequences = [(); 3].map(|()| engine.new_sequence().unwrap());
    for (start, len) in [(0, 33), (5, 70), (40, 1)] {
        let tokens: Vec<u32> = (start..start + len).collect();
        let runs = sequences.map(|sequence| TokenRun { sequence, tokens: &tokens, logits: WantLogits::None });
        engine.step(&runs).unwrap();
    }
    [1, 0, 2].into_iter().for_each(|index| engine.release(sequences[index]));
}

#[test]
fn paged_equals_contiguous_at_the_edges_of_pages_in_whatever_order_they_come() {
    for model in models() {
        let file = converted(&model, "base-q4");
        let ids = prompt(&model);
        for (kv, _) in TYPES {
            let mut contiguous = load_with(&file.path, options(kv, None));
            let mut paged = load_with(&file.path, options(kv, Some(32)));
            shuffle_pages(&mut paged);
            // A neighbour that lives on keeps some of the shuffled pages away.
            let neighbour = paged.new_sequence().unwrap();
            paged
                .step(&[TokenRun { sequence: neighbour, tokens: &ids[..40], logits: WantLogits::None }])
                .unwrap();
            for len in [31, 32, 65] {
                let sequence = contiguous.new_sequence().unwrap();
                let expected = greedy(&mut contiguous, sequence, &ids[..len], 64);
                let sequence = paged.new_sequence().unwrap();
                let found = greedy(&mut paged, sequence, &ids[..len], 64);
                let what = format!("{} {kv}, {len} tokens", model.display());
                assert_eq!(expected.0, found.0, "{what}");
                assert_same_bits(&expected.1, &found.1, &what);
            }
            paged.check_integrity().unwrap();
        }
    }
}

#[test]
fn narrow_caches_give_the_bits_of_the_reference_with_keys_and_values_rounded_the_same_way() {
    // A hybrid, and a hybrid with experts.
    for model in ["qwen35-dense-tiny", "toy-moe"].map(fixture) {
        let file = converted(&model, "base-q4");
        let ids = &prompt(&model)[..45];
        for (kv, _) in TYPES {
            let on = |isa, page_tokens| {
                let options = Options { isa: Some(isa), ..options(kv, page_tokens) };
                logits(&mut load_with(&file.path, options), ids, &[40, 1])
            };
            let reference = on(Isa::Reference, None);
            for isa in Isa::ALL.into_iter().skip(1).filter(|isa| isa.is_available()) {
                for page_tokens in PAGES {
                    let what = format!("{} {kv} {page_tokens:?} on {isa}", model.display());
                    assert_same_bits(&reference, &on(isa, page_tokens), &what);
                }
            }
        }
    }
}

/// Mean divergence of the second model's next-token distributions from the first's.
fn divergence(p: &[f32], q: &[f32], vocab: usize) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let max = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row.iter().map(|x| f64::from(x - max).exp()).sum();
        row.iter().map(|x| f64::from(x - max) - sum.ln()).collect()
    };
    let rows = p.chunks_exact(vocab).zip(q.chunks_exact(vocab));
    let each = rows.map(|(p, q)| {
        let (p, q) = (log_softmax(p), log_softmax(q));
        p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>()
    });
    each.sum::<f64>() / (p.len() / vocab) as f64
}

#[test]
fn narrower_caches_lose_a_little_and_in_order() {
    for model in models() {
        let file = converted(&model, "f32");
        let ids = prompt(&model);
        let run = |kv| {
            let mut engine = load_with(&file.path, options(kv, None));
            (logits(&mut engine, &ids, &[512]), engine.spec().vocab)
        };
        let (reference, vocab) = run(KV_F32);
        let [f16, q8, q4, q84, bf16] = TYPES.map(|(kv, _)| divergence(&reference, &run(kv).0, vocab));
        let found =
            format!("{}: f16 {f16:e}, bf16 {bf16:e}, q8 {q8:e}, 84 {q84:e}, q4 {q4:e}", model.display());
        assert!(f16 < bf16 && f16 < q8 && q8 < q84 && q84 < q4, "{found}");
        assert!(f16 < 1e-6 && bf16 < 1e-4 && q8 < 1e-3 && q4 < 1e-1, "{found}");
    }
}

/// A random model with heads of `head_dim`.
fn with_heads_of(head_dim: usize) -> Converted {
    let config = std::fs::read(fixture("llama-tiny").join("config.json")).unwrap();
    let (arch, mut config) = Config::from_hf(&serde_json::from_slice(&config).unwrap(), None).unwrap();
    config.head_dim = head_dim;
    let model = Synthetic { name: "heads".to_owned(), arch, config, assumptions: Vec::new() };
    let options = ConvertOptions { target: "f32".parse().unwrap(), ..ConvertOptions::default() };
    Converted::with(|path| drop(synthesize(&model, &Output::new(path), &options, &mut Silent).unwrap()))
}

#[test]
fn heads_that_are_not_whole_blocks_are_refused_before_anything_is_allocated() {
    for head_dim in [32, 48, 80, 96, 128, 256] {
        let file = with_heads_of(head_dim);
        let ids: Vec<u32> = (0..40).collect();
        for (kv, _) in TYPES {
            // A context that no machine holds shows what is refused first.
            let quantised = [kv.k, kv.v].iter().any(|dtype| dtype.block_elements() > 1);
            if quantised && head_dim % 32 != 0 {
                let options = Options { kv, context: Some(1 << 31), ..Options::default() };
                let error = Engine::open(&file.path, &options).map(|_| ()).unwrap_err();
                assert!(matches!(error, EngineError::KvBlocks { .. }), "{head_dim} {kv}: {error}");
                let text = error.to_string();
                for word in ["model.base", &head_dim.to_string(), "multiple of 32", "f16"] {
                    assert!(text.contains(word), "{text}");
                }
                continue;
            }
            let mut engine = load_with(&file.path, options(kv, Some(32)));
            let whole = logits(&mut engine, &ids, &[40]);
            assert!(whole.iter().all(|x| x.is_finite()), "{head_dim} {kv}");
            assert_same_bits(&whole, &logits(&mut engine, &ids, &[33, 1]), &format!("{head_dim} {kv}"));
        }
    }
}
