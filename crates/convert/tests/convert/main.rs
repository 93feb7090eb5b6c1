//! Checkpoints of every kind to bundles, and what is refused on the way.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod bad_sources;
mod common;
mod compat;
mod conventions;
mod fixtures;
mod gguf_sources;
mod hostile_gguf;
mod hostile_safetensors;
mod mlx;
mod pieces;
mod profiles;
mod refusals;
mod side_files;
mod storage;
