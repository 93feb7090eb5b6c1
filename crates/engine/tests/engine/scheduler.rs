//! Many requests on one engine: each gets the answer that it would get alone.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use crate::common::{KV_F16, converted, fixture, load_with};
use basert_engine::{
    Client, Engine, EngineError, Finish, GenerateParams, Limits, News, Options, Request, Reuse,
    SamplingParams, Scheduler, Token, generate,
};

const MODELS: [&str; 4] = ["toy-hybrid", "toy-moe", "qwen3-dense-tiny", "llama-tiny"];

/// What a client has heard.
#[derive(Default)]
struct Heard {
    prefilled: Vec<usize>,
    tokens: Vec<Token>,
    finish: Option<Finish>,
    failure: Option<String>,
    gone: bool,
    /// Leaves after so many tokens.
    patience: Option<usize>,
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Heard>>);

impl Client for Ear {
    fn take(&mut self, news: News) -> ControlFlow<()> {
        let mut heard = self.0.lock().unwrap();
        assert!(heard.finish.is_none() && heard.failure.is_none(), "nothing comes after the end");
        match news {
            News::Prefilled { done, .. } => heard.prefilled.push(done),
            News::Token(token) => heard.tokens.push(token),
            News::Finished(finish) => heard.finish = Some(finish),
            News::Failed(error) => heard.failure = Some(error.to_string()),
        }
        if heard.patience.is_some_and(|patience| heard.tokens.len() >= patience) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn is_gone(&self) -> bool {
        self.0.lock().unwrap().gone
    }
}

impl Ear {
    fn ids(&self) -> Vec<u32> {
        self.0.lock().unwrap().tokens.iter().map(|token| token.id).collect()
    }
}

fn engine(model: &str, sequences: usize, step_tokens: usize) -> Engine {
    let file = converted(&fixture(model), "base-q4");
    let options = Options {
        kv: KV_F16,
        context: Some(128),
        page_tokens: Some(32),
        sequences,
        step_tokens,
        logit_rows: sequences,
        ..Options::default()
    };
    load_with(&file.path, options)
}

/// Prompts of different lengths, some sampled and some greedy.
fn requests() -> Vec<Request> {
    (0..7u32)
        .map(|i| {
            let prompt = (0..5 + 13 * i).map(|j| (17 * i + 29 * j + 1) % 250).collect();
            let temperature = if i.is_multiple_of(2) { 0.0 } else { 1.0 };
            let sampling = SamplingParams { temperature, seed: u64::from(i), ..SamplingParams::default() };
            let max_tokens = 6 + 3 * i as usize;
            let params = GenerateParams { sampling, max_tokens, eos: vec![3, 77], prefill_chunk: None };
            Request { prompt, params, logprobs: None, reuse: Reuse::default(), client: String::new() }
        })
        .collect()
}

fn run(scheduler: &mut Scheduler) {
    for _ in 0..2000 {
        if !scheduler.has_work() {
            return;
        }
        scheduler.step();
    }
    panic!("it does not come to an end");
}

#[test]
fn answers_in_a_crowd_are_those_alone() {
    for model in MODELS {
        let mut solo = engine(model, 1, 512);
        let alone: Vec<(Vec<u32>, Finish)> = requests()
            .iter()
            .map(|request| {
                let go_on = &mut |_| ControlFlow::Continue(());
                let found = generate(&mut solo, &request.prompt, &request.params, go_on).unwrap();
                (found.ids, found.finish)
            })
            .collect();
        for (sequences, step_tokens, prefill_tokens) in
            [(1, 512, 128), (3, 64, 16), (7, 7, 1), (7, 3, 1), (7, 512, 512)]
        {
            let mut scheduler =
                Scheduler::new(engine(model, sequences, step_tokens), Limits { prefill_tokens });
            let ears: Vec<Ear> = requests()
                .into_iter()
                .enumerate()
                .map(|(i, request)| {
                    let ear = Ear::default();
                    scheduler.submit(request, Box::new(ear.clone())).unwrap();
                    // They do not all arrive at once.
                    (0..i).for_each(|_| scheduler.step());
                    ear
                })
                .collect();
            run(&mut scheduler);
            for (i, (ear, (ids, finish))) in ears.iter().zip(&alone).enumerate() {
                let what = format!("{model}, request {i}, {sequences} {step_tokens} {prefill_tokens}");
                assert_eq!(&ear.ids(), ids, "{what}");
                assert_eq!(ear.0.lock().unwrap().finish, Some(*finish), "{what}");
            }
        }
    }
}

#[test]
fn a_long_prompt_holds_running_answers_up_by_a_few_tokens_at_a_time() {
    let mut scheduler = Scheduler::new(engine("toy-hybrid", 2, 512), Limits { prefill_tokens: 8 });
    let params = |max_tokens| GenerateParams {
        sampling: SamplingParams::default(),
        max_tokens,
        eos: Vec::new(),
        prefill_chunk: None,
    };
    let (talker, reader) = (Ear::default(), Ear::default());
    let request = |prompt, max_tokens| Request {
        prompt,
        params: params(max_tokens),
        logprobs: None,
        reuse: Reuse::default(),
        client: String::new(),
    };
    scheduler.submit(request(vec![1, 2, 3], 40), Box::new(talker.clone())).unwrap();
    scheduler.step();
    scheduler.submit(request(vec![5; 100], 4), Box::new(reader.clone())).unwrap();
    let mut answered = talker.ids().len();
    while reader.ids().is_empty() {
        scheduler.step();
        assert_eq!(talker.ids().len(), answered + 1, "one token in every step");
        answered += 1;
    }
    let steps: Vec<usize> = reader.0.lock().unwrap().prefilled.clone();
    assert_eq!(steps, (1..=12).map(|i| 8 * i).chain([100]).collect::<Vec<_>>());
}

/// A greedy request of a client, whose answer has as many tokens as it may.
fn of(client: &str, prompt: Vec<u32>, max_tokens: usize) -> Request {
    let params = GenerateParams { max_tokens, eos: Vec::new(), ..requests()[0].params.clone() };
    Request { prompt, params, client: client.to_owned(), ..requests()[0].clone() }
}

fn submit(scheduler: &mut Scheduler, request: Request) -> Ear {
    let ear = Ear::default();
    scheduler.submit(request, Box::new(ear.clone())).unwrap();
    ear
}

#[test]
fn a_client_with_fifty_requests_does_not_keep_another_one_waiting() {
    for sequences in [1, 2, 4] {
        let mut scheduler = Scheduler::new(engine("toy-hybrid", sequences, 512), Limits::default());
        let many: Vec<Ear> = (0..50).map(|i| submit(&mut scheduler, of("many", vec![i + 1; 5], 4))).collect();
        scheduler.step();
        let few = [7, 8].map(|id| submit(&mut scheduler, of("few", vec![id; 5], 4)));
        let ended = |ears: &[Ear]| ears.iter().filter(|ear| ear.0.lock().unwrap().finish.is_some()).count();
        while ended(&few) < few.len() {
            scheduler.step();
        }
        // Those that ran when it came, and as many again as ran in turns with its own.
        assert!(ended(&many) <= 3 * sequences, "{} before it, of {sequences} at a time", ended(&many));
        run(&mut scheduler);
        let order: Vec<usize> = many.iter().map(|ear| ear.ids().len()).collect();
        assert_eq!(order, [4; 50], "and nobody is forgotten");
    }
}

#[test]
fn a_long_prompt_does_not_starve_a_short_one_nor_short_ones_a_long_one() {
    let mut scheduler = Scheduler::new(engine("toy-hybrid", 3, 512), Limits { prefill_tokens: 8 });
    let talker = submit(&mut scheduler, of("", vec![1, 2, 3], 100));
    scheduler.step();
    let long = submit(&mut scheduler, of("", vec![5; 100], 1));
    scheduler.step();
    // A prompt as long as half a step is read in the next one; another one takes its place in every step.
    for step in 1..=20 {
        let short = submit(&mut scheduler, of("", vec![step; 4], 1));
        scheduler.step();
        assert!(short.0.lock().unwrap().finish.is_some(), "step {step}");
        let read = long.0.lock().unwrap().prefilled.last().copied();
        assert_eq!(read, Some(8 + 4 * step as usize), "the long one has the other half");
    }
    assert_eq!(talker.ids().len(), 22, "and the running answer a token in every step");
}

#[test]
fn all_sequences_can_fill_the_context_at_once_so_none_is_ever_preempted() {
    let mut scheduler = Scheduler::new(engine("toy-hybrid", 3, 512), Limits::default());
    let all: Vec<Ear> = (0..5).map(|i| submit(&mut scheduler, of("", vec![i + 1; 8], 1000))).collect();
    let mut said = vec![0; all.len()];
    while scheduler.has_work() {
        scheduler.step();
        let now: Vec<usize> = all.iter().map(|ear| ear.ids().len()).collect();
        let going = |i: usize| all[i].0.lock().unwrap().finish.is_none() && now[i] > 0;
        assert!((0..all.len()).all(|i| !going(i) || now[i] == said[i] + 1), "{said:?} {now:?}");
        said = now;
    }
    assert_eq!(
        said, [121; 5],
        "the prompt and the answer fill the context, but for a last token that is not run"
    );
}

#[test]
fn a_client_that_leaves_frees_its_sequence_at_once() {
    let mut scheduler = Scheduler::new(engine("toy-hybrid", 1, 512), Limits::default());
    let [first, second, third] = [(); 3].map(|()| Ear::default());
    first.0.lock().unwrap().patience = Some(2);
    let request = || Request {
        params: GenerateParams { eos: Vec::new(), ..requests()[0].params.clone() },
        ..requests()[0].clone()
    };
    for ear in [&first, &second, &third] {
        scheduler.submit(request(), Box::new(ear.clone())).unwrap();
    }
    assert_eq!((scheduler.running(), scheduler.waiting()), (0, 3));
    second.0.lock().unwrap().gone = true;
    run(&mut scheduler);
    assert_eq!(first.ids().len(), 2);
    assert!(first.0.lock().unwrap().finish.is_none(), "who has left hears nothing more");
    assert!(second.ids().is_empty());
    assert_eq!(third.ids().len(), 6);
}

#[test]
fn what_could_never_be_answered_is_refused_at_once() {
    let mut scheduler = Scheduler::new(engine("toy-hybrid", 2, 512), Limits::default());
    let request = |prompt: Vec<u32>| Request { prompt, ..requests()[0].clone() };
    let mut refused = |request| scheduler.submit(request, Box::new(Ear::default())).unwrap_err();
    assert!(matches!(refused(request(vec![])), EngineError::EmptyPrompt));
    assert!(matches!(refused(request(vec![1; 129])), EngineError::ContextFull { needed: 129, context: 128 }));
    assert!(matches!(refused(request(vec![1, 1 << 30])), EngineError::TokenId { .. }));
    let mut wild = request(vec![1]);
    wild.params.sampling.top_p = 7.0;
    assert!(matches!(refused(wild), EngineError::Sampling { name: "top_p", .. }));
    assert!(!scheduler.has_work());
}

#[test]
fn answers_end_with_the_context_and_prompts_that_fill_it_get_one_token() {
    for (prompt, expected) in [(126, 3), (127, 2), (128, 1)] {
        let mut scheduler = Scheduler::new(engine("toy-hybrid", 2, 64), Limits::default());
        let mut request = Request { prompt: vec![9; prompt], ..requests()[0].clone() };
        request.params.eos.clear();
        let ear = Ear::default();
        scheduler.submit(request.clone(), Box::new(ear.clone())).unwrap();
        run(&mut scheduler);
        assert_eq!((ear.ids().len(), ear.0.lock().unwrap().finish), (expected, Some(Finish::Length)));
        let go_on = &mut |_| ControlFlow::Continue(());
        let alone = generate(&mut engine("toy-hybrid", 1, 512), &request.prompt, &request.params, go_on);
        assert_eq!(alone.unwrap().ids, ear.ids());
    }
}

#[test]
fn log_probabilities_are_of_the_model_and_not_of_the_sampler() {
    let mut scheduler = Scheduler::new(engine("toy-hybrid", 2, 512), Limits::default());
    let (plain, biased) = (Ear::default(), Ear::default());
    let mut request = Request { logprobs: Some(5), ..requests()[0].clone() };
    request.params.max_tokens = 1;
    scheduler.submit(request.clone(), Box::new(plain.clone())).unwrap();
    let banned = 200;
    request.params.sampling.logit_bias = vec![(banned, 1e9)];
    scheduler.submit(request, Box::new(biased.clone())).unwrap();
    run(&mut scheduler);
    let token = |ear: &Ear| ear.0.lock().unwrap().tokens[0].clone();
    let (plain, biased) = (token(&plain), token(&biased));
    assert_eq!(plain.top, biased.top);
    assert_eq!(plain.top[0], (plain.id, plain.logprob.unwrap()), "greedy takes the likeliest");
    assert!(plain.top.is_sorted_by(|a, b| a.1 >= b.1) && plain.top.len() == 5);
    assert_eq!(biased.id, banned);
    assert!(biased.logprob.unwrap() <= plain.logprob.unwrap());
    let sum: f32 = plain.top.iter().map(|(_, logprob)| logprob.exp()).sum();
    assert!(sum > 0.0 && sum <= 1.0 + 1e-6, "{sum}");
}
