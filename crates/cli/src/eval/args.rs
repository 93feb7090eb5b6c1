//! What can be typed after `basert eval`, and the help that teaches it.

use std::path::PathBuf;

use basert_engine::KvTypes;
use clap::Args;

use crate::options::{RunOptions, any_kv, positive};

/// Examples and remarks at the end of the help.
pub const EVAL_EXAMPLES: &str = "\
Examples:
  basert eval qwen3.base --text-file wiki.txt
  basert eval qwen3-q4.base qwen3-q8.base --text-file wiki.txt --against qwen3-bf16.base --picture quality.svg
  basert eval qwen3.base --recall --lengths 512,2048,8192 --depths 0,50,100
  basert eval qwen3.base --choices questions.jsonl --tool-calls calls.jsonl
  basert eval qwen3.base --text-file wiki.txt --with-kv 16 --with-kv 8 --with-kv 84
  basert eval qwen3.base --ids-file ids.json --kv-type f32 --dump-logits logits.safetensors

A text longer than the window is read in windows, each from an empty cache; the first token of a window is not scored. \
With --stride, windows overlap, and a token is scored in the first that has it. An ids file is one JSON array of token ids.

A line of --choices is {\"prompt\": \"The sky is\", \"choices\": [\" blue\", \" green\"], \"answer\": 0}; the choice with the largest \
log-likelihood counts. A line of --tool-calls is {\"messages\": [...], \"tools\": [...]} in OpenAI's form, and may have \
\"calls\": [{\"name\": ..., \"arguments\": {...}}], the calls that are expected. Answers are the likeliest, without thinking.

One model is reported in lines, several models or KV types as a table; --json prints one object for each. \
Results do not depend on --threads or --chunk.";

#[derive(Args, Debug)]
pub struct EvalArgs {
    /// .base files; or NAME for NAME.base here, in models/ or in $BASERT_MODELS
    #[arg(value_name = "MODEL", required = true)]
    pub models: Vec<PathBuf>,

    #[command(flatten)]
    pub measures: Measures,

    #[command(flatten)]
    pub reading: Reading,

    #[command(flatten)]
    pub recall: RecallOptions,

    /// Measure every model with each of these KV types, such as 16, 84, f32 or k=f32,v=f16; may be given several times
    #[arg(long, value_name = "TYPE", value_parser = any_kv)]
    pub with_kv: Vec<KvTypes>,

    /// Draw quality against bits per weight and KV bytes per token to this SVG file
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,

    /// Replace the dump or picture if it exists
    #[arg(long)]
    pub force: bool,

    #[command(flatten)]
    pub run: RunOptions,

    /// Print one JSON object on one line for each model and KV type
    #[arg(long)]
    pub json: bool,

    /// Show what was selected: instruction set, threads, weights, KV types, context, memory
    #[arg(short, long)]
    pub verbose: bool,
}

const MEASURES: &str = "What to measure, at least one";

/// What to measure.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct Measures {
    /// Perplexity on this text
    #[arg(long, value_name = "FILE", conflicts_with = "ids_file", help_heading = MEASURES)]
    pub text_file: Option<PathBuf>,

    /// Perplexity on these token ids
    #[arg(long, value_name = "FILE", help_heading = MEASURES)]
    pub ids_file: Option<PathBuf>,

    /// KL divergence and top-1 agreement with the reference logits that the converter left in MODEL itself
    #[arg(long, help_heading = MEASURES)]
    pub own_reference: bool,

    /// Recall of a pass key hidden in a long prompt, over lengths and depths
    #[arg(long, help_heading = MEASURES)]
    pub recall: bool,

    /// Multiple choice, by the log-likelihood of each choice
    #[arg(long, value_name = "JSONL", help_heading = MEASURES)]
    pub choices: Option<PathBuf>,

    /// Tool calls that the model makes: whether they are well-formed, declared and valid under their schema
    #[arg(long, value_name = "JSONL", help_heading = MEASURES)]
    pub tool_calls: Option<PathBuf>,
}

const READING: &str = "Text";

/// How a text is read.
#[derive(Args, Debug)]
pub struct Reading {
    /// On the text, also measure how far MODEL is from this reference model, run with an f32 cache: KL divergence and top-1 agreement
    #[arg(long, value_name = "REFERENCE", help_heading = READING)]
    pub against: Option<PathBuf>,

    /// Tokens of a window [default: all, if the context holds them]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = READING)]
    pub window: Option<usize>,

    /// Tokens from the start of a window to the start of the next [default: the window]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = READING)]
    pub stride: Option<usize>,

    /// Write the logits of every position to this file: one f32 tensor `logits` [positions, vocab], safetensors
    #[arg(long, value_name = "FILE", conflicts_with_all = ["against", "stride"], help_heading = READING)]
    pub dump_logits: Option<PathBuf>,

    /// Tokens per step; bounds the memory for logits
    #[arg(long, value_name = "N", default_value = "128", value_parser = positive, help_heading = READING)]
    pub chunk: usize,
}

const RECALL: &str = "Recall";

/// Which questions --recall asks.
#[derive(Args, Debug)]
pub struct RecallOptions {
    /// Tokens of the prompts [default: 512,1024,2048, as far as the context goes]
    #[arg(
        long, value_name = "N,…", value_delimiter = ',', value_parser = positive, requires = "recall", help_heading = RECALL
    )]
    pub lengths: Vec<usize>,

    /// Where the key stands, in percent of the text: 0 is its beginning
    #[arg(
        long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "0,25,50,75,100",
        value_parser = clap::value_parser!(u8).range(0..=100), requires = "recall", help_heading = RECALL
    )]
    pub depths: Vec<u8>,

    /// Questions for each length and depth
    #[arg(
        long, value_name = "N", default_value = "4", value_parser = positive, requires = "recall", help_heading = RECALL
    )]
    pub trials: usize,
}
