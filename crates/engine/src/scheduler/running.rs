//! A request between its admission and its end.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::Share;
use super::request::{Client, News, Request, Token};
use crate::EngineError;
use crate::engine::Engine;
use crate::generate::Finish;
use crate::reader::Reader;
use crate::sampler::Sampler;
use crate::speculate::{Guesser, Pace};
use crate::step::{Logits, TokenRun, WantLogits};

/// A request that has a sequence.
pub(super) struct Running {
    pub request: Request,
    pub client: Box<dyn Client>,
    pub reader: Reader,
    sampler: Sampler,
    /// Tokens of the prompt that were kept from earlier ones.
    cached: usize,
    /// The token that was sampled last and has not been run, once the prompt is done.
    pub next: Option<u32>,
    pub guesser: Guesser,
    /// That token and what was guessed behind it, for a step.
    pub ahead: Vec<u32>,
    /// Guesses of the step that were right.
    pub accepted: usize,
    /// Tokens of the answer.
    answered: usize,
}

impl Running {
    /// A request that goes on from what `reader` holds of its prompt.
    pub fn new(
        (request, client): (Request, Box<dyn Client>),
        reader: Reader,
        engine: &Engine,
        pace: Pace,
    ) -> Running {
        Running {
            cached: reader.tokens().len(),
            sampler: Sampler::new(request.params.sampling.clone(), &request.prompt),
            guesser: Guesser::new(engine, pace),
            ahead: Vec::with_capacity(engine.selected().speculation.most + 1),
            request,
            client,
            reader,
            next: None,
            accepted: 0,
            answered: 0,
        }
    }

    /// Tells that the request failed, which ends it whatever the client says.
    pub fn fail(&mut self, error: Arc<EngineError>) {
        let _ = self.client.take(News::Failed(error));
    }

    /// Tokens of the prompt that are not run yet.
    pub fn unread(&self) -> usize {
        self.request.prompt.len() - self.reader.tokens().len()
    }

    /// The part of the prompt that the next step may run, if it has room for all of it.
    pub fn readable(&self) -> Range<usize> {
        let start = self.reader.tokens().len();
        let most = self.request.params.prefill_chunk.unwrap_or(usize::MAX).max(1);
        let end = self.request.prompt.len().min(self.reader.pause());
        start..end.min(start.saturating_add(most))
    }

    /// What a step runs of it.
    pub fn run<'a>(&'a self, (_, prompt): &Share) -> TokenRun<'a> {
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
    pub fn logit_rows(&self, prompt: Option<&Range<usize>>) -> usize {
        match (prompt, self.client.wants_prompt()) {
            (None, _) => self.ahead.len().max(1),
            (Some(range), Some(_)) => range.len(),
            (Some(range), None) => usize::from(self.samples(range)),
        }
    }

    /// Guesses at most `room` tokens behind the next one.
    pub fn look_ahead(&mut self, engine: &mut Engine, room: usize) {
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
    pub fn verify(&mut self, logits: &mut Logits<'_>, first: usize, context: usize) -> ControlFlow<()> {
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
    pub fn read(
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
                self.fail(Arc::new(error));
                return ControlFlow::Break(());
            }
        };
        let lse = normaliser.unwrap_or_default();
        let logprob = |logit: f32| (f64::from(logit) - lse) as f32;
        let token = Token {
            id,
            logprob: unadjusted.map(|logits| logprob(logits[id as usize])),
            top: top.into_iter().map(|(id, logit)| (id, logprob(logit))).collect(),
        };
        if self.request.params.eos.contains(&id) {
            self.client.take_end(token);
            return self.finish(Finish::Stop);
        }
        self.answered += 1;
        self.next = Some(id);
        self.client.take(News::Token(token))?;
        // A context of n positions holds n - 1 run tokens before the last sampled one.
        let run = self.request.prompt.len() + self.answered - 1;
        if self.answered >= self.request.params.max_tokens || run >= context {
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
