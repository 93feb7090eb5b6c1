//! The options that several commands share: one definition each, with name, environment variable, default,
//! help and legal values.
//!
//! Precedence everywhere: flag, then environment, then what the bundle recommends, then the default named
//! in the help. What was typed becomes what the program needs in `resolve` functions, before any model loads.

mod kv;

use std::path::PathBuf;

use basert_engine::{KvTypes, Residence, SamplingParams, Speculation};
use basert_kernels::Isa;
use clap::Args;

use crate::conversation::Thinking;
use crate::failure::{Failure, Outcome};

pub use kv::{KvOptions, any_kv, kv_name};

const ENGINE: &str = "Engine";
const PROMPT: &str = "Prompt";
const SAMPLING: &str = "Sampling";
const STOPPING: &str = "Stopping";

/// How many threads work on files.
#[derive(Args, Clone, Copy, Debug)]
pub struct WorkOptions {
    /// Worker threads [default: the CPUs this process may use, by affinity and cgroup quota]
    #[arg(
        short = 't', long, value_name = "N", env = "BASERT_THREADS", hide_env_values = true,
        value_parser = positive
    )]
    pub threads: Option<usize>,
}

/// Where and how the model runs.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// Worker threads [default: the CPUs this process may use, by affinity and cgroup quota]
    #[arg(
        short = 't', long, value_name = "N", env = "BASERT_THREADS", hide_env_values = true,
        value_parser = positive, help_heading = ENGINE
    )]
    pub threads: Option<usize>,

    /// Pin every thread to a CPU of its own (Linux); without it the system moves them as it likes
    #[arg(long, help_heading = ENGINE)]
    pub pin: bool,

    /// Tokens that prompt and answer may take together [default: the model's own limit, if it fits]
    #[arg(
        short, long, value_name = "N", env = "BASERT_CONTEXT", hide_env_values = true,
        value_parser = positive, help_heading = ENGINE
    )]
    pub context: Option<usize>,

    #[command(flatten)]
    kv: KvOptions,

    #[command(flatten)]
    places: PlaceOptions,
}

/// Where the weights are, and how the KV cache is cut.
#[derive(Args, Clone, Copy, Debug)]
pub struct PlaceOptions {
    /// Where the weights are: map (in the file, read when first used), prefault (all read before the first token), lock (and
    /// kept in memory, as with llama.cpp's --mlock), copy (in huge pages of this process's own) [default: map]
    #[arg(
        long, value_name = "map|prefault|lock|copy", env = "BASERT_WEIGHTS", hide_env_values = true,
        value_parser = residence, default_value = "map", hide_default_value = true, help_heading = ENGINE
    )]
    pub weights: Residence,

    /// Hold the KV cache in pages of 64 tokens instead of one page for each sequence
    #[arg(long, help_heading = ENGINE)]
    paged_kv: bool,
}

impl PlaceOptions {
    /// Tokens of a page, if they are not those of a sequence.
    pub fn page_tokens(self) -> Option<usize> {
        self.paged_kv.then_some(64)
    }
}

impl RunOptions {
    /// The engine's options; K and V that were left open are f16.
    ///
    /// # Errors
    /// An instruction set that does not exist here.
    pub fn resolve(&self) -> Outcome<basert_engine::Options> {
        self.resolve_with(self.kv.types())
    }

    /// The engine's options; K and V that were left open, and the context, may give way as `fit` says.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve), and `--fit` without a size where the free memory cannot be read.
    pub fn resolve_to_fit(&self, fit: &FitOptions) -> Outcome<basert_engine::Options> {
        let narrow_kv = self.kv.is_auto();
        Ok(basert_engine::Options { narrow_kv, fit: fit.budget()?, ..self.resolve()? })
    }

    /// The engine's options for each of the KV types `with_kv`, or for those that were given where there are none.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve), and as [`KvOptions::each`].
    pub fn resolve_each(&self, with_kv: &[KvTypes]) -> Outcome<Vec<basert_engine::Options>> {
        let types = self.kv.each(with_kv)?;
        types.into_iter().map(|kv| self.resolve_with(kv)).collect()
    }

    fn resolve_with(&self, kv: KvTypes) -> Outcome<basert_engine::Options> {
        let (isa, threads, context) = (isa()?, self.threads, self.context);
        let page_tokens = self.places.page_tokens();
        let (pin, weights) = (self.pin, self.places.weights);
        Ok(basert_engine::Options {
            isa,
            threads,
            pin,
            context,
            kv,
            page_tokens,
            weights,
            ..Default::default()
        })
    }
}

