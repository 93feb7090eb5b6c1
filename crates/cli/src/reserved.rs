//! What the commands that answer reserve beside a model's weights: answers at a time, rows of logits, room for what was read
//! of earlier prompts. `basert plan --for` asks here as well.

use basert_engine::{Options, least_prefix_cache, wanted_context};
use basert_format::BaseFile;
use basert_model::ModelSpec;
use clap::ValueEnum;

use crate::bundle;

/// A command that answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Purpose {
    #[default]
    Complete,
    Chat,
    Serve,
}

/// Answers that a server makes at a time unless an option says otherwise.
const SLOTS: usize = 4;
/// Tokens of a prompt whose log-probabilities a server makes in one step.
const SCORED_ROWS: usize = 32;
/// Most bytes for what was read of earlier prompts where nobody says how many.
const USUAL_PREFIX_CACHE: u64 = 1 << 30;

impl Purpose {
    /// Room for so many answers at a time, or as many as usual.
    pub fn answers(self, asked: Option<usize>, options: &mut Options) {
        let (usual, scored) = if self == Purpose::Serve { (SLOTS, SCORED_ROWS) } else { (1, 0) };
        options.sequences = asked.unwrap_or(usual);
        options.logit_rows = options.sequences + scored;
    }

    /// Bytes for what was read of earlier prompts: those that were asked for, or the usual ones for weights of `weights` bytes.
    pub fn prefix_cache(self, asked: Option<u64>, spec: &ModelSpec, weights: u64, options: &Options) -> u64 {
        match (asked, self) {
            (Some(bytes), _) => bytes,
            (None, Purpose::Complete) => 0,
            (None, Purpose::Chat | Purpose::Serve) => usual_prefix_cache(spec, weights, options),
        }
    }

    /// The same for a file that is going to be loaded.
    pub fn prefix_cache_for(self, asked: Option<u64>, file: &BaseFile, options: &Options) -> u64 {
        let weights = file.tensors().map(|tensor| tensor.data.len() as u64).sum();
        // A file without a model is refused when it is loaded.
        bundle::model(file.header()).map_or(0, |spec| self.prefix_cache(asked, &spec, weights, options))
    }
}

/// As much as some conversations could need, of an eighth of the memory that is free, or of what `--fit` leaves beside the
/// weights; none if that is not enough for anything.
fn usual_prefix_cache(spec: &ModelSpec, weights: u64, options: &Options) -> u64 {
    let context = wanted_context(spec, options) as u64;
    let whole = options.kv.bytes_per_token(spec).saturating_mul(context);
    let useful =
        2 * whole.saturating_mul(2).max(16 * spec.state_bytes_per_sequence()).min(USUAL_PREFIX_CACHE);
    let free = options.fit.map(|budget| budget.saturating_sub(weights)).or_else(|| options.free_memory());
    let room = useful.min(USUAL_PREFIX_CACHE).min(free.map_or(u64::MAX, |free| free / 8));
    if least_prefix_cache(spec, options) <= room { room } else { 0 }
}
