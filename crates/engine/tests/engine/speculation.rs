//! Guessed tokens: they change no answer, whatever is kept, however it is stored and however it is drawn.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use basert_convert::{Options as ConvertOptions, Silent, Synthetic, synthesize};
use basert_engine::{
    Client, DraftSource, Engine, EngineError, Event, GenerateParams, Generation, KvTypes, Limits, News,
    Options, Request, Reuse, SamplingParams, Scheduler, Selected, Session, Speculated, Speculation, TokenRun,
    WantLogits, generate,
};
use basert_format::Output;
use basert_kernels::KvDtype;
use basert_model::Config;
use serde_json::{Value, json};

use crate::common::{Converted, Golden, KV_F16, assert_same_bits, converted, fixture};

const KV_Q8: KvTypes = KvTypes { k: KvDtype::Q8, v: KvDtype::Q8 };
const CACHE: u64 = 4 << 20;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/demo.base")
}

/// "Tell me a story about a king.", as the demo's template writes it.
const STORY: [u32; 20] = [
    3040, 306, 198, 1504, 514, 259, 1054, 614, 259, 1480, 13, 3041, 198, 3040, 307, 198, 3063, 288, 3064, 288,
];
const END: u32 = 3041;

/// The request for a story and the demo's beginning of it, 64 tokens.
fn demo_prompt() -> Vec<u32> {
    let mut engine = Engine::open(&demo(), &options(Speculation::OFF)).unwrap();
    let text = answer(&mut engine, &STORY, &params(None, 64 - STORY.len())).ids;
    [&STORY[..], &text].concat()
}

fn options(speculation: Speculation) -> Options {
    Options { context: Some(512), speculation, ..Options::default() }
}

/// Greedy, or drawn with a seed and everything that depends on the answer so far.
fn params(seed: Option<u64>, max_tokens: usize) -> GenerateParams {
    let drawn = |seed| SamplingParams {
        temperature: 0.9,
        top_p: 0.95,
        repetition_penalty: 1.05,
        presence_penalty: 0.1,
        seed,
        ..SamplingParams::default()
    };
    let sampling = seed.map_or(SamplingParams::default(), drawn);
    GenerateParams { sampling, max_tokens, eos: Vec::new(), prefill_chunk: None }
}

