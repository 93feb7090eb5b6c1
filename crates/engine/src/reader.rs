//! A sequence in use: the tokens that it has run, and what of them is kept for later prompts.
//!
//! Keys and values can be kept at any page's end, a recurrent state only at the moment at which it is there. So a prompt of a
//! model with recurrent layers pauses where its state may be wanted again: at the borders that the caller names, where
//! another prompt went on differently, at its last whole page, and in between as often as a state costs no more than the keys
//! and values before it. The answer keeps the state of its last whole page.

use std::collections::VecDeque;

use crate::engine::Engine;
use crate::{EngineError, SequenceId};

/// Most tokens between two states of a prompt.
const LONGEST_SPACING: usize = 1 << 16;

/// What of a prompt may be read again, and by whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Prompts share what is kept only within a namespace: one for every client that must not learn from response times what
    /// others have asked.
    pub namespace: String,
    /// Positions in the prompt from which others may go on differently: the ends of its messages. They are rounded down to
    /// whole pages; if there are more than the cache has room for, the first and the last ones count.
    pub borders: Vec<usize>,
}

/// A sequence with what it has run.
#[derive(Debug)]
pub(crate) struct Reader {
    pub sequence: SequenceId,
    /// What it has run, in order.
    tokens: Vec<u32>,
    namespace: String,
    /// Where its prompt pauses.
    stops: VecDeque<usize>,
    /// Length of its prompt.
    prompt: usize,
    /// Tokens of the state that is kept until the next one is.
    passing: Option<usize>,
    /// A step failed, so nobody knows what the caches hold.
    spoilt: bool,
}

impl Reader {
    /// A sequence for `prompt`, with as much of it as was kept; with nothing of it if it has to be run `whole`.
    ///
    /// # Errors
    /// [`EngineError::NoFreeSequence`].
    pub fn open(
        engine: &mut Engine,
        prompt: &[u32],
        reuse: &Reuse,
        whole: bool,
    ) -> Result<Reader, EngineError> {
        let opened = engine.open_prefix(&reuse.namespace, if whole { &[] } else { prompt })?;
        let mut reader = Reader::resume(opened.sequence, prompt[..opened.cached].to_vec());
        reader.namespace = reuse.namespace.clone();
        reader.aim(engine, prompt.len(), opened.shared, &reuse.borders);
        Ok(reader)
    }

    /// A sequence that has run `tokens`.
    pub fn resume(sequence: SequenceId, tokens: Vec<u32>) -> Reader {
        let (namespace, stops) = (String::new(), VecDeque::new());
        Reader { sequence, tokens, namespace, stops, prompt: 0, passing: None, spoilt: false }
    }

    /// What it has run.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Prepares for a prompt of so many tokens, of which `shared` were read by others.
    pub fn aim(&mut self, engine: &Engine, prompt: usize, shared: usize, borders: &[usize]) {
        self.prompt = prompt;
        self.stops = match engine.prefix_stats() {
            None => VecDeque::new(),
            Some(stats) => {
                let spacing = spacing(engine, stats.page_tokens);
                let plan = Pauses { page: stats.page_tokens, spacing, room: stats.most_snapshots / 2 };
                plan.of(self.tokens.len(), prompt, shared, borders)
            }
        };
    }

    /// The next place at which a prompt has to pause, if any.
    pub fn pause(&self) -> usize {
        self.stops.front().copied().unwrap_or(usize::MAX)
    }

    /// Tokens that can be run before something may have to be kept.
    pub fn room(&self, engine: &Engine) -> usize {
        engine.to_page_end(self.tokens.len())
    }

    /// Takes note of tokens that were run.
    pub fn ran(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Nothing is kept from now on, because a step failed.
    pub fn spoil(&mut self) {
        self.spoilt = true;
    }

    /// Whether nobody knows what the caches hold.
    pub fn is_spoilt(&self) -> bool {
        self.spoilt
    }

    /// Keeps what has to be kept at this place. Call it after every step.
    pub fn settle(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        if self.spoilt {
            return Ok(());
        }
        let position = self.tokens.len();
        if self.stops.front() == Some(&position) {
            self.stops.pop_front();
            engine.keep_prefix(self.sequence, &self.namespace, &self.tokens)?;
        } else if position > self.prompt && engine.at_page_end(position) {
            let (namespace, replaces) = (&self.namespace, self.passing);
            if engine.keep_passing(self.sequence, namespace, &self.tokens, replaces)? {
                self.passing = Some(position);
            }
        }
        Ok(())
    }

    /// Ends the sequence. Keys and values stay.
    pub fn close(self, engine: &mut Engine) {
        if self.spoilt {
            return engine.release(self.sequence);
        }
        // Nothing is lost but time where they cannot.
        let _ = engine.keep_prefix(self.sequence, &self.namespace, &self.tokens);
        engine.release(self.sequence);
    }
}

/// Tokens whose keys and values take as much as a state; `None` where there is no state to keep.
fn spacing(engine: &Engine, page: usize) -> Option<usize> {
    let selected = engine.selected();
    let tokens = selected.state_bytes.checked_div(selected.pools.bytes_per_token);
    let tokens = tokens.map_or(LONGEST_SPACING, |tokens| LONGEST_SPACING.min(tokens as usize));
    (selected.state_bytes > 0).then(|| tokens.next_multiple_of(page).max(page))
}

/// How pauses are chosen.
struct Pauses {
    page: usize,
    /// Most tokens between two; `None` without states, when only the end of the prompt counts.
    spacing: Option<usize>,
    /// Most borders.
    room: usize,
}

impl Pauses {
    /// Pauses after `from` in a prompt, in ascending order.
    fn of(&self, from: usize, prompt: usize, shared: usize, borders: &[usize]) -> VecDeque<usize> {
        let Some(spacing) = self.spacing else { return VecDeque::from([prompt]) };
        let whole = |position: usize| position.min(prompt.saturating_sub(1)) / self.page * self.page;
        let mut borders: Vec<usize> =
            borders.iter().map(|&border| whole(border)).filter(|&b| b > from).collect();
        borders.sort_unstable();
        borders.dedup();
        let room = self.room.max(2);
        if borders.len() > room {
            borders.drain(1..=borders.len() - room);
        }
        let mut stops = borders;
        stops.extend([whole(prompt), whole(shared)]);
        stops.extend((1..).map(|n| n * spacing).take_while(|&n| n < prompt));
        stops.retain(|&stop| stop > from);
        stops.sort_unstable();
        stops.dedup();
        stops.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_pause_where_their_state_may_be_wanted() {
        let pauses = Pauses { page: 32, spacing: Some(128), room: 3 };
        assert_eq!(pauses.of(0, 100, 0, &[]), [96]);
        assert_eq!(pauses.of(0, 96, 0, &[]), [64], "a repeated prompt needs a token to run");
        assert_eq!(pauses.of(0, 300, 70, &[10, 40, 299]), [32, 64, 128, 256, 288]);
        assert_eq!(pauses.of(64, 300, 64, &[40, 299]), [128, 256, 288], "what was read is behind");
        assert!(pauses.of(0, 20, 0, &[10]).is_empty());
        let many: Vec<usize> = (1..9).map(|n| n * 32).collect();
        assert_eq!(pauses.of(0, 290, 0, &many), [32, 128, 224, 256, 288]);
        let dense = Pauses { spacing: None, ..pauses };
        assert_eq!(dense.of(0, 300, 70, &many), [300]);
    }
}
