//! Tokenizers, chat templates and tool calls: against golden files, and over random texts.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod bpe;
mod chat;
mod common;
mod gguf;
mod golden;
mod spm;
mod stop;
mod tools;
mod tools_check;
mod tools_dialects;
mod tools_streaming;
