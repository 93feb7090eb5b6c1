//! Where the time of a case goes.

use basert_engine::{Cost, Engine, Trace};

use crate::MeasureError;
use crate::bench::case::repeat_traced;
use crate::bench::{Case, Spread};

/// A case, operation by operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// What was run.
    pub case: Case,
    /// Seconds of the repetitions that were not traced.
    pub plain: Spread,
    /// Seconds of those that were.
    pub traced: Spread,
    /// Sums over the traced repetitions.
    pub costs: Vec<Cost>,
}

impl Profile {
    /// Seconds of all traced repetitions.
    pub fn traced_seconds(&self) -> f64 {
        self.traced.samples.iter().sum()
    }

    /// What tracing adds, as a share of the time without it; negative where noise is larger.
    pub fn overhead(&self) -> f64 {
        self.traced.median / self.plain.median - 1.0
    }
}

/// Runs `case` once to warm up, then `repetitions` times untraced and traced in turns. `stop` is asked before every step.
///
/// # Errors
/// [`MeasureError::Stopped`], those of [`repeat`](crate::bench::repeat), and no repetitions.
pub fn profile(
    engine: &mut Engine,
    case: &Case,
    repetitions: usize,
    stop: &dyn Fn() -> bool,
) -> Result<Profile, MeasureError> {
    repeat_traced(engine, case, stop, None)?;
    let trace = Trace::new();
    let (mut plain, mut traced) = (Vec::new(), Vec::new());
    for _ in 0..repetitions {
        plain.push(repeat_traced(engine, case, stop, None)?.seconds);
        traced.push(repeat_traced(engine, case, stop, Some(&trace))?.seconds);
    }
    match (Spread::of(plain), Spread::of(traced)) {
        (Some(plain), Some(traced)) => Ok(Profile { case: *case, plain, traced, costs: trace.costs() }),
        _ => Err(MeasureError::NothingTimed),
    }
}
