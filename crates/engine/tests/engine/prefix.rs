//! Prefixes that are kept from one prompt to the next: what is reused, and that it changes no bit.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use crate::common::{Converted, KV_F16, KV_F32, assert_same_bits, converted, fixture, load_with};
use basert_engine::{
    Client, Engine, EngineError, GenerateParams, KvTypes, Limits, News, Options, PrefixStats, Request, Reuse,
    SamplingParams, Scheduler, Session, TokenRun, WantLogits, generate,
};
use basert_kernels::KvDtype;

const MODELS: [&str; 4] = ["toy-hybrid", "toy-moe", "qwen3-dense-tiny", "llama-tiny"];
const PAGE: usize = 32;

#[derive(Default)]
struct Heard {
    ids: Vec<u32>,
    cached: usize,
    finished: bool,
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Heard>>);

impl Client for Ear {
    fn take(&mut self, news: News) -> ControlFlow<()> {
        let mut heard = self.0.lock().unwrap();
        match news {
            News::Prefilled { cached, done, total } => {
                assert!(cached < done && done <= total);
                heard.cached = cached;
            }
            News::Token(token) => heard.ids.push(token.id),
            News::Finished(_) => heard.finished = true,
            News::Failed(error) => panic!("{error}"),
        }
        ControlFlow::Continue(())
    }
}

fn is_hybrid(model: &str) -> bool {
    model.starts_with("toy-")
}

/// A cache for so many pages and, for a hybrid, about as many snapshots as fit beside them.
fn options(prefix_cache: u64, sequences: usize) -> Options {
    Options {
        kv: KV_F16,
        context: Some(512),
        page_tokens: Some(PAGE),
        sequences,
        prefix_cache,
        step_tokens: 64,
        ..Options::default()
    }
}

/// Bytes for so many pages and, in a hybrid, as many bytes again for snapshots.
fn room(model: &Converted, pages: u64) -> u64 {
    let engine = load_with(&model.path, options(0, 1));
    let page = engine.selected().pools.bytes_per_token * PAGE as u64;
    let state = engine.selected().state_bytes;
    if state == 0 { pages * page } else { 2 * (pages * page).max(state) }
}

fn scheduler(model: &Converted, pages: u64, sequences: usize) -> Scheduler {
    let prefix_cache = room(model, pages);
    Scheduler::new(load_with(&model.path, options(prefix_cache, sequences)), Limits { prefill_tokens: 40 })
}

fn params(max_tokens: usize) -> GenerateParams {
    GenerateParams { sampling: SamplingParams::default(), max_tokens, eos: Vec::new(), prefill_chunk: None }
}

/// Tokens that no other `tag` begins with.
fn words(tag: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (tag * 37 + i * 11 + i * i % 7 + 1) % 250).collect()
}

/// The answer of a scheduler to one request, and the tokens that it did not have to read.
fn ask(scheduler: &mut Scheduler, prompt: &[u32], reuse: &Reuse, max_tokens: usize) -> (Vec<u32>, usize) {
    let ear = Ear::default();
    let (prompt, params, reuse) = (prompt.to_vec(), params(max_tokens), reuse.clone());
    let request = Request { prompt, params, logprobs: None, reuse, client: String::new() };
    scheduler.submit(request, Box::new(ear.clone())).unwrap();
    while scheduler.has_work() {
        scheduler.step();
        scheduler.engine().check_integrity().unwrap();
    }
    let heard = ear.0.lock().unwrap();
    assert!(heard.finished);
    (heard.ids.clone(), heard.cached)
}

fn cold(engine: &mut Engine, prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    generate(engine, prompt, &params(max_tokens), &mut |_| ControlFlow::Continue(())).unwrap().ids
}

fn stats(scheduler: &Scheduler) -> PrefixStats {
    scheduler.engine().prefix_stats().unwrap()
}

