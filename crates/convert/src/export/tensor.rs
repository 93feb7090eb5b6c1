//! One tensor: which ggml type holds it, and its blocks.

use std::path::Path;

use basert_format::TensorView;
use basert_model::{ModelSpec, Role, TensorSpec};
use basert_quant::{Encoding, FloatDtype, Fp4, GgmlType, QuantError, ScaleDtype, ggml};

use super::Outtype;
use super::report::Exported;
use super::writer::TensorInfo;
use crate::ConvertError;
use crate::recipe::{Op, RowOrder, Untile, gguf};
use crate::storage;

/// Elements a thread converts at a time.
const CHUNK_ELEMENTS: usize = 1 << 16;

/// Elements of the blocks that codes are moved into.
const BLOCK: usize = 32;

/// Where a tensor's values come from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// A tensor of its own.
    Whole(TensorView<'a>),
    /// Of every expert, the first or second half of the rows of a fused tensor.
    Half { fused: TensorView<'a>, second: bool },
}

impl<'a> Source<'a> {
    fn view(self) -> TensorView<'a> {
        match self {
            Source::Whole(view) | Source::Half { fused: view, .. } => view,
        }
    }
}

/// How values get into the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Codes and scales, or floats, are moved.
    Moved,
    /// They are decoded, and F32 holds them.
    Widened,
    /// They are decoded and encoded anew.
    Encoded,
}

/// A tensor of the output.
pub(super) struct Item<'a> {
    canonical: String,
    name: String,
    shape: Vec<usize>,
    ty: GgmlType,
    how: How,
    data: Data<'a>,
}

enum Data<'a> {
    /// Rows of a tensor of the file.
    Rows(Rows<'a>),
    /// Values that stand for a setting.
    Values(Vec<f32>),
}

/// Rows of a tensor of the file, and what is done to them.
struct Rows<'a> {
    source: Source<'a>,
    /// Elements of a row, or 1 where single elements of a vector move.
    width: usize,
    /// Rows of the output.
    rows: usize,
    /// Rows per expert of the output.
    per_expert: usize,
    order: RowOrder,
    columns: Option<Untile>,
    /// `-exp(w)`.
    negate_exp: bool,
}

