//! Text in, token ids out, and back.
//!
//! - [`Tokenizer`]: Hugging Face `tokenizer.json`, or a GGUF's vocabulary rebuilt as one ([`gguf`]); [`DecodeStream`] for
//!   text that arrives token by token.
//! - [`ChatTemplate`]: a model's Jinja template over a conversation, rendered as transformers renders it.
//! - [`ThinkSplitter`]: the thinking part of a streamed answer, apart from the answer itself.
//! - [`StopMatcher`]: stop strings in streamed text.
//! - [`tools`]: tool calls in generated text, and their judgement by the declared schemas.
//!
//! No tensors, no files, no network: callers hand in JSON.

mod chat;
mod error;
pub mod gguf;
mod stop;
mod thinking;
mod tokenizer;
pub mod tools;

pub use chat::{ChatTemplate, RenderedChat};
pub use error::TextError;
pub use stop::{StopMatcher, StopStep};
pub use thinking::{Part, ThinkSplitter, opens_thinking};
pub use tokenizer::{Bound, DecodeStream, Tokenizer};
