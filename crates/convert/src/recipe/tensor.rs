//! A tensor of a source file: plain floats, ggml blocks, or the arrays of a quantised MLX module.

use std::ops::Range;
use std::path::Path;

use basert_quant::{Encoding, FloatDtype, GgmlType, QuantError, ScaleDtype, ggml};

use super::Module;

/// A tensor of a source file.
#[derive(Clone, Debug)]
pub(crate) struct SourceTensor<'a> {
    /// Name in the file; of a module, the name of its codes.
    pub name: &'a str,
    /// The file it is in.
    pub file: &'a Path,
    /// Row-major shape, innermost dimension last. Of a module whose width is not settled yet, the last
    /// dimension counts words.
    pub shape: Vec<usize>,
    /// Elements.
    pub data: Data<'a>,
}

/// How a tensor's elements are stored.
#[derive(Clone, Debug)]
pub(crate) enum Data<'a> {
    /// Plain floats or ggml blocks.
    Blocks {
        /// Element type.
        ty: GgmlType,
        /// Payload.
        bytes: &'a [u8],
    },
    /// A quantised MLX module.
    Module(Module<'a>),
    /// A type that is not read.
    Unreadable {
        /// Its name.
        type_name: &'static str,
        /// Payload.
        bytes: &'a [u8],
    },
}

/// Parts of the three regions of an output payload that belong to some rows.
pub(crate) struct RegionsMut<'a> {
    /// Packed codes.
    pub codes: &'a mut [u8],
    /// Scales.
    pub scales: &'a mut [u8],
    /// Biases.
    pub biases: &'a mut [u8],
}

