//! Loading a model and running steps.

use std::path::Path;

use basert_format::{BaseFile, DtypeTotal, Header, SlotFlags, SourceFormat, VERSION_KEY};
use basert_kernels::{Cpu, Isa, default_threads};
use basert_model::{Arch, Config, Mixer, ModelSpec};

use crate::EngineError;
use crate::cache::{Caches, LayerCache, SequenceId};
use crate::fit::settled;
use crate::forward::{Context, Span};
use crate::kv::{KvPools, KvTypes};
use crate::plan::MemoryPlan;
use crate::residence::Residence;
use crate::rope::Frequencies;
use crate::sizing::{Sizing, WeightBytes, loaded, step_limits, wanted_context};
use crate::speculate::Speculation;
use crate::tensor::{Decoding, Tensors};
use crate::trace::Trace;
use crate::weights::Weights;
use crate::workspace::Workspace;

/// How to load a model. `None` means the documented default.
#[derive(Clone, Debug)]
pub struct Options {
    /// Instruction set; default: `BASERT_ISA`, else the best this CPU has.
    pub isa: Option<Isa>,
    /// Worker threads; default: what CPU affinity and control group allow.
    pub threads: Option<usize>,
    /// KV cache element types.
    pub kv: KvTypes,
    /// Let K and V be narrower than [`kv`](Self::kv) where a context that was asked for, or with [`fit`](Self::fit) the model's
    /// own, does not fit otherwise: the widest of q8, q8 with q4, and q4 that does.
    pub narrow_kv: bool,
    /// Context in tokens; default: the model's own, shortened until it fits half the free memory.
    pub context: Option<usize>,
    /// Bytes that everything has to fit into, weights included; where it does not, K and V give way as far as
    /// [`narrow_kv`](Self::narrow_kv) lets them, then the context. Without, a context that does not fit the free memory is
    /// refused.
    pub fit: Option<u64>,
    /// Tokens per KV page, a multiple of 32; default: one page for the whole context.
    pub page_tokens: Option<usize>,
    /// Sequences that can be live at once.
    pub sequences: usize,
    /// Bytes for prefixes that are kept from one sequence to the next; 0 keeps none. With it, a page that no one chose has 64
    /// tokens.
    pub prefix_cache: u64,
    /// Most tokens in one step.
    pub step_tokens: usize,
    /// Most rows of logits in one step.
    pub logit_rows: usize,
    /// Where the weights are.
    pub weights: Residence,
    /// Whether [`Session`](crate::Session) and [`Scheduler`](crate::Scheduler) guess next tokens. It changes no result.
    pub speculation: Speculation,
    /// Decode quantised matrices to f32 at load, to measure what integer activations cost.
    pub dequantize: bool,
    /// Hold as little as possible, for one pass over a few tokens: what has to be decoded is decoded block by block at
    /// every use, and the map's pages are given back after every block of rows. Changes no result.
    pub lean: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            isa: None,
            threads: None,
            kv: KvTypes::default(),
            narrow_kv: false,
            context: None,
            fit: None,
            page_tokens: None,
            sequences: 1,
            prefix_cache: 0,
            step_tokens: 512,
            logit_rows: 1,
            weights: Residence::Mapped,
            speculation: Speculation::OFF,
            dequantize: false,
            lean: false,
        }
    }
}

/// What was selected at load, for `-v`, `/props` and benchmark headers.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Instruction set in use.
    pub isa: Isa,
    /// Threads in use, the caller's own included.
    pub threads: usize,
    /// Architecture family.
    pub arch: Arch,
    /// Tensors and bytes per dtype in the file.
    pub weights: Vec<DtypeTotal>,
    /// Element types of the KV cache, as it was allocated.
    pub kv: KvTypes,
    /// The allocated KV cache.
    pub pools: KvPools,
    /// Recurrent state of one sequence, in bytes.
    pub state_bytes: u64,
    /// Context in tokens.
    pub context: usize,
    /// Tokens per KV page.
    pub page_tokens: usize,
    /// Whether next tokens are guessed; the source is the one that guesses.
    pub speculation: Speculation,
    /// Memory by part.
    pub memory: MemoryPlan,
    /// Anything a user should know about this load, one line each.
    pub notes: Vec<String>,
    /// What is less than what was asked for, or than the model's own context, to fit the memory; one line each.
    pub shrunk: Vec<String>,
}

