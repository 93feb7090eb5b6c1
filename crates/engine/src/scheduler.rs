//! Continuous batching: requests come and go between the steps of one engine.
//!
//! A step takes one token of every running answer; what then remains of its budget goes to prompts, in the order of arrival.
//! So a long prompt delays running answers by a bounded amount per step, and no request waits for another to end as long as
//! there is a free sequence. A token's logits do not depend on what else is in a step, so an answer is the one that
//! [`generate`](crate::generate) would give.
//!
//! There are no threads here: whoever owns a [`Scheduler`] calls [`step`](Scheduler::step) while there is work.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::EngineError;
use crate::engine::{Engine, Logits, TokenRun, WantLogits};
use crate::generate::{Finish, GenerateParams};
use crate::reader::{Reader, Reuse};
use crate::sampler::Sampler;
use crate::speculate::{Guesser, Pace, Speculated};

/// What a request wants.
#[derive(Clone, Debug)]
pub struct Request {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// How the answer is made.
    pub params: GenerateParams,
    /// Log-probabilities with every token: of the token itself, and of so many of the likeliest.
    pub logprobs: Option<usize>,
    /// What others may share of the prompt, where the engine keeps prefixes.
    pub reuse: Reuse,
}

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The token.
    pub id: u32,
    /// `ln p` before bias, penalties, temperature and truncation, if the request asked for it.
    pub logprob: Option<f32>,
    /// The likeliest tokens with their `ln p`, likeliest first; the lower id first among equals.
    pub top: Vec<(u32, f32)>,
}

/// What a client hears of its request.
#[derive(Clone, Debug)]
pub enum News {
    /// So many tokens of the prompt have been run.
    Prefilled {
        /// Tokens run, those that were kept from earlier prompts included.
        done: usize,
        /// Tokens that were kept from earlier prompts.
        cached: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// The next token of the answer.
    Token(Token),
    /// The answer is complete. The last news.
    Finished(Finish),
    /// The request failed. The last news.
    Failed(Arc<EngineError>),
}

/// Whoever waits for an answer. Its methods are called between steps, and hold up all requests for as long as they take.
pub trait Client: Send {
    /// Takes news. [`ControlFlow::Break`] ends the request: nothing more comes.
    fn take(&mut self, news: News) -> ControlFlow<()>;

    /// Takes away the tokens that must not come next, by logits of minus infinity. Called before a token of the answer is
    /// picked; log-probabilities are those from before.
    ///
    /// # Errors
    /// What ends the request.
    fn constrain(&mut self, logits: &mut [f32]) -> Result<(), EngineError> {
        let _ = logits;
        Ok(())
    }

    /// Whether the log-probabilities of the prompt's own tokens are wanted, with so many of the likeliest. It does not change
    /// while the request lives.
    fn wants_prompt(&self) -> Option<usize> {
        None
    }

    /// Takes the prompt's next tokens, if they are [wanted](Self::wants_prompt): all but the first one, which nothing predicts.
    fn take_prompt(&mut self, tokens: Vec<Token>) {
        let _ = tokens;
    }

    /// Whether nobody waits any more. Asked before every step.
    fn is_gone(&self) -> bool {
        false
    }
}

/// How steps are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most prompt tokens of a step in which answers are running: what a running answer has to wait for. At least 1; a step
    /// without running answers takes as many as the engine can.
    pub prefill_tokens: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { prefill_tokens: 128 }
    }
}

/// A request that has a sequence.
struct Running {
    request: Request,
    client: Box<dyn Client>,
    reader: Reader,
    sampler: Sampler,
    /// Tokens of the prompt that were kept from earlier ones.
    cached: usize,
    /// The token that was sampled last and has not been run, once the prompt is done.
    next: Option<u32>,
    guesser: Guesser,
    /// That token and what was guessed behind it, for a step.
    ahead: Vec<u32>,
    /// Guesses of the step that were right.
    accepted: usize,
    /// Tokens of the answer.
    answered: usize,
}

/// A part of a step: the request's index, and the prompt tokens that are run; `None` for a token of its answer.
type Share = (usize, Option<Range<usize>>);

/// Runs many requests on one engine.
pub struct Scheduler {
    engine: Engine,
    limits: Limits,
    waiting: VecDeque<(Request, Box<dyn Client>)>,
    /// In the order of arrival.
    running: Vec<Running>,
    /// What earlier answers taught about guesses.
    pace: Pace,
    speculated: Speculated,
}

/// Rows of a step up to which tokens are guessed: more answers share them, and many are fast enough together.
const GUESSING_ROWS: usize = 8;

impl Scheduler {
    /// A scheduler for an engine that was loaded for some sequences, and as many tokens and rows of logits in a step; with
    /// fewer of these, fewer requests run at a time.
    pub fn new(engine: Engine, limits: Limits) -> Scheduler {
        let (waiting, running) = (VecDeque::new(), Vec::new());
        let (pace, speculated) = (Pace::default(), Speculated::default());
        Scheduler { engine, limits, waiting, running, pace, speculated }
    }

