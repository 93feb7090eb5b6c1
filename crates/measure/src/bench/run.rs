//! All repetitions of all cases, in turns.

use std::path::PathBuf;
use std::time::Instant;

use basert_engine::{Engine, Options};

use crate::MeasureError;
use crate::bench::{Case, Roof, repeat};

/// A loaded model with one setting.
pub struct Subject {
    /// Loaded for the longest context, the most sequences and the largest steps of all cases.
    pub engine: Engine,
    /// Its limits, if they are to be measured.
    pub roof: Option<Roof>,
}

/// How often everything is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Repetitions that are not counted, before the others.
    pub warmups: usize,
    /// Repetitions that are.
    pub repetitions: usize,
}

impl Protocol {
    /// Both.
    pub fn rounds(&self) -> usize {
        self.warmups.saturating_add(self.repetitions)
    }
}

/// How a run is followed and ended.
pub struct Watch<'a> {
    /// Asked before every step of a model; true ends the run.
    pub stop: &'a dyn Fn() -> bool,
    /// Told before every repetition.
    pub progress: &'a mut dyn FnMut(&Case),
}

/// Repetitions of one case on one subject.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What was run.
    pub case: Case,
    /// Position of the subject.
    pub subject: usize,
    /// Times of the test, one for each repetition that was counted.
    pub seconds: Vec<f64>,
    /// Times to the first token; empty but for prefill.
    pub first_token: Vec<f64>,
    /// Times in which a prediction head made the guesses of a verification.
    pub drafting: Vec<f64>,
}

/// What [`run`] found.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// All cases with the first's subjects next to each other, then the second's.
    pub measured: Vec<Measured>,
    /// Whether all repetitions were done.
    pub complete: bool,
}

/// Loads every file with its options, once per round, in turns; the engines of the last round stay. Times are from the
/// file's name to a model that can take a step, with the page cache as it is found.
///
/// # Errors
/// [`MeasureError::Stopped`], and those of [`Engine::open`].
pub fn load(
    what: &[(PathBuf, Options)],
    protocol: Protocol,
    stop: &dyn Fn() -> bool,
) -> Result<Vec<(Engine, Vec<f64>)>, MeasureError> {
    let mut seconds = vec![Vec::new(); what.len()];
    let mut engines = Vec::with_capacity(what.len());
    for round in 0..protocol.rounds() {
        for ((path, options), seconds) in what.iter().zip(&mut seconds) {
            if stop() {
                return Err(MeasureError::Stopped);
            }
            let start = Instant::now();
            let engine = Engine::open(path, options)?;
            if round >= protocol.warmups {
                seconds.push(start.elapsed().as_secs_f64());
            }
            if round + 1 == protocol.rounds() {
                engines.push(engine);
            }
        }
    }
    Ok(engines.into_iter().zip(seconds).collect())
}

/// Runs all cases on all subjects, [`Protocol::rounds`] times. A round takes every case in turn, and for every case every
/// subject in turn: what is to be compared is measured side by side, so that a machine which slows down slows down both.
/// Roofs are sampled in every round that counts.
///
/// When `watch` stops the run, what was measured so far is returned, without the repetition at hand.
///
/// # Errors
/// Those of [`repeat`], but for a stop.
pub fn run(
    subjects: &mut [Subject],
    cases: &[Case],
    protocol: Protocol,
    watch: &mut Watch<'_>,
) -> Result<Results, MeasureError> {
    let count = subjects.len();
    let empty = |case, subject| {
        let (seconds, first_token, drafting) = (Vec::new(), Vec::new(), Vec::new());
        Measured { case, subject, seconds, first_token, drafting }
    };
    let all = cases.iter().flat_map(|&case| (0..count).map(move |subject| empty(case, subject)));
    let mut measured: Vec<Measured> = all.collect();
    for round in 0..protocol.rounds() {
        let counts = round >= protocol.warmups;
        for Subject { engine, roof } in subjects.iter_mut() {
            if let Some(roof) = roof.as_mut().filter(|_| counts) {
                roof.sample(engine);
            }
        }
        for one in &mut measured {
            (watch.progress)(&one.case);
            let sample = match repeat(&mut subjects[one.subject].engine, &one.case, watch.stop) {
                Ok(sample) => sample,
                Err(MeasureError::Stopped) => return Ok(Results { measured, complete: false }),
                Err(error) => return Err(error),
            };
            if counts {
                one.seconds.push(sample.seconds);
                one.first_token.extend(sample.first_token);
                one.drafting.extend(sample.drafting);
            }
        }
    }
    Ok(Results { measured, complete: true })
}
