//! HTTP: an OpenAI-compatible endpoint over the scheduler.
//!
//! - [`Worker`]: the thread that owns an engine; [`Backend`] is what it runs.
//! - `core`: requests without a dialect: tokens to typed events, whole answers folded from the same events.
//! - `api`: OpenAI's dialect, both ways; [`api::fields`] says what becomes of every field.
//! - `http`: paths, guards, server-sent events, connections. [`run`] serves until a signal.
//!
//! Requests never touch files; names in them are only compared. Nothing of prompts or answers is logged.

pub mod api;
mod app;
mod backend;
mod config;
mod core;
mod error;
mod http;
mod log;
mod metrics;
mod model;
mod page;
mod random;
mod serve;
mod slots;
mod worker;

pub use app::{App, Hosted};
pub use backend::{Backend, Facts, Loaded, Loader};
pub use config::{ApiKey, Config};
pub use core::Grammars;
pub use error::ApiError;
pub use metrics::Metrics;
pub use model::Model;
pub use serve::{Ended, ServeError, run, serve_on};
pub use slots::{Slot, Slots};
pub use worker::Worker;
