//! BaseRT.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use basert_engine::{Engine, KvTypes, Options, SequenceId, TokenRun, WantLogits};

use crate::runner::{Ids, Runner};

/// A loaded bundle.
pub struct Ours {
    pub engine: Engine,
    sequences: Vec<SequenceId>,
    ids: Ids,
}

impl Ours {
    pub fn load(
        bundle: &Path,
        kv: KvTypes,
        threads: usize,
        context: usize,
        sequences: usize,
    ) -> Result<Ours> {
        let options = Options {
            threads: Some(threads),
            kv,
            context: Some(context),
            sequences,
            logit_rows: sequences,
            ..Options::default()
        };
        let engine = Engine::open(bundle, &options)?;
        let ids = Ids::new(engine.spec().vocab);
        Ok(Ours { engine, sequences: Vec::new(), ids })
    }

    fn start_over(&mut self, sequences: usize) -> Result<()> {
        self.sequences.drain(..).for_each(|sequence| self.engine.release(sequence));
        for _ in 0..sequences {
            self.sequences.push(self.engine.new_sequence()?);
        }
        Ok(())
    }

    fn read(&mut self, sequence: SequenceId, tokens: &[u32], last: WantLogits) -> Result<()> {
        let step = self.engine.step_tokens();
        let pieces = tokens.len().div_ceil(step);
        for (i, tokens) in tokens.chunks(step).enumerate() {
            let logits = if i + 1 == pieces { last } else { WantLogits::None };
            black_box(self.engine.step(&[TokenRun { sequence, tokens, logits }])?.data);
        }
        Ok(())
    }
}

impl Runner for Ours {
    fn prefill(&mut self, tokens: usize) -> Result<f64> {
        self.start_over(1)?;
        let ids = self.ids.take(tokens);
        let start = Instant::now();
        self.read(self.sequences[0], &ids, WantLogits::Last)?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn fill(&mut self, depth: usize, sequences: usize) -> Result<()> {
        self.start_over(sequences)?;
        for sequence in self.sequences.clone() {
            let ids = self.ids.take(depth);
            self.read(sequence, &ids, WantLogits::None)?;
        }
        Ok(())
    }

    fn decode(&mut self, steps: usize) -> Result<f64> {
        let tokens: Vec<Vec<u32>> = (0..steps).map(|_| self.ids.take(self.sequences.len())).collect();
        let start = Instant::now();
        for tokens in &tokens {
            let runs = self.sequences.iter().zip(tokens).map(|(&sequence, token)| TokenRun {
                sequence,
                tokens: std::slice::from_ref(token),
                logits: WantLogits::Last,
            });
            black_box(self.engine.step(&runs.collect::<Vec<_>>())?.data);
        }
        Ok(start.elapsed().as_secs_f64())
    }
}
