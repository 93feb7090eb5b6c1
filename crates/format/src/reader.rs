//! Opening a `.base` file and looking into it.

use std::ops::Range;
use std::path::{Path, PathBuf};

use basert_quant::{Dtype, Encoding};
use serde::Deserialize;
use serde_path_to_error::{Path as FieldPath, Segment};

use crate::validate::{Located, Place, is_name, validate};
use crate::{
    Fault, FileMap, FormatError, Header, MAGIC, MAX_HEADER_LEN, PREAMBLE_LEN, SlotFlags, SlotInfo,
    TensorEntry, VERSION, blob_start, slots,
};

/// An open `.base` file: memory-mapped, its header parsed and every claim of the header checked.
///
/// Opening reads the header and the slot records only; payloads stay on disk until they are touched, and
/// their checksums are compared only by [`BaseFile::verify_checksums`].
#[derive(Debug)]
pub struct BaseFile {
    path: PathBuf,
    map: FileMap,
    header: Header,
    /// Offset of the blob in the file. Past the file's end if there is no blob.
    blob: usize,
    located: Located,
    slots: Vec<SlotInfo>,
}

/// One tensor of an open file.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The header's entry.
    pub entry: &'a TensorEntry,
    /// How the payload is laid out.
    pub encoding: Encoding,
    /// Row-major shape, innermost dimension last, for every source.
    pub shape: &'a [u64],
    /// The whole payload: codes, scales, biases. Its start need not be aligned.
    pub data: &'a [u8],
}

/// How much of a file is stored in one dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DtypeTotal {
    /// The dtype.
    pub dtype: Dtype,
    /// Number of main tensors.
    pub tensors: usize,
    /// Bytes of their payloads.
    pub bytes: u64,
}

impl BaseFile {
    /// Maps and checks the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read, is not a `.base` v1 file, or its header contradicts itself or the file's size.
    pub fn open(path: &Path) -> Result<BaseFile, FormatError> {
        BaseFile::open_marked(path, MAGIC)
    }

    /// Opens a file that has `magic` in the place of [`MAGIC`], which is how a writer marks one that is not finished.
    pub(crate) fn open_marked(path: &Path, magic: [u8; 4]) -> Result<BaseFile, FormatError> {
        let error = |fault| FormatError::new(path, fault);
        let map = FileMap::open(path).map_err(|cause| error(Fault::Io { action: "open it", cause }))?;
        let parts = parse(&map, magic).map_err(error)?;
        let Parts { header, blob, located, slots } = parts;
        Ok(BaseFile { path: path.to_owned(), map, header, blob, located, slots })
    }

    /// Moves the bytes to a copy in this process's memory; see [`FileMap::copy`].
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn copy_to_memory(&mut self) -> std::io::Result<()> {
        self.map = self.map.copy()?;
        Ok(())
    }

    /// The bytes of the whole file.
    pub fn map(&self) -> &FileMap {
        &self.map
    }

    /// The path it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The main tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.tensor_at(self.tensor_index(name)?)
    }

    /// Position in file order of the main tensor called `name`.
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        self.located.index.get(name).copied()
    }

    /// The main tensor at a position of the file order: a look-up without a name for hot paths.
    pub fn tensor_at(&self, position: usize) -> Option<TensorView<'_>> {
        Some(self.view(self.header.tensors.get(position)?, self.located.tensors.get(position)?))
    }

    /// The main tensors, in file order.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        let entries = self.header.tensors.iter();
        entries.zip(&self.located.tensors).map(|(entry, place)| self.view(entry, place))
    }

    /// The tensors of vision and audio towers, in file order.
    pub fn mmproj_tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        let entries = self.header.mmproj.iter().flat_map(|mmproj| &mmproj.tensors);
        entries.zip(&self.located.mmproj).map(|(entry, place)| self.view(entry, place))
    }

    /// The slots, in file order.
    pub fn slots(&self) -> &[SlotInfo] {
        &self.slots
    }

    /// The payload of slot `index`.
    ///
    /// # Errors
    /// If there is no such slot, or it is compressed.
    pub fn slot_payload(&self, index: usize) -> Result<&[u8], FormatError> {
        let slot = self.slots.get(index).ok_or(Fault::NoSlot { index, count: self.slots.len() });
        let slot = slot.map_err(|fault| FormatError::new(&self.path, fault))?;
        if slot.flags.contains(SlotFlags::COMPRESSED_ZSTD) {
            return Err(FormatError::new(&self.path, Fault::SlotCompressed { index }));
        }
        Ok(&self.map[slot.range.clone()])
    }

    /// Takes all of the file's pages out of this process's memory; see [`FileMap::release`].
    pub fn release_pages(&self) {
        self.map.release(&self.map);
    }

    /// Main tensors and their bytes per dtype; only dtypes that occur, in the order of [`Dtype`].
    pub fn dtype_totals(&self) -> Vec<DtypeTotal> {
        let total = |dtype| {
            let of_dtype = || self.header.tensors.iter().filter(move |entry| entry.dtype() == dtype);
            DtypeTotal {
                dtype,
                tensors: of_dtype().count(),
                bytes: of_dtype().map(|entry| entry.length).sum(),
            }
        };
        Dtype::ALL.into_iter().map(total).filter(|total| total.tensors > 0).collect()
    }

    pub(crate) fn slot_bytes(&self, slot: &SlotInfo) -> &[u8] {
        &self.map[slot.range.clone()]
    }

    fn view<'a>(&'a self, entry: &'a TensorEntry, place: &'a Place) -> TensorView<'a> {
        // Checked on opening to lie inside the map; an empty tensor may have no blob to lie in.
        let Range { start, end } = place.range;
        let data =
            if start == end { &[] } else { &self.map[self.blob + start as usize..self.blob + end as usize] };
        TensorView { entry, encoding: place.encoding, shape: &place.shape, data }
    }
}

