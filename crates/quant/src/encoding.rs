//! How one tensor's payload is laid out: sizes of its regions, decoding of any range, encoding.

use crate::affine::{Affine, Payload};
use crate::{Dtype, FloatDtype, Fp4, GgmlType, QuantError, ScaleDtype, float, ggml};

/// The layout of one tensor's payload: codes, then scales, then biases, as far as they exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Plain little-endian floats, row-major.
    Float(FloatDtype),
    /// Unsigned codes with a scale and (asymmetric) a bias per group of the flattened tensor.
    Affine {
        /// Bits per code: 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Elements per scale, a positive multiple of 8.
        group: usize,
        /// Format of scales and biases.
        scale: ScaleDtype,
        /// `(code - 2^(bits-1))·scale` without biases, instead of `code·scale + bias`.
        symmetric: bool,
    },
    /// MXFP4 or NVFP4.
    Fp4(Fp4),
    /// ggml super-blocks byte for byte (`gguf_super`): Q4_K, Q5_K or Q6_K.
    Super(GgmlType),
}

/// Byte lengths of a payload's regions, in payload order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Regions {
    /// Packed codes; for floats and super-blocks the whole payload.
    pub codes: u64,
    /// Scales, one per group.
    pub scales: u64,
    /// Biases, one per group; zero unless affine and asymmetric.
    pub biases: u64,
}

impl Regions {
    /// Length of the whole payload; `None` if it overflows.
    pub fn total(&self) -> Option<u64> {
        self.codes.checked_add(self.scales)?.checked_add(self.biases)
    }
}

impl Encoding {
    /// The tensor dtype under which the container stores this encoding; `None` for parameters that do not exist
    /// (an affine width or super-block type outside the lists above).
    pub fn dtype(&self) -> Option<Dtype> {
        match self {
            Encoding::Float(float) => Some(float.dtype()),
            Encoding::Affine { bits, .. } => Dtype::from_affine_bits(*bits),
            Encoding::Fp4(fp4) => Some(fp4.dtype()),
            Encoding::Super(GgmlType::Q4K) => Some(Dtype::BaseQ4),
            Encoding::Super(GgmlType::Q5K) => Some(Dtype::BaseQ5),
            Encoding::Super(GgmlType::Q6K) => Some(Dtype::BaseQ6),
            Encoding::Super(_) => None,
        }
    }

    /// Elements per scale or block; 1 for floats.
    pub fn group(&self) -> usize {
        match self {
            Encoding::Float(_) => 1,
            Encoding::Affine { group, .. } => *group,
            Encoding::Fp4(fp4) => fp4.group(),
            Encoding::Super(ty) => ty.block_size(),
        }
    }

    /// Byte lengths of the regions of a tensor of `elements` elements.
    ///
    /// # Errors
    /// If the parameters do not exist, the elements do not divide into groups, or a length overflows.
    pub fn regions(&self, elements: u64) -> Result<Regions, QuantError> {
        let name = self.check()?;
        let too_large = QuantError::TooLarge { elements, encoding: name };
        let group = self.group() as u64;
        if !elements.is_multiple_of(group) {
            return Err(QuantError::Elements { elements, encoding: name, unit: group });
        }
        let groups = elements / group;
        let (codes_per_group, scales_per_group, biases_per_group) = match *self {
            Encoding::Float(float) => (float.bytes(), 0, 0),
            Encoding::Affine { bits, group, scale, symmetric } => {
                let bias = if symmetric { 0 } else { scale.bytes() };
                (group / 8 * bits as usize, scale.bytes(), bias)
            }
            Encoding::Fp4(fp4) => (fp4.group() / 2, 1, 0),
            Encoding::Super(ty) => (ty.block_bytes(), 0, 0),
        };
        let region = |per_group: usize| groups.checked_mul(per_group as u64).ok_or(too_large.clone());
        let regions = Regions {
            codes: region(codes_per_group)?,
            scales: region(scales_per_group)?,
            biases: region(biases_per_group)?,
        };
        regions.total().map(|_| regions).ok_or(too_large)
    }

    /// Byte length of the whole payload of a tensor of `elements` elements.
    ///
    /// # Errors
    /// As [`Encoding::regions`].
    pub fn payload_len(&self, elements: u64) -> Result<u64, QuantError> {
        let regions = self.regions(elements)?;
        Ok(regions.codes + regions.scales + regions.biases)
    }

