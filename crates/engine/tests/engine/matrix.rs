//! The equality matrix: a token's logits are the same bits whatever else is going on. {cold, warm} x {alone, batch of 3,
//! batch of 8} x {contiguous, paged} x {whole, ragged prefill} x {1, 2 threads}, for a hybrid, a hybrid with experts, Qwen3
//! and Llama. The cache is narrow: f16 goes through the same code, and `exact.rs`.

use std::path::Path;

use crate::common::{assert_same_bits, converted, fixture, load_with};
use basert_engine::{Engine, KvTypes, Options, SequenceId, TokenRun, WantLogits};
use basert_kernels::{Isa, KvDtype};

/// Tokens that a warm sequence has behind it: a page.
const KNOWN: usize = 32;
const CONTEXT: usize = 128;
/// Lengths of the prompts of a batch, all longer than what is known of them.
const LENGTHS: [usize; 8] = [50, 33, 65, 34, 63, 64, 41, 97];
/// Tokens run one at a time after a prompt.
const DECODED: [u32; 2] = [5, 200];
const NARROW: KvTypes = KvTypes { k: KvDtype::Q8, v: KvDtype::Q4 };

const MODELS: [&str; 4] = ["qwen35-dense-tiny", "toy-moe", "qwen3-dense-tiny", "llama-tiny"];

fn prompts() -> Vec<Vec<u32>> {
    let prompt =
        |(tag, len): (u32, usize)| (0..len as u32).map(move |i| (tag * 37 + i * 11 + i * i % 7) % 250);
    (0..).zip(LENGTHS).map(|pair| prompt(pair).collect()).collect()
}

fn options(page_tokens: Option<usize>, threads: usize) -> Options {
    Options {
        kv: NARROW,
        page_tokens,
        sequences: LENGTHS.len(),
        context: Some(CONTEXT),
        // Room for the known page of every prompt, and for its state.
        prefix_cache: if page_tokens.is_some() { 64 << 20 } else { 0 },
        step_tokens: 1024,
        threads: Some(threads),
        ..Options::default()
    }
}

/// A sequence that holds the first [`KNOWN`] tokens of a prompt: from kept pages where there are pages, else because it has
/// read them before.
fn warm(engine: &mut Engine, prompt: &[u32], paged: bool) -> SequenceId {
    let sequence = engine.new_sequence().unwrap();
    let known = &prompt[..KNOWN];
    engine.step(&[TokenRun { sequence, tokens: known, logits: WantLogits::None }]).unwrap();
    if !paged {
        return sequence;
    }
    assert!(engine.keep_prefix(sequence, "", known).unwrap());
    engine.release(sequence);
    let opened = engine.open_prefix("", prompt).unwrap();
    assert_eq!(opened.cached, KNOWN);
    opened.sequence
}

/// Logits after every prompt and after each of [`DECODED`], by prompt.
fn answers(
    engine: &mut Engine,
    prompts: &[Vec<u32>],
    (is_warm, paged, ragged): (bool, bool, bool),
) -> Vec<Vec<f32>> {
    let mut open = |prompt: &Vec<u32>| match is_warm {
        true => warm(engine, prompt, paged),
        false => engine.new_sequence().unwrap(),
    };
    let sequences: Vec<SequenceId> = prompts.iter().map(&mut open).collect();
    let mut found = vec![Vec::new(); prompts.len()];
    let mut pieces = if ragged { vec![31, 2, 1, 64, 5] } else { vec![CONTEXT] }.into_iter().cycle();
    loop {
        let mut runs = Vec::new();
        let mut ends = Vec::new();
        for (index, (&sequence, prompt)) in sequences.iter().zip(prompts).enumerate() {
            let done = engine.position(sequence).unwrap();
            let end = prompt.len().min(done + pieces.next().unwrap());
            let ends_here = end == prompt.len();
            if done < end {
                let logits = if ends_here { WantLogits::Last } else { WantLogits::None };
                runs.push(TokenRun { sequence, tokens: &prompt[done..end], logits });
                ends.extend(ends_here.then_some(index));
            }
        }
        if runs.is_empty() {
            break;
        }
        take(engine, &runs, &ends, &mut found);
    }
    let all: Vec<usize> = (0..prompts.len()).collect();
    for token in DECODED {
        let token = [token];
        let run = |&sequence| TokenRun { sequence, tokens: &token, logits: WantLogits::Last };
        let runs: Vec<_> = sequences.iter().map(run).collect();
        take(engine, &runs, &all, &mut found);
    }
    sequences.into_iter().for_each(|sequence| engine.release(sequence));
    engine.check_integrity().unwrap();
    found
}

/// Runs a step and adds its rows of logits to those of the prompts `ends`.
fn take(engine: &mut Engine, runs: &[TokenRun<'_>], ends: &[usize], found: &mut [Vec<f32>]) {
    let mut logits = engine.step(runs).unwrap();
    for (row, &index) in ends.iter().enumerate() {
        found[index].extend_from_slice(logits.row_mut(row));
    }
}

/// Alone, from cold, contiguous, whole, on one thread, with the plain kernels: what everything is compared with.
fn plain(path: &Path) -> Vec<Vec<f32>> {
    let options = Options { isa: Some(Isa::Reference), ..options(None, 1) };
    let mut engine = load_with(path, options);
    let alone = |prompt| answers(&mut engine, &[prompt], (false, false, false)).remove(0);
    prompts().into_iter().map(alone).collect()
}

#[test]
fn neighbours_pages_pieces_threads_and_kept_prefixes_change_no_bit() {
    let prompts = prompts();
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let expected = plain(&file.path);
        for (page_tokens, threads) in [(None, 1), (None, 2), (Some(KNOWN), 1), (Some(KNOWN), 2)] {
            let mut engine = load_with(&file.path, options(page_tokens, threads));
            for (is_warm, ragged) in [(false, false), (false, true), (true, false), (true, true)] {
                let case = (is_warm, page_tokens.is_some(), ragged);
                let mut check = |prompts: &[Vec<u32>], first: usize| {
                    let (batch, found) = (prompts.len(), answers(&mut engine, prompts, case));
                    for (expected, found) in expected[first..].iter().zip(&found) {
                        let what = format!(
                            "{model}, batch of {batch}, (warm, paged, ragged) {case:?}, {threads} threads"
                        );
                        assert_same_bits(expected, found, &what);
                    }
                };
                (0..2).for_each(|index| check(&prompts[index..=index], index));
                check(&prompts[2..5], 2);
                check(&prompts, 0);
            }
        }
    }
}
