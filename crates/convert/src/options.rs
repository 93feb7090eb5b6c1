//! What a conversion is asked to do.

use std::fmt;
use std::str::FromStr;

use basert_format::QuantScheme;
use basert_quant::{Dtype, Encoding, FloatDtype, ScaleDtype};

use crate::ConvertError;

/// Group sizes an affine tensor may have, largest first.
pub(crate) const GROUPS: [usize; 3] = [128, 64, 32];

/// The dtype that large matrices are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target(Dtype);

impl Target {
    /// 4-bit affine.
    pub const BASE_Q4: Target = Target(Dtype::BaseQ4);
    /// Exact values of any float source, widened.
    pub const F32: Target = Target(Dtype::F32);

    /// Every target, in the order help texts list them.
    pub const ALL: [Target; 9] = [
        Target(Dtype::BaseQ2),
        Target(Dtype::BaseQ3),
        Target(Dtype::BaseQ4),
        Target(Dtype::BaseQ5),
        Target(Dtype::BaseQ6),
        Target(Dtype::BaseQ8),
        Target(Dtype::Bf16),
        Target(Dtype::F16),
        Target(Dtype::F32),
    ];

    /// The dtype of the tensors.
    pub fn dtype(self) -> Dtype {
        self.0
    }

    /// The spelling on the command line, e.g. `base-q4`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Dtype::BaseQ2 => "base-q2",
            Dtype::BaseQ3 => "base-q3",
            Dtype::BaseQ4 => "base-q4",
            Dtype::BaseQ5 => "base-q5",
            Dtype::BaseQ6 => "base-q6",
            Dtype::BaseQ8 => "base-q8",
            other => other.name(),
        }
    }

    /// The header's `quant_scheme`. The format has no f32 scheme; `bf16` stands in, and the metadata key
    /// `basert.target` tells.
    pub(crate) fn scheme(self) -> QuantScheme {
        match self.0 {
            Dtype::BaseQ2 => QuantScheme::BaseQ2,
            Dtype::BaseQ3 => QuantScheme::BaseQ3,
            Dtype::BaseQ4 => QuantScheme::BaseQ4,
            Dtype::BaseQ5 => QuantScheme::BaseQ5,
            Dtype::BaseQ6 => QuantScheme::BaseQ6,
            Dtype::BaseQ8 => QuantScheme::BaseQ8,
            Dtype::F16 => QuantScheme::F16,
            _ => QuantScheme::Bf16,
        }
    }
}

impl FromStr for Target {
    type Err = ConvertError;

    /// Reads `base-q4` and the header's spelling `base_q4`.
    fn from_str(name: &str) -> Result<Target, ConvertError> {
        let dashed = name.replace('_', "-");
        Target::ALL.into_iter().find(|target| target.name() == dashed).ok_or_else(|| {
            let known: Vec<&str> = Target::ALL.iter().map(|target| target.name()).collect();
            ConvertError::Option(format!("target `{name}` does not exist; targets are {}", known.join(", ")))
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Options of [`crate::convert`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Dtype of the large matrices.
    pub target: Target,
    /// Elements per scale: 32, 64 or 128; `None` = the target's default.
    pub group: Option<usize>,
    /// Format of scales and biases: f16 (default) or bf16.
    ///
    /// f16 keeps 11 significant bits against bf16's 8, which matters most at 5 bits and more. Its range holds
    /// every sane weight; values of 65 520 and more are an error that names this option.
    pub scale: ScaleDtype,
    /// Encoding threads; `None` = what the system reports as available.
    pub threads: Option<usize>,
    /// Convert a checkpoint that has no tokenizer instead of refusing it.
    pub allow_missing_tokenizer: bool,
    /// Time stamp in Unix seconds; `None` = `SOURCE_DATE_EPOCH`, else the newest source file's.
    pub created: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            target: Target::BASE_Q4,
            group: None,
            scale: ScaleDtype::F16,
            threads: None,
            allow_missing_tokenizer: false,
            created: None,
        }
    }
}

impl Options {
    /// Refuses combinations that mean nothing.
    pub(crate) fn check(&self) -> Result<(), ConvertError> {
        if !matches!(self.scale, ScaleDtype::F16 | ScaleDtype::Bf16) {
            return Err(ConvertError::Option(format!("scales can be f16 or bf16, not {}", self.scale)));
        }
        if let Some(group) = self.group {
            if !GROUPS.contains(&group) {
                return Err(ConvertError::Option(format!(
                    "group size {group} does not exist; sizes are 32, 64, 128"
                )));
            }
            if !self.target.dtype().is_affine() {
                return Err(ConvertError::Option(format!("target {} has no groups", self.target)));
            }
        }
        if self.threads == Some(0) {
            return Err(ConvertError::Option("0 threads cannot convert anything".to_owned()));
        }
        Ok(())
    }

    /// The target's encoding with groups of `group`.
    pub(crate) fn affine(&self, group: usize) -> Encoding {
        Encoding::Affine { bits: self.target.dtype().bits(), group, scale: self.scale, symmetric: false }
    }

    /// The float type of a float target.
    pub(crate) fn float_target(&self) -> Option<FloatDtype> {
        self.target.dtype().float()
    }

    /// Elements per scale that are asked for.
    pub(crate) fn wanted_group(&self) -> usize {
        self.group.or(self.target.dtype().default_group()).unwrap_or(1)
    }

    /// Number of encoding threads.
    pub(crate) fn thread_count(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
    }
}
