//! What options ask for, as sizes: of the cache, of a step, and of the memory that both need. Loading and planning
//! go through here, so that what is planned is what is allocated.

use basert_format::BaseFile;
use basert_kernels::{AttentionShape, MatrixNeeds, ScratchNeeds, default_threads};
use basert_model::{Ffn, Mixer, ModelSpec};

use crate::EngineError;
use crate::cache::CacheSizes;
use crate::forward::delta_shape;
use crate::options::Options;
use crate::plan::MemoryPlan;
use crate::speculate::MOST_DRAFTS;
use crate::tensor::decoded_because;

/// Context of a model that declares none, in tokens.
const DEFAULT_CONTEXT: usize = 4096;
/// Pages hold whole attention tiles of this many positions.
pub(crate) const TILE: usize = 32;
/// Tokens of a page where prefixes are kept: what is reused ends at a page's end.
const PREFIX_PAGE: usize = 64;
/// Bounds of options, far above any use, that keep sizes inside 64 bits.
pub(crate) const MAX_CONTEXT: usize = 1 << 31;
const MAX_SEQUENCES: usize = 1 << 12;
pub(crate) const MAX_THREADS: usize = 1 << 10;
const MAX_STEP: usize = 1 << 20;

/// Bytes of a model's weights, and what they ask of the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// Tensor payloads used from the memory map.
    pub mapped: u64,
    /// The same where they are locked in memory or copied.
    pub held: u64,
    /// Matrices held as decoded f32.
    pub decoded: u64,
    /// Shapes of the quantised matrices.
    pub needs: MatrixNeeds,
}

impl WeightBytes {
    /// Of a file that is loaded with these options.
    pub fn of(file: &BaseFile, options: &Options) -> WeightBytes {
        let decode = !options.lean && decoded_fit(file, options);
        let mut needs = MatrixNeeds::default();
        for tensor in file.tensors() {
            let cols = tensor.shape.last().map_or(1, |&cols| cols as usize);
            if decoded_because(tensor.encoding, cols, options.dequantize).is_none() {
                needs.add(tensor.encoding, cols);
            }
        }
        let stored = file.tensors().map(|tensor| tensor.data.len() as u64).sum();
        let (mapped, held) = if options.weights.holds() { (0, stored) } else { (stored, 0) };
        WeightBytes { mapped, held, decoded: if decode { decoded_bytes(file, options) } else { 0 }, needs }
    }
}

/// Whether the matrices that have to be decoded to f32 fit into half of the free memory.
pub(crate) fn decoded_fit(file: &BaseFile, options: &Options) -> bool {
    let bytes = decoded_bytes(file, options);
    bytes == 0 || options.free_memory().is_none_or(|free| bytes <= free / 2)
}

/// Bytes of the matrices that have to be decoded to f32, of those that are loaded.
fn decoded_bytes(file: &BaseFile, options: &Options) -> u64 {
    let drafts = options.speculation.uses_head();
    let tensors = file.tensors().filter(|tensor| drafts || !tensor.entry.name.starts_with("mtp."));
    let bytes = tensors.map(|tensor| {
        let cols = tensor.shape.last().map_or(1, |&cols| cols as usize);
        let elements: u64 = tensor.shape.iter().product();
        let decoded = decoded_because(tensor.encoding, cols, options.dequantize).is_some();
        if decoded { elements.saturating_mul(size_of::<f32>() as u64) } else { 0 }
    });
    bytes.fold(0, u64::saturating_add)
}

/// The context that `options` ask for, or else the model's own.
pub fn wanted_context(spec: &ModelSpec, options: &Options) -> usize {
    options.context.or(spec.max_context).unwrap_or(DEFAULT_CONTEXT)
}

