//! What can be wrong with a file. Every message is one sentence that names the file and, where there is one,
//! the tensor or slot and the field.

use std::io;
use std::path::{Path, PathBuf};

use basert_quant::{Dtype, QuantError, ScaleDtype};
use thiserror::Error;

use crate::{ComputeRegion, Layout, MAX_HEADER_LEN, MAX_NAME_LEN, SlotKind, VERSION};

/// A file that cannot be read or written, and why.
#[derive(Debug, Error)]
#[error("{}: {fault}", file.display())]
pub struct FormatError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub fault: Box<Fault>,
}

impl FormatError {
    pub(crate) fn new(file: &Path, fault: Fault) -> FormatError {
        FormatError { file: file.to_owned(), fault: Box::new(fault) }
    }
}

/// What is wrong with a file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The operating system refused.
    #[error("cannot {action}: {cause}")]
    Io {
        /// What was being done, e.g. `open it`.
        action: &'static str,
        /// The system's reason.
        cause: io::Error,
    },
    /// The output is there already and must not be replaced.
    #[error("the file exists already")]
    Exists,
    /// A file of no bytes.
    #[error("the file is empty")]
    Empty,
    /// Fewer bytes than magic, version and header length take.
    #[error("the file ends after {len} bytes, inside the 16-byte preamble; it is probably truncated")]
    PreambleTruncated {
        /// Length of the file.
        len: usize,
    },
    /// The first four bytes are not `BASE`.
    #[error("not a .base file: it starts with {found:02x?}, not with `BASE`")]
    Magic {
        /// The first bytes of the file.
        found: Vec<u8>,
    },
    /// Another container version.
    #[error("container version {found} is not supported; this program reads version {VERSION}")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// A header length beyond what is ever parsed.
    #[error("`header_len` is {len} bytes, more than the limit of {MAX_HEADER_LEN}")]
    HeaderTooLong {
        /// The length in the file, or of the header to be written.
        len: u64,
    },
    /// A header that reaches past the end of the file.
    #[error("`header_len` is {len} bytes but only {available} follow; the file is probably truncated")]
    HeaderTruncated {
        /// The length in the file.
        len: u64,
        /// Bytes after the preamble.
        available: u64,
    },
    /// The header is not UTF-8.
    #[error("the header is not UTF-8 (first bad byte at {at})")]
    HeaderUtf8 {
        /// Offset inside the header.
        at: usize,
    },
    /// The header is not the JSON object it should be.
    #[error("{}: {cause}", header_place(field, tensor.as_deref()))]
    HeaderJson {
        /// Path of the field, e.g. `tensors[3].dtype`; `.` is the whole header.
        field: String,
        /// Name of the tensor entry that the field is in, if it is in one that has a name.
        tensor: Option<String>,
        /// The parser's reason.
        cause: serde_json::Error,
    },
    /// A header field with a value that cannot be.
    #[error("header field `{field}` is {found}, but must be {expected}")]
    HeaderField {
        /// Path of the field.
        field: &'static str,
        /// The value in the header.
        found: u64,
        /// What would be acceptable.
        expected: &'static str,
    },
    /// A tensor entry that contradicts itself or the file.
    #[error("tensor `{name}`: {problem}")]
    Tensor {
        /// Name of the tensor.
        name: String,
        /// What is wrong with it.
        problem: TensorProblem,
    },
    /// A tensor name that could not be shown, or is none.
    #[error(
        "header field `{list}[{index}].name` is empty, longer than {MAX_NAME_LEN} bytes or has control characters"
    )]
    TensorName {
        /// `tensors` or `mmproj.tensors`.
        list: &'static str,
        /// Position in the list.
        index: usize,
    },
    /// Two entries of one list with the same name.
    #[error("tensor `{name}` occurs twice in `{list}`")]
    DuplicateTensor {
        /// The name.
        name: String,
        /// `tensors` or `mmproj.tensors`.
        list: &'static str,
    },
    /// Two tensors that share bytes.
    #[error("tensors `{first}` and `{second}` overlap at `offset` {at} of the blob")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
        /// Start of the second, from blob start.
        at: u64,
    },
    /// The slot section ends early, or does not end where the file does.
    #[error("the slot section is malformed: {0}")]
    SlotSection(String),
    /// A slot that must be understood and is not.
    #[error(
        "slot {index} has the unknown kind {kind} and is marked as required; a newer program may read it"
    )]
    SlotRequired {
        /// Position in the file.
        index: usize,
        /// Its kind.
        kind: SlotKind,
    },
    /// A slot whose payload cannot be handed out.
    #[error("slot {index} is compressed (flag COMPRESSED_ZSTD), which is not supported")]
    SlotCompressed {
        /// Position in the file.
        index: usize,
    },
    /// A slot that does not exist.
    #[error("there is no slot {index}; the file has {count}")]
    NoSlot {
        /// The position asked for.
        index: usize,
        /// Slots in the file.
        count: usize,
    },
    /// Data that differs from its checksum.
    #[error("{what} is damaged: its xxh64 is {found:016x}, the file says {expected:016x}")]
    Checksum {
        /// Which tensor or slot.
        what: String,
        /// The checksum in the file.
        expected: u64,
        /// The checksum of the data.
        found: u64,
    },
    /// A payload handed to the writer that is not the planned one.
    #[error("tensor `{name}` should have {expected} bytes, but {found} were given")]
    PayloadLength {
        /// Name of the tensor.
        name: String,
        /// Planned length.
        expected: u64,
        /// Length given.
        found: u64,
    },
    /// More tensors were written than planned.
    #[error("all {planned} planned tensors are written already")]
    TooManyTensors {
        /// Tensors planned.
        planned: usize,
    },
    /// The file was finished, or a slot begun, before all tensors were written.
    #[error("only {written} of {planned} planned tensors are written")]
    TooFewTensors {
        /// Tensors written.
        written: usize,
        /// Tensors planned.
        planned: usize,
    },
    /// The writer's arguments contradict each other.
    #[error("cannot be written: {0}")]
    Plan(&'static str),
    /// The final header outgrew the space reserved for it.
    #[error("the final header has {len} bytes, but only {reserved} are reserved in front of the weights")]
    HeaderOutgrown {
        /// Bytes of the final header.
        len: usize,
        /// Bytes reserved.
        reserved: u64,
    },
}

