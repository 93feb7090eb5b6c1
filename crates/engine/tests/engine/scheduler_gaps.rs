//! What running answers wait for while long prompts arrive, counted in tokens of a step and not in time.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use crate::common::{KV_F16, converted, fixture, load_with};
use basert_engine::{
    Client, GenerateParams, Limits, News, Options, Request, Reuse, SamplingParams, Scheduler,
};

/// How far a request is.
#[derive(Clone, Copy, Default)]
struct Progress {
    prompt: usize,
    answer: usize,
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Progress>>);

impl Client for Ear {
    fn take(&mut self, news: News) -> ControlFlow<()> {
        let mut progress = self.0.lock().unwrap();
        match news {
            News::Prefilled { done, .. } => progress.prompt = done,
            News::Token(_) => progress.answer += 1,
            News::Finished(_) => {}
            News::Failed(error) => panic!("{error}"),
        }
        ControlFlow::Continue(())
    }
}

fn submit(scheduler: &mut Scheduler, prompt: usize, max_tokens: usize) -> Ear {
    let ear = Ear::default();
    let sampling = SamplingParams::default();
    let params = GenerateParams { sampling, max_tokens, eos: Vec::new(), prefill_chunk: None };
    let prompt = (0..prompt as u32).map(|i| i * 7 % 250).collect();
    let request = Request { prompt, params, logprobs: None, reuse: Reuse::default(), client: String::new() };
    scheduler.submit(request, Box::new(ear.clone())).unwrap();
    ear
}

#[test]
fn running_answers_get_a_token_in_every_step_of_bounded_length_while_an_8k_prompt_arrives() {
    let steps = steps_of_an_8k_prompt(|scheduler| scheduler);
    assert_eq!(steps, (LONG + SHORT) / Limits::default().prefill_tokens);
    // What is computed until the prompts are read is theirs, and at most half as much again; in fact a token a talker and step.
    assert!(2 * steps <= (LONG + SHORT) / 2, "{steps} steps");
}

/// However the clock cuts the prompt.
#[test]
fn a_paced_scheduler_gives_them_one_in_no_longer_steps() {
    let steps = steps_of_an_8k_prompt(Scheduler::paced);
    assert!(steps >= (LONG + SHORT) / Limits::default().prefill_tokens, "{steps}");
}

const LONG: usize = 8192;
const SHORT: usize = 512;
/// More tokens than the prompts have steps.
const TALK: usize = 2500;

fn steps_of_an_8k_prompt(paced: fn(Scheduler) -> Scheduler) -> usize {
    let limits = Limits::default();
    let file = converted(&fixture("toy-hybrid"), "base-q4");
    let options = Options {
        kv: KV_F16,
        context: Some(LONG + 256),
        page_tokens: Some(64),
        sequences: 4,
        step_tokens: 512,
        ..Options::default()
    };
    let mut scheduler = paced(Scheduler::new(load_with(&file.path, options), limits));
    let talkers = [3, 9].map(|tokens| submit(&mut scheduler, tokens, TALK));
    scheduler.step();
    // Together they may take no more than one alone.
    let readers = [LONG, SHORT].map(|tokens| submit(&mut scheduler, tokens, 2));
    let all = |ears: &[Ear; 2]| ears.each_ref().map(|ear| *ear.0.lock().unwrap());
    let read = |ears: &[Ear; 2]| all(ears).iter().map(|progress| progress.prompt).sum::<usize>();
    let mut steps = 0;
    while read(&readers) < LONG + SHORT {
        let (said, done) = (all(&talkers).map(|progress| progress.answer), read(&readers));
        scheduler.step();
        steps += 1;
        assert_eq!(all(&talkers).map(|progress| progress.answer), said.map(|n| n + 1), "step {steps}");
        let more = read(&readers) - done;
        assert!((1..=limits.prefill_tokens).contains(&more), "{more} prompt tokens in step {steps}");
    }
    steps
}
