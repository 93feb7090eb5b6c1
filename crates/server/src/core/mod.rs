//! The request core, which knows no dialect: what an answer is made of ([`Event`]), how tokens become that ([`Answer`]), and
//! how the answers of one request are followed together ([`Run`]). Streams hand events on; whole answers are
//! [folded](Folded) from the same events.

mod answer;
mod calls;
mod constraint;
mod fold;
mod grammar;
mod run;

use basert_engine::Token;

pub(crate) use answer::{Answer, Reading};
pub(crate) use constraint::{Budget, Constraint};
pub(crate) use fold::Folded;
pub use grammar::Grammars;
pub(crate) use grammar::{Grammar, Vocabulary, any_object, json_part};
pub(crate) use run::{Job, Run, Usage};

/// A token with its log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scored {
    /// The token.
    pub id: u32,
    /// `ln p`; a prompt's first token has none.
    pub logprob: Option<f32>,
    /// The likeliest tokens, likeliest first.
    pub top: Vec<(u32, f32)>,
}

impl From<Token> for Scored {
    fn from(Token { id, logprob, top }: Token) -> Scored {
        Scored { id, logprob, top }
    }
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    /// What the model tells itself.
    Reasoning(String),
    /// What it tells the reader.
    Content(String),
    /// A call of a function begins.
    CallOpened {
        /// Counted from 0 within the answer.
        index: usize,
        /// A name for this call.
        id: String,
        /// The function.
        name: String,
    },
    /// More of the JSON of a call's arguments.
    CallArguments {
        /// Which call.
        index: usize,
        /// The next characters.
        text: String,
    },
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model ended it, or a stop string did.
    Stop,
    /// It has reached its number of tokens, or the context's.
    Length,
    /// It ended with complete calls.
    ToolCalls,
}

impl Reason {
    /// OpenAI's `finish_reason`.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Stop => "stop",
            Reason::Length => "length",
            Reason::ToolCalls => "tool_calls",
        }
    }
}

/// What happens to an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// So many tokens of the prompt have been run.
    Progress {
        /// Tokens run.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// The answer goes on. The tokens are those since the last piece, which need not be all in this one.
    Delta {
        /// The piece.
        part: Part,
        /// Empty unless asked for.
        scores: Vec<Scored>,
    },
    /// The answer is complete.
    Finished {
        /// Why.
        reason: Reason,
        /// Tokens that no piece has brought.
        scores: Vec<Scored>,
        /// What the reader should know of this answer.
        warnings: Vec<String>,
    },
}
