//! One prompt to one answer: chunked prefill, then decode until something says stop. A [`Session`] goes on from where
//! the last answer ended.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::EngineError;
use crate::engine::Engine;
use crate::reader::{Reader, Reuse};
use crate::sampler::{Sampler, SamplingParams};
use crate::speculate::{Guesser, Pace, Speculated};
use crate::step::{TokenRun, WantLogits};

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
    /// What was guessed in these steps.
    pub speculated: Speculated,
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
    reader: Option<Reader>,
    /// What earlier answers taught about guesses.
    pace: Pace,
}

impl Session {
    /// As [`generate`], but if `prompt` goes on from the tokens that the sequence holds (the earlier prompts and answers),
    /// only what is new is run. Otherwise the sequence is replaced, for recurrent states cannot be rewound: by one that begins
    /// with what the engine's prefix cache holds of the prompt, if it has one. Which of it happens cannot be seen in the
    /// answer.
    ///
    /// # Errors
    /// As [`generate`]. After an error the sequence is gone.
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
        if !(prompt.len() > self.tokens().len() && prompt.starts_with(self.tokens())) {
            self.clear(engine);
        }
        let reader = match &mut self.reader {
            Some(reader) => {
                reader.aim(engine, prompt.len(), 0, &[]);
                reader
            }
            None => self.reader.insert(Reader::open(engine, prompt, &Reuse::default(), false)?),
        };
        let answered = answer(engine, reader, &mut self.pace, prompt, params, on_event);
        if answered.is_err() {
            reader.spoil();
            self.clear(engine);
        }
        answered
    }

    /// Tokens that the sequence holds.
    pub fn tokens(&self) -> &[u32] {
        self.reader.as_ref().map_or(&[], Reader::tokens)
    }

    /// Writes what the sequence holds to a file that appears whole or not at all, together with what the caller wants to find
    /// again; gives its bytes.
    ///
    /// # Errors
    /// [`EngineError::StateFile`] from the system.
    pub fn save(&self, engine: &Engine, path: &Path, caller: Value) -> Result<u64, EngineError> {
        let sequence = self.reader.as_ref().map(|reader| reader.sequence);
        engine.save_sequence(path, sequence, self.tokens(), caller)
    }

    /// The session that a file holds, and what its caller kept. It goes on exactly where it was, with any page size.
    ///
    /// # Errors
    /// [`EngineError::StateFile`] if the file is damaged, or was made by another model, with other KV types or by another
    /// arithmetic; more tokens than the context holds, and no free sequence.
    pub fn load(engine: &mut Engine, path: &Path) -> Result<(Session, Value), EngineError> {
        let (sequence, tokens, caller) = engine.load_sequence(path)?;
        let reader = sequence.map(|sequence| Reader::resume(sequence, tokens));
        Ok((Session { reader, ..Session::default() }, caller))
    }

    /// Forgets everything and releases the sequence.
    pub fn clear(&mut self, engine: &mut Engine) {
        if let Some(reader) = self.reader.take() {
            reader.close(engine);
        }
    }
}

/// Reads what is new in `prompt`, and answers.
fn answer(
    engine: &mut Engine,
    reader: &mut Reader,
    pace: &mut Pace,
    prompt: &[u32],
    params: &GenerateParams,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Result<Generation, EngineError> {
    let start = Instant::now();
    let mut sampler = Sampler::new(params.sampling.clone(), prompt);
    let (kept, total) = (reader.tokens().len(), prompt.len());
    let (mut next, mut stopped) = (None, false);
    let most = params.prefill_chunk.unwrap_or(usize::MAX).clamp(1, engine.step_tokens());
    while !stopped && reader.tokens().len() < total {
        let begun = reader.tokens().len();
        let done = total.min(reader.pause()).min(begun + most);
        let last = done == total && params.max_tokens > 0;
        let logits = if last { WantLogits::Last } else { WantLogits::None };
        let run = TokenRun { sequence: reader.sequence, tokens: &prompt[begun..done], logits };
        let mut logits = engine.step(&[run])?;
        reader.ran(&prompt[begun..done]);
        stopped = on_event(Event::Prefilled { done, total }).is_break();
        if last && !stopped {
            next = Some(sampler.sample(logits.row_mut(0))?);
        }
        reader.settle(engine)?;
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
        speculated: Speculated::default(),
    };
    if let Some(first) = next {
        let mut draw = Draw { sampler, guesser: Guesser::new(engine, std::mem::take(pace)) };
        let decoded = decode(engine, reader, &mut draw, first, params, &mut generation, on_event);
        (generation.speculated, *pace) = draw.guesser.finish();
        decoded?;
    }
    generation.decode = start.elapsed() - prefill;
    Ok(generation)
}

/// Who draws tokens, and who guesses them.
struct Draw {
    sampler: Sampler,
    guesser: Guesser,
}

/// Runs the answer's tokens from the first on, with guesses behind each where guessing is on.
fn decode(
    engine: &mut Engine,
    reader: &mut Reader,
    Draw { sampler, guesser }: &mut Draw,
    first: u32,
    params: &GenerateParams,
    generation: &mut Generation,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Result<(), EngineError> {
    let context = engine.selected().context;
    let mut token = first;
    let mut goes_on = generation.take(first, params, on_event).is_continue();
    let mut run = Vec::new();
    // A context of n positions holds n - 1 fed tokens before the last sampled one.
    while goes_on && reader.tokens().len() < context {
        let room = (params.max_tokens - generation.ids.len() - 1)
            .min(context - reader.tokens().len() - 1)
            .min(reader.room(engine) - 1);
        run.clear();
        run.push(token);
        run.extend_from_slice(guesser.guess(engine, reader.sequence, reader.tokens(), token, room)?);
        let logits = WantLogits::Verify(run.len() - 1);
        let mut logits = engine.step(&[TokenRun { sequence: reader.sequence, tokens: &run, logits }])?;
        let mut accepted = 0;
        loop {
            token = sampler.sample(logits.row_mut(accepted))?;
            goes_on = generation.take(token, params, on_event).is_continue();
            if !goes_on || run.get(accepted + 1) != Some(&token) {
                break;
            }
            accepted += 1;
        }
        engine.accept(reader.sequence, accepted)?;
        guesser.verified(accepted, true);
        reader.ran(&run[..=accepted]);
        reader.settle(engine)?;
    }
    Ok(())
}

impl Generation {
    /// Takes the next token of the answer, and says whether it goes on behind it.
    fn take(
        &mut self,
        token: u32,
        params: &GenerateParams,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if params.eos.contains(&token) {
            self.finish = Finish::Stop;
            return ControlFlow::Break(());
        }
        self.ids.push(token);
        if on_event(Event::Token(token)).is_break() {
            self.finish = Finish::Stop;
            return ControlFlow::Break(());
        }
        if self.ids.len() >= params.max_tokens { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
