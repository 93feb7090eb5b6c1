//! One piece of work, done once under a clock.

use std::hint::black_box;
use std::time::Instant;

use basert_engine::{Engine, SequenceId, TokenRun, Trace, WantLogits, argmax};

use crate::MeasureError;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// One sequence reads `tokens` tokens, in the engine's largest steps, up to the logits of the last one.
    Prefill {
        /// At least 1.
        tokens: usize,
    },
    /// `sequences` sequences run one token each per step, with logits, for `tokens` steps.
    Decode {
        /// Steps, at least 1.
        tokens: usize,
        /// At least 1.
        sequences: usize,
    },
    /// One sequence runs `rows` tokens per step, each with logits, all but the first as guesses that are accepted, until there
    /// are `tokens` or more. Where the model's prediction head is loaded, it guesses as many before every step (one where `rows`
    /// is 1), under a clock of its own; what it guesses is thrown away.
    Verify {
        /// At least 1.
        tokens: usize,
        /// At least 1.
        rows: usize,
    },
}

impl Test {
    /// `prefill`, `decode` or `verify`.
    pub fn name(&self) -> &'static str {
        match self {
            Test::Prefill { .. } => "prefill",
            Test::Decode { .. } => "decode",
            Test::Verify { .. } => "verify",
        }
    }

    /// Tokens of the prompt, or of each sequence's answer.
    pub fn tokens(&self) -> usize {
        let (Test::Prefill { tokens } | Test::Decode { tokens, .. } | Test::Verify { tokens, .. }) = *self;
        tokens
    }

    /// Tokens that a sequence runs per step; of a prefill, as many as there are.
    pub fn rows(&self) -> usize {
        match *self {
            Test::Prefill { tokens } => tokens,
            Test::Decode { .. } => 1,
            Test::Verify { rows, .. } => rows,
        }
    }
}

/// A test behind tokens that are in the cache already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// What is timed.
    pub test: Test,
    /// Tokens that every sequence has run before the clock starts.
    pub depth: usize,
}

impl Case {
    /// Positions that a sequence needs.
    pub fn context(&self) -> usize {
        self.depth.saturating_add(self.steps().saturating_mul(self.test.rows()))
    }

    /// Steps under the clock; a prefill counts as one.
    pub fn steps(&self) -> usize {
        self.test.tokens().div_ceil(self.test.rows().max(1))
    }

    /// Guesses that are verified at a time.
    pub fn guesses(&self) -> usize {
        if let Test::Verify { rows, .. } = self.test { rows.saturating_sub(1) } else { 0 }
    }

    /// Sequences that are live at once.
    pub fn sequences(&self) -> usize {
        match self.test {
            Test::Prefill { .. } | Test::Verify { .. } => 1,
            Test::Decode { sequences, .. } => sequences,
        }
    }

    /// Tokens that are run under the clock, those of all sequences together.
    pub fn timed_tokens(&self) -> usize {
        self.steps().saturating_mul(self.test.rows()).saturating_mul(self.sequences())
    }
}

/// One repetition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time of the test.
    pub seconds: f64,
    /// Of a prefill: the same and the choice of the likeliest token.
    pub first_token: Option<f64>,
    /// Of a verification: the time in which a prediction head made the guesses, which is not in `seconds`.
    pub drafting: Option<f64>,
}

/// Runs `case` once, in sequences of its own. `stop` is asked before every step.
///
/// # Errors
/// [`MeasureError::Stopped`], and those of [`Engine::step`]: an engine that was loaded for too short a context, too few
/// sequences or too small steps.
pub fn repeat(engine: &mut Engine, case: &Case, stop: &dyn Fn() -> bool) -> Result<Sample, MeasureError> {
    repeat_traced(engine, case, stop, None)
}

/// As [`repeat`]; what is under the clock is traced.
pub(super) fn repeat_traced(
    engine: &mut Engine,
    case: &Case,
    stop: &dyn Fn() -> bool,
    trace: Option<&Trace>,
) -> Result<Sample, MeasureError> {
    let mut sequences = Vec::with_capacity(case.sequences());
    let result = open_and_time(engine, case, &mut sequences, &Steps { stop, trace });
    sequences.into_iter().for_each(|id| engine.release(id));
    result
}

fn open_and_time(
    engine: &mut Engine,
    case: &Case,
    sequences: &mut Vec<SequenceId>,
    steps: &Steps<'_>,
) -> Result<Sample, MeasureError> {
    let untraced = Steps { trace: None, ..*steps };
    let mut ids = Ids::new(engine);
    for _ in 0..case.sequences() {
        let sequence = engine.new_sequence()?;
        sequences.push(sequence);
        read(engine, sequence, &ids.take(case.depth), &untraced)?;
    }
    match case.test {
        Test::Prefill { tokens } => prefill(engine, sequences[0], &ids.take(tokens), steps),
        Test::Decode { tokens, .. } => {
            let tokens: Vec<Vec<u32>> = (0..tokens).map(|_| ids.take(sequences.len())).collect();
            decode(engine, sequences, &tokens, steps)
        }
        Test::Verify { rows, .. } => {
            verify(engine, sequences[0], &ids.take(case.timed_tokens()), rows, steps)
        }
    }
}

