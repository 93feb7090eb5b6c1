//! Models that llama-gguf-split cut into several files.
//!
//! Parts are called `<name>-00001-of-00003.gguf`. Each has `split.no` (from 0), `split.count` and
//! `split.tensors.count`; the first one has the model's metadata as well.

use std::io;
use std::path::{Path, PathBuf};

use super::{GgufError, GgufFault, GgufFile};

/// Most parts: `split.no` and `split.count` have 16 bits.
const MAX_PARTS: u64 = u16::MAX as u64;

/// Opens the file at `path` and, if it is one part of several, the others beside it; all parts in order.
///
/// # Errors
/// A file that cannot be read or is not valid, or parts that do not belong together.
pub fn open_parts(path: &Path) -> Result<Vec<GgufFile>, GgufError> {
    let file = GgufFile::open(path)?;
    let count = number(&file, "split.count")?.unwrap_or(1);
    if count <= 1 {
        return Ok(vec![file]);
    }
    let number_in_name = number(&file, "split.no")?.map(|index| index.saturating_add(1));
    let stem = number_in_name.filter(|_| count <= MAX_PARTS).and_then(|number| stem(path, number, count));
    let Some(stem) = stem else {
        return Err(GgufError { path: path.to_owned(), fault: GgufFault::PartName { count } });
    };
    let mut parts = Vec::new();
    for index in 0..count {
        parts.push(open_part(&path.with_file_name(name(&stem, index + 1, count)), index, count)?);
    }
    check_total(&parts)?;
    Ok(parts)
}

fn open_part(path: &Path, index: u64, count: u64) -> Result<GgufFile, GgufError> {
    let fail = |fault| GgufError { path: PathBuf::from(path), fault };
    let part = GgufFile::open(path).map_err(|error| match error.fault {
        GgufFault::Io(cause) if cause.kind() == io::ErrorKind::NotFound => {
            fail(GgufFault::MissingPart { count })
        }
        _ => error,
    })?;
    if (number(&part, "split.no")?, number(&part, "split.count")?) != (Some(index), Some(count)) {
        return Err(fail(GgufFault::WrongPart { number: index + 1, count }));
    }
    Ok(part)
}

/// The parts together must have as many tensors as each of them says.
fn check_total(parts: &[GgufFile]) -> Result<(), GgufError> {
    let found: usize = parts.iter().map(|part| part.contents.tensors.len()).sum();
    for part in parts {
        if let Some(expected) = number(part, "split.tensors.count")?
            && expected != found as u64
        {
            let fault = GgufFault::PartTensors { expected, found };
            return Err(GgufError { path: part.path.clone(), fault });
        }
    }
    Ok(())
}

/// An integer of the metadata, if it is there.
fn number(file: &GgufFile, key: &str) -> Result<Option<u64>, GgufError> {
    let Some(value) = file.metadata().get(key) else { return Ok(None) };
    let fault = || GgufFault::KeyType { key: key.to_owned(), expected: "an integer" };
    value.as_u64().map(Some).ok_or_else(|| GgufError { path: file.path.clone(), fault: fault() })
}

/// What comes before the numbers in a part's name, if the name is that of part `number` of `count`.
fn stem(path: &Path, number: u64, count: u64) -> Option<String> {
    let stem = path.file_name()?.to_str()?.strip_suffix(&name("", number, count))?;
    (!stem.is_empty()).then(|| stem.to_owned())
}

fn name(stem: &str, number: u64, count: u64) -> String {
    format!("{stem}-{number:05}-of-{count:05}.gguf")
}
