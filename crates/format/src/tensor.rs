//! One entry of the tensor list, and what its fields say about the payload.

use basert_quant::{Dtype, Encoding, Fp4, GgmlType, QuantError, Regions, ScaleDtype};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{ComputeRegion, Layout, PlannedTensor, Residency, TensorFlags, TensorProblem};

/// A tensor as the header describes it.
///
/// The payload is packed codes, then scales, then biases, without gaps. `offset` counts from blob start;
/// `scale_offset` and `bias_offset` count from this tensor's own `offset`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Canonical name.
    pub name: String,
    #[serde(rename = "dtype")]
    stored_dtype: StoredDtype,
    /// Row-major shape, innermost dimension last: a linear weight is `[out, in]`. In files that the original
    /// converter made from GGUF it is reversed; [`crate::TensorView::shape`] is always row-major.
    pub shape: Vec<u64>,
    /// Start of the payload, in bytes from blob start.
    pub offset: u64,
    /// Bytes of the whole payload.
    pub length: u64,
    /// Start of the scales = bytes of packed codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_offset: Option<u64>,
    /// Bytes of the scales.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_length: Option<u64>,
    /// Start of the biases; absent makes an affine tensor symmetric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias_offset: Option<u64>,
    /// Bytes of the biases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias_length: Option<u64>,
    /// Reserved; refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awq_scale_offset: Option<u64>,
    /// Reserved; refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awq_scale_length: Option<u64>,
    /// Elements per scale, counted over the flattened tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_size: Option<u32>,
    /// Number format of scales and biases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_dtype: Option<ScaleDtype>,
    /// Whether codes are centred and have no bias.
    #[serde(default, skip_serializing_if = "is_false")]
    pub symmetric: bool,
    /// Arrangement of the codes; absent means plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// How soon the tensor is needed.
    #[serde(default)]
    pub residency: Residency,
    /// Where the tensor is meant to be used.
    #[serde(default, skip_serializing_if = "is_gpu")]
    pub compute_region: ComputeRegion,
    /// Flags.
    #[serde(default, skip_serializing_if = "TensorFlags::is_empty")]
    pub flags: TensorFlags,
    /// xxHash64 (seed 0) of the whole payload.
    pub checksum_xxh64: u64,
    /// ggml type number of `gguf_super` payloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ggml_type: Option<u32>,
}

/// A dtype and whether it was spelled as early files do (`base4`, `base8`), which have no `scale_dtype` and
/// f16 scales.
#[derive(Debug, Clone, Copy, PartialEq)]
struct StoredDtype {
    dtype: Dtype,
    early: bool,
}

impl Serialize for StoredDtype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.dtype.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StoredDtype {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StoredDtype, D::Error> {
        let name = String::deserialize(deserializer)?;
        let dtype = name.parse().map_err(serde::de::Error::custom)?;
        Ok(StoredDtype { dtype, early: matches!(name.as_str(), "base4" | "base8") })
    }
}

/// The superblocks that `gguf_super` tensors may hold.
const SUPER_BLOCKS: [GgmlType; 3] = [GgmlType::Q4K, GgmlType::Q5K, GgmlType::Q6K];

impl TensorEntry {
    /// The dtype of the codes or elements.
    pub fn dtype(&self) -> Dtype {
        self.stored_dtype.dtype
    }

    /// Number of elements: the product of `shape`, 1 for a scalar, 0 if any dimension is 0.
    ///
    /// # Errors
    /// If it does not fit 64 bits.
    pub fn elements(&self) -> Result<u64, TensorProblem> {
        elements(&self.shape)
    }

