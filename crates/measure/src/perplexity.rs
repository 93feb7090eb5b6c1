//! Perplexity: how surprised a model is by a text.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use basert_engine::Engine;
use serde::Serialize;

use crate::stats::{Estimate, Running, log_sum_exp};
use crate::walk::{Plan, Progress, Reader, check, chunks};
use crate::{LogitsWriter, MeasureError};

/// Result of a perplexity measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Perplexity {
    /// Token ids read.
    pub tokens: usize,
    /// Tokens scored: all, but the first of every window that begins where another ends.
    pub scored: u64,
    /// Negative log-likelihood per scored token, in nats.
    pub nll: Estimate,
    /// `exp` of the mean negative log-likelihood; the standard error follows by the delta method.
    pub perplexity: Estimate,
    /// Time in the engine.
    #[serde(skip)]
    pub elapsed: Duration,
}

impl Perplexity {
    pub(crate) fn new(tokens: usize, nll: &Running, elapsed: Duration) -> Perplexity {
        let estimate = nll.estimate();
        let mean = estimate.mean.exp();
        let perplexity = Estimate { mean, standard_error: mean * estimate.standard_error };
        Perplexity { tokens, scored: nll.count(), nll: estimate, perplexity, elapsed }
    }
}

/// Feeds `ids` and scores every token from the ones before it in its window. With `dump`, the logits of every
/// position are written as well, in the order of `ids`; windows must not overlap then.
///
/// # Errors
/// [`MeasureError::TooFewTokens`], [`MeasureError::NotFinite`], [`MeasureError::Stopped`], and whatever the engine
/// or the dump meets.
pub fn perplexity(
    engine: &mut Engine,
    ids: &[u32],
    plan: &Plan,
    mut dump: Option<&mut LogitsWriter>,
    progress: Progress,
) -> Result<Perplexity, MeasureError> {
    check(ids, plan)?;
    let mut nll = Running::default();
    let mut elapsed = Duration::ZERO;
    let mut reader = Reader::new(engine);
    for chunk in chunks(ids, plan) {
        let start = Instant::now();
        let (logits, vocab) = reader.step(&chunk)?;
        elapsed += start.elapsed();
        if let Some(dump) = dump.as_deref_mut() {
            dump.write(logits)?;
        }
        for (target, row) in chunk.targets().zip(logits.chunks_exact(vocab)) {
            if let Some(next) = target.next {
                nll.push(surprise(row, log_sum_exp(row), next, target.position)?);
            }
        }
        if let ControlFlow::Break(()) = progress(chunk.range.end) {
            return Err(MeasureError::Stopped);
        }
    }
    Ok(Perplexity::new(ids.len(), &nll, elapsed))
}

/// −ln p(target) of one row of logits, in nats.
pub(crate) fn surprise(row: &[f32], lse: f64, target: u32, position: usize) -> Result<f64, MeasureError> {
    let logit = row.get(target as usize).copied().unwrap_or(f32::NAN);
    let nll = lse - f64::from(logit);
    if nll.is_finite() { Ok(nll) } else { Err(MeasureError::NotFinite { position }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_model_has_the_perplexity_of_its_vocabulary() {
        let row = [0.5f32; 64];
        let mut nll = Running::default();
        for target in 0..10 {
            nll.push(surprise(&row, log_sum_exp(&row), target, 0).unwrap());
        }
        let result = Perplexity::new(11, &nll, Duration::ZERO);
        assert!((result.perplexity.mean - 64.0).abs() < 1e-9);
        assert!(result.perplexity.standard_error < 1e-9);
        assert_eq!((result.tokens, result.scored), (11, 10));
    }

    #[test]
    fn broken_logits_name_their_position() {
        let broken = [f32::NAN, 0.0];
        let error = surprise(&broken, log_sum_exp(&broken), 1, 7).unwrap_err();
        assert!(error.to_string().contains("position 7"), "{error}");
    }
}
