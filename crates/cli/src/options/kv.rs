//! The types of the KV cache.

use basert_engine::KvTypes;
use basert_kernels::KvDtype;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::ENGINE;
use crate::failure::{Failure, Outcome};

/// The two spellings of the KV cache's types. Both in one source is an error; a flag beats the environment.
#[derive(Args, Clone, Debug, Default)]
struct RawKv {
    /// Bits per element of the KV cache: 16 (f16), 8 (q8), 4 (q4), 84 for 8-bit K and 4-bit V, or auto: 16 where it fits, in chat,
    /// complete and serve else the widest that does [default: auto]
    #[arg(
        long, value_name = "16|8|4|84|auto", env = "BASERT_KV_BITS", hide_env_values = true,
        value_parser = KV_BITS, hide_possible_values = true, help_heading = ENGINE
    )]
    kv_bits: Option<String>,

    /// Types of the KV cache: f32, f16, bf16, q8 or q4, for both sides or as k=q8,v=q4; or auto [default: auto]
    #[arg(
        long, value_name = "TYPE", env = "BASERT_KV_TYPE", hide_env_values = true, value_parser = kv_wish,
        help_heading = ENGINE
    )]
    kv_type: Option<KvWish>,
}

/// Types, or `None` for auto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KvWish(Option<KvTypes>);

/// [`RawKv`] after precedence.
#[derive(Clone, Debug, Default)]
pub struct KvOptions {
    /// `None` is auto.
    choice: Option<KvTypes>,
    /// Whether a flag says so.
    typed: bool,
}

impl KvOptions {
    /// Whether a flag names the types.
    pub fn is_typed(&self) -> bool {
        self.typed
    }

    /// Whether they are left open.
    pub fn is_auto(&self) -> bool {
        self.choice.is_none()
    }

    /// The types that were given, or the default.
    pub fn types(&self) -> KvTypes {
        self.choice.unwrap_or_default()
    }

    /// The types `with_kv`, or the one that was given where there are none.
    ///
    /// # Errors
    /// Flags that name both.
    pub fn each(&self, with_kv: &[KvTypes]) -> Outcome<Vec<KvTypes>> {
        if !with_kv.is_empty() && self.typed {
            return Err(Failure::new(
                "--with-kv and --kv-type or --kv-bits both name KV types; give one of them",
            ));
        }
        Ok(if with_kv.is_empty() { vec![self.types()] } else { with_kv.to_vec() })
    }
}

fn kv_dtype(s: &str) -> Result<KvDtype, String> {
    let known = KvDtype::ALL.into_iter().find(|dtype| dtype.name() == s);
    known.ok_or_else(|| format!("'{s}' is not one of {}", KvDtype::ALL.map(KvDtype::name).join(", ")))
}

/// Parses `f16` or `k=f16,v=f32`; a part that is not named stays f16.
fn kv_type(s: &str) -> Result<KvTypes, String> {
    if !s.contains('=') {
        let both = kv_dtype(s)?;
        return Ok(KvTypes { k: both, v: both });
    }
    let (mut k, mut v) = (None, None);
    for part in s.split(',') {
        let (slot, name) = match part.split_once('=') {
            Some(("k", name)) => (&mut k, name),
            Some(("v", name)) => (&mut v, name),
            _ => return Err(format!("'{part}' is not k=TYPE or v=TYPE")),
        };
        if slot.replace(kv_dtype(name)?).is_some() {
            return Err(format!("'{part}' names the same part twice"));
        }
    }
    let default = KvTypes::default();
    Ok(KvTypes { k: k.unwrap_or(default.k), v: v.unwrap_or(default.v) })
}

const KV_BITS: [&str; 5] = ["16", "8", "4", "84", AUTO];
const AUTO: &str = "auto";

/// Types, or auto.
fn kv_wish(s: &str) -> Result<KvWish, String> {
    if s == AUTO { Ok(KvWish(None)) } else { kv_type(s).map(|types| KvWish(Some(types))) }
}

/// One of [`KV_BITS`] but auto.
fn kv_bits(s: &str) -> KvTypes {
    let (k, v) = match s {
        "8" => (KvDtype::Q8, KvDtype::Q8),
        "4" => (KvDtype::Q4, KvDtype::Q4),
        "84" => (KvDtype::Q8, KvDtype::Q4),
        _ => (KvDtype::F16, KvDtype::F16),
    };
    KvTypes { k, v }
}

/// Types in either spelling: `84` or `k=q8,v=q4`.
pub fn any_kv(s: &str) -> Result<KvTypes, String> {
    if s != AUTO && KV_BITS.contains(&s) { Ok(kv_bits(s)) } else { kv_type(s) }
}

/// Types as `--kv-type` takes them: one name for both parts, or each with its own.
pub fn kv_name(k: &str, v: &str) -> String {
    if k == v { k.to_owned() } else { format!("k={k},v={v}") }
}

impl FromArgMatches for KvOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let raw = RawKv::from_arg_matches(matches)?;
        let typed = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        let bits = raw.kv_bits.as_deref().map(|s| KvWish((s != AUTO).then(|| kv_bits(s))));
        let KvWish(choice) = match (bits, raw.kv_type) {
            (Some(bits), Some(types)) => match (typed("kv_bits"), typed("kv_type")) {
                (true, false) => bits,
                (false, true) => types,
                (both_flags, _) => {
                    let names = if both_flags {
                        "--kv-bits and --kv-type"
                    } else {
                        "BASERT_KV_BITS and BASERT_KV_TYPE"
                    };
                    let text = format!("{names} say the same thing in two ways; give one of them\n");
                    return Err(clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, text));
                }
            },
            (bits, types) => bits.or(types).unwrap_or(KvWish(None)),
        };
        Ok(KvOptions { choice, typed: typed("kv_bits") || typed("kv_type") })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = KvOptions::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for KvOptions {
    fn augment_args(command: Command) -> Command {
        RawKv::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        RawKv::augment_args_for_update(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_types_parse_or_say_what_is_wrong() {
        let ok = [
            ("f16", KvDtype::F16, KvDtype::F16),
            ("f32", KvDtype::F32, KvDtype::F32),
            ("bf16", KvDtype::Bf16, KvDtype::Bf16),
            ("k=f32", KvDtype::F32, KvDtype::F16),
            ("v=f32,k=f16", KvDtype::F16, KvDtype::F32),
            ("k=q8,v=q4", KvDtype::Q8, KvDtype::Q4),
        ];
        for (text, k, v) in ok {
            assert_eq!(kv_type(text), Ok(KvTypes { k, v }), "{text}");
        }
        for bad in ["", "f64", "k=f32,k=f16", "x=f32", "k=f16,", "k="] {
            assert!(kv_type(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bits_are_short_for_types() {
        for (bits, types) in [("16", "f16"), ("8", "q8"), ("4", "q4"), ("84", "k=q8,v=q4")] {
            assert_eq!(Ok(kv_bits(bits)), kv_type(types), "{bits}");
            assert_eq!(any_kv(bits), any_kv(types), "{bits}");
            assert_eq!(kv_bits(bits).to_string(), types);
        }
    }
}
