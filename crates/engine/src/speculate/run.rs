//! The engine's part in speculation: guesses of the prediction head, and the fate of guesses that were run.

use crate::EngineError;
use crate::cache::{LayerCache, SequenceId};
use crate::engine::{Engine, Parts};

impl Engine {
    /// Whether a prediction head is loaded.
    pub fn has_draft_head(&self) -> bool {
        self.spec().draft.is_some()
    }

    /// Guesses up to `count` tokens that follow `token`, the next one of the sequence, with the prediction head; fewer where the
    /// context ends, and none without a head. `out` is cleared first.
    ///
    /// # Errors
    /// [`EngineError::Sequence`] when the id is not live.
    pub fn draft(
        &mut self,
        id: SequenceId,
        token: u32,
        count: usize,
        out: &mut Vec<u32>,
    ) -> Result<(), EngineError> {
        out.clear();
        let position = self.position(id)?;
        let room = self.selected.context.saturating_sub(position + 1);
        let count = count.min(room).min(self.options.speculation.most);
        if count == 0 || !self.has_draft_head() {
            return Ok(());
        }
        self.caches.reserve(id, count)?;
        let Parts { context, caches, work, .. } = self.parts(None);
        let mut next = context.predict(id, token, caches, work)?;
        while let Some(token) = next {
            out.push(token);
            if out.len() == count {
                break;
            }
            next = context.predict_on(id, token, position + out.len(), caches, work)?;
        }
        Ok(())
    }

    /// The first `accepted` guesses of the sequence's last step become part of it; the others are forgotten, as all are by
    /// a next step without this call.
    ///
    /// # Errors
    /// [`EngineError::Sequence`] when the id is not live, [`EngineError::StepTooLarge`] if there were not so many guesses.
    pub fn accept(&mut self, id: SequenceId, accepted: usize) -> Result<(), EngineError> {
        let proposed = self.caches.get(id)?.draft.proposed;
        if accepted > proposed {
            let what = "accepted drafts";
            return Err(EngineError::StepTooLarge { what, found: accepted, limit: proposed });
        }
        let Parts { context, caches, work, .. } = self.parts(None);
        for index in 0..if accepted > 0 { context.spec.layers.len() } else { 0 } {
            if let LayerCache::State(slot) = caches.layers[index] {
                context.replay(index, slot, accepted, caches.parts(id)?.0, work);
            }
        }
        let sequence = caches.parts(id)?.0;
        sequence.position += accepted;
        sequence.draft.truncate(sequence.position);
        Ok(())
    }
}
