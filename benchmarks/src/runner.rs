//! What is timed, and what can be timed.

use anyhow::Result;

/// A loaded model with a cache.
pub trait Runner {
    /// Empties the cache and reads `tokens` tokens up to the logits of the last. Returns seconds.
    fn prefill(&mut self, tokens: usize) -> Result<f64>;

    /// Empties the cache and puts `depth` tokens into each of `sequences` sequences.
    fn fill(&mut self, depth: usize, sequences: usize) -> Result<()>;

    /// Runs `steps` more tokens of every sequence, one per step, with logits. Returns seconds.
    fn decode(&mut self, steps: usize) -> Result<f64>;
}

/// One piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Prefill { tokens: usize },
    Decode { depth: usize, sequences: usize },
}

/// Steps of one timed decode; the next one goes on where it ends.
pub const DECODE_STEPS: usize = 16;
/// Steps before the first round.
const WARM_UP_STEPS: usize = DECODE_STEPS / 2;

impl Work {
    /// Positions that a sequence needs for `rounds` rounds and one before them.
    pub fn context(self, rounds: usize) -> usize {
        match self {
            Work::Prefill { tokens } => tokens,
            Work::Decode { depth, .. } => depth + WARM_UP_STEPS + DECODE_STEPS * (rounds + 1),
        }
    }

    pub fn sequences(self) -> usize {
        match self {
            Work::Prefill { .. } => 1,
            Work::Decode { sequences, .. } => sequences,
        }
    }

    /// Tokens per second of a round that took `seconds`.
    pub fn rate(self, seconds: f64) -> f64 {
        let tokens = match self {
            Work::Prefill { tokens } => tokens,
            Work::Decode { sequences, .. } => sequences * DECODE_STEPS,
        };
        tokens as f64 / seconds
    }

    pub fn name(self) -> String {
        match self {
            Work::Prefill { tokens } => format!("prefill {tokens}"),
            Work::Decode { depth, sequences: 1 } => format!("decode at {depth}"),
            Work::Decode { depth, sequences } => format!("decode at {depth}, batch {sequences}"),
        }
    }

    /// What has to be done once before the rounds.
    pub fn prepare(self, runner: &mut dyn Runner) -> Result<()> {
        match self {
            Work::Prefill { .. } => Ok(()),
            Work::Decode { depth, sequences } => {
                runner.fill(depth, sequences)?;
                runner.decode(WARM_UP_STEPS).map(|_| ())
            }
        }
    }

    /// One timed round, in seconds.
    pub fn round(self, runner: &mut dyn Runner) -> Result<f64> {
        match self {
            Work::Prefill { tokens } => runner.prefill(tokens),
            Work::Decode { .. } => runner.decode(DECODE_STEPS),
        }
    }
}

/// Arbitrary ids below `vocab` (splitmix64): the same for both, for the ids decide which experts work.
pub struct Ids {
    state: u64,
    vocab: u64,
}

impl Ids {
    pub fn new(vocab: usize) -> Ids {
        Ids { state: 0, vocab: vocab.max(1) as u64 }
    }

    pub fn take(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.next()).collect()
    }

    fn next(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % self.vocab) as u32
    }
}
