//! Provenance of a source: a hash over its files and the time of its newest one.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use crate::ConvertError;

/// Bytes read at a time.
const BLOCK: usize = 1 << 20;

/// SHA-256 of one file, lower-case hex; `None` once `cancelled` is set.
pub(crate) fn file(path: &Path, cancelled: &AtomicBool) -> Result<Option<String>, ConvertError> {
    Ok(hash(path, cancelled)?.map(|(_, digest)| hex(&digest)))
}

/// SHA-256 over several files of a directory, lower-case hex; `None` once `cancelled` is set.
///
/// The files are taken in the order of their names. For each one the hash takes in: the length of the name as
/// u64, the name in UTF-8, the size of the file as u64, and the SHA-256 of its content (32 bytes); integers
/// are little-endian.
pub(crate) fn files(
    directory: &Path,
    files: &[PathBuf],
    cancelled: &AtomicBool,
) -> Result<Option<String>, ConvertError> {
    let mut named: Vec<(String, &PathBuf)> =
        files.iter().map(|path| (name_in(directory, path), path)).collect();
    named.sort();
    let mut all = Sha256::new();
    for (name, path) in named {
        let Some((size, digest)) = hash(path, cancelled)? else { return Ok(None) };
        all.update((name.len() as u64).to_le_bytes());
        all.update(name.as_bytes());
        all.update(size.to_le_bytes());
        all.update(digest);
    }
    Ok(Some(hex(&all.finalize())))
}

/// Unix time in seconds of the newest of `files`.
pub(crate) fn newest(files: &[PathBuf]) -> Result<u64, ConvertError> {
    let mut newest = 0;
    for path in files {
        let modified = std::fs::metadata(path).and_then(|meta| meta.modified());
        let modified = modified.map_err(ConvertError::io(path, "read its modification time"))?;
        newest = newest.max(modified.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()));
    }
    Ok(newest)
}

/// Size and SHA-256 of one file.
fn hash(path: &Path, cancelled: &AtomicBool) -> Result<Option<(u64, Vec<u8>)>, ConvertError> {
    let mut file = File::open(path).map_err(ConvertError::io(path, "open it"))?;
    let mut hash = Sha256::new();
    let mut block = vec![0; BLOCK];
    let mut size = 0;
    loop {
        if cancelled.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let count = file.read(&mut block).map_err(ConvertError::io(path, "read it"))?;
        if count == 0 {
            return Ok(Some((size, hash.finalize().to_vec())));
        }
        size += count as u64;
        hash.update(&block[..count]);
    }
}

/// Name relative to `directory`, with `/` between components.
fn name_in(directory: &Path, path: &Path) -> String {
    let relative = path.strip_prefix(directory).unwrap_or(path);
    let parts: Vec<_> = relative.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    parts.join("/")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_hash_depends_on_names_sizes_and_contents_but_not_on_order() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a.json"), dir.path().join("b.bin"));
        std::fs::write(&a, "one").unwrap();
        std::fs::write(&b, "two").unwrap();
        let go = AtomicBool::new(false);
        let first = files(dir.path(), &[a.clone(), b.clone()], &go).unwrap().unwrap();
        assert_eq!(first.len(), 64);
        assert_eq!(files(dir.path(), &[b.clone(), a.clone()], &go).unwrap().unwrap(), first);
        std::fs::write(&b, "tow").unwrap();
        assert_ne!(files(dir.path(), &[a.clone(), b.clone()], &go).unwrap().unwrap(), first);
        // The published digest of "one", so that the algorithm cannot drift.
        let one = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
        assert_eq!(file(&a, &go).unwrap().unwrap(), one);
        assert_eq!(file(&a, &AtomicBool::new(true)).unwrap(), None);
    }
}
