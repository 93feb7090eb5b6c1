//! Configurations, geometries and plans of memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod catalog;
mod footprint;
mod gguf_config;
mod header_and_plan;
mod hf_config;
