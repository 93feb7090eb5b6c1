//! What can go wrong between bytes and numbers.

use crate::{FloatDtype, ScaleDtype};

/// Why a payload could not be sized, decoded or encoded. Callers add the file and the tensor's name.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// A spelling that the `.base` container does not define.
    #[error("unknown {kind} `{name}`; known are {known}")]
    UnknownName {
        /// What the name was meant to be, e.g. `dtype`.
        kind: &'static str,
        /// The offending spelling.
        name: String,
        /// The accepted spellings, comma separated.
        known: String,
    },
    /// A code width other than 2, 3, 4, 5, 6 or 8 bits.
    #[error("codes of {0} bits do not exist; widths are 2, 3, 4, 5, 6 and 8")]
    Bits(u32),
    /// A group size whose codes do not end on a byte.
    #[error("group size {0} is not a positive multiple of 8")]
    Group(usize),
    /// An element count that does not divide into whole groups or blocks.
    #[error("{elements} elements do not divide into {encoding} groups of {unit}")]
    Elements {
        /// Elements of the tensor.
        elements: u64,
        /// The encoding, e.g. `base_q4`.
        encoding: &'static str,
        /// Elements of one group or block.
        unit: u64,
    },
    /// The payload's size does not fit 64 bits (or this machine's address space).
    #[error("{elements} elements of {encoding} need more bytes than can be addressed")]
    TooLarge {
        /// Elements of the tensor.
        elements: u64,
        /// The encoding, e.g. `base_q4`.
        encoding: &'static str,
    },
    /// A buffer of the wrong length.
    #[error("{what} should be {expected} long, not {found}")]
    Length {
        /// Which buffer, and its unit.
        what: &'static str,
        /// The length that the other arguments imply.
        expected: u64,
        /// The length given.
        found: u64,
    },
    /// A range that is not inside the tensor.
    #[error("elements {first}..{first}+{count} are not inside a tensor of {elements} elements")]
    Range {
        /// First element asked for.
        first: usize,
        /// Number of elements asked for.
        count: usize,
        /// Elements of the tensor.
        elements: usize,
    },
    /// NaN or infinity where a quantiser needs a number.
    #[error("element {index} is {value}; only finite values can be encoded")]
    NonFinite {
        /// Flat index of the element.
        index: usize,
        /// The value found.
        value: f32,
    },
    /// A finite value beyond the range of the float type it should be stored in.
    #[error("element {index} ({value:e}) is out of range for {dtype}; use bf16 or f32")]
    FloatRange {
        /// Flat index of the element.
        index: usize,
        /// The value found.
        value: f32,
        /// The float type asked for.
        dtype: FloatDtype,
    },
    /// A group whose scale or bias is beyond the range of the scale dtype.
    #[error(
        "the group from element {index} needs a scale or bias of {value:e}, out of range for {dtype} scales"
    )]
    ScaleRange {
        /// Flat index of the group's first element.
        index: usize,
        /// The scale or bias that does not fit.
        value: f32,
        /// The scale dtype asked for.
        dtype: ScaleDtype,
    },
    /// An asymmetric encoding with a scale dtype that has no sign, so that biases are lost.
    #[error("e8m0 has no sign, so it cannot hold biases; use a symmetric encoding or another scale dtype")]
    UnsignedBias,
    /// A layout that can be read but not produced.
    #[error("encoding to {0} is not supported; it is only passed through")]
    NotEncodable(&'static str),
    /// A ggml type that is not one of the super-blocks the container passes through.
    #[error("{0} is not a gguf_super type; those are Q4_K, Q5_K and Q6_K")]
    NotSuperBlock(&'static str),
    /// A ggml type number that was never assigned, or was withdrawn.
    #[error("ggml type {id} is {state}")]
    UnknownGgmlType {
        /// The number in the file.
        id: u32,
        /// `unknown`, or which withdrawn type it was.
        state: &'static str,
    },
    /// A ggml type that exists but has no decoder here.
    #[error("ggml type {0} is not supported yet")]
    UnsupportedGgmlType(&'static str),
}
