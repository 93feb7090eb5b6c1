//! The command line: what can be typed, and the help that teaches it.

use std::ffi::OsStr;
use std::path::PathBuf;

use basert_convert::{Compat, Convention, Method, Outtype, Target};
use basert_quant::ScaleDtype;
use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::{Args, Command as Grammar, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::bench::{BENCH_HELP, BenchArgs};
use crate::eval::{EVAL_EXAMPLES, EvalArgs};
use crate::options::{
    AnswerOptions, FitOptions, PromptOptions, RunOptions, SamplingOptions, SpeculativeOptions, WorkOptions,
    positive, room,
};
use crate::plan::{PLAN_HELP, PlanArgs};
use crate::profile::{PROFILE_HELP, ProfileArgs};
use crate::serve::{SERVE_HELP, ServeArgs};

/// Turn a checkpoint into one verified .base file and run it.
#[derive(Debug, Parser)]
#[command(
    name = "basert", version, after_help = FIRST_STEPS, max_term_width = 110, arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// What was typed. Wrong usage ends the process with a message and status 2.
    ///
    /// An environment variable that is empty counts as unset, and an error in its value names it.
    pub fn from_command_line() -> Cli {
        let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
        let mut grammar = without_variables(Cli::command(), &is_empty);
        let matches = grammar.clone().try_get_matches();
        let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
        cli.unwrap_or_else(|error| name_variable(error, &grammar).format(&mut grammar).exit())
    }
}

/// The grammar in which options ignore their environment variable where `ignored` says so.
fn without_variables(grammar: Grammar, ignored: &dyn Fn(&OsStr) -> bool) -> Grammar {
    let grammar = grammar.mut_args(|arg| match arg.get_env() {
        Some(name) if ignored(name) => arg.env(Resettable::Reset),
        _ => arg,
    });
    grammar.mut_subcommands(|sub| without_variables(sub, ignored))
}

/// An error in a value that came from a variable says so instead of blaming the option.
fn name_variable(mut error: clap::Error, grammar: &Grammar) -> clap::Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg).cloned() else {
        return error;
    };
    // An argument has no printable name before its grammar is built.
    let mut built = grammar.clone();
    built.build();
    let mut args = built.get_subcommands().flat_map(Grammar::get_arguments);
    let named = args.find(|arg| arg.to_string() == option).and_then(|arg| arg.get_env());
    let Some(variable) = named else { return error };
    // It came from the variable if it goes away without it.
    let without = without_variables(grammar.clone(), &|name| name == variable).try_get_matches();
    let remains = without.err().and_then(|e| e.get(ContextKind::InvalidArg).cloned());
    if remains != Some(ContextValue::String(option.clone())) {
        let name = format!("{} (environment variable of {option})", variable.display());
        error.insert(ContextKind::InvalidArg, ContextValue::String(name));
    }
    error
}

const FIRST_STEPS: &str = "\
First steps:
  basert convert ./Qwen3-0.6B -o qwen3.base
  basert inspect qwen3.base
  basert complete qwen3.base --chat -p 'What is the capital of France?'

