//! What can go wrong while measuring.

use std::io;
use std::path::PathBuf;

use basert_engine::EngineError;
use basert_text::TextError;

/// Errors of measurements and dumps.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Perplexity scores a token from the ones before it, so one token is not enough.
    #[error("{found} token ids are too few: at least 2 are needed in a window")]
    TooFewTokens {
        /// Ids given, or tokens in a window.
        found: usize,
    },
    /// Windows that would leave ids out, or no ids per step.
    #[error(
        "windows of {window} tokens at a stride of {stride} in steps of {chunk} do not cover a text; a stride is 1 to the window"
    )]
    Plan {
        /// Tokens of a window.
        window: usize,
        /// Tokens between the starts of two windows.
        stride: usize,
        /// Tokens of a step.
        chunk: usize,
    },
    /// The tokenizer or the chat template failed.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A line of a file with questions that is not one.
    #[error("line {line}: {problem}")]
    Question {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// No repetitions, or a clock that stands still.
    #[error("nothing was timed: at least one repetition is needed")]
    NothingTimed,
    /// A file without questions.
    #[error("there are no questions in it")]
    NoQuestions,
    /// Tools cannot be declared to the model.
    #[error("the model has no chat template with a place for tools")]
    NoToolTemplate,
    /// A recall prompt that is too short to hide anything in.
    #[error("a prompt of {length} tokens has no room: with nothing around the pass key it has {needed}")]
    RecallLength {
        /// Tokens asked for.
        length: usize,
        /// Tokens of the prompt without the text around the key.
        needed: usize,
    },
    /// The two models of a comparison do not speak of the same tokens.
    #[error("the models have vocabularies of {candidate} and {reference} tokens and cannot be compared")]
    Vocabulary {
        /// Logits per position of the model under test.
        candidate: usize,
        /// Logits per position of the reference.
        reference: usize,
    },
    /// A logit is NaN or infinite where a probability is needed.
    #[error("the logits at position {position} are not finite; the model or the input is broken")]
    NotFinite {
        /// Index into the ids.
        position: usize,
    },
    /// An input of a linear layer is NaN or infinite.
    #[error("inputs of `{weight}` are not finite; the model is broken")]
    Activations {
        /// Canonical name of the weight.
        weight: String,
    },
    /// The dump could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The output path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A dump was finished before all of its positions were written.
    #[error("{} would hold {found} values instead of {expected}", path.display())]
    Incomplete {
        /// The output path.
        path: PathBuf,
        /// Values written.
        found: u64,
        /// Values announced.
        expected: u64,
    },
    /// A converted model that cannot read, as its source's own values cannot.
    #[error(
        "it reads plain English as noise: perplexity {perplexity:.0} (the source's values: {source_perplexity:.0}) with a \
         vocabulary of {vocab}, {limit:.0} or more; a norm offset, head order or tokenizer is probably wrong"
    )]
    Noise {
        /// Of the converted file.
        perplexity: f64,
        /// Of the source's own values.
        source_perplexity: f64,
        /// Size of the vocabulary.
        vocab: usize,
        /// Perplexity from which on a model is refused.
        limit: f64,
    },
    /// A converted model that cannot read, though its source can.
    #[error(
        "quantisation has ruined it: it reads plain English at perplexity {perplexity:.0}, the source's values at \
         {source_perplexity:.1}; more bits, --calibration with a text, or a --profile will do better"
    )]
    Ruined {
        /// Of the converted file.
        perplexity: f64,
        /// Of the source's own values.
        source_perplexity: f64,
    },
    /// A Qwen3.5 model whose norms carry the offset twice.
    #[error(
        "the mean input norm gain is {mean:.2} instead of about 1: the offset of 1 is in these norms twice, once from the \
         checkpoint and once from its convention"
    )]
    DoubledNorms {
        /// The mean gain.
        mean: f64,
    },
    /// Likelihoods so small that their numbers are not finite.
    #[error(
        "it finds the replayed tokens impossible: {file_nll:.0} nats per token, the source's values {source_nll:.0}; \
         weights or norms are of the wrong size"
    )]
    NotMeasurable {
        /// Of the file.
        file_nll: f64,
        /// Of the source's values.
        source_nll: f64,
    },
    /// A file without reference logits.
    #[error("{} has no reference logits to compare with", path.display())]
    NoRecord {
        /// The file.
        path: PathBuf,
    },
    /// A quality record that is damaged.
    #[error("{}: {problem}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The caller's progress function asked to stop.
    #[error("stopped on request")]
    Stopped,
}
