//! What a full cache really takes and costs.

use std::time::Instant;

use basert_engine::{Engine, KvTypes, TokenRun, WantLogits};

use super::machine::resident_memory;
use crate::MeasureError;

/// Tokens that are generated on a full cache; their median time counts.
const DECODED: usize = 9;

/// A cache that was allocated and filled to the end of the context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FullCache {
    /// By how much the process grew while the keys and values of one sequence were filled; `None` where the system does not
    /// say.
    pub memory_bytes: Option<u64>,
    /// Tokens per second of the last tokens of the context, one sequence.
    pub decode_tokens_per_s: f64,
    /// Types of the allocated pools.
    pub types: KvTypes,
}

impl FullCache {
    /// Fills a sequence of a freshly loaded engine to its last tokens, and times these.
    ///
    /// # Errors
    /// Those of steps, and a context that is too short to time anything.
    pub fn measure(engine: &mut Engine) -> Result<FullCache, MeasureError> {
        let selected = engine.selected();
        let (context, types) = (selected.context, selected.kv);
        let filled = context.checked_sub(DECODED).ok_or(MeasureError::NothingTimed)?;
        let before = resident_memory();
        let sequence = engine.new_sequence()?;
        engine.fill(sequence, filled)?;
        let after = resident_memory();
        let mut seconds = Vec::with_capacity(DECODED);
        for token in 0..DECODED as u32 {
            let start = Instant::now();
            engine.step(&[TokenRun { sequence, tokens: &[token], logits: WantLogits::Last }])?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        engine.release(sequence);
        seconds.sort_by(f64::total_cmp);
        let memory_bytes = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok(FullCache { memory_bytes, decode_tokens_per_s: 1.0 / seconds[DECODED / 2], types })
    }
}
