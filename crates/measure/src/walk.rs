//! One pass over token ids: windows, chunks, and one chunk of logits at a time.

use std::ops::{ControlFlow, Range};

use basert_engine::{Engine, SequenceId, TokenRun, WantLogits};

use crate::MeasureError;

/// How the ids are fed. Results depend on `window` and `stride` (they limit what a token can see) but not on `chunk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Tokens that are read from an empty cache before the next window starts; at most the engine's context.
    pub window: usize,
    /// Tokens from the start of a window to the start of the next, at most `window`. What two windows share is scored in
    /// the first and only read in the second, so that every token but those of the first window sees at least
    /// `window - stride` before it.
    pub stride: usize,
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
    /// Where the window starts and ends.
    window: Range<usize>,
    /// First id that no earlier window has.
    fresh: usize,
    ids: &'a [u32],
}

/// What is to be done at one position.
pub(crate) struct Target {
    /// Index into all ids.
    pub(crate) position: usize,
    /// The id that follows, if it is this window that scores it.
    pub(crate) next: Option<u32>,
    /// Whether no earlier window has this position.
    pub(crate) is_fresh: bool,
}

impl<'a> Chunk<'a> {
    /// The token ids of the chunk.
    pub(crate) fn tokens(&self) -> &'a [u32] {
        &self.ids[self.range.clone()]
    }

    /// Whether the window starts here, with an empty cache.
    pub(crate) fn starts_window(&self) -> bool {
        self.range.start == self.window.start
    }

    /// The positions of the chunk.
    pub(crate) fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.range.clone().map(|position| {
            let next = position + 1;
            let scored = next < self.window.end && next >= self.fresh;
            Target { position, next: scored.then(|| self.ids[next]), is_fresh: position >= self.fresh }
        })
    }
}

/// The chunks of `ids` in order. `plan` must have been checked.
pub(crate) fn chunks<'a>(ids: &'a [u32], plan: &Plan) -> impl Iterator<Item = Chunk<'a>> {
    let Plan { window: length, stride, chunk } = *plan;
    let windows = 1 + ids.len().saturating_sub(length).div_ceil(stride);
    (0..windows).flat_map(move |number| {
        let start = number * stride;
        let window = start..(start + length).min(ids.len());
        let fresh = if number == 0 { 0 } else { start - stride + length };
        window.clone().step_by(chunk).map(move |first| Chunk {
            range: first..(first + chunk).min(window.end),
            window: window.clone(),
            fresh,
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
    pub(crate) fn step(&mut self, chunk: &Chunk) -> Result<(&[f32], usize), MeasureError> {
        if chunk.starts_window()
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
    let Plan { window, stride, chunk } = *plan;
    if stride == 0 || stride > window || chunk == 0 {
        return Err(MeasureError::Plan { window, stride, chunk });
    }
    match ids.len().min(window) {
        found @ (0 | 1) => Err(MeasureError::TooFewTokens { found }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The windows, and for every scored id how many ids its window has before it.
    fn walk(count: u32, plan: Plan) -> (Vec<Range<usize>>, Vec<(usize, usize)>, usize) {
        let ids: Vec<u32> = (100..100 + count).collect();
        check(&ids, &plan).unwrap();
        let (mut windows, mut scored, mut fresh) = (Vec::new(), Vec::new(), 0);
        for chunk in chunks(&ids, &plan) {
            if chunk.starts_window() {
                windows.push(chunk.window.clone());
            }
            for target in chunk.targets() {
                fresh += usize::from(target.is_fresh);
                if let Some(next) = target.next {
                    assert_eq!(next, ids[target.position + 1]);
                    scored.push((target.position + 1, target.position + 1 - chunk.window.start));
                }
            }
        }
        (windows, scored, fresh)
    }

    #[test]
    fn windows_and_chunks_cover_every_id_once_and_never_predict_across_windows() {
        for chunk in [1, 3, 5, 100] {
            let (windows, scored, fresh) = walk(11, Plan { window: 5, stride: 5, chunk });
            assert_eq!(windows, [0..5, 5..10, 10..11]);
            let ids: Vec<usize> = scored.iter().map(|s| s.0).collect();
            assert_eq!((ids, fresh), (vec![1, 2, 3, 4, 6, 7, 8, 9], 11), "chunks of {chunk}");
        }
    }

    #[test]
    fn with_a_stride_every_id_is_scored_once_and_sees_what_the_windows_share() {
        for (count, window, stride) in
            [(20, 8, 2), (21, 8, 3), (9, 8, 1), (8, 8, 4), (5, 8, 4), (200, 16, 15)]
        {
            let (windows, scored, fresh) = walk(count, Plan { window, stride, chunk: 3 });
            let ids: Vec<usize> = scored.iter().map(|s| s.0).collect();
            assert_eq!(ids, (1..count as usize).collect::<Vec<_>>(), "{count} {window} {stride}");
            assert_eq!(fresh, count as usize);
            assert_eq!(windows.last().map(|w| w.end), Some(count as usize));
            let seen = scored.iter().filter(|s| s.0 >= window).map(|s| s.1).min();
            assert!(seen.is_none_or(|seen| seen >= window - stride), "{count} {window} {stride}: {seen:?}");
        }
    }

    #[test]
    fn one_token_cannot_be_scored() {
        for (ids, window) in [(0, 8), (1, 8), (5, 1)] {
            let plan = Plan { window, stride: window, chunk: 4 };
            assert!(matches!(check(&vec![0; ids], &plan), Err(MeasureError::TooFewTokens { .. })));
        }
    }

    #[test]
    fn steps_that_would_leave_gaps_are_refused() {
        for (window, stride, chunk) in [(8, 0, 4), (8, 9, 4), (8, 8, 0)] {
            let plan = Plan { window, stride, chunk };
            assert!(matches!(check(&[1, 2, 3], &plan), Err(MeasureError::Plan { .. })), "{plan:?}");
        }
    }
}
