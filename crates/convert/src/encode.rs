//! From source rows to an output payload: the rows' values, encoded, in parallel over rows.
//!
//! Codes and scales that the output can hold are moved instead of encoded. Either way the payload is decoded again
//! and compared with the source's values: that is the proof of exactness, or the measure of the loss.

use basert_quant::{Encoding, QuantError};

use crate::recipe::{Inventory, Recipe, RegionsMut};
use crate::storage::Stored;
use crate::values::{RowReader, each_run, encode_error};
use crate::{ConvertError, awq};

/// Elements a thread converts at a time: large enough to amortise the bookkeeping, small enough to stay in
/// cache.
const CHUNK_ELEMENTS: usize = 1 << 16;

/// An encoded tensor.
pub(crate) struct Payload {
    /// Codes, scales, biases.
    pub bytes: Vec<u8>,
    /// What was found out about the values.
    pub measured: Measured,
}

/// Values before encoding against values after.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    /// Largest magnitude before.
    pub largest: f32,
    /// Largest difference.
    pub max_error: f32,
    /// Sum of squared differences.
    pub squares: f64,
}

impl Measured {
    fn join(self, other: Measured) -> Measured {
        Measured {
            largest: self.largest.max(other.largest),
            max_error: self.max_error.max(other.max_error),
            squares: self.squares + other.squares,
        }
    }
}

/// Most bytes that a conversion's buffers take besides the payloads.
pub(crate) fn buffer_bytes(threads: usize) -> u64 {
    // Values, a row, weights, the encoded chunk and the values that it decodes to.
    (threads * CHUNK_ELEMENTS * 4 * 5) as u64
}

/// Makes the payload of `stored`, on up to `threads` threads. `importance` weights errors: one mean squared activation per
/// column, or per expert and column.
///
/// Groups must divide the recipe's rows, so that no group crosses a chunk and the result does not depend on
/// `threads`.
///
/// # Errors
/// Values that cannot be stored in the encoding, or do not come out exactly where they should.
pub(crate) fn payload(
    inventory: &Inventory<'_>,
    stored: &Stored,
    importance: Option<&[f32]>,
    threads: usize,
) -> Result<Payload, ConvertError> {
    let (recipe, encoding) = (&stored.recipe, stored.planned.encoding);
    let refuse = |cause| encode_error(inventory, recipe, cause);
    let elements = recipe.elements();
    let regions = encoding.regions(elements as u64).map_err(refuse)?;
    let length = encoding.payload_len(elements as u64).map_err(refuse)?;
    let mut bytes = vec![0u8; usize::try_from(length).map_err(|_| refuse(too_large(elements)))?];

    let (codes, rest) = bytes.split_at_mut(regions.codes as usize);
    let (scales, biases) = rest.split_at_mut(regions.scales as usize);
    let mut chunks = Vec::new();
    let mut rest = [codes, scales, biases];
    let mut row = 0;
    while row < recipe.rows() {
        let rows = (CHUNK_ELEMENTS / recipe.width.max(1)).max(1).min(recipe.rows() - row);
        let lengths = encoding.regions((rows * recipe.width) as u64).map_err(refuse)?;
        let lengths = [lengths.codes, lengths.scales, lengths.biases];
        let mut out = [&mut [][..], &mut [][..], &mut [][..]];
        for ((out, rest), length) in out.iter_mut().zip(&mut rest).zip(lengths) {
            let (head, tail) = std::mem::take(rest).split_at_mut(length as usize);
            (*out, *rest) = (head, tail);
        }
        chunks.push(Chunk { row, rows, out });
        row += rows;
    }
    let measured = convert_chunks(inventory, stored, importance, chunks, threads)?;
    Ok(Payload { bytes, measured })
}

/// Rows that one thread converts on its own, and where their codes, scales and biases go.
struct Chunk<'a> {
    row: usize,
    rows: usize,
    out: [&'a mut [u8]; 3],
}

