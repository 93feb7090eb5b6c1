//! Activation-aware scaling (AWQ: Lin et al., arXiv 2306.00978).
//!
//! Columns that meet large activations are multiplied before quantisation, so that their error shrinks, and the factor is
//! divided out where the activation is made: the bundle is an ordinary one. Factors are `a^α`, with `a` the root mean
//! square of the column's activations (the paper takes the mean magnitude), normalised so that largest and smallest are
//! reciprocal. α is searched for every set of factors (`folds`) on the error of the readers' outputs, with columns
//! taken as uncorrelated, over a sample of their rows: `Σ E[x²]·(ΔW)²`, relative to `Σ E[x²]·W²`.

mod folds;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use basert_model::ModelSpec;

use crate::options::Wanted;
use crate::recipe::{Inventory, Recipe};
use crate::storage::Stored;
use crate::values::{RowReader, encode_error};
use crate::{ConvertError, Importance};
pub(crate) use folds::Fold;
use folds::{Maker, folds};

/// Exponents that are tried, in tenths. 0 is no scaling, so a fold is never worse for its sample.
const TENTHS: std::ops::RangeInclusive<u32> = 0..=10;

/// Rows of a weight on which an exponent is judged. More of them change few exponents by a step.
const SAMPLE_ROWS: usize = 64;

/// Rows of a stack on which an exponent is judged, at least per expert.
const SAMPLE_ROWS_PER_EXPERT: usize = 2;

/// Magnitudes below this fraction of the largest count as this much, as in the paper's code.
const FLOOR: f32 = 1e-4;

/// Factors of one tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scaling {
    /// One per row; empty = none.
    pub rows: Vec<f32>,
    /// One per column, for each block of equally many rows; empty = none.
    pub columns: Vec<f32>,
}

impl Scaling {
    /// Scales rows `row..` of a tensor with `total` rows of `width` elements.
    pub fn apply(&self, row: usize, total: usize, width: usize, values: &mut [f32]) {
        for (index, values) in values.chunks_exact_mut(width.max(1)).enumerate() {
            let row = row + index;
            if let Some(&factor) = self.rows.get(row) {
                values.iter_mut().for_each(|value| *value *= factor);
            }
            let columns = block(&self.columns, row, total, width);
            values.iter_mut().zip(columns).for_each(|(value, factor)| *value *= factor);
        }
    }
}

/// What belongs to row `row` in a list of `width` entries for each block of equally many of `total` rows.
pub(crate) fn block(list: &[f32], row: usize, total: usize, width: usize) -> &[f32] {
    let blocks = (list.len() / width.max(1)).max(1);
    let start = row / (total / blocks).max(1) * width;
    list.get(start..start + width).unwrap_or_default()
}

/// The folds that scale something: a reader is quantised and its activations are known.
pub(crate) fn active(
    spec: &ModelSpec,
    importance: &Importance,
    recipes: &[Recipe],
    wanted: &[Option<Wanted>],
) -> Vec<Fold> {
    let quantised: HashSet<&str> = recipes
        .iter()
        .zip(wanted)
        .filter(|(_, wanted)| wanted.is_some_and(|wanted| !wanted.dtype.is_float()))
        .map(|(recipe, _)| recipe.name.as_str())
        .collect();
    let is_active = |fold: &Fold| {
        let known = fold.readers.iter().any(|name| importance.of(name).is_some());
        known && fold.readers.iter().any(|name| quantised.contains(name.as_str()))
    };
    folds(spec).into_iter().filter(is_active).collect()
}

/// Names of all tensors that the folds touch.
pub(crate) fn touched(folds: &[Fold]) -> HashSet<&str> {
    let makers = folds.iter().flat_map(|fold| &fold.makers).map(|maker| match maker {
        Maker::Elements(name) | Maker::Rows(name) => name.as_str(),
    });
    makers.chain(folds.iter().flat_map(|fold| &fold.readers).map(String::as_str)).collect()
}

/// Factors of a fold, or why there are none.
type Found = Result<Vec<f32>, ConvertError>;

