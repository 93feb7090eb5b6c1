//! Files that hold what a model has read: their container.
//!
//! A magic of 8 bytes, the version, the length of a JSON header, the header, a body, and the xxHash64 of all of it. The header says
//! what the body was made by ([`Fingerprint`]); a file is hashed to its end before anything of it is used.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use basert_format::{BaseFile, Output};
use basert_kernels::ARITHMETIC;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh64::Xxh64;

use crate::EngineError;
use crate::kv::KvTypes;

/// 2: keys and values of the prediction head.
const VERSION: u32 = 2;
/// Magic, version and header length.
const PREAMBLE: u64 = 16;
const CHECKSUM: u64 = 8;
const MAX_HEADER: u32 = 64 << 20;

/// What a kept state depends on besides its tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    /// xxHash64 of the model file's header, which has the checksums of all tensors, the tokenizer and the configuration.
    model: String,
    arithmetic: String,
    k: String,
    v: String,
    /// Whether quantised matrices were decoded, which rounds differently.
    dequantized: bool,
}

impl Fingerprint {
    /// Of a model that runs with these types.
    pub fn of(file: &BaseFile, kv: KvTypes, dequantized: bool) -> Result<Fingerprint, EngineError> {
        let text = serde_json::to_vec(file.header());
        let text = text.map_err(|e| problem(file.path(), &format!("its header cannot be written: {e}")))?;
        let mut hash = Xxh64::new(0);
        hash.update(&text);
        Ok(Fingerprint {
            model: format!("{:016x}", hash.digest()),
            arithmetic: ARITHMETIC.to_owned(),
            k: kv.k.name().to_owned(),
            v: kv.v.name().to_owned(),
            dequantized,
        })
    }

    /// Why a state of `other` cannot be used here, if it cannot.
    pub fn differs(&self, other: &Fingerprint) -> Option<String> {
        let Fingerprint { model, arithmetic, k, v, dequantized } = other;
        if *model != self.model {
            return Some("it was made by another model".to_owned());
        }
        if *arithmetic != self.arithmetic {
            let own = &self.arithmetic;
            return Some(format!("it was made with arithmetic {arithmetic}, this version has {own}"));
        }
        if (k, v) != (&self.k, &self.v) {
            return Some(format!(
                "it was made with K {k} and V {v}, this cache has K {} and V {}",
                self.k, self.v
            ));
        }
        (*dequantized != self.dequantized).then(|| "its weights were decoded differently".to_owned())
    }
}

/// An error about a state file.
pub(crate) fn problem(path: &Path, reason: &str) -> EngineError {
    EngineError::StateFile { path: path.to_path_buf(), reason: reason.to_owned() }
}

/// An error of the system on a state file.
pub(crate) fn failed(path: &Path) -> impl Fn(io::Error) -> EngineError {
    move |e| problem(path, &e.to_string())
}

/// Takes the bytes of a body.
pub(crate) struct Sink {
    out: BufWriter<File>,
    hash: Xxh64,
    written: u64,
}

impl Sink {
    /// Writes bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Writes numbers, little-endian.
    pub fn ids(&mut self, ids: &[u32]) -> io::Result<()> {
        ids.iter().try_for_each(|id| self.bytes(&id.to_le_bytes()))
    }

    /// Writes floats, little-endian.
    pub fn floats(&mut self, floats: &[f32]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(4096);
        for floats in floats.chunks(1024) {
            bytes.clear();
            floats.iter().for_each(|float| bytes.extend_from_slice(&float.to_le_bytes()));
            self.bytes(&bytes)?;
        }
        Ok(())
    }
}

/// Writes a state file, which appears whole or not at all and replaces an older one. Gives its length.
///
/// # Errors
/// From the system.
pub(crate) fn write(
    path: &Path,
    magic: &[u8; 8],
    header: &impl Serialize,
    body: impl FnOnce(&mut Sink) -> io::Result<()>,
) -> Result<u64, EngineError> {
    let header = serde_json::to_vec(header).map_err(|e| problem(path, &e.to_string()))?;
    let length = u32::try_from(header.len()).ok().filter(|length| *length <= MAX_HEADER);
    let length = length.ok_or_else(|| problem(path, "there is too much to say about it"))?;
    let write = || -> io::Result<u64> {
        let unfinished = Output::new(path).replace(true).create()?;
        let out = BufWriter::with_capacity(1 << 20, unfinished.file.try_clone()?);
        let mut sink = Sink { out, hash: Xxh64::new(0), written: 0 };
        sink.bytes(magic)?;
        sink.ids(&[VERSION, length])?;
        sink.bytes(&header)?;
        body(&mut sink)?;
        let checksum = sink.hash.digest();
        sink.bytes(&checksum.to_le_bytes())?;
        let Sink { mut out, written, .. } = sink;
        out.flush()?;
        drop(out);
        unfinished.file.sync_all()?;
        unfinished.publish()?;
        Ok(written)
    };
    write().map_err(failed(path))
}

