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

    fn mean(&self) -> Vec<f32> {
        let experts = self.sums.chunks_exact(self.cols.max(1)).zip(&self.tokens);
        experts
            .flat_map(|(sums, &tokens)| sums.iter().map(move |sum| (sum / tokens.max(1) as f64) as f32))
            .collect()
    }
}

/// The mean squared input of every column of every weight that multiplies activations, over `ids` in windows of
/// `window` tokens, each from an empty cache: `[cols]`, or `[experts, cols]` flattened, where each expert counts the
/// tokens it saw; 0 if it saw none. Weights are streamed from the source, in f32.
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
