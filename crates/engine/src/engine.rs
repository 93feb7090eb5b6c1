//! Loading a model and running steps.

use std::path::Path;

use basert_format::BaseFile;
use basert_kernels::{Cpu, Isa, default_threads};
use basert_model::{Mixer, ModelSpec};

use crate::EngineError;
use crate::admission::{model_spec, refuse_double_shifted_norms, refuse_unrunnable};
use crate::cache::{Caches, LayerCache, SequenceId};
use crate::fit::settled;
use crate::forward::{Context, Span};
use crate::options::{Options, Selected};
use crate::plan::MemoryPlan;
use crate::rope::Frequencies;
use crate::sizing::{Sizing, WeightBytes, loaded, step_limits, wanted_context};
use crate::step::{Logits, RecurrentState, TokenRun};
use crate::tensor::{Decoding, Tensors};
use crate::trace::Trace;
use crate::weights::Weights;
use crate::workspace::Workspace;

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
    let mut cpu = Cpu::new(isa, options.threads.unwrap_or_else(default_threads))?;
    if options.pin {
        cpu.pin()?;
    }
    Ok(cpu)
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
        let (options, mut shrunk) = settled(&spec, options, bytes)?;
        let options = &options;
        options.weights.settle(&mut file)?;
        let decoding = Decoding { all: options.dequantize, hold: bytes.decoded > 0 };
        let (weights, mut bound) = Weights::bind(Tensors::File(&file), &spec, decoding)?;
        refuse_double_shifted_norms(&file, spec.arch)?;
        let has_layers = file.tensor_index("mtp.fc.weight").is_some();
        // A number asks for guesses of the head; auto is for whatever there is.
        let wanted_head = has_layers || !options.speculation.adaptive;
        let said = if wanted_head { &mut shrunk } else { &mut bound.notes };
        said.extend(options.speculation.without_head(&spec, has_layers));
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
            pinned: cpu.pinned().to_vec(),
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
        self.cpu.pin_caller()?;
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

/// The one rotary embedding that the attention layers share.
pub(crate) fn frequencies(spec: &ModelSpec, weights: &Weights) -> Option<Frequencies> {
    spec.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Attention(a) => Some(Frequencies::new(&a.rope, weights.rope_divisors.as_deref())),
        Mixer::GatedDelta(_) => None,
    })
}
