//! A quantised MLX module: what its arrays and `config.json` say about its codes, and whether they agree.
//!
//! The arrays decide: a module is quantised if and only if it has scales, and with the model's own width known,
//! bits and group follow from their lengths. What `config.json` declares must agree.

use std::ops::Range;

use basert_quant::{Encoding, FloatDtype, Mlx, MlxArrays, QuantError, float};

use super::tensor::{RegionsMut, scale_float, slice};

/// How `config.json` says a module is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    /// Bits per code.
    pub bits: usize,
    /// Elements per scale.
    pub group: usize,
    /// The quantiser.
    pub mode: Mode,
}

/// MLX's quantisers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Affine,
    MxFp4,
    NvFp4,
    MxFp8,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 4] = [Mode::Affine, Mode::MxFp4, Mode::NvFp4, Mode::MxFp8];

    /// MLX's name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::MxFp4 => "mxfp4",
            Mode::NvFp4 => "nvfp4",
            Mode::MxFp8 => "mxfp8",
        }
    }
}

/// Codes, scales and biases of one module.
#[derive(Clone, Debug)]
pub(crate) struct Module<'a> {
    /// The arrays.
    pub arrays: MlxArrays<'a>,
    /// Type of scales and biases; `None` for the bytes of the small-float modes.
    pub scale: Option<FloatDtype>,
    /// 32-bit words of codes in a row.
    pub words: usize,
    /// Scales in a row.
    pub scales: usize,
    /// What `config.json` says, if it says anything.
    pub declared: Option<Declared>,
    /// Settled by [`Module::settle`].
    pub layout: Option<Mlx>,
}

