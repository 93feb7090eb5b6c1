//! Stop strings in streamed text.

use crate::TextError;

/// Watches streamed text for stop strings.
///
/// Text that might be the beginning of a stop string is held back until it is known not to be one, so no part of a stop
/// string is ever handed out. The result does not depend on how the text is cut into pieces: the match that is complete
/// first counts, and of those complete at the same character the longest.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// The longest end of the text so far that begins a stop string.
    held: String,
    stopped: bool,
}

/// What one piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStep {
    /// The text that is now known not to belong to a stop string.
    pub text: String,
    /// Whether a stop string is complete. Nothing follows.
    pub stopped: bool,
}

impl StopMatcher {
    /// A matcher for these strings; with none, text passes through.
    ///
    /// # Errors
    /// If a stop string is empty.
    pub fn new(stops: &[String]) -> Result<Self, TextError> {
        match stops.iter().position(String::is_empty) {
            Some(index) => Err(TextError::EmptyStop { index }),
            None => Ok(Self { stops: stops.to_vec(), ..Self::default() }),
        }
    }

    /// Takes the next piece of text. After a stop string, all further text is dropped.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.stopped {
            return StopStep { text: String::new(), stopped: true };
        }
        let known = self.held.len();
        self.held.push_str(text);
        for end in known + 1..=self.held.len() {
            let seen = &self.held.as_bytes()[..end];
            let ending = self.stops.iter().filter(|stop| seen.ends_with(stop.as_bytes()));
            if let Some(stop) = ending.max_by_key(|stop| stop.len()) {
                self.stopped = true;
                self.held.truncate(end - stop.len());
                return StopStep { text: std::mem::take(&mut self.held), stopped: true };
            }
        }
        let rest = self.held.split_off(self.held.len() - self.possible_start());
        StopStep { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }

    /// Ends the text: returns what was held back.
    pub fn finish(self) -> String {
        self.held
    }

    /// Length of the longest end of `held` that is the beginning of a stop string.
    fn possible_start(&self) -> usize {
        let longest = |stop: &String| {
            let lengths = (1..stop.len()).rev();
            lengths.into_iter().find(|&n| self.held.as_bytes().ends_with(&stop.as_bytes()[..n])).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}
