//! Tensor descriptions, and where their data lies.

use std::collections::HashSet;

use basert_quant::GgmlType;

use super::cursor::Cursor;
use super::{GgufFault, TensorInfo};

/// Most dimensions of a ggml tensor.
const MAX_DIMENSIONS: u32 = 4;

/// Least bytes of a description: u64 length, one character, u32 count, one u64 dimension, u32 type, u64 offset.
const LEAST_ENTRY: u64 = 33;

/// A description before the start of the data is known.
struct Entry {
    name: String,
    ty: GgmlType,
    shape: Vec<usize>,
    /// From the start of the data.
    offset: u64,
    bytes: u64,
}

/// Reads `count` descriptions and places them: data starts at the next multiple of `alignment`.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    count: u64,
    alignment: u64,
) -> Result<Vec<TensorInfo>, GgufFault> {
    cursor.check_count(count, LEAST_ENTRY, "tensors")?;
    let mut names = HashSet::new();
    let mut entries = Vec::new();
    for _ in 0..count {
        let position = cursor.position();
        let name = cursor.string("a tensor name")?;
        if name.is_empty() {
            return Err(GgufFault::EmptyTensorName(position));
        }
        if !names.insert(name) {
            return Err(GgufFault::DuplicateTensor(name.to_owned()));
        }
        entries.push(entry(cursor, name.to_owned(), alignment)?);
    }
    place(cursor, entries, alignment)
}

/// The description after the name.
fn entry(cursor: &mut Cursor<'_>, tensor: String, alignment: u64) -> Result<Entry, GgufFault> {
    let dimensions = cursor.u32("a number of dimensions")?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        return Err(GgufFault::Dimensions { tensor, dimensions });
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        shape.push(cursor.u64("a dimension")?);
    }
    let row = shape[0];
    let id = cursor.u32("a tensor type")?;
    let offset = cursor.u64("a tensor offset")?;
    let ty = match GgmlType::from_id(id) {
        Ok(ty) => ty,
        Err(cause) => return Err(GgufFault::TensorType { tensor, cause }),
    };
    if shape.contains(&0) {
        return Err(GgufFault::ZeroDimension { tensor });
    }
    let block = ty.block_size() as u64;
    if row % block != 0 {
        return Err(GgufFault::PartialBlock { tensor, row, ty: ty.name(), block });
    }
    let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
    let bytes = elements.and_then(|elements| (elements / block).checked_mul(ty.block_bytes() as u64));
    let outermost_first: Option<Vec<usize>> =
        shape.iter().rev().map(|&dim| usize::try_from(dim).ok()).collect();
    let (Some(bytes), Some(shape)) = (bytes, outermost_first) else {
        return Err(GgufFault::Overflow { tensor });
    };
    if offset % alignment != 0 {
        return Err(GgufFault::Unaligned { tensor, offset, alignment });
    }
    Ok(Entry { name: tensor, ty, shape, offset, bytes })
}

/// Turns offsets into ranges of the file, all inside it and none overlapping.
fn place(cursor: &Cursor<'_>, entries: Vec<Entry>, alignment: u64) -> Result<Vec<TensorInfo>, GgufFault> {
    let file_len = cursor.file_len() as u64;
    // Without tensors the file may end before the padding.
    let data_start = (cursor.position() as u64).next_multiple_of(alignment).min(file_len);
    let available = file_len - data_start;
    let mut tensors = Vec::with_capacity(entries.len());
    for Entry { name, ty, shape, offset, bytes } in entries {
        if offset.checked_add(bytes).is_none_or(|end| end > available) {
            return Err(GgufFault::PastEnd { tensor: name, offset, bytes, available });
        }
        // Inside the file, whose length is a usize.
        let start = (data_start + offset) as usize;
        tensors.push(TensorInfo { name, ty, shape, start, end: start + bytes as usize });
    }
    let mut by_start: Vec<&TensorInfo> = tensors.iter().collect();
    by_start.sort_by_key(|tensor| (tensor.start, tensor.end));
    if let Some(pair) = by_start.windows(2).find(|pair| pair[1].start < pair[0].end) {
        return Err(GgufFault::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() });
    }
    Ok(tensors)
}
