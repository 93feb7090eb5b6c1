//! Numbers about models: speed ([`mod@bench`]), perplexity, divergence between two models, recall and other tasks, logit
//! dumps, the quality record of a conversion. Engine in, numbers out.
//!
//! Everything runs in one pass over the token ids and keeps one chunk of logits at a time, so memory does not
//! grow with the text. Tasks ([`recall`](recall()), [`choose`], [`call_tools`]) put questions to a [`Speaker`]. Nothing here
//! prints, parses arguments or knows a file format but the dump's own and that of questions.

mod activations;
pub mod bench;
mod calls;
mod choices;
mod divergence;
mod dump;
mod error;
mod footprint;
mod lines;
mod perplexity;
mod quality;
mod recall;
mod source;
mod speaker;
mod stats;
mod walk;

pub use activations::activations;
pub use calls::{CallFault, CallTask, ExpectedCall, ToolCalls, call_tools};
pub use choices::{Choices, Question, choose};
pub use divergence::{Divergence, compare};
pub use dump::LogitsWriter;
pub use error::MeasureError;
pub use footprint::Footprint;
pub use perplexity::{Perplexity, perplexity};
pub use quality::{Agreement, Check, QualityRecord, Reference, Replay, TEXT, Trace, agreement, replay};
pub use recall::{Recall, RecallCell, RecallPlan, recall};
pub use speaker::Speaker;
pub use stats::Estimate;
pub use walk::{Plan, Progress};
