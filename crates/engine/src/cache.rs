//! What a sequence leaves behind: KV pages of the attention layers and the fixed-size state of the
//! recurrent ones.
//!
//! K and V live in pools of pages, one pool per attention layer and side; a page id means the same
//! page in every layer. "Contiguous" is a pool whose page is the whole context. A recurrent layer owns
//! a slice of the sequence's state vector: the f32 delta state, then the convolution's last inputs.

use std::ops::Range;
use std::path::Path;

use basert_kernels::{Buffer, KvDtype, KvGeometry};
use basert_model::plan::StateBytes;
use basert_model::{Attention, LayerSpec, Mixer, ModelSpec};

use crate::EngineError;
use crate::kv::{KvPools, KvTypes};
use crate::pages::Pages;
use crate::plan::MemoryPlan;
use crate::prefix::{Hit, Prefix, PrefixCache, PrefixFile, PrefixStats};
use crate::speculate::{DraftRows, DraftSizes};
use crate::state_file::Fingerprint;

/// A live sequence of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(pub(crate) usize);

/// K and V pages of one attention layer.
pub(crate) struct KvLayer {
    pub geometry: KvGeometry,
    pub k: Buffer,
    pub v: Buffer,
}

impl KvLayer {
    /// The two pools, to be read page by page: bytes of a page, of K and of V.
    fn side_bytes(&self) -> (usize, usize) {
        (self.geometry.page_bytes(self.geometry.k), self.geometry.page_bytes(self.geometry.v))
    }

    /// Bytes of a page's keys and values.
    pub fn page_bytes(&self) -> u64 {
        let (k, v) = self.side_bytes();
        (k + v) as u64
    }

    /// Bytes of one token's keys and values.
    pub fn token_bytes(&self) -> u64 {
        self.page_bytes() / self.geometry.page_tokens as u64
    }

    /// A page's keys and values.
    pub fn page(&self, page: u32) -> (&[u8], &[u8]) {
        let ((k, v), page) = (self.side_bytes(), page as usize);
        (&self.k.as_bytes()[page * k..(page + 1) * k], &self.v.as_bytes()[page * v..(page + 1) * v])
    }

    /// The same, to write.
    pub fn page_mut(&mut self, page: u32) -> (&mut [u8], &mut [u8]) {
        let ((k, v), page) = (self.side_bytes(), page as usize);
        let keys = &mut self.k.as_bytes_mut()[page * k..(page + 1) * k];
        (keys, &mut self.v.as_bytes_mut()[page * v..(page + 1) * v])
    }

    /// Where the first `tokens` positions of `pages` lie in the pool of type `dtype`: head by head in order of position, so
    /// that their bytes in this order do not depend on the page.
    pub fn runs(&self, dtype: KvDtype, pages: &[u32], tokens: usize) -> Vec<Range<usize>> {
        let KvGeometry { kv_heads, page_tokens, .. } = self.geometry;
        let row = self.geometry.page_bytes(dtype) / (kv_heads * page_tokens);
        let whole = pages[..tokens.div_ceil(page_tokens)].iter().enumerate();
        let run = |head: usize, index: usize, page: u32| {
            let rows = page_tokens.min(tokens - index * page_tokens);
            let start = (page as usize * kv_heads + head) * page_tokens * row;
            start..start + rows * row
        };
        let of_head = |head| whole.clone().map(move |(index, &page)| run(head, index, page));
        (0..kv_heads).flat_map(of_head).collect()
    }
}

/// One sequence's place in the caches.
pub(crate) struct Sequence {
    /// Pages in order of position.
    pub pages: Vec<u32>,
    /// Tokens already run.
    pub position: usize,
    /// States of all recurrent layers, one after the other.
    pub state: Vec<f32>,
    /// Its part in speculation.
    pub draft: DraftRows,
}

