//! Read-only memory maps of whole files, the only `unsafe` code of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

/// A whole file, mapped read-only. Dereferences to its bytes.
///
/// The length is fixed when the file is opened. Another process that truncates the file afterwards makes
/// later reads end in a bus error, as with every memory map; `.base` files are therefore replaced by rename,
/// never rewritten in place.
#[derive(Debug)]
pub struct FileMap {
    map: memmap2::Mmap,
}

impl FileMap {
    /// Maps the regular file at `path`. An empty file gives an empty slice.
    ///
    /// # Errors
    /// If the file cannot be opened or mapped, or is not a regular file (opening a pipe would block).
    pub fn open(path: &Path) -> io::Result<FileMap> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is private to this object and read-only, and only shared slices of it are handed
        // out with its lifetime. That nobody writes to the file meanwhile cannot be enforced; it is the
        // documented assumption above, shared by every reader of mapped weights.
        let map = unsafe { memmap2::Mmap::map(&file) }?;
        Ok(FileMap { map })
    }

    /// Takes the pages of a range out of this process's memory; the next use reads them again. A reader of a large file
    /// that is done with a part stays small this way. Only a hint: where the system has none, or refuses, nothing happens.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let (start, end) = (range.start.min(self.map.len()), range.end.min(self.map.len()));
            // SAFETY: the map is read-only and backed by a file, so a dropped page comes back with the same bytes.
            let hint = unsafe {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                self.map.unchecked_advise_range(advice, start, end.saturating_sub(start))
            };
            // A refused hint costs memory, not correctness.
            drop(hint);
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl AsRef<[u8]> for FileMap {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}