    /// How the payload is laid out.
    ///
    /// # Errors
    /// If fields that the dtype needs are missing or contradict it, or the layout is unknown.
    pub fn encoding(&self) -> Result<Encoding, TensorProblem> {
        if self.awq_scale_offset.is_some() || self.awq_scale_length.is_some() {
            return Err(TensorProblem::Awq);
        }
        match self.layout {
            Some(Layout::GgufSuper) => return self.super_encoding(),
            Some(layout) if !layout.is_plain() => return Err(TensorProblem::Layout(layout)),
            _ => {}
        }
        let dtype = self.dtype();
        if let Some(float) = dtype.float() {
            return Ok(Encoding::Float(float));
        }
        if let Some(fp4) = dtype.fp4() {
            return self.fp4_encoding(fp4);
        }
        let scale = match self.scale_dtype {
            Some(scale) => scale,
            None if self.stored_dtype.early => ScaleDtype::F16,
            None => return Err(TensorProblem::Missing { field: "scale_dtype", dtype }),
        };
        let group = self.group_size.ok_or(TensorProblem::Missing { field: "group_size", dtype })?;
        Ok(Encoding::Affine {
            bits: dtype.bits(),
            group: group as usize,
            scale,
            symmetric: self.symmetric || self.bias_offset.is_none(),
        })
    }

    fn fp4_encoding(&self, fp4: Fp4) -> Result<Encoding, TensorProblem> {
        self.expect_group(fp4.group())?;
        let expected = fp4_scale(fp4);
        match self.scale_dtype {
            Some(found) if found != expected => {
                Err(TensorProblem::ScaleDtype { found, dtype: self.dtype(), expected })
            }
            _ => Ok(Encoding::Fp4(fp4)),
        }
    }

    fn super_encoding(&self) -> Result<Encoding, TensorProblem> {
        let dtype = self.dtype();
        let block = SUPER_BLOCKS.into_iter().find(|block| Encoding::Super(*block).dtype() == Some(dtype));
        let block = block.ok_or(TensorProblem::SuperDtype(dtype))?;
        self.expect_group(block.block_size())?;
        match self.source_ggml_type {
            Some(found) if found == block.id() => Ok(Encoding::Super(block)),
            Some(found) => Err(value("source_ggml_type", u64::from(found), u64::from(block.id()))),
            None => Err(TensorProblem::Missing { field: "source_ggml_type", dtype }),
        }
    }

    /// A group size that the encoding fixes may be left out, but not differ.
    fn expect_group(&self, expected: usize) -> Result<(), TensorProblem> {
        match self.group_size {
            Some(found) if found as usize != expected => {
                Err(value("group_size", u64::from(found), expected as u64))
            }
            _ => Ok(()),
        }
    }

    /// Checks the entry against itself: flags, encoding, and every length and offset inside the payload.
    /// Whether the payload is inside the file is not known here.
    ///
    /// # Errors
    /// The first contradiction found.
    pub(crate) fn check(&self) -> Result<Encoding, TensorProblem> {
        self.check_flags()?;
        let encoding = self.encoding()?;
        let elements = self.elements()?;
        let expected = inner_offsets(&encoding, &encoding.regions(elements)?);
        let found = [self.scale_offset, self.scale_length, self.bias_offset, self.bias_length];
        for ((field, found), expected) in INNER_FIELDS.into_iter().zip(found).zip(expected) {
            match (found, expected) {
                (Some(found), Some(expected)) if found != expected => {
                    return Err(value(field, found, expected));
                }
                (None, Some(_)) => return Err(TensorProblem::Missing { field, dtype: self.dtype() }),
                (Some(_), None) => {
                    return Err(TensorProblem::Unexpected { field, encoding: describe(&encoding) });
                }
                _ => {}
            }
        }
        match encoding.payload_len(elements)? {
            expected if self.length != expected => Err(value("length", self.length, expected)),
            _ => Ok(encoding),
        }
    }

    fn check_flags(&self) -> Result<(), TensorProblem> {
        let (dtype, region) = (self.dtype(), self.compute_region);
        if self.flags.contains(TensorFlags::TRANSPOSED) {
            return Err(TensorProblem::Transposed);
        }
        let at_home = dtype == Dtype::F32 && region == ComputeRegion::Cpu;
        if self.flags.contains(TensorFlags::SSM_A_MATRIX) && !at_home {
            return Err(TensorProblem::SsmAMatrix { dtype, region });
        }
        Ok(())
    }

