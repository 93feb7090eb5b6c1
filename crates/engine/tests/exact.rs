//! Results that must not move by a bit: chunking, threads, pages, batches, instruction sets.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use basert_engine::{Engine, Options, TokenRun, WantLogits};
use basert_kernels::Isa;
use common::{Golden, KV_F16, assert_same_bits, converted, fixture, load, load_with, logits};

const MODELS: [&str; 6] =
    ["qwen35-dense-tiny", "toy-hybrid", "toy-moe", "qwen3-dense-tiny", "qwen3-moe-tiny", "llama-tiny"];

fn prompt(model: &str) -> Vec<u32> {
    Golden::of(&fixture(model)).prompt("p130").ids.clone()
}

#[test]
fn chunks_of_any_length_give_the_same_bits() {
    for model in MODELS {
        for target in ["f32", "bf16", "base-q4", "base-q8"] {
            let file = converted(&fixture(model), target);
            let mut engine = load(&file.path, KV_F16);
            let ids = prompt(model);
            let whole = logits(&mut engine, &ids, &[512]);
            for pieces in [&[1usize][..], &[1, 2, 3, 5, 64, 7], &[64], &[2, 31, 33]] {
                let chunked = logits(&mut engine, &ids, pieces);
                assert_same_bits(&whole, &chunked, &format!("{model} {target} in {pieces:?}"));
            }
        }
    }
}

#[test]
fn thread_count_and_page_size_give_the_same_bits() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let ids = prompt(model);
        let whole = logits(&mut load(&file.path, KV_F16), &ids, &[512]);
        for threads in [1, 2, 3, 5] {
            for page_tokens in [None, Some(32), Some(96)] {
                let options =
                    Options { threads: Some(threads), page_tokens, kv: KV_F16, ..Options::default() };
                let other = logits(&mut load_with(&file.path, options), &ids, &[100, 1]);
                let what = format!("{model} with {threads} threads and pages of {page_tokens:?}");
                assert_same_bits(&whole, &other, &what);
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_bits_of_the_reference() {
    for model in MODELS {
        for target in ["f32", "f16", "base-q2", "base-q3", "base-q4", "base-q5", "base-q6", "base-q8"] {
            let file = converted(&fixture(model), target);
            let ids = &prompt(model)[..70];
            let on = |isa| {
                let options = Options { isa: Some(isa), kv: KV_F16, ..Options::default() };
                logits(&mut load_with(&file.path, options), ids, &[64, 1])
            };
            let reference = on(Isa::Reference);
            for isa in [Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| isa.is_available()) {
                assert_same_bits(&reference, &on(isa), &format!("{model} {target} on {isa}"));
            }
        }
    }
}

/// Logits of the last token of several prompts run together, one decode step after a ragged prefill.
fn batched(engine: &mut Engine, prompts: &[&[u32]]) -> Vec<f32> {
    let ids: Vec<_> = prompts.iter().map(|_| engine.new_sequence().unwrap()).collect();
    let run = |&sequence, tokens, logits| TokenRun { sequence, tokens, logits };
    let pairs = || ids.iter().zip(prompts);
    let prefill: Vec<_> = pairs().map(|(id, p)| run(id, &p[..p.len() - 1], WantLogits::None)).collect();
    engine.step(&prefill).unwrap();
    let decode: Vec<_> = pairs().map(|(id, p)| run(id, &p[p.len() - 1..], WantLogits::Last)).collect();
    let out = engine.step(&decode).unwrap().data.to_vec();
    ids.into_iter().for_each(|id| engine.release(id));
    out
}

#[test]
fn neighbours_in_a_batch_never_change_a_result() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let options = Options { sequences: 5, page_tokens: Some(32), kv: KV_F16, ..Options::default() };
        let mut engine = load_with(&file.path, options);
        let ids = prompt(model);
        let prompts: Vec<&[u32]> =
            [(0, 3), (5, 22), (40, 104), (1, 130), (90, 92)].map(|(a, b)| &ids[a..b]).to_vec();
        let solo: Vec<f32> = prompts.iter().flat_map(|p| batched(&mut engine, &[p])).collect();
        for n in [2, 3, 5] {
            let together = batched(&mut engine, &prompts[..n]);
            assert_same_bits(&together, &solo[..together.len()], &format!("{model}, batch of {n}"));
        }
        // Reused pages arrive in another order and must not matter.
        let reversed: Vec<&[u32]> = prompts.iter().rev().copied().collect();
        let mut again: Vec<f32> = Vec::new();
        let vocab = engine.spec().vocab;
        for row in batched(&mut engine, &reversed).chunks_exact(vocab).rev() {
            again.extend_from_slice(row);
        }
        assert_same_bits(&again, &solo, &format!("{model}, reversed batch"));
    }
}
