//! A quality record, run again.

use basert_engine::Engine;
use basert_format::BaseFile;
use basert_kernels::ARITHMETIC;
use serde::Serialize;

use super::check::{options, run};
use super::record::hash;
use super::reference::TRACE_TOKENS;
use super::{QualityRecord, Reference, Trace};
use crate::MeasureError;
use crate::stats::{Estimate, Running, argmax, kl_divergence, log_sum_exp};

/// KL in nats by which another arithmetic may lie beyond what the conversion cost at the kept positions.
const ARITHMETIC_KL: f64 = 0.05;
/// KL in nats up to which a file agrees with a foreign trace, which does not say what its conversion cost.
const FOREIGN_KL: f64 = 0.5;

/// What a file computes here, against what its record says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replay {
    /// The record; `None` for a file that carries a trace only.
    pub record: Option<QualityRecord>,
    /// Whether the record was made with this program's arithmetic, so that bits can be compared.
    pub same_arithmetic: bool,
    /// Whether all logits have the bits of the record; `None` if they cannot be compared.
    pub logits_equal: Option<bool>,
    /// Positions with reference logits.
    pub positions: usize,
    /// Mean KL(reference ‖ here) over them, in nats.
    pub mean_kl: f64,
    /// Share of them at which both find the same token likeliest, 0 to 1.
    pub top1_agreement: f64,
    /// Whether the file still computes what was recorded.
    pub agrees: bool,
}

/// Replays the record of `file` on this machine.
///
/// With the record's arithmetic, every logit must have the recorded bits, on any CPU and with any number of threads. With
/// another, the mean KL to the kept reference logits must stay within 0.05 nats of the recorded one; against a foreign
/// trace alone, within 0.5 nats.
///
/// # Errors
/// [`MeasureError::NoRecord`] when there is nothing to compare with, damaged records, and what the engine meets.
pub fn replay(file: BaseFile, threads: Option<usize>) -> Result<Replay, MeasureError> {
    let record = QualityRecord::of(&file)?;
    let reference = kept(&file)?;
    let mut engine = Engine::load(file, &options(threads))?;
    let (logits, found) = run_and_compare(&mut engine, &reference)?;
    let same_arithmetic = record.as_ref().is_some_and(|record| record.arithmetic == ARITHMETIC);
    let equal = |record: &QualityRecord| record.logits_xxh64 == hash(&logits);
    let logits_equal = record.as_ref().filter(|_| same_arithmetic).map(equal);
    let allowed = record.as_ref().map_or(FOREIGN_KL, |record| record.reference_kl + ARITHMETIC_KL);
    Ok(Replay {
        same_arithmetic,
        logits_equal,
        positions: found.positions,
        mean_kl: found.kl.mean,
        top1_agreement: found.top1_agreement,
        agrees: logits_equal.unwrap_or(found.kl.mean <= allowed),
        record,
    })
}

/// How far a model is from the reference logits that its own file keeps: those of its source's values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Positions with reference logits: a few.
    pub positions: usize,
    /// KL(reference ‖ here) over them, in nats.
    pub kl: Estimate,
    /// Share of them at which both find the same token likeliest, 0 to 1.
    pub top1_agreement: f64,
}

/// Runs the tokens of the reference in `engine`'s file as the engine is loaded, KV types included.
///
/// # Errors
/// [`MeasureError::NoRecord`] for a file without reference, damaged records, and what the engine meets.
pub fn agreement(engine: &mut Engine) -> Result<Agreement, MeasureError> {
    let reference = kept(engine.file())?;
    Ok(run_and_compare(engine, &reference)?.1)
}

/// The reference logits in a file: our own slot's, else those of a foreign trace.
fn kept(file: &BaseFile) -> Result<Reference, MeasureError> {
    match (Reference::of(file)?, Trace::of(file)?) {
        (Some(reference), _) => Ok(reference),
        (None, Some(Trace { ids, logits })) => {
            Ok(Reference { ids, positions: vec![TRACE_TOKENS - 1], vocab: logits.len(), logits })
        }
        (None, None) => Err(MeasureError::NoRecord { path: file.path().to_path_buf() }),
    }
}

/// All logits of the reference's tokens, and how they compare.
fn run_and_compare(
    engine: &mut Engine,
    reference: &Reference,
) -> Result<(Vec<f32>, Agreement), MeasureError> {
    let vocab = engine.spec().vocab;
    if vocab != reference.vocab {
        return Err(MeasureError::Vocabulary { candidate: vocab, reference: reference.vocab });
    }
    let logits = run(engine, &reference.ids)?;
    let (kl, agreed) = compare(reference, &logits)?;
    let positions = reference.positions.len();
    let top1_agreement = agreed as f64 / positions as f64;
    Ok((logits, Agreement { positions, kl: kl.estimate(), top1_agreement }))
}

/// KL and number of equal likeliest tokens at the reference's positions.
pub(super) fn compare(reference: &Reference, logits: &[f32]) -> Result<(Running, usize), MeasureError> {
    let (mut kl, mut agreed) = (Running::default(), 0);
    let rows = reference.logits.chunks_exact(reference.vocab);
    for (&position, p) in reference.positions.iter().zip(rows) {
        let q = &logits[position * reference.vocab..][..reference.vocab];
        let divergence = kl_divergence(p, log_sum_exp(p), q, log_sum_exp(q));
        if !divergence.is_finite() {
            return Err(MeasureError::NotFinite { position });
        }
        kl.push(divergence);
        agreed += usize::from(argmax(p) == argmax(q));
    }
    Ok((kl, agreed))
}
