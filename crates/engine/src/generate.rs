//! One prompt to one answer: chunked prefill, then decode until something says stop. A [`Session`] goes on from where
//! the last answer ended.

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
    /// Those of them that the sequence held already.
    pub kept_tokens: usize,
    /// Time for the prompt tokens that were run.
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
    let mut session = Session::default();
    let result = session.generate(engine, prompt, params, on_event);
    session.clear(engine);
    result
}

/// A sequence that lives from one answer to the next, and the tokens that it holds.
///
/// It belongs to the engine of its first answer, and occupies one of its sequences until [`clear`](Self::clear).
#[derive(Debug, Default)]
pub struct Session {
    sequence: Option<SequenceId>,
    /// What the sequence has run, in order.
    tokens: Vec<u32>,
}

impl Session {
    /// As [`generate`], but if `prompt` goes on from the tokens that the sequence holds (the earlier prompts and answers),
    /// only what is new is run. Otherwise the sequence is replaced by a fresh one: recurrent states cannot be rewound.
    /// Which of the two happens cannot be seen in the answer.
    ///
    /// # Errors
    /// As [`generate`]. What was run before the error stays in the sequence.
    pub fn generate(
        &mut self,
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
        // The last token has to be run again where nothing is new: its logits are gone.
        if !(prompt.len() > self.tokens.len() && prompt.starts_with(&self.tokens)) {
            self.clear(engine);
        }
        let sequence = match self.sequence {
            Some(sequence) => sequence,
            None => *self.sequence.insert(engine.new_sequence()?),
        };
        self.answer(engine, sequence, prompt, params, on_event)
    }

    /// Tokens that the sequence holds.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Forgets everything and releases the sequence.
    pub fn clear(&mut self, engine: &mut Engine) {
        self.tokens.clear();
        if let Some(sequence) = self.sequence.take() {
            engine.release(sequence);
        }
    }

    fn answer(
        &mut self,
        engine: &mut Engine,
        sequence: SequenceId,
        prompt: &[u32],
        params: &GenerateParams,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        let start = Instant::now();
        let mut sampler = Sampler::new(params.sampling.clone(), prompt);
        let chunk = params.prefill_chunk.unwrap_or(usize::MAX).clamp(1, engine.step_tokens());
        let (kept, total) = (self.tokens.len(), prompt.len());
        let (mut next, mut stopped) = (None, false);
        for tokens in prompt[kept..].chunks(chunk) {
            let done = self.tokens.len() + tokens.len();
            let last = done == total && params.max_tokens > 0;
            let logits = if last { WantLogits::Last } else { WantLogits::None };
            let mut logits = engine.step(&[TokenRun { sequence, tokens, logits }])?;
            self.tokens.extend_from_slice(tokens);
            stopped = on_event(Event::Prefilled { done, total }).is_break();
            if stopped {
                break;
            }
            if last {
                next = Some(sampler.sample(logits.row_mut(0))?);
            }
        }
        let prefill = start.elapsed();
        let mut generation = Generation {
            ids: Vec::new(),
            finish: if stopped { Finish::Stop } else { Finish::Length },
            prompt_tokens: total,
            kept_tokens: kept,
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
            let full = self.tokens.len() == engine.selected().context;
            if generation.ids.len() >= params.max_tokens || full {
                break;
            }
            let run = TokenRun { sequence, tokens: &[token], logits: WantLogits::Last };
            let mut logits = engine.step(&[run])?;
            self.tokens.push(token);
            next = Some(sampler.sample(logits.row_mut(0))?);
        }
        generation.decode = start.elapsed() - prefill;
        Ok(generation)
    }
}
