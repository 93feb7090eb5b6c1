//! What an engine keeps of its sequences: prefixes for later prompts, and both in files.

use std::path::Path;

use serde_json::Value;

use crate::engine::Engine;
use crate::prefix::{Prefix, PrefixCache, PrefixFile, PrefixStats};
use crate::session_file;
use crate::state_file::Fingerprint;
use crate::{EngineError, SequenceId};

/// A sequence that may begin with something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The sequence.
    pub sequence: SequenceId,
    /// Tokens of the prompt that it holds already.
    pub cached: usize,
    /// Tokens of the prompt whose keys and values are kept, though the state after them may not be: another prompt went on
    /// differently from there.
    pub shared: usize,
}

impl Engine {
    /// Opens a sequence that goes on from the longest prefix of `prompt` that was kept in `namespace`, if any. At least the
    /// last token remains to be run, for its logits. Without a prefix cache the sequence is empty.
    ///
    /// # Errors
    /// [`EngineError::NoFreeSequence`] when all are in use.
    pub fn open_prefix(&mut self, namespace: &str, prompt: &[u32]) -> Result<Opened, EngineError> {
        let (sequence, hit) = self.caches.open_after(namespace, prompt)?;
        Ok(Opened { sequence, cached: hit.tokens, shared: hit.shared })
    }

    /// Keeps what a sequence has run for prompts in the same namespace that begin with it: `tokens`, which are all of its
    /// tokens. The pages are shared, not copied. A model with recurrent layers can keep the state of this moment only, so
    /// for one the number of tokens must be a multiple of the page. True if it was kept.
    ///
    /// # Errors
    /// [`EngineError::Sequence`] when the id is not live, [`EngineError::Prefix`] when it has run another number of tokens.
    pub fn keep_prefix(
        &mut self,
        id: SequenceId,
        namespace: &str,
        tokens: &[u32],
    ) -> Result<bool, EngineError> {
        self.caches.keep(id, Prefix { namespace, tokens, ..Prefix::default() })
    }

    /// As [`keep_prefix`](Self::keep_prefix), until the same sequence does so again: then this one `replaces` the state of its
    /// first so many tokens.
    pub(crate) fn keep_passing(
        &mut self,
        id: SequenceId,
        namespace: &str,
        tokens: &[u32],
        replaces: Option<usize>,
    ) -> Result<bool, EngineError> {
        self.caches.keep(id, Prefix { namespace, tokens, passing: true, replaces, ..Prefix::default() })
    }

    /// Whether the state after so many tokens can be kept.
    pub(crate) fn at_page_end(&self, position: usize) -> bool {
        let stateful = self.caches.prefix().is_some_and(PrefixCache::is_stateful);
        stateful && position.is_multiple_of(self.selected.page_tokens)
    }

    /// Tokens to the next position whose state can be kept.
    pub(crate) fn to_page_end(&self, position: usize) -> usize {
        let page = self.selected.page_tokens;
        match self.caches.prefix() {
            Some(prefix) if prefix.is_stateful() => page - position % page,
            _ => usize::MAX,
        }
    }

    /// Counters of the prefix cache, if there is one.
    pub fn prefix_stats(&self) -> Option<PrefixStats> {
        self.caches.prefix_stats()
    }

    /// Writes all kept prefixes to a file, for a later run. The file appears whole or not at all. Nothing is written where
    /// nothing is kept.
    ///
    /// # Errors
    /// [`EngineError::StateFile`] from the system.
    pub fn save_prefixes(&self, path: &Path) -> Result<PrefixFile, EngineError> {
        if self.prefix_stats().is_none_or(|stats| stats.pages == 0) {
            return Ok(PrefixFile::default());
        }
        self.caches.save_prefixes(path, self.fingerprint()?)
    }

    /// Takes in the prefixes of a file, in the place of those that are kept. If there is too little room, those that were
    /// used last come first.
    ///
    /// # Errors
    /// [`EngineError::StateFile`] if the file is damaged, or was made by another model, with other KV types or pages, or by
    /// another arithmetic. Then nothing of it is kept.
    pub fn load_prefixes(&mut self, path: &Path) -> Result<PrefixFile, EngineError> {
        let fingerprint = self.fingerprint()?;
        self.caches.load_prefixes(path, &fingerprint)
    }

    /// What kept states depend on besides their tokens.
    fn fingerprint(&self) -> Result<Fingerprint, EngineError> {
        Fingerprint::of(&self.file, self.selected.kv, self.options.dequantize)
    }

    /// Writes a sequence that has run `tokens`, with what the caller wants to find again.
    pub(crate) fn save_sequence(
        &self,
        path: &Path,
        sequence: Option<SequenceId>,
        tokens: &[u32],
        caller: Value,
    ) -> Result<u64, EngineError> {
        session_file::save(path, self.fingerprint()?, &self.caches, sequence, tokens, caller)
    }

    /// Opens a sequence as a file has it, with its tokens and what the caller kept.
    pub(crate) fn load_sequence(
        &mut self,
        path: &Path,
    ) -> Result<(Option<SequenceId>, Vec<u32>, Value), EngineError> {
        let fingerprint = self.fingerprint()?;
        session_file::load(path, &fingerprint, &mut self.caches)
    }

    /// Forgets all prefixes that were kept.
    pub fn clear_prefixes(&mut self) {
        self.caches.clear_prefixes();
    }

    /// Checks that pages, sequences and prefixes agree. Costs a walk over all of them.
    ///
    /// # Errors
    /// [`EngineError::Integrity`] with what does not fit.
    pub fn check_integrity(&self) -> Result<(), EngineError> {
        self.caches.check_integrity()
    }
}
