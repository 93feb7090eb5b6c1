//! How scales and biases of quantised tensors are found.

use std::fmt;
use std::str::FromStr;

use crate::ConvertError;

/// How scales and biases of quantised tensors are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Round to nearest: every group's codes reach from its minimum to its maximum. Bit for bit what the original
    /// converter makes.
    Rtn,
    /// Search every group's scale and bias for the least squared error, weighted by importance where it is known.
    Mse,
    /// Scale columns by what activations say about them (Lin et al., arXiv 2306.00978), folded into the tensor
    /// before, and search as [`Method::Mse`].
    Awq,
}

impl Method {
    /// Every method.
    pub const ALL: [Method; 3] = [Method::Rtn, Method::Mse, Method::Awq];

    /// The spelling on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Method::Rtn => "rtn",
            Method::Mse => "mse",
            Method::Awq => "awq",
        }
    }
}

impl FromStr for Method {
    type Err = ConvertError;

    fn from_str(name: &str) -> Result<Method, ConvertError> {
        let found = Method::ALL.into_iter().find(|method| method.name() == name);
        found.ok_or_else(|| {
            ConvertError::Option(format!("method `{name}` does not exist; methods are rtn, mse, awq"))
        })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
