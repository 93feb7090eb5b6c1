//! What can be wrong with a safetensors file or an index of shards.

use std::io;
use std::path::PathBuf;

use super::parse::MAX_HEADER;

/// A file that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct SafetensorsError {
    /// The file at fault: a shard, or the index.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: SafetensorsFault,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsFault {
    /// The operating system refused.
    #[error("cannot be read: {0}")]
    Io(#[source] io::Error),
    /// Too short for the length prefix.
    #[error("is {0} bytes long, too short for a safetensors file")]
    TooShort(usize),
    /// A header length beyond the end of the file.
    #[error("claims a header of {claimed} bytes, but only {available} follow")]
    HeaderPastEnd {
        /// The length prefix.
        claimed: u64,
        /// Bytes after the prefix.
        available: u64,
    },
    /// A header length beyond the reference implementation's limit.
    #[error("claims a header of {0} bytes; at most {MAX_HEADER} are allowed")]
    HeaderTooLong(u64),
    /// A header that does not start with a brace; it may be another kind of file, or filled with spaces.
    #[error("the header does not start with `{{`, so this is not a safetensors file")]
    NotAnObject,
    /// A header that is not UTF-8.
    #[error("the header is not UTF-8 (byte {0})")]
    NotUtf8(usize),
    /// A header that is not the JSON it should be.
    #[error("the header is not valid: {0}")]
    Json(#[source] serde_json::Error),
    /// A key that occurs twice.
    #[error("the header names {} twice", shown(.0))]
    DuplicateName(String),
    /// A tensor's description that is not `{dtype, shape, data_offsets}`.
    #[error("tensor {}: {cause}", shown(.tensor))]
    Entry {
        /// The tensor.
        tensor: String,
        /// The JSON parser's reason.
        cause: serde_json::Error,
    },
    /// An element type the format does not define.
    #[error("tensor {} has the unknown dtype {}", shown(.tensor), shown(.dtype))]
    UnknownDtype {
        /// The tensor.
        tensor: String,
        /// Its dtype's spelling.
        dtype: String,
    },
    /// Offsets in the wrong order.
    #[error("tensor {} begins at {begin}, after its end at {end}", shown(.tensor))]
    Reversed {
        /// The tensor.
        tensor: String,
        /// Begin, from the start of the data.
        begin: u64,
        /// End, from the start of the data.
        end: u64,
    },
    /// A range beyond the end of the file.
    #[error("tensor {} ends at byte {end} of the data, of which there are {available}", shown(.tensor))]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// End, from the start of the data.
        end: u64,
        /// Bytes of data.
        available: u64,
    },
    /// A shape whose size does not fit 64 bits.
    #[error("tensor {}: the shape's size overflows", shown(.tensor))]
    Overflow {
        /// The tensor.
        tensor: String,
    },
    /// A range of another length than shape and dtype imply.
    #[error("tensor {} takes {found} bytes, but its shape and dtype need {expected}", shown(.tensor))]
    Size {
        /// The tensor.
        tensor: String,
        /// Bytes of shape times dtype, rounded up.
        expected: u64,
        /// Length of the range.
        found: u64,
    },
    /// Two ranges that share bytes.
    #[error("tensors {} and {} overlap", shown(.first), shown(.second))]
    Overlap {
        /// The tensor that begins first.
        first: String,
        /// The one that begins inside it.
        second: String,
    },
    /// Bytes between tensors that belong to none.
    #[error("there are {bytes} unused bytes before tensor {}", shown(.tensor))]
    Hole {
        /// The tensor after the hole.
        tensor: String,
        /// The hole's size.
        bytes: u64,
    },
    /// Bytes after the last tensor.
    #[error("there are {0} bytes after the last tensor")]
    TrailingBytes(u64),
    /// Neither a single file nor an index.
    #[error("contains neither model.safetensors nor model.safetensors.index.json")]
    NoCheckpoint,
    /// A single file and an index that does not mention it.
    #[error(
        "contains model.safetensors and an index that does not list it; remove the one that is not meant"
    )]
    TwoCheckpoints,
    /// An index that is not `{weight_map: {tensor: shard}}`.
    #[error("the index is not valid: {0}")]
    Index(#[source] serde_json::Error),
    /// An index without tensors.
    #[error("the index lists no tensors")]
    EmptyIndex,
    /// A shard that is not a plain file name ending in `.safetensors`.
    #[error("tensor {} is said to be in {}, which is not the name of a .safetensors file beside the index", shown(.tensor), shown(.shard))]
    ShardName {
        /// The tensor.
        tensor: String,
        /// What should be a file name.
        shard: String,
    },
    /// A shard that does not exist.
    #[error("the shard is missing, though the index lists tensor {} in it", shown(.tensor))]
    MissingShard {
        /// One of the tensors the index lists in it.
        tensor: String,
    },
    /// A tensor that the index lists in a shard that does not have it.
    #[error("tensor {} is missing, though the index lists it in this shard", shown(.tensor))]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor in a shard that the index lists elsewhere.
    #[error("tensor {} is here, but the index lists it in {}", shown(.tensor), shown(.shard))]
    WrongShard {
        /// The tensor.
        tensor: String,
        /// Where the index has it.
        shard: String,
    },
    /// A tensor in a shard that the index does not know.
    #[error("tensor {} is not listed in the index", shown(.tensor))]
    Unlisted {
        /// The tensor.
        tensor: String,
    },
}

/// A name from a file for an error message: quoted, control characters escaped, cut to a readable length.
pub(crate) fn shown(name: &str) -> String {
    const LONGEST: usize = 120;
    let mut text: String = name.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if name.chars().nth(LONGEST).is_some() {
        text.push_str("...");
    }
    format!("`{text}`")
}
