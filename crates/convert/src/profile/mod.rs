//! Quantisation profiles: which tensor is stored how, by name.
//!
//! A profile is a JSON object of the original converter's schema:
//!
//! ```json
//! {"name": "mine", "arch": "qwen35",
//!  "rules": [{"pattern": "**.mlp.*_proj.weight", "dtype": "base_q4", "group_size": 64, "scale_dtype": "f16"},
//!            {"pattern": "**", "dtype": "base_q6"}]}
//! ```
//!
//! Patterns (see `glob`) are matched against canonical names, so that the spelling of a source does not matter, and
//! the first rule that matches decides. Defaults: the dtype's group size, bf16 scales, `symmetric` false. `arch` must
//! be there and is not compared with the model. Unknown keys of the profile are ignored; in a rule, where they
//! would be typing errors, they must begin with `_`, as `_comment` does. A name may consist of `A-Z a-z 0-9 . _ -`.
//!
//! Rules decide what the conversion's target would decide: embedding, head, linear layers and experts. A profile must
//! cover routers and shared-expert gates as well, as for the original, but they keep their source's float type
//! here, which costs nothing and loses nothing. Norms, convolutions, decay and update gates consult no rule in either.

mod glob;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use basert_quant::{Dtype, ScaleDtype};
use serde::Deserialize;

use crate::ConvertError;
use crate::options::{GROUPS, Wanted};
use crate::source::read_text;
use glob::Glob;

/// Built-in profiles in the order in which they are listed. The first three are our own.
const BUILT_IN: [&str; 9] = [
    include_str!("../../profiles/dense.json"),
    include_str!("../../profiles/moe.json"),
    include_str!("../../profiles/hybrid.json"),
    include_str!("../../profiles/default-q4.json"),
    include_str!("../../profiles/default-q6.json"),
    include_str!("../../profiles/default-q8.json"),
    include_str!("../../profiles/dense-q4mix.json"),
    include_str!("../../profiles/moe-q4mix.json"),
    include_str!("../../profiles/qwen35-moe-cuda-q4mix.json"),
];

/// A quantisation profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name, which the header records as `quant_profile`.
    pub name: String,
    /// The architecture that its author had in mind.
    pub arch: String,
    /// What it is for, if it says so under `_comment`.
    pub comment: Option<String>,
    /// How its author calibrated, as JSON; a description, which this converter does not act on.
    pub calibration: Option<String>,
    rules: Vec<Rule>,
    text: String,
    built_in: bool,
}

/// What tensors of some names become.
#[derive(Clone, Debug, PartialEq)]
struct Rule {
    /// The pattern as it was written.
    text: String,
    pattern: Glob,
    wanted: Wanted,
}

#[derive(Deserialize)]
struct RawProfile {
    name: String,
    arch: String,
    #[serde(rename = "_comment")]
    comment: Option<String>,
    calibration: Option<serde_json::Value>,
    rules: Vec<RawRule>,
}

#[derive(Deserialize)]
struct RawRule {
    pattern: String,
    dtype: String,
    group_size: Option<usize>,
    scale_dtype: Option<String>,
    symmetric: Option<bool>,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

impl Profile {
    /// The built-in profile of that name, else the profile in that file.
    ///
    /// # Errors
    /// [`ConvertError::Profile`] if there is neither, or what is there is not a profile, or has a built-in one's name
    /// and other rules.
    pub fn load(name_or_path: &Path) -> Result<Profile, ConvertError> {
        let shown = name_or_path.display().to_string();
        for profile in Profile::built_in()? {
            if profile.name == shown {
                return Ok(profile);
            }
        }
        match read_text(name_or_path)? {
            Some(text) => {
                let profile = Profile::parse(&text, &shown)?;
                let built_in = Profile::built_in()?.into_iter().find(|other| other.name == profile.name);
                if built_in.is_some_and(|other| other.rules != profile.rules) {
                    let why =
                        format!("{} is a built-in profile with other rules; rename this one", profile.name);
                    return Err(ConvertError::Profile { profile: shown, why });
                }
                Ok(profile)
            }
            None => {
                let names: Vec<String> = Profile::built_in()?.into_iter().map(|p| p.name).collect();
                let why = format!("there is no such file, and built-in profiles are {}", names.join(", "));
                Err(ConvertError::Profile { profile: shown, why })
            }
        }
    }

    /// Every built-in profile.
    ///
    /// # Errors
    /// None in a program whose tests pass; the files are read as any other.
    pub fn built_in() -> Result<Vec<Profile>, ConvertError> {
        let parse = |text| Ok(Profile { built_in: true, ..Profile::parse(text, "built-in profile")? });
        BUILT_IN.into_iter().map(parse).collect()
    }