/// An intact state file.
pub(crate) struct Source {
    input: BufReader<File>,
    /// Bytes of the body.
    pub body: u64,
}

impl Source {
    /// Opens a file and hashes it to its end.
    ///
    /// # Errors
    /// A file that is no such state file, of another version, or damaged.
    pub fn open<H: for<'de> Deserialize<'de>>(
        path: &Path,
        magic: &[u8; 8],
    ) -> Result<(H, Source), EngineError> {
        let file = File::open(path).map_err(failed(path))?;
        let length = file.metadata().map_err(failed(path))?.len();
        let mut input = BufReader::with_capacity(1 << 20, file);
        let mut start = [0; PREAMBLE as usize];
        let whole = length >= PREAMBLE + CHECKSUM;
        if !whole || input.read_exact(&mut start).is_err() || start[..8] != magic[..] {
            return Err(problem(path, "it is no such file, or cut off"));
        }
        let number = |at: usize| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
        let (version, header) = (number(8), number(12));
        if version != VERSION {
            return Err(problem(path, &format!("it has version {version}, this program reads {VERSION}")));
        }
        let body = (length - PREAMBLE - CHECKSUM).checked_sub(u64::from(header));
        let body = body.filter(|_| header <= MAX_HEADER).ok_or_else(|| problem(path, "it is cut off"))?;
        check_hash(&mut input, length).map_err(failed(path))?.map_err(|reason| problem(path, reason))?;
        input.seek(SeekFrom::Start(PREAMBLE)).map_err(failed(path))?;
        let mut text = vec![0; header as usize];
        input.read_exact(&mut text).map_err(failed(path))?;
        let header =
            serde_json::from_slice(&text).map_err(|e| problem(path, &format!("its header is wrong: {e}")))?;
        Ok((header, Source { input, body }))
    }

    /// Reads bytes.
    pub fn bytes(&mut self, out: &mut [u8]) -> io::Result<()> {
        self.input.read_exact(out)
    }

    /// Passes over bytes.
    pub fn skip(&mut self, count: u64) -> io::Result<()> {
        let count = i64::try_from(count).map_err(io::Error::other)?;
        self.input.seek_relative(count)
    }

    /// Reads numbers.
    pub fn ids(&mut self, count: usize) -> io::Result<Vec<u32>> {
        let mut bytes = [0; 4];
        let mut id = || self.input.read_exact(&mut bytes).map(|()| u32::from_le_bytes(bytes));
        (0..count).map(|_| id()).collect()
    }

    /// Reads floats.
    pub fn floats(&mut self, out: &mut [f32]) -> io::Result<()> {
        let mut bytes = [0; 4];
        for float in out {
            self.input.read_exact(&mut bytes)?;
            *float = f32::from_le_bytes(bytes);
        }
        Ok(())
    }
}

/// Compares the hash of a file of `length` bytes with the one at its end.
fn check_hash(input: &mut BufReader<File>, length: u64) -> io::Result<Result<(), &'static str>> {
    input.seek(SeekFrom::Start(0))?;
    let mut hash = Xxh64::new(0);
    let mut chunk = vec![0; 1 << 20];
    let mut left = length - CHECKSUM;
    while left > 0 {
        let part = left.min(chunk.len() as u64) as usize;
        input.read_exact(&mut chunk[..part])?;
        hash.update(&chunk[..part]);
        left -= part as u64;
    }
    let mut stored = [0; CHECKSUM as usize];
    input.read_exact(&mut stored)?;
    let same = u64::from_le_bytes(stored) == hash.digest();
    Ok(if same { Ok(()) } else { Err("it is damaged: its checksum is wrong") })
}
