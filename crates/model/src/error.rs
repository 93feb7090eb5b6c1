//! Why a configuration cannot become a model.

use thiserror::Error;

/// A configuration that is incomplete, contradictory or outside what BaseRT computes correctly.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModelError {
    /// A key without which the model is not determined; defaults are never guessed.
    #[error("{place} has no `{key}`")]
    MissingKey {
        /// Where the key was looked for, e.g. `config.json`.
        place: &'static str,
        /// Full key.
        key: String,
    },
    /// A key whose value has the wrong type or range.
    #[error("{place}: `{key}` is {found}, expected {expected}")]
    BadValue {
        /// Where the key stands.
        place: &'static str,
        /// Full key.
        key: String,
        /// The value, shortened.
        found: String,
        /// What would be accepted.
        expected: String,
    },
    /// An architecture name that is not known.
    #[error("{place}: architecture `{found}` is not supported (supported: {supported})")]
    UnknownArch {
        /// Where the name stands.
        place: &'static str,
        /// The name.
        found: String,
        /// Names that are supported.
        supported: &'static str,
    },
    /// A declared feature that would change the result and is not implemented.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// Values that contradict each other or exceed a limit.
    #[error("{0}")]
    Inconsistent(String),
}
