//! What can be wrong with a GGUF file.

use std::io;
use std::path::PathBuf;

use basert_quant::QuantError;

use super::metadata::MAX_VALUES;
use crate::safetensors::shown;

/// A file that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct GgufError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: GgufFault,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufFault {
    /// The operating system refused.
    #[error("cannot be read: {0}")]
    Io(#[source] io::Error),
    /// Another kind of file.
    #[error("does not start with `GGUF`, so this is not a GGUF file")]
    Magic,
    /// A byte-swapped file.
    #[error("is a big-endian GGUF file; only little-endian ones are supported")]
    BigEndian,
    /// A version this reader does not know.
    #[error("is GGUF version {0}; only versions 2 and 3 are supported")]
    Version(u32),
    /// One of several files whose name does not lead to the others.
    #[error(
        "is one of {count} parts, but not called `<name>-<number>-of-{count:05}.gguf` with its own number"
    )]
    PartName {
        /// Parts that it says there are.
        count: u64,
    },
    /// A part that is not there.
    #[error("is missing; the model has {count} parts")]
    MissingPart {
        /// Parts that there should be.
        count: u64,
    },
    /// A file under the name of a part that it is not.
    #[error("is not part {number} of {count}, as its name says")]
    WrongPart {
        /// Number in the name.
        number: u64,
        /// Parts there are.
        count: u64,
    },
    /// Parts that do not have as many tensors together as one says.
    #[error("says that all parts have {expected} tensors together, but they have {found}")]
    PartTensors {
        /// What the part says.
        expected: u64,
        /// What there is.
        found: usize,
    },
    /// A field that runs past the end of the file.
    #[error("{what} at byte {position} needs {needed} bytes, but only {remaining} remain")]
    Truncated {
        /// The field.
        what: &'static str,
        /// Its position.
        position: usize,
        /// Bytes it takes.
        needed: u64,
        /// Bytes there are.
        remaining: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error("claims {count} {what}, more than the {remaining} bytes that remain can hold")]
    Count {
        /// What is counted.
        what: &'static str,
        /// The claim.
        count: u64,
        /// Bytes there are.
        remaining: u64,
    },
    /// A string that is not UTF-8.
    #[error("{what} at byte {position} is not UTF-8")]
    NotUtf8 {
        /// The field.
        what: &'static str,
        /// Position of its text.
        position: usize,
    },
    /// Something wrong with the value of a metadata key.
    #[error("metadata key {}: {cause}", shown(.key))]
    Key {
        /// The key.
        key: String,
        /// What is wrong.
        cause: Box<GgufFault>,
    },
    /// A metadata key without a name.
    #[error("a metadata key at byte {0} is empty")]
    EmptyKey(usize),
    /// A metadata key that occurs twice.
    #[error("metadata key {} occurs twice", shown(.0))]
    DuplicateKey(String),
    /// A value of a type the format does not define.
    #[error("value type {0} does not exist")]
    ValueType(u32),
    /// An array in an array.
    #[error("arrays of arrays are not allowed")]
    NestedArray,
    /// More array elements than any model has.
    #[error("the arrays of the metadata have more than {MAX_VALUES} elements")]
    TooManyValues,
    /// A bool that is neither 0 nor 1.
    #[error("a bool is {0}, neither 0 nor 1")]
    Bool(u8),
    /// NaN or infinity.
    #[error("a number is {0}, which is not finite")]
    NonFinite(f64),
    /// A known key of another type than it must have.
    #[error("metadata key {} is not {expected}", shown(.key))]
    KeyType {
        /// The key.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
    /// An alignment that is not a power of two.
    #[error("general.alignment is {0}, which is not a power of two")]
    Alignment(u64),
    /// A tensor without a name.
    #[error("a tensor name at byte {0} is empty")]
    EmptyTensorName(usize),
    /// A tensor that occurs twice.
    #[error("tensor {} occurs twice", shown(.0))]
    DuplicateTensor(String),
    /// A number of dimensions other than 1 to 4.
    #[error("tensor {} has {dimensions} dimensions; 1 to 4 are allowed", shown(.tensor))]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Its `n_dims`.
        dimensions: u32,
    },
    /// A dimension of zero.
    #[error("tensor {} has a dimension of zero", shown(.tensor))]
    ZeroDimension {
        /// The tensor.
        tensor: String,
    },
    /// A shape whose size does not fit 64 bits.
    #[error("tensor {}: the shape's size overflows", shown(.tensor))]
    Overflow {
        /// The tensor.
        tensor: String,
    },
    /// An element type that does not exist.
    #[error("tensor {}: {cause}", shown(.tensor))]
    TensorType {
        /// The tensor.
        tensor: String,
        /// Which type, and whether it once existed.
        cause: QuantError,
    },
    /// Rows that are not whole blocks.
    #[error("tensor {}: rows of {row} elements are not whole {ty} blocks of {block}", shown(.tensor))]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        row: u64,
        /// The element type.
        ty: &'static str,
        /// Elements of a block.
        block: u64,
    },
    /// An offset that is not a multiple of the alignment.
    #[error("tensor {}: offset {offset} is not a multiple of {alignment}", shown(.tensor))]
    Unaligned {
        /// The tensor.
        tensor: String,
        /// From the start of the data.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Data beyond the end of the file.
    #[error(
        "tensor {} needs {bytes} bytes from offset {offset}, but there are {available} bytes of data",
        shown(.tensor)
    )]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// From the start of the data.
        offset: u64,
        /// Bytes of shape and type.
        bytes: u64,
        /// Bytes of data in the file.
        available: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors {} and {} overlap", shown(.first), shown(.second))]
    Overlap {
        /// The tensor that begins first.
        first: String,
        /// The one that begins inside it.
        second: String,
    },
}
