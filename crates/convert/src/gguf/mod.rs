//! The GGUF container, read strictly: versions 2 and 3, little-endian, one file or several parts.
//!
//! A file is a header, key-value metadata, tensor descriptions and, from the next multiple of
//! `general.alignment`, the data. Every count and length is compared with the bytes that remain before anything is
//! allocated or skipped. After [`parse`] all tensors lie inside the file and none overlap.

mod cursor;
mod error;
mod metadata;
mod parts;
mod tensors;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use basert_format::FileMap;
use basert_quant::GgmlType;
use serde_json::{Map, Value};

use cursor::Cursor;
pub use error::{GgufError, GgufFault};
pub use parts::open_parts;

/// What a valid file says about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Contents {
    /// Metadata in file order. Integers become JSON integers, f32 is widened to f64, arrays become JSON arrays.
    /// Numbers that JSON does not have (NaN, infinities) are refused.
    pub metadata: Map<String, Value>,
    /// Tensors in file order.
    pub tensors: Vec<TensorInfo>,
}

/// One tensor of a valid file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// Element type; not every type has a decoder.
    pub ty: GgmlType,
    /// Row-major shape, outermost dimension first: the reverse of the `ne` in the file. One to four dimensions, none
    /// of them zero; the last is whole blocks of `ty`.
    pub shape: Vec<usize>,
    /// First byte, from the start of the file.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// A tensor and its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufTensor<'a> {
    /// Name, unique in the file.
    pub name: &'a str,
    /// Element type; not every type has a decoder.
    pub ty: GgmlType,
    /// Row-major shape, outermost dimension first.
    pub shape: &'a [usize],
    /// Blocks of `ty`, rows one after the other.
    pub data: &'a [u8],
}

/// An open, valid, memory-mapped GGUF file.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    map: FileMap,
    contents: Contents,
    names: HashMap<String, usize>,
}

impl GgufFile {
    /// Maps and checks the file at `path`, which may be one part of several; see [`open_parts`].
    ///
    /// # Errors
    /// If it cannot be read or is not valid; the error names the file and the tensor or key.
    pub fn open(path: &Path) -> Result<GgufFile, GgufError> {
        let fail = |fault| GgufError { path: path.to_owned(), fault };
        let map = FileMap::open(path).map_err(|error| fail(GgufFault::Io(error)))?;
        let contents = parse(&map).map_err(fail)?;
        let names = contents.tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(GgufFile { path: path.to_owned(), map, contents, names })
    }

    /// The mapped bytes.
    pub(crate) fn map(&self) -> &FileMap {
        &self.map
    }

    /// The file's path as given to [`GgufFile::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Metadata; see [`Contents::metadata`].
    pub fn metadata(&self) -> &Map<String, Value> {
        &self.contents.metadata
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> impl Iterator<Item = GgufTensor<'_>> {
        self.contents.tensors.iter().map(|info| self.view(info))
    }

    /// The tensor called `name`, if there is one.
    pub fn get(&self, name: &str) -> Option<GgufTensor<'_>> {
        self.names.get(name).map(|&index| self.view(&self.contents.tensors[index]))
    }

    fn view<'a>(&'a self, info: &'a TensorInfo) -> GgufTensor<'a> {
        GgufTensor {
            name: &info.name,
            ty: info.ty,
            shape: &info.shape,
            data: &self.map[info.start..info.end],
        }
    }
}

/// Reads and checks a whole file.
///
/// # Errors
/// The first thing found wrong, naming the tensor or key if there is one.
pub fn parse(file: &[u8]) -> Result<Contents, GgufFault> {
    let mut cursor = Cursor::new(file);
    if cursor.take(4, "the magic number").ok() != Some(b"GGUF") {
        return Err(GgufFault::Magic);
    }
    match cursor.u32("the version")? {
        2 | 3 => {}
        swapped if matches!(swapped.swap_bytes(), 1..=3) => return Err(GgufFault::BigEndian),
        version => return Err(GgufFault::Version(version)),
    }
    let tensor_count = cursor.u64("the number of tensors")?;
    let key_count = cursor.u64("the number of metadata keys")?;
    let metadata = metadata::read(&mut cursor, key_count)?;
    let alignment = metadata::alignment(&metadata)?;
    let tensors = tensors::read(&mut cursor, tensor_count, alignment)?;
    Ok(Contents { metadata, tensors })
}
