//! Provenance of a source: a hash over its files and the time of its newest one.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use crate::ConvertError;

/// Bytes read at a time.
const BLOCK: usize = 1 << 20;

/// Size and SHA-256 of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileDigest {
    path: PathBuf,
    size: u64,
    sha256: Vec<u8>,
}

impl FileDigest {
    /// Reads the file at `path`; `None` once `go_on`, which is asked with the position before every block and may
    /// keep the reader waiting, says no.
    pub fn of(path: &Path, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Option<FileDigest>, ConvertError> {
        let mut file = File::open(path).map_err(ConvertError::io(path, "open it"))?;
        let mut hash = Sha256::new();
        let mut block = vec![0; BLOCK];
        let mut size = 0;
        while go_on(size) {
            let count = file.read(&mut block).map_err(ConvertError::io(path, "read it"))?;
            if count == 0 {
                let sha256 = hash.finalize().to_vec();
                return Ok(Some(FileDigest { path: path.to_owned(), size, sha256 }));
            }
            size += count as u64;
            hash.update(&block[..count]);
        }
        Ok(None)
    }

    /// The SHA-256 in lower-case hex.
    pub fn hex(&self) -> String {
        hex(&self.sha256)
    }
}

/// SHA-256 over several files of a directory, lower-case hex.
///
/// The files are taken in the order of their names. For each one the hash takes in: the length of the name as
/// u64, the name in UTF-8, the size of the file as u64, and the SHA-256 of its content (32 bytes); integers
/// are little-endian.
pub(crate) fn combine(directory: &Path, files: Vec<FileDigest>) -> String {
    let mut named: Vec<(String, FileDigest)> =
        files.into_iter().map(|file| (name_in(directory, &file.path), file)).collect();
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut all = Sha256::new();
    for (name, FileDigest { size, sha256, .. }) in named {
        all.update((name.len() as u64).to_le_bytes());
        all.update(name.as_bytes());
        all.update(size.to_le_bytes());
        all.update(sha256);
    }
    hex(&all.finalize())
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

/// Name relative to `directory`, with `/` between components.
pub(crate) fn name_in(directory: &Path, path: &Path) -> String {
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
        let digest = |path: &PathBuf| FileDigest::of(path, &mut |_| true).unwrap().unwrap();
        let first = combine(dir.path(), vec![digest(&a), digest(&b)]);
        assert_eq!(first.len(), 64);
        assert_eq!(combine(dir.path(), vec![digest(&b), digest(&a)]), first);
        std::fs::write(&b, "tow").unwrap();
        assert_ne!(combine(dir.path(), vec![digest(&a), digest(&b)]), first);
        // The published digest of "one", so that the algorithm cannot drift.
        let one = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
        assert_eq!(digest(&a).hex(), one);
        assert_eq!(FileDigest::of(&a, &mut |_| false).unwrap(), None);
    }
}
