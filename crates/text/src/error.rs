//! What can go wrong between text and token ids.

/// Why a tokenizer, a chat template or a stop list cannot be used, or cannot handle one input.
///
/// The messages name the field, message or token that is wrong; the caller adds the file.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A piece of JSON does not parse.
    #[error("`{what}` is not valid JSON: {source}")]
    Json {
        /// The file or header key.
        what: &'static str,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A field is missing, has the wrong type or contradicts another field.
    #[error("`{field}` {problem}")]
    Field {
        /// The JSON path or GGUF key.
        field: String,
        /// What is wrong with it, as the rest of a sentence.
        problem: String,
    },
    /// The input is well formed but of a kind that is not implemented.
    #[error("{what} `{name}` is not supported ({hint})")]
    Unsupported {
        /// The kind of thing: "pre-tokenizer", "decoder", ...
        what: &'static str,
        /// Its name in the file.
        name: String,
        /// What is supported, or what to do instead.
        hint: String,
    },
    /// The tokenizer's own parts refuse the definition or the text.
    #[error("the tokenizer's {what} failed: {reason}")]
    Tokenizer {
        /// The part: "model", "normalizer", "pattern", ...
        what: &'static str,
        /// The library's own words.
        reason: String,
    },
    /// The chat template does not compile.
    #[error("the chat template has an error on line {line}: {reason}")]
    TemplateSyntax {
        /// One-based line.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The chat template called `raise_exception`: it was written to refuse such a conversation.
    #[error("the chat template refuses {}: {reason}", place(*.message))]
    Refused {
        /// Index of the message that the template was looking at, where it can be told.
        message: Option<usize>,
        /// The template's own words.
        reason: String,
    },
    /// The chat template failed on this conversation in a way that its author did not foresee.
    #[error("the chat template failed on line {line}: {reason}")]
    TemplateFailed {
        /// One-based line.
        line: usize,
        /// What happened there.
        reason: String,
    },
    /// The conversation has no messages.
    #[error("Cannot apply chat template to an empty conversation. Provide at least one message.")]
    NoMessages,
    /// A message, or a part of one, does not have the shape of a chat message.
    #[error("`{path}` {problem}")]
    Message {
        /// Where: `messages[2].tool_calls[0].function.arguments`.
        path: String,
        /// What is wrong, as the rest of a sentence.
        problem: String,
    },
    /// A conversation spells control tokens, and leaves no private-use character with which they could be told from the
    /// template's.
    #[error("the messages contain all private-use characters of Unicode; leave one out")]
    NoMark,
    /// A text has more tokens than are of use.
    #[error("the text has at least {at_least} tokens, and {most} is the most")]
    TooLong {
        /// Tokens that it is certain to have.
        at_least: usize,
        /// Most that are of use.
        most: usize,
    },
    /// Nobody wants the result any more.
    #[error("reading the text was given up")]
    GivenUp,
    /// A stop string is empty, so it would match everywhere.
    #[error("stop string {index} is empty")]
    EmptyStop {
        /// Its index in the list.
        index: usize,
    },
}

impl TextError {
    pub(crate) fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field { field: field.into(), problem: problem.into() }
    }

    pub(crate) fn unsupported(what: &'static str, name: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unsupported { what, name: name.into(), hint: hint.into() }
    }

    /// The same in words without the character that marked control tokens in contents.
    pub(crate) fn without(mut self, mark: char) -> Self {
        if let Self::Refused { reason, .. }
        | Self::TemplateFailed { reason, .. }
        | Self::Message { problem: reason, .. } = &mut self
        {
            reason.retain(|c| c != mark);
        }
        self
    }

    pub(crate) fn tokenizer(what: &'static str, reason: impl ToString) -> Self {
        Self::Tokenizer { what, reason: reason.to_string() }
    }
}

fn place(message: Option<usize>) -> String {
    message.map_or_else(|| "the conversation".to_owned(), |i| format!("messages[{i}]"))
}
