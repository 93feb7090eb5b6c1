//! Safetensors files and sharded checkpoints, read strictly.
//!
//! A file is a u64 little-endian header length, a JSON header `{name: {dtype, shape, data_offsets}}` and the data.
//! [`parse`] checks everything the header claims before anything is believed: afterwards every tensor's range lies
//! in the data, ranges neither overlap nor leave gaps, and each length is the shape's product times the dtype.
//! Files come from strangers, so nothing is allocated from a number in the file.

mod checkpoint;
mod dtype;
mod error;
mod parse;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use basert_format::FileMap;

pub use checkpoint::Checkpoint;
pub use dtype::Dtype;
pub(crate) use error::shown;
pub use error::{SafetensorsError, SafetensorsFault};
pub use parse::parse;

/// What a valid header says.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Tensors in the order of their data.
    pub tensors: Vec<TensorInfo>,
    /// The free-form strings under `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

/// One tensor of a valid file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Row-major shape; empty for a scalar. Its product times the element size is the length of `start..end`.
    pub shape: Vec<usize>,
    /// First byte, from the start of the file.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// A tensor and its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorView<'a> {
    /// Name, unique in the file.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Row-major shape; empty for a scalar.
    pub shape: &'a [usize],
    /// Little-endian, row-major, not necessarily aligned; exactly the shape's product times the element size.
    pub data: &'a [u8],
}

/// An open, valid, memory-mapped safetensors file.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    map: FileMap,
    header: Header,
    names: HashMap<String, usize>,
}

impl SafetensorsFile {
    /// Maps and checks the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read or its header is not valid; the error names the file and the tensor.
    pub fn open(path: &Path) -> Result<SafetensorsFile, SafetensorsError> {
        let fail = |fault| SafetensorsError { path: path.to_owned(), fault };
        let map = FileMap::open(path).map_err(|error| fail(SafetensorsFault::Io(error)))?;
        let header = parse(&map).map_err(fail)?;
        let names = header.tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(SafetensorsFile { path: path.to_owned(), map, header, names })
    }

    /// The file's path as given to [`SafetensorsFile::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mapped bytes.
    pub(crate) fn map(&self) -> &FileMap {
        &self.map
    }

    /// All tensors in the order of their data.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.header.tensors.iter().map(|info| self.view(info))
    }

    /// The tensor called `name`, if there is one.
    pub fn get(&self, name: &str) -> Option<TensorView<'_>> {
        self.names.get(name).map(|&index| self.view(&self.header.tensors[index]))
    }

    /// The free-form strings under `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    fn view<'a>(&'a self, info: &'a TensorInfo) -> TensorView<'a> {
        TensorView {
            name: &info.name,
            dtype: info.dtype,
            shape: &info.shape,
            data: &self.map[info.start..info.end],
        }
    }
}
