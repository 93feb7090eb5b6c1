//! How many prompt tokens a step takes beside running answers, so that these keep their pace.
//!
//! What a prompt token costs depends on the model, the machine and the length of the context, so the number follows the clock:
//! after every step it is scaled towards one with which a step takes [`STRETCH`] times as long as one of answers alone. A
//! prompt may be cut anywhere without changing a bit of an answer, so the clock decides when a token comes and never which.

use std::time::Duration;

/// How much longer a step may be than one of answers alone: less than the three that readers of a stream should see at most,
/// as steps vary.
const STRETCH: f64 = 2.5;
/// Tokens below which reading a prompt costs much more than its time.
const FEWEST: usize = 8;
/// How far the number moves in a step: down fast, as answers wait, and up slowly.
const DOWN: f64 = 0.5;
const UP: f64 = 1.25;
/// Weight of the newest step of answers alone in their mean.
const NEWEST: f64 = 0.125;

/// The pace of a scheduler's steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacing {
    most: usize,
    tokens: usize,
    /// Seconds of a step of answers alone, once there was one.
    alone: Option<f64>,
}

impl Pacing {
    /// A pace with at most so many prompt tokens in a step.
    pub fn new(most: usize) -> Pacing {
        Pacing { most, tokens: most.min(2 * FEWEST), alone: None }
    }

    /// Prompt tokens of the next step, if there are answers in it.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Takes note of a step with answers and so many prompt tokens.
    pub fn ran(&mut self, prompt: usize, took: Duration) {
        let took = took.as_secs_f64();
        if prompt == 0 {
            self.alone = Some(self.alone.map_or(took, |mean| mean + NEWEST * (took - mean)));
            return;
        }
        // The last part of a prompt says little of whole ones.
        let Some(alone) = self.alone.filter(|_| prompt == self.tokens) else { return };
        let scale = (STRETCH - 1.0) * alone / (took - alone).max(f64::MIN_POSITIVE);
        let tokens = (self.tokens as f64 * scale.clamp(DOWN, UP)).round() as usize;
        self.tokens = tokens.clamp(FEWEST.min(self.most), self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the pace comes to on a machine that takes so many milliseconds for a step of answers and a prompt token.
    fn settles(most: usize, alone: f64, token: f64) -> usize {
        let step = |prompt: usize| Duration::from_secs_f64((alone + token * prompt as f64) / 1e3);
        let mut pacing = Pacing::new(most);
        pacing.ran(0, step(0));
        for _ in 0..100 {
            pacing.ran(pacing.tokens(), step(pacing.tokens()));
        }
        pacing.tokens()
    }

    #[test]
    fn a_step_becomes_as_long_as_answers_can_bear() {
        assert_eq!(settles(128, 24.0, 1.0), 36);
        assert_eq!(settles(128, 100.0, 1.0), 128, "but no longer than it may be");
        assert_eq!(settles(128, 1.0, 1.0), FEWEST, "and never so short that a prompt is hardly read");
        assert_eq!(settles(4, 1.0, 1.0), 4);
        assert_eq!(settles(128, 1.0, 0.0), 128);
    }

    #[test]
    fn one_slow_step_is_no_reason_to_read_no_more() {
        let mut pacing = Pacing { most: 128, tokens: 64, alone: Some(0.01) };
        pacing.ran(64, Duration::from_secs(5));
        assert_eq!(pacing.tokens(), 32);
        pacing.ran(7, Duration::from_secs(5));
        assert_eq!(pacing.tokens(), 32, "the end of a prompt");
    }
}
