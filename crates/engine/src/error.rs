//! What can go wrong between a `.base` file and a token.

use std::path::PathBuf;

use basert_format::FormatError;
use basert_kernels::{KernelError, KvDtype};
use basert_model::ModelError;

/// Errors of loading and running a model.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The file itself is not readable as `.base`.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The header describes no model that this engine runs.
    #[error("{}: {source}", path.display())]
    Model {
        /// The model file.
        path: PathBuf,
        /// What the model crate says.
        source: ModelError,
    },
    /// The CPU cannot do what was asked.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A tensor that the architecture needs is not in the file.
    #[error("{}: tensor '{name}' is missing", path.display())]
    MissingTensor {
        /// The model file.
        path: PathBuf,
        /// Canonical tensor name.
        name: String,
    },
    /// A tensor is there but does not fit the configuration.
    #[error("{}: tensor '{name}' has shape {found:?}, but the configuration asks for {expected:?}", path.display())]
    Shape {
        /// The model file.
        path: PathBuf,
        /// Canonical tensor name.
        name: String,
        /// Shape in the file.
        found: Vec<u64>,
        /// Shape by the configuration.
        expected: Vec<usize>,
    },
    /// A tensor's contents cannot be used.
    #[error("{}: tensor '{name}': {reason}", path.display())]
    Tensor {
        /// The model file.
        path: PathBuf,
        /// Canonical tensor name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A source could not make a tensor's values.
    #[error("{}: tensor '{name}': {cause}", path.display())]
    Source {
        /// The source.
        path: PathBuf,
        /// Canonical tensor name.
        name: String,
        /// What the source says.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file is known to hold weights that would run but answer nonsense.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The model file.
        path: PathBuf,
        /// Why it is not run.
        reason: String,
    },
    /// An option that cannot be honoured for this model.
    #[error("{option}: {reason}")]
    Option {
        /// The option by its name in [`crate::Options`].
        option: &'static str,
        /// Why, with the numbers.
        reason: String,
    },
    /// A quantised cache for heads that are not whole blocks of it.
    #[error(
        "{}: a {dtype} {side} cache holds heads of a multiple of {} elements, but this model's have {head_dim}; \
         f16 and bf16 hold heads of any size",
        path.display(),
        dtype.block_elements()
    )]
    KvBlocks {
        /// The model file.
        path: PathBuf,
        /// `K` or `V`.
        side: &'static str,
        /// What was asked for.
        dtype: KvDtype,
        /// Elements of a head.
        head_dim: usize,
    },
    /// More tokens than the sequence's context holds.
    #[error("{needed} tokens do not fit the context of {context}")]
    ContextFull {
        /// Tokens asked for, those already in the sequence included.
        needed: usize,
        /// Context length in tokens.
        context: usize,
    },
    /// A step larger than the engine was loaded for.
    #[error("the step has {found} {what}, but the engine was loaded for at most {limit}")]
    StepTooLarge {
        /// `tokens` or `logit rows`.
        what: &'static str,
        /// Asked for.
        found: usize,
        /// Loaded for.
        limit: usize,
    },
    /// A token id outside the embedding table.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    TokenId {
        /// The id.
        id: u32,
        /// Rows of the embedding table.
        vocab: usize,
    },
    /// A run or a prompt without tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A sequence id that is not live, or that appears twice in one step.
    #[error("sequence {0} is not live or appears twice in the step")]
    Sequence(usize),
    /// Tokens that are not those that a sequence has run.
    #[error("{given} tokens were named, but the sequence has run {run}")]
    Prefix {
        /// Tokens named.
        given: usize,
        /// Tokens run.
        run: usize,
    },
    /// The caches contradict themselves.
    #[error("the caches contradict themselves: {0}; this is a bug, please report it")]
    Integrity(String),
    /// A file of kept prefixes or of a session that cannot be used or written.
    #[error("{}: {reason}", path.display())]
    StateFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// All sequence slots are taken.
    #[error("all {0} sequences are in use")]
    NoFreeSequence(usize),
    /// A sampling parameter outside its range.
    #[error("{name} must be {range}")]
    Sampling {
        /// Parameter name.
        name: &'static str,
        /// Legal range in words.
        range: &'static str,
    },
    /// A bias for a token that does not exist, or that is no number.
    #[error("logit bias for token {id}: the vocabulary has {vocab} tokens and the bias must be a number")]
    LogitBias {
        /// Token id.
        id: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// The answer cannot be held to its grammar any further.
    #[error("the answer cannot be constrained any further: {reason}")]
    Constraint {
        /// Why.
        reason: String,
    },
    /// The model produced no usable logits.
    #[error("the model produced logits that are not numbers; the file or the input is broken")]
    NotFinite,
}