`basert help COMMAND` shows a command's options and more examples.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Convert a Hugging Face or MLX directory or a GGUF file into a .base file
    #[command(after_help = CONVERT_EXAMPLES)]
    Convert(ConvertArgs),

    /// List the built-in quantisation profiles, or print one
    #[command(after_help = PROFILES_EXAMPLES)]
    Profiles(ProfilesArgs),

    /// Check that a .base file is intact and still computes what it did when it was converted
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(VerifyArgs),

    /// Write a .base file as a GGUF, so that llama.cpp runs the same weights
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(ExportArgs),

    /// Show what a .base file contains
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(InspectArgs),

    /// Talk to a model
    #[command(after_help = CHAT_HELP)]
    Chat(Box<ChatArgs>),

    /// Continue a prompt, or answer a chat message, and stream the text
    #[command(after_help = COMPLETE_EXAMPLES)]
    Complete(Box<CompleteArgs>),

    /// Answer over HTTP, as OpenAI's API does
    #[command(after_help = SERVE_HELP)]
    Serve(Box<ServeArgs>),

    /// Measure perplexity, recall, multiple choice and tool calls, of one model or several
    #[command(after_help = EVAL_EXAMPLES)]
    Eval(Box<EvalArgs>),

    /// Say what a model will take in memory, and what fits: contexts, KV types, parallel sequences
    #[command(after_help = PLAN_HELP)]
    Plan(Box<PlanArgs>),

    /// Measure speed: prefill, decode, batches, load time; or compare two such measurements
    #[command(after_help = BENCH_HELP)]
    Bench(Box<BenchArgs>),

    /// Show where the time of prefill and decode goes, operation by operation
    #[command(after_help = PROFILE_HELP)]
    Profile(ProfileArgs),
}

const CONVERT_EXAMPLES: &str = "\
Examples:
  basert convert ./Qwen3-0.6B                        writes ./Qwen3-0.6B-base-q4.base
  basert convert ./Qwen3-0.6B --target q8 -o q.base
  basert convert ./Qwen3.5-35B-A3B --profile hybrid  experts 4 bits, attention and head more
  basert convert smollm2-q4_1.gguf                   keeps every quantised tensor exactly
  basert convert ./Qwen3-0.6B --method awq --calibration book.txt
  basert convert ./Qwen3.5-4B-MLX-4bit --plan        says what would become of every tensor
  basert convert ./Qwen3-0.6B --json | jq .fallbacks
  basert convert ./Qwen3.5-35B-A3B --resume          continues where an earlier attempt stopped
  basert convert --synthetic qwen3.5-2b              random weights, for benchmarks

A quantised source is converted without loss, or refused; --allow-quant-from-quant permits the loss. Exactness is \
proved during the conversion by decoding both sides. Before the file appears, a short text is run through it and through \
the source's own values; the evidence is kept in the file, and a model that reads English as noise is refused.

The output appears whole or not at all: ^C, errors and even a kill leave nothing behind. With --resume, unfinished \
work stays in OUTPUT.partial, and the same command continues it to the same file. Set SOURCE_DATE_EPOCH to choose \
the creation time in the file; otherwise it is the newest modification time among the source files.";

#[derive(Args, Debug)]
pub struct ConvertArgs {
    /// Directory with config.json and *.safetensors, or a .gguf file (any part of a split one)
    #[arg(value_name = "SOURCE", required_unless_present = "synthetic")]
    pub source: Option<PathBuf>,

    /// File to write [default: <source name>-<target>.base in the current directory]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Format of the large matrices: auto, base-q2, base-q3, base-q4, base-q5, base-q6, base-q8 (also q2 … q8), bf16,
    /// f16, f32. auto keeps a quantised source exactly and makes base-q4 of any other
    /// [default: auto]
    #[arg(long, value_name = "TARGET", value_parser = target)]
    pub target: Option<Target>,

