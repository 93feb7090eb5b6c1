//! How many guesses pay.

use std::time::Duration;

use super::MOST_DRAFTS;

/// Rounds that are tried of every number before numbers are compared.
const TRIALS: u32 = 2;
/// Rounds until a number that does not look best is tried again.
const RETRY: u32 = 64;
/// Weight of a new observation.
const RATE: f64 = 0.1;

/// What rounds of guessing and verifying took, by their number of guesses, and how often a guess was right.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// Seconds of a round, and how many were seen.
    rounds: [(f64, u32); MOST_DRAFTS + 1],
    /// Share of guesses that were right, of those behind none that was wrong.
    right: f64,
    /// Rounds since another number was tried.
    settled: u32,
    /// Whether that was a larger one, if there was one.
    upwards: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { rounds: [(0.0, 0); MOST_DRAFTS + 1], right: 0.6, settled: 0, upwards: false }
    }
}

impl Pace {
    /// How many to guess in the next round, at most `most`.
    pub fn choose(&mut self, most: usize) -> usize {
        let numbers = [0, 1].into_iter().chain((2..=most).step_by(2));
        let numbers = numbers.filter(|&count| count <= most);
        if let Some(untried) = numbers.clone().find(|&count| self.rounds[count].1 < TRIALS) {
            return untried;
        }
        let best = numbers.clone().max_by(|&a, &b| self.speed(a).total_cmp(&self.speed(b))).unwrap_or(0);
        self.settled += 1;
        if self.settled < RETRY {
            return best;
        }
        self.settled = 0;
        self.upwards = !self.upwards;
        let (below, above) =
            (numbers.clone().filter(|&n| n < best).last(), numbers.clone().find(|&n| n > best));
        let (first, second) = if self.upwards { (above, below) } else { (below, above) };
        first.or(second).unwrap_or(best)
    }

    /// Expected tokens per second.
    fn speed(&self, count: usize) -> f64 {
        let tokens: f64 = (0..=count).map(|i| self.right.powi(i as i32)).sum();
        tokens / self.rounds[count].0.max(1e-9)
    }

    /// Takes note of a round, and of its time where it is known.
    pub fn observe(&mut self, drafted: usize, accepted: usize, time: Option<Duration>) {
        if let Some(time) = time {
            self.time(drafted, time.as_secs_f64());
        }
        for guess in 0..drafted.min(accepted + 1) {
            let right = if guess < accepted { 1.0 } else { 0.0 };
            self.right += RATE * (right - self.right);
        }
    }

    fn time(&mut self, drafted: usize, time: f64) {
        let (seconds, seen) = &mut self.rounds[drafted];
        // The first rounds of a size are slow for reasons that pass.
        *seconds = match *seen {
            0 => time,
            1 => seconds.min(time),
            _ => *seconds + RATE * (time.min(2.0 * *seconds) - *seconds),
        };
        *seen = seen.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is chosen most after a while, if `right` of ten guesses are right and a guess costs `cost` hundredths of a step.
    fn chosen(right: usize, cost: u64) -> usize {
        let mut pace = Pace::default();
        let mut counts = [0; 5];
        for round in 0..500 {
            let drafted = pace.choose(4);
            let is_right = |guess: &usize| (round * 7 + guess * 3) % 10 < right;
            let accepted = (0..drafted).take_while(is_right).count();
            pace.observe(drafted, accepted, Some(Duration::from_micros(100 + cost * drafted as u64)));
            counts[drafted] += 1;
        }
        (0..5).max_by_key(|&count| counts[count]).unwrap_or(0)
    }

    #[test]
    fn guesses_that_are_right_and_cheap_are_made_and_others_are_not() {
        assert_eq!(chosen(9, 10), 4);
        assert_eq!(chosen(9, 200), 0);
        assert_eq!(chosen(0, 10), 0);
        assert!((1..3).contains(&chosen(5, 20)));
    }
}
