//! Weight matrices as the kernels read them: views into a file's payload, never copied.

use std::ops::Range;
use std::sync::LazyLock;

use basert_quant::ggml::{SUPER, super_group, super_scales};
use basert_quant::{Encoding, FloatDtype, Fp4, GgmlType, ScaleDtype};
use half::{bf16, f16};

use crate::KernelError;

/// A weight matrix `[rows, cols]`, row-major: `y = W·x` has `rows` outputs.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The elements. [`Matrix::new`] makes their regions fit the shape; a matrix built by hand must too, or the
    /// operations panic.
    pub weights: Weights<'a>,
}

/// The elements of a matrix in their stored form. Regions hold whole rows one after the other.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// Plain little-endian floats of any alignment.
    Float {
        /// Element type.
        dtype: FloatDtype,
        /// `rows·cols` elements.
        data: &'a [u8],
    },
    /// Unsigned codes, `code·scale + bias`.
    Affine {
        /// Bits per code: 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Elements per scale: 16, 32 or a multiple of 64.
        group: usize,
        /// Format of scales and biases.
        scale: ScaleDtype,
        /// The bias is `-2^(bits-1)·scale` and not stored.
        symmetric: bool,
        /// Packed codes.
        codes: &'a [u8],
        /// `rows·cols/group` scales.
        scales: &'a [u8],
        /// As many biases; empty when symmetric.
        biases: &'a [u8],
    },
    /// 4-bit floats.
    Fp4 {
        /// Which of the two.
        kind: Fp4,
        /// Packed codes.
        codes: &'a [u8],
        /// One byte per group.
        scales: &'a [u8],
    },
    /// GGUF K-quant super-blocks of 256 columns, byte for byte.
    Super {
        /// Q4_K, Q5_K or Q6_K.
        kind: GgmlType,
        /// `rows·cols/256` blocks.
        blocks: &'a [u8],
    },
}

impl<'a> Matrix<'a> {
    /// A matrix over a tensor's whole payload (codes, scales, biases).
    ///
    /// # Errors
    /// If the payload's length is not that of the shape, or the encoding has no kernel: groups other than 16, 32 and
    /// multiples of 64, and groups or super-blocks that straddle rows. Such weights can be decoded to f32.
    pub fn new(
        encoding: Encoding,
        rows: usize,
        cols: usize,
        payload: &'a [u8],
    ) -> Result<Matrix<'a>, KernelError> {
        let elements = rows.checked_mul(cols).ok_or(KernelError::TooLarge { rows, cols })?;
        let group = encoding.group();
        if matches!(encoding, Encoding::Affine { .. })
            && !(matches!(group, 16 | 32) || group.is_multiple_of(64))
        {
            return Err(KernelError::Group { group });
        }
        if group == 0 || !cols.is_multiple_of(group) {
            return Err(KernelError::Straddle { cols, group });
        }
        let regions = encoding.regions(elements as u64)?;
        let expected = encoding.payload_len(elements as u64)?;
        if payload.len() as u64 != expected {
            return Err(KernelError::Payload { rows, cols, expected, found: payload.len() as u64 });
        }
        // The regions sum to the length of a slice, so each fits usize.
        let (codes, rest) = payload.split_at(regions.codes as usize);
        let (scales, biases) = rest.split_at(regions.scales as usize);
        let weights = match encoding {
            Encoding::Float(dtype) => Weights::Float { dtype, data: codes },
            Encoding::Affine { bits, group, scale, symmetric } => {
                Weights::Affine { bits, group, scale, symmetric, codes, scales, biases }
            }
            Encoding::Fp4(kind) => Weights::Fp4 { kind, codes, scales },
            Encoding::Super(kind) => Weights::Super { kind, blocks: codes },
        };
        Ok(Matrix { rows, cols, weights })
    }

    /// The given rows as a matrix of their own, for example one expert of a stack `[experts·out, in]`.
    ///
    /// # Panics
    /// If the range is not inside the matrix.
    pub fn slice_rows(&self, range: Range<usize>) -> Matrix<'a> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let cut =
            |region: &'a [u8], row_bytes: usize| &region[range.start * row_bytes..range.end * row_bytes];
        let weights = match self.weights {
            Weights::Float { dtype, data } => {
                Weights::Float { dtype, data: cut(data, self.cols * dtype.bytes()) }
            }
            Weights::Affine { bits, group, scale, symmetric, codes, scales, biases } => {
                let scale_bytes = self.cols / group * scale.bytes();
                Weights::Affine {
                    bits,
                    group,
                    scale,
                    symmetric,
                    codes: cut(codes, self.cols / 8 * bits as usize),
                    scales: cut(scales, scale_bytes),
                    biases: cut(biases, if symmetric { 0 } else { scale_bytes }),
                }
            }
            Weights::Fp4 { kind, codes, scales } => Weights::Fp4 {
                kind,
                codes: cut(codes, self.cols / 2),
                scales: cut(scales, self.cols / kind.group()),
            },
            Weights::Super { kind, blocks } => {
                Weights::Super { kind, blocks: cut(blocks, self.cols / SUPER * kind.block_bytes()) }
            }
        };
        Matrix { rows: range.len(), cols: self.cols, weights }
    }

    /// The integer form, if the weights are quantised.
    pub(crate) fn quantized(&self) -> Option<Quantized<'a>> {
        let cols = self.cols;
        match self.weights {
            Weights::Float { .. } => None,
            Weights::Affine { bits, group, scale, symmetric, codes, scales, biases } => {
                let coding = Coding::Affine { bits, symmetric };
                let scales = Scales::Stored { format: ScaleFormat::Affine(scale), scales, biases };
                Some(Quantized { cols, group, coding, scales, codes })
            }
            Weights::Fp4 { kind, codes, scales } => {
                let scales = Scales::Stored { format: ScaleFormat::Fp4(kind), scales, biases: &[] };
                Some(Quantized { cols, group: kind.group(), coding: Coding::Fp4, scales, codes })
            }
            Weights::Super { kind, blocks } => {
                let group = super_group(kind)?;
                Some(Quantized {
                    cols,
                    group,
                    coding: Coding::Super(kind),
                    scales: Scales::InBlocks,
                    codes: blocks,
                })
            }
        }
    }
}

