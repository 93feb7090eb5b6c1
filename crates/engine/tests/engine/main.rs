//! Whole models through the engine: against independent implementations, against themselves, and at every limit.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod common;
mod exact;
mod export;
mod golden;
mod kv_cache;
mod limits;
mod matrix;
mod methods;
mod prefix;
mod quantized;
mod resident;
mod scheduler;
mod scheduler_gaps;
mod speculation;
mod state_files;
mod stream;
mod synthetic;