    /// Let a profile say by name what each tensor becomes: a built-in name (`basert profiles` lists them) or a JSON file
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["target", "group", "scales"])]
    pub profile: Option<PathBuf>,

    /// Weights that share a scale: 32, 64 or 128 [default: 32 for q2 and q3, 64 for q4 to q6, 128 for q8]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub group: Option<usize>,

    /// Format of the scales: f16, or bf16 for weights beyond 65504 [default: f16]
    #[arg(long, value_name = "TYPE", value_parser = scales)]
    pub scales: Option<ScaleDtype>,

    /// How scales are found: rtn rounds to nearest, mse searches for the least squared error, awq also scales columns by
    /// their activations [default: mse for 2 to 4 bits and with importance, else rtn]
    #[arg(long, value_name = "METHOD", value_parser = method)]
    pub method: Option<Method>,

    #[command(flatten)]
    pub calibration: CalibrationOptions,

    /// Quantise again what is quantised already, from its exact values, where the target asks for it
    #[arg(long)]
    pub allow_quant_from_quant: bool,

    /// Whose conventions the weights follow: hf or mlx [default: found out from the files, which must agree]
    #[arg(long, value_name = "NAME", value_parser = convention)]
    pub source_convention: Option<Convention>,

    /// Lay the file out exactly as the original BaseRT converter does, for its engine: `basert`. Without draft layers; norms
    /// are f16. From Hugging Face and MLX checkpoints
    #[arg(long, value_name = "NAME", value_parser = compat)]
    pub compat: Option<Compat>,

    /// Instead of a source: random weights with the geometry of this model, e.g. qwen3.5-2b, for benchmarks. `list` shows
    /// all. The file has no tokenizer: it takes and gives token ids
    #[arg(
        long, value_name = "GEOMETRY",
        conflicts_with_all = [
            "source", "plan", "allow_quant_from_quant", "source_convention", "no_tokenizer", "compat", "profile", "method",
            "calibration", "importance", "resume",
        ]
    )]
    pub synthetic: Option<String>,

    /// With --synthetic: the first N layers only
    #[arg(long, value_name = "N", value_parser = positive)]
    pub layers: Option<usize>,

    /// With --synthetic: also the draft layers (mtp) that the model is published with, for `basert bench --verify`
    #[arg(long)]
    pub draft_layers: bool,

    /// Read headers only and print what would become of every tensor; writes nothing
    #[arg(long, conflicts_with_all = ["output", "force"])]
    pub plan: bool,

    /// Publish the file without running a short text through it and through its source first. For models with random
    /// weights, which the check refuses
    #[arg(long)]
    pub no_check: bool,

    /// Accept a checkpoint without a tokenizer; the file then takes and gives token ids only
    #[arg(long)]
    pub no_tokenizer: bool,

    /// Replace the output file if it exists
    #[arg(long)]
    pub force: bool,

    /// Keep unfinished work in OUTPUT.partial when interrupted, and continue from it if it is there
    #[arg(long, conflicts_with = "plan")]
    pub resume: bool,

    #[command(flatten)]
    pub work: WorkOptions,

    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A target in the converter's spelling or without its `base-`.
pub fn target(s: &str) -> Result<Target, String> {
    let prefix = if s.starts_with('q') { "base-" } else { "" };
    format!("{prefix}{s}").parse().map_err(|e: basert_convert::ConvertError| e.to_string())
}

/// Where importance comes from and goes to.
#[derive(Args, Debug)]
pub struct CalibrationOptions {
    /// Text that the model reads first, to learn which columns of its weights matter
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["importance", "plan"])]
    pub calibration: Option<PathBuf>,

    /// Tokens of the calibration text that are read, in windows of 512 [default: 4096]
    #[arg(long, value_name = "N", value_parser = positive, requires = "calibration")]
    pub calibration_tokens: Option<usize>,

    /// Keep what the calibration found in this file
    #[arg(long, value_name = "FILE", requires = "calibration")]
    pub save_importance: Option<PathBuf>,

    /// Use what an earlier calibration of the same model kept
    #[arg(long, value_name = "FILE")]
    pub importance: Option<PathBuf>,
}

/// A quantisation method in the converter's spelling.
fn method(s: &str) -> Result<Method, String> {
    s.parse().map_err(|e: basert_convert::ConvertError| e.to_string())
}

/// A convention in the converter's spelling.
fn convention(s: &str) -> Result<Convention, String> {
    s.parse().map_err(|e: basert_convert::ConvertError| e.to_string())
}

/// A layout in the converter's spelling.
fn compat(s: &str) -> Result<Compat, String> {
    s.parse().map_err(|e: basert_convert::ConvertError| e.to_string())
}

/// A scale type that affine weights can have.
fn scales(s: &str) -> Result<ScaleDtype, String> {
    match s {
        "f16" => Ok(ScaleDtype::F16),
        "bf16" => Ok(ScaleDtype::Bf16),
        _ => Err("scales can be f16 or bf16".to_string()),
    }
}