/// A quantised matrix in the one form that the integer kernels know: unsigned codes `q`, and per group a scale `s` and
/// a bias `b`, element `q·s + b`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quantized<'a> {
    pub cols: usize,
    /// Elements per scale.
    pub group: usize,
    pub coding: Coding,
    pub scales: Scales<'a>,
    /// Packed codes, or whole super-blocks.
    pub codes: &'a [u8],
}

/// Where scales and biases are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scales<'a> {
    /// In regions of their own, one per group.
    Stored {
        format: ScaleFormat,
        scales: &'a [u8],
        /// Empty where the bias follows from the scale.
        biases: &'a [u8],
    },
    /// In the super-blocks.
    InBlocks,
}

/// How stored codes become `q`, and `b` follows from the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// The codes themselves.
    Affine {
        /// Bits per code.
        bits: u32,
        /// `b = -2^(bits-1)·s`.
        symmetric: bool,
    },
    /// Doubled E2M1 values plus 12, so `s` is half the stored scale and `b = -12·s`.
    Fp4,
    /// In K-quant super-blocks, at most 63.
    Super(GgmlType),
}

/// How stored scales are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleFormat {
    Affine(ScaleDtype),
    Fp4(Fp4),
}

/// `q` of each E2M1 code: 12 plus twice its value.
pub(crate) const FP4_CODES: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

impl<'a> Quantized<'a> {
    /// Columns per activation block.
    pub fn block(&self) -> usize {
        self.group.min(64)
    }