fn answer(engine: &mut Engine, prompt: &[u32], params: &GenerateParams) -> Generation {
    generate(engine, prompt, params, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Answers to a prompt and to one that goes on from it, the second with a warm cache where there is one.
fn two(path: &Path, options: Options, prompt: &[u32], params: &GenerateParams) -> [Generation; 2] {
    let warm = options.prefix_cache > 0;
    let mut engine = Engine::open(path, &options).unwrap();
    let other = [prompt, &prompt[..9]].concat();
    let answers = [answer(&mut engine, prompt, params), answer(&mut engine, &other, params)];
    assert_eq!(answers[1].kept_tokens > 0, warm);
    engine.check_integrity().unwrap();
    answers
}

#[test]
fn guesses_change_no_answer() {
    let prompt = demo_prompt();
    let pages = [(None, 0), (Some(32), 0), (Some(32), CACHE)];
    for (page_tokens, prefix_cache) in pages {
        for kv in [KV_F16, KV_Q8] {
            for seed in [None, Some(7)] {
                let params = params(seed, 40);
                let go = |speculation| {
                    let options = Options { page_tokens, prefix_cache, kv, ..options(speculation) };
                    two(&demo(), options, &prompt, &params)
                };
                let without = go(Speculation::OFF);
                let ways = [1, 5].map(Speculation::always);
                for speculation in ways.into_iter().chain([Speculation::AUTO, Speculation::TEXT]) {
                    let with = go(speculation);
                    for (with, without) in with.iter().zip(&without) {
                        let what = format!("{speculation:?}, pages {page_tokens:?}, {kv}, seed {seed:?}");
                        assert_eq!(with.ids, without.ids, "{what}");
                        assert_eq!(with.kept_tokens, without.kept_tokens, "{what}");
                        let Speculated { steps, accepted, .. } = with.speculated;
                        assert_eq!(steps + accepted, with.ids.len() - 1, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn models_without_a_head_guess_from_text_and_answer_the_same() {
    let mut right = 0;
    for model in ["toy-hybrid", "toy-moe", "qwen35-dense-tiny", "qwen3-dense-tiny", "llama-tiny"] {
        let file = converted(&fixture(model), "base-q4");
        let prompt = Golden::of(&fixture(model)).prompt("p130").ids.clone();
        for seed in [None, Some(3)] {
            let go = |speculation| {
                let options = Options { page_tokens: Some(32), prefix_cache: CACHE, ..options(speculation) };
                two(&file.path, options, &prompt, &params(seed, 80))
            };
            let (with, without) = (go(Speculation::always(5)), go(Speculation::OFF));
            for (with, without) in with.iter().zip(&without) {
                assert_eq!(with.ids, without.ids, "{model} {seed:?}");
                right += with.speculated.accepted;
            }
        }
    }
    assert!(right > 0, "no guess was ever right, so nothing was tested");
}

/// The checkpoint of `source` with a prediction head: its last layer once more, behind the sum of hidden state and embedding.
fn with_a_head(source: &Path, hidden: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(source.join(name), folder.path().join(name)).unwrap();
    }
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    let mut config = json(&std::fs::read(source.join("config.json")).unwrap());
    config["mtp_num_hidden_layers"] = 1.into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();

    let file = std::fs::read(source.join("model.safetensors")).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let (mut header, mut data) = (json(header), data.to_vec());
    let mut add = |header: &mut Value, name: &str, shape: Value, bytes: &[u8]| {
        let start = data.len();
        data.extend(bytes);
        header[name] = json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, data.len()]});
    };
    let last = format!("model.layers.{}.", config["num_hidden_layers"].as_u64().unwrap() - 1);
    let copied: Vec<(String, Value)> =
        header.as_object().unwrap().iter().map(|(name, entry)| (name.clone(), entry.clone())).collect();
    for (name, entry) in copied {
        let Some(part) = name.strip_prefix(&last) else { continue };
        assert_eq!(entry["dtype"], "BF16");
        let [from, to] = [0, 1].map(|i| entry["data_offsets"][i].as_u64().unwrap() as usize);
        let start = 8 + u64::from_le_bytes(*length) as usize;
        let bytes = &file[start + from..start + to];
        add(&mut header, &format!("mtp.layers.0.{part}"), entry["shape"].clone(), bytes);
    }
    let one = |yes| if yes { [0x80, 0x3f] } else { [0, 0] };
    let sum: Vec<u8> = (0..2 * hidden * hidden).flat_map(|i| one(i % hidden == i / (2 * hidden))).collect();
    add(&mut header, "mtp.fc.weight", json!([hidden, 2 * hidden]), &sum);
    for norm in ["norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"] {
        add(&mut header, &format!("mtp.{norm}.weight"), json!([hidden]), &vec![0; 2 * hidden]);
    }
    let header = header.to_string();
    let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(folder.path().join("model.safetensors"), whole).unwrap();
    folder
}

#[test]
fn a_head_with_experts_guesses_and_changes_no_answer() {
    let source = with_a_head(&fixture("toy-moe"), 64);
    let mut right = 0;
    for target in ["f32", "base-q4"] {
        let file = converted(source.path(), target);
        let prompt = Golden::of(&fixture("toy-moe")).prompt("p130").ids.clone();
        for (page_tokens, prefix_cache, kv) in [(None, 0, KV_F16), (Some(32), CACHE, KV_Q8)] {
            for seed in [None, Some(3)] {
                let go = |speculation| {
                    let options = Options { page_tokens, prefix_cache, kv, ..options(speculation) };
                    two(&file.path, options, &prompt, &params(seed, 80))
                };
                let (with, without) = (go(Speculation::always(3)), go(Speculation::OFF));
                for (with, without) in with.iter().zip(&without) {
                    assert_eq!(with.ids, without.ids, "{target} {kv} {seed:?}");
                    let (drafted, steps) = (with.speculated.drafted, with.speculated.steps);
                    assert!(drafted > 2 * steps, "{drafted} guesses in {steps} steps");
                    right += with.speculated.accepted;
                }
            }
        }
    }
    assert!(right > 0, "no guess was ever right, so nothing was rolled forward");
}

/// Random weights in a fixture's geometry, with so many draft layers.
fn with_draft_layers(path: &Path, geometry: &str, layers: usize) {
    let config = std::fs::read(fixture(geometry).join("config.json")).unwrap();
    let (arch, mut config) = Config::from_hf(&serde_json::from_slice(&config).unwrap(), None).unwrap();
    config.mtp_num_hidden_layers = layers;
    let model = Synthetic { name: "drafts".to_owned(), arch, config, assumptions: Vec::new() };
    let options = ConvertOptions { target: "base-q4".parse().unwrap(), ..ConvertOptions::default() };
    drop(synthesize(&model, &Output::new(path), &options, &mut Silent).unwrap());
}

#[test]
fn that_text_guesses_in_place_of_a_head_is_said_with_the_reason() {
    for (layers, why) in [(0, "no prediction head"), (1, ""), (2, "several draft layers")] {
        let model = Converted::with(|path| with_draft_layers(path, "toy-hybrid", layers));
        let source = if layers == 1 { DraftSource::Best } else { DraftSource::Text };
        for asked in [Speculation::always(3), Speculation::AUTO] {
            let engine = Engine::open(&model.path, &options(asked)).unwrap();
            let Selected { speculation, shrunk, notes, .. } = engine.selected();
            assert_eq!(speculation.source, source, "{layers} {asked:?}");
            let said = |lines: &[String]| lines.iter().any(|line| line.contains("guessed from earlier text"));
            // Where there is nothing to miss, auto has promised nothing else.
            let is_loud = layers > 1 || (layers == 0 && !asked.adaptive);
            assert_eq!(
                (said(shrunk), said(notes)),
                (is_loud, layers == 0 && asked.adaptive),
                "{layers} {asked:?}"
            );
            assert!(shrunk.iter().chain(notes).all(|line| !line.contains("guessed") || line.contains(why)));
        }
        for asked in [Speculation::OFF, Speculation::TEXT] {
            let engine = Engine::open(&model.path, &options(asked)).unwrap();
            assert!(!format!("{:?}", engine.selected()).contains("guessed"), "{layers} {asked:?}");
        }
    }
}

#[test]
fn a_conversation_goes_on_behind_accepted_guesses() {
    let prompt = demo_prompt();
    let turns = |speculation| {
        let mut engine = Engine::open(&demo(), &options(speculation)).unwrap();
        let mut session = Session::default();
        let (mut said, mut kept) = (prompt.clone(), Vec::new());
        for turn in 0..4u32 {
            let go = &mut |_: Event| ControlFlow::Continue(());
            let answer = session.generate(&mut engine, &said, &params(Some(5), 23), go).unwrap();
            kept.push((answer.kept_tokens, session.tokens().len()));
            said.extend(answer.ids);
            said.extend([40 + turn, 900, 31]);
        }
        (said, kept)
    };
    assert_eq!(turns(Speculation::always(4)), turns(Speculation::OFF));
}

#[test]
fn a_saved_session_goes_on_with_guesses_and_without() {
    let prompt = demo_prompt();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let go = &mut |_: Event| ControlFlow::Continue(());
    let ways = [Speculation::OFF, Speculation::always(3)];
    let mut answers = Vec::new();
    for (saved, resumed) in ways.iter().flat_map(|&saved| ways.map(|resumed| (saved, resumed))) {
        let mut engine = Engine::open(&demo(), &options(saved)).unwrap();
        let mut session = Session::default();
        let first = session.generate(&mut engine, &prompt, &params(Some(2), 30), go).unwrap().ids;
        session.save(&engine, &path, serde_json::Value::Null).unwrap();
        let paged = Options { page_tokens: Some(32), ..options(resumed) };
        let mut engine = Engine::open(&demo(), &paged).unwrap();
        let (mut session, _) = Session::load(&mut engine, &path).unwrap();
        let said = [&prompt[..], &first, &[30, 31]].concat();
        let second = session.generate(&mut engine, &said, &params(Some(2), 40), go).unwrap();
        assert!(second.kept_tokens > 0);
        answers.push((first, second.ids));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

/// What the head guesses before each token of `tail`, behind the prefix of `prompt` that is kept.
fn guesses_behind(engine: &mut Engine, prompt: &[u32], tail: &[u32]) -> Vec<Vec<u32>> {
    let opened = engine.open_prefix("", prompt).unwrap();
    assert_eq!(opened.cached, (prompt.len() - 1) / 32 * 32, "nothing to be tested");
    let sequence = opened.sequence;
    let run = |engine: &mut Engine, tokens: &[u32]| {
        engine.step(&[TokenRun { sequence, tokens, logits: WantLogits::Last }]).map(drop).unwrap();
    };
    run(engine, &prompt[opened.cached..]);
    let guess = |&token: &u32| {
        let mut guessed = Vec::new();
        engine.draft(sequence, token, 3, &mut guessed).unwrap();
        run(engine, &[token]);
        guessed
    };
    let guesses = tail.iter().map(guess).collect();
    engine.release(sequence);
    guesses
}

/// A head that attends to nothing behind a prefix from a file guesses worse than one that never left the memory.
#[test]
fn guesses_behind_a_prefix_from_a_file_are_those_of_the_cache_in_memory() {
    let prompt = demo_prompt();
    let folder = tempfile::tempdir().unwrap();
    let options =
        |speculation| Options { page_tokens: Some(32), prefix_cache: CACHE, ..options(speculation) };
    let head = Speculation::always(3);
    let mut guesses = Vec::new();
    for (name, saved) in [("head", head), ("off", Speculation::OFF)] {
        let path = folder.path().join(name);
        let mut engine = Engine::open(&demo(), &options(saved)).unwrap();
        let said = answer(&mut engine, &prompt, &params(None, 60)).ids;
        // The state of the answer's last whole page is kept, at 96 tokens.
        let asked = [&prompt[..], &said[..36]].concat();
        engine.save_prefixes(&path).unwrap();
        if saved == head {
            guesses.push(guesses_behind(&mut engine, &asked, &said[36..]));
        }
        let mut restarted = Engine::open(&demo(), &options(head)).unwrap();
        let read = restarted.load_prefixes(&path).unwrap();
        assert_eq!(read.bytes, path.metadata().unwrap().len());
        guesses.push(guesses_behind(&mut restarted, &asked, &said[36..]));
        restarted.check_integrity().unwrap();
        // Who does not guess reads both.
        let mut plain = Engine::open(&demo(), &options(Speculation::OFF)).unwrap();
        assert_eq!(plain.load_prefixes(&path).unwrap().pages, read.pages);
        assert_eq!(answer(&mut plain, &asked, &params(None, 24)).ids, said[36..]);
    }
    assert_eq!(guesses[0], guesses[1]);
    assert_ne!(guesses[1], guesses[2], "the head's keys and values make no difference here");
}

#[test]
fn guesses_of_a_session_from_a_file_are_those_of_the_session_in_memory() {
    let prompt = demo_prompt();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let go = &mut |_: Event| ControlFlow::Continue(());
    let mut engine = Engine::open(&demo(), &options(Speculation::always(3))).unwrap();
    let mut session = Session::default();
    let first = session.generate(&mut engine, &prompt, &params(None, 30), go).unwrap().ids;
    session.save(&engine, &path, serde_json::Value::Null).unwrap();
    let said = [&prompt[..], &first].concat();
    let counts = |found: Generation| {
        let Speculated { steps, drafted, accepted, .. } = found.speculated;
        (found.ids, steps, drafted, accepted)
    };
    let expected = counts(session.generate(&mut engine, &said, &params(None, 60), go).unwrap());
    for page_tokens in [None, Some(32)] {
        let paged = Options { page_tokens, ..options(Speculation::always(3)) };
        let mut engine = Engine::open(&demo(), &paged).unwrap();
        let (mut session, _) = Session::load(&mut engine, &path).unwrap();
        let found = counts(session.generate(&mut engine, &said, &params(None, 60), go).unwrap());
        assert_eq!(found, expected);
    }
}

#[test]
fn an_answer_that_is_stopped_ends_at_the_same_token() {
    let prompt = demo_prompt();
    let stopped = |speculation| {
        let mut engine = Engine::open(&demo(), &options(speculation)).unwrap();
        let mut session = Session::default();
        let mut left = 17;
        let mut stop = |event| {
            left -= u32::from(matches!(event, Event::Token(_)));
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let answer = session.generate(&mut engine, &prompt, &params(None, 60), &mut stop).unwrap();
        (answer.ids, session.tokens().to_vec())
    };
    assert_eq!(stopped(Speculation::always(5)), stopped(Speculation::OFF));
}

#[test]
fn an_answer_fills_the_context_to_its_end() {
    let prompt = demo_prompt();
    let fill = |speculation| {
        let options = Options { context: Some(100), ..options(speculation) };
        answer(&mut Engine::open(&demo(), &options).unwrap(), &prompt, &params(None, 500)).ids
    };
    let without = fill(Speculation::OFF);
    assert_eq!(without.len(), 101 - prompt.len());
    assert_eq!(fill(Speculation::always(6)), without);
}

/// Logits after `tail`, behind a step whose guesses were `drafts` and of which `accepted` were right.
fn after(engine: &mut Engine, prompt: &[u32], drafts: &[u32], accepted: usize, tail: &[u32]) -> Vec<f32> {
    let sequence = engine.new_sequence().unwrap();
    let run = |tokens, logits| TokenRun { sequence, tokens, logits };
    engine.step(&[run(&prompt[..prompt.len() - 1], WantLogits::None)]).unwrap();
    let tokens = [&prompt[prompt.len() - 1..], drafts].concat();
    engine.step(&[run(&tokens, WantLogits::Verify(drafts.len()))]).unwrap();
    assert_eq!(engine.position(sequence).unwrap(), prompt.len());
    if accepted > 0 {
        engine.accept(sequence, accepted).unwrap();
    }
    let logits = engine.step(&[run(tail, WantLogits::All)]).unwrap().data.to_vec();
    engine.release(sequence);
    logits
}

#[test]
fn a_wrong_guess_leaves_no_trace_in_any_state() {
    for model in ["toy-hybrid", "toy-moe", "qwen3-dense-tiny"] {
        let file = converted(&fixture(model), "base-q4");
        let ids = Golden::of(&fixture(model)).prompt("p130").ids.clone();
        for page_tokens in [None, Some(32)] {
            let options = Options { page_tokens, logit_rows: 20, ..options(Speculation::always(6)) };
            let mut engine = Engine::open(&file.path, &options).unwrap();
            for accepted in 0..=6 {
                let right = &ids[60..60 + accepted];
                let drafts = [right, &[5; 6][accepted..]].concat();
                let plain = [&ids[..60], right].concat();
                let expected = after(&mut engine, &plain, &[], 0, &ids[66..80]);
                let found = after(&mut engine, &ids[..60], &drafts, accepted, &ids[66..80]);
                assert_same_bits(&expected, &found, &format!("{model} {page_tokens:?}, {accepted} accepted"));
            }
        }
    }
}

#[test]
fn guesses_that_were_not_made_cannot_be_accepted() {
    let file = converted(&fixture("toy-hybrid"), "base-q4");
    let mut engine = Engine::open(&file.path, &options(Speculation::always(2))).unwrap();
    let sequence = engine.new_sequence().unwrap();
    let run = |tokens, drafts| TokenRun { sequence, tokens, logits: WantLogits::Verify(drafts) };
    engine.step(&[run(&[1, 2, 3], 2)]).unwrap();
    assert!(matches!(engine.accept(sequence, 3), Err(EngineError::StepTooLarge { found: 3, limit: 2, .. })));
    engine.accept(sequence, 1).unwrap();
    assert!(engine.accept(sequence, 1).is_err(), "the rest is forgotten");
    assert!(engine.step(&[run(&[1, 2, 3, 4], 3)]).is_err(), "more than the engine was loaded for");
    assert!(engine.step(&[run(&[1, 2], 2)]).is_err(), "nothing to begin with");
    assert_eq!(engine.position(sequence).unwrap(), 2);
}

/// A client that writes down what it hears.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<u32>>>);

impl Client for Ear {
    fn take(&mut self, news: News) -> ControlFlow<()> {
        match news {
            News::Token(token) => self.0.lock().unwrap().push(token.id),
            News::Failed(error) => panic!("{error}"),
            News::Prefilled { .. } | News::Finished(_) => {}
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn requests_that_run_together_are_guessed_for_and_answered_as_alone() {
    let text = demo_prompt();
    let prompts = [&text[..50], &text[7..64], &text[20..30], &text[..64]];
    let wanted = |i: usize| params((i % 2 == 1).then_some(i as u64), 20 + 9 * i);
    let mut alone = Engine::open(&demo(), &options(Speculation::OFF)).unwrap();
    let expected: Vec<_> = (0..4).map(|i| answer(&mut alone, prompts[i], &wanted(i)).ids).collect();
    for (sequences, speculation) in [
        (1, Speculation::always(3)),
        (4, Speculation::always(5)),
        (2, Speculation::AUTO),
        (4, Speculation::TEXT),
    ] {
        for (page_tokens, prefix_cache) in [(None, 0), (Some(32), CACHE)] {
            let base = options(speculation);
            let options = Options { sequences, page_tokens, prefix_cache, logit_rows: 12, ..base };
            let engine = Engine::open(&demo(), &options).unwrap();
            let mut scheduler = Scheduler::new(engine, Limits { prefill_tokens: 16 });
            let ears = [(); 4].map(|()| Ear::default());
            for (i, ear) in ears.iter().enumerate() {
                let (prompt, params) = (prompts[i].to_vec(), wanted(i));
                let request = Request {
                    prompt,
                    params,
                    logprobs: None,
                    reuse: Reuse::default(),
                    client: String::new(),
                };
                scheduler.submit(request, Box::new(ear.clone())).unwrap();
                (0..i).for_each(|_| scheduler.step());
            }
            while scheduler.has_work() {
                scheduler.step();
            }
            for (i, ear) in ears.iter().enumerate() {
                let what = format!("request {i}, {sequences} sequences, {speculation:?}, {page_tokens:?}");
                assert_eq!(*ear.0.lock().unwrap(), expected[i], "{what}");
            }
            scheduler.engine().check_integrity().unwrap();
            let Speculated { steps, drafted, accepted, .. } = scheduler.take_speculated();
            assert!(drafted > 0 || speculation == Speculation::TEXT, "{speculation:?}");
            assert_eq!(steps + accepted, expected.iter().map(|ids| ids.len() - 1).sum::<usize>());
        }
    }
}

#[test]
fn the_demos_head_guesses_its_own_text() {
    for (most, least) in [(1, 1.8), (2, 2.5), (3, 2.9), (4, 3.1)] {
        let mut engine = Engine::open(&demo(), &options(Speculation::always(most))).unwrap();
        let params = GenerateParams { eos: vec![END], ..params(None, 400) };
        let Generation { ids, speculated, .. } = answer(&mut engine, &STORY, &params);
        println!(
            "{most}: {:.2} tokens per step, {} tokens, {speculated:?}",
            speculated.tokens_per_step(),
            ids.len()
        );
        assert!(speculated.tokens_per_step() >= least, "{most}: {speculated:?}");
    }
}