fn header_place(field: &str, tensor: Option<&str>) -> String {
    match (field, tensor) {
        (".", _) => "the header".to_owned(),
        (field, None) => format!("header field `{field}`"),
        (field, Some(name)) => format!("header field `{field}` (tensor `{name}`)"),
    }
}

/// What is wrong with one tensor entry.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum TensorProblem {
    /// More elements than can be counted.
    #[error("`shape` {0:?} has more elements than 64 bits can count")]
    Shape(Vec<u64>),
    /// A field that the dtype needs.
    #[error("`{field}` is missing, which {dtype} needs")]
    Missing {
        /// The field.
        field: &'static str,
        /// The tensor's dtype.
        dtype: Dtype,
    },
    /// A field that the encoding has no use for.
    #[error("`{field}` is given, but {encoding} has none")]
    Unexpected {
        /// The field.
        field: &'static str,
        /// The tensor's encoding.
        encoding: &'static str,
    },
    /// A field that disagrees with shape and dtype.
    #[error("`{field}` is {found}, but shape and dtype make it {expected}")]
    Value {
        /// The field.
        field: &'static str,
        /// The value in the header.
        found: u64,
        /// The value that follows from shape, dtype and group size.
        expected: u64,
    },
    /// A scale dtype that the dtype cannot have.
    #[error("`scale_dtype` is {found}, but {dtype} has {expected}")]
    ScaleDtype {
        /// The value in the header.
        found: ScaleDtype,
        /// The tensor's dtype.
        dtype: Dtype,
        /// The only possible value.
        expected: ScaleDtype,
    },
    /// A dtype for which no superblock exists.
    #[error("`layout` gguf_super needs dtype base_q4, base_q5 or base_q6, not {0}")]
    SuperDtype(Dtype),
    /// A layout whose byte order is unknown.
    #[error("`layout` {0} has no published byte order; convert the model again without it")]
    Layout(Layout),
    /// Weights rotated for activation-aware scaling without the inverse.
    #[error(
        "`awq_scale_offset` is given, but files with AWQ scales lack the inverse scales and cannot be run"
    )]
    Awq,
    /// Flag TRANSPOSED.
    #[error("`flags` has TRANSPOSED, which has no defined meaning")]
    Transposed,
    /// Flag SSM_A_MATRIX on something else than f32 in region cpu.
    #[error("`flags` has SSM_A_MATRIX, which needs dtype f32 and region cpu, not {dtype} and {region}")]
    SsmAMatrix {
        /// The tensor's dtype.
        dtype: Dtype,
        /// The tensor's region.
        region: ComputeRegion,
    },
    /// A payload that is not inside the file.
    #[error(
        "`offset` {offset} plus `length` {length} is past the end of the blob ({available} bytes); \
         the file is probably truncated"
    )]
    PastEnd {
        /// Start, from blob start.
        offset: u64,
        /// Length.
        length: u64,
        /// Bytes from blob start to the end of the file.
        available: u64,
    },
    /// An encoding to be written that the container cannot name.
    #[error("`dtype` cannot be written: the container has no name for this encoding")]
    NoDtype,
    /// Shape and encoding do not fit together.
    #[error("`shape` does not fit the encoding: {0}")]
    Encoding(#[from] QuantError),
}