    /// Reads a profile; `origin` names it in errors.
    ///
    /// # Errors
    /// [`ConvertError::Profile`] for anything that is not a profile, with the rule's number and pattern.
    pub fn parse(text: &str, origin: &str) -> Result<Profile, ConvertError> {
        let refuse = |why: String| ConvertError::Profile { profile: origin.to_owned(), why };
        let raw: RawProfile = serde_json::from_str(text).map_err(|cause| refuse(cause.to_string()))?;
        for (key, value) in [("name", &raw.name), ("arch", &raw.arch)] {
            if value.is_empty() {
                return Err(refuse(format!("`{key}` is empty")));
            }
        }
        // Outputs are named after it.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if raw.name.starts_with('.') || !raw.name.chars().all(is_plain) {
            let name = crate::error::shown(&raw.name);
            return Err(refuse(format!(
                "name {name} may have letters, digits, `.`, `_` and `-` only and not begin with a dot"
            )));
        }
        let mut rules = Vec::with_capacity(raw.rules.len());
        for (index, rule) in raw.rules.iter().enumerate() {
            let pattern = crate::error::shown(&rule.pattern);
            let rule =
                Rule::new(rule).map_err(|why| refuse(format!("rule {} ({pattern}): {why}", index + 1)))?;
            rules.push(rule);
        }
        let calibration = raw.calibration.map(|value| value.to_string());
        Ok(Profile {
            name: raw.name,
            arch: raw.arch,
            comment: raw.comment,
            calibration,
            rules,
            text: text.to_owned(),
            built_in: false,
        })
    }

    /// What the tensor of that canonical name becomes: the first rule that matches. `None` if none does.
    pub(crate) fn wanted(&self, name: &str) -> Option<Wanted> {
        self.rules.iter().find(|rule| rule.pattern.matches(name)).map(|rule| rule.wanted)
    }

    /// A note on every rule that decides none of the tensors `names`; none of a built-in profile, which is for many
    /// models.
    pub(crate) fn idle(&self, names: &[&str]) -> Vec<String> {
        if self.built_in {
            return Vec::new();
        }
        let decides = |name: &&str| self.rules.iter().position(|rule| rule.pattern.matches(name));
        let used: BTreeSet<usize> = names.iter().filter_map(decides).collect();
        let idle = self.rules.iter().enumerate().filter(|(index, _)| !used.contains(index));
        idle.map(|(index, rule)| {
            let (number, pattern) = (index + 1, crate::error::shown(&rule.text));
            format!("rule {number} ({pattern}) of profile {} decided no tensor", self.name)
        })
        .collect()
    }

    /// The JSON that it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Rule {
    fn new(raw: &RawRule) -> Result<Rule, String> {
        if let Some(key) = raw.others.keys().find(|key| !key.starts_with('_')) {
            let key = crate::error::shown(key);
            return Err(format!("key {key} does not exist; comments begin with `_`"));
        }
        let pattern = Glob::new(&raw.pattern)?;
        let dtype: Dtype = raw.dtype.parse().map_err(|e| format!("{e}"))?;
        let scale = raw.scale_dtype.as_deref().map(str::parse::<ScaleDtype>).transpose();
        let scale = scale.map_err(|e| format!("{e}"))?;
        let symmetric = raw.symmetric.unwrap_or(false);
        if scale == Some(ScaleDtype::E4m3) && dtype != Dtype::BaseQ8 {
            return Err(format!("scale_dtype e4m3 goes with base_q8 only, not with {dtype}"));
        }
        if dtype.is_affine() {
            if let Some(group) = raw.group_size.filter(|group| !GROUPS.contains(group)) {
                return Err(format!("group_size {group} does not exist; sizes are 32, 64, 128"));
            }
            if scale == Some(ScaleDtype::E8m0) && !symmetric {
                return Err(
                    "scale_dtype e8m0 has no sign, which biases need; add \"symmetric\": true".to_owned()
                );
            }
        } else {
            // What the format fixes may be repeated, but not be contradicted.
            let fixed = dtype.default_group();
            if raw.group_size.is_some() && raw.group_size != fixed {
                let groups = fixed.map_or("no groups".to_owned(), |group| format!("groups of {group} only"));
                return Err(format!("{dtype} has {groups}; remove group_size"));
            }
            if scale.is_some_and(|scale| dtype != Dtype::MxFp4 || scale != ScaleDtype::E8m0) {
                return Err(format!("{dtype} leaves no choice of scales; remove scale_dtype"));
            }
            if symmetric {
                return Err(format!("{dtype} has no biases to leave out; remove symmetric"));
            }
        }
        let wanted = Wanted {
            dtype,
            group: raw.group_size,
            scale: scale.unwrap_or(ScaleDtype::Bf16),
            symmetric,
            asked_scale: scale,
            asked_symmetric: raw.symmetric,
        };
        Ok(Rule { text: raw.pattern.clone(), pattern, wanted })
    }
}