fn prefill(
    engine: &mut Engine,
    sequence: SequenceId,
    tokens: &[u32],
    steps: &Steps<'_>,
) -> Result<Sample, MeasureError> {
    // Only the last step has logits.
    let (body, last) = tokens.split_at(last_step(tokens.len(), engine.step_tokens()));
    let start = Instant::now();
    read(engine, sequence, body, steps)?;
    let logits = steps.run(engine, &[TokenRun { sequence, tokens: last, logits: WantLogits::Last }])?;
    let seconds = start.elapsed().as_secs_f64();
    black_box(argmax(logits));
    Ok(Sample { seconds, first_token: Some(start.elapsed().as_secs_f64()), drafting: None })
}

fn decode(
    engine: &mut Engine,
    sequences: &[SequenceId],
    tokens: &[Vec<u32>],
    steps: &Steps<'_>,
) -> Result<Sample, MeasureError> {
    let start = Instant::now();
    for tokens in tokens {
        let runs = sequences.iter().zip(tokens).map(|(&sequence, token)| TokenRun {
            sequence,
            tokens: std::slice::from_ref(token),
            logits: WantLogits::Last,
        });
        black_box(steps.run(engine, &runs.collect::<Vec<_>>())?);
    }
    Ok(Sample { seconds: start.elapsed().as_secs_f64(), first_token: None, drafting: None })
}

/// Verifies `tokens` in steps of `rows`, each behind as many guesses as the head would have to make for it.
fn verify(
    engine: &mut Engine,
    sequence: SequenceId,
    tokens: &[u32],
    rows: usize,
    steps: &Steps<'_>,
) -> Result<Sample, MeasureError> {
    let guesses = rows - 1;
    let (mut seconds, mut drafting, mut drafts) = (0.0, 0.0, Vec::with_capacity(rows));
    for tokens in tokens.chunks_exact(rows) {
        let start = Instant::now();
        engine.draft(sequence, tokens[0], guesses.max(1), &mut drafts)?;
        let drafted = start.elapsed().as_secs_f64();
        black_box(steps.run(engine, &[TokenRun { sequence, tokens, logits: WantLogits::Verify(guesses) }])?);
        engine.accept(sequence, guesses)?;
        seconds += start.elapsed().as_secs_f64() - drafted;
        drafting += drafted;
    }
    let drafting = (guesses > 0 && engine.has_draft_head()).then_some(drafting);
    Ok(Sample { seconds, first_token: None, drafting })
}

/// Where the last of the steps begins that cut `len` tokens into pieces of `size`.
fn last_step(len: usize, size: usize) -> usize {
    len.saturating_sub(1) / size.max(1) * size.max(1)
}

/// Runs tokens of one sequence in the largest steps, without logits.
fn read(
    engine: &mut Engine,
    sequence: SequenceId,
    tokens: &[u32],
    steps: &Steps<'_>,
) -> Result<(), MeasureError> {
    for tokens in tokens.chunks(engine.step_tokens().max(1)) {
        steps.run(engine, &[TokenRun { sequence, tokens, logits: WantLogits::None }])?;
    }
    Ok(())
}

/// How steps are run.
#[derive(Clone, Copy)]
struct Steps<'a> {
    /// Asked before every step; true ends the repetition.
    stop: &'a dyn Fn() -> bool,
    trace: Option<&'a Trace>,
}

impl Steps<'_> {
    fn run<'a>(&self, engine: &'a mut Engine, runs: &[TokenRun<'_>]) -> Result<&'a [f32], MeasureError> {
        if (self.stop)() {
            return Err(MeasureError::Stopped);
        }
        Ok(engine.step_traced(runs, self.trace)?.data)
    }
}

/// Arbitrary ids of the vocabulary (splitmix64), the same in every repetition: which experts are routed to depends on
/// them.
struct Ids {
    state: u64,
    vocab: u64,
}

impl Ids {
    fn new(engine: &Engine) -> Ids {
        Ids { state: 0, vocab: engine.spec().vocab.max(1) as u64 }
    }

    fn take(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.next()).collect()
    }

    fn next(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % self.vocab) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_is_never_empty() {
        let cases =
            [((1, 512), 0), ((512, 512), 0), ((513, 512), 512), ((1024, 512), 512), ((1025, 512), 1024)];
        for ((len, size), start) in cases {
            assert_eq!(last_step(len, size), start, "{len} in steps of {size}");
        }
    }

    #[test]
    fn ids_are_of_the_vocabulary_and_the_same_every_time() {
        let ids = |vocab| Ids { state: 0, vocab }.take(1000);
        assert_eq!(ids(77), ids(77));
        assert!(ids(77).iter().all(|&id| id < 77));
        assert!(ids(77).iter().any(|&id| id != ids(77)[0]));
    }

    #[test]
    fn a_case_knows_its_room() {
        let prefill = Case { test: Test::Prefill { tokens: 512 }, depth: 100 };
        let decode = Case { test: Test::Decode { tokens: 128, sequences: 8 }, depth: 4096 };
        assert_eq!((prefill.context(), prefill.sequences(), prefill.timed_tokens()), (612, 1, 512));
        assert_eq!((decode.context(), decode.sequences(), decode.timed_tokens()), (4224, 8, 1024));
        // The last step is whole.
        let verify = Case { test: Test::Verify { tokens: 128, rows: 3 }, depth: 100 };
        assert_eq!((verify.context(), verify.sequences(), verify.timed_tokens()), (229, 1, 129));
        assert_eq!((prefill.steps(), decode.steps(), verify.steps(), verify.guesses()), (1, 128, 43, 2));
    }
}
