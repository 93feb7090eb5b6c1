//! The tensor dtypes of the `.base` container and their exact spellings.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::QuantError;

/// A tensor's dtype as written in a `.base` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dtype {
    /// 2-bit affine codes.
    #[serde(rename = "base_q2")]
    BaseQ2,
    /// 3-bit affine codes.
    #[serde(rename = "base_q3")]
    BaseQ3,
    /// 4-bit affine codes. Early files spell it `base4`.
    #[serde(rename = "base_q4", alias = "base4")]
    BaseQ4,
    /// 5-bit affine codes.
    #[serde(rename = "base_q5")]
    BaseQ5,
    /// 6-bit affine codes.
    #[serde(rename = "base_q6")]
    BaseQ6,
    /// 8-bit affine codes (unsigned). Early files spell it `base8`.
    #[serde(rename = "base_q8", alias = "base8")]
    BaseQ8,
    /// bfloat16.
    #[serde(rename = "bf16")]
    Bf16,
    /// IEEE binary16.
    #[serde(rename = "f16")]
    F16,
    /// IEEE binary32.
    #[serde(rename = "f32")]
    F32,
    /// OCP MXFP4: groups of 32 E2M1 codes under one power-of-two scale.
    #[serde(rename = "mxfp4")]
    MxFp4,
    /// NVFP4: groups of 16 E2M1 codes under one 8-bit float scale.
    #[serde(rename = "nvfp4")]
    NvFp4,
}

impl Dtype {
    /// Every dtype, narrow to wide within its kind.
    pub const ALL: [Dtype; 11] = [
        Dtype::BaseQ2,
        Dtype::BaseQ3,
        Dtype::BaseQ4,
        Dtype::BaseQ5,
        Dtype::BaseQ6,
        Dtype::BaseQ8,
        Dtype::Bf16,
        Dtype::F16,
        Dtype::F32,
        Dtype::MxFp4,
        Dtype::NvFp4,
    ];

    /// Bits of one stored element, scales and biases not counted.
    pub fn bits(self) -> u32 {
        match self {
            Dtype::BaseQ2 => 2,
            Dtype::BaseQ3 => 3,
            Dtype::BaseQ4 | Dtype::MxFp4 | Dtype::NvFp4 => 4,
            Dtype::BaseQ5 => 5,
            Dtype::BaseQ6 => 6,
            Dtype::BaseQ8 => 8,
            Dtype::Bf16 | Dtype::F16 => 16,
            Dtype::F32 => 32,
        }
    }

    /// The affine dtype with codes of `bits` bits.
    pub fn from_affine_bits(bits: u32) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| dtype.is_affine() && dtype.bits() == bits)
    }

    /// Whether elements are codes with a scale (and bias) per group: `base_q2` to `base_q8`.
    pub fn is_affine(self) -> bool {
        self.fp4().is_none() && !self.is_float()
    }

    /// Whether elements are plain floats.
    pub fn is_float(self) -> bool {
        self.float().is_some()
    }

    /// The plain float type, if it is one.
    pub fn float(self) -> Option<FloatDtype> {
        match self {
            Dtype::Bf16 => Some(FloatDtype::Bf16),
            Dtype::F16 => Some(FloatDtype::F16),
            Dtype::F32 => Some(FloatDtype::F32),
            _ => None,
        }
    }

    /// The FP4 kind, if it is one.
    pub fn fp4(self) -> Option<Fp4> {
        match self {
            Dtype::MxFp4 => Some(Fp4::Mx),
            Dtype::NvFp4 => Some(Fp4::Nv),
            _ => None,
        }
    }

    /// Elements per scale unless a file or an option says otherwise; `None` for plain floats.
    pub fn default_group(self) -> Option<usize> {
        match self {
            Dtype::BaseQ2 | Dtype::BaseQ3 | Dtype::MxFp4 => Some(32),
            Dtype::BaseQ4 | Dtype::BaseQ5 | Dtype::BaseQ6 => Some(64),
            Dtype::BaseQ8 => Some(128),
            Dtype::NvFp4 => Some(16),
            Dtype::Bf16 | Dtype::F16 | Dtype::F32 => None,
        }
    }

    /// The spelling in `.base` headers.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::BaseQ2 => "base_q2",
            Dtype::BaseQ3 => "base_q3",
            Dtype::BaseQ4 => "base_q4",
            Dtype::BaseQ5 => "base_q5",
            Dtype::BaseQ6 => "base_q6",
            Dtype::BaseQ8 => "base_q8",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
            Dtype::F32 => "f32",
            Dtype::MxFp4 => "mxfp4",
            Dtype::NvFp4 => "nvfp4",
        }
    }
}

impl FromStr for Dtype {
    type Err = QuantError;

    /// Reads the header spelling, including the early aliases `base4` and `base8`.
    fn from_str(name: &str) -> Result<Dtype, QuantError> {
        let canonical = match name {
            "base4" => "base_q4",
            "base8" => "base_q8",
            other => other,
        };
        Dtype::ALL
            .into_iter()
            .find(|dtype| dtype.name() == canonical)
            .ok_or_else(|| unknown_name("dtype", name, Dtype::ALL.map(Dtype::name)))
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A plain float element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloatDtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
}

impl FloatDtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            FloatDtype::F32 => 4,
            FloatDtype::F16 | FloatDtype::Bf16 => 2,
        }
    }

    /// The tensor dtype of this element type.
    pub fn dtype(self) -> Dtype {
        match self {
            FloatDtype::F32 => Dtype::F32,
            FloatDtype::F16 => Dtype::F16,
            FloatDtype::Bf16 => Dtype::Bf16,
        }
    }
}

impl fmt::Display for FloatDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.dtype().name())
    }
}

/// The two 4-bit float formats: E2M1 codes, one scale byte per group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fp4 {
    /// MXFP4: groups of 32, power-of-two scale.
    Mx,
    /// NVFP4: groups of 16, 8-bit float scale.
    Nv,
}

impl Fp4 {
    /// Elements per scale byte.
    pub const fn group(self) -> usize {
        match self {
            Fp4::Mx => 32,
            Fp4::Nv => 16,
        }
    }

    /// The tensor dtype of this kind.
    pub fn dtype(self) -> Dtype {
        match self {
            Fp4::Mx => Dtype::MxFp4,
            Fp4::Nv => Dtype::NvFp4,
        }
    }
}

impl fmt::Display for Fp4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.dtype().name())
    }
}

/// The error for a spelling that is none of `known`.
pub(crate) fn unknown_name<const N: usize>(
    kind: &'static str,
    name: &str,
    known: [&'static str; N],
) -> QuantError {
    QuantError::UnknownName { kind, name: name.to_owned(), known: known.join(", ") }
}
