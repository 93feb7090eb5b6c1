//! What can be typed after `basert bench`, and the help that teaches it.

use std::path::PathBuf;

use basert_engine::{KvTypes, Residence};
use clap::Args;

use super::numbers::{Numbers, counts, numbers, rows};
use crate::options::{KvOptions, any_kv, positive, residence};

/// Examples and remarks at the end of the help.
pub const BENCH_HELP: &str = "\
Examples:
  basert bench qwen3.base
  basert bench qwen3.base -p 128,512,2048 -n 128 -d 0,4096-16384*2
  basert bench qwen3.base -p 0 -n 128 -b 1-8*2 -t 1-2 --roofline
  basert bench qwen3.5.base -p 0 -n 128 --verify 1-4
  basert bench qwen3-q4.base qwen3-q8.base --with-kv f16 --with-kv f32 --format markdown
  basert bench qwen3.base --json > before.json
  basert bench --compare before.json after.json

--verify runs the tokens of an answer so many at a time, as guesses that were right are verified, and shows what a step costs \
against one of a single token. A model with a prediction head (mtp) guesses before every step, on a row of its own. The \
head is then loaded for the other tests as well.

Numbers are lists of numbers and ranges: 1-4 is 1,2,3,4, 512-2048+512 adds 512, 1-16*2 doubles. Every prompt (-p) and every \
answer (-n, with every -b) is measured at every depth, with every model, KV type, page size and number of threads. \
Repetitions take turns: one of everything, then again one of everything, models and settings side by side.

A result is the median of the repetitions ± their median absolute deviation. Prefill counts up to the logits of the last \
prompt token, the first token also its choice; batched decode counts the tokens of all sequences. Token ids are arbitrary. \
^C ends with what was measured so far, marked as incomplete, and status 130. docs/benchmarks.md has the formulas.

--compare ends with status 1 where something is slower: the medians differ by more than --tolerance, and their 95 % intervals \
do not overlap.";

const LOAD: &str = "What to measure";
const RUN: &str = "Settings";
const OUT: &str = "Result";
const COMPARE: &str = "Comparison";

#[derive(Args, Debug)]
pub struct BenchArgs {
    /// .base files; or NAME for NAME.base here, in models/ or in $BASERT_MODELS
    #[arg(value_name = "MODEL", required_unless_present = "compare", conflicts_with = "compare")]
    pub models: Vec<PathBuf>,

    /// Tokens of a prompt; 0 measures none
    #[arg(short, long, value_name = "N,…", default_value = "512", value_parser = numbers, conflicts_with = "compare", help_heading = LOAD)]
    pub prompt: Numbers,

    /// Tokens of an answer; 0 measures none
    #[arg(short = 'n', long, value_name = "N,…", default_value = "128", value_parser = numbers, conflicts_with = "compare", help_heading = LOAD)]
    pub decode: Numbers,

    /// Tokens that are in the cache before; filling it is not timed
    #[arg(short, long, value_name = "N,…", default_value = "0", value_parser = numbers, conflicts_with = "compare", help_heading = LOAD)]
    pub depth: Numbers,

    /// Sequences that decode at once
    #[arg(short, long, value_name = "N,…", default_value = "1", value_parser = counts, conflicts_with = "compare", help_heading = LOAD)]
    pub batch: Numbers,

    /// Tokens of one sequence that a step verifies, as guesses are, up to 17; one token, which the others are compared with, is
    /// always measured
    #[arg(long, value_name = "N,…", value_parser = rows, conflicts_with = "compare", help_heading = LOAD)]
    pub verify: Option<Numbers>,

    /// Repetitions that count
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = positive, conflicts_with = "compare", help_heading = LOAD)]
    pub repetitions: usize,

    /// Repetitions before them that do not
    #[arg(short, long, value_name = "N", default_value = "1", conflicts_with = "compare", help_heading = LOAD)]
    pub warmup: usize,

    /// Also measure what this machine can read and multiply at most, and show every result as a share of it
    #[arg(long, conflicts_with = "compare", help_heading = LOAD)]
    pub roofline: bool,

    /// Worker threads [default: BASERT_THREADS, else the CPUs this process may use, by affinity and cgroup quota]
    #[arg(short, long, value_name = "N,…", value_parser = counts, conflicts_with = "compare", help_heading = RUN)]
    pub threads: Option<Numbers>,

    /// Pin every thread to a CPU of its own (Linux)
    #[arg(long, conflicts_with = "compare", help_heading = RUN)]
    pub pin: bool,

    /// Measure with each of these KV types, named as for --kv-type or --kv-bits; may be given several times
    #[arg(long, value_name = "TYPE", value_parser = any_kv, conflicts_with = "compare", help_heading = RUN)]
    pub with_kv: Vec<KvTypes>,

    /// Tokens per page of the KV cache, multiples of 32; 0 is one page for everything
    #[arg(long, value_name = "N,…", default_value = "0", value_parser = numbers, conflicts_with = "compare", help_heading = RUN)]
    pub paged_kv: Numbers,

    /// Where the weights are: map, prefault, lock or copy
    #[arg(long, value_name = "WHERE", default_value = "map", value_parser = residence, conflicts_with = "compare", help_heading = RUN)]
    pub weights: Residence,

    #[command(flatten)]
    pub kv: KvOptions,

    /// How results are printed: table, markdown, json or csv [default: table]
    #[arg(long, value_name = "FORMAT", value_parser = format, conflicts_with = "json", help_heading = OUT)]
    pub format: Option<Format>,

    /// Print one JSON object, with all samples
    #[arg(long, help_heading = OUT)]
    pub json: bool,

    /// Compare two results of --json, the earlier one first
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], help_heading = COMPARE)]
    pub compare: Vec<PathBuf>,

    /// Losses up to this many percent are no regression
    #[arg(long, value_name = "PERCENT", default_value = "3", value_parser = percent, conflicts_with = "models", help_heading = COMPARE)]
    pub tolerance: f64,

    /// Compare results of different models, machines or instruction sets, and unfinished ones
    #[arg(long, conflicts_with = "models", help_heading = COMPARE)]
    pub force: bool,
}

impl BenchArgs {
    /// How results are printed.
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format.unwrap_or(Format::Table) }
    }
}

/// Forms of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Table,
    Markdown,
    Json,
    Csv,
}

fn format(s: &str) -> Result<Format, String> {
    match s {
        "table" => Ok(Format::Table),
        "markdown" => Ok(Format::Markdown),
        "json" => Ok(Format::Json),
        "csv" => Ok(Format::Csv),
        _ => Err("must be table, markdown, json or csv".to_owned()),
    }
}

fn percent(s: &str) -> Result<f64, String> {
    let parsed = s.parse().ok().filter(|x: &f64| (0.0..100.0).contains(x));
    parsed.ok_or_else(|| "must be a number from 0 to below 100".to_owned())
}
