//! From source rows to parts of an output payload: the rows' values, encoded.
//!
//! Codes and scales that the output can hold are moved instead of encoded. Either way the payload is decoded again
//! and compared with the source's values: that is the proof of exactness, or the measure of the loss.

use std::convert::Infallible;
use std::ops::Range;

use basert_quant::{Encoding, QuantError};
use serde::{Deserialize, Serialize};

use crate::recipe::{Inventory, Recipe, RegionsMut};
use crate::storage::Stored;
use crate::values::{RowReader, each_run, encode_error};
use crate::{ConvertError, Importance, awq};

/// Elements a worker converts at a time: large enough to amortise the bookkeeping, small enough to stay in
/// cache.
const CHUNK_ELEMENTS: usize = 1 << 16;

/// Consecutive rows of an output tensor, encoded.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    /// Their codes, scales and biases.
    pub regions: [Vec<u8>; 3],
    /// What was found out about the values.
    pub measured: Measured,
}

/// Values before encoding against values after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Largest magnitude before.
    pub largest: f32,
    /// Largest difference.
    pub max_error: f32,
    /// Sum of squared differences.
    pub squares: f64,
}

impl Measured {
    /// Of `values` and what became of them, as many. Eight running sums, because one would wait for its own last result
    /// with every value.
    fn of(values: &[f32], decoded: &[f32]) -> Measured {
        let (mut largest, mut max_error, mut squares) = ([0.0f32; 8], [0.0f32; 8], [0.0f64; 8]);
        let mut add = |lane: usize, value: f32, decoded: f32| {
            let (value, error) = (value.abs(), (value - decoded).abs());
            largest[lane] = if value > largest[lane] { value } else { largest[lane] };
            max_error[lane] = if error > max_error[lane] { error } else { max_error[lane] };
            squares[lane] += f64::from(error) * f64::from(error);
        };
        let ((values, rest), (decoded, rest_decoded)) = (values.as_chunks::<8>(), decoded.as_chunks::<8>());
        for (values, decoded) in values.iter().zip(decoded) {
            (0..8).for_each(|lane| add(lane, values[lane], decoded[lane]));
        }
        rest.iter().zip(rest_decoded).for_each(|(&value, &decoded)| add(0, value, decoded));
        Measured {
            largest: largest.into_iter().fold(0.0, f32::max),
            max_error: max_error.into_iter().fold(0.0, f32::max),
            squares: squares.into_iter().sum(),
        }
    }

    /// Of the values of both, those of `self` first.
    pub fn join(self, other: Measured) -> Measured {
        Measured {
            largest: self.largest.max(other.largest),
            max_error: self.max_error.max(other.max_error),
            squares: self.squares + other.squares,
        }
    }
}

/// Rows of `width` elements that a worker converts at a time.
fn chunk_rows(width: usize) -> usize {
    (CHUNK_ELEMENTS / width.max(1)).max(1)
}

/// Most bytes that one worker's buffers take for rows of `width` elements.
pub(crate) fn buffer_bytes(width: usize) -> u64 {
    // Values, weights, the encoded chunk and the values that it decodes to; and a row.
    (4 * (4 * chunk_rows(width) + 1) * width) as u64
}

/// One thread's buffers, and the tensor it is at.
pub(crate) struct Worker<'a> {
    inventory: &'a Inventory<'a>,
    stored: &'a Stored,
    recipe: &'a Recipe,
    encoding: Encoding,
    reader: RowReader<'a>,
    values: Vec<f32>,
    all_importance: Option<&'a Importance>,
    /// Mean squared activations by column of this tensor, if they are known.
    importance: Option<&'a [f32]>,
    weights: Vec<f32>,
    encoded: Vec<u8>,
    decoded: Vec<f32>,
    bytes: Vec<u8>,
}