    /// The engine, for what it has selected.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Requests that wait for a sequence.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that have one.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// What was guessed for all answers since this was asked last.
    pub fn take_speculated(&mut self) -> Speculated {
        std::mem::take(&mut self.speculated)
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        !(self.waiting.is_empty() && self.running.is_empty())
    }

    /// Queues a request.
    ///
    /// # Errors
    /// What could never be answered: sampling parameters out of range, an empty prompt, unknown tokens, a prompt longer than
    /// the context.
    pub fn submit(&mut self, request: Request, client: Box<dyn Client>) -> Result<(), EngineError> {
        let vocab = self.engine.spec().vocab;
        request.params.sampling.validate(vocab)?;
        let (needed, context) = (request.prompt.len(), self.engine.selected().context);
        if needed == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if needed > context {
            return Err(EngineError::ContextFull { needed, context });
        }
        if let Some(&id) = request.prompt.iter().find(|&&id| id as usize >= vocab) {
            return Err(EngineError::TokenId { id, vocab });
        }
        self.waiting.push_back((request, client));
        Ok(())
    }

    /// Drops requests whose clients have gone, admits new ones, and runs one step. An error of the engine ends the requests
    /// in the step, which are told.
    pub fn step(&mut self) {
        self.drop_abandoned();
        self.admit();
        let shares = self.share_out();
        if shares.is_empty() {
            return;
        }
        self.guess(&shares);
        let context = self.engine.selected().context;
        let Scheduler { engine, running, .. } = self;
        let runs: Vec<TokenRun<'_>> = shares.iter().map(|share| running[share.0].run(share)).collect();
        let mut ended = Vec::new();
        match engine.step(&runs) {
            Ok(mut logits) => {
                let mut row = 0;
                for (index, prompt) in &shares {
                    let request = &mut running[*index];
                    let first = row;
                    row += request.logit_rows(prompt.as_ref());
                    let flow = match prompt {
                        Some(range) => request.read(range.clone(), &mut logits, first..row, context),
                        None => request.verify(&mut logits, first, context),
                    };
                    if flow.is_break() {
                        ended.push(*index);
                    }
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for &(index, _) in &shares {
                    running[index].reader.spoil();
                    // It ends either way.
                    let _ = running[index].client.take(News::Failed(Arc::clone(&error)));
                    ended.push(index);
                }
            }
        }
        ended.extend(self.settle(&shares));
        ended.sort_unstable();
        ended.dedup();
        self.end(ended);
    }

    /// Guesses what comes behind the next tokens of answers, while these are few.
    fn guess(&mut self, shares: &[Share]) {
        let Scheduler { engine, running, .. } = self;
        let rows = |share: &Share| running[share.0].logit_rows(share.1.as_ref());
        let tokens = |share: &Share| share.1.as_ref().map_or(1, Range::len);
        let used = shares.iter().fold((0, 0), |sum, share| (sum.0 + rows(share), sum.1 + tokens(share)));
        let answers = shares.iter().filter(|share| share.1.is_none()).count();
        let mut left = (engine.logit_rows() - used.0).min(engine.step_tokens() - used.1);
        for (index, _) in shares.iter().filter(|share| share.1.is_none()) {
            let request = &mut running[*index];
            let room = left.min((GUESSING_ROWS / answers).saturating_sub(1));
            request.look_ahead(engine, room);
            left -= request.ahead.len().saturating_sub(1);
        }
    }

    /// Lets what was run be kept. Returns the requests that cannot go on.
    fn settle(&mut self, shares: &[Share]) -> Vec<usize> {
        let Scheduler { engine, running, speculated, .. } = self;
        // Beside a prompt a round says nothing of guesses; beside other answers it takes their time, too, with and without.
        let timed = shares.iter().all(|(_, prompt)| prompt.is_none());
        let mut failed = Vec::new();
        for (index, prompt) in shares {
            let request = &mut running[*index];
            if prompt.is_none() && !request.reader.is_spoilt() {
                let (sequence, accepted) = (request.reader.sequence, request.accepted);
                if let Err(error) = engine.accept(sequence, accepted) {
                    request.reader.spoil();
                    // It ends either way.
                    let _ = request.client.take(News::Failed(Arc::new(error)));
                    failed.push(*index);
                }
                request.reader.ran(&request.ahead[..=accepted]);
                request.ahead.clear();
                speculated.add(request.guesser.verified(accepted, timed));
            }
            // Who cannot keep something reads it again.
            let _ = request.reader.settle(engine);
        }
        failed
    }

    fn drop_abandoned(&mut self) {
        self.waiting.retain(|(_, client)| !client.is_gone());
        let gone = self.running.iter().enumerate().filter(|(_, request)| request.client.is_gone());
        let gone = gone.map(|(index, _)| index).collect();
        self.end(gone);
    }

    /// Gives waiting requests the free sequences.
    fn admit(&mut self) {
        // Every running answer needs a token and a row of logits in every step.
        let most = self.engine.logit_rows().min(self.engine.step_tokens());
        while self.running.len() < most && !self.waiting.is_empty() {
            let Some((request, client)) = self.waiting.front() else { return };
            let scored = client.wants_prompt().is_some();
            let opened = Reader::open(&mut self.engine, &request.prompt, &request.reuse, scored);
            let Ok(reader) = opened else { return };
            let Some((request, client)) = self.waiting.pop_front() else { return };
            let cached = reader.tokens().len();
            let sampler = Sampler::new(request.params.sampling.clone(), &request.prompt);
            let guesser = Guesser::new(&self.engine, self.pace.clone());
            let ahead = Vec::with_capacity(self.engine.selected().speculation.most + 1);
            self.running.push(Running {
                request,
                client,
                reader,
                sampler,
                cached,
                next: None,
                guesser,
                ahead,
                accepted: 0,
                answered: 0,
            });
        }
    }

    /// Who takes part in the next step, in the order of arrival.
    fn share_out(&self) -> Vec<Share> {
        let answers = self.running.iter().filter(|request| request.next.is_some()).count();
        let room = self.engine.step_tokens().saturating_sub(answers);
        let mut left = if answers > 0 { room.min(self.limits.prefill_tokens.max(1)) } else { room };
        // Every request has a row of logits; the rest is for prompts that are scored.
        let mut rows = self.engine.logit_rows().saturating_sub(self.running.len());
        let mut shares = Vec::with_capacity(self.running.len());
        for (index, request) in self.running.iter().enumerate() {
            if request.next.is_some() {
                shares.push((index, None));
                continue;
            }
            let most = request.request.params.prefill_chunk.unwrap_or(usize::MAX).max(1);
            let done = request.reader.tokens().len();
            let end = request.request.prompt.len().min(request.reader.pause());
            let mut tokens = (end - done).min(left).min(most);
            if request.client.wants_prompt().is_some() {
                tokens = tokens.min(rows + 1);
                rows -= tokens.saturating_sub(1);
            }
            if tokens > 0 {
                shares.push((index, Some(done..done + tokens)));
                left -= tokens;
            }
        }
        shares
    }

    /// Removes requests and frees their sequences.
    fn end(&mut self, indices: Vec<usize>) {
        for index in indices.into_iter().rev() {
            let request = self.running.remove(index);
            request.reader.close(&mut self.engine);
            let (speculated, pace) = request.guesser.finish();
            if speculated.steps > 0 {
                self.pace = pace;
            }
        }
    }
}

impl Running {
    fn run<'a>(&'a self, (_, prompt): &Share) -> TokenRun<'a> {
        let tokens = match prompt {
            Some(range) => &self.request.prompt[range.clone()],
            None => &self.ahead[..],
        };
        let logits = match self.logit_rows(prompt.as_ref()) {
            0 => WantLogits::None,
            1 => WantLogits::Last,
            rows if prompt.is_none() => WantLogits::Verify(rows - 1),
            _ => WantLogits::All,
        };
        TokenRun { sequence: self.reader.sequence, tokens, logits }
    }

    /// Whether a token is sampled after these tokens of the prompt.
    fn samples(&self, prompt: &Range<usize>) -> bool {
        prompt.end == self.request.prompt.len() && self.request.params.max_tokens > 0
    }

    /// Rows of logits that a run needs: all of a prompt that is scored, else the last or none; of an answer one, and one for every
    /// guess.
    fn logit_rows(&self, prompt: Option<&Range<usize>>) -> usize {
        match (prompt, self.client.wants_prompt()) {
            (None, _) => self.ahead.len().max(1),
            (Some(range), Some(_)) => range.len(),
            (Some(range), None) => usize::from(self.samples(range)),
        }
    }

    /// Guesses at most `room` tokens behind the next one.
    fn look_ahead(&mut self, engine: &mut Engine, room: usize) {
        let Some(next) = self.next else { return };
        let tokens = self.reader.tokens();
        let room = room
            .min((self.request.params.max_tokens - self.answered).saturating_sub(1))
            .min((engine.selected().context - tokens.len()).saturating_sub(1))
            .min(self.reader.room(engine) - 1);
        self.ahead.clear();
        self.ahead.push(next);
        // Who cannot guess runs on without.
        if let Ok(drafts) = self.guesser.guess(engine, self.reader.sequence, tokens, next, room) {
            self.ahead.extend_from_slice(drafts);
        }
    }

    /// Draws the tokens behind the next one, as far as they were guessed and one more. [`ControlFlow::Break`] if one of them ends the
    /// request.
    fn verify(&mut self, logits: &mut Logits<'_>, first: usize, context: usize) -> ControlFlow<()> {
        self.accepted = 0;
        loop {
            self.sample(logits.row_mut(first + self.accepted), context)?;
            if self.next.as_ref() != self.ahead.get(self.accepted + 1) {
                return ControlFlow::Continue(());
            }
            self.accepted += 1;
        }
    }

    /// Tells the client of the prompt's tokens that the rows from `first` on predict, if it wants to know.
    fn score(&mut self, range: &Range<usize>, logits: &mut Logits<'_>, first: usize) {
        let Some(count) = self.client.wants_prompt() else { return };
        let next = self.request.prompt.get(range.start + 1..).unwrap_or_default();
        let tokens = next.iter().take(range.len()).zip(first..).map(|(&id, row)| {
            let row = logits.row_mut(row);
            let lse = log_sum_exp(row);
            let logprob = |logit: f32| (f64::from(logit) - lse) as f32;
            let top = likeliest(row, count).into_iter().map(|(id, logit)| (id, logprob(logit))).collect();
            Token { id, logprob: Some(logprob(row[id as usize])), top }
        });
        let tokens = tokens.collect();
        self.client.take_prompt(tokens);
    }

    /// Takes note of tokens of the prompt that were run, whose logits are `rows`, and draws the first of the answer behind the last.
    /// [`ControlFlow::Break`] if that ends the request.
    fn read(
        &mut self,
        range: Range<usize>,
        logits: &mut Logits<'_>,
        rows: Range<usize>,
        context: usize,
    ) -> ControlFlow<()> {
        self.score(&range, logits, rows.start);
        let total = self.request.prompt.len();
        self.reader.ran(&self.request.prompt[range.clone()]);
        self.client.take(News::Prefilled { done: range.end, cached: self.cached, total })?;
        if range.end == total && self.request.params.max_tokens == 0 {
            return self.finish(Finish::Length);
        }
        if self.samples(&range) {
            self.sample(logits.row_mut(rows.end - 1), context)
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Picks the next token from its logits. [`ControlFlow::Break`] if it ends the request.
    fn sample(&mut self, logits: &mut [f32], context: usize) -> ControlFlow<()> {
        let normaliser = self.request.logprobs.map(|_| log_sum_exp(logits));
        let top = self.request.logprobs.map_or(Vec::new(), |count| likeliest(logits, count));
        let unadjusted = self.request.logprobs.map(|_| logits.to_vec());
        let picked = self.client.constrain(logits).and_then(|()| self.sampler.sample(logits));
        let id = match picked {
            Ok(id) => id,
            Err(error) => {
                // It ends either way.
                let _ = self.client.take(News::Failed(Arc::new(error)));
                return ControlFlow::Break(());
            }
        };
        let params = &self.request.params;
        if params.eos.contains(&id) {
            return self.finish(Finish::Stop);
        }
        let (max_tokens, lse) = (params.max_tokens, normaliser.unwrap_or_default());
        let logprob = |logit: f32| (f64::from(logit) - lse) as f32;
        let token = Token {
            id,
            logprob: unadjusted.map(|logits| logprob(logits[id as usize])),
            top: top.into_iter().map(|(id, logit)| (id, logprob(logit))).collect(),
        };
        self.answered += 1;
        self.next = Some(id);
        self.client.take(News::Token(token))?;
        // A context of n positions holds n - 1 run tokens before the last sampled one.
        let run = self.request.prompt.len() + self.answered - 1;
        if self.answered >= max_tokens || run >= context {
            return self.finish(Finish::Length);
        }
        ControlFlow::Continue(())
    }

    fn finish(&mut self, finish: Finish) -> ControlFlow<()> {
        // It ends either way.
        let _ = self.client.take(News::Finished(finish));
        ControlFlow::Break(())
    }
}

/// `ln Σ exp(logit)`.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &logit| max.max(logit));
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    f64::from(max) + sum.ln()
}

/// The `count` largest logits with their ids, largest first, the lower id first among equals.
fn likeliest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let count = count.min(all.len());
    if count < all.len() {
        all.select_nth_unstable_by(count, order);
        all.truncate(count);
    }
    all.sort_unstable_by(order);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_the_lower_id_among_equals() {
        let logits = [1.0, 3.0, 2.0, 3.0, f32::NEG_INFINITY];
        assert_eq!(likeliest(&logits, 3), [(1, 3.0), (3, 3.0), (2, 2.0)]);
        assert_eq!(likeliest(&logits, 9).len(), 5);
        assert_eq!(likeliest(&logits, 0), []);
        assert!((log_sum_exp(&[0.0, 0.0]) - 2f64.ln()).abs() < 1e-12);
    }
}
