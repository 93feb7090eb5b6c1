//! The definition of every operation, in plain Rust. `BASERT_ISA=reference` runs it; every vectorised kernel must give
//! its bits.
//!
//! A reference is a function over one piece of work: whoever splits an operation into pieces (rows, heads, columns)
//! cannot change a result, because no function here adds across pieces. Functions that the vectorised kernels call for
//! their tails are `#[inline(always)]`, so that they are compiled for the caller's instruction set.

pub(crate) mod affine;
pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod elementwise;
pub(crate) mod float;
pub(crate) mod kv;
pub(crate) mod math;
pub(crate) mod norm;
pub(crate) mod quantize;
pub(crate) mod rope;
pub(crate) mod rotate;
pub(crate) mod sum;
