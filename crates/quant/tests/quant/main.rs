//! The number formats: against formulas, against other implementations, and over random values.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod affine;
mod float;
mod fp4;
mod ggml;
mod mlx;
mod pack;
mod scales;
mod search;
mod upstream;
