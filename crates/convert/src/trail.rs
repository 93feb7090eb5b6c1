//! The source's files as a conversion passes through them: what it needs next is read ahead, what it has used leaves
//! the process's memory, and the hash over every file keeps step.
//!
//! The hash reads every byte anyway. Kept a little ahead of the conversion it does the conversion's reading, and each
//! byte comes from the disk once, also where the source is larger than the memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use basert_format::FileMap;

use crate::ConvertError;
use crate::digest::FileDigest;
use crate::encode::Span;
use crate::recipe::Inventory;
use crate::source::{Plan, Source};

/// Bytes that the hash may be ahead of the conversion.
const AHEAD: u64 = 64 << 20;

/// Bytes that the system is asked to read at a time: far more than it does of its own accord, so that disks which
/// need many requests at once get them.
const READ_AHEAD: u64 = 8 << 20;

/// Pieces after which all pages are released and not only those of the last piece. The system maps pages around the one
/// that is read, so a few of every piece's neighbours come back after their own release.
const SWEEP: usize = 32;

/// See the module.
pub(crate) struct Trail<'a> {
    inventory: &'a Inventory<'a>,
    /// Pieces that were used.
    used: AtomicUsize,
    /// Files with tensors, in the order in which the conversion comes to them.
    maps: Vec<(&'a Path, &'a FileMap)>,
    state: Mutex<State>,
    moved: Condvar,
}

struct State {
    /// For every file, up to where it was needed so far.
    reached: Vec<u64>,
    /// The last file that was needed so far.
    file: usize,
    /// Nothing more is going to be needed.
    ended: bool,
    /// Nobody wants the hash any more.
    cancelled: bool,
}

impl<'a> Trail<'a> {
    /// The trail through `source` for a conversion by `plan`.
    pub fn of(source: &'a Source, plan: &'a Plan<'a>) -> Trail<'a> {
        let parts = plan.recipes.iter().flat_map(|recipe| recipe.parts.iter().map(|part| part.tensor));
        Trail::new(&plan.inventory, source.maps(), parts)
    }

    /// A trail through `maps` for a conversion that needs tensors in the order of `tensors` (indices into the
    /// inventory).
    pub fn new(
        inventory: &'a Inventory<'a>,
        mut maps: Vec<(&'a Path, &'a FileMap)>,
        tensors: impl Iterator<Item = usize>,
    ) -> Trail<'a> {
        let mut sorted = Vec::with_capacity(maps.len());
        for tensor in tensors {
            let file = inventory.tensor(tensor).file;
            if let Some(at) = maps.iter().position(|(path, _)| *path == file) {
                sorted.push(maps.remove(at));
            }
        }
        sorted.append(&mut maps);
        let reached = vec![0; sorted.len()];
        let state = State { reached, file: 0, ended: false, cancelled: false };
        Trail {
            inventory,
            used: AtomicUsize::new(0),
            maps: sorted,
            state: Mutex::new(state),
            moved: Condvar::new(),
        }
    }

    /// The conversion needs rows of `width` elements now.
    pub fn reach(&self, spans: &[Span], width: usize) {
        let mut state = self.state();
        self.each(spans, width, |file, map, bytes| {
            let end = map.offset_of(bytes).unwrap_or(0) + bytes.len();
            state.reached[file] = state.reached[file].max(end as u64);
            state.file = state.file.max(file);
        });
        drop(state);
        self.moved.notify_all();
    }

    /// The conversion has used rows of `width` elements.
    pub fn release(&self, spans: &[Span], width: usize) {
        self.each(spans, width, |_, map, bytes| map.release(bytes));
        if self.used.fetch_add(1, Ordering::Relaxed) % SWEEP == SWEEP - 1 {
            self.release_all();
        }
    }

    /// Takes everything out of the process's memory; what is in use comes back.
    pub fn release_all(&self) {
        self.maps.iter().for_each(|(_, map)| map.release(map));
    }