/// Where a recurrent layer's state lies in [`Sequence::state`], in f32 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateSlot {
    pub start: usize,
    pub delta: usize,
    pub conv: usize,
    /// The layer's place in what is kept of a guess.
    pub kept: usize,
}

impl StateSlot {
    /// The delta state `[value heads, key dim, value dim]` and the convolution tail
    /// `[kernel - 1, channels]` of this layer.
    pub fn split<'a>(&self, state: &'a mut [f32]) -> (&'a mut [f32], &'a mut [f32]) {
        state[self.start..self.start + self.delta + self.conv].split_at_mut(self.delta)
    }

    /// The same, to read.
    pub fn view<'a>(&self, state: &'a [f32]) -> (&'a [f32], &'a [f32]) {
        state[self.start..self.start + self.delta + self.conv].split_at(self.delta)
    }
}

/// The cache slot of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerCache {
    /// Index into [`Caches::kv`].
    Kv(usize),
    /// Part of the sequence's state.
    State(StateSlot),
}

/// Sizes from which the caches are planned and allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheSizes {
    pub kv: KvTypes,
    pub context: usize,
    pub page_tokens: usize,
    pub sequences: usize,
    /// Pages beside those of the sequences, for prefixes that outlive theirs.
    pub cached_pages: usize,
    /// Snapshots of states at their ends.
    pub snapshots: usize,
    /// Most guesses of a sequence's step.
    pub drafts: usize,
}

impl CacheSizes {
    /// Pages of one sequence at full context.
    pub fn pages_per_sequence(&self) -> usize {
        self.context.div_ceil(self.page_tokens)
    }

    /// Pages of all sequences; saturating.
    pub fn sequence_pages(&self) -> usize {
        self.pages_per_sequence().saturating_mul(self.sequences)
    }

    /// Pages of the pools. Sequences share pages with kept prefixes, so there are always enough.
    pub fn pages(&self) -> usize {
        self.sequence_pages().saturating_add(self.cached_pages)
    }

    /// Page ids are 32-bit.
    pub fn pages_have_ids(&self) -> bool {
        u32::try_from(self.pages()).is_ok()
    }

    /// Bytes of the K and the V pool of a layer; saturating, so that absurd sizes are refused as such.
    pub fn pool_bytes(&self, attention: &Attention) -> (usize, usize) {
        let tokens = self.pages().saturating_mul(self.page_tokens);
        let (k, v) = self.kv.layer_bytes(attention);
        (tokens.saturating_mul(k as usize), tokens.saturating_mul(v as usize))
    }

    /// f32 elements of a layer's recurrent state, if it has any: delta state and convolution tail.
    pub fn state_elements(layer: &LayerSpec) -> Option<(usize, usize)> {
        let Mixer::GatedDelta(delta) = &layer.mixer else { return None };
        let bytes = StateBytes::of(delta);
        Some((bytes.delta as usize / size_of::<f32>(), bytes.conv as usize / size_of::<f32>()))
    }
}

/// All caches of an engine.
pub(crate) struct Caches {
    pub layers: Vec<LayerCache>,
    /// Those of the trunk, then that of the prediction head.
    pub kv: Vec<KvLayer>,
    /// The prediction head's index in `kv`.
    pub draft: Option<usize>,
    sequences: Vec<Option<Sequence>>,
    /// States of closed sequences, for the next ones: memory that is there already.
    idle_states: Vec<Vec<f32>>,
    pages: Pages,
    prefix: Option<PrefixCache>,
    /// f32 elements of one sequence's recurrent state.
    pub state_len: usize,
    sizes: CacheSizes,
    draft_sizes: DraftSizes,
}