/// Which rows of a run need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantLogits {
    /// None: a prefill chunk that is not the last.
    None,
    /// The last row.
    Last,
    /// Every row.
    All,
    /// The last so many tokens are guesses: their rows, and the one before. The sequence ends before them until
    /// [`Engine::accept`] says how many of them were right.
    Verify(usize),
}

impl WantLogits {
    /// Rows of a run of `len` tokens.
    fn rows(self, len: usize) -> usize {
        match self {
            WantLogits::None => 0,
            WantLogits::Last => 1,
            WantLogits::All => len,
            WantLogits::Verify(drafts) => drafts + 1,
        }
    }

    fn drafts(self) -> usize {
        if let WantLogits::Verify(drafts) = self { drafts } else { 0 }
    }
}

/// Tokens of one sequence in a step: a prefill chunk or a decode token.
#[derive(Clone, Copy, Debug)]
pub struct TokenRun<'a> {
    /// The sequence that is continued.
    pub sequence: SequenceId,
    /// At least one token.
    pub tokens: &'a [u32],
    /// Rows that need logits.
    pub logits: WantLogits,
}

/// Logits of a step, in the order of its runs.
#[derive(Debug)]
pub struct Logits<'a> {
    /// Row width.
    pub vocab: usize,
    /// `[rows, vocab]`.
    pub data: &'a mut [f32],
}

impl Logits<'_> {
    /// Row `i`.
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.vocab..(i + 1) * self.vocab]
    }
}

/// What one sequence keeps of a Gated DeltaNet layer.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentState<'a> {
    /// Delta-rule state `[value heads, key dim, value dim]`.
    pub delta: &'a [f32],
    /// Last inputs of the convolution `[kernel - 1, channels]`, oldest first.
    pub conv: &'a [f32],
}

/// A loaded model with its caches.
pub struct Engine {
    pub(crate) cpu: Cpu,
    pub(crate) file: BaseFile,
    spec: ModelSpec,
    weights: Weights,
    rope: Option<Frequencies>,
    pub(crate) caches: Caches,
    work: Workspace,
    tokens: Vec<u32>,
    spans: Vec<Span>,
    pub(crate) options: Options,
    pub(crate) selected: Selected,
}

/// The device that was asked for.
fn cpu(options: &Options) -> Result<Cpu, EngineError> {
    let isa = match options.isa {
        Some(isa) => isa,
        None => Isa::from_env()?.unwrap_or_else(Isa::best),
    };
    Ok(Cpu::new(isa, options.threads.unwrap_or_else(default_threads))?)
}

/// An engine taken apart for a step.
pub(crate) struct Parts<'a, 'c> {
    pub context: Context<'c>,
    pub caches: &'a mut Caches,
    pub work: &'a mut Workspace,
    pub tokens: &'a [u32],
    pub spans: &'a [Span],
}

