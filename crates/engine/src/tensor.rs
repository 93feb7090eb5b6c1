//! Where weights come from: a `.base` file in the memory map, or a source that makes them row by row.

use std::error::Error;
use std::ops::Range;
use std::path::{Path, PathBuf};

use basert_format::{BaseFile, TensorView};
use basert_kernels::Matrix;
use basert_quant::{Encoding, FloatDtype};

use crate::EngineError;

/// Canonical tensors that are made on demand, for example from a checkpoint that is not converted yet.
pub trait TensorSource: Sync {
    /// What errors call it.
    fn path(&self) -> &Path;

    /// Shape of the tensor `name`, if there is one.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// Writes elements `first..first + out.len()` of the row-major tensor `name`; both are whole rows. May be called
    /// by several threads at once.
    ///
    /// # Errors
    /// Whatever keeps the values from being made.
    fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// What happens to matrices that the kernels do not read as they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoding {
    /// Decode every quantised matrix, to measure what integer activations cost.
    pub all: bool,
    /// Decode once and keep the values; otherwise block by block at every use.
    pub hold: bool,
}

/// Why a matrix of a file has to be decoded to f32, if it has to.
pub(crate) fn decoded_because(encoding: Encoding, cols: usize, all: bool) -> Option<&'static str> {
    match encoding {
        Encoding::Float(_) => None,
        _ if all => Some("as asked"),
        Encoding::Affine { group, .. } if !cols.is_multiple_of(group) => Some("its groups straddle rows"),
        _ => None,
    }
}

/// Where a model's tensors are looked up.
#[derive(Clone, Copy)]
pub(crate) enum Tensors<'a> {
    File(&'a BaseFile),
    Source(&'a dyn TensorSource),
}

impl<'a> Tensors<'a> {
    pub fn path(&self) -> PathBuf {
        match self {
            Tensors::File(file) => file.path().to_path_buf(),
            Tensors::Source(source) => source.path().to_path_buf(),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        match self {
            Tensors::File(file) => file.tensor_index(name).is_some(),
            Tensors::Source(source) => source.shape(name).is_some(),
        }
    }

    /// Takes the file's pages out of this process's memory until they are read again.
    pub fn release_pages(&self) {
        if let Tensors::File(file) = self {
            file.release_pages();
        }
    }

    /// A vector or small tensor as f32.
    pub fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EngineError> {
        match self {
            Tensors::File(file) => {
                let (_, view) = self.view(file, name, shape)?;
                self.decode(name, &view, shape.iter().product())
            }
            Tensors::Source(_) => {
                self.check_source(name, shape)?;
                let mut values = vec![0.0; shape.iter().product()];
                self.read(name, 0, &mut values)?;
                Ok(values)
            }
        }
    }

    /// A matrix; leading dimensions of a stack are folded into the rows. The second value says why it has to be
    /// decoded to f32, if it has to.
    pub fn matrix(
        &self,
        name: &str,
        shape: &[usize],
        decoding: Decoding,
    ) -> Result<(Weight, Option<&'static str>), EngineError> {
        let cols = shape.last().copied().unwrap_or(1);
        let rows = shape[..shape.len() - 1].iter().product();
        let weight = |encoding, storage| Weight { name: name.to_owned(), rows, cols, encoding, storage };
        let f32 = Encoding::Float(FloatDtype::F32);
        let Tensors::File(file) = self else {
            self.check_source(name, shape)?;
            return Ok((weight(f32, Storage::Streamed), None));
        };
        let (index, view) = self.view(file, name, shape)?;
        let reason = decoded_because(view.encoding, cols, decoding.all);
        if reason.is_none() {
            Matrix::new(view.encoding, rows, cols, view.data).map_err(|e| self.bad(name, e.to_string()))?;
            return Ok((weight(view.encoding, Storage::Mapped(index)), None));
        }
        let storage = match decoding.hold {
            true => Storage::Decoded(little_endian(&self.decode(name, &view, rows * cols)?)),
            false => Storage::Streamed,
        };
        Ok((weight(f32, storage), reason))
    }

    /// Values of a streamed tensor.
    fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), EngineError> {
        match self {
            Tensors::Source(source) => source.read(name, first, out).map_err(|cause| EngineError::Source {
                path: self.path(),
                name: name.to_owned(),
                cause,
            }),
            Tensors::File(file) => {
                let view = file.tensor(name).ok_or_else(|| self.missing(name))?;
                let elements = view.shape.iter().map(|&d| d as usize).product();
                let decoded = view.encoding.decode(view.data, elements, first, out);
                decoded.map_err(|e| self.bad(name, e.to_string()))
            }
        }
    }

    /// Reads whole rows of `cols` values with up to `threads` threads: decoding a source can take longer than using
    /// what comes out.
    fn read_rows(
        &self,
        name: &str,
        first: usize,
        out: &mut [f32],
        cols: usize,
        threads: usize,
    ) -> Result<(), EngineError> {
        let share = (out.len() / cols).div_ceil(threads.max(1)).max(1) * cols;
        let results = std::thread::scope(|scope| {
            let parts = out.chunks_mut(share).enumerate();
            let start = |(i, part)| scope.spawn(move || self.read(name, first + i * share, part));
            let handles: Vec<_> = parts.map(start).collect();
            handles.into_iter().map(|handle| handle.join()).collect::<Vec<_>>()
        });
        results.into_iter().try_for_each(|result| match result {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    fn view(
        &self,
        file: &'a BaseFile,
        name: &str,
        shape: &[usize],
    ) -> Result<(usize, TensorView<'a>), EngineError> {
        let found = file.tensor_index(name).and_then(|index| Some((index, file.tensor_at(index)?)));
        let (index, view) = found.ok_or_else(|| self.missing(name))?;
        if !view.shape.iter().map(|&d| d as usize).eq(shape.iter().copied()) {
            return Err(self.misshapen(name, view.shape.to_vec(), shape));
        }
        Ok((index, view))
    }

    fn check_source(&self, name: &str, shape: &[usize]) -> Result<(), EngineError> {
        let Tensors::Source(source) = self else { return Ok(()) };
        let found = source.shape(name).ok_or_else(|| self.missing(name))?;
        if found == shape {
            return Ok(());
        }
        Err(self.misshapen(name, found.into_iter().map(|d| d as u64).collect(), shape))
    }

    fn decode(&self, name: &str, view: &TensorView<'_>, elements: usize) -> Result<Vec<f32>, EngineError> {
        let mut values = vec![0.0; elements];
        view.encoding
            .decode(view.data, elements, 0, &mut values)
            .map_err(|e| self.bad(name, e.to_string()))?;
        Ok(values)
    }

    fn missing(&self, name: &str) -> EngineError {
        EngineError::MissingTensor { path: self.path(), name: name.to_owned() }
    }

    fn misshapen(&self, name: &str, found: Vec<u64>, expected: &[usize]) -> EngineError {
        EngineError::Shape { path: self.path(), name: name.to_owned(), found, expected: expected.to_vec() }
    }

    fn bad(&self, name: &str, reason: String) -> EngineError {
        EngineError::Tensor { path: self.path(), name: name.to_owned(), reason }
    }
}

/// One weight matrix `[rows, cols]`.
pub(crate) struct Weight {
    /// Canonical name of the tensor.
    name: String,
    rows: usize,
    cols: usize,
    encoding: Encoding,
    storage: Storage,
}

enum Storage {
    /// Index of the tensor in the file.
    Mapped(usize),
    /// Decoded to f32, little-endian.
    Decoded(Vec<u8>),
    /// Made on demand.
    Streamed,
}

impl Weight {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Outputs.
    pub fn row_count(&self) -> usize {
        self.rows
    }

    /// Bytes that a pass over all of it reads.
    pub fn bytes(&self) -> u64 {
        let elements = self.rows as u64 * self.cols as u64;
        self.encoding.payload_len(elements).unwrap_or_default()
    }

    /// The whole matrix.
    pub fn all(&self) -> Rows<'_> {
        self.rows(0..self.rows)
    }

    /// Some of its rows, for example one expert of a stack.
    pub fn rows(&self, range: Range<usize>) -> Rows<'_> {
        Rows { weight: self, range }
    }

    /// The matrix for the kernels, of a weight that is not streamed.
    pub fn resident<'a>(&'a self, tensors: Tensors<'a>) -> Matrix<'a> {
        let payload = match (&self.storage, tensors) {
            (Storage::Decoded(bytes), _) => Some(&bytes[..]),
            (Storage::Mapped(index), Tensors::File(file)) => file.tensor_at(*index).map(|view| view.data),
            _ => None,
        };
        let matrix = payload.map(|payload| Matrix::new(self.encoding, self.rows, self.cols, payload));
        match matrix {
            Some(Ok(matrix)) => matrix,
            _ => unreachable!("checked when it was bound, and the map does not change"),
        }
    }

    /// Whether it is made block by block at every use.
    pub fn is_streamed(&self) -> bool {
        matches!(self.storage, Storage::Streamed)
    }

    /// Bytes that it holds in memory besides the map.
    pub fn decoded_bytes(&self) -> usize {
        match &self.storage {
            Storage::Decoded(bytes) => bytes.len(),
            _ => 0,
        }
    }

    /// Rows `ids` of a streamed embedding table, `out` `[ids, cols]`.
    pub fn stream_rows(&self, tensors: Tensors<'_>, ids: &[u32], out: &mut [f32]) -> Result<(), EngineError> {
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(self.cols)) {
            tensors.read(&self.name, id as usize * self.cols, out)?;
        }
        Ok(())
    }
}

/// Consecutive rows of a weight.
#[derive(Clone)]
pub(crate) struct Rows<'a> {
    pub weight: &'a Weight,
    pub range: Range<usize>,
}