impl<'a> Worker<'a> {
    /// A worker at the tensor `stored`. `importance` weights errors.
    pub fn new(
        inventory: &'a Inventory<'a>,
        stored: &'a Stored,
        importance: Option<&'a Importance>,
    ) -> Worker<'a> {
        Worker {
            inventory,
            stored,
            recipe: &stored.recipe,
            encoding: stored.planned.encoding,
            reader: RowReader::new(inventory, &stored.recipe),
            values: Vec::new(),
            all_importance: importance,
            importance: importance.and_then(|importance| importance.of(&stored.recipe.name)),
            weights: Vec::new(),
            encoded: Vec::new(),
            decoded: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Turns to another tensor.
    pub fn turn_to(&mut self, stored: &'a Stored) {
        (self.stored, self.recipe, self.encoding) = (stored, &stored.recipe, stored.planned.encoding);
        self.reader.turn_to(&stored.recipe);
        self.importance = self.all_importance.and_then(|importance| importance.of(&stored.recipe.name));
    }

    /// Replaces `out` with `rows` output rows from `row` on.
    ///
    /// Groups must divide the recipe's rows, so that no group crosses a chunk and it does not matter how a tensor's
    /// rows are dealt out.
    ///
    /// # Errors
    /// Values that cannot be stored in the encoding, or do not come out exactly where they should.
    pub fn convert(&mut self, row: usize, rows: usize, out: &mut Encoded) -> Result<(), ConvertError> {
        out.regions.iter_mut().for_each(Vec::clear);
        out.measured = Measured::default();
        let (end, step) = (row + rows, chunk_rows(self.recipe.width));
        for row in (row..end).step_by(step) {
            self.convert_chunk(row, step.min(end - row), out)?;
        }
        Ok(())
    }

    fn convert_chunk(&mut self, row: usize, rows: usize, out: &mut Encoded) -> Result<(), ConvertError> {
        let (inventory, recipe) = (self.inventory, self.recipe);
        let first = row * recipe.width;
        let refuse = |cause| encode_error(inventory, recipe, shifted(cause, first));
        self.values.resize(rows * recipe.width, 0.0);
        self.reader.read(row, &mut self.values)?;
        self.scale(row);
        self.encoded.clear();
        if self.stored.repacked {
            self.repack(row, rows)
        } else if self.stored.searched {
            let weights = (!self.weights.is_empty()).then_some(&self.weights[..]);
            self.encoding.encode_searched(&self.values, weights, &mut self.encoded)
        } else {
            self.encoding.encode(&self.values, &mut self.encoded)
        }
        .map_err(refuse)?;
        out.measured = out.measured.join(self.measure(first)?);
        let lengths = self.encoding.regions(self.values.len() as u64).map_err(refuse)?;
        let mut rest = &self.encoded[..];
        for (region, length) in out.regions.iter_mut().zip([lengths.codes, lengths.scales, lengths.biases]) {
            let (head, tail) = rest.split_at(length as usize);
            region.extend_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    /// Applies activation-aware factors to the rows from `row` on, and sets the weights of their errors: what
    /// activations do to a column, divided by what its factor did to them.
    fn scale(&mut self, row: usize) {
        let (total, width) = (self.recipe.rows(), self.recipe.width.max(1));
        if let Some(scaling) = &self.stored.scaling {
            scaling.apply(row, total, width, &mut self.values);
        }
        self.weights.clear();
        let Some(importance) = self.importance.filter(|_| self.stored.searched) else { return };
        let columns = self.stored.scaling.as_ref().map_or(&[][..], |scaling| &scaling.columns);
        for row in row..row + self.values.len() / width {
            let start = self.weights.len();
            self.weights.extend_from_slice(awq::block(importance, row, total, width));
            let factors = awq::block(columns, row, total, width);
            self.weights[start..]
                .iter_mut()
                .zip(factors)
                .for_each(|(weight, factor)| *weight /= factor * factor);
        }
    }

    /// Fills `encoded` with the source's own codes and scales of `rows` output rows from `row` on.
    fn repack(&mut self, row: usize, rows: usize) -> Result<(), QuantError> {
        if let Some(index) = self.values.iter().position(|value| !value.is_finite()) {
            return Err(QuantError::NonFinite { index, value: self.values[index] });
        }
        let (width, encoding) = (self.recipe.width, self.encoding);
        let regions = encoding.regions((rows * width) as u64)?;
        let regions = [regions.codes, regions.scales, regions.biases].map(|length| length as usize);
        self.encoded.resize(regions.iter().sum(), 0);
        let (codes, rest) = self.encoded.split_at_mut(regions[0]);
        let (scales, biases) = rest.split_at_mut(regions[1]);
        let per_row = regions.map(|length| length / rows.max(1));
        let mut at = 0;
        each_run(self.recipe, row, rows, |part, source_row, count| {
            let of = |length: usize| at * length..(at + count) * length;
            let out = RegionsMut {
                codes: &mut codes[of(per_row[0])],
                scales: &mut scales[of(per_row[1])],
                biases: &mut biases[of(per_row[2])],
            };
            at += count;
            let tensor = self.inventory.tensor(part.tensor);
            tensor.repack_rows(part.first_row + source_row, count, width, encoding, out)
        })?;
        let Some(columns) = self.recipe.columns else { return Ok(()) };
        for (region, per_row) in [codes, scales, biases].into_iter().zip(per_row) {
            for row in region.chunks_exact_mut(per_row.max(1)) {
                columns.apply_to_bytes(row, &mut self.bytes);
            }
        }
        Ok(())
    }

    /// Decodes what was encoded and compares; `first` is the flat index of the first value.
    fn measure(&mut self, first: usize) -> Result<Measured, ConvertError> {
        let count = self.values.len();
        self.decoded.resize(count, 0.0);
        self.encoding
            .decode(&self.encoded, count, 0, &mut self.decoded)
            .map_err(|cause| encode_error(self.inventory, self.recipe, cause))?;
        let measured = Measured::of(&self.values, &self.decoded);
        if !self.stored.verdict.is_exact() {
            return Ok(measured);
        }
        let differs = |(value, decoded): (&f32, &f32)| value != decoded;
        match self.values.iter().zip(&self.decoded).position(differs) {
            None => Ok(measured),
            Some(index) => Err(ConvertError::NotExact {
                path: self.inventory.path().to_owned(),
                tensor: self.recipe.name.clone(),
                index: first + index,
                expected: self.values[index],
                found: self.decoded[index],
            }),
        }
    }
}

/// Rows of a source tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Index into the inventory.
    pub tensor: usize,
    /// The rows, of the recipe's width.
    pub rows: Range<usize>,
}

/// Where in the source `rows` output rows from `row` on come from; rows between them may be included.
pub(crate) fn spans(recipe: &Recipe, row: usize, rows: usize) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let Ok(()) = each_run::<Infallible>(recipe, row, rows, |part, source_row, count| {
        let start = part.first_row + source_row;
        match spans.last_mut() {
            Some(Span { tensor, rows }) if *tensor == part.tensor => {
                *rows = rows.start.min(start)..rows.end.max(start + count);
            }
            _ => spans.push(Span { tensor: part.tensor, rows: start..start + count }),
        }
        Ok(())
    });
    spans
}

/// Makes chunk-relative element indices those of the whole tensor.
fn shifted(cause: QuantError, first: usize) -> QuantError {
    match cause {
        QuantError::NonFinite { index, value } => QuantError::NonFinite { index: index + first, value },
        QuantError::FloatRange { index, value, dtype } => {
            QuantError::FloatRange { index: index + first, value, dtype }
        }
        QuantError::ScaleRange { index, value, dtype } => {
            QuantError::ScaleRange { index: index + first, value, dtype }
        }
        other => other,
    }
}