impl Engine {
    /// Loads a model and allocates everything a step needs.
    ///
    /// # Errors
    /// Every option that cannot be honoured, and every tensor that is missing or does not fit.
    pub fn load(mut file: BaseFile, options: &Options) -> Result<Engine, EngineError> {
        refuse_unrunnable(&file)?;
        let spec = loaded(&model_spec(&file)?, options);
        options.kv.check(&spec, file.path())?;
        let bytes = WeightBytes::of(&file, options);
        let (options, shrunk) = settled(&spec, options, bytes)?;
        let options = &options;
        options.weights.settle(&mut file)?;
        let decoding = Decoding { all: options.dequantize, hold: bytes.decoded > 0 };
        let (weights, bound) = Weights::bind(Tensors::File(&file), &spec, decoding)?;
        refuse_double_shifted_norms(&file, spec.arch)?;
        let cpu = cpu(options)?;
        let sizing = Sizing::new(&spec, options)?;
        let sizes = sizing.sizes(wanted_context(&spec, options))?;
        let planned = WeightBytes { decoded: bound.decoded_bytes as u64, ..bytes };
        let memory = sizing.plan(sizes.context, planned)?;
        let (step_tokens, logit_rows) = step_limits(options, sizes.context);
        let options = Options { step_tokens, logit_rows, ..options.clone() };
        let caches = Caches::new(&spec, sizes)?;
        let mut work = Workspace::new(&spec, options.step_tokens, options.logit_rows);
        let needs = sizing.scratch(sizes.context, planned.needs);
        cpu.reserve(&needs);
        work.reserve(&needs);
        let selected = Selected {
            isa: cpu.isa(),
            threads: cpu.threads(),
            arch: spec.arch,
            weights: file.dtype_totals(),
            kv: caches.types(),
            pools: caches.pools(),
            state_bytes: (caches.state_len * size_of::<f32>()) as u64,
            context: sizes.context,
            page_tokens: sizes.page_tokens,
            speculation: options.speculation.of(&spec),
            memory,
            notes: bound.notes,
            shrunk,
        };
        Ok(Engine {
            rope: frequencies(&spec, &weights),
            caches,
            work,
            tokens: Vec::with_capacity(options.step_tokens),
            spans: Vec::with_capacity(options.sequences),
            cpu,
            file,
            spec,
            weights,
            options,
            selected,
        })
    }

    /// Opens a `.base` file and loads it.
    ///
    /// # Errors
    /// As [`Engine::load`], and those of the container.
    pub fn open(path: &Path, options: &Options) -> Result<Engine, EngineError> {
        Engine::load(BaseFile::open(path)?, options)
    }

    /// What was selected at load.
    pub fn selected(&self) -> &Selected {
        &self.selected
    }

    /// What is held now, read from the buffers: the [plan](Selected::memory), but for states and guesses, which are those of the
    /// live sequences. The scratch is that of the calling thread and the engine's own.
    pub fn held_memory(&self) -> MemoryPlan {
        let planned = WeightBytes::of(&self.file, &self.options);
        let logits = (self.work.logits.capacity() * size_of::<f32>()) as u64;
        MemoryPlan {
            weights_mapped: planned.mapped,
            weights_held: planned.held,
            weights_decoded: self.selected.memory.weights_decoded,
            workspace: self.work.allocated_bytes() as u64 - logits,
            logits,
            scratch: self.work.scratch_bytes() + self.cpu.scratch_bytes(),
            ..self.caches.held()
        }
    }

    /// The model's layers and sizes.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The file behind the weights.
    pub fn file(&self) -> &BaseFile {
        &self.file
    }

    /// Most tokens in one step.
    pub fn step_tokens(&self) -> usize {
        self.options.step_tokens
    }

    /// Most rows of logits in one step.
    pub fn logit_rows(&self) -> usize {
        self.options.logit_rows
    }

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// [`EngineError::NoFreeSequence`] when all are in use.
    pub fn new_sequence(&mut self) -> Result<SequenceId, EngineError> {
        self.caches.open()
    }

    /// Ends a sequence and frees its pages. Ids that are not live are ignored.
    pub fn release(&mut self, id: SequenceId) {
        self.caches.close(id);
    }

    /// Tokens that a sequence has run.
    ///
    /// # Errors
    /// [`EngineError::Sequence`] when the id is not live.
    pub fn position(&self, id: SequenceId) -> Result<usize, EngineError> {
        Ok(self.caches.get(id)?.position)
    }

