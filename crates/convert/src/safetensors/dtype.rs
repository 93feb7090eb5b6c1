//! Element types of safetensors.

use std::fmt;

use basert_quant::FloatDtype;

/// Every element type the format defines, so that files can be checked; few of them are weights.
#[allow(missing_docs)] // the variants are the format's own names
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    Bool,
    F4,
    F6E2M3,
    F6E3M2,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    F8E8M0,
    I16,
    U16,
    F16,
    Bf16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

impl Dtype {
    /// Every element type, in the order of the reference implementation.
    pub const ALL: [Dtype; 20] = [
        Dtype::Bool,
        Dtype::F4,
        Dtype::F6E2M3,
        Dtype::F6E3M2,
        Dtype::U8,
        Dtype::I8,
        Dtype::F8E5M2,
        Dtype::F8E4M3,
        Dtype::F8E8M0,
        Dtype::I16,
        Dtype::U16,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::I32,
        Dtype::U32,
        Dtype::F32,
        Dtype::C64,
        Dtype::F64,
        Dtype::I64,
        Dtype::U64,
    ];

    /// The type spelled `name` in a header.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// The spelling in headers.
    pub const fn name(self) -> &'static str {
        self.layout().0
    }

    /// Bits of one element.
    pub const fn bits(self) -> u64 {
        self.layout().1
    }

    /// The plain float type, if it is one that weights come in.
    pub const fn float(self) -> Option<FloatDtype> {
        match self {
            Dtype::F32 => Some(FloatDtype::F32),
            Dtype::F16 => Some(FloatDtype::F16),
            Dtype::Bf16 => Some(FloatDtype::Bf16),
            _ => None,
        }
    }

    const fn layout(self) -> (&'static str, u64) {
        match self {
            Dtype::Bool => ("BOOL", 8),
            Dtype::F4 => ("F4", 4),
            Dtype::F6E2M3 => ("F6_E2M3", 6),
            Dtype::F6E3M2 => ("F6_E3M2", 6),
            Dtype::U8 => ("U8", 8),
            Dtype::I8 => ("I8", 8),
            Dtype::F8E5M2 => ("F8_E5M2", 8),
            Dtype::F8E4M3 => ("F8_E4M3", 8),
            Dtype::F8E8M0 => ("F8_E8M0", 8),
            Dtype::I16 => ("I16", 16),
            Dtype::U16 => ("U16", 16),
            Dtype::F16 => ("F16", 16),
            Dtype::Bf16 => ("BF16", 16),
            Dtype::I32 => ("I32", 32),
            Dtype::U32 => ("U32", 32),
            Dtype::F32 => ("F32", 32),
            Dtype::C64 => ("C64", 64),
            Dtype::F64 => ("F64", 64),
            Dtype::I64 => ("I64", 64),
            Dtype::U64 => ("U64", 64),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
