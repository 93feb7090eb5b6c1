//! What a conversion is asked to do.

use std::fmt;
use std::str::FromStr;

use basert_format::QuantScheme;
use basert_quant::{Dtype, Encoding, ScaleDtype};

use crate::{Compat, Convention, ConvertError, Importance, Method, Profile, compat};

/// Group sizes an affine tensor may have, largest first.
pub(crate) const GROUPS: [usize; 3] = [128, 64, 32];

/// How large matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target(Choice);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Auto,
    Dtype(Dtype),
}

impl Target {
    /// Every tensor of a quantised source exactly, as small as that goes; 4-bit affine for a float source.
    pub const AUTO: Target = Target(Choice::Auto);
    /// 4-bit affine.
    pub const BASE_Q4: Target = Target(Choice::Dtype(Dtype::BaseQ4));
    /// Exact values of any source, widened.
    pub const F32: Target = Target(Choice::Dtype(Dtype::F32));

    /// Every target, in the order help texts list them.
    pub const ALL: [Target; 10] = [
        Target::AUTO,
        Target(Choice::Dtype(Dtype::BaseQ2)),
        Target(Choice::Dtype(Dtype::BaseQ3)),
        Target::BASE_Q4,
        Target(Choice::Dtype(Dtype::BaseQ5)),
        Target(Choice::Dtype(Dtype::BaseQ6)),
        Target(Choice::Dtype(Dtype::BaseQ8)),
        Target(Choice::Dtype(Dtype::Bf16)),
        Target(Choice::Dtype(Dtype::F16)),
        Target::F32,
    ];

    /// The dtype of the tensors; `None` for [`Target::AUTO`].
    pub fn dtype(self) -> Option<Dtype> {
        match self.0 {
            Choice::Auto => None,
            Choice::Dtype(dtype) => Some(dtype),
        }
    }

    /// The spelling on the command line, e.g. `base-q4`.
    pub fn name(self) -> &'static str {
        match self.dtype() {
            None => "auto",
            Some(Dtype::BaseQ2) => "base-q2",
            Some(Dtype::BaseQ3) => "base-q3",
            Some(Dtype::BaseQ4) => "base-q4",
            Some(Dtype::BaseQ5) => "base-q5",
            Some(Dtype::BaseQ6) => "base-q6",
            Some(Dtype::BaseQ8) => "base-q8",
            Some(other) => other.name(),
        }
    }

    /// What automatic means for a source; other targets stay.
    pub(crate) fn resolved(self, quantised: bool) -> Target {
        if self == Target::AUTO && !quantised { Target::BASE_Q4 } else { self }
    }
}

