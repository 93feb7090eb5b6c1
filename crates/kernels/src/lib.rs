//! CPU arithmetic of BaseRT: a readable reference for every operation and vectorised versions that give the same bits.
//!
//! [`Cpu`] is the device object: a chosen instruction set ([`Isa`]) and a thread pool. Its methods are safe, take plain
//! slices with the shapes that their documentation states, and run in parallel inside. Weights stay where they are
//! ([`Matrix`] views a file's payload), caches live in [`Buffer`]s.
//!
//! The result is part of the definition. `reference` says in plain Rust what every operation computes, down to the
//! order of every addition; `simd` holds each algorithm once, over the virtual vector of `vector`. A token's result
//! depends neither on the instruction set, nor on the thread count, nor on what else is computed in the same call.
//!
//! The crate knows no model, no file and no token: shapes and numbers only. It is the one library crate that may use
//! `unsafe` freely, for intrinsics and for sharing output columns among threads; every block says why it holds.
#![allow(unsafe_code)]

mod buffer;
mod cpu;
mod error;
mod isa;
mod kv;
mod level;
mod matrix;
mod needs;
mod pinning;
mod pool;
mod reference;
mod router;
mod scratch;
mod shared;
mod simd;
mod threads;
mod vector;

/// Version of the rules that `reference` states. Two versions may give different bits for the same model and tokens;
/// one version never does.
pub const ARITHMETIC: &str = "1";

pub use buffer::Buffer;
pub use cpu::{Cpu, DeltaScratch, LinearJob, Product, Scratch};
pub use error::KernelError;
pub use isa::Isa;
pub use kv::{KvDtype, KvGeometry};
pub use matrix::{Matrix, Weights};
pub use needs::{AttentionShape, MatrixNeeds, ScratchNeeds};
pub use reference::delta::DeltaShape;
pub use reference::rope::Pairing;
pub use router::route;
pub use threads::default_threads;
