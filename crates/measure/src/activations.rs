//! How large the inputs of a model's linear layers are: what calibrated quantisation weights errors by.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use basert_convert::SourceModel;
use basert_engine::{EngineError, LinearInput, stream};

use crate::source::Values;
use crate::{MeasureError, Progress};

/// Tokens that go through the model together. Every such batch reads all weights once, and its activations are
/// what memory holds.
const BATCH: usize = 2048;

/// Average tokens that every expert is taken to have seen. A rare expert's few tokens would otherwise decide alone
/// which of its columns matter, and those of an expert that saw none would not.
const PRIOR: f64 = 32.0;

/// Squared inputs of one weight.
struct Squares {
    /// Inputs, and rows of one expert; of a plain weight all rows.
    cols: usize,
    rows: usize,
    /// `[experts, cols]`; one expert of a plain weight.
    sums: Vec<f64>,
    /// Tokens that each expert saw.
    tokens: Vec<u64>,
}

impl Squares {
    fn add(&mut self, input: &LinearInput<'_>) {
        let expert = input.rows.start / self.rows.max(1);
        let (Some(sums), Some(tokens)) =
            (self.sums.chunks_exact_mut(self.cols.max(1)).nth(expert), self.tokens.get_mut(expert))
        else {
            return;
        };
        for x in input.x.chunks_exact(self.cols.max(1)) {
            sums.iter_mut().zip(x).for_each(|(sum, &x)| *sum += f64::from(x) * f64::from(x));
            *tokens += 1;
        }
    }

    /// Means; an expert's lean towards those of all experts, as if it had seen [`PRIOR`] average tokens more.
    fn mean(&self) -> Vec<f32> {
        let (cols, tokens) = (self.cols.max(1), self.tokens.iter().sum::<u64>().max(1) as f64);
        let of_column = |column| self.sums.iter().skip(column).step_by(cols).sum::<f64>() / tokens;
        let all: Vec<f64> = (0..self.cols).map(of_column).collect();
        if self.tokens.len() == 1 {
            return all.into_iter().map(|mean| mean as f32).collect();
        }
        let experts = self.sums.chunks_exact(cols).zip(&self.tokens);
        let blend = |(sums, &tokens): (&[f64], &u64)| {
            let columns = sums.iter().zip(&all);
            columns
                .map(|(sum, all)| ((sum + PRIOR * all) / (tokens as f64 + PRIOR)) as f32)
                .collect::<Vec<_>>()
        };
        experts.flat_map(blend).collect()
    }
}

/// The mean squared input of every column of every weight that multiplies activations, over `ids` in windows of
/// `window` tokens, each from an empty cache: `[cols]`, or `[experts, cols]` flattened, over the tokens that each
/// expert saw, with experts that saw few close to the mean of all. Weights are streamed from the source, in f32.
///
/// # Errors
/// No tokens, or what [`stream`] refuses; [`MeasureError::Stopped`] when `progress` says so, which is asked between
/// batches; [`MeasureError::Activations`] if one is not finite.
pub fn activations(
    model: &SourceModel<'_>,
    ids: &[u32],
    window: usize,
    threads: Option<usize>,
    progress: Progress<'_>,
) -> Result<BTreeMap<String, Vec<f32>>, MeasureError> {
    if ids.is_empty() {
        return Err(EngineError::EmptyPrompt.into());
    }
    let mut empty = BTreeMap::new();
    for tensor in model.spec.tensors() {
        let (experts, rows, cols) = match tensor.shape[..] {
            [rows, cols] => (1, rows, cols),
            [experts, rows, cols] => (experts, rows, cols),
            _ => continue,
        };
        let (sums, tokens) = (vec![0.0; experts * cols], vec![0; experts]);
        empty.insert(tensor.name, Squares { cols, rows, sums, tokens });
    }
    let squares = RefCell::new(empty);
    let watch = |input: &LinearInput<'_>| {
        if let Some(squares) = squares.borrow_mut().get_mut(input.weight) {
            squares.add(input);
        }
    };
    let windows: Vec<&[u32]> = ids.chunks(window.max(1)).collect();
    let mut done = 0;
    for batch in windows.chunks((BATCH / window.max(1)).max(1)) {
        stream(&Values(&model.values), &model.spec, None, threads, batch, false, Some(&watch))?;
        done += batch.iter().map(|window| window.len()).sum::<usize>();
        if let ControlFlow::Break(()) = progress(done) {
            return Err(MeasureError::Stopped);
        }
    }
    let seen = squares.into_inner().into_iter().filter(|(_, squares)| squares.tokens.iter().any(|&n| n > 0));
    let means: BTreeMap<_, _> = seen.map(|(name, squares)| (name, squares.mean())).collect();
    match means.iter().find(|(_, means)| means.iter().any(|mean| !mean.is_finite())) {
        Some((weight, _)) => Err(MeasureError::Activations { weight: weight.clone() }),
        None => Ok(means),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(rows: std::ops::Range<usize>, x: &[f32]) -> LinearInput<'_> {
        LinearInput { weight: "w", rows, x, cols: 2 }
    }

    #[test]
    fn plain_weights_have_the_mean_over_all_tokens() {
        let mut squares = Squares { cols: 2, rows: 3, sums: vec![0.0; 2], tokens: vec![0] };
        squares.add(&input(0..3, &[1.0, 2.0, 3.0, 0.0]));
        squares.add(&input(0..3, &[1.0, -2.0]));
        assert_eq!(squares.mean(), [11.0 / 3.0, 8.0 / 3.0]);
    }

    #[test]
    fn experts_have_means_of_their_own_and_a_silent_one_that_of_all() {
        let mut squares = Squares { cols: 2, rows: 3, sums: vec![0.0; 6], tokens: vec![0; 3] };
        for _ in 0..320 {
            squares.add(&input(3..6, &[2.0, 0.0]));
        }
        squares.add(&input(6..9, &[0.0, 3.0]));
        let mean = squares.mean();
        let all = [4.0 * 320.0 / 321.0, 9.0 / 321.0];
        assert!((mean[0] - all[0]).abs() < 1e-6 && (mean[1] - all[1]).abs() < 1e-6, "{mean:?}");
        assert!((mean[2] - 4.0).abs() < 0.01 && mean[3] < 0.01, "{mean:?}");
        // One token weighs little.
        assert!(mean[4] > 3.5 && mean[5] < 0.4, "{mean:?}");
    }
}