/// The factors of every tensor that the folds touch, on up to `threads` threads. They do not depend on `threads`.
///
/// # Errors
/// Values that cannot be read or encoded.
pub(crate) fn scalings(
    inventory: &Inventory<'_>,
    tensors: &[Stored],
    folds: &[Fold],
    importance: &Importance,
    threads: usize,
) -> Result<HashMap<String, Scaling>, ConvertError> {
    let tensors: HashMap<&str, &Stored> = tensors.iter().map(|t| (t.recipe.name.as_str(), t)).collect();
    let found: Vec<Mutex<Option<Found>>> = folds.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, folds.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((fold, found)) = folds.get(index).zip(found.get(index)) else { break };
                    let factors = Candidate { inventory, tensors: &tensors, fold, importance }.best();
                    *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(factors);
                }
            });
        }
    });
    let mut scalings: HashMap<String, Scaling> = HashMap::new();
    for (fold, found) in folds.iter().zip(found) {
        let Some(factors) = found.into_inner().unwrap_or_else(PoisonError::into_inner) else { continue };
        let factors = factors?;
        for maker in &fold.makers {
            let inverse = factors.iter().map(|factor| 1.0 / factor).collect();
            match maker {
                Maker::Elements(name) => scalings.entry(name.clone()).or_default().columns = inverse,
                Maker::Rows(name) => scalings.entry(name.clone()).or_default().rows = inverse,
            }
        }
        for name in &fold.readers {
            let columns = (0..fold.columns).map(|column| factors[fold.share.factor(column)]).collect();
            scalings.entry(name.clone()).or_default().columns = columns;
        }
    }
    Ok(scalings)
}

/// One fold whose factors are to be found.
struct Candidate<'a> {
    inventory: &'a Inventory<'a>,
    tensors: &'a HashMap<&'a str, &'a Stored>,
    fold: &'a Fold,
    importance: &'a Importance,
}

/// Rows of one reader.
struct Sample<'a> {
    stored: &'a Stored,
    /// Row numbers.
    rows: Vec<usize>,
    /// Their values.
    values: Vec<f32>,
    /// Mean squared activation of each value's column.
    squares: Vec<f32>,
}

impl Candidate<'_> {
    /// The factors with the least error.
    fn best(&self) -> Found {
        let magnitudes = self.magnitudes();
        let samples: Vec<Sample<'_>> = self
            .fold
            .readers
            .iter()
            .filter_map(|name| self.sample(name).transpose())
            .collect::<Result<_, _>>()?;
        let mut best = (f64::INFINITY, vec![1.0; magnitudes.len()]);
        for tenths in TENTHS {
            let factors = factors(&magnitudes, self.fold.blocks, tenths as f32 / 10.0);
            let mut error = 0.0;
            for sample in &samples {
                error += self.error(sample, &factors)?;
            }
            if error < best.0 {
                best = (error, factors);
            }
        }
        Ok(best.1)
    }

    /// Root mean square of the activations that each factor is for.
    fn magnitudes(&self) -> Vec<f32> {
        let fold = self.fold;
        let squares = fold.readers.iter().find_map(|name| self.importance.of(name)).unwrap_or_default();
        let count = (0..fold.columns).map(|column| fold.share.factor(column) + 1).max().unwrap_or(0);
        let mut sums = vec![(0.0f64, 0u32); count];
        for (column, &square) in squares.iter().enumerate() {
            let (sum, number) = &mut sums[fold.share.factor(column % fold.columns)];
            *sum += f64::from(square);
            *number += 1;
        }
        sums.into_iter().map(|(sum, number)| (sum / f64::from(number.max(1))).sqrt() as f32).collect()
    }

    /// Rows of a reader that is quantised and whose activations are known.
    fn sample(&self, name: &str) -> Result<Option<Sample<'_>>, ConvertError> {
        let Some(&stored) = self.tensors.get(name) else { return Ok(None) };
        let Some(importance) = self.importance.of(name) else { return Ok(None) };
        if matches!(stored.planned.encoding, basert_quant::Encoding::Float(_)) {
            return Ok(None);
        }
        let recipe = &stored.recipe;
        let (total, width) = (recipe.rows(), recipe.width);
        let experts = importance.len() / width.max(1);
        let count = SAMPLE_ROWS.max(experts * SAMPLE_ROWS_PER_EXPERT).min(total);
        let rows: Vec<usize> = (0..count).map(|index| index * total / count.max(1)).collect();
        let mut reader = RowReader::new(self.inventory, recipe);
        let mut values = vec![0.0; count * width];
        let mut squares = Vec::with_capacity(values.len());
        for (&row, values) in rows.iter().zip(values.chunks_exact_mut(width.max(1))) {
            reader.read(row, values)?;
            squares.extend_from_slice(block(importance, row, total, width));
        }
        Ok(Some(Sample { stored, rows, values, squares }))
    }

    /// The error of a reader's outputs with these factors, relative to its outputs.
    fn error(&self, sample: &Sample<'_>, factors: &[f32]) -> Result<f64, ConvertError> {
        let Sample { stored, rows, values, squares } = sample;
        let recipe = &stored.recipe;
        let columns: Vec<f32> =
            (0..self.fold.columns).map(|column| factors[self.fold.share.factor(column)]).collect();
        let (mut scaled, mut weights) = (values.clone(), squares.clone());
        let width = recipe.width.max(1);
        let chunks = scaled.chunks_exact_mut(width).zip(weights.chunks_exact_mut(width));
        for (&row, (values, weights)) in rows.iter().zip(chunks) {
            let factors = block(&columns, row, recipe.rows(), width);
            for ((value, weight), factor) in values.iter_mut().zip(weights).zip(factors) {
                *value *= factor;
                *weight /= factor * factor;
            }
        }
        let refuse = |cause| encode_error(self.inventory, recipe, cause);
        let encoding = stored.planned.encoding;
        let mut payload = Vec::new();
        encoding.encode_searched(&scaled, Some(&weights), &mut payload).map_err(refuse)?;
        let mut decoded = vec![0.0; scaled.len()];
        encoding.decode(&payload, decoded.len(), 0, &mut decoded).map_err(refuse)?;
        let (mut error, mut energy) = (0.0f64, 0.0f64);
        for ((value, decoded), weight) in scaled.iter().zip(&decoded).zip(&weights) {
            error += f64::from(*weight) * f64::from(value - decoded).powi(2);
            energy += f64::from(*weight) * f64::from(*value).powi(2);
        }
        Ok(if energy > 0.0 { error / energy } else { 0.0 })
    }
}