/// Fills all chunks.
fn convert_chunks(
    inventory: &Inventory<'_>,
    stored: &Stored,
    importance: Option<&[f32]>,
    chunks: Vec<Chunk<'_>>,
    threads: usize,
) -> Result<Measured, ConvertError> {
    let threads = threads.clamp(1, chunks.len().max(1));
    if threads == 1 {
        return Worker::new(inventory, stored, importance).convert(chunks);
    }
    // Dealt out in turn, so that every thread gets its share of any uneven part.
    let mut shares: Vec<Vec<Chunk<'_>>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, chunk) in chunks.into_iter().enumerate() {
        shares[index % threads].push(chunk);
    }
    let results = std::thread::scope(|scope| {
        let start = |share| scope.spawn(move || Worker::new(inventory, stored, importance).convert(share));
        let handles: Vec<_> = shares.into_iter().map(start).collect();
        handles.into_iter().map(|handle| handle.join()).collect::<Vec<_>>()
    });
    let mut measured = Measured::default();
    for result in results {
        match result {
            Ok(result) => measured = measured.join(result?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    Ok(measured)
}

/// One thread's buffers.
struct Worker<'a> {
    inventory: &'a Inventory<'a>,
    stored: &'a Stored,
    recipe: &'a Recipe,
    encoding: Encoding,
    reader: RowReader<'a>,
    values: Vec<f32>,
    /// Mean squared activations by column, if they are known.
    importance: Option<&'a [f32]>,
    weights: Vec<f32>,
    encoded: Vec<u8>,
    decoded: Vec<f32>,
    bytes: Vec<u8>,
}

impl<'a> Worker<'a> {
    fn new(inventory: &'a Inventory<'a>, stored: &'a Stored, importance: Option<&'a [f32]>) -> Worker<'a> {
        Worker {
            inventory,
            stored,
            recipe: &stored.recipe,
            encoding: stored.planned.encoding,
            reader: RowReader::new(inventory, &stored.recipe),
            values: Vec::new(),
            importance,
            weights: Vec::new(),
            encoded: Vec::new(),
            decoded: Vec::new(),
            bytes: Vec::new(),
        }
    }

    fn convert(&mut self, chunks: Vec<Chunk<'_>>) -> Result<Measured, ConvertError> {
        let mut measured = Measured::default();
        for chunk in chunks {
            let first = chunk.row * self.recipe.width;
            self.values.resize(chunk.rows * self.recipe.width, 0.0);
            self.reader.read(chunk.row, &mut self.values)?;
            self.scale(chunk.row);
            self.encoded.clear();
            if self.stored.repacked {
                self.repack(chunk.row, chunk.rows)
            } else if self.stored.searched {
                let weights = (!self.weights.is_empty()).then_some(&self.weights[..]);
                self.encoding.encode_searched(&self.values, weights, &mut self.encoded)
            } else {
                self.encoding.encode(&self.values, &mut self.encoded)
            }
            .map_err(|cause| encode_error(self.inventory, self.recipe, shifted(cause, first)))?;
            measured = measured.join(self.measure(first)?);
            let mut at = 0;
            for out in chunk.out {
                out.copy_from_slice(&self.encoded[at..at + out.len()]);
                at += out.len();
            }
        }
        Ok(measured)
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
        let width = self.recipe.width;
        let regions = self.encoding.regions((rows * width) as u64)?;
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
            tensor.repack_rows(part.first_row + source_row, count, width, out)
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
        let mut measured = Measured::default();
        for (value, decoded) in self.values.iter().zip(&self.decoded) {
            let error = (value - decoded).abs();
            measured.largest = measured.largest.max(value.abs());
            measured.max_error = measured.max_error.max(error);
            measured.squares += f64::from(error) * f64::from(error);
        }
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

fn too_large(elements: usize) -> QuantError {
    QuantError::TooLarge { elements: elements as u64, encoding: "payload" }
}
