//! What can be typed after `basert plan`, and the help that teaches it.

use std::path::PathBuf;

use basert_convert::Target;
use clap::{Args, ValueEnum};

use crate::args::target;
use crate::options::{KvOptions, PlaceOptions, SpeculativeOptions, WorkOptions, positive, room, size};
use crate::reserved::Purpose;

/// Examples and remarks at the end of the help.
pub const PLAN_HELP: &str = "\
Examples:
  basert plan qwen3.base --max-context 32768 --kv-bits 84
  basert plan ./Qwen3.5-35B-A3B --target base-q4 --parallel 4 --prefix-cache 2GiB
  basert plan qwen3.5-35b-a3b --fit 24GiB                        the largest context
  basert plan qwen3.5-35b-a3b --fit 24GiB --max-context 131072   the widest KV cache
  basert plan qwen3 --for serve --fit 4GiB                       what serve --fit allocates
  basert plan qwen3.5-35b-a3b --max-context 131072 --record > record.json
  basert plan --catalog --filter hybrid --sort reduction

A plan is computed by the code that allocates: a running model takes these bytes. The weights of a .base file are those in \
it; of anything else they are estimated for --target. Geometries that this version cannot run have a cache, a state and a \
record, by their own formulas, but no weights and no workspace.

--fit gives way as the running commands do: K and V, unless a type is named, become the widest of 16, 8, 84 and 4 with which \
the whole context fits; where none does, the narrowest, and the context becomes the largest that fits.

--prefix-cache reserves room for prefixes that are kept between requests, half of it for recurrent states where there are any. \
Sizes are in bytes or have a unit: 16GiB, 16G (the same), 16GB (decimal).";

#[derive(Args, Debug)]
pub struct PlanArgs {
    /// A .base file or its NAME, a checkpoint's folder, a config.json, or a geometry of the catalog
    #[arg(value_name = "MODEL", required_unless_present = "catalog")]
    pub model: Option<PathBuf>,

    /// Tokens of a sequence [default: the model's own limit]
    #[arg(
        short = 'c', long, value_name = "N", env = "BASERT_CONTEXT", hide_env_values = true,
        value_parser = positive
    )]
    pub max_context: Option<usize>,

    #[command(flatten)]
    pub kv: KvOptions,

    #[command(flatten)]
    pub places: PlaceOptions,

    #[command(flatten)]
    pub speculative: SpeculativeOptions,

    /// What it is planned for, with what that command reserves: complete, chat (room for earlier states), or serve (more answers
    /// at a time, room for kept prefixes, rows for log-probabilities) [default: complete]
    #[arg(
        long = "for",
        value_name = "COMMAND",
        default_value = "complete",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub purpose: Purpose,

    /// Sequences at a time [default: 1; for serve 4]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub parallel: Option<usize>,

    #[command(flatten)]
    pub work: WorkOptions,

    /// Room for prefixes that are kept between requests [default: none; for chat and serve as theirs]
    #[arg(long, value_name = "SIZE", value_parser = room)]
    pub prefix_cache: Option<u64>,

    /// What the large matrices are converted to, as for `basert convert` [default: base-q4]
    #[arg(long, value_name = "TARGET", value_parser = target)]
    pub target: Option<Target>,

    /// Memory to fit into, as for `basert serve`: finds the largest context, or with --max-context the widest KV cache
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "record")]
    pub fit: Option<u64>,

    /// Print the KV-cache efficiency record of the model at this context, as one JSON object
    #[arg(long, conflicts_with_all = ["json", "purpose", "parallel", "prefix_cache", "target", "speculative"])]
    pub record: bool,

    /// Allocate the cache of a .base file for the record, fill it to the end of the context, and time tokens on it
    #[arg(long, requires = "record")]
    pub measure: bool,

    /// List the caches of every geometry in the catalog, with the KV types asked for, at --max-context [default: 131072]
    #[arg(long, conflicts_with_all = ["model", "record", "fit", "purpose", "parallel", "prefix_cache", "target", "speculative", "paged_kv"])]
    pub catalog: bool,

    /// Lines of the catalog that contain this text in id, family, kind or grade; all of several
    #[arg(long, value_name = "TEXT", requires = "catalog")]
    pub filter: Vec<String>,

    /// Order of the catalog: by id, token (bytes of one), cache (at the context), state, reduction or grade
    #[arg(long, value_name = "COLUMN", requires = "catalog", hide_possible_values = true)]
    pub sort: Option<Column>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What the catalog can be sorted by; numbers have the smallest first, the reduction the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    Id,
    Token,
    Cache,
    State,
    Reduction,
    Grade,
}