/// The instruction set that `BASERT_ISA` asks for, if it does.
///
/// # Errors
/// One that does not exist here.
pub fn isa() -> Outcome<Option<Isa>> {
    Isa::from_env().map_err(|e| Failure::new(format!("BASERT_ISA: {e}")))
}

/// What may give way where the memory is short.
#[derive(Args, Clone, Copy, Debug)]
pub struct FitOptions {
    /// Fit into this much memory, weights included (serve: all models together, earlier ones first), or without a number into what is free: K and V that are auto become the widest
    /// that do, and where none does the context the largest, each said (basert plan --fit says it beforehand). Without --fit,
    /// what does not fit is refused
    #[arg(long, value_name = "SIZE", value_parser = budget, num_args = 0..=1, default_missing_value = "free", help_heading = ENGINE)]
    fit: Option<Budget>,
}

impl FitOptions {
    /// Bytes that everything has to fit into.
    fn budget(&self) -> Outcome<Option<u64>> {
        Ok(match self.fit {
            None => None,
            Some(Budget::Bytes(bytes)) => Some(bytes),
            Some(Budget::Free) => Some(basert_engine::available_memory().ok_or_else(|| {
                Failure::new("this system does not say how much memory is free")
                    .hint("give a size, such as --fit 16GiB")
            })?),
        })
    }
}

/// Memory to fit into.
#[derive(Clone, Copy, Debug)]
enum Budget {
    /// What is free.
    Free,
    Bytes(u64),
}

fn budget(s: &str) -> Result<Budget, String> {
    if s == "free" { Ok(Budget::Free) } else { size(s).map(Budget::Bytes) }
}

/// The variable in place of `--speculative`.
const SPECULATIVE: &str = "BASERT_SPECULATIVE";

/// Whether next tokens are guessed.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct SpeculativeOptions {
    /// Guess next tokens and verify them together, which changes no answer: auto (as many as pay, by the model's own mtp head,
    /// else as ngram), ngram (as many as pay, from earlier text), a number up to 16 (always so many), or off [default: off]
    /// [env: BASERT_SPECULATIVE]
    #[arg(long, value_name = "auto|ngram|N|off", value_parser = speculation, help_heading = ENGINE)]
    speculative: Option<Speculation>,
}

impl SpeculativeOptions {
    /// What was asked for. The variable is read here and not by clap, for which it would conflict like a flag.
    ///
    /// # Errors
    /// A variable that says something else.
    pub fn resolve(self) -> Outcome<Speculation> {
        let variable = || std::env::var(SPECULATIVE).ok().filter(|value| !value.is_empty());
        match (self.speculative, variable()) {
            (Some(asked), _) => Ok(asked),
            (None, None) => Ok(Speculation::OFF),
            (None, Some(value)) => {
                speculation(&value).map_err(|e| Failure::new(format!("{SPECULATIVE}={value}: {e}")))
            }
        }
    }
}

fn speculation(s: &str) -> Result<Speculation, String> {
    match (s, s.parse()) {
        ("auto", _) => Ok(Speculation::AUTO),
        ("ngram", _) => Ok(Speculation::TEXT),
        ("off", _) => Ok(Speculation::OFF),
        (_, Ok(most @ 1..=16)) => Ok(Speculation::always(most)),
        _ => Err("must be auto, ngram, off or a number from 1 to 16".to_owned()),
    }
}

/// Parses where weights are.
///
/// # Errors
/// Any other word.
pub fn residence(s: &str) -> Result<Residence, String> {
    let known = Residence::ALL.into_iter().find(|residence| residence.name() == s);
    known.ok_or_else(|| format!("'{s}' is not one of {}", Residence::ALL.map(Residence::name).join(", ")))
}

/// What to continue. Exactly one of the three sources.
#[derive(Args, Clone, Debug)]
pub struct PromptOptions {
    #[command(flatten)]
    pub source: PromptSource,

    /// Treat the prompt as a user message and render the bundle's chat template
    #[arg(long, conflicts_with = "prompt_ids", help_heading = PROMPT)]
    pub chat: bool,

