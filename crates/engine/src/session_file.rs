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
    /// The same in the prediction head, if it was loaded.
    draft_bytes: u64,
    state_elements: usize,
    /// Rows that the prediction head's cache does not hold yet.
    waiting: Waiting,
}

/// What of [`DraftRows`](crate::speculate::DraftRows) a file keeps.
#[derive(Default, Serialize, Deserialize)]
struct Waiting {
    /// Rows that are in the cache.
    entered: usize,
    tokens: Vec<u32>,
    /// f32 elements of the trunk's outputs at the end of the body.
    outputs: usize,
}

impl Header {
    fn body(&self) -> Option<u64> {
        let floats = (self.state_elements as u64).checked_add(self.waiting.outputs as u64)?.checked_mul(4)?;
        let token = self.token_bytes.checked_add(self.draft_bytes)?;
        (self.tokens.len() as u64).checked_mul(token)?.checked_add(floats)
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
    let waits = sequence.and_then(|sequence| sequence.draft.waits(tokens.len()));
    let (entered, waiting, outputs) = waits.unwrap_or_default();
    let (trunk, head) = caches.split();
    let header = Header {
        fingerprint,
        caller,
        tokens: tokens.to_vec(),
        token_bytes: token_bytes(trunk),
        draft_bytes: token_bytes(head),
        state_elements: state.len(),
        waiting: Waiting { entered, tokens: waiting.to_vec(), outputs: outputs.len() },
    };
    let body = |sink: &mut Sink| -> io::Result<()> {
        let Some(sequence) = sequence else { return Ok(()) };
        for layer in trunk.iter().chain(head) {
            for (pool, dtype) in [(&layer.k, layer.geometry.k), (&layer.v, layer.geometry.v)] {
                let mut runs = layer.runs(dtype, &sequence.pages, tokens.len()).into_iter();
                runs.try_for_each(|run| sink.bytes(&pool.as_bytes()[run]))?;
            }
        }
        sink.floats(&sequence.state)?;
        sink.floats(outputs)
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
    let (trunk, head) = caches.split();
    let (token, draft) = (token_bytes(trunk), token_bytes(head));
    let draft_differs = header.draft_bytes > 0 && draft > 0 && header.draft_bytes != draft;
    if (header.token_bytes, header.state_elements) != (token, caches.state_len) || draft_differs {
        return Err(problem(path, "its pages and states have other sizes"));
    }
    let id = caches.open()?;
    match fill(caches, id, &mut source, &header) {
        Ok(read) => read.map_err(failed(path)),
        Err(error) => Err(error),
    }
    .inspect_err(|_| caches.close(id))?;
    Ok((Some(id), header.tokens, header.caller))
}

/// Bytes of a token in all of these layers.
fn token_bytes(layers: &[KvLayer]) -> u64 {
    layers.iter().map(KvLayer::token_bytes).sum()
}

fn fill(
    caches: &mut Caches,
    id: SequenceId,
    source: &mut Source,
    header: &Header,
) -> Result<io::Result<()>, EngineError> {
    let tokens = header.tokens.len();
    caches.reserve(id, tokens)?;
    let trunk = caches.split().0.len();
    let (sequence, layers) = caches.parts(id)?;
    let (trunk, head) = layers.split_at_mut(trunk);
    sequence.position = tokens;
    let has_head = header.draft_bytes > 0 && !head.is_empty();
    let mut read = || -> io::Result<()> {
        read_layers(source, trunk, &sequence.pages, tokens)?;
        if has_head {
            read_layers(source, head, &sequence.pages, tokens)?;
        } else {
            source.skip(header.draft_bytes * tokens as u64)?;
        }
        source.floats(&mut sequence.state)?;
        let Waiting { entered, tokens: waiting, outputs } = &header.waiting;
        let mut rows = vec![0.0; *outputs];
        source.floats(&mut rows)?;
        if has_head {
            sequence.draft.resume(tokens, *entered, waiting, &rows);
        }
        Ok(())
    };
    Ok(read())
}

/// Reads keys and values of `tokens` tokens into these layers.
fn read_layers(source: &mut Source, layers: &mut [KvLayer], pages: &[u32], tokens: usize) -> io::Result<()> {
    for layer in layers {
        for run in layer.runs(layer.geometry.k, pages, tokens) {
            source.bytes(&mut layer.k.as_bytes_mut()[run])?;
        }
        for run in layer.runs(layer.geometry.v, pages, tokens) {
            source.bytes(&mut layer.v.as_bytes_mut()[run])?;
        }
    }
    Ok(())
}
