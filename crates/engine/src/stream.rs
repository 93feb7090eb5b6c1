//! A model run once from weights that are made on demand: nothing but a block of each is held in memory.
//!
//! Slow for generating, since every call reads all weights, but a few hundred tokens cost one pass however large the
//! model is. The forward pass is that of [`Engine`](crate::Engine); weights, K and V are f32.

use basert_kernels::{Cpu, Isa, KvDtype, default_threads};
use basert_model::ModelSpec;

use crate::EngineError;
use crate::cache::{CacheSizes, Caches};
use crate::engine::frequencies;
use crate::forward::{Context, Span, Watch};
use crate::kv::KvTypes;
use crate::sizing::TILE;
use crate::tensor::{Decoding, TensorSource, Tensors};
use crate::weights::Weights;
use crate::workspace::Workspace;

/// Runs `windows` of tokens, each from an empty cache, and returns the logits of all positions `[tokens, vocab]` in order;
/// without `head`, the output layer is left out and the result is empty. `watch` sees the input of every linear layer, in
/// either case that of the output layer too.
///
/// `spec.tied_head` must say whether the source has an output head of its own. Memory: activations of all tokens, a block
/// of one weight, and the logits.
///
/// # Errors
/// Tensors that are missing, of another shape or cannot be made; unknown tokens; empty windows.
pub fn stream(
    source: &dyn TensorSource,
    spec: &ModelSpec,
    isa: Option<Isa>,
    threads: Option<usize>,
    windows: &[&[u32]],
    head: bool,
    watch: Option<&Watch<'_>>,
) -> Result<Vec<f32>, EngineError> {
    let isa = match isa {
        Some(isa) => isa,
        None => Isa::from_env()?.unwrap_or_else(Isa::best),
    };
    let cpu = Cpu::new(isa, threads.unwrap_or_else(default_threads))?;
    let tensors = Tensors::Source(source);
    let spec = &ModelSpec { draft: None, ..spec.clone() };
    let (weights, _) = Weights::bind(tensors, spec, Decoding { all: false, hold: false })?;
    let tokens = windows.concat();
    if tokens.is_empty() || windows.iter().any(|window| window.is_empty()) {
        return Err(EngineError::EmptyPrompt);
    }
    if let Some(&id) = tokens.iter().find(|&&id| id as usize >= spec.vocab) {
        return Err(EngineError::TokenId { id, vocab: spec.vocab });
    }
    let longest = windows.iter().map(|window| window.len()).max().unwrap_or(0);
    let sizes = CacheSizes {
        kv: KvTypes { k: KvDtype::F32, v: KvDtype::F32 },
        context: longest,
        page_tokens: longest.next_multiple_of(TILE),
        sequences: windows.len(),
        cached_pages: 0,
        snapshots: 0,
        drafts: 0,
    };
    let mut caches = Caches::new(spec, sizes)?;
    let rows = if head { tokens.len() } else { 0 };
    let mut work = Workspace::new(spec, tokens.len(), rows);
    let mut spans = Vec::with_capacity(windows.len());
    let mut start = 0;
    for window in windows {
        let sequence = caches.open()?;
        caches.reserve(sequence, window.len())?;
        spans.push(Span { sequence, start, len: window.len(), position: 0, drafts: 0 });
        start += window.len();
    }
    let rope = frequencies(spec, &weights);
    let context = Context {
        cpu: &cpu,
        tensors,
        spec,
        weights: &weights,
        rope: rope.as_ref(),
        lean: true,
        watch,
        trace: None,
    };
    context.layers(&tokens, &spans, &mut caches, &mut work)?;
    if let (false, Some(watch)) = (head, watch) {
        context.watch_head(watch, tokens.len(), &mut work);
    }
    context.head(0..rows, &mut work)?;
    Ok(work.logits)
}