    /// System message before the user's
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true, help_heading = PROMPT)]
    pub system: Option<String>,

    /// Ask the template for an answer with a thinking part
    #[arg(long, requires = "chat", conflicts_with = "no_think", help_heading = PROMPT)]
    pub think: bool,

    /// Ask the template for an answer without one
    #[arg(long, requires = "chat", help_heading = PROMPT)]
    pub no_think: bool,
}

impl PromptOptions {
    /// What `--think` and `--no-think` say.
    pub fn thinking(&self) -> Thinking {
        Thinking { think: self.think, no_think: self.no_think }
    }
}

/// Where the prompt comes from.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct PromptSource {
    /// The prompt itself
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, help_heading = PROMPT)]
    pub prompt: Option<String>,

    /// Read the prompt from a file, or from standard input with -
    #[arg(long, value_name = "FILE", help_heading = PROMPT)]
    pub prompt_file: Option<PathBuf>,

    /// The prompt as token ids, nothing added
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', help_heading = PROMPT)]
    pub prompt_ids: Option<Vec<u32>>,
}

/// When an answer ends.
#[derive(Args, Clone, Debug)]
pub struct AnswerOptions {
    /// Most tokens to generate per answer [default: as many as the context holds]
    #[arg(short = 'n', long, value_name = "N", value_parser = positive, help_heading = STOPPING)]
    pub max_tokens: Option<usize>,

    /// Stop before this text; may be given several times
    #[arg(
        long, value_name = "TEXT", value_parser = stop_string, allow_hyphen_values = true,
        help_heading = STOPPING
    )]
    pub stop: Vec<String>,
}

/// How tokens are picked.
#[derive(Args, Clone, Debug, Default)]
pub struct SamplingOptions {
    /// Temperature; 0 always picks the likeliest token [default: the bundle's, else 0.8]
    #[arg(long = "temp", value_name = "T", allow_negative_numbers = true, help_heading = SAMPLING)]
    pub temperature: Option<f32>,

    /// Draw among the K likeliest tokens; 0 keeps all [default: the bundle's, else 40]
    #[arg(long, value_name = "K", help_heading = SAMPLING)]
    pub top_k: Option<usize>,

    /// Draw among the likeliest tokens that together reach probability P [default: the bundle's, else 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true, help_heading = SAMPLING)]
    pub top_p: Option<f32>,

    /// Leave out tokens less than P times as likely as the likeliest [default: the bundle's, else 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true, help_heading = SAMPLING)]
    pub min_p: Option<f32>,

    /// Weaken tokens that prompt or answer contain; 1 is off [default: the bundle's, else 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = SAMPLING)]
    pub repetition_penalty: Option<f32>,

    /// Subtract X from the logit of every token that the answer contains [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = SAMPLING)]
    pub presence_penalty: Option<f32>,

    /// Subtract X for every time a token occurs in the answer [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = SAMPLING)]
    pub frequency_penalty: Option<f32>,

    /// Add V to the logit of token ID; -inf bans it
    #[arg(
        long, value_name = "ID=V,…", value_delimiter = ',', value_parser = logit_bias,
        help_heading = SAMPLING
    )]
    pub logit_bias: Vec<(u32, f32)>,

    /// Seed of the draws, for a repeatable answer [default: a fresh one, shown by -v and --json]
    #[arg(long, value_name = "N", help_heading = SAMPLING)]
    pub seed: Option<u64>,
}

/// Sampling values that a bundle recommends; absent where its checkpoint said nothing that can be used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recommended {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// Keys whose values are unusable, and why.
    pub unusable: Vec<(&'static str, String)>,
}