#[test]
fn growing_conversation_never_hits_on_hybrids() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let mut solo = load_with(&file.path, options(0, 1));
        let mut scheduler = scheduler(&file, 40, 2);
        let mut prompt = words(1, 150);
        let mut before = 0;
        for turn in 0..3 {
            let (answer, cached) = ask(&mut scheduler, &prompt, &Reuse::default(), 40);
            assert_eq!(answer, cold(&mut solo, &prompt, 40), "{model}, turn {turn}");
            // The answer is part of what was kept, its last token was never run.
            let least = if turn == 0 { 0 } else { (before - 1) / PAGE * PAGE };
            assert_eq!(cached, least, "{model}, turn {turn}");
            before = prompt.len() + answer.len();
            prompt.extend(answer);
            prompt.extend(words(10 + turn, 50));
        }
    }
}

#[test]
fn exact_repeats_run_at_least_one_token_on_the_state_before_it() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let mut solo = load_with(&file.path, options(0, 1));
        let mut scheduler = scheduler(&file, 40, 1);
        for len in [1, 31, 32, 33, 63, 64, 65, 96, 130] {
            let prompt = words(len as u32, len);
            let alone = cold(&mut solo, &prompt, 5);
            for time in 0..3 {
                let (answer, cached) = ask(&mut scheduler, &prompt, &Reuse::default(), 5);
                assert_eq!(answer, alone, "{model}, {len} tokens, time {time}");
                let expected = if time == 0 { 0 } else { (len - 1) / PAGE * PAGE };
                assert_eq!(cached, expected, "{model}, {len} tokens, time {time}");
            }
        }
    }
}

#[test]
fn an_inserted_reminder_invalidates_nothing_before_it() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let mut scheduler = scheduler(&file, 40, 1);
        let conversation = words(3, 140);
        ask(&mut scheduler, &conversation, &Reuse::default(), 4);
        for (tag, edit) in [(50, 140), (51, 139), (52, 130)] {
            let edited = [&conversation[..edit], &words(tag, 40)].concat();
            let (answer, cached) = ask(&mut scheduler, &edited, &Reuse::default(), 4);
            assert_eq!(cached, edit / PAGE * PAGE, "{model}, edited at {edit}");
            let alone = cold(&mut load_with(&file.path, options(0, 1)), &edited, 4);
            assert_eq!(answer, alone, "{model}, edited at {edit}");
        }
    }
}

#[test]
fn short_prefixes_are_reused_from_the_second_request_on() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        // Long ones on one hybrid and one other model.
        let most = if ["toy-hybrid", "llama-tiny"].contains(&model) { 4100 } else { 300 };
        for shared in [40, 64, 100, 150, 300, 600, 1500, 4100].into_iter().filter(|&n| n <= most) {
            let options = Options { context: Some(4352), ..options(room(&file, 200), 1) };
            let mut scheduler = Scheduler::new(load_with(&file.path, options), Limits { prefill_tokens: 40 });
            let system = words(7, shared);
            let borders = Reuse { borders: vec![shared, shared + 45], ..Reuse::default() };
            for (time, tag) in [60, 61, 62].into_iter().enumerate() {
                let prompt = [&system[..], &words(tag, 50)].concat();
                let (_, cached) = ask(&mut scheduler, &prompt, &borders, 2);
                let expected = if time == 0 { 0 } else { shared / PAGE * PAGE };
                assert_eq!(cached, expected, "{model}, {shared} shared, time {time}");
            }
        }
    }
}

#[test]
fn where_prompts_part_is_noticed_without_being_told() {
    let file = converted(&fixture("toy-hybrid"), "base-q4");
    let mut scheduler = scheduler(&file, 60, 1);
    // The first prompt does not know what will be shared, the second one finds out, the third one profits.
    let cached = [70, 71, 72].map(|tag| {
        let prompt = [&words(8, 70)[..], &words(tag, 50)].concat();
        ask(&mut scheduler, &prompt, &Reuse::default(), 2).1
    });
    assert_eq!(cached[2], 64, "{cached:?}");
}