    /// Decodes elements `first..first + out.len()` of a tensor of `elements` elements (flat, row-major). The range
    /// may start and end anywhere, also inside a group; groups may straddle rows.
    ///
    /// # Errors
    /// If `payload` is not the payload's exact length or the range is not inside the tensor.
    pub fn decode(
        &self,
        payload: &[u8],
        elements: usize,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), QuantError> {
        let regions = self.regions(elements as u64)?;
        let expected = regions.codes + regions.scales + regions.biases;
        if payload.len() as u64 != expected {
            return Err(QuantError::Length {
                what: "payload (bytes)",
                expected,
                found: payload.len() as u64,
            });
        }
        if first.checked_add(out.len()).is_none_or(|end| end > elements) {
            return Err(QuantError::Range { first, count: out.len(), elements });
        }
        // The three lengths sum to the length of a slice, so each fits usize.
        let (codes, rest) = payload.split_at(regions.codes as usize);
        let (scales, biases) = rest.split_at(regions.scales as usize);
        match *self {
            Encoding::Float(float) => {
                let start = first * float.bytes();
                float::decode(float, &codes[start..start + out.len() * float.bytes()], out)
            }
            Encoding::Affine { bits, group, scale, symmetric } => {
                Affine { bits, group, scale, symmetric }.decode(Payload { codes, scales, biases }, first, out)
            }
            Encoding::Fp4(fp4) => {
                fp4.decode(codes, scales, first, out);
                Ok(())
            }
            Encoding::Super(ty) => ggml::decode_range(ty, codes, first, out),
        }
    }

    /// Encodes a whole tensor (flat, row-major) and appends its payload; on error `out` is as before.
    ///
    /// Floats round to nearest even. Affine groups take their range from minimum to maximum (symmetric: from the
    /// largest magnitude), round scale and bias to the scale dtype first and then the codes against those, halves
    /// away from zero. A group whose scale underflows to zero decodes to its bias. FP4 groups map their largest
    /// magnitude to 6.
    ///
    /// # Errors
    /// If the elements do not divide into groups, a value is NaN or infinite or does not fit the float type, a
    /// scale or bias does not fit the scale dtype, biases would lose their sign (e8m0), or the encoding is
    /// pass-through only.
    pub fn encode(&self, values: &[f32], out: &mut Vec<u8>) -> Result<(), QuantError> {
        let length = self.payload_len(values.len() as u64)?;
        if let Some(index) = first_non_finite(values) {
            return Err(QuantError::NonFinite { index, value: values[index] });
        }
        let start = out.len();
        out.reserve(usize::try_from(length).unwrap_or(0));
        let result = match *self {
            Encoding::Float(float) => encode_float(float, values, out),
            Encoding::Affine { scale: ScaleDtype::E8m0, symmetric: false, .. } => {
                Err(QuantError::UnsignedBias)
            }
            Encoding::Affine { bits, group, scale, symmetric } => {
                Affine { bits, group, scale, symmetric }.encode(values, out)
            }
            Encoding::Fp4(fp4) => fp4.encode(values, out),
            Encoding::Super(ty) => Err(QuantError::NotEncodable(ty.name())),
        };
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    /// Checks the parameters and names the encoding.
    fn check(&self) -> Result<&'static str, QuantError> {
        match (self, self.dtype()) {
            (Encoding::Affine { bits, .. }, None) => Err(QuantError::Bits(*bits)),
            (Encoding::Affine { group, .. }, _) if *group == 0 || !group.is_multiple_of(8) => {
                Err(QuantError::Group(*group))
            }
            (Encoding::Super(ty), None) => Err(QuantError::NotSuperBlock(ty.name())),
            (Encoding::Super(ty), Some(_)) => Ok(ty.name()),
            (_, dtype) => Ok(dtype.map_or("", Dtype::name)),
        }
    }
}

/// Index of the first value that is NaN or infinite. Looks at blocks without stopping inside, which is several times
/// faster than at each value.
fn first_non_finite(values: &[f32]) -> Option<usize> {
    let is_bad = |value: &f32| !value.is_finite();
    let mut blocks = values.chunks(64).enumerate();
    let (block, _) =
        blocks.find(|(_, values)| values.iter().fold(false, |bad, value| bad | is_bad(value)))?;
    let start = block * 64;
    values[start..].iter().position(is_bad).map(|index| start + index)
}

fn encode_float(dtype: FloatDtype, values: &[f32], out: &mut Vec<u8>) -> Result<(), QuantError> {
    let bound = float::overflow_bound(dtype);
    if let Some(index) = values.iter().position(|value| value.abs() >= bound) {
        return Err(QuantError::FloatRange { index, value: values[index], dtype });
    }
    float::encode(dtype, values, out);
    Ok(())
}