    /// The recurrent state of one layer; `None` for attention layers.
    ///
    /// # Errors
    /// [`EngineError::Sequence`] when the id is not live.
    pub fn recurrent_state(
        &self,
        id: SequenceId,
        layer: usize,
    ) -> Result<Option<RecurrentState<'_>>, EngineError> {
        let sequence = self.caches.get(id)?;
        Ok(match self.caches.layers.get(layer) {
            Some(LayerCache::State(slot)) => {
                let (delta, conv) = slot.view(&sequence.state);
                Some(RecurrentState { delta, conv })
            }
            _ => None,
        })
    }

    /// Runs one step: every run's tokens through the model, each sequence's caches moved on.
    /// On an error no sequence has changed.
    ///
    /// # Errors
    /// Empty or repeated runs, unknown tokens, a full context, a step beyond the loaded limits.
    pub fn step(&mut self, runs: &[TokenRun<'_>]) -> Result<Logits<'_>, EngineError> {
        self.step_traced(runs, None)
    }

    /// As [`Engine::step`], and adds the time of every operation to `trace`.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step_traced(
        &mut self,
        runs: &[TokenRun<'_>],
        trace: Option<&Trace>,
    ) -> Result<Logits<'_>, EngineError> {
        self.lay_out(runs)?;
        for span in &self.spans {
            self.caches.reserve(span.sequence, span.len)?;
        }
        let Parts { context, caches, work, tokens, spans } = self.parts(trace);
        context.make_room(spans, caches, work)?;
        context.layers(tokens, spans, caches, work)?;
        let wanted = runs.iter().zip(spans.iter()).flat_map(|(run, span)| {
            let end = span.start + span.len;
            end - run.logits.rows(span.len)..end
        });
        let rows = context.head(wanted, work)?;
        context.follow(tokens, spans, caches, work)?;
        for span in spans.iter() {
            let sequence = caches.parts(span.sequence)?.0;
            sequence.position += span.len - span.drafts;
            sequence.draft.proposed = span.drafts;
        }
        let vocab = context.spec.vocab;
        Ok(Logits { vocab, data: &mut work.logits[..rows * vocab] })
    }

    /// What the forward pass reads, and what it changes.
    pub(crate) fn parts<'a: 'c, 'c>(&'a mut self, trace: Option<&'c Trace>) -> Parts<'a, 'c> {
        let Engine { cpu, file, spec, weights, rope, caches, work, tokens, spans, options, .. } = self;
        let (file, rope, lean) = (Tensors::File(file), rope.as_ref(), options.lean);
        let context = Context { cpu, tensors: file, spec, weights, rope, lean, watch: None, trace };
        Parts { context, caches, work, tokens, spans }
    }

    /// Checks a step and lays its runs out as rows.
    fn lay_out(&mut self, runs: &[TokenRun<'_>]) -> Result<(), EngineError> {
        self.tokens.clear();
        self.spans.clear();
        let mut rows = 0;
        for run in runs {
            if run.tokens.is_empty() {
                return Err(EngineError::EmptyPrompt);
            }
            if let Some(&id) = run.tokens.iter().find(|&&id| id as usize >= self.spec.vocab) {
                return Err(EngineError::TokenId { id, vocab: self.spec.vocab });
            }
            if self.spans.iter().any(|s| s.sequence == run.sequence) {
                return Err(EngineError::Sequence(run.sequence.0));
            }
            let position = self.caches.get(run.sequence)?.position;
            let (start, len) = (self.tokens.len(), run.tokens.len());
            self.limit("tokens", start + len, self.options.step_tokens)?;
            let drafts = run.logits.drafts();
            self.limit("drafts", drafts, self.options.speculation.most.min(len - 1))?;
            let needed = position + len;
            if needed > self.selected.context {
                return Err(EngineError::ContextFull { needed, context: self.selected.context });
            }
            self.tokens.extend_from_slice(run.tokens);
            self.spans.push(Span { sequence: run.sequence, start, len, position, drafts });
            rows += run.logits.rows(len);
        }
        self.limit("logit rows", rows, self.options.logit_rows)
    }

    fn limit(&self, what: &'static str, found: usize, limit: usize) -> Result<(), EngineError> {
        if found > limit { Err(EngineError::StepTooLarge { what, found, limit }) } else { Ok(()) }
    }
}