/// What [`parse`] finds in a file.
struct Parts {
    header: Header,
    blob: usize,
    located: Located,
    slots: Vec<SlotInfo>,
}

fn parse(file: &[u8], magic: [u8; 4]) -> Result<Parts, Fault> {
    let header_len = parse_preamble(file, magic)?;
    let available = file.len() as u64 - PREAMBLE_LEN;
    if header_len > MAX_HEADER_LEN {
        return Err(Fault::HeaderTooLong { len: header_len });
    }
    if header_len > available {
        return Err(Fault::HeaderTruncated { len: header_len, available });
    }
    let json = &file[PREAMBLE_LEN as usize..(PREAMBLE_LEN + header_len) as usize];
    let json = std::str::from_utf8(json).map_err(|error| Fault::HeaderUtf8 { at: error.valid_up_to() })?;
    let header = parse_header(json)?;
    // Bounded by MAX_HEADER_LEN, so there is a blob start, and it fits.
    let blob = blob_start(header_len).ok_or(Fault::HeaderTooLong { len: header_len })?;
    let located = validate(&header, (file.len() as u64).saturating_sub(blob))?;
    let blob = blob as usize;
    let slots = slots::parse(file, (blob + located.end as usize).next_multiple_of(8))?;
    Ok(Parts { header, blob, located, slots })
}

/// Checks magic and version; returns the header's length.
fn parse_preamble(file: &[u8], magic: [u8; 4]) -> Result<u64, Fault> {
    if file.is_empty() {
        return Err(Fault::Empty);
    }
    let found = &file[..file.len().min(magic.len())];
    if !magic.starts_with(found) {
        return Err(Fault::Magic { found: found.to_vec() });
    }
    let truncated = Fault::PreambleTruncated { len: file.len() };
    let Some((fields, _)) = file.split_first_chunk::<{ PREAMBLE_LEN as usize }>() else {
        return Err(truncated);
    };
    let [_, _, _, _, v0, v1, v2, v3, header_len @ ..] = *fields;
    match u32::from_le_bytes([v0, v1, v2, v3]) {
        VERSION => Ok(u64::from_le_bytes(header_len)),
        found => Err(Fault::Version { found }),
    }
}

fn parse_header(json: &str) -> Result<Header, Fault> {
    let mut parser = serde_json::Deserializer::from_str(json);
    let header = serde_path_to_error::deserialize(&mut parser).map_err(|error| {
        let path = error.path().clone();
        Fault::HeaderJson {
            field: path.to_string(),
            tensor: tensor_at(&path, json),
            cause: error.into_inner(),
        }
    })?;
    let end = parser.end();
    end.map_err(|cause| Fault::HeaderJson { field: ".".to_owned(), tensor: None, cause })?;
    Ok(header)
}

/// The name of the tensor entry that `path` leads into, read leniently from a header that is otherwise wrong.
fn tensor_at(path: &FieldPath, json: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Entry {
        name: Option<String>,
    }
    #[derive(Deserialize)]
    struct List {
        #[serde(default)]
        tensors: Vec<Entry>,
        mmproj: Option<Box<List>>,
    }
    let segments: Vec<&Segment> = path.iter().collect();
    let is_key = |segment: &Segment, name: &str| matches!(segment, Segment::Map { key } if key == name);
    let list: List = serde_json::from_str(json).ok()?;
    let (list, index) = match segments.as_slice() {
        [tensors, Segment::Seq { index }, ..] if is_key(tensors, "tensors") => (list, *index),
        [mmproj, tensors, Segment::Seq { index }, ..]
            if is_key(mmproj, "mmproj") && is_key(tensors, "tensors") =>
        {
            (*list.mmproj?, *index)
        }
        _ => return None,
    };
    list.tensors.into_iter().nth(index)?.name.filter(|name| is_name(name))
}