#[test]
fn namespaces_share_nothing() {
    for model in ["toy-hybrid", "llama-tiny"] {
        let file = converted(&fixture(model), "base-q4");
        let mut scheduler = scheduler(&file, 40, 1);
        let prompt = words(5, 100);
        let of = |namespace: &str| Reuse { namespace: namespace.to_owned(), ..Reuse::default() };
        let cached =
            ["one", "two", "", "one", "two"].map(|name| ask(&mut scheduler, &prompt, &of(name), 2).1);
        assert_eq!(cached, [0, 0, 0, 96, 96], "{model}");
    }
}

/// Logits of all tokens of a prompt after the first `skip`.
fn all_logits(engine: &mut Engine, opened: basert_engine::SequenceId, tokens: &[u32]) -> Vec<f32> {
    let mut logits = Vec::new();
    for tokens in tokens.chunks(50) {
        let run = TokenRun { sequence: opened, tokens, logits: WantLogits::All };
        logits.extend_from_slice(engine.step(&[run]).unwrap().data);
    }
    logits
}

#[test]
fn a_hit_changes_no_bit_in_any_type_of_cache() {
    let narrow = |k, v| KvTypes { k, v };
    let types = [
        KV_F32,
        KV_F16,
        narrow(KvDtype::Q8, KvDtype::Q8),
        narrow(KvDtype::Q8, KvDtype::Q4),
        narrow(KvDtype::Q4, KvDtype::Q4),
    ];
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let room = room(&file, 80);
        for kv in types {
            for page in [32, 64] {
                let options = Options { kv, page_tokens: Some(page), logit_rows: 64, ..options(room, 3) };
                let engine = Engine::open(&file.path, &options);
                // Some heads are no whole blocks.
                let mut engine = match engine {
                    Err(EngineError::KvBlocks { .. }) => continue,
                    other => other.unwrap(),
                };
                let what = format!("{model}, {kv}, pages of {page}");
                let prompt = words(9, 200);
                let first = engine.new_sequence().unwrap();
                let mut whole = Vec::new();
                for start in (0..200).step_by(page) {
                    let end = (start + page).min(200);
                    whole.extend(all_logits(&mut engine, first, &prompt[start..end]));
                    engine.keep_prefix(first, "", &prompt[..end]).unwrap();
                }
                // While the first one lives, and after it.
                for _ in 0..2 {
                    let warm = engine.open_prefix("", &prompt).unwrap();
                    assert_eq!(warm.cached, 199 / page * page, "{what}");
                    let rest = all_logits(&mut engine, warm.sequence, &prompt[warm.cached..]);
                    let vocab = engine.spec().vocab;
                    assert_same_bits(&whole[warm.cached * vocab..], &rest, &what);
                    engine.check_integrity().unwrap();
                    engine.release(warm.sequence);
                    engine.release(first);
                }
                engine.clear_prefixes();
                engine.check_integrity().unwrap();
                assert_eq!(engine.prefix_stats().unwrap().bytes, 0, "{what}");
            }
        }
    }
}

#[test]
fn what_is_planned_for_prefixes_is_what_they_may_take() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let (room, without) = (room(&file, 10), load_with(&file.path, options(0, 2)));
        let with = load_with(&file.path, options(room, 2));
        let (memory, stats) = (with.selected().memory, with.prefix_stats().unwrap());
        assert_eq!(memory.prefix_kv + memory.snapshots, stats.limit_bytes);
        assert!(stats.limit_bytes <= room && stats.limit_bytes > room / 2, "{model}: {stats:?}, {room}");
        assert_eq!(memory.total() - without.selected().memory.total(), stats.limit_bytes);
        assert_eq!(with.selected().pools.bytes, memory.kv + memory.prefix_kv);
        assert_eq!(stats.most_snapshots > 0, is_hybrid(model));
        assert_eq!(without.prefix_stats(), None);
        let tiny = Options { prefix_cache: 100, ..options(0, 1) };
        let error = Engine::open(&file.path, &tiny).err().unwrap().to_string();
        assert!(error.contains("prefix cache: 100 bytes are too few"), "{error}");
    }
}

