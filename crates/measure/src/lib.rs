//! Numbers about models: perplexity, divergence between two models, logit dumps, the quality record of a conversion.
//! Engine in, numbers out.
//!
//! Everything runs in one pass over the token ids and keeps one chunk of logits at a time, so memory does not
//! grow with the text. Nothing here prints, parses arguments or knows a file format but the dump's own.

mod activations;
mod divergence;
mod dump;
mod error;
mod perplexity;
mod quality;
mod source;
mod stats;
mod walk;

pub use activations::activations;
pub use divergence::{Divergence, compare};
pub use dump::LogitsWriter;
pub use error::MeasureError;
pub use perplexity::{Perplexity, perplexity};
pub use quality::{Check, QualityRecord, Reference, Replay, TEXT, Trace, replay};
pub use stats::Estimate;
pub use walk::{Plan, Progress};
