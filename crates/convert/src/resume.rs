//! The journal of a conversion that can be resumed: what it was begun with, and which tensors are complete.
//!
//! It lies beside the unfinished file, as `OUTPUT.partial.journal`: a line of JSON that identifies the work, then one per
//! tensor in output order, appended when the tensor is written. Nothing in it is trusted further than it can be
//! checked. The unfinished file is used only for the same work, and a tensor only if its bytes have the checksum of its
//! line, so that a power cut between the two files costs time and never correctness.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::digest::{FileDigest, hex, name_in};
use crate::encode::Measured;
use crate::recipe::Inventory;
use crate::source::Source;
use crate::{ConvertError, Options};

/// Bytes of a tensor that are compared at a place.
const SAMPLE: usize = 4096;

/// What must be the same for work to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Version of this program.
    version: String,
    /// Options that matter for the output's bytes.
    options: BTreeMap<String, String>,
    /// Source files by name: bytes, and modification time in nanoseconds since 1970.
    files: BTreeMap<String, (u64, u64)>,
    /// SHA-256 of the content of every source file without tensors, by name.
    contents: BTreeMap<String, String>,
    /// [`sample`] of the source's tensors.
    weights: String,
    /// SHA-256 of the planned header, which has the encoding and place of every tensor.
    plan: String,
}

impl Identity {
    /// Of converting `source` with `options` into a file with this planned header.
    ///
    /// # Errors
    /// A source file that is gone.
    pub fn of(
        source: &Source,
        inventory: &Inventory<'_>,
        options: &Options,
        planned_header: &[u8],
    ) -> Result<Identity, ConvertError> {
        let (mut files, mut contents) = (BTreeMap::new(), BTreeMap::new());
        let mapped: Vec<&Path> = source.maps().into_iter().map(|(path, _)| path).collect();
        for path in source.files() {
            let meta = std::fs::metadata(path);
            let meta = meta.and_then(|meta| Ok((meta.len(), meta.modified()?)));
            let (size, modified) = meta.map_err(ConvertError::io(path, "read its modification time"))?;
            let modified = modified.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_nanos() as u64);
            let name = name_in(source.directory(), path);
            files.insert(name.clone(), (size, modified));
            if !mapped.contains(&path.as_path())
                && let Some(digest) = FileDigest::of(path, &mut |_| true)?
            {
                contents.insert(name, digest.hex());
            }
        }
        let options = options.identity().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let plan = hex(&Sha256::digest(planned_header));
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Identity { version, options, files, contents, weights: sample(inventory), plan })
    }

    /// The first thing in which work that was begun as `earlier` differs, as a sentence's end.
    fn difference(&self, earlier: &Identity) -> Option<String> {
        if earlier.version != self.version {
            return Some(format!(
                "version {} of this program, and this is {}",
                earlier.version, self.version
            ));
        }
        let options = self.options.keys().chain(earlier.options.keys());
        for name in options {
            let of = |identity: &Identity| identity.options.get(name).cloned().unwrap_or_default();
            if of(self) != of(earlier) {
                return Some(format!("{name} {}, and now it is {}", of(earlier), of(self)));
            }
        }
        for name in self.files.keys().chain(earlier.files.keys()) {
            let (now, then) = (self.files.get(name), earlier.files.get(name));
            let what = match (then, now) {
                (Some(then), Some(now)) if then.0 != now.0 => format!("{} bytes, and now {}", then.0, now.0),
                (Some(then), Some(now)) if then.1 != now.1 => "another modification time".to_owned(),
                (None, Some(_)) => "no such file".to_owned(),
                (Some(_), None) => "a file that is gone".to_owned(),
                _ => continue,
            };
            return Some(format!("another {name:?}: {what}"));
        }
        if let Some((name, _)) =
            self.contents.iter().find(|(name, hash)| earlier.contents.get(*name) != Some(hash))
        {
            return Some(format!("another {name:?}: other content"));
        }
        if self.weights != earlier.weights {
            return Some("other weights in files of the same names and sizes".to_owned());
        }
        (self.plan != earlier.plan).then(|| "another plan of the output".to_owned())
    }
}

/// SHA-256 over three blocks of every tensor: its first, middle and last bytes, or all of a small one. Training changes
/// nearly all numbers of a tensor that it changes at all, so two fine-tunes of one model differ in this.
fn sample(inventory: &Inventory<'_>) -> String {
    let mut hash = Sha256::new();
    for tensor in inventory.tensors() {
        hash.update((tensor.name.len() as u64).to_le_bytes());
        hash.update(tensor.name.as_bytes());
        for bytes in tensor.arrays() {
            hash.update((bytes.len() as u64).to_le_bytes());
            if bytes.len() <= 3 * SAMPLE {
                hash.update(bytes);
            } else {
                for start in [0, (bytes.len() - SAMPLE) / 2, bytes.len() - SAMPLE] {
                    hash.update(&bytes[start..start + SAMPLE]);
                }
            }
        }
    }
    hex(&hash.finalize())
}

/// A tensor that was written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Checksum of its payload.
    pub xxh64: u64,
    /// What was found out about its values.
    pub measured: Measured,
}