/// `a^α`, with reciprocal extremes in each of `blocks` blocks; 1 where a block saw no activations.
fn factors(magnitudes: &[f32], blocks: usize, alpha: f32) -> Vec<f32> {
    let mut factors = vec![1.0; magnitudes.len()];
    let size = (magnitudes.len() / blocks.max(1)).max(1);
    for (magnitudes, factors) in magnitudes.chunks(size).zip(factors.chunks_mut(size)) {
        let largest = magnitudes.iter().fold(0.0f32, |largest, &value| largest.max(value));
        if !(largest > 0.0 && largest.is_finite()) {
            continue;
        }
        for (factor, magnitude) in factors.iter_mut().zip(magnitudes) {
            *factor = libm::powf((magnitude / largest).max(FLOOR), alpha);
        }
        let smallest = factors.iter().fold(f32::INFINITY, |smallest, &value| smallest.min(value));
        let middle = smallest.sqrt();
        factors.iter_mut().for_each(|factor| *factor /= middle);
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_reciprocal_extremes_and_leave_silent_experts_alone() {
        let found = factors(&[4.0, 1.0, 16.0, 0.0, 0.0, 0.0], 2, 0.5);
        assert_eq!(found, [1.0, 0.5, 2.0, 1.0, 1.0, 1.0]);
        assert_eq!(factors(&[4.0, 1.0], 1, 0.0), [1.0, 1.0]);
    }

    #[test]
    fn scaling_takes_each_experts_own_columns_and_each_row_once() {
        // Two experts of two rows and two columns.
        let scaling = Scaling { rows: vec![1.0, 2.0, 3.0, 4.0], columns: vec![1.0, 10.0, 100.0, 1000.0] };
        let mut values = [1.0; 6];
        scaling.apply(1, 4, 2, &mut values);
        assert_eq!(values, [2.0, 20.0, 300.0, 3000.0, 400.0, 4000.0]);
        let mut vector = [1.0, 1.0];
        Scaling { rows: Vec::new(), columns: vec![0.5, 2.0] }.apply(0, 1, 2, &mut vector);
        assert_eq!(vector, [0.5, 2.0]);
    }
}
