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
}

impl Scheduler {
    /// A scheduler for an engine that was loaded for some sequences, and as many tokens and rows of logits in a step; with
    /// fewer of these, fewer requests run at a time.
    pub fn new(engine: Engine, limits: Limits) -> Scheduler {
        Scheduler { engine, limits, waiting: VecDeque::new(), running: Vec::new() }
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
        let context = self.engine.selected().context;
        let Scheduler { engine, running, .. } = self;
        let runs: Vec<TokenRun<'_>> = shares.iter().map(|share| running[share.0].run(share)).collect();
        let mut ended = Vec::new();
        match engine.step(&runs) {
            Ok(mut logits) => {
                let mut row = 0;
                for (index, prompt) in &shares {
                    let request = &mut running[*index];
                    let (first, samples) = (row, request.wants_logits(prompt.as_ref()));
                    row += request.logit_rows(prompt.as_ref());
                    request.score(prompt.as_ref(), &mut logits, first);
                    let row = samples.then(|| row.saturating_sub(1));
                    let mut flow = request.read(prompt.clone());
                    if let (ControlFlow::Continue(()), Some(row)) = (flow, row) {
                        flow = request.sample(logits.row_mut(row), context);
                    }
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
        self.settle(&shares);
        self.end(ended);
    }

    /// Lets what was run be kept.
    fn settle(&mut self, shares: &[Share]) {
        for (index, _) in shares {
            // Who cannot keep something reads it again.
            let _ = self.running[*index].reader.settle(&mut self.engine);
        }
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
            self.running.push(Running { request, client, reader, sampler, cached, next: None, answered: 0 });
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
        }
    }
}

impl Running {
    fn run<'a>(&'a self, (_, prompt): &Share) -> TokenRun<'a> {
        let tokens = match prompt {
            Some(range) => &self.request.prompt[range.clone()],
            None => self.next.as_slice(),
        };
        let logits = match self.logit_rows(prompt.as_ref()) {
            0 => WantLogits::None,
            1 => WantLogits::Last,
            _ => WantLogits::All,
        };
        TokenRun { sequence: self.reader.sequence, tokens, logits }
    }

    /// Whether a token is sampled after these tokens of the prompt, or after one of the answer.
    fn wants_logits(&self, prompt: Option<&Range<usize>>) -> bool {
        let is_last = prompt.is_none_or(|range| range.end == self.request.prompt.len());
        is_last && self.request.params.max_tokens > 0
    }

    /// Rows of logits that a run needs: all of a prompt that is scored, else the last or none.
    fn logit_rows(&self, prompt: Option<&Range<usize>>) -> usize {
        match (prompt, self.client.wants_prompt()) {
            (Some(range), Some(_)) => range.len(),
            _ => usize::from(self.wants_logits(prompt)),
        }
    }

    /// Tells the client of the prompt's tokens that the rows from `first` on predict, if it wants to know.
    fn score(&mut self, prompt: Option<&Range<usize>>, logits: &mut Logits<'_>, first: usize) {
        let (Some(range), Some(count)) = (prompt, self.client.wants_prompt()) else { return };
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

    /// Takes note of what was run. [`ControlFlow::Break`] if that ends the request.
    fn read(&mut self, prompt: Option<Range<usize>>) -> ControlFlow<()> {
        let Some(range) = prompt else {
            self.reader.ran(self.next.as_slice());
            return ControlFlow::Continue(());
        };
        let total = self.request.prompt.len();
        self.reader.ran(&self.request.prompt[range.clone()]);
        self.client.take(News::Prefilled { done: range.end, cached: self.cached, total })?;
        if range.end == total && self.request.params.max_tokens == 0 {
            return self.finish(Finish::Length);
        }
        ControlFlow::Continue(())
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
