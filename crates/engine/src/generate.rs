//! One prompt to one answer: chunked prefill, then decode until something says stop.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::engine::{Engine, TokenRun, WantLogits};
use crate::sampler::{Sampler, SamplingParams};
use crate::{EngineError, SequenceId};

/// What to generate.
#[derive(Clone, Debug)]
pub struct GenerateParams {
    /// How tokens are picked.
    pub sampling: SamplingParams,
    /// Most tokens in the answer. The context may end it earlier.
    pub max_tokens: usize,
    /// Ids that end the answer; they are not part of it.
    pub eos: Vec<u32>,
    /// Prompt tokens per step; default: the largest step. It cannot change the answer.
    pub prefill_chunk: Option<usize>,
}

/// What happens while an answer is made. Breaking on any of them ends it with [`Finish::Stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// So many prompt tokens of so many have been run; a chance to stop a long prefill.
    Prefilled {
        /// Tokens run.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// The next token of the answer.
    Token(u32),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-sequence token, or the caller asked to stop.
    Stop,
    /// `max_tokens` or the context was reached.
    Length,
}

/// An answer and how long it took.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Tokens of the answer.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time for all prompt tokens.
    pub prefill: Duration,
    /// Time from the start to the first token.
    pub first_token: Duration,
    /// Time for the decode steps, the first token not included.
    pub decode: Duration,
}

/// Answers `prompt`, telling `on_event` what happens as it happens. A fresh sequence is used and released.
///
/// # Errors
/// Sampling parameters out of range, a prompt that leaves no room for one token, and those of
/// [`Engine::step`].
pub fn generate(
    engine: &mut Engine,
    prompt: &[u32],
    params: &GenerateParams,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Result<Generation, EngineError> {
    params.sampling.validate(engine.spec().vocab)?;
    let context = engine.selected().context;
    if prompt.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    if prompt.len() > context {
        return Err(EngineError::ContextFull { needed: prompt.len(), context });
    }
    let sequence = engine.new_sequence()?;
    let result = answer(engine, sequence, prompt, params, on_event);
    engine.release(sequence);
    result
}

fn answer(
    engine: &mut Engine,
    sequence: SequenceId,
    prompt: &[u32],
    params: &GenerateParams,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Result<Generation, EngineError> {
    let start = Instant::now();
    let mut sampler = Sampler::new(params.sampling.clone(), prompt);
    let chunk = params.prefill_chunk.unwrap_or(usize::MAX).clamp(1, engine.step_tokens());
    let total = prompt.len();
    let (mut done, mut next, mut stopped) = (0, None, false);
    for tokens in prompt.chunks(chunk) {
        done += tokens.len();
        let wanted = if done == total && params.max_tokens > 0 { WantLogits::Last } else { WantLogits::None };
        let mut logits = engine.step(&[TokenRun { sequence, tokens, logits: wanted }])?;
        stopped = on_event(Event::Prefilled { done, total }).is_break();
        if stopped {
            break;
        }
        if wanted == WantLogits::Last {
            next = Some(sampler.sample(logits.row_mut(0))?);
        }
    }
    let prefill = start.elapsed();
    let mut generation = Generation {
        ids: Vec::new(),
        finish: if stopped { Finish::Stop } else { Finish::Length },
        prompt_tokens: prompt.len(),
        prefill,
        first_token: prefill,
        decode: Duration::ZERO,
    };
    // A context of n positions holds n - 1 fed tokens before the last sampled one.
    while let Some(token) = next {
        if params.eos.contains(&token) {
            generation.finish = Finish::Stop;
            break;
        }
        generation.ids.push(token);
        if on_event(Event::Token(token)).is_break() {
            generation.finish = Finish::Stop;
            break;
        }
        let full = engine.position(sequence)? == engine.selected().context;
        if generation.ids.len() >= params.max_tokens || full {
            break;
        }
        let run = TokenRun { sequence, tokens: &[token], logits: WantLogits::Last };
        next = Some(sampler.sample(engine.step(&[run])?.row_mut(0))?);
    }
    generation.decode = start.elapsed() - prefill;
    Ok(generation)
}
