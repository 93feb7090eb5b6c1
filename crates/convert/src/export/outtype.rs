//! Types that a tensor may be given where none holds it exactly.

use std::fmt;
use std::str::FromStr;

use basert_quant::GgmlType;

use crate::ConvertError;

/// A ggml type that values are encoded in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outtype(pub(super) GgmlType);

impl Outtype {
    /// All, widest first.
    pub const ALL: [Outtype; 8] = [
        Outtype(GgmlType::F32),
        Outtype(GgmlType::BF16),
        Outtype(GgmlType::F16),
        Outtype(GgmlType::Q8_0),
        Outtype(GgmlType::Q5_1),
        Outtype(GgmlType::Q5_0),
        Outtype(GgmlType::Q4_1),
        Outtype(GgmlType::Q4_0),
    ];

    /// The spelling in options: llama.cpp's name in lower case, e.g. `q8_0`.
    pub fn name(self) -> String {
        self.0.name().to_lowercase()
    }
}

impl FromStr for Outtype {
    type Err = ConvertError;

    fn from_str(name: &str) -> Result<Outtype, ConvertError> {
        Outtype::ALL.into_iter().find(|outtype| outtype.name() == name).ok_or_else(|| {
            let known = Outtype::ALL.map(Outtype::name).join(", ");
            ConvertError::Option(format!("type `{name}` does not exist; types are {known}"))
        })
    }
}

impl fmt::Display for Outtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}
