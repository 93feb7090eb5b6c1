//! Caches full of arbitrary values, to measure what a long context costs without reading one.

use crate::EngineError;
use crate::cache::SequenceId;
use crate::engine::Engine;

/// Tokens whose keys and values are made at a time.
const CHUNK: usize = 256;

impl Engine {
    /// Puts arbitrary keys and values behind what a sequence has read, as though it had read `tokens` more. They are stored
    /// as those of a step are, in the cache's types. The recurrent state is left as it is.
    ///
    /// # Errors
    /// A sequence that is not live, and a context that is too short.
    pub fn fill(&mut self, id: SequenceId, tokens: usize) -> Result<(), EngineError> {
        self.caches.reserve(id, tokens)?;
        let Engine { cpu, caches, .. } = self;
        let (sequence, layers) = caches.parts(id)?;
        let width = layers.iter().map(|l| l.geometry.kv_heads * l.geometry.head_dim).max().unwrap_or(0);
        let values = arbitrary(2 * CHUNK * width);
        for start in (0..tokens).step_by(CHUNK) {
            let (first, count) = (sequence.position + start, CHUNK.min(tokens - start));
            for layer in &mut *layers {
                let len = count * layer.geometry.kv_heads * layer.geometry.head_dim;
                let (k, v) = (&values[..len], &values[CHUNK * width..][..len]);
                cpu.store_kv(&layer.geometry, &mut layer.k, &mut layer.v, &sequence.pages, first, k, v);
            }
        }
        sequence.position += tokens;
        sequence.draft.truncate(sequence.position);
        Ok(())
    }
}

/// Numbers between -1 and 1, the same every time.
fn arbitrary(count: usize) -> Vec<f32> {
    let mut bits = 1u32;
    let mut next = || {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (bits >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