impl SourceTensor<'_> {
    /// Name of the element type if it cannot be read.
    pub fn unreadable(&self) -> Option<&'static str> {
        match &self.data {
            Data::Blocks { ty, .. } if !ty.is_supported() => Some(ty.name()),
            Data::Unreadable { type_name, .. } => Some(type_name),
            _ => None,
        }
    }

    /// What the elements are, e.g. `bf16`, `Q4_K` or `mlx 4-bit group 64 bf16`.
    pub fn describe(&self) -> String {
        match &self.data {
            Data::Blocks { ty, .. } => {
                ty.float().map_or_else(|| ty.name().to_owned(), |float| float.to_string())
            }
            Data::Module(module) => module.describe(),
            Data::Unreadable { type_name, .. } => (*type_name).to_owned(),
        }
    }

    /// Bytes in the source.
    pub fn bytes(&self) -> u64 {
        self.arrays().into_iter().map(|bytes| bytes.len() as u64).sum()
    }

    /// All its bytes: codes, scales and biases of a module, one slice of any other tensor.
    pub fn arrays(&self) -> [&[u8]; 3] {
        match &self.data {
            Data::Blocks { bytes, .. } | Data::Unreadable { bytes, .. } => [bytes, &[], &[]],
            Data::Module(module) => [module.arrays.codes, module.arrays.scales, module.arrays.biases],
        }
    }

    /// The bytes of `rows` of `width` elements: codes, scales and biases of a module, one slice of any other tensor.
    /// Rows that are not there have none.
    pub fn row_bytes(&self, rows: Range<usize>, width: usize) -> [&[u8]; 3] {
        match &self.data {
            Data::Blocks { .. } => {
                [self.blocks(rows.start, width, rows.len() * width).unwrap_or(&[]), &[], &[]]
            }
            Data::Module(module) => module.row_bytes(rows),
            Data::Unreadable { bytes, .. } => [bytes, &[], &[]],
        }
    }

    /// The plain float type, if it is one.
    pub fn float(&self) -> Option<FloatDtype> {
        match &self.data {
            Data::Blocks { ty, .. } => ty.float(),
            _ => None,
        }
    }

    /// Elements that cannot be told apart without decoding: a block, or a module's group.
    pub fn block(&self) -> usize {
        match &self.data {
            Data::Blocks { ty, .. } => ty.block_size(),
            Data::Module(module) => module.layout.map_or(1, |layout| layout.group()),
            Data::Unreadable { .. } => 1,
        }
    }

    /// Whether a quantiser made the elements.
    pub fn is_quantised(&self) -> bool {
        match &self.data {
            Data::Blocks { ty, .. } => ty.float().is_none(),
            Data::Module(_) => true,
            Data::Unreadable { .. } => false,
        }
    }

    /// The smallest float type that holds every value.
    pub fn exact_float(&self) -> FloatDtype {
        match &self.data {
            Data::Blocks { ty: GgmlType::MxFp4, .. } => FloatDtype::Bf16,
            Data::Blocks { ty, .. } => ty.float().unwrap_or(FloatDtype::F32),
            Data::Module(module) => module.layout.map_or(FloatDtype::F32, |layout| layout.exact_float()),
            Data::Unreadable { .. } => FloatDtype::F32,
        }
    }

    /// The quantised encoding that holds every value. Some depend on the scales, which are read only if
    /// `look`; without, the usual case is assumed.
    pub fn exact_encoding(&self, look: bool) -> Option<Encoding> {
        match &self.data {
            Data::Blocks { ty, .. } if ty.float().is_none() => ty.exact_encoding(),
            Data::Module(module) => module.exact_encoding(look),
            _ => None,
        }
    }

    /// Whether rows go into `encoding` byte by byte.
    pub fn is_copied_into(&self, encoding: Encoding) -> bool {
        match (&self.data, encoding) {
            (Data::Blocks { .. }, Encoding::Super(_)) | (Data::Module(_), Encoding::Fp4(_)) => true,
            (Data::Module(module), Encoding::Affine { scale, .. }) => module.has_scales_of(scale),
            _ => false,
        }
    }

    /// Decodes consecutive rows of `width` elements from row `row` on.
    ///
    /// # Errors
    /// A type without decoder, or rows that are not there.
    pub fn decode_rows(&self, row: usize, width: usize, out: &mut [f32]) -> Result<(), QuantError> {
        match &self.data {
            Data::Blocks { ty, .. } => ggml::decode(*ty, self.blocks(row, width, out.len())?, out),
            Data::Module(module) => module.decode_rows(row, width, out),
            Data::Unreadable { type_name, .. } => Err(QuantError::UnsupportedGgmlType(type_name)),
        }
    }

    /// Moves consecutive rows into the regions of `encoding`, which is [`SourceTensor::exact_encoding`].
    ///
    /// # Errors
    /// Rows that are not there, or regions of another length.
    pub fn repack_rows(
        &self,
        row: usize,
        rows: usize,
        width: usize,
        encoding: Encoding,
        out: RegionsMut<'_>,
    ) -> Result<(), QuantError> {
        match &self.data {
            Data::Blocks { ty, .. } => {
                let blocks = self.blocks(row, width, rows * width)?;
                ggml::repack(*ty, blocks, out.codes, out.scales, out.biases)
            }
            Data::Module(module) => module.repack_rows(row, rows, encoding, out),
            Data::Unreadable { type_name, .. } => Err(QuantError::UnsupportedGgmlType(type_name)),
        }
    }

    /// The blocks of `elements` elements from row `row` on.
    fn blocks(&self, row: usize, width: usize, elements: usize) -> Result<&[u8], QuantError> {
        let Data::Blocks { ty, bytes } = &self.data else { return Ok(&[]) };
        let (block, size) = (ty.block_size(), ty.block_bytes());
        let start = row * width / block * size;
        slice("tensor (bytes)", bytes, start, elements / block * size)
    }
}

/// `bytes[start..start + length]`.
pub(super) fn slice<'a>(
    what: &'static str,
    bytes: &'a [u8],
    start: usize,
    length: usize,
) -> Result<&'a [u8], QuantError> {
    bytes.get(start..start + length).ok_or(QuantError::Length {
        what,
        expected: (start + length) as u64,
        found: bytes.len() as u64,
    })
}

/// The float type of scales that a container's scale dtype is.
pub(super) fn scale_float(scale: ScaleDtype) -> Option<FloatDtype> {
    match scale {
        ScaleDtype::Bf16 => Some(FloatDtype::Bf16),
        ScaleDtype::F16 => Some(FloatDtype::F16),
        ScaleDtype::E8m0 | ScaleDtype::E4m3 => None,
    }
}