impl SamplingOptions {
    /// Flag, else the bundle's value, else the default of the help.
    ///
    /// # Errors
    /// A value outside its range. Token ids are the engine's to check: only it knows the vocabulary.
    pub fn resolve(&self, bundle: &Recommended) -> Outcome<SamplingParams> {
        let params = SamplingParams {
            temperature: self.temperature.or(bundle.temperature).unwrap_or(0.8),
            top_k: self.top_k.or(bundle.top_k).unwrap_or(40),
            top_p: self.top_p.or(bundle.top_p).unwrap_or(0.95),
            min_p: self.min_p.or(bundle.min_p).unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.or(bundle.repetition_penalty).unwrap_or(1.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(fresh_seed),
        };
        params.validate(usize::MAX).map_err(|e| Failure::from_error(&e))?;
        Ok(params)
    }

    /// Whether a flag decides what the generation config's `key` would.
    pub fn overrides(&self, key: &str) -> bool {
        match key {
            "temperature" | "do_sample" => self.temperature.is_some(),
            "top_k" => self.top_k.is_some(),
            "top_p" => self.top_p.is_some(),
            "min_p" => self.min_p.is_some(),
            "repetition_penalty" => self.repetition_penalty.is_some(),
            _ => false,
        }
    }

    /// Options that were given although they cannot matter at temperature 0.
    pub fn idle_when_greedy(&self) -> Vec<&'static str> {
        let given = [
            ("--top-k", self.top_k.is_some()),
            ("--top-p", self.top_p.is_some()),
            ("--min-p", self.min_p.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        given.into_iter().filter(|g| g.1).map(|g| g.0).collect()
    }
}

/// A seed from the randomness that the standard library gives every process, short enough to retype.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 32
}

fn logit_bias(s: &str) -> Result<(u32, f32), String> {
    let parsed = s.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse::<f32>().ok()?)));
    parsed.filter(|p| !p.1.is_nan()).ok_or_else(|| format!("'{s}' is not ID=V, such as 42=-5.5 or 7=-inf"))
}

/// A count of at least one.
pub fn positive(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(0) | Err(_) => Err("must be a whole number of at least 1".to_string()),
        Ok(n) => Ok(n),
    }
}

/// A number of bytes, with a unit or without.
pub fn size(s: &str) -> Result<u64, String> {
    crate::units::parse_bytes(s)
        .ok_or_else(|| format!("'{s}' is not a size such as 16GiB, 512MiB or 1000000"))
}

/// A size, or 0 for none.
pub fn room(s: &str) -> Result<u64, String> {
    if s == "0" { Ok(0) } else { size(s) }
}

/// A stop string; an empty one would stop before the first token.
pub fn stop_string(s: &str) -> Result<String, String> {
    if s.is_empty() { Err("a stop string must not be empty".to_string()) } else { Ok(s.to_string()) }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    #[test]
    fn guessing_is_asked_for_by_name_or_number() {
        assert_eq!(speculation("3"), Ok(Speculation::always(3)));
        assert_eq!(speculation("auto"), Ok(Speculation::AUTO));
        for bad in ["0", "17", "-1", "", "on", "AUTO", "2.5"] {
            assert!(speculation(bad).is_err(), "{bad}");
        }
        assert_eq!(SpeculativeOptions::default().resolve().unwrap(), Speculation::OFF, "as the help says");
    }

    #[test]
    fn a_flag_beats_the_bundle_and_the_bundle_beats_the_default() {
        let bundle = Recommended { temperature: Some(0.6), top_k: Some(20), ..Default::default() };
        let flags = SamplingOptions { temperature: Some(0.0), ..Default::default() };
        let params = flags.resolve(&bundle).unwrap();
        assert_eq!((params.temperature, params.top_k, params.top_p), (0.0, 20, 0.95));
    }

    #[test]
    fn defaults_are_those_of_the_help() {
        let params = SamplingOptions::default().resolve(&Recommended::default()).unwrap();
        let help = SamplingOptions::augment_args(Command::new("test")).render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let defaults = [
            ("--temp", params.temperature),
            ("--top-k", params.top_k as f32),
            ("--top-p", params.top_p),
            ("--min-p", params.min_p),
            ("--repetition-penalty", params.repetition_penalty),
        ];
        for (flag, value) in defaults {
            let after = &help[help.find(flag).unwrap()..];
            let stated = after.split("[default: the bundle's, else ").nth(1).unwrap();
            assert_eq!(stated.split(']').next().unwrap().parse(), Ok(value), "{flag}");
        }
    }

    #[test]
    fn out_of_range_sampling_names_the_parameter() {
        let flags = SamplingOptions { top_p: Some(1.5), ..Default::default() };
        let failure = flags.resolve(&Recommended::default()).unwrap_err();
        assert!(matches!(failure, Failure::Error { message, .. } if message.contains("top_p")));
    }

    #[test]
    fn logit_biases_parse_or_say_what_is_wrong() {
        assert_eq!(logit_bias("7=-2.5"), Ok((7, -2.5)));
        assert_eq!(logit_bias("7=-inf"), Ok((7, f32::NEG_INFINITY)));
        for bad in ["7", "7=", "=1", "-1=2", "7=NaN", "a=1"] {
            assert!(logit_bias(bad).is_err(), "{bad}");
        }
    }
}
