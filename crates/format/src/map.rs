//! Read-only memory maps of whole files, the only `unsafe` code of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
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

    /// Position of `part` in the file if it is a part of this map.
    pub fn offset_of(&self, part: &[u8]) -> Option<usize> {
        let offset = part.as_ptr().addr().checked_sub(self.map.as_ptr().addr())?;
        (offset.checked_add(part.len())? <= self.map.len()).then_some(offset)
    }

    /// Asks the system to read bytes `range` of the file into the page cache, without waiting for them. Only advice:
    /// a range that is not there, and a system that cannot, change nothing.
    pub fn prefetch(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        {
            let range = range.start..range.end.min(self.map.len());
            if !range.is_empty() {
                let _ = self.map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Takes the pages of `part` out of this process's memory. Reading them again is valid and brings them back, from
    /// the page cache or the file. Does nothing where the system cannot, or if `part` is not of this map.
    pub fn release(&self, part: &[u8]) {
        #[cfg(unix)]
        if let Some(offset) = self.offset_of(part)
            && !part.is_empty()
        {
            // SAFETY: the advice is dangerous only for pages with content of their own. Those of a read-only map of
            // a file have none: the next access reads the same bytes from the file.
            let released = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, part.len())
            };
            // Advice that is not taken costs memory, and changes no result.
            let _ = released;
        }
        #[cfg(not(unix))]
        let _ = part;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_and_prefetched_parts_read_the_same() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(file.path(), &bytes).unwrap();
        let map = FileMap::open(file.path()).unwrap();
        for (start, end) in [(0, 300_000), (1, 2), (4095, 8193), (299_999, 300_000), (7, 7)] {
            assert!(map[..] == bytes);
            assert_eq!(map.offset_of(&map[start..end]), Some(start));
            map.release(&map[start..end]);
            assert!(map[..] == bytes, "{start}..{end}");
            map.prefetch(start..end);
        }
        // Nothing of another place in memory is touched.
        assert_eq!(map.offset_of(&bytes), None);
        map.release(&bytes);
        map.prefetch(299_999..usize::MAX);
        map.prefetch(400_000..500_000);
        assert!(map[..] == bytes);
    }
}
