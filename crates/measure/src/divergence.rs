//! How far a model is from a reference, position by position, without storing either's logits.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use basert_engine::Engine;
use serde::Serialize;

use crate::perplexity::surprise;
use crate::stats::{Estimate, Running, argmax, kl_divergence, log_sum_exp};
use crate::walk::{Plan, Progress, Reader, Target, check, chunks};
use crate::{MeasureError, Perplexity};

/// Result of [`compare`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// Positions compared: all of them, each once, the last of a window included.
    pub positions: u64,
    /// KL(reference ‖ candidate) of the next-token distributions, in nats.
    pub kl: Estimate,
    /// Largest KL of a single position.
    pub max_kl: f64,
    /// Share of positions at which both find the same token likeliest, 0 to 1.
    pub top1_agreement: f64,
    /// The candidate's perplexity on the same ids.
    pub candidate: Perplexity,
    /// The reference's perplexity on the same ids.
    pub reference: Perplexity,
}

/// Feeds `ids` to both models, chunk by chunk, and compares their logits at every position.
///
/// # Errors
/// [`MeasureError::Vocabulary`] when the models have different vocabularies; otherwise as
/// [`perplexity`](crate::perplexity).
pub fn compare(
    candidate: &mut Engine,
    reference: &mut Engine,
    ids: &[u32],
    plan: &Plan,
    progress: Progress,
) -> Result<Divergence, MeasureError> {
    check(ids, plan)?;
    let (mut candidate, mut reference) = (Reader::new(candidate), Reader::new(reference));
    let mut sums = Sums::default();
    let (mut candidate_time, mut reference_time) = (Duration::ZERO, Duration::ZERO);
    for chunk in chunks(ids, plan) {
        let start = Instant::now();
        let (q, vocab) = candidate.step(&chunk)?;
        candidate_time += start.elapsed();
        let start = Instant::now();
        let (p, reference_vocab) = reference.step(&chunk)?;
        reference_time += start.elapsed();
        if vocab != reference_vocab {
            return Err(MeasureError::Vocabulary { candidate: vocab, reference: reference_vocab });
        }
        let rows = p.chunks_exact(vocab).zip(q.chunks_exact(vocab));
        for (target, (p, q)) in chunk.targets().zip(rows) {
            sums.add(p, q, &target)?;
        }
        if let ControlFlow::Break(()) = progress(chunk.range.end) {
            return Err(MeasureError::Stopped);
        }
    }
    Ok(sums.finish(ids.len(), [candidate_time, reference_time]))
}

/// Compares logits of the same `ids` that are at hand, both `[ids, vocab]`.
///
/// # Errors
/// [`MeasureError::NotFinite`].
pub(crate) fn divergence(
    candidate: &[f32],
    reference: &[f32],
    ids: &[u32],
    vocab: usize,
) -> Result<Divergence, MeasureError> {
    let mut sums = Sums::default();
    let rows = reference.chunks_exact(vocab).zip(candidate.chunks_exact(vocab));
    for (position, (p, q)) in rows.enumerate() {
        sums.add(p, q, &Target { position, next: ids.get(position + 1).copied(), is_fresh: true })?;
    }
    Ok(sums.finish(ids.len(), [Duration::ZERO; 2]))
}

#[derive(Default)]
struct Sums {
    kl: Running,
    agreed: u64,
    candidate_nll: Running,
    reference_nll: Running,
}

impl Sums {
    /// Over `tokens` ids; `times` of candidate and reference.
    fn finish(&self, tokens: usize, times: [Duration; 2]) -> Divergence {
        Divergence {
            positions: self.kl.count(),
            kl: self.kl.estimate(),
            max_kl: self.kl.max(),
            top1_agreement: self.agreed as f64 / self.kl.count() as f64,
            candidate: Perplexity::new(tokens, &self.candidate_nll, times[0]),
            reference: Perplexity::new(tokens, &self.reference_nll, times[1]),
        }
    }

    /// One position: the reference's row `p`, the candidate's row `q`, both `[vocab]`.
    fn add(&mut self, p: &[f32], q: &[f32], target: &Target) -> Result<(), MeasureError> {
        let Target { position, next, is_fresh } = *target;
        if !is_fresh && next.is_none() {
            return Ok(());
        }
        let (lse_p, lse_q) = (log_sum_exp(p), log_sum_exp(q));
        if is_fresh {
            let kl = kl_divergence(p, lse_p, q, lse_q);
            if !kl.is_finite() {
                return Err(MeasureError::NotFinite { position });
            }
            self.kl.push(kl);
            self.agreed += u64::from(argmax(p) == argmax(q));
        }
        if let Some(next) = next {
            self.reference_nll.push(surprise(p, lse_p, next, position)?);
            self.candidate_nll.push(surprise(q, lse_q, next, position)?);
        }
        Ok(())
    }
}
