//! Speculative decoding: cheap guesses at the next tokens, verified together by one step of the model.
//!
//! What is guessed changes no answer: tokens are drawn from the model's own logits, in order, and a guess only counts if
//! it is what was drawn. [`DraftRows`] is what a sequence needs to forget guesses that were wrong, [`Guesser`] makes them,
//! and [`Pace`] decides how many are worth their cost.

mod guess;
mod ngram;
mod pace;
mod rows;
mod run;

use std::time::Duration;

use basert_model::ModelSpec;

pub(crate) use guess::Guesser;
pub(crate) use pace::Pace;
pub(crate) use rows::{DraftRows, DraftSizes};

/// Most tokens that are guessed at a time.
pub(crate) const MOST_DRAFTS: usize = 16;
/// The same where nobody chose.
const USUAL_DRAFTS: usize = 4;

/// Who guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// The model's multi-token prediction head; earlier text if it has none.
    Best,
    /// Earlier text: what followed the last tokens when they were there before.
    Text,
}

/// Whether and how next tokens are guessed. It never changes an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// Most tokens that are guessed at a time, up to 16; 0 guesses nothing and loads nothing for it.
    pub most: usize,
    /// Who guesses.
    pub source: DraftSource,
    /// Guess as many as pays, by the time that steps take and by how many guesses were right; otherwise always the most.
    pub adaptive: bool,
}

impl Speculation {
    /// None.
    pub const OFF: Speculation = Speculation { most: 0, source: DraftSource::Best, adaptive: false };
    /// As many as pay, from the best source.
    pub const AUTO: Speculation =
        Speculation { most: USUAL_DRAFTS, source: DraftSource::Best, adaptive: true };
    /// As many as pay, from earlier text.
    pub const TEXT: Speculation = Speculation { source: DraftSource::Text, ..Speculation::AUTO };

    /// Always so many, from the best source.
    pub fn always(most: usize) -> Speculation {
        Speculation { most, ..Speculation::OFF }
    }

    /// The same for a model as it is loaded: without a head, earlier text guesses.
    pub(crate) fn of(self, spec: &ModelSpec) -> Speculation {
        let source = if spec.draft.is_some() { DraftSource::Best } else { DraftSource::Text };
        Speculation { source, ..self }
    }

    /// What a user should know where the model's own head was asked for and text guesses; `has_layers` says whether it has
    /// draft layers nevertheless.
    pub fn without_head(self, spec: &ModelSpec, has_layers: bool) -> Option<String> {
        let why = if has_layers {
            "the model's several draft layers are a chain that is not run"
        } else {
            "the model has no prediction head (mtp); one is kept where the checkpoint that is converted has mtp.* tensors"
        };
        let said =
            || format!("next tokens are guessed from earlier text (as ngram does, or choose off): {why}");
        (self.uses_head() && spec.draft.is_none()).then(said)
    }

    /// Whether the model's own head would be used.
    pub(crate) fn uses_head(self) -> bool {
        self.most > 0 && self.source == DraftSource::Best
    }
}

impl Default for Speculation {
    fn default() -> Self {
        Speculation::OFF
    }
}

/// What was guessed for an answer, and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speculated {
    /// Decode steps of the model.
    pub steps: usize,
    /// Tokens that were guessed.
    pub drafted: usize,
    /// Guesses that were right.
    pub accepted: usize,
    /// Time for guessing. It is part of the time of decoding.
    pub drafting: Duration,
}

impl Speculated {
    /// Tokens per decode step: 1 without guesses.
    pub fn tokens_per_step(&self) -> f64 {
        (self.steps + self.accepted) as f64 / self.steps.max(1) as f64
    }

    /// Adds what was guessed elsewhere.
    pub(crate) fn add(&mut self, other: Speculated) {
        self.steps += other.steps;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.drafting += other.drafting;
    }
}