    /// Super-block `index` of row `row`.
    pub fn super_block(&self, row: usize, index: usize) -> &'a [u8] {
        let bytes = self.row_bytes() / (self.cols / SUPER);
        &self.row(row)[index * bytes..][..bytes]
    }

    /// Scales per row.
    #[inline(always)]
    pub fn groups(&self) -> usize {
        self.cols / self.group
    }

    /// Whether codes can be larger than 63.
    #[inline(always)]
    pub fn is_wide(&self) -> bool {
        matches!(self.coding, Coding::Affine { bits: 8, .. })
    }

    /// Packed bits per code; of super-blocks, scales included, rounded down.
    #[inline(always)]
    pub fn bits(&self) -> usize {
        match self.coding {
            Coding::Affine { bits, .. } => bits as usize,
            Coding::Fp4 => 4,
            Coding::Super(kind) => kind.block_bytes() * 8 / SUPER,
        }
    }

    /// Bytes of the packed codes of one row.
    #[inline(always)]
    pub fn row_bytes(&self) -> usize {
        match self.coding {
            Coding::Super(kind) => self.cols / SUPER * kind.block_bytes(),
            _ => self.cols / 8 * self.bits(),
        }
    }

    /// Packed codes of one row.
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.codes[row * self.row_bytes()..][..self.row_bytes()]
    }

    /// `b / s` where biases are not stored.
    pub fn bias_factor(&self) -> Option<f32> {
        match self.coding {
            Coding::Affine { symmetric: false, .. } | Coding::Super(_) => None,
            Coding::Affine { bits, symmetric: true } => Some(-((1u32 << (bits - 1)) as f32)),
            Coding::Fp4 => Some(-12.0),
        }
    }

    /// `s` and `b` of group `group` of row `row`.
    pub fn scale_and_bias(&self, row: usize, group: usize) -> (f32, f32) {
        match (self.scales, self.coding) {
            (Scales::Stored { format, scales, biases }, _) => {
                let index = row * self.groups() + group;
                let s = format.get(scales, index);
                (s, self.bias_factor().map_or_else(|| format.get(biases, index), |factor| factor * s))
            }
            (Scales::InBlocks, Coding::Super(kind)) => {
                let per_block = SUPER / self.group;
                let (mut scales, mut biases) = ([0.0; 16], [0.0; 16]);
                super_scales(kind, self.super_block(row, group / per_block), &mut scales, &mut biases);
                (scales[group % per_block], biases[group % per_block])
            }
            (Scales::InBlocks, _) => unreachable!("only super-blocks hold scales"),
        }
    }
}

/// Values of the one-byte scale formats by their byte.
struct ByteScales {
    e8m0: [f32; 256],
    e4m3: [f32; 256],
    mx: [f32; 256],
    nv: [f32; 256],
}

static BYTE_SCALES: LazyLock<ByteScales> = LazyLock::new(|| {
    let bytes: [u8; 256] = std::array::from_fn(|byte| byte as u8);
    let affine = |dtype: ScaleDtype| {
        let mut values = [0.0; 256];
        // One byte per value, so the lengths agree.
        let decoded = dtype.decode(&bytes, &mut values);
        debug_assert!(decoded.is_ok());
        values
    };
    ByteScales {
        e8m0: affine(ScaleDtype::E8m0),
        e4m3: affine(ScaleDtype::E4m3),
        mx: bytes.map(|byte| Fp4::Mx.scale(byte) * 0.5),
        nv: bytes.map(|byte| Fp4::Nv.scale(byte) * 0.5),
    }
});

/// How to read a scale region.
pub(crate) enum ScaleReader {
    F16,
    Bf16,
    /// One byte per scale, by table.
    Table(&'static [f32; 256]),
}

impl ScaleFormat {
    /// The way to read a region of this format.
    pub fn reader(self) -> ScaleReader {
        match self {
            ScaleFormat::Affine(ScaleDtype::F16) => ScaleReader::F16,
            ScaleFormat::Affine(ScaleDtype::Bf16) => ScaleReader::Bf16,
            ScaleFormat::Affine(ScaleDtype::E8m0) => ScaleReader::Table(&BYTE_SCALES.e8m0),
            ScaleFormat::Affine(ScaleDtype::E4m3) => ScaleReader::Table(&BYTE_SCALES.e4m3),
            ScaleFormat::Fp4(Fp4::Mx) => ScaleReader::Table(&BYTE_SCALES.mx),
            ScaleFormat::Fp4(Fp4::Nv) => ScaleReader::Table(&BYTE_SCALES.nv),
        }
    }

    /// `s` at position `index` of a region (or a stored bias, which is read alike).
    pub fn get(self, region: &[u8], index: usize) -> f32 {
        match self.reader() {
            ScaleReader::F16 => f16::from_le_bytes(region.as_chunks().0[index]).to_f32(),
            ScaleReader::Bf16 => bf16::from_le_bytes(region.as_chunks().0[index]).to_f32(),
            ScaleReader::Table(values) => values[usize::from(region[index])],
        }
    }
}
