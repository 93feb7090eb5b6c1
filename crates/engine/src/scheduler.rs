//! Continuous batching: requests come and go between the steps of one engine.
//!
//! A step takes one token of every running answer; what then remains of its budget goes to prompts: half of it at least to the
//! one that came first, the rest to those with the fewest tokens left. So a long prompt delays running answers by a bounded
//! amount per step, short prompts are not held up by long ones nor long ones forever by short ones, and no request waits for
//! another to end as long as there is a free sequence. Those that wait for one get it in turns, client by client.
//!
//! Nothing is ever preempted: a sequence that was opened has its pages for the whole context. A token's logits do not depend on what else is in a step, so an answer is the one that
//! [`generate`](crate::generate) would give.
//!
//! There are no threads here: whoever owns a [`Scheduler`] calls [`step`](Scheduler::step) while there is work.

mod pacing;
mod request;
mod running;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::EngineError;
use crate::engine::Engine;
use crate::reader::Reader;
use crate::speculate::{Pace, Speculated};
use crate::step::{Logits, TokenRun};
use pacing::Pacing;
pub use request::{Client, News, Request, Token};
use running::Running;

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

/// A part of a step: the request's index, and the prompt tokens that are run; `None` for a token of its answer.
type Share = (usize, Option<Range<usize>>);

/// Runs many requests on one engine.
pub struct Scheduler {
    engine: Engine,
    limits: Limits,
    waiting: VecDeque<(Request, Box<dyn Client>)>,
    /// Clients that have had a turn and wait for another one, the latest last.
    turns: Vec<String>,
    /// In the order of arrival.
    running: Vec<Running>,
    /// What earlier answers taught about guesses.
    pace: Pace,
    speculated: Speculated,
    /// How many prompt tokens a step takes beside answers, if that follows the clock.
    pacing: Option<Pacing>,
}

/// Rows of a step up to which tokens are guessed: more answers share them, and many are fast enough together.
const GUESSING_ROWS: usize = 8;

impl Scheduler {
    /// A scheduler for an engine that was loaded for some sequences, and as many tokens and rows of logits in a step; with
    /// fewer of these, fewer requests run at a time.
    pub fn new(engine: Engine, limits: Limits) -> Scheduler {
        let (waiting, running) = (VecDeque::new(), Vec::new());
        let (pace, speculated) = (Pace::default(), Speculated::default());
        Scheduler { engine, limits, waiting, turns: Vec::new(), running, pace, speculated, pacing: None }
    }

    /// The same scheduler with fewer prompt tokens in a step, where that is needed for running answers to keep their pace: as many
    /// as make a step about two and a half times as long as one of answers alone, at least 8. No bit of an answer depends on it.
    pub fn paced(self) -> Scheduler {
        Scheduler { pacing: Some(Pacing::new(self.limits.prefill_tokens.max(1))), ..self }
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
        let start = Instant::now();
        let mut ended = self.run(&shares);
        ended.extend(self.settle(&shares));
        if let Some(pacing) =
            self.pacing.as_mut().filter(|_| shares.iter().any(|(_, prompt)| prompt.is_none()))
        {
            let prompt = shares.iter().filter_map(|(_, prompt)| prompt.as_ref()).map(Range::len).sum();
            pacing.ran(prompt, start.elapsed());
        }
        ended.sort_unstable();
        ended.dedup();
        self.end(ended);
    }