impl<'a> Item<'a> {
    /// Settles name, shape, order and type of `tensor`.
    ///
    /// # Errors
    /// Name and encoding of a tensor that no type holds exactly, if no `outtype` is given.
    pub fn new(
        spec: &ModelSpec,
        tensor: TensorSpec,
        source: Source<'a>,
        outtype: Option<Outtype>,
    ) -> Result<Item<'a>, (String, String)> {
        let (name, shape, reading) = gguf::reading(spec, &tensor);
        let order = match reading.parts.first().map_or(RowOrder::Straight, |part| part.order) {
            RowOrder::Untile { from, heads } => RowOrder::Untile { from, heads: heads.inverse() },
            // Interleaving belongs to Hugging Face sources.
            other => other,
        };
        let rows = Rows {
            source,
            width: reading.width,
            rows: reading.rows(),
            per_expert: tensor.shape.iter().rev().nth(1).copied().unwrap_or(1),
            order,
            columns: reading.columns.map(Untile::inverse),
            negate_exp: reading.op == Op::LogOfNegative,
        };
        let encoding = source.view().encoding;
        let stored = storage::describe(encoding);
        let plain = shape.len() == 1 || matches!(tensor.role, Role::Conv | Role::Router);
        let (ty, how) = match (plain, encoding) {
            (true, Encoding::Float(FloatDtype::F32)) if !rows.negate_exp => (GgmlType::F32, How::Moved),
            (true, _) => (GgmlType::F32, How::Widened),
            (false, _) => match (rows.exact_type(), outtype) {
                (Ok(ty), _) => (ty, How::Moved),
                (Err(_), Some(Outtype(ty))) if rows.width.is_multiple_of(ty.block_size()) => {
                    (ty, How::Encoded)
                }
                (Err(why), _) => return Err((tensor.name, format!("{stored}: {why}"))),
            },
        };
        Ok(Item { canonical: tensor.name, name, shape, ty, how, data: Data::Rows(rows) })
    }

    /// A vector of F32 that is in no file.
    pub fn computed(name: &str, values: &[f32]) -> Item<'a> {
        Item {
            canonical: name.to_owned(),
            name: name.to_owned(),
            shape: vec![values.len()],
            ty: GgmlType::F32,
            how: How::Moved,
            data: Data::Values(values.to_vec()),
        }
    }

    /// Name in the GGUF.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the payload.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() / self.ty.block_size() * self.ty.block_bytes()
    }

    /// For the container.
    pub fn info(&self) -> TensorInfo<'_> {
        TensorInfo { name: &self.name, shape: &self.shape, ty: self.ty, bytes: self.bytes() as u64 }
    }

    /// For the report.
    pub fn exported(&self, max_error: f32) -> Exported {
        let source = match &self.data {
            Data::Rows(rows) => storage::describe(rows.source.view().encoding),
            Data::Values(_) => "settings".to_owned(),
        };
        Exported {
            name: self.canonical.clone(),
            gguf_name: self.name.clone(),
            source,
            stored: self.ty.name(),
            exact: max_error == 0.0,
            max_error,
            bytes: self.bytes() as u64,
        }
    }

    /// The blocks, and the largest difference between a value and what they decode to.
    ///
    /// # Errors
    /// Values that the type does not hold, or that did not survive where they should; `path` is the file they are from.
    pub fn payload(&self, path: &Path, threads: usize) -> Result<(Vec<u8>, f32), ConvertError> {
        let rows = match &self.data {
            Data::Values(values) => {
                return Ok((values.iter().flat_map(|value| value.to_le_bytes()).collect(), 0.0));
            }
            Data::Rows(rows) => rows,
        };
        let mut out = vec![0; self.bytes()];
        let rows_per_chunk = (CHUNK_ELEMENTS / rows.width.max(1)).max(1);
        let chunk_bytes = rows_per_chunk * rows.width / self.ty.block_size() * self.ty.block_bytes();
        let mut shares: Vec<Vec<(usize, &mut [u8])>> = (0..threads.max(1)).map(|_| Vec::new()).collect();
        for (index, part) in out.chunks_mut(chunk_bytes.max(1)).enumerate() {
            let share = index % threads.max(1);
            shares[share].push((index * rows_per_chunk, part));
        }
        let results = std::thread::scope(|scope| {
            let start = |share| scope.spawn(move || self.fill(rows, share, rows_per_chunk));
            let handles: Vec<_> = shares.into_iter().map(start).collect();
            handles.into_iter().map(|handle| handle.join()).collect::<Vec<_>>()
        });
        let mut max_error = 0.0f32;
        for result in results {
            let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            max_error = max_error.max(result.map_err(|fault| self.error(path, fault))?);
        }
        Ok((out, max_error))
    }

    /// Fills chunks, each given by its first row.
    fn fill(
        &self,
        rows: &Rows<'_>,
        share: Vec<(usize, &mut [u8])>,
        rows_per_chunk: usize,
    ) -> Result<f32, Fault> {
        let mut max_error = 0.0f32;
        let (mut values, mut decoded, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        for (first, out) in share {
            let count = rows_per_chunk.min(rows.rows - first);
            rows.decode(first, count, &mut values)?;
            blocks.clear();
            match self.how {
                How::Moved => rows.repack(self.ty, first, count, &mut blocks)?,
                How::Widened | How::Encoded => encode(self.ty, &values, &mut blocks)?,
            }
            decoded.resize(values.len(), 0.0);
            ggml::decode(self.ty, &blocks, &mut decoded)?;
            for (index, (expected, found)) in values.iter().zip(&decoded).enumerate() {
                let error = (expected - found).abs();
                if self.how != How::Encoded && error != 0.0 {
                    let index = first * rows.width + index;
                    return Err(Fault::NotExact { index, expected: *expected, found: *found });
                }
                max_error = max_error.max(error);
            }
            out.copy_from_slice(&blocks);
        }
        Ok(max_error)
    }

    fn error(&self, path: &Path, fault: Fault) -> ConvertError {
        let (path, tensor) = (path.to_owned(), self.canonical.clone());
        match fault {
            Fault::Quant(cause) => ConvertError::Encode { path, tensor, cause },
            Fault::NotExact { index, expected, found } => {
                ConvertError::NotExact { path, tensor, index, expected, found }
            }
        }
    }
}

/// What can go wrong inside a tensor.
enum Fault {
    Quant(QuantError),
    NotExact { index: usize, expected: f32, found: f32 },
}

impl From<QuantError> for Fault {
    fn from(cause: QuantError) -> Fault {
        Fault::Quant(cause)
    }
}