const EXPORT_EXAMPLES: &str = "\
Examples:
  basert export qwen3.base --gguf qwen3.gguf
  basert export qwen3-q8.base --gguf qwen3.gguf --outtype q8_0
  basert export qwen3.base --gguf qwen3.gguf --json | jq '.tensors[] | select(.exact | not)'

q4 and q5 weights become Q4_0, Q4_1, Q5_0 and Q5_1 with the same codes and scales, K-quants and MXFP4 are kept, floats stay \
as they are. ggml has no type for q2, q3 and q6, for q8 with biases, and for bf16 scales that are no f16 numbers: \
such tensors are refused unless --outtype names a type for them.";

#[derive(Args, Debug)]
pub struct ExportArgs {
    /// A .base file; or NAME for NAME.base here, in models/ or in $BASERT_MODELS
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// GGUF file to write
    #[arg(long, value_name = "OUT")]
    pub gguf: PathBuf,

    /// Type of tensors that no ggml type holds exactly: f32, bf16, f16, q8_0, q5_1, q5_0, q4_1 or q4_0 [default: refuse them]
    #[arg(long, value_name = "TYPE", value_parser = outtype)]
    pub outtype: Option<Outtype>,

    /// Leave the tokenizer out: llama.cpp then takes and gives token ids
    #[arg(long)]
    pub no_tokenizer: bool,

    /// Replace the output file if it exists
    #[arg(long)]
    pub force: bool,

    #[command(flatten)]
    pub work: WorkOptions,

    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A ggml type in the converter's spelling.
fn outtype(s: &str) -> Result<Outtype, String> {
    s.parse().map_err(|e: basert_convert::ConvertError| e.to_string())
}

const PROFILES_EXAMPLES: &str = "\
Examples:
  basert profiles                          lists them
  basert profiles moe > mine.json          a start for a profile of your own
  basert convert ./Qwen3-30B-A3B --profile mine.json";

#[derive(Args, Debug)]
pub struct ProfilesArgs {
    /// The profile to print, as the JSON that --profile reads
    #[arg(value_name = "NAME")]
    pub name: Option<String>,

    /// Print the list as a JSON array
    #[arg(long, conflicts_with = "name")]
    pub json: bool,
}

const INSPECT_EXAMPLES: &str = "\
Examples:
  basert inspect qwen3.base
  basert inspect qwen3.base --tensors
  basert inspect qwen3.base --verify-checksums
  basert inspect qwen3.base --json | jq .model.kv_cache.bytes_per_token_f16";

#[derive(Args, Debug)]
pub struct InspectArgs {
    /// A .base file; or NAME for NAME.base here, in models/ or in $BASERT_MODELS
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// List every tensor
    #[arg(long)]
    pub tensors: bool,

    /// Recompute the checksum of every tensor and slot; a difference is an error
    #[arg(long)]
    pub verify_checksums: bool,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  basert verify qwen3.base
  basert verify qwen3.base --logits

Without --logits, the checksums of all tensors and slots are recomputed. With it, the short text that the converter \
ran is run here as well, and the logits compared with the quality record in the file: bit by bit if the record was made \
with this version's arithmetic, whatever the CPU. Status 1 if anything differs.";

#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// A .base file; or NAME for NAME.base here, in models/ or in $BASERT_MODELS
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Also run the model and compare its logits with the quality record
    #[arg(long)]
    pub logits: bool,

