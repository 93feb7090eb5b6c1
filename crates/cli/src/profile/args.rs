//! What can be typed after `basert profile`.

use std::path::PathBuf;

use clap::Args;

use crate::options::{RunOptions, positive};

/// Examples and remarks at the end of the help.
pub const PROFILE_HELP: &str = "\
Examples:
  basert profile qwen3.base
  basert profile qwen3.base -p 0 -n 64 -d 16384 --kv-bits 8
  basert profile qwen3.base --layers --flame profile.svg

Every operation is timed from its call to its return, all threads included. Bytes are those of weights, KV cache and recurrent \
state, multiply-adds those of linear layers, attention and delta rule; what a rate is worth shows `basert bench --roofline`. \
Repetitions with and without timing take turns, so that the cost of the timing itself is shown.";

#[derive(Args, Debug)]
pub struct ProfileArgs {
    /// A .base file; or NAME for NAME.base here, in models/ or in $BASERT_MODELS
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// Tokens of the prompt; 0 leaves prefill out
    #[arg(short, long, value_name = "N", default_value = "512")]
    pub prompt: usize,

    /// Tokens of the answer; 0 leaves decode out
    #[arg(short = 'n', long, value_name = "N", default_value = "32")]
    pub decode: usize,

    /// Tokens that are in the cache before
    #[arg(short, long, value_name = "N", default_value = "0")]
    pub depth: usize,

    /// Sequences that decode at once
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = positive)]
    pub batch: usize,

    /// Repetitions, with and without timing each
    #[arg(short, long, value_name = "N", default_value = "3", value_parser = positive)]
    pub repetitions: usize,

    /// One line for every layer, not their sum
    #[arg(long)]
    pub layers: bool,

    /// Print one JSON object, with every layer
    #[arg(long)]
    pub json: bool,

    /// Draw it as an SVG: layers and operations as wide as their time
    #[arg(long, value_name = "FILE")]
    pub flame: Option<PathBuf>,

    /// Replace the picture if it exists
    #[arg(long, requires = "flame")]
    pub force: bool,

    #[command(flatten)]
    pub run: RunOptions,
}