impl Caches {
    /// Allocates every pool.
    ///
    /// # Errors
    /// [`EngineError::Kernel`] when the memory cannot be had.
    pub fn new(spec: &ModelSpec, sizes: CacheSizes) -> Result<Caches, EngineError> {
        let mut caches = Caches {
            layers: Vec::with_capacity(spec.layers.len()),
            kv: Vec::new(),
            draft: None,
            sequences: (0..sizes.sequences).map(|_| None).collect(),
            idle_states: Vec::with_capacity(sizes.sequences),
            pages: Pages::new(sizes.pages()),
            prefix: None,
            state_len: 0,
            sizes,
            draft_sizes: DraftSizes::new(spec, sizes.drafts),
        };
        let mut kept = 0;
        for layer in &spec.layers {
            caches.add_layer(layer, kept)?;
            kept += DraftSizes::layer_inputs(layer);
        }
        if let Some(Mixer::Attention(a)) = spec.draft.map(|layer| layer.mixer) {
            caches.draft = Some(caches.add_pools(&a)?);
        }
        let CacheSizes { page_tokens, cached_pages, snapshots, .. } = sizes;
        caches.prefix = (cached_pages > 0)
            .then(|| PrefixCache::new(page_tokens, cached_pages, snapshots, caches.state_len));
        Ok(caches)
    }

    fn add_layer(&mut self, layer: &LayerSpec, kept: usize) -> Result<(), EngineError> {
        if let Mixer::Attention(a) = &layer.mixer {
            let index = self.add_pools(a)?;
            self.layers.push(LayerCache::Kv(index));
        } else if let Some((delta, conv)) = CacheSizes::state_elements(layer) {
            self.layers.push(LayerCache::State(StateSlot { start: self.state_len, delta, conv, kept }));
            self.state_len += delta + conv;
        }
        Ok(())
    }

    /// Allocates the pools of a layer; gives their index.
    fn add_pools(&mut self, a: &Attention) -> Result<usize, EngineError> {
        let (k, v) = self.sizes.pool_bytes(a);
        let geometry = KvGeometry {
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            page_tokens: self.sizes.page_tokens,
            k: self.sizes.kv.k,
            v: self.sizes.kv.v,
        };
        self.kv.push(KvLayer { geometry, k: Buffer::try_zeroed(k)?, v: Buffer::try_zeroed(v)? });
        Ok(self.kv.len() - 1)
    }

    /// Number of layers of the trunk, which come first.
    fn trunk(&self) -> usize {
        self.draft.unwrap_or(self.kv.len())
    }

    /// The layers of the trunk, and those of the prediction head.
    pub fn split(&self) -> (&[KvLayer], &[KvLayer]) {
        self.kv.split_at(self.trunk())
    }

    /// Element types of the allocated pools; the requested ones for a model without attention.
    pub fn types(&self) -> KvTypes {
        self.kv.first().map_or(self.sizes.kv, |layer| KvTypes { k: layer.geometry.k, v: layer.geometry.v })
    }

    /// What was allocated for K and V.
    pub fn pools(&self) -> KvPools {
        let bytes = |layer: &KvLayer| layer.k.len() + layer.v.len();
        let pages = |layer: &KvLayer| layer.k.len() / layer.geometry.page_bytes(layer.geometry.k);
        let pages = self.kv.first().map_or(0, pages);
        let bytes = self.kv.iter().map(bytes).sum::<usize>() as u64;
        let tokens = (pages * self.sizes.page_tokens) as u64;
        let bytes_per_token = bytes.checked_div(tokens).unwrap_or(0);
        KvPools { layers: self.kv.len(), pages, bytes, bytes_per_token }
    }

    /// A new empty sequence.
    pub fn open(&mut self) -> Result<SequenceId, EngineError> {
        self.open_at(&Hit::default())
    }

    /// A new sequence that holds as much of `prompt` as is known, at most all but its last token.
    pub fn open_after(&mut self, namespace: &str, prompt: &[u32]) -> Result<(SequenceId, Hit), EngineError> {
        if self.sequences.iter().all(Option::is_some) {
            return Err(EngineError::NoFreeSequence(self.sequences.len()));
        }
        let find = |prefix: &mut PrefixCache| prefix.find(namespace, prompt);
        let hit = self.prefix.as_mut().map(find).unwrap_or_default();
        Ok((self.open_at(&hit)?, hit))
    }

