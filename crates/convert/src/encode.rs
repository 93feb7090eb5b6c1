//! From source rows to an output payload: decode, reorder, adjust, encode, in parallel over rows.

use basert_quant::{Encoding, QuantError, ggml};

use crate::ConvertError;
use crate::recipe::{Inventory, Op, Part, Recipe, SourceTensor};

/// Elements a thread converts at a time: large enough to amortise the bookkeeping, small enough to stay in
/// cache.
const CHUNK_ELEMENTS: usize = 1 << 16;

/// An encoded tensor.
pub(crate) struct Payload {
    /// Codes, scales, biases.
    pub bytes: Vec<u8>,
    /// Largest magnitude among the values before encoding.
    pub largest: f32,
}

/// Makes the payload of `recipe` in `encoding`, on up to `threads` threads.
///
/// Groups must divide the recipe's rows, so that no group crosses a chunk and the result does not depend on
/// `threads`.
///
/// # Errors
/// Values that cannot be stored in `encoding`.
pub(crate) fn payload(
    inventory: &Inventory<'_>,
    recipe: &Recipe,
    encoding: Encoding,
    threads: usize,
) -> Result<Payload, ConvertError> {
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
    let largest = convert_chunks(inventory, recipe, encoding, chunks, threads)?;
    Ok(Payload { bytes, largest })
}

/// Rows that one thread converts on its own, and where their codes, scales and biases go.
struct Chunk<'a> {
    row: usize,
    rows: usize,
    out: [&'a mut [u8]; 3],
}