/// An open journal. It is locked against another conversion to the same place.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    /// Tensors that are complete, in output order, and where in the journal the line of each ends.
    done: Vec<(Done, u64)>,
    /// End of the first line.
    begin: u64,
}

impl Journal {
    /// Opens the journal of the unfinished file `partial`, or begins one if there is no such file.
    ///
    /// # Errors
    /// Unfinished work of another kind or of unknown origin, or that another process is busy with; a file in the
    /// journal's place that is none.
    pub fn open(partial: &Path, identity: &Identity) -> Result<Journal, ConvertError> {
        let refuse = |what: String| ConvertError::Resume { partial: partial.to_owned(), what };
        let mut name = OsString::from(partial);
        name.push(".journal");
        let path = PathBuf::from(name);
        let unfinished = partial.symlink_metadata().is_ok();
        let there = path.symlink_metadata();
        if there.as_ref().is_ok_and(|meta| !meta.is_file()) {
            return Err(ConvertError::InTheWay { path });
        }
        if unfinished && there.is_err() {
            return Err(refuse("there is no journal beside it, so it cannot be told what it is".to_owned()));
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(ConvertError::io(&path, "open it"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ConvertError::Busy { partial: partial.to_owned() });
            }
            Err(TryLockError::Error(cause)) => return Err(ConvertError::io(&path, "lock it")(cause)),
        }
        let mut journal = Journal { path, file, done: Vec::new(), begin: 0 };
        let earlier = journal.read()?;
        if !unfinished {
            // Empty is what a kill in the first moment leaves.
            if earlier.is_none() && journal.length()? > 0 {
                return Err(ConvertError::InTheWay { path: journal.path });
            }
            journal.begin(identity)?;
            return Ok(journal);
        }
        let Some(earlier) = earlier else {
            return Err(refuse("its journal is damaged".to_owned()));
        };
        match identity.difference(&earlier) {
            Some(difference) => Err(refuse(format!("it was begun with {difference}"))),
            None => Ok(journal),
        }
    }

    /// Whether no tensor is complete.
    pub fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// Tensors that were written, in output order.
    pub fn done(&self) -> Vec<Done> {
        self.done.iter().map(|(done, _)| *done).collect()
    }

    /// Forgets all but the first `count` tensors, and anything that is not a whole line.
    ///
    /// # Errors
    /// From the system.
    pub fn keep(&mut self, count: usize) -> Result<(), ConvertError> {
        self.done.truncate(count);
        let end = self.done.last().map_or(self.begin, |(_, end)| *end);
        let cut = self.file.set_len(end).and_then(|()| self.file.seek(SeekFrom::Start(end)));
        cut.map(drop).map_err(ConvertError::io(&self.path, "write it"))
    }

    /// Puts the next tensor on record.
    ///
    /// # Errors
    /// From the system.
    pub fn record(&mut self, done: Done) -> Result<(), ConvertError> {
        self.append(&done)?;
        let end = self.file.stream_position().map_err(ConvertError::io(&self.path, "write it"))?;
        self.done.push((done, end));
        Ok(())
    }

    fn length(&self) -> Result<u64, ConvertError> {
        let meta = self.file.metadata().map_err(ConvertError::io(&self.path, "read it"))?;
        Ok(meta.len())
    }

    /// Removes the journal of a conversion that has finished.
    ///
    /// # Errors
    /// From the system.
    pub fn remove(self) -> Result<(), ConvertError> {
        std::fs::remove_file(&self.path).map_err(ConvertError::io(&self.path, "remove it"))
    }

    fn begin(&mut self, identity: &Identity) -> Result<(), ConvertError> {
        self.begin = 0;
        self.keep(0)?;
        self.append(identity)?;
        // An unfinished file must not outlive its journal.
        let begun = self.file.sync_all().and_then(|()| self.file.stream_position());
        self.begin = begun.map_err(ConvertError::io(&self.path, "write it"))?;
        Ok(())
    }

    fn append(&mut self, line: &impl Serialize) -> Result<(), ConvertError> {
        let json = serde_json::to_vec(line);
        let mut json = json.map_err(|cause| ConvertError::Json { path: self.path.clone(), cause })?;
        json.push(b'\n');
        self.file.write_all(&json).map_err(ConvertError::io(&self.path, "write it"))
    }

    /// Reads all whole lines up to the first that means nothing; `None` if that is the one that identifies the work.
    fn read(&mut self) -> Result<Option<Identity>, ConvertError> {
        let mut text = Vec::new();
        self.file.read_to_end(&mut text).map_err(ConvertError::io(&self.path, "read it"))?;
        let mut lines = text.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let Some(first) = lines.next() else { return Ok(None) };
        let Ok(identity) = serde_json::from_slice(first) else { return Ok(None) };
        self.begin = first.len() as u64;
        let mut end = self.begin;
        for line in lines {
            let Ok(done) = serde_json::from_slice(line) else { break };
            end += line.len() as u64;
            self.done.push((done, end));
        }
        Ok(Some(identity))
    }
}