/// What [`Engine::load`](crate::Engine::load) allocates with these options, at [`wanted_context`].
///
/// # Errors
/// Options that cannot be honoured, whatever the memory.
pub fn memory_plan(
    spec: &ModelSpec,
    options: &Options,
    weights: WeightBytes,
) -> Result<MemoryPlan, EngineError> {
    Sizing::new(spec, options)?.plan(wanted_context(spec, options), weights)
}

/// The smallest prefix cache that holds anything of a model, in bytes; with pages of 64 tokens unless `options` say otherwise.
pub fn least_prefix_cache(spec: &ModelSpec, options: &Options) -> u64 {
    let page_tokens = options.page_tokens.unwrap_or(PREFIX_PAGE);
    Sizing { spec: loaded(spec, options), options }.least_prefix_cache(page_tokens)
}

/// Options of a model that are in their bounds.
pub(crate) struct Sizing<'a> {
    /// What of the model is loaded.
    spec: ModelSpec,
    options: &'a Options,
}

impl<'a> Sizing<'a> {
    /// # Errors
    /// Options out of their bounds.
    pub fn new(spec: &ModelSpec, options: &'a Options) -> Result<Sizing<'a>, EngineError> {
        let page = options.page_tokens;
        if let Some(page) = page.filter(|p| *p == 0 || p % TILE != 0) {
            let reason = format!("{page} tokens is not a positive multiple of {TILE}");
            return Err(EngineError::Option { option: "page size", reason });
        }
        within("page size", page, MAX_CONTEXT)?;
        within("threads", options.threads, MAX_THREADS)?;
        within("sequences", Some(options.sequences), MAX_SEQUENCES)?;
        within("context", options.context, MAX_CONTEXT)?;
        most_drafts(options.speculation.most)?;
        Ok(Sizing { spec: loaded(spec, options), options })
    }

    /// Sizes of the cache for a context.
    ///
    /// # Errors
    /// A prefix cache that is too small to hold anything, and more pages than there are ids.
    pub fn sizes(&self, context: usize) -> Result<CacheSizes, EngineError> {
        let page_tokens = self.page_tokens(context);
        let (cached_pages, snapshots) = self.prefix_share(page_tokens)?;
        let sizes = CacheSizes {
            kv: self.options.kv,
            context,
            page_tokens,
            sequences: self.options.sequences,
            cached_pages,
            snapshots,
            drafts: self.options.speculation.most,
        };
        if sizes.pages_have_ids() {
            return Ok(sizes);
        }
        let reason = format!("{context} tokens in pages of {page_tokens} need too many pages");
        Err(EngineError::Option { option: "context", reason })
    }

    /// Tokens of a page for a context.
    fn page_tokens(&self, context: usize) -> usize {
        let whole = context.next_multiple_of(TILE);
        let usual = if self.options.prefix_cache > 0 { whole.min(PREFIX_PAGE) } else { whole };
        self.options.page_tokens.unwrap_or(usual)
    }

    /// Pages and snapshots of the prefix cache. Half of it goes to the snapshots of recurrent states, if the model has any.
    fn prefix_share(&self, page_tokens: usize) -> Result<(usize, usize), EngineError> {
        let limit = self.options.prefix_cache;
        let state = self.spec.state_bytes_per_sequence();
        let page = self.token_bytes().saturating_mul(page_tokens as u64);
        if limit == 0 {
            return Ok((0, 0));
        }
        let snapshots = (limit / 2).checked_div(state).unwrap_or(0);
        let pages = (limit - snapshots * state).checked_div(page).unwrap_or(0);
        if pages == 0 || (state > 0 && snapshots == 0) {
            let least = self.least_prefix_cache(page_tokens);
            let reason = format!(
                "{limit} bytes are too few for a page of {page_tokens} tokens ({page} bytes) and a recurrent state \
                 ({state} bytes), which take half each; at least {least} are needed"
            );
            return Err(EngineError::Option { option: "prefix cache", reason });
        }
        Ok((usize::try_from(pages).unwrap_or(usize::MAX), usize::try_from(snapshots).unwrap_or(usize::MAX)))
    }

    /// Cache bytes of one token, with those of the prediction head.
    fn token_bytes(&self) -> u64 {
        let draft = self.spec.draft.as_ref().and_then(|layer| layer.mixer.attention());
        let (k, v) = draft.map_or((0, 0), |attention| self.options.kv.layer_bytes(attention));
        self.options.kv.bytes_per_token(&self.spec).saturating_add(k + v)
    }

    /// Bytes of a prefix cache for one page and one state.
    fn least_prefix_cache(&self, page_tokens: usize) -> u64 {
        let state = self.spec.state_bytes_per_sequence();
        let page = self.token_bytes().saturating_mul(page_tokens as u64);
        if state > 0 { 2 * state.max(page) } else { page }
    }

    /// Memory for a context.
    ///
    /// # Errors
    /// As [`sizes`](Self::sizes).
    pub fn plan(&self, context: usize, weights: WeightBytes) -> Result<MemoryPlan, EngineError> {
        let (step_tokens, logit_rows) = step_limits(self.options, context);
        let threads = self.options.threads.unwrap_or_else(default_threads);
        Ok(MemoryPlan {
            weights_mapped: weights.mapped,
            weights_held: weights.held,
            weights_decoded: weights.decoded,
            scratch: self.scratch(context, weights.needs).bytes(threads),
            ..MemoryPlan::of(&self.spec, &self.sizes(context)?, step_tokens, logit_rows)
        })
    }

    /// What the kernels need for a context.
    pub fn scratch(&self, context: usize, matrices: MatrixNeeds) -> ScratchNeeds {
        let mut needs = ScratchNeeds::new(matrices, step_limits(self.options, context).0, context);
        for layer in self.spec.layers.iter().chain(&self.spec.draft) {
            match &layer.mixer {
                Mixer::Attention(a) => needs.attention(AttentionShape {
                    heads: a.heads,
                    kv_heads: a.kv_heads,
                    head_dim: a.head_dim,
                }),
                Mixer::GatedDelta(d) => needs.delta(&delta_shape(d)),
            }
            if let Ffn::Moe(moe) = &layer.ffn {
                needs.experts(moe.experts);
            }
        }
        needs
    }
}

/// Largest step and logit rows for a context. A step never has more rows than there are positions, and its size never
/// changes a result.
pub(crate) fn step_limits(options: &Options, context: usize) -> (usize, usize) {
    let positions = context.saturating_mul(options.sequences);
    let least = least_rows(options.speculation.most);
    let step_tokens = options.step_tokens.clamp(1, positions.min(MAX_STEP)).max(least);
    (step_tokens, options.logit_rows.max(least).clamp(1, step_tokens))
}

/// Rows of a step that verifies guesses, and of one that enters those that waited.
fn least_rows(drafts: usize) -> usize {
    if drafts == 0 { 1 } else { drafts + 2 }
}

/// What is loaded of a model: no prediction head that nobody asks.
pub(crate) fn loaded(spec: &ModelSpec, options: &Options) -> ModelSpec {
    ModelSpec { draft: spec.draft.filter(|_| options.speculation.uses_head()), ..spec.clone() }
}

fn most_drafts(most: usize) -> Result<(), EngineError> {
    match most {
        0..=MOST_DRAFTS => Ok(()),
        _ => {
            let reason = format!("{most} tokens are more than can be guessed at a time, {MOST_DRAFTS}");
            Err(EngineError::Option { option: "speculation", reason })
        }
    }
}

/// Checks an option that counts something.
pub(crate) fn within(option: &'static str, value: Option<usize>, max: usize) -> Result<(), EngineError> {
    match value {
        Some(value) if value == 0 || value > max => {
            Err(EngineError::Option { option, reason: format!("{value} is not between 1 and {max}") })
        }
        _ => Ok(()),
    }
}