    fn open_at(&mut self, hit: &Hit) -> Result<SequenceId, EngineError> {
        let free = self.sequences.iter().position(Option::is_none);
        let index = free.ok_or(EngineError::NoFreeSequence(self.sequences.len()))?;
        let mut sequence = Sequence {
            pages: Vec::with_capacity(self.sizes.pages_per_sequence()),
            position: hit.tokens,
            state: self.state(hit),
            draft: DraftRows::new(self.draft_sizes, hit.tokens),
        };
        sequence.pages.extend_from_slice(&hit.pages);
        hit.pages.iter().for_each(|&page| self.pages.hold(page));
        self.sequences[index] = Some(sequence);
        Ok(SequenceId(index))
    }

    /// The state behind a hit, or zeros. They are written, so that the first step does not wait for the system to find pages for them.
    fn state(&mut self, hit: &Hit) -> Vec<f32> {
        let mut state = self.idle_states.pop().unwrap_or_else(|| Vec::with_capacity(self.state_len));
        state.clear();
        match self.prefix.as_ref().zip(hit.snapshot) {
            Some((prefix, snapshot)) => state.extend_from_slice(prefix.state(snapshot)),
            None => state.resize(self.state_len, 0.0),
        }
        state
    }

    /// Keeps the whole pages of a sequence that has run `tokens` for others. False if nothing was kept: there is no room, or
    /// there is a recurrent state and it is not that of a page's end.
    pub fn keep(&mut self, id: SequenceId, prefix: Prefix<'_>) -> Result<bool, EngineError> {
        let sequence =
            self.sequences.get(id.0).and_then(Option::as_ref).ok_or(EngineError::Sequence(id.0))?;
        let Some(cache) = &mut self.prefix else { return Ok(false) };
        let (page, tokens) = (self.sizes.page_tokens, prefix.tokens.len());
        if tokens != sequence.position {
            return Err(EngineError::Prefix { given: tokens, run: sequence.position });
        }
        let whole = tokens / page;
        if whole == 0 || (cache.is_stateful() && !tokens.is_multiple_of(page)) {
            return Ok(false);
        }
        let prefix = Prefix {
            tokens: &prefix.tokens[..whole * page],
            pages: &sequence.pages[..whole],
            state: &sequence.state,
            ..prefix
        };
        Ok(cache.keep(&mut self.pages, &prefix))
    }

    /// The prefix cache, if there is one.
    pub fn prefix(&self) -> Option<&PrefixCache> {
        self.prefix.as_ref()
    }

    /// Forgets all kept prefixes.
    pub fn clear_prefixes(&mut self) {
        if let Some(prefix) = &mut self.prefix {
            prefix.clear(&mut self.pages);
        }
    }

    /// Writes the kept prefixes to a file.
    pub fn save_prefixes(&self, path: &Path, fingerprint: Fingerprint) -> Result<PrefixFile, EngineError> {
        match &self.prefix {
            Some(prefix) => prefix.save(path, fingerprint, self.split()),
            None => Ok(PrefixFile::default()),
        }
    }

    /// Takes in the prefixes of a file.
    pub fn load_prefixes(
        &mut self,
        path: &Path,
        fingerprint: &Fingerprint,
    ) -> Result<PrefixFile, EngineError> {
        let trunk = self.trunk();
        match &mut self.prefix {
            Some(prefix) => prefix.load(path, fingerprint, &mut self.pages, self.kv.split_at_mut(trunk)),
            None => Ok(PrefixFile::default()),
        }
    }

    /// Counters of the prefix cache.
    pub fn prefix_stats(&self) -> Option<PrefixStats> {
        let page = self.kv.iter().map(KvLayer::page_bytes).sum();
        Some(self.prefix.as_ref()?.stats(page, (self.state_len * size_of::<f32>()) as u64))
    }

