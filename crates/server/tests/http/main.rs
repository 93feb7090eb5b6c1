//! The real router over real connections: with a scripted engine for what becomes of an answer's text, with a toy model for
//! everything else.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod answers;
mod bad_input;
mod common;
mod fields;
mod heap;
mod kept;
mod operations;
mod rough;
mod scripted;
mod stress;
mod structured;
