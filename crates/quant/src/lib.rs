//! Number formats of BaseRT: grouped affine codes, FP4, plain floats and GGUF blocks, from bytes to `f32` and back.
//!
//! The crate knows bytes and numbers only: no files, no tensor names, no models. An [`Encoding`] says how one
//! tensor's payload is laid out; [`Encoding::decode`] reads any range of it and [`Encoding::encode`] writes it.
//! Layouts and arithmetic are those of the `.base` v1 container; GGUF blocks ([`ggml`]) are those of ggml.

mod affine;
mod dtype;
mod encoding;
mod error;
pub mod float;
mod fp4;
pub mod ggml;
mod mlx;
mod pack;
mod scale;
mod search;

pub use dtype::{Dtype, FloatDtype, Fp4};
pub use encoding::{Encoding, Regions};
pub use error::QuantError;
pub use ggml::GgmlType;
pub use mlx::{Mlx, MlxArrays};
pub use pack::{pack_codes, packed_len, unpack_codes};
pub use scale::ScaleDtype;
