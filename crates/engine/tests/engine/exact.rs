//! Results that must not move by a bit: chunking, threads, pages, batches, instruction sets.

use std::ops::ControlFlow;

use crate::common::{Golden, KV_F16, assert_same_bits, converted, fixture, load, load_with, logits};
use basert_engine::{
    Engine, Event, GenerateParams, Options, SamplingParams, Session, TokenRun, WantLogits, generate,
};
use basert_kernels::Isa;

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
            for isa in Isa::ALL.into_iter().skip(1).filter(|isa| isa.is_available()) {
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

#[test]
fn a_continued_sequence_answers_as_a_fresh_one() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let options = Options { sequences: 2, kv: KV_F16, ..Options::default() };
        let mut engine = load_with(&file.path, options);
        let ids = prompt(model);
        let sampling =
            SamplingParams { temperature: 1.0, repetition_penalty: 1.1, seed: 5, ..Default::default() };
        let params = GenerateParams { sampling, max_tokens: 12, eos: Vec::new(), prefill_chunk: Some(7) };
        let go = &mut |_: Event| ControlFlow::Continue(());

        let mut session = Session::default();
        let first = session.generate(&mut engine, &ids[..40], &params, go).unwrap();
        assert_eq!(session.tokens().len(), 51, "the last token was not run");
        let continued = [&ids[..40], &first.ids, &ids[40..90]].concat();
        let second = session.generate(&mut engine, &continued, &params, go).unwrap();
        assert_eq!((second.kept_tokens, second.prompt_tokens), (51, 102), "{model}");
        let fresh = generate(&mut engine, &continued, &params, go).unwrap();
        assert_eq!((second.ids, 0), (fresh.ids, fresh.kept_tokens), "{model}");

        // One edited token, an earlier state, and the very same prompt are fresh starts.
        let mut edited = continued.clone();
        edited[50] ^= 1;
        for other in [&edited, &continued[..60], &continued[..60]] {
            let answer = session.generate(&mut engine, other, &params, go).unwrap();
            assert_eq!(answer.kept_tokens, 0, "{model}");
            assert_eq!(answer.ids, generate(&mut engine, other, &params, go).unwrap().ids, "{model}");
        }
        session.clear(&mut engine);
        engine.new_sequence().unwrap();
        engine.new_sequence().unwrap();
    }
}

#[test]
fn a_stopped_prefill_is_continued_where_it_stopped() {
    let file = converted(&fixture("toy-hybrid"), "base-q4");
    let mut engine = load(&file.path, KV_F16);
    let ids = prompt("toy-hybrid");
    let params = GenerateParams {
        sampling: SamplingParams::default(),
        max_tokens: 5,
        eos: Vec::new(),
        prefill_chunk: Some(30),
    };
    let mut session = Session::default();
    let stopped = session.generate(&mut engine, &ids, &params, &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!((stopped.ids.len(), session.tokens()), (0, &ids[..30]));
    let rest = session.generate(&mut engine, &ids, &params, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(rest.kept_tokens, 30);
    session.clear(&mut engine);
    let fresh = generate(&mut engine, &ids, &params, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(rest.ids, fresh.ids);
}