    /// SHA-256 of all `files`, in any order; `None` if it was cancelled.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn hash(&self, files: &[PathBuf]) -> Result<Option<Vec<FileDigest>>, ConvertError> {
        let has_tensors = |path: &PathBuf| self.maps.iter().any(|(mapped, _)| mapped == path);
        let side_files = files.iter().filter(|path| !has_tensors(path)).map(|path| (None, path.as_path()));
        let mapped = self.maps.iter().enumerate().map(|(file, (path, _))| (Some(file), *path));
        let mut digests = Vec::with_capacity(files.len());
        for (file, path) in side_files.chain(mapped) {
            match FileDigest::of(path, &mut |position| self.keep_step(file, position))? {
                Some(digest) => digests.push(digest),
                None => return Ok(None),
            }
        }
        Ok(Some(digests))
    }

    /// Waits until the conversion is near `position` of the file, past it, or at its end. False if cancelled.
    fn keep_step(&self, file: Option<usize>, position: u64) -> bool {
        let mut state = self.state();
        if let Some(file) = file {
            if position.is_multiple_of(READ_AHEAD) {
                let start = position as usize;
                self.maps[file].1.prefetch(start..start.saturating_add(2 * READ_AHEAD as usize));
            }
            let early = |state: &State| {
                file >= state.file
                    && position >= state.reached[file] + AHEAD
                    && !state.ended
                    && !state.cancelled
            };
            while early(&state) {
                state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        !state.cancelled
    }

    /// Ends the conversion's part when it is dropped, so that the hash never waits for what has stopped.
    pub fn conversion(&self) -> Conversion<'_> {
        Conversion { trail: self, complete: false }
    }

    fn end(&self, cancelled: bool) {
        let mut state = self.state();
        state.ended = true;
        state.cancelled |= cancelled;
        drop(state);
        self.moved.notify_all();
    }

    fn each(&self, spans: &[Span], width: usize, mut act: impl FnMut(usize, &FileMap, &[u8])) {
        for Span { tensor, rows } in spans {
            let tensor = self.inventory.tensor(*tensor);
            for bytes in tensor.row_bytes(rows.clone(), width).into_iter().filter(|bytes| !bytes.is_empty()) {
                let mut maps = self.maps.iter().enumerate();
                if let Some((file, (_, map))) = maps.find(|(_, (_, map))| map.offset_of(bytes).is_some()) {
                    act(file, map, bytes);
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The conversion's part of a trail.
pub(crate) struct Conversion<'t> {
    trail: &'t Trail<'t>,
    complete: bool,
}

impl Conversion<'_> {
    /// All is converted: the hash may hurry to its end. Otherwise it is cancelled.
    pub fn complete(mut self) {
        self.complete = true;
    }
}

impl Drop for Conversion<'_> {
    fn drop(&mut self) {
        self.trail.end(!self.complete);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use basert_quant::GgmlType;

    use super::*;
    use crate::recipe::{Data, SourceTensor};

    /// A file of a hole, one f32 tensor with rows of a mebibyte.
    fn with_trail(act: impl FnOnce(&Trail<'_>)) {
        const WIDTH: usize = 1 << 18;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(3 * AHEAD).unwrap();
        let map = FileMap::open(file.path()).unwrap();
        let tensor = SourceTensor {
            name: "t",
            file: file.path(),
            shape: vec![map.len() / 4 / WIDTH, WIDTH],
            data: Data::Blocks { ty: GgmlType::F32, bytes: &map },
        };
        let inventory = Inventory::new(file.path(), vec![tensor], str::to_owned).unwrap();
        act(&Trail::new(&inventory, vec![(file.path(), &map)], [0].into_iter()));
    }

    #[test]
    fn the_hash_waits_for_the_conversion_and_never_for_one_that_has_stopped() {
        with_trail(|trail| {
            let conversion = trail.conversion();
            assert!(trail.keep_step(Some(0), AHEAD - 1));
            // Files without tensors are nobody's to wait for.
            assert!(trail.keep_step(None, 10 * AHEAD));
            std::thread::scope(|scope| {
                let (told, passed) = channel();
                scope.spawn(move || {
                    for position in [AHEAD, 2 * AHEAD] {
                        told.send((position, trail.keep_step(Some(0), position))).unwrap();
                    }
                });
                assert!(passed.try_recv().is_err(), "it is too far ahead");
                trail.reach(&[Span { tensor: 0, rows: 3..4 }], 1 << 18);
                assert_eq!(passed.recv().unwrap(), (AHEAD, true));
                assert!(passed.try_recv().is_err(), "it is too far ahead");
                drop(conversion);
                assert_eq!(passed.recv().unwrap(), (2 * AHEAD, false));
            });
        });
        with_trail(|trail| {
            trail.conversion().complete();
            assert!(trail.keep_step(Some(0), 3 * AHEAD));
        });
    }

    #[test]
    fn what_is_released_can_be_read_again() {
        with_trail(|trail| {
            let (spans, width) = ([Span { tensor: 0, rows: 1..2 }], 1 << 18);
            let sum = || {
                let [bytes, ..] = trail.inventory.tensor(0).row_bytes(1..2, width);
                bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>()
            };
            assert_eq!(sum(), 0);
            trail.release(&spans, width);
            trail.release_all();
            assert_eq!(sum(), 0);
        });
    }
}