    /// The entry of a tensor that is to be written, at offset 0 and with the longest checksum there is.
    ///
    /// # Errors
    /// If shape and encoding do not fit together.
    pub(crate) fn planned(plan: &PlannedTensor) -> Result<TensorEntry, TensorProblem> {
        let encoding = &plan.encoding;
        let dtype = encoding.dtype().ok_or(TensorProblem::NoDtype)?;
        let elements = elements(&plan.shape)?;
        let regions = encoding.regions(elements)?;
        let [scale_offset, scale_length, bias_offset, bias_length] = inner_offsets(encoding, &regions);
        let (group, scale_dtype, block) = match *encoding {
            Encoding::Float(_) => (None, None, None),
            Encoding::Affine { group, scale, .. } => (Some(group), Some(scale), None),
            Encoding::Fp4(fp4) => (Some(fp4.group()), Some(fp4_scale(fp4)), None),
            Encoding::Super(block) => (Some(block.block_size()), None, Some(block)),
        };
        let as_u32 = |group: usize| u32::try_from(group).map_err(|_| QuantError::Group(group));
        Ok(TensorEntry {
            name: plan.name.clone(),
            stored_dtype: StoredDtype { dtype, early: false },
            shape: plan.shape.clone(),
            offset: 0,
            length: encoding.payload_len(elements)?,
            scale_offset,
            scale_length,
            bias_offset,
            bias_length,
            awq_scale_offset: None,
            awq_scale_length: None,
            group_size: group.map(as_u32).transpose()?,
            scale_dtype,
            symmetric: matches!(encoding, Encoding::Affine { symmetric: true, .. }),
            layout: block.map(|_| Layout::GgufSuper),
            residency: plan.residency,
            compute_region: plan.region,
            flags: plan.flags,
            checksum_xxh64: u64::MAX,
            source_ggml_type: block.map(GgmlType::id),
        })
    }
}

const INNER_FIELDS: [&str; 4] = ["scale_offset", "scale_length", "bias_offset", "bias_length"];

/// The values that [`INNER_FIELDS`] must have; `None` where the encoding has no such region.
fn inner_offsets(encoding: &Encoding, regions: &Regions) -> [Option<u64>; 4] {
    let scales = [Some(regions.codes), Some(regions.scales)];
    let (scales, biases) = match encoding {
        Encoding::Float(_) | Encoding::Super(_) => ([None; 2], [None; 2]),
        Encoding::Fp4(_) | Encoding::Affine { symmetric: true, .. } => (scales, [None; 2]),
        Encoding::Affine { symmetric: false, .. } => {
            // Cannot overflow: the sum of all three regions fits.
            (scales, [Some(regions.codes + regions.scales), Some(regions.biases)])
        }
    };
    [scales[0], scales[1], biases[0], biases[1]]
}

/// The scale dtype that the format writes for FP4 tensors.
fn fp4_scale(fp4: Fp4) -> ScaleDtype {
    match fp4 {
        Fp4::Mx => ScaleDtype::E8m0,
        Fp4::Nv => ScaleDtype::E4m3,
    }
}

/// Product of the dimensions. A zero anywhere makes it zero, whatever the others would overflow to.
fn elements(shape: &[u64]) -> Result<u64, TensorProblem> {
    if shape.contains(&0) {
        return Ok(0);
    }
    let product = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
    product.ok_or_else(|| TensorProblem::Shape(shape.to_vec()))
}

fn value(field: &'static str, found: u64, expected: u64) -> TensorProblem {
    TensorProblem::Value { field, found, expected }
}

fn describe(encoding: &Encoding) -> &'static str {
    match encoding {
        Encoding::Float(_) => "a float tensor",
        Encoding::Affine { .. } => "a symmetric tensor",
        Encoding::Fp4(_) => "an FP4 tensor",
        Encoding::Super(_) => "a gguf_super tensor",
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_gpu(region: &ComputeRegion) -> bool {
    *region == ComputeRegion::Gpu
}