    /// Runs the step. Returns the requests that end with it.
    fn run(&mut self, shares: &[Share]) -> Vec<usize> {
        let context = self.engine.selected().context;
        let Scheduler { engine, running, .. } = self;
        let runs: Vec<TokenRun<'_>> = shares.iter().map(|share| running[share.0].run(share)).collect();
        match engine.step(&runs) {
            Ok(mut logits) => deal_out(shares, running, &mut logits, context),
            Err(error) => {
                let error = Arc::new(error);
                for (index, _) in shares {
                    running[*index].reader.spoil();
                    running[*index].fail(Arc::clone(&error));
                }
                shares.iter().map(|share| share.0).collect()
            }
        }
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
                    request.fail(Arc::new(error));
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
            let Some(index) = self.next_in_line() else { return };
            let (request, client) = &self.waiting[index];
            let scored = client.wants_prompt().is_some();
            let opened = Reader::open(&mut self.engine, &request.prompt, &request.reuse, scored);
            let Ok(reader) = opened else { return };
            let Some(waiting) = self.waiting.remove(index) else { return };
            self.had_turn(&waiting.0.client);
            self.running.push(Running::new(waiting, reader, &self.engine, self.pace.clone()));
        }
    }

    /// The earliest of the waiting requests whose client has the fewest running; among such clients, whose turn was longest ago.
    fn next_in_line(&self) -> Option<usize> {
        let running =
            |client: &str| self.running.iter().filter(|other| other.request.client == client).count();
        let turn = |client: &str| self.turns.iter().position(|other| other == client);
        (0..self.waiting.len()).min_by_key(|&index| {
            let client = &self.waiting[index].0.client;
            (running(client), turn(client))
        })
    }

    /// Takes note of a client's turn, for as long as it waits for another one.
    fn had_turn(&mut self, client: &str) {
        let waits = |client: &str| self.waiting.iter().any(|(request, _)| request.client == client);
        self.turns.retain(|other| other != client && waits(other));
        if waits(client) {
            self.turns.push(client.to_owned());
        }
    }

    /// Who takes part in the next step, in the order of arrival.
    fn share_out(&self) -> Vec<Share> {
        let answers = self.running.iter().filter(|request| request.next.is_some()).count();
        let room = self.engine.step_tokens().saturating_sub(answers);
        let beside = self.pacing.map_or(self.limits.prefill_tokens.max(1), |pacing| pacing.tokens());
        let left = if answers > 0 { room.min(beside) } else { room };
        let mut prompts = self.share_among_prompts(left);
        let share = |(index, request): (usize, &Running)| match request.next {
            Some(_) => Some((index, None)),
            None => prompts.remove(&index).map(|range| (index, Some(range))),
        };
        self.running.iter().enumerate().filter_map(share).collect()
    }

    /// Which parts of prompts are run with so many tokens in all, by the requests' indices.
    fn share_among_prompts(&self, mut left: usize) -> BTreeMap<usize, Range<usize>> {
        // Every request has a row of logits; the rest is for prompts that are scored.
        let mut rows = self.engine.logit_rows().saturating_sub(self.running.len());
        let unread = self.running.iter().enumerate().filter(|(_, request)| request.next.is_none());
        let mut unread: Vec<(usize, &Running)> = unread.collect();
        let oldest = unread.first().map(|(index, _)| *index);
        let mut reserved =
            unread.first().map_or(0, |(_, request)| request.readable().len().min(left.div_ceil(2)));
        unread.sort_by_key(|(_, request)| request.unread());
        let mut shares = BTreeMap::new();
        for (index, request) in unread {
            if oldest == Some(index) {
                reserved = 0;
            }
            let Range { start, end } = request.readable();
            let mut tokens = (end - start).min(left - reserved);
            if request.client.wants_prompt().is_some() {
                tokens = tokens.min(rows + 1);
                rows -= tokens.saturating_sub(1);
            }
            if tokens > 0 {
                shares.insert(index, start..start + tokens);
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

/// Gives every request of a step the rows of logits that it asked for. Returns those that end with them.
fn deal_out(
    shares: &[Share],
    running: &mut [Running],
    logits: &mut Logits<'_>,
    context: usize,
) -> Vec<usize> {
    let (mut row, mut ended) = (0, Vec::new());
    for (index, prompt) in shares {
        let request = &mut running[*index];
        let first = row;
        row += request.logit_rows(prompt.as_ref());
        let flow = match prompt {
            Some(range) => request.read(range.clone(), logits, first..row, context),
            None => request.verify(logits, first, context),
        };
        if flow.is_break() {
            ended.push(*index);
        }
    }
    ended
}