/// Elements of a matrix that are looked at at a time where little memory is to be held.
const BLOCK_ELEMENTS: usize = 1 << 22;

impl<'a> Rows<'a> {
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// The rows for the kernels, of a weight that is not streamed.
    pub fn resident(&self, tensors: Tensors<'a>) -> Matrix<'a> {
        self.weight.resident(tensors).slice_rows(self.range.clone())
    }

    /// Goes through the rows block by block, made on demand if the weight is streamed, and calls `use_block` with each
    /// and the index of its first row.
    pub fn each_block(
        &self,
        tensors: Tensors<'_>,
        threads: usize,
        mut use_block: impl FnMut(usize, Matrix<'_>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let Weight { name, cols, encoding, .. } = self.weight;
        let step = (BLOCK_ELEMENTS / cols).clamp(1, self.len().max(1));
        let mut values = vec![0.0; if self.weight.is_streamed() { step * cols } else { 0 }];
        for first in self.range.clone().step_by(step) {
            let rows = step.min(self.range.end - first);
            let index = first - self.range.start;
            if !self.weight.is_streamed() {
                use_block(index, self.weight.resident(tensors).slice_rows(first..first + rows))?;
                continue;
            }
            let values = &mut values[..rows * cols];
            tensors.read_rows(name, first * cols, values, *cols, threads)?;
            let bytes = little_endian(values);
            use_block(index, Matrix::new(*encoding, rows, *cols, &bytes)?)?;
        }
        Ok(())
    }
}

/// The bytes that the float kernels read.
fn little_endian(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