impl Module<'_> {
    /// Finds out how rows of `width` elements are stored; `None` takes the width that the declaration implies.
    /// Returns the width.
    ///
    /// # Errors
    /// A sentence if arrays, declaration and width contradict each other.
    pub fn settle(&mut self, width: Option<usize>) -> Result<usize, String> {
        let bits = self.words.saturating_mul(32);
        let width = match (width, self.declared) {
            (Some(width), _) => width,
            (None, Some(declared)) => bits / declared.bits.max(1),
            (None, None) => return Err("config.json does not say how it is quantised".to_owned()),
        };
        let found = Declared {
            bits: bits.checked_div(width).unwrap_or(0),
            group: width.checked_div(self.scales).unwrap_or(0),
            mode: self.mode(bits, width),
        };
        let declared = self.declared.unwrap_or(found);
        if declared.bits.checked_mul(width) != Some(bits) {
            return Err(format!(
                "{} words a row do not hold {width} features in {} bits, group {}; 32 bits a word give {} bits a feature",
                self.words,
                declared.bits,
                declared.group,
                decimal(bits, width),
            ));
        }
        if declared.group.checked_mul(self.scales) != Some(width) {
            return Err(format!(
                "{} scales a row do not cover {width} features in groups of {} ({} bits, {} words)",
                self.scales, declared.group, declared.bits, self.words
            ));
        }
        let layout = self.layout(declared)?;
        self.layout = Some(layout);
        Ok(width)
    }

    /// The mode that the arrays show.
    fn mode(&self, bits: usize, width: usize) -> Mode {
        match (self.scale, bits.checked_div(width), width.checked_div(self.scales)) {
            (Some(_), ..) => Mode::Affine,
            (None, Some(8), _) => Mode::MxFp8,
            (None, _, Some(16)) => Mode::NvFp4,
            (None, ..) => Mode::MxFp4,
        }
    }

    fn layout(&self, Declared { bits, group, mode }: Declared) -> Result<Mlx, String> {
        let layout = match (mode, self.scale) {
            (Mode::Affine, Some(scale)) if matches!(bits, 2..=6 | 8) && matches!(group, 32 | 64 | 128) => {
                Mlx::Affine { bits: bits as u32, group, scale }
            }
            (Mode::MxFp4, None) if (bits, group) == (4, 32) => Mlx::MxFp4,
            (Mode::NvFp4, None) if (bits, group) == (4, 16) => Mlx::NvFp4,
            (Mode::MxFp8, None) if (bits, group) == (8, 32) => Mlx::MxFp8,
            _ => {
                let scales = self.scale.map_or("8-bit".to_owned(), |scale| scale.to_string());
                return Err(format!(
                    "mode {} with {bits} bits, group {group} and {scales} scales does not exist",
                    mode.name()
                ));
            }
        };
        let has_biases = !self.arrays.biases.is_empty();
        if has_biases != (mode == Mode::Affine) {
            let what = if has_biases { "must not have" } else { "must have" };
            return Err(format!("mode {} {what} `.biases`", mode.name()));
        }
        Ok(layout)
    }

    /// See [`super::SourceTensor::exact_encoding`].
    pub fn exact_encoding(&self, look: bool) -> Option<Encoding> {
        let layout = self.layout?;
        let MlxArrays { scales, biases, .. } = self.arrays;
        if !look && self.scale == Some(FloatDtype::F32) {
            return None;
        }
        if look { layout.exact_encoding(scales, biases) } else { layout.exact_encoding(&[], &[]) }
    }

    /// Whether scales are stored as `scale` already.
    pub fn has_scales_of(&self, scale: basert_quant::ScaleDtype) -> bool {
        self.scale.is_some() && self.scale == scale_float(scale)
    }

    /// See [`super::SourceTensor::decode_rows`].
    pub fn decode_rows(&self, row: usize, width: usize, out: &mut [f32]) -> Result<(), QuantError> {
        let Some(layout) = self.layout else { return Err(QuantError::UnsupportedGgmlType("MLX")) };
        layout.decode(self.rows(row, out.len() / width.max(1))?, out)
    }

    /// See [`super::SourceTensor::repack_rows`].
    pub fn repack_rows(
        &self,
        row: usize,
        rows: usize,
        encoding: Encoding,
        out: RegionsMut<'_>,
    ) -> Result<(), QuantError> {
        let arrays = self.rows(row, rows)?;
        copy("codes (bytes)", arrays.codes, out.codes)?;
        if self.scale != Some(FloatDtype::F32) {
            copy("scales (bytes)", arrays.scales, out.scales)?;
            return copy("biases (bytes)", arrays.biases, out.biases);
        }
        // Every value was found to be one of the narrower type, so either rounding is none.
        let Encoding::Affine { scale, .. } = encoding else { return Err(QuantError::NotEncodable("MLX")) };
        for (source, out) in [(arrays.scales, out.scales), (arrays.biases, out.biases)] {
            let mut values = vec![0.0; source.len() / 4];
            float::decode(FloatDtype::F32, source, &mut values)?;
            let mut stored = Vec::with_capacity(out.len());
            values.into_iter().for_each(|value| {
                scale.encode(value, &mut stored);
            });
            copy("scales (bytes)", &stored, out)?;
        }
        Ok(())
    }

    /// See [`super::SourceTensor::row_bytes`].
    pub fn row_bytes(&self, rows: Range<usize>) -> [&[u8]; 3] {
        self.rows(rows.start, rows.len())
            .map_or([&[]; 3], |arrays| [arrays.codes, arrays.scales, arrays.biases])
    }

    fn rows(&self, row: usize, rows: usize) -> Result<MlxArrays<'_>, QuantError> {
        let (codes, scales) = (self.words * 4, self.scales * self.scale.map_or(1, FloatDtype::bytes));
        let biases = if self.arrays.biases.is_empty() { 0 } else { scales };
        Ok(MlxArrays {
            codes: slice("codes (bytes)", self.arrays.codes, row * codes, rows * codes)?,
            scales: slice("scales (bytes)", self.arrays.scales, row * scales, rows * scales)?,
            biases: slice("biases (bytes)", self.arrays.biases, row * biases, rows * biases)?,
        })
    }

    /// See [`super::SourceTensor::describe`].
    pub fn describe(&self) -> String {
        self.layout.map_or_else(|| "mlx".to_owned(), |layout| layout.to_string())
    }
}

fn copy(what: &'static str, source: &[u8], out: &mut [u8]) -> Result<(), QuantError> {
    if source.len() != out.len() {
        return Err(QuantError::Length { what, expected: out.len() as u64, found: source.len() as u64 });
    }
    out.copy_from_slice(source);
    Ok(())
}

/// A quotient with at most two decimals.
fn decimal(numerator: usize, denominator: usize) -> String {
    let quotient = format!("{:.2}", numerator as f64 / denominator.max(1) as f64);
    quotient.trim_end_matches('0').trim_end_matches('.').to_owned()
}
