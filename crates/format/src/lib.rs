//! The `.base` v1 container: one file that holds a model's header, weights, tokenizer and optional slots.
//!
//! [`BaseFile`] memory-maps a file and hands out [`TensorView`]s that cannot be invalid, because everything
//! the header claims is checked once on opening. [`BaseWriter`] writes one tensor at a time and makes the
//! file appear by rename. The format itself is described in `docs/format.md`.
//!
//! This crate knows bytes and their layout: no network, no model families, no arithmetic beyond sizes and
//! checksums. `unsafe` is confined to [`map`].

mod checksum;
mod enums;
mod error;
mod flags;
mod header;
mod json;
pub mod map;
mod output;
mod reader;
mod slots;
mod tensor;
mod validate;
mod writer;

pub use enums::{ComputeRegion, LayerKind, Layout, QuantScheme, Residency, SourceFormat, TargetBackend};
pub use error::{Fault, FormatError, TensorProblem};
pub use flags::{HeaderFlags, SlotFlags, TensorFlags};
pub use header::{
    Alignment, Calibration, Header, LayerDescriptor, LayerPrecision, MmProj, Signature, Source, VERSION_KEY,
};
pub use map::FileMap;
pub use output::{Output, Unfinished};
pub use reader::{BaseFile, DtypeTotal, TensorView};
pub use slots::{SlotInfo, SlotKind};
pub use tensor::TensorEntry;
pub use writer::{BaseWriter, Flusher, PlannedTensor};

/// The first four bytes of every `.base` file.
pub const MAGIC: [u8; 4] = *b"BASE";

/// The container version that this crate reads and writes.
pub const VERSION: u32 = 1;

/// Magic, version and header length.
pub const PREAMBLE_LEN: u64 = 16;

/// The weights blob starts at the next multiple of this after the header.
pub const BLOB_ALIGN: u64 = 65536;

/// The longest header that is read or written. Real ones are dominated by `tokenizer.json` (up to about 35
/// MB); the bound keeps a hostile file from making the JSON parser allocate without end.
pub const MAX_HEADER_LEN: u64 = 128 << 20;

/// The longest tensor name that is read or written, in bytes.
pub const MAX_NAME_LEN: usize = 1024;

/// Where the blob starts for a header of `header_len` bytes; `None` when that overflows.
fn blob_start(header_len: u64) -> Option<u64> {
    PREAMBLE_LEN.checked_add(header_len)?.checked_next_multiple_of(BLOB_ALIGN)
}
