//! Asked is run or refused: limits, bad requests, and what they leave behind.

use std::ops::ControlFlow;

use crate::common::{self, KV_F16, assert_same_bits, converted, fixture, load_with, logits};
use basert_engine::{
    Engine, EngineError, Event, Finish, GenerateParams, Options, SamplingParams, TokenRun, WantLogits,
    generate,
};

fn greedy(max_tokens: usize) -> GenerateParams {
    GenerateParams { sampling: SamplingParams::default(), max_tokens, eos: Vec::new(), prefill_chunk: None }
}

fn toy(options: Options) -> (Engine, common::Converted) {
    let file = converted(&fixture("toy-hybrid"), "f32");
    (load_with(&file.path, options), file)
}

#[test]
fn one_or_two_token_prompts_pad_the_convolution_with_zeros() {
    let (mut engine, _file) = toy(Options { kv: KV_F16, ..Options::default() });
    for n in 1..=4usize {
        let ids: Vec<u32> = (1..=n as u32).collect();
        let whole = logits(&mut engine, &ids, &[512]);
        assert_same_bits(&whole, &logits(&mut engine, &ids, &[1, 2]), "first chunk of one token");
        let answer = generate(&mut engine, &ids, &greedy(8), &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(answer.ids.len(), 8);
    }
}

#[test]
fn context_is_used_to_the_last_position_and_not_beyond() {
    let (mut engine, _file) = toy(Options { context: Some(16), ..Options::default() });
    let ids: Vec<u32> = (0..15).collect();
    let answer = generate(&mut engine, &ids, &greedy(100), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((answer.ids.len(), answer.finish), (2, Finish::Length));

    let full: Vec<u32> = (0..16).collect();
    let answer = generate(&mut engine, &full, &greedy(100), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(answer.ids.len(), 1);

    let over: Vec<u32> = (0..17).collect();
    let error = generate(&mut engine, &over, &greedy(1), &mut |_| ControlFlow::Continue(()));
    assert!(matches!(error, Err(EngineError::ContextFull { needed: 17, context: 16 })));
}

#[test]
fn a_refused_step_changes_nothing() {
    let (mut engine, _file) =
        toy(Options { context: Some(64), sequences: 2, step_tokens: 32, ..Options::default() });
    let a = engine.new_sequence().unwrap();
    let b = engine.new_sequence().unwrap();
    let run = |sequence, tokens| TokenRun { sequence, tokens, logits: WantLogits::Last };
    engine.step(&[run(a, &[1, 2, 3]), run(b, &[4, 5])]).unwrap();

    assert!(matches!(engine.step(&[run(a, &[1]), run(a, &[2])]), Err(EngineError::Sequence(_))));
    assert!(matches!(
        engine.step(&[run(a, &[1]), run(b, &[9999])]),
        Err(EngineError::TokenId { id: 9999, .. })
    ));
    assert!(matches!(engine.step(&[run(a, &[1]), run(b, &[])]), Err(EngineError::EmptyPrompt)));
    assert!(matches!(
        engine.step(&[run(a, &[7; 33])]),
        Err(EngineError::StepTooLarge { what: "tokens", .. })
    ));
    assert_eq!((engine.position(a).unwrap(), engine.position(b).unwrap()), (3, 2));

    let after = engine.step(&[run(a, &[4])]).unwrap().data.to_vec();
    engine.release(a);
    engine.release(b);
    let whole = logits(&mut engine, &[1, 2, 3, 4], &[4]);
    assert_same_bits(&after, &whole[whole.len() - after.len()..], "after refused steps");
}

#[test]
fn step_limits_beyond_the_context_are_cut_to_it_and_not_allocated() {
    let (engine, _file) = toy(Options { context: Some(64), step_tokens: usize::MAX, ..Options::default() });
    assert_eq!((engine.step_tokens(), engine.logit_rows()), (64, 64));
}

#[test]
fn a_long_prefill_can_be_stopped_between_chunks() {
    let (mut engine, _file) = toy(Options::default());
    let params = GenerateParams { prefill_chunk: Some(10), ..greedy(8) };
    let mut seen = Vec::new();
    let answer = generate(&mut engine, &[3; 100], &params, &mut |event| {
        seen.push(event);
        if seen.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let answer = answer.unwrap();
    assert_eq!((answer.ids.len(), answer.finish), (0, Finish::Stop));
    assert_eq!(seen, [10, 20].map(|done| Event::Prefilled { done, total: 100 }));
    // The sequence was released.
    assert_eq!(
        generate(&mut engine, &[3], &greedy(2), &mut |_| ControlFlow::Continue(())).unwrap().ids.len(),
        2
    );
}

#[test]
fn released_sequences_are_free_again_and_dead_ids_are_refused() {
    let (mut engine, _file) = toy(Options { sequences: 1, ..Options::default() });
    let a = engine.new_sequence().unwrap();
    assert!(matches!(engine.new_sequence(), Err(EngineError::NoFreeSequence(1))));
    engine.release(a);
    engine.release(a);
    assert!(matches!(engine.position(a), Err(EngineError::Sequence(_))));
    engine.new_sequence().unwrap();
}

#[test]
fn options_that_cannot_be_honoured_are_refused_before_anything_runs() {
    let file = converted(&fixture("toy-hybrid"), "f32");
    let cases = [
        Options { page_tokens: Some(0), ..Options::default() },
        Options { page_tokens: Some(48), ..Options::default() },
        Options { context: Some(0), ..Options::default() },
        Options { sequences: 0, ..Options::default() },
        Options { context: Some(1 << 31), ..Options::default() },
        Options { context: Some(1 << 40), ..Options::default() },
        Options { context: Some(usize::MAX), ..Options::default() },
        Options { context: Some(1 << 31), page_tokens: Some(32), sequences: 4096, ..Options::default() },
        Options { page_tokens: Some(usize::MAX - 31), ..Options::default() },
        Options { sequences: usize::MAX, ..Options::default() },
        Options { threads: Some(0), ..Options::default() },
        Options { threads: Some(100_000), context: Some(4096), ..Options::default() },
        Options { threads: Some(usize::MAX), context: Some(4096), ..Options::default() },
    ];
    for options in cases {
        let result = Engine::open(&file.path, &options);
        let Err(EngineError::Option { option, .. }) = result else { panic!("{options:?}") };
        assert!(options.threads.is_none() || option == "threads", "{options:?}: {option}");
    }
}
