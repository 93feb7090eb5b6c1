//! One sequence in a file, to go on from exactly where it was.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::EngineError;
use crate::cache::{Caches, KvLayer, SequenceId};
use crate::state_file::{self, Fingerprint, Sink, Source, failed, problem};

const MAGIC: &[u8; 8] = b"BASERTSE";

#[derive(Serialize, Deserialize)]
struct Header {
    fingerprint: Fingerprint,
    /// What the caller keeps beside the sequence.
    caller: Value,
    tokens: Vec<u32>,
    /// Bytes of the keys and values of one token in all layers.
    token_bytes: u64,
    state_elements: usize,
}

impl Header {
    fn body(&self) -> Option<u64> {
        let states = (self.state_elements as u64).checked_mul(4)?;
        (self.tokens.len() as u64).checked_mul(self.token_bytes)?.checked_add(states)
    }
}

/// Writes a sequence that has run `tokens`, with what the caller wants to find again. The page size is no part of it.
///
/// # Errors
/// A sequence that is not live, and those of the system.
pub(crate) fn save(
    path: &Path,
    fingerprint: Fingerprint,
    caches: &Caches,
    sequence: Option<SequenceId>,
    tokens: &[u32],
    caller: Value,
) -> Result<u64, EngineError> {
    let sequence = sequence.map(|id| caches.get(id)).transpose()?;
    let state: &[f32] = sequence.map_or(&[], |sequence| &sequence.state);
    let header = Header {
        fingerprint,
        caller,
        tokens: tokens.to_vec(),
        token_bytes: caches.trunk().iter().map(KvLayer::token_bytes).sum(),
        state_elements: state.len(),
    };
    let body = |sink: &mut Sink| -> io::Result<()> {
        let Some(sequence) = sequence else { return Ok(()) };
        for layer in caches.trunk() {
            for (pool, dtype) in [(&layer.k, layer.geometry.k), (&layer.v, layer.geometry.v)] {
                let mut runs = layer.runs(dtype, &sequence.pages, tokens.len()).into_iter();
                runs.try_for_each(|run| sink.bytes(&pool.as_bytes()[run]))?;
            }
        }
        sink.floats(&sequence.state)
    };
    state_file::write(path, MAGIC, &header, body)
}

/// What the caller of [`Session::save`](crate::Session::save) wanted to find again, without the sequence.
///
/// # Errors
/// [`EngineError::StateFile`] if the file is damaged or no session.
pub fn session_caller(path: &Path) -> Result<Value, EngineError> {
    let (header, _): (Header, Source) = Source::open(path, MAGIC)?;
    Ok(header.caller)
}

/// Opens a sequence as a file has it; `None` if nothing had been run. With its tokens and what the caller kept.
///
/// # Errors
/// A file that is damaged or was made by something else, more tokens than the context holds, and no free sequence.
pub(crate) fn load(
    path: &Path,
    fingerprint: &Fingerprint,
    caches: &mut Caches,
) -> Result<(Option<SequenceId>, Vec<u32>, Value), EngineError> {
    let (header, mut source): (Header, Source) = Source::open(path, MAGIC)?;
    if let Some(reason) = fingerprint.differs(&header.fingerprint) {
        return Err(problem(path, &reason));
    }
    if header.body() != Some(source.body) {
        return Err(problem(path, "its length is wrong"));
    }
    if header.tokens.is_empty() {
        return Ok((None, Vec::new(), header.caller));
    }
    let token_bytes: u64 = caches.trunk().iter().map(KvLayer::token_bytes).sum();
    if (header.token_bytes, header.state_elements) != (token_bytes, caches.state_len) {
        return Err(problem(path, "its pages and states have other sizes"));
    }
    let id = caches.open()?;
    match fill(caches, id, &mut source, header.tokens.len()) {
        Ok(read) => read.map_err(failed(path)),
        Err(error) => Err(error),
    }
    .inspect_err(|_| caches.close(id))?;
    Ok((Some(id), header.tokens, header.caller))
}

fn fill(
    caches: &mut Caches,
    id: SequenceId,
    source: &mut Source,
    tokens: usize,
) -> Result<io::Result<()>, EngineError> {
    caches.reserve(id, tokens)?;
    let trunk = caches.trunk().len();
    let (sequence, layers) = caches.parts(id)?;
    sequence.position = tokens;
    let mut read = || -> io::Result<()> {
        for layer in &mut layers[..trunk] {
            for run in layer.runs(layer.geometry.k, &sequence.pages, tokens) {
                source.bytes(&mut layer.k.as_bytes_mut()[run])?;
            }
            for run in layer.runs(layer.geometry.v, &sequence.pages, tokens) {
                source.bytes(&mut layer.v.as_bytes_mut()[run])?;
            }
        }
        source.floats(&mut sequence.state)
    };
    Ok(read())
}