/// The header's `quant_scheme` for tensors of `encoding`. The format has no f32 scheme; `bf16` stands in, and the
/// metadata key `basert.target` tells.
pub(crate) fn scheme(encoding: Encoding) -> QuantScheme {
    match (encoding, encoding.dtype()) {
        (Encoding::Super(_), _) => QuantScheme::PassthroughGguf,
        (_, Some(Dtype::BaseQ2)) => QuantScheme::BaseQ2,
        (_, Some(Dtype::BaseQ3)) => QuantScheme::BaseQ3,
        (_, Some(Dtype::BaseQ4)) => QuantScheme::BaseQ4,
        (_, Some(Dtype::BaseQ5)) => QuantScheme::BaseQ5,
        (_, Some(Dtype::BaseQ6)) => QuantScheme::BaseQ6,
        (_, Some(Dtype::BaseQ8)) => QuantScheme::BaseQ8,
        (_, Some(Dtype::MxFp4)) => QuantScheme::MxFp4,
        (_, Some(Dtype::NvFp4)) => QuantScheme::NvFp4,
        (_, Some(Dtype::F16)) => QuantScheme::F16,
        _ => QuantScheme::Bf16,
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

/// What a tensor is asked to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Element type.
    pub dtype: Dtype,
    /// Elements per scale; `None` = the type's default, and any of an exact source.
    pub group: Option<usize>,
    /// Format of scales and biases of affine types.
    pub scale: ScaleDtype,
    /// Affine codes without biases.
    pub symmetric: bool,
    /// `scale` as it was asked for, if it is not a default.
    pub asked_scale: Option<ScaleDtype>,
    /// `symmetric` as it was asked for, if it is not a default.
    pub asked_symmetric: Option<bool>,
}

impl Wanted {
    /// Elements per scale.
    pub fn group_or_default(self) -> usize {
        self.group.or(self.dtype.default_group()).unwrap_or(1)
    }

    /// The encoding with groups of `group`, which floats and FP4 do not choose.
    pub fn encoding(self, group: usize) -> Encoding {
        let Wanted { dtype, scale, symmetric, .. } = self;
        match (dtype.float(), dtype.fp4()) {
            (Some(float), _) => Encoding::Float(float),
            (_, Some(fp4)) => Encoding::Fp4(fp4),
            _ => Encoding::Affine { bits: dtype.bits(), group, scale, symmetric },
        }
    }
}

/// Options of [`crate::convert`].
#[derive(Clone, Debug)]
pub struct Options {
    /// How large matrices are stored.
    pub target: Target,
    /// Decides by name instead of `target`, `group` and `scale`, which must be left alone then.
    pub profile: Option<Profile>,
    /// Elements per scale: 32, 64 or 128; `None` = the target's default.
    pub group: Option<usize>,
    /// Format of scales and biases: f16 or bf16; `None` = f16.
    ///
    /// f16 keeps 11 significant bits against bf16's 8, which matters most at 5 bits and more. Its range holds
    /// every sane weight; values of 65 520 and more are an error that names this option.
    pub scale: Option<ScaleDtype>,
    /// How scales and biases are found; `None` = [`Method::Mse`] for 2 to 4 bits and wherever `importance` is given,
    /// else (and in the original's layout) [`Method::Rtn`].
    pub method: Option<Method>,
    /// What errors are weighted by; [`Method::Awq`] needs it.
    pub importance: Option<Importance>,
    /// Quantise tensors that are quantised already, losing precision, where the target asks for it. Without, such a
    /// source is converted only if every tensor comes out exactly.
    pub allow_quant_from_quant: bool,
    /// Whose conventions a directory follows; `None` = found out, and refused if signs conflict.
    pub convention: Option<Convention>,
    /// Whose files the output must look like; `None` = ours.
    pub compat: Option<Compat>,
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
            target: Target::AUTO,
            profile: None,
            group: None,
            scale: None,
            method: None,
            importance: None,
            allow_quant_from_quant: false,
            convention: None,
            compat: None,
            threads: None,
            allow_missing_tokenizer: false,
            created: None,
        }
    }
}

impl Options {
    /// Refuses combinations that mean nothing.
    pub(crate) fn check(&self) -> Result<(), ConvertError> {
        if let Some(scale) = self.scale {
            if !matches!(scale, ScaleDtype::F16 | ScaleDtype::Bf16) {
                return Err(ConvertError::Option(format!("scales can be f16 or bf16, not {scale}")));
            }
            if self.target.dtype().is_some_and(Dtype::is_float) {
                return Err(ConvertError::Option(format!("target {} has no scales", self.target)));
            }
        }
        if let Some(Profile { name, .. }) = &self.profile
            && (self.target != Target::AUTO || self.group.is_some() || self.scale.is_some())
        {
            return Err(ConvertError::Option(format!(
                "profile {name} decides targets, groups and scales by name; give either a profile or these"
            )));
        }
        if let Some(group) = self.group {
            if !GROUPS.contains(&group) {
                return Err(ConvertError::Option(format!(
                    "group size {group} does not exist; sizes are 32, 64, 128"
                )));
            }
            if self.target != Target::AUTO && !self.target.dtype().is_some_and(Dtype::is_affine) {
                return Err(ConvertError::Option(format!("target {} has no groups", self.target)));
            }
        }
        compat::check(self)?;
        self.check_method()?;
        if self.threads == Some(0) {
            return Err(ConvertError::Option("0 threads cannot convert anything".to_owned()));
        }
        Ok(())
    }

    fn check_method(&self) -> Result<(), ConvertError> {
        let refuse = |why: String| Err(ConvertError::Option(why));
        match (self.method, &self.importance) {
            (Some(Method::Awq), None) => {
                return refuse(
                    "method awq needs activations; give a calibration text or an importance file".to_owned(),
                );
            }
            (Some(Method::Rtn), Some(_)) => {
                return refuse(
                    "method rtn rounds to nearest whatever the importance; choose mse or awq".to_owned(),
                );
            }
            _ => {}
        }
        match (self.quantises_with(), self.target.dtype()) {
            (Some(what), Some(dtype)) if dtype.is_float() => {
                refuse(format!("target {} has no scales to find, so {what} means nothing", self.target))
            }
            _ => Ok(()),
        }
    }