    #[command(flatten)]
    pub work: WorkOptions,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

const CHAT_HELP: &str = "\
Examples:
  basert chat qwen3.base
  basert chat qwen3 --system 'Be brief.' --no-think
  printf 'My name is Ada.\\nWhat is my name?\\n' | basert chat qwen3 --temp 0
  basert chat qwen3 --session ada.session                goes on another day

Commands: /clear begins a new conversation, /exit or ^D ends, /help shows them; //text sends /text. A line that ends \
in \\ goes on in the next one.

^C stops the answer, not the conversation: what was said so far stays part of it. A second ^C before the answer has \
stopped ends the process. Thinking is shown dim (between tags where NO_COLOR is set), and speed is shown after every answer.

Unless standard input and output are both terminals, every line that is not empty is a message: answers, each ended by a \
newline, go to standard output without their thinking, and whatever would be refused at the prompt ends the run with status 1.

The conversation is read anew only from where the template changed what the model has read; see --prefix-cache. \
With --seed N, answer K is drawn with seed N + K - 1, counted from 1.";

#[derive(Args, Debug)]
pub struct ChatArgs {
    /// A .base file with a chat template; or NAME for NAME.base here, in models/ or in $BASERT_MODELS
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// System message at the beginning of every conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,

    /// Ask the template for answers with a thinking part
    #[arg(long, conflicts_with = "no_think")]
    pub think: bool,

    /// Ask the template for answers without one
    #[arg(long)]
    pub no_think: bool,

    #[command(flatten)]
    pub sampling: SamplingOptions,

    #[command(flatten)]
    pub answer: AnswerOptions,

    #[command(flatten)]
    pub run: RunOptions,

    #[command(flatten)]
    pub fit: FitOptions,

    #[command(flatten)]
    pub speculative: SpeculativeOptions,

    /// Go on from what this file holds, if it exists, and keep the conversation in it at the end
    #[arg(long, value_name = "FILE")]
    pub session: Option<PathBuf>,

    /// Room for earlier states of the conversation (0: none), from which an answer begins where the template has changed what was read
    /// [default: what the context can use, at most 1GiB and an eighth of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = room)]
    pub prefix_cache: Option<u64>,

    /// Keep these states in this file from one run to the next
    #[arg(long, value_name = "FILE")]
    pub prefix_cache_file: Option<PathBuf>,

    /// Show what was selected: instruction set, threads, weights, KV types, context, memory; and speed in a pipe, too
    #[arg(short, long)]
    pub verbose: bool,
}

const COMPLETE_EXAMPLES: &str = "\
Examples:
  basert complete qwen3.base -p 'Once upon a time' --max-tokens 64
  basert complete qwen3.base --chat --system 'Be brief.' -p 'Why is the sky blue?'
  git diff | basert complete qwen3.base --chat --prompt-file - --temp 0
  basert complete qwen3.base --prompt-ids 9707,11 --temp 0 --json | jq .ids
  basert complete qwen3.base --session tale.session -p ' Then'   adds to a tale, and to the file

The answer goes to standard output, everything else to standard error. It ends at an end-of-sequence token, a \
stop string, --max-tokens or the end of the context, whichever comes first; ^C stops it and exits with status 130. \
Results do not depend on --threads.";

#[derive(Args, Debug)]
pub struct CompleteArgs {
    /// A .base file; or NAME for NAME.base here, in models/ or in $BASERT_MODELS
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    #[command(flatten)]
    pub prompt: PromptOptions,

    #[command(flatten)]
    pub sampling: SamplingOptions,

    #[command(flatten)]
    pub answer: AnswerOptions,

    /// Do not stop at end-of-sequence tokens
    #[arg(long, help_heading = "Stopping")]
    pub ignore_eos: bool,

    #[command(flatten)]
    pub run: RunOptions,

    #[command(flatten)]
    pub fit: FitOptions,

    #[command(flatten)]
    pub speculative: SpeculativeOptions,

    /// Continue the text in this file, if it exists, with the prompt, and keep all of it and the answer there
    #[arg(long, value_name = "FILE", conflicts_with = "chat")]
    pub session: Option<PathBuf>,

    /// Print one JSON object at the end instead of streaming
    #[arg(long)]
    pub json: bool,

    /// Show what was selected: instruction set, threads, weights, KV types, context, memory
    #[arg(short, long)]
    pub verbose: bool,
}