#[test]
fn a_session_that_cannot_go_on_begins_with_what_was_kept() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let mut solo = load_with(&file.path, options(0, 1));
        let mut engine = load_with(&file.path, options(room(&file, 40), 1));
        let go = &mut |_| ControlFlow::Continue(());
        let mut session = Session::default();
        let prompt = words(2, 120);
        let first = session.generate(&mut engine, &prompt, &params(30), go).unwrap();
        // The template drops what was thought: the answer's first tokens.
        let next = [&prompt[..], &first.ids[20..], &words(3, 20)].concat();
        let run = session.tokens().to_vec();
        let common = run.iter().zip(&next).take_while(|(a, b)| a == b).count();
        let second = session.generate(&mut engine, &next, &params(12), go).unwrap();
        assert_eq!(second.kept_tokens, common / PAGE * PAGE, "{model}");
        assert!(second.kept_tokens >= 96, "{model}");
        assert_eq!(second.ids, cold(&mut solo, &next, 12), "{model}");
        session.clear(&mut engine);
        engine.check_integrity().unwrap();
    }
}

/// A source of numbers that is the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// A prompt of a tree in which every branching has a few ways on.
fn branch(dice: &mut Dice) -> (Vec<u32>, Vec<usize>) {
    let (mut prompt, mut borders) = (Vec::new(), Vec::new());
    for depth in 0..1 + dice.roll(4) {
        let way = dice.roll(3) as u32;
        let tag = depth as u32 * 5 + way;
        prompt.extend(words(tag, 20 + 13 * way as usize + 9 * depth as usize));
        borders.push(prompt.len());
    }
    (prompt, borders)
}

#[test]
fn a_random_tree_of_prompts_under_constant_eviction_answers_as_from_cold() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let mut solo = load_with(&file.path, options(0, 1));
        // Room for some prompts of the tree, and a few states.
        let prefix_cache = if is_hybrid(model) { 3 * room(&file, 6) } else { room(&file, 12) };
        let engine = load_with(&file.path, options(prefix_cache, 3));
        let mut scheduler = Scheduler::new(engine, Limits { prefill_tokens: 40 });
        let mut dice = Dice(7);
        let mut expected: HashMap<Vec<u32>, Vec<u32>> = HashMap::new();
        let mut asked: Vec<(Vec<u32>, Ear)> = Vec::new();
        for step in 0..2000 {
            if scheduler.waiting() < 2 {
                let (prompt, borders) = branch(&mut dice);
                let ear = Ear::default();
                let namespace = ["", "other"][dice.roll(8) as usize / 7].to_owned();
                let request = Request {
                    prompt: prompt.clone(),
                    params: params(1 + dice.roll(12) as usize),
                    logprobs: None,
                    reuse: Reuse { namespace, borders: if step % 3 == 0 { borders } else { Vec::new() } },
                    client: String::new(),
                };
                scheduler.submit(request, Box::new(ear.clone())).unwrap();
                asked.push((prompt, ear));
            }
            scheduler.step();
            scheduler.engine().check_integrity().unwrap();
            let stats = stats(&scheduler);
            assert!(stats.bytes <= stats.limit_bytes && stats.limit_bytes <= prefix_cache);
        }
        let stats = stats(&scheduler);
        let few = 20;
        assert!(
            stats.evicted_pages > few && stats.hits > few && stats.hits < stats.lookups,
            "{model}: {stats:?}"
        );
        assert!(!is_hybrid(model) || stats.evicted_snapshots > few, "{model}: {stats:?}");
        for (prompt, ear) in asked {
            let alone = expected.entry(prompt.clone()).or_insert_with(|| cold(&mut solo, &prompt, 12));
            let heard = ear.0.lock().unwrap();
            assert!(alone.starts_with(&heard.ids), "{model}: {prompt:?}");
        }
    }
}
