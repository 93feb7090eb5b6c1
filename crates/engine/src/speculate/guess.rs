//! The guesses of one answer.

use std::time::{Duration, Instant};

use super::{DraftSource, Pace, Speculated, Speculation, ngram};
use crate::engine::Engine;
use crate::{EngineError, SequenceId};

/// Makes guesses for one sequence, and counts.
pub(crate) struct Guesser {
    speculation: Speculation,
    pace: Pace,
    drafts: Vec<u32>,
    begun: Instant,
    drafting: Duration,
    stats: Speculated,
}

impl Guesser {
    /// With what is known of earlier answers.
    pub fn new(engine: &Engine, pace: Pace) -> Guesser {
        let speculation = engine.selected().speculation;
        let drafts = Vec::with_capacity(speculation.most);
        let (begun, drafting, stats) = (Instant::now(), Duration::ZERO, Speculated::default());
        Guesser { speculation, pace, drafts, begun, drafting, stats }
    }

    /// Guesses at most `room` tokens that follow `next`, the token after `tokens`, the sequence so far.
    ///
    /// # Errors
    /// As [`Engine::draft`].
    pub fn guess(
        &mut self,
        engine: &mut Engine,
        sequence: SequenceId,
        tokens: &[u32],
        next: u32,
        room: usize,
    ) -> Result<&[u32], EngineError> {
        self.begun = Instant::now();
        self.drafts.clear();
        let Speculation { most, source, adaptive } = self.speculation;
        let most = most.min(room);
        let count = if adaptive { self.pace.choose(most) } else { most };
        if count > 0 {
            match source {
                DraftSource::Best => engine.draft(sequence, next, count, &mut self.drafts)?,
                DraftSource::Text => ngram::guess(tokens, next, count, &mut self.drafts),
            }
            self.drafting = self.begun.elapsed();
        }
        Ok(&self.drafts)
    }

    /// So many of the last guesses were right; `timed` says that the time since they were begun tells what they cost. Returns what
    /// is to be added to any sums.
    pub fn verified(&mut self, accepted: usize, timed: bool) -> Speculated {
        let drafted = self.drafts.len();
        if self.speculation.most > 0 {
            self.pace.observe(drafted, accepted, timed.then(|| self.begun.elapsed()));
        }
        let drafting = std::mem::take(&mut self.drafting);
        let one = Speculated { steps: 1, drafted, accepted, drafting };
        self.stats.add(one);
        one
    }

    /// What was guessed, and what is now known.
    pub fn finish(self) -> (Speculated, Pace) {
        (self.stats, self.pace)
    }
}
