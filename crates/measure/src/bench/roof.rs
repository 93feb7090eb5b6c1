//! What this machine can do at most, measured by loops that do nothing else.

use std::hint::black_box;
use std::time::Instant;

use basert_engine::{Engine, EngineError};
use basert_kernels::{Cpu, Product};

use crate::MeasureError;
use crate::bench::{Case, Spread, Test, Work};

/// Passes of each loop per sample.
const PASSES: usize = 3;
/// Shortest time of a pass: starting all threads is nothing beside it.
const PASS_SECONDS: f64 = 0.02;

/// The limits of an engine's instruction set and threads on this machine.
pub struct Roof {
    cpu: Cpu,
    samples: [Vec<f64>; 3],
}

/// Measured limits, several passes each.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Reading the model's weights in their map, bytes per second.
    pub read: Spread,
    /// Multiply-adds of bytes per second.
    pub bytes: Spread,
    /// Multiply-adds of floats per second.
    pub floats: Spread,
}

impl Roof {
    /// With threads of its own, as many as the engine has.
    ///
    /// # Errors
    /// When they cannot be started.
    pub fn of(engine: &Engine) -> Result<Roof, MeasureError> {
        let selected = engine.selected();
        let mut cpu = Cpu::new(selected.isa, selected.threads).map_err(EngineError::from)?;
        if !selected.pinned.is_empty() {
            cpu.pin().map_err(EngineError::from)?;
        }
        Ok(Roof { cpu, samples: Default::default() })
    }

    /// Measures everything once more. The map that is read is the engine's own, all main tensors of it.
    pub fn sample(&mut self, engine: &Engine) {
        let weights: Vec<&[u8]> = engine.file().tensors().map(|tensor| tensor.data).collect();
        let bytes: usize = weights.iter().map(|part| part.len()).sum();
        let cpu = &self.cpu;
        let [read, byte_products, float_products] = &mut self.samples;
        for _ in 0..PASSES {
            read.push(rate(|| {
                black_box(cpu.read(&weights));
                bytes as u64
            }));
            byte_products.push(rate(|| cpu.multiply(Product::Bytes, ROUNDS)));
            float_products.push(rate(|| cpu.multiply(Product::Floats, ROUNDS)));
        }
    }

    /// What was measured so far; `None` before the first sample.
    pub fn limits(&self) -> Option<Limits> {
        let [read, bytes, floats] = &self.samples;
        Some(Limits {
            read: Spread::of(read.clone())?,
            bytes: Spread::of(bytes.clone())?,
            floats: Spread::of(floats.clone())?,
        })
    }
}

/// Rounds of one multiplication: some 100 µs on a current core.
const ROUNDS: usize = 1 << 13;

/// How much `pass` does per second, repeated until it has taken [`PASS_SECONDS`].
fn rate(mut pass: impl FnMut() -> u64) -> f64 {
    let start = Instant::now();
    let mut done = 0;
    loop {
        done += pass();
        let seconds = start.elapsed().as_secs_f64();
        if seconds >= PASS_SECONDS {
            return done as f64 / seconds;
        }
    }
}

impl Limits {
    /// The speed of `case` as a share of its limit, the best of all passes: decoding against reading, prefill against
    /// multiplying. 1 is the limit. `None` for a verification, which is between the two.
    pub fn share(&self, case: &Case, work: &Work, tokens_per_second: f64) -> Option<f64> {
        Some(match case.test {
            Test::Verify { .. } => return None,
            Test::Decode { tokens, sequences } => {
                let bytes = work.bytes_per_token(case.depth, tokens, sequences);
                bytes * tokens_per_second / self.read.largest()
            }
            Test::Prefill { tokens } => {
                let products = work.multiply_adds(case);
                let least = products.bytes / self.bytes.largest() + products.floats / self.floats.largest();
                least * tokens_per_second / tokens as f64
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_that_is_too_short_is_repeated() {
        let mut calls = 0;
        let rate = rate(|| {
            calls += 1;
            10
        });
        assert!(calls > 1);
        assert!(rate > 0.0 && rate <= f64::from(10 * calls) / PASS_SECONDS);
    }
}
