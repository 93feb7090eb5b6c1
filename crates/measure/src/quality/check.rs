//! The converter's self-check: one short text through the finished file and through its source.

use std::error::Error;

use basert_convert::{Evidence, SelfCheck, SourceValues};
use basert_engine::{Engine, KvTypes, Options, TokenRun, WantLogits, doubled_norm_offset, stream};
use basert_format::{BaseFile, Header, SlotKind};
use basert_kernels::KvDtype;
use basert_model::ModelSpec;

use super::reference::TRACE_TOKENS;
use super::replay::compare;
use super::{MAX_TOKENS, NO_TEXT, QualityRecord, Reference, TEXT, TEXT_NAME, Trace};
use crate::divergence::divergence;
use crate::source::Values;
use crate::{Divergence, MeasureError};

/// Share of `ln(vocabulary)` from which on a negative log-likelihood per token is that of a model that knows nothing.
/// Guessing costs all of it; a sound model's text costs a third or less.
const NOISE: f64 = 0.75;

/// Most bytes of one model's logits.
const MAX_LOGIT_BYTES: usize = 128 << 20;

/// Turns a text into token ids with the tokenizer of a header; `None` if it has none.
pub type Tokenize<'a> = dyn Fn(&Header, &str) -> Result<Option<Vec<u32>>, Box<dyn Error + Send + Sync>> + 'a;

/// A [`SelfCheck`] that runs the model: makes the quality record, and refuses a model that reads plain English as
/// noise.
pub struct Check<'a> {
    /// The file's tokenizer.
    pub tokenize: &'a Tokenize<'a>,
    /// Threads for both runs; `None` = all there are.
    pub threads: Option<usize>,
}

impl Check<'_> {
    /// About the most bytes that the check of such a model takes: logits of the file, the engine's and the source's, a
    /// block of a weight in two forms, and activations.
    pub fn peak_bytes(spec: &ModelSpec) -> u64 {
        let logits = most_tokens(spec.vocab) * spec.vocab * size_of::<f32>();
        let blocks = 64 << 20;
        (3 * logits + blocks + 64 * MAX_TOKENS * spec.hidden * size_of::<f32>()) as u64
    }
}

impl SelfCheck for Check<'_> {
    fn check(
        &mut self,
        source: &SourceValues<'_>,
        bundle: BaseFile,
    ) -> Result<Evidence, Box<dyn Error + Send + Sync>> {
        let text = (self.tokenize)(bundle.header(), TEXT)?;
        let mut engine = Engine::load(bundle, &options(self.threads))?;
        if let Some(mean) = doubled_norm_offset(engine.file(), engine.spec().arch) {
            return Err(MeasureError::DoubledNorms { mean }.into());
        }
        let (name, mut ids) = match text {
            Some(ids) => (TEXT_NAME, ids),
            None => (NO_TEXT, arbitrary_ids(engine.spec().vocab)),
        };
        let context = engine.spec().max_context.unwrap_or(MAX_TOKENS);
        ids.truncate(most_tokens(engine.spec().vocab).min(context));
        let logits = run(&mut engine, &ids)?;
        let spec = engine.spec().clone();
        drop(engine);
        let expected = stream(&Values(source), &spec, None, self.threads, &[&ids], true, None)?;
        let found = divergence(&logits, &expected, &ids, spec.vocab)?;
        if name == TEXT_NAME {
            refuse_noise(&found, spec.vocab)?;
        }
        let mut slots = Vec::new();
        if let Some(trace) = Trace::new(&ids, &expected, spec.vocab) {
            slots.push((SlotKind::TraceReference, trace.to_bytes()));
        }
        let reference = Reference::new(&ids, &expected, spec.vocab);
        let (kl, _) = compare(&reference, &logits)?;
        slots.push((SlotKind::Custom, reference.to_bytes()));
        let record = QualityRecord::new(name, ids.len(), &found, kl.estimate().mean, &logits)?;
        Ok(Evidence { metadata: record.to_metadata()?, slots })
    }
}

/// How a file is run for its record: f32 K and V, so that only the weights count.
pub(super) fn options(threads: Option<usize>) -> Options {
    Options {
        threads,
        kv: KvTypes { k: KvDtype::F32, v: KvDtype::F32 },
        context: Some(MAX_TOKENS),
        step_tokens: MAX_TOKENS,
        logit_rows: MAX_TOKENS,
        lean: true,
        ..Options::default()
    }
}

/// Logits of every position of `ids`, from an empty cache.
pub(super) fn run(engine: &mut Engine, ids: &[u32]) -> Result<Vec<f32>, MeasureError> {
    if ids.len() < 2 {
        return Err(MeasureError::TooFewTokens { found: ids.len() });
    }
    let sequence = engine.new_sequence()?;
    let mut logits = Vec::with_capacity(ids.len() * engine.spec().vocab);
    for tokens in ids.chunks(engine.step_tokens().min(engine.logit_rows())) {
        let run = TokenRun { sequence, tokens, logits: WantLogits::All };
        match engine.step(&[run]) {
            Ok(step) => logits.extend_from_slice(step.data),
            Err(error) => {
                engine.release(sequence);
                return Err(error.into());
            }
        }
    }
    engine.release(sequence);
    Ok(logits)
}

/// As many tokens as the text has, or fewer where their logits would take more than 128 MiB.
fn most_tokens(vocab: usize) -> usize {
    (MAX_LOGIT_BYTES / size_of::<f32>() / vocab.max(1)).clamp(TRACE_TOKENS, MAX_TOKENS)
}

/// Ids spread over the vocabulary, for a model whose tokens have no text.
fn arbitrary_ids(vocab: usize) -> Vec<u32> {
    let spread = |i: usize| (i.wrapping_mul(2_654_435_761) % vocab.max(1)) as u32;
    (1..=MAX_TOKENS).map(spread).collect()
}

fn refuse_noise(found: &Divergence, vocab: usize) -> Result<(), MeasureError> {
    let limit = (vocab as f64).powf(NOISE);
    let (perplexity, source_perplexity) = (found.candidate.perplexity.mean, found.reference.perplexity.mean);
    if perplexity < limit {
        Ok(())
    } else if source_perplexity < limit {
        Err(MeasureError::Ruined { perplexity, source_perplexity })
    } else {
        Err(MeasureError::Noise { perplexity, source_perplexity, vocab, limit })
    }
}
