//! One pass over token ids: windows, chunks, and one chunk of logits at a time.

use std::ops::{ControlFlow, Range};

use basert_engine::{Engine, SequenceId, TokenRun, WantLogits};

use crate::MeasureError;

/// How the ids are fed. Results depend on `window` (it limits what a token can see) but not on `chunk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Tokens that are read from an empty cache before the next window starts; at most the engine's context.
    pub window: usize,
    /// Tokens per step: bounds the logits held at a time to `[chunk, vocab]`. At most what the engine was loaded
    /// for, in step tokens and in rows of logits.
    pub chunk: usize,
}

/// Called after every chunk with the number of ids read so far; [`ControlFlow::Break`] stops the measurement.
pub type Progress<'a> = &'a mut dyn FnMut(usize) -> ControlFlow<()>;

/// A chunk of a window.
pub(crate) struct Chunk<'a> {
    /// Indices into all ids.
    pub(crate) range: Range<usize>,
    /// End of the window, exclusive.
    pub(crate) window_end: usize,
    ids: &'a [u32],
}

impl<'a> Chunk<'a> {
    /// The token ids of the chunk.
    pub(crate) fn tokens(&self) -> &'a [u32] {
        &self.ids[self.range.clone()]
    }

    /// Whether the window starts here, with an empty cache.
    pub(crate) fn starts_window(&self, plan: &Plan) -> bool {
        self.range.start.is_multiple_of(plan.window)
    }

    /// For every position of the chunk: its index, and the id that the logits there predict, if the window has it.
    pub(crate) fn targets(&self) -> impl Iterator<Item = (usize, Option<u32>)> + '_ {
        self.range.clone().map(|i| (i, (i + 1 < self.window_end).then(|| self.ids[i + 1])))
    }
}

/// The chunks of `ids` in order. `plan` must not hold zeros.
pub(crate) fn chunks<'a>(ids: &'a [u32], plan: &Plan) -> impl Iterator<Item = Chunk<'a>> {
    let Plan { window, chunk } = *plan;
    (0..ids.len()).step_by(window).flat_map(move |start| {
        let window_end = (start + window).min(ids.len());
        (start..window_end).step_by(chunk).map(move |first| Chunk {
            range: first..(first + chunk).min(window_end),
            window_end,
            ids,
        })
    })
}

/// A model being fed, one window after the other.
pub(crate) struct Reader<'e> {
    engine: &'e mut Engine,
    sequence: Option<SequenceId>,
}

impl<'e> Reader<'e> {
    pub(crate) fn new(engine: &'e mut Engine) -> Reader<'e> {
        Reader { engine, sequence: None }
    }

    /// Logits of every position of `chunk`, `[tokens, vocab]`, and the vocabulary.
    pub(crate) fn step(&mut self, chunk: &Chunk, plan: &Plan) -> Result<(&[f32], usize), MeasureError> {
        if chunk.starts_window(plan)
            && let Some(done) = self.sequence.take()
        {
            self.engine.release(done);
        }
        let sequence = match self.sequence {
            Some(sequence) => sequence,
            None => *self.sequence.insert(self.engine.new_sequence()?),
        };
        let run = TokenRun { sequence, tokens: chunk.tokens(), logits: WantLogits::All };
        let logits = self.engine.step(&[run])?;
        Ok((logits.data, logits.vocab))
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if let Some(sequence) = self.sequence.take() {
            self.engine.release(sequence);
        }
    }
}

/// Refuses what cannot be scored.
pub(crate) fn check(ids: &[u32], plan: &Plan) -> Result<(), MeasureError> {
    match ids.len().min(plan.window) {
        found @ (0 | 1) => Err(MeasureError::TooFewTokens { found }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_and_chunks_cover_every_id_once_and_never_predict_across_windows() {
        let ids: Vec<u32> = (100..111).collect();
        let plan = Plan { window: 5, chunk: 3 };
        let ranges: Vec<_> = chunks(&ids, &plan).map(|c| (c.range.clone(), c.starts_window(&plan))).collect();
        assert_eq!(ranges, [(0..3, true), (3..5, false), (5..8, true), (8..10, false), (10..11, true)]);
        let targets: Vec<_> = chunks(&ids, &plan).flat_map(|c| c.targets().collect::<Vec<_>>()).collect();
        for (i, target) in targets {
            let expected = if i == 4 || i == 9 || i == 10 { None } else { Some(101 + i as u32) };
            assert_eq!(target, expected, "position {i}");
        }
    }

    #[test]
    fn one_token_cannot_be_scored() {
        for (ids, window) in [(0, 8), (1, 8), (5, 1)] {
            let ids = vec![0; ids];
            assert!(matches!(
                check(&ids, &Plan { window, chunk: 4 }),
                Err(MeasureError::TooFewTokens { .. })
            ));
        }
    }
}