/// Fills all chunks and returns the largest magnitude.
fn convert_chunks(
    inventory: &Inventory<'_>,
    recipe: &Recipe,
    encoding: Encoding,
    chunks: Vec<Chunk<'_>>,
    threads: usize,
) -> Result<f32, ConvertError> {
    let threads = threads.clamp(1, chunks.len().max(1));
    if threads == 1 {
        return Worker::new(inventory, recipe, encoding).convert(chunks);
    }
    // Dealt out in turn, so that every thread gets its share of any uneven part.
    let mut shares: Vec<Vec<Chunk<'_>>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, chunk) in chunks.into_iter().enumerate() {
        shares[index % threads].push(chunk);
    }
    let results = std::thread::scope(|scope| {
        let start = |share| scope.spawn(move || Worker::new(inventory, recipe, encoding).convert(share));
        let handles: Vec<_> = shares.into_iter().map(start).collect();
        handles.into_iter().map(|handle| handle.join()).collect::<Vec<_>>()
    });
    let mut largest = 0.0f32;
    for result in results {
        match result {
            Ok(result) => largest = largest.max(result?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    Ok(largest)
}

/// One thread's buffers.
struct Worker<'a> {
    inventory: &'a Inventory<'a>,
    recipe: &'a Recipe,
    encoding: Encoding,
    values: Vec<f32>,
    row: Vec<f32>,
    encoded: Vec<u8>,
}

impl<'a> Worker<'a> {
    fn new(inventory: &'a Inventory<'a>, recipe: &'a Recipe, encoding: Encoding) -> Worker<'a> {
        Worker { inventory, recipe, encoding, values: Vec::new(), row: Vec::new(), encoded: Vec::new() }
    }

    /// Fills `chunks` and returns the largest magnitude.
    fn convert(&mut self, chunks: Vec<Chunk<'_>>) -> Result<f32, ConvertError> {
        let mut largest = 0.0f32;
        for chunk in chunks {
            let first = chunk.row * self.recipe.width;
            self.values.resize(chunk.rows * self.recipe.width, 0.0);
            self.decode(chunk.row)?;
            if let Some(columns) = self.recipe.columns {
                for row in self.values.chunks_exact_mut(self.recipe.width) {
                    self.row.clear();
                    self.row.extend_from_slice(row);
                    for (index, value) in row.iter_mut().enumerate() {
                        *value = self.row[columns.source(index)];
                    }
                }
            }
            self.adjust(first)?;
            largest = self.values.iter().fold(largest, |largest, value| largest.max(value.abs()));
            self.encoded.clear();
            self.encoding
                .encode(&self.values, &mut self.encoded)
                .map_err(|cause| encode_error(self.inventory, self.recipe, shifted(cause, first)))?;
            let mut at = 0;
            for out in chunk.out {
                out.copy_from_slice(&self.encoded[at..at + out.len()]);
                at += out.len();
            }
        }
        Ok(largest)
    }

    /// Fills `values` with output rows from `row` on, before any element-wise operation.
    fn decode(&mut self, row: usize) -> Result<(), ConvertError> {
        let width = self.recipe.width;
        let mut rest = &mut self.values[..];
        let mut skip = row;
        for part in &self.recipe.parts {
            if skip >= part.rows {
                skip -= part.rows;
                continue;
            }
            while skip < part.rows && !rest.is_empty() {
                let run = part.order.run(skip, (part.rows - skip).min(rest.len() / width));
                let (head, tail) = std::mem::take(&mut rest).split_at_mut(run * width);
                decode_rows(self.inventory.tensor(part.tensor), part, part.order.source(skip), width, head)
                    .map_err(|cause| encode_error(self.inventory, self.recipe, cause))?;
                rest = tail;
                skip += run;
            }
            skip = 0;
            if rest.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Applies the element-wise operation; `first` is the flat index of the first value.
    fn adjust(&mut self, first: usize) -> Result<(), ConvertError> {
        match self.recipe.op {
            Op::Keep => {}
            Op::AddOne => self.values.iter_mut().for_each(|value| *value += 1.0),
            Op::LogOfNegative => {
                for (index, value) in self.values.iter_mut().enumerate() {
                    if !(*value < 0.0 && value.is_finite()) {
                        let tensor = first_tensor(self.inventory, self.recipe);
                        return Err(ConvertError::Decay {
                            path: tensor.map_or_else(|| self.inventory.path(), |t| t.file).to_owned(),
                            tensor: tensor.map_or_else(String::new, |t| t.name.to_owned()),
                            index: first + index,
                            value: *value,
                        });
                    }
                    // In f64 and rounded once, so that -exp(A_log) gives the source's value to the last bits.
                    *value = (-f64::from(*value)).ln() as f32;
                }
            }
        }
        Ok(())
    }
}

/// Decodes consecutive source rows of `part`, starting with `row` of its range.
fn decode_rows(
    tensor: &SourceTensor<'_>,
    part: &Part,
    row: usize,
    width: usize,
    out: &mut [f32],
) -> Result<(), QuantError> {
    let Some(ty) = tensor.ty else { return Err(QuantError::UnsupportedGgmlType(tensor.type_name)) };
    let (block, bytes) = (ty.block_size(), ty.block_bytes());
    let start = (part.first_row + row) * width / block * bytes;
    let end = start + out.len() / block * bytes;
    let range = tensor.bytes.get(start..end).ok_or(QuantError::Length {
        what: "tensor (bytes)",
        expected: end as u64,
        found: tensor.bytes.len() as u64,
    })?;
    ggml::decode(ty, range, out)
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

fn encode_error(inventory: &Inventory<'_>, recipe: &Recipe, cause: QuantError) -> ConvertError {
    let path = first_tensor(inventory, recipe).map_or_else(|| inventory.path(), |tensor| tensor.file);
    ConvertError::Encode { path: path.to_owned(), tensor: recipe.name.clone(), cause }
}

fn first_tensor<'i, 'a>(inventory: &'i Inventory<'a>, recipe: &Recipe) -> Option<&'i SourceTensor<'a>> {
    recipe.parts.first().map(|part| inventory.tensor(part.tensor))
}

fn too_large(elements: usize) -> QuantError {
    QuantError::TooLarge { elements: elements as u64, encoding: "payload" }
}