    /// The option that only quantising obeys, if one is given.
    pub(crate) fn quantises_with(&self) -> Option<String> {
        let method = self.method.map(|method| format!("method {method}"));
        method.or(self.importance.as_ref().map(|_| "importance".to_owned()))
    }

    /// Whether tensors of this encoding have their scales searched.
    pub(crate) fn searches(&self, encoding: Encoding) -> bool {
        // Scales of 8 bits are too coarse to fit.
        let Encoding::Affine { bits, scale: ScaleDtype::F16 | ScaleDtype::Bf16, .. } = encoding else {
            return false;
        };
        match self.method {
            Some(method) => method != Method::Rtn,
            // The original converter rounds to nearest.
            None => self.importance.is_some() || bits <= 4 && self.compat.is_none(),
        }
    }

    /// The same with a target that is not automatic unless the source is quantised.
    pub(crate) fn resolved(&self, quantised: bool) -> Result<Options, ConvertError> {
        if self.profile.is_some() {
            return Ok(self.clone());
        }
        let resolved = Options { target: self.target.resolved(quantised), ..self.clone() };
        if resolved.target == Target::AUTO && self.group.is_some() {
            return Err(ConvertError::Option(
                "target auto takes its groups from the source; name another target to choose a group"
                    .to_owned(),
            ));
        }
        if let (Target::AUTO, Some(_)) = (resolved.target, resolved.scale) {
            return Err(ConvertError::Option(
                "target auto takes its scales from the source; name another target to choose their format"
                    .to_owned(),
            ));
        }
        if let (Target::AUTO, Some(what)) = (resolved.target, resolved.quantises_with()) {
            return Err(ConvertError::Option(format!(
                "target auto keeps this quantised source as it is, so {what} means nothing; name another target"
            )));
        }
        Ok(resolved)
    }

    /// What a tensor becomes that the options decide; `Ok(None)` keeps it exactly.
    ///
    /// # Errors
    /// The tensor's name if a profile has no rule for it.
    pub(crate) fn wanted<'n>(&self, name: &'n str) -> Result<Option<Wanted>, &'n str> {
        if let Some(profile) = &self.profile {
            return profile.wanted(name).ok_or(name).map(Some);
        }
        Ok(self.target.dtype().map(|dtype| self.like(dtype)))
    }

    /// A tensor of `dtype` with the group and scales that were asked for.
    pub(crate) fn like(&self, dtype: Dtype) -> Wanted {
        Wanted {
            dtype,
            group: self.group,
            scale: self.scale.unwrap_or(ScaleDtype::F16),
            symmetric: false,
            asked_scale: self.scale,
            asked_symmetric: None,
        }
    }

    /// The target or profile, in words for reports and file names: `base-q4`, `hybrid`.
    pub(crate) fn goal(&self) -> &str {
        self.profile.as_ref().map_or(self.target.name(), |profile| &profile.name)
    }

    /// Everything that the output's bytes depend on, in words.
    pub(crate) fn identity(&self) -> Vec<(&'static str, String)> {
        // Every field is named, so that a new one cannot be forgotten. Results do not depend on the number of threads.
        let Options {
            target,
            profile,
            group,
            scale,
            method,
            importance,
            allow_quant_from_quant,
            convention,
            compat,
            threads: _,
            allow_missing_tokenizer,
            created,
        } = self;
        let or = |value: Option<String>, default: &str| value.unwrap_or_else(|| default.to_owned());
        vec![
            ("target", target.to_string()),
            ("profile", or(profile.as_ref().map(|profile| profile.name.clone()), "none")),
            ("method", or(method.map(|method| method.to_string()), "of the target")),
            ("importance", or(importance.as_ref().map(Importance::digest), "none")),
            ("group", or(group.map(|group| group.to_string()), "of the target")),
            ("scales", scale.unwrap_or(ScaleDtype::F16).to_string()),
            ("quantisation from quantised sources", allow_quant_from_quant.to_string()),
            ("source convention", or(convention.map(|convention| convention.name().to_owned()), "found out")),
            ("layout", or(compat.map(|compat| compat.name().to_owned()), "our own")),
            ("missing tokenizer allowed", allow_missing_tokenizer.to_string()),
            ("creation time", or(created.map(|created| created.to_string()), "of the source")),
        ]
    }

    /// Number of encoding threads.
    pub(crate) fn thread_count(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
    }
}
