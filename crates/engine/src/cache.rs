//! What a sequence leaves behind: KV pages of the attention layers and the fixed-size state of the
//! recurrent ones.
//!
//! K and V live in pools of pages, one pool per attention layer and side; a page id means the same
//! page in every layer. "Contiguous" is a pool whose page is the whole context. A recurrent layer owns
//! a slice of the sequence's state vector: the f32 delta state, then the convolution's last inputs.

use basert_kernels::{Buffer, KvGeometry};
use basert_model::plan::StateBytes;
use basert_model::{LayerSpec, Mixer};

use crate::EngineError;
use crate::kv::{KvPools, KvTypes};

/// A live sequence of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(pub(crate) usize);

/// K and V pages of one attention layer.
pub(crate) struct KvLayer {
    pub geometry: KvGeometry,
    pub k: Buffer,
    pub v: Buffer,
}

/// One sequence's place in the caches.
pub(crate) struct Sequence {
    /// Pages in order of position.
    pub pages: Vec<u32>,
    /// Tokens already run.
    pub position: usize,
    /// States of all recurrent layers, one after the other.
    pub state: Vec<f32>,
}

/// Where a recurrent layer's state lies in [`Sequence::state`], in f32 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateSlot {
    pub start: usize,
    pub delta: usize,
    pub conv: usize,
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
}

impl CacheSizes {
    /// Pages of one sequence at full context.
    pub fn pages_per_sequence(&self) -> usize {
        self.context.div_ceil(self.page_tokens)
    }

    /// Pages of all sequences; saturating.
    fn pages(&self) -> usize {
        self.pages_per_sequence().saturating_mul(self.sequences)
    }

    /// Page ids are 32-bit.
    pub fn pages_have_ids(&self) -> bool {
        u32::try_from(self.pages()).is_ok()
    }

    /// Bytes of the K and the V pool of a layer, if it has any; saturating, so that absurd sizes are refused as such.
    pub fn pool_bytes(&self, layer: &LayerSpec) -> Option<(usize, usize)> {
        let tokens = self.pages().saturating_mul(self.page_tokens);
        let (k, v) = self.kv.layer_bytes(layer.mixer.attention()?);
        Some((tokens.saturating_mul(k as usize), tokens.saturating_mul(v as usize)))
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
    pub kv: Vec<KvLayer>,
    sequences: Vec<Option<Sequence>>,
    free_pages: Vec<u32>,
    /// f32 elements of one sequence's recurrent state.
    pub state_len: usize,
    sizes: CacheSizes,
}

impl Caches {
    /// Allocates every pool.
    ///
    /// # Errors
    /// [`EngineError::Kernel`] when the memory cannot be had.
    pub fn new(layers: &[LayerSpec], sizes: CacheSizes) -> Result<Caches, EngineError> {
        let mut caches = Caches {
            layers: Vec::with_capacity(layers.len()),
            kv: Vec::new(),
            sequences: (0..sizes.sequences).map(|_| None).collect(),
            free_pages: (0..sizes.pages() as u32).rev().collect(),
            state_len: 0,
            sizes,
        };
        for layer in layers {
            caches.add_layer(layer)?;
        }
        Ok(caches)
    }

    fn add_layer(&mut self, layer: &LayerSpec) -> Result<(), EngineError> {
        if let (Mixer::Attention(a), Some((k, v))) = (&layer.mixer, self.sizes.pool_bytes(layer)) {
            self.layers.push(LayerCache::Kv(self.kv.len()));
            let geometry = KvGeometry {
                kv_heads: a.kv_heads,
                head_dim: a.head_dim,
                page_tokens: self.sizes.page_tokens,
                k: self.sizes.kv.k,
                v: self.sizes.kv.v,
            };
            self.kv.push(KvLayer { geometry, k: Buffer::try_zeroed(k)?, v: Buffer::try_zeroed(v)? });
        } else if let Some((delta, conv)) = CacheSizes::state_elements(layer) {
            self.layers.push(LayerCache::State(StateSlot { start: self.state_len, delta, conv }));
            self.state_len += delta + conv;
        }
        Ok(())
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
        let free = self.sequences.iter().position(Option::is_none);
        let index = free.ok_or(EngineError::NoFreeSequence(self.sequences.len()))?;
        self.sequences[index] = Some(Sequence {
            pages: Vec::with_capacity(self.sizes.pages_per_sequence()),
            position: 0,
            state: vec![0.0; self.state_len],
        });
        Ok(SequenceId(index))
    }

    /// Gives a sequence's pages back. Unknown ids are a no-op.
    pub fn close(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.get_mut(id.0).and_then(Option::take) {
            self.free_pages.extend(sequence.pages.iter().rev());
        }
    }

    /// The sequence, if it is live.
    pub fn get(&self, id: SequenceId) -> Result<&Sequence, EngineError> {
        self.sequences.get(id.0).and_then(Option::as_ref).ok_or(EngineError::Sequence(id.0))
    }

    /// Makes room for `tokens` more positions. On an error nothing has changed.
    pub fn reserve(&mut self, id: SequenceId, tokens: usize) -> Result<(), EngineError> {
        let Caches { sequences, free_pages, sizes, .. } = self;
        let sequence = sequences.get_mut(id.0).and_then(Option::as_mut).ok_or(EngineError::Sequence(id.0))?;
        let needed = sequence.position + tokens;
        if needed > sizes.context {
            return Err(EngineError::ContextFull { needed, context: sizes.context });
        }
        // The pool holds every sequence at full context, so the free list cannot run dry here.
        while sequence.pages.len() * sizes.page_tokens < needed {
            let page = free_pages.pop().ok_or(EngineError::ContextFull { needed, context: sizes.context })?;
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
