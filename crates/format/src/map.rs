//! Read-only memory maps of whole files, the only `unsafe` code of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// Bytes of a page, or a part of one.
const PAGE: usize = 4096;

/// A whole file, mapped read-only. Dereferences to its bytes.
///
/// The length is fixed when the file is opened. Another process that truncates the file afterwards makes
/// later reads end in a bus error, as with every memory map; `.base` files are therefore replaced by rename,
/// never rewritten in place.
#[derive(Debug)]
pub struct FileMap {
    map: memmap2::Mmap,
    /// Whether the bytes are a copy, which the system cannot read again.
    copied: bool,
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
        Ok(FileMap { map, copied: false })
    }

    /// A copy of the bytes in memory of this process, in huge pages where the system has them.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn copy(&self) -> io::Result<FileMap> {
        let mut copy = memmap2::MmapMut::map_anon(self.map.len())?;
        #[cfg(target_os = "linux")]
        {
            // Without huge pages the copy is as good as the map.
            let _ = copy.advise(memmap2::Advice::HugePage);
        }
        copy.copy_from_slice(&self.map);
        Ok(FileMap { map: copy.make_read_only()?, copied: true })
    }

    /// Reads every page into memory, as far as there is room.
    pub fn prefault(&self) {
        self.prefetch(0..self.map.len());
        let touched = self.map.iter().step_by(PAGE).fold(0, |sum: u8, byte| sum.wrapping_add(*byte));
        std::hint::black_box(touched);
    }

    /// Reads every page into memory and keeps it there until the map is closed.
    ///
    /// # Errors
    /// If the system does not allow it, or has no such call.
    pub fn lock(&self) -> io::Result<()> {
        #[cfg(unix)]
        return self.map.lock();
        #[cfg(not(unix))]
        Err(io::Error::from(io::ErrorKind::Unsupported))
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
    /// the page cache or the file. Does nothing where the system cannot, if `part` is not of this map, or to a copy.
    pub fn release(&self, part: &[u8]) {
        #[cfg(unix)]
        if let Some(offset) = self.offset_of(part)
            && !part.is_empty()
            && !self.copied
        {
            // SAFETY: the advice is dangerous only for pages with content of their own. Those of a read-only map of
            // a file have none, and a copy does not come here: the next access reads the same bytes from the file.
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
        map.prefault();
        let copy = map.copy().unwrap();
        drop(map);
        copy.release(&copy);
        copy.prefault();
        assert!(copy[..] == bytes, "a copy outlives its map and is never given back");
        let map = FileMap::open(file.path()).unwrap();
        // Nothing of another place in memory is touched.
        assert_eq!(map.offset_of(&bytes), None);
        map.release(&bytes);
        map.prefetch(299_999..usize::MAX);
        map.prefetch(400_000..500_000);
        assert!(map[..] == bytes);
    }
}