impl Rows<'_> {
    /// The type that holds codes and scales as they are.
    ///
    /// # Errors
    /// Why there is none.
    fn exact_type(&self) -> Result<GgmlType, String> {
        let view = self.source.view();
        let encoding = view.encoding;
        let ty = match encoding {
            Encoding::Float(FloatDtype::F32) => GgmlType::F32,
            Encoding::Float(FloatDtype::F16) => GgmlType::F16,
            Encoding::Float(FloatDtype::Bf16) => GgmlType::BF16,
            Encoding::Super(ty) => ty,
            Encoding::Fp4(Fp4::Mx) => GgmlType::MxFp4,
            Encoding::Affine { bits: 4, symmetric: true, .. } => GgmlType::Q4_0,
            Encoding::Affine { bits: 4, symmetric: false, .. } => GgmlType::Q4_1,
            Encoding::Affine { bits: 5, symmetric: true, .. } => GgmlType::Q5_0,
            Encoding::Affine { bits: 5, symmetric: false, .. } => GgmlType::Q5_1,
            Encoding::Affine { bits: 8, symmetric: true, .. } => GgmlType::Q8_0,
            _ => return Err("ggml has no type for it".to_owned()),
        };
        let (group, block) = (encoding.group(), ty.block_size());
        if !self.width.is_multiple_of(group) || !group.is_multiple_of(block) {
            return Err(format!("groups do not divide its rows of {}", self.width));
        }
        if self.columns.is_some_and(|columns| !columns.unit.is_multiple_of(block)) {
            return Err(format!("value heads cut through blocks of {block}"));
        }
        if let Encoding::Affine { scale, .. } = encoding
            && scale != ScaleDtype::F16
        {
            let [_, scales, biases] = regions(view).map_err(|cause| cause.to_string())?;
            let count = (scales.len() + biases.len()) / scale.bytes();
            let both = [scales, biases].concat();
            let mut half = Vec::with_capacity(2);
            let mut fits = |index| {
                half.clear();
                scale.get(&both, index).is_ok_and(|value| ScaleDtype::F16.encode(value, &mut half) == value)
            };
            if !(0..count).all(&mut fits) {
                return Err(format!("its {scale} scales are no f16 numbers"));
            }
        }
        Ok(ty)
    }

    /// The row of the file's tensor that output row `row` is.
    fn source_row(&self, row: usize) -> usize {
        match self.source {
            Source::Whole(_) => self.order.source(row),
            Source::Half { second, .. } => {
                let (expert, inside) = (row / self.per_expert, row % self.per_expert);
                (2 * expert + usize::from(second)) * self.per_expert + inside
            }
        }
    }

    /// The values of `count` output rows from `first` on.
    fn decode(&self, first: usize, count: usize, out: &mut Vec<f32>) -> Result<(), QuantError> {
        let view = self.source.view();
        let elements = view.shape.iter().product::<u64>() as usize;
        out.resize(count * self.width, 0.0);
        let mut straight = vec![0.0; self.width];
        for (row, values) in (first..).zip(out.chunks_exact_mut(self.width.max(1))) {
            view.encoding.decode(view.data, elements, self.source_row(row) * self.width, values)?;
            if let Some(columns) = self.columns {
                straight.copy_from_slice(values);
                for (index, value) in values.iter_mut().enumerate() {
                    *value = straight[columns.source(index)];
                }
            }
        }
        if self.negate_exp {
            // In f64 and rounded once, as the way back is.
            out.iter_mut().for_each(|value| *value = (-f64::from(*value).exp()) as f32);
        }
        Ok(())
    }

    /// Appends the blocks of `count` output rows from `first` on, made of the file's own codes and scales.
    fn repack(&self, ty: GgmlType, first: usize, count: usize, out: &mut Vec<u8>) -> Result<(), QuantError> {
        let view = self.source.view();
        let all = regions(view)?;
        let source_rows = view.shape.iter().product::<u64>() as usize / self.width.max(1);
        let per_row = all.map(|region| region.len() / source_rows.max(1));
        let mut moved = [Vec::new(), Vec::new(), Vec::new()];
        let (mut scratch, mut bytes) = (Vec::new(), Vec::new());
        for row in first..first + count {
            let row = self.source_row(row);
            for ((region, length), (index, moved)) in
                all.iter().zip(per_row).zip(moved.iter_mut().enumerate())
            {
                bytes.clear();
                let part = &region[row * length..(row + 1) * length];
                match view.encoding {
                    Encoding::Affine { group, scale, .. } if index > 0 => {
                        split(scale, group, part, &mut bytes)?
                    }
                    _ => bytes.extend_from_slice(part),
                }
                if let Some(columns) = self.columns {
                    columns.apply_to_bytes(&mut bytes, &mut scratch);
                }
                moved.extend_from_slice(&bytes);
            }
        }
        let [codes, scales, biases] = &moved;
        ggml::assemble(ty, codes, scales, biases, out)
    }
}

/// Codes, scales and biases.
fn regions<'a>(view: TensorView<'a>) -> Result<[&'a [u8]; 3], QuantError> {
    let regions = view.encoding.regions(view.shape.iter().product())?;
    let (codes, rest) = view.data.split_at(regions.codes as usize);
    let (scales, biases) = rest.split_at(regions.scales as usize);
    Ok([codes, scales, biases])
}

/// Appends the scales (or biases) of a row as f16, once for each block of a group.
fn split(scale: ScaleDtype, group: usize, row: &[u8], out: &mut Vec<u8>) -> Result<(), QuantError> {
    for (index, stored) in row.chunks_exact(scale.bytes()).enumerate() {
        for _ in 0..group / BLOCK {
            match scale {
                ScaleDtype::F16 => out.extend_from_slice(stored),
                _ => {
                    ScaleDtype::F16.encode(scale.get(row, index)?, out);
                }
            }
        }
    }
    Ok(())
}

/// Appends values, encoded anew.
fn encode(ty: GgmlType, values: &[f32], out: &mut Vec<u8>) -> Result<(), QuantError> {
    let encoding = ty.exact_encoding().ok_or(QuantError::NotEncodable(ty.name()))?;
    let regions = encoding.regions(values.len() as u64)?;
    let mut payload = Vec::new();
    encoding.encode(values, &mut payload)?;
    let (codes, rest) = payload.split_at(regions.codes as usize);
    let (scales, biases) = rest.split_at(regions.scales as usize);
    ggml::assemble(ty, codes, scales, biases, out)
}