    /// Bytes that are held, read from the buffers; guesses are those of the live sequences, states also of earlier ones.
    pub fn held(&self) -> MemoryPlan {
        let side = |bytes: fn(&KvLayer) -> usize| self.kv.iter().map(bytes).sum::<usize>() as u64;
        let (keys, values) = (side(|layer| layer.k.len()), side(|layer| layer.v.len()));
        let pages = (self.sizes.pages() as u64).max(1);
        let of_sequences = |bytes: u64| bytes / pages * self.sizes.sequence_pages() as u64;
        let (kv_keys, kv) = (of_sequences(keys), of_sequences(keys) + of_sequences(values));
        let sequences = || self.sequences.iter().flatten();
        let states = sequences().map(|sequence| &sequence.state).chain(&self.idle_states).map(Vec::capacity);
        MemoryPlan {
            kv_keys,
            kv,
            prefix_kv: keys + values - kv,
            state: (states.sum::<usize>() * size_of::<f32>()) as u64,
            drafts: sequences().map(|sequence| sequence.draft.bytes() as u64).sum(),
            snapshots: self.prefix.as_ref().map_or(0, PrefixCache::snapshot_bytes),
            ..MemoryPlan::default()
        }
    }

    /// Checks that everything that holds pages is known, and that the prefix cache agrees with itself.
    pub fn check_integrity(&self) -> Result<(), EngineError> {
        let sequences = self.sequences.iter().flatten();
        let of_sequences = sequences.clone().flat_map(|sequence| sequence.pages.iter().copied());
        let of_prefixes = self.prefix.iter().flat_map(PrefixCache::held);
        let check = || {
            self.pages.check(of_sequences.chain(of_prefixes))?;
            self.prefix.as_ref().map_or(Ok(()), PrefixCache::check)?;
            let short = |s: &Sequence| s.pages.len() * self.sizes.page_tokens < s.position;
            if sequences.clone().any(short) {
                Err("a sequence is longer than its pages".to_owned())
            } else {
                Ok(())
            }
        };
        check().map_err(EngineError::Integrity)
    }

    /// Gives a sequence's pages back. Unknown ids are a no-op.
    pub fn close(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.get_mut(id.0).and_then(Option::take) {
            sequence.pages.iter().rev().for_each(|&page| self.pages.release(page));
            self.idle_states.push(sequence.state);
        }
    }

    /// The sequence, if it is live.
    pub fn get(&self, id: SequenceId) -> Result<&Sequence, EngineError> {
        self.sequences.get(id.0).and_then(Option::as_ref).ok_or(EngineError::Sequence(id.0))
    }

    /// Makes room for `tokens` more positions. On an error nothing has changed.
    pub fn reserve(&mut self, id: SequenceId, tokens: usize) -> Result<(), EngineError> {
        let Caches { sequences, pages, sizes, .. } = self;
        let sequence = sequences.get_mut(id.0).and_then(Option::as_mut).ok_or(EngineError::Sequence(id.0))?;
        let needed = sequence.position + tokens;
        if needed > sizes.context {
            return Err(EngineError::ContextFull { needed, context: sizes.context });
        }
        // The pools hold every sequence at full context beside all kept prefixes, so there is a free page.
        while sequence.pages.len() * sizes.page_tokens < needed {
            let page = pages.take().ok_or(EngineError::ContextFull { needed, context: sizes.context })?;
            sequence.pages.push(page);
        }
        Ok(())
    }

    /// A live sequence together with the KV pools.
    pub fn parts(&mut self, id: SequenceId) -> Result<(&mut Sequence, &mut [KvLayer]), EngineError> {
        let sequence = self.sequences.get_mut(id.0).and_then(Option::as_mut);
        Ok((sequence.ok_or(EngineError::Sequence(id.0))?, &mut self.kv))
    }
}
