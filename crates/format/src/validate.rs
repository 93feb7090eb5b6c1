//! The invariants of a header and its blob. Reader and writer both go through [`validate`], and views are
//! made from what it returns, so that a view cannot be invalid.

use std::collections::HashMap;
use std::ops::Range;

use basert_quant::Encoding;

use crate::{Fault, Header, MAX_NAME_LEN, TensorEntry, TensorProblem};

/// A header's tensors, checked and located.
#[derive(Debug)]
pub(crate) struct Located {
    /// In the order of `Header::tensors`.
    pub tensors: Vec<Place>,
    /// In the order of `MmProj::tensors`.
    pub mmproj: Vec<Place>,
    /// Positions in `tensors` by name.
    pub index: HashMap<String, usize>,
    /// End of the last payload, in bytes from blob start.
    pub end: u64,
}

/// Where one tensor lies and how it is read.
#[derive(Debug)]
pub(crate) struct Place {
    pub encoding: Encoding,
    /// Row-major, whatever order the header has.
    pub shape: Vec<u64>,
    /// Payload, in bytes from blob start.
    pub range: Range<u64>,
}

/// Checks everything a header claims about a blob of `available` bytes.
///
/// # Errors
/// The first violation found.
pub(crate) fn validate(header: &Header, available: u64) -> Result<Located, Fault> {
    if header.schema != 1 {
        let found = u64::from(header.schema);
        return Err(Fault::HeaderField { field: "schema", found, expected: "1" });
    }
    header.alignment.check()?;
    let mmproj: &[TensorEntry] = header.mmproj.as_ref().map_or(&[], |mmproj| &mmproj.tensors);
    let index = index_by_name(&header.tensors, "tensors")?;
    index_by_name(mmproj, "mmproj.tensors")?;
    let reversed = header.is_upstream_gguf();
    let locate = |entries: &[TensorEntry]| -> Result<Vec<Place>, Fault> {
        entries.iter().map(|entry| place(entry, reversed, available)).collect()
    };
    let (tensors, mmproj_places) = (locate(&header.tensors)?, locate(mmproj)?);
    let named = || header.tensors.iter().chain(mmproj).zip(tensors.iter().chain(&mmproj_places));
    check_disjoint(named().map(|(entry, place)| (&place.range, entry.name.as_str())).collect())?;
    let end = named().map(|(_, place)| place.range.end).max().unwrap_or(0);
    Ok(Located { tensors, mmproj: mmproj_places, index, end })
}

fn index_by_name(entries: &[TensorEntry], list: &'static str) -> Result<HashMap<String, usize>, Fault> {
    let mut index = HashMap::with_capacity(entries.len());
    for (position, entry) in entries.iter().enumerate() {
        if !is_name(&entry.name) {
            return Err(Fault::TensorName { list, index: position });
        }
        if index.insert(entry.name.clone(), position).is_some() {
            return Err(Fault::DuplicateTensor { name: entry.name.clone(), list });
        }
    }
    Ok(index)
}

/// Whether `name` can name a tensor. Names end up on terminals and in messages, so they must be printable.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_LEN && !name.chars().any(char::is_control)
}

fn place(entry: &TensorEntry, reversed: bool, available: u64) -> Result<Place, Fault> {
    let fault = |problem| Fault::Tensor { name: entry.name.clone(), problem };
    let encoding = entry.check().map_err(fault)?;
    let (offset, length) = (entry.offset, entry.length);
    let end = offset.checked_add(length).filter(|end| *end <= available);
    let end = end.ok_or_else(|| fault(TensorProblem::PastEnd { offset, length, available }))?;
    let mut shape = entry.shape.clone();
    if reversed {
        shape.reverse();
    }
    Ok(Place { encoding, shape, range: offset..end })
}

/// Refuses tensors that share bytes. Gaps are legal, and so is any alignment.
fn check_disjoint(mut spans: Vec<(&Range<u64>, &str)>) -> Result<(), Fault> {
    spans.retain(|(range, _)| !range.is_empty());
    spans.sort_by_key(|(range, _)| range.start);
    for pair in spans.windows(2) {
        if let [(before, first), (after, second)] = pair
            && after.start < before.end
        {
            let (first, second) = ((*first).to_owned(), (*second).to_owned());
            return Err(Fault::Overlap { first, second, at: after.start });
        }
    }
    Ok(())
}