/// The layers of a file, its prediction head included: what its header says, as far as it has the tensors.
///
/// # Errors
/// An architecture or configuration that this version does not know.
pub fn model_spec(file: &BaseFile) -> Result<ModelSpec, EngineError> {
    let header = file.header();
    let at = |source| EngineError::Model { path: file.path().to_path_buf(), source };
    let arch: Arch = header.arch.parse().map_err(at)?;
    let config = Config::from_header(arch, &header.config).map_err(at)?;
    let mut spec = ModelSpec::new(arch, &config).map_err(at)?;
    // The presence of the tensor decides; flags and config only confirm (docs/format.md).
    spec.tied_head = file.tensor_index("lm_head.weight").is_none();
    spec.draft = spec.draft.filter(|_| file.tensor_index("mtp.fc.weight").is_some());
    Ok(spec)
}

/// Files that need more than this engine does, or that hold too little to be run.
fn refuse_unrunnable(file: &BaseFile) -> Result<(), EngineError> {
    let refuse = |reason: String| Err(EngineError::Refused { path: file.path().to_path_buf(), reason });
    if let Some(slot) = file.slots().iter().find(|s| s.flags.contains(SlotFlags::REQUIRED)) {
        return refuse(format!(
            "the file requires its slot '{:?}' to be honoured, which this engine does not do",
            slot.kind
        ));
    }
    let hybrid = file.tensors().any(|t| t.entry.name.contains(".ssm."));
    if file.header().is_upstream_gguf() && hybrid {
        let reason = "this hybrid was converted from GGUF by the original converter, which leaves out the \
                      linear-attention configuration; convert the GGUF again with `basert convert`";
        return refuse(reason.to_owned());
    }
    Ok(())
}

/// Upstream adds 1 to norms that MLX checkpoints already hold shifted: such a file runs and babbles.
fn refuse_double_shifted_norms(file: &BaseFile, arch: Arch) -> Result<(), EngineError> {
    let Header { source, metadata, .. } = file.header();
    let from_mlx = source.format == SourceFormat::MlxSafetensors && !metadata.contains_key(VERSION_KEY);
    let Some(mean) = doubled_norm_offset(file, arch).filter(|_| from_mlx) else { return Ok(()) };
    Err(EngineError::Refused {
        path: file.path().to_path_buf(),
        reason: format!(
            "the mean input norm gain is {mean:.2} instead of about 1: the original converter added the norm \
             offset twice to this MLX checkpoint; convert it again with `basert convert`"
        ),
    })
}

/// The mean input norm gain of a Qwen3.5 file if it is nearer to 2 than to 1, as it is after the offset of 1 was added
/// twice. A trained model's is close to 1.
pub fn doubled_norm_offset(file: &BaseFile, arch: Arch) -> Option<f64> {
    if !matches!(arch, Arch::Qwen35 | Arch::Qwen35Moe) {
        return None;
    }
    let (mut sum, mut count) = (0.0, 0usize);
    let norms = file.tensors().filter(|tensor| {
        tensor.entry.name.starts_with("layers.") && tensor.entry.name.ends_with(".input_norm.weight")
    });
    for norm in norms {
        let mut gains = vec![0.0; norm.shape.iter().product::<u64>() as usize];
        norm.encoding.decode(norm.data, gains.len(), 0, &mut gains).ok()?;
        sum += gains.iter().map(|&gain| f64::from(gain)).sum::<f64>();
        count += gains.len();
    }
    let mean = sum / count.max(1) as f64;
    (mean >= 1.5).then_some(mean)
}

/// The one rotary embedding that the attention layers share.
pub(crate) fn frequencies(spec: &ModelSpec, weights: &Weights) -> Option<Frequencies> {
    spec.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Attention(a) => Some(Frequencies::new(&a.rope, weights.rope_divisors.as_deref())),
        Mixer::GatedDelta(_) => None,
    })
}
