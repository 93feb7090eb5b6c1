//! The text side of a hosted model: what requests are read and answered with.

use basert_engine::SamplingParams;
use basert_text::tools::Dialect;
use basert_text::{ChatTemplate, Tokenizer};

use crate::core::Grammars;

/// A model as requests see it. The weights are the [engine thread](crate::Worker)'s.
#[derive(Debug, Clone)]
pub struct Model {
    /// The name in requests.
    pub id: String,
    /// Seconds since 1970 when the file was made.
    pub created: u64,
    /// What the file is called, for `/props`.
    pub path: String,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// The model's chat template, or the one that replaces it; without one there is no chat.
    pub template: Option<ChatTemplate>,
    /// The template's source.
    pub template_source: Option<String>,
    /// Grammars that answers can be held to.
    pub grammars: Grammars,
    /// Ids that end an answer.
    pub eos: Vec<u32>,
    /// What requests that say nothing about sampling get, but for the seed.
    pub sampling: SamplingParams,
    /// The seed of requests that give none; without it each gets a fresh one.
    pub seed: Option<u64>,
}

impl Model {
    /// Whether the chat template can switch thinking.
    pub fn can_think(&self) -> bool {
        self.template_mentions("enable_thinking") || self.template_mentions("<think>")
    }

    /// How the model spells calls, by its chat template.
    pub fn dialect(&self) -> Dialect {
        self.template_source.as_deref().map_or_else(Dialect::default, Dialect::of_template)
    }

    /// Whether the chat template has a place for tools.
    pub fn takes_tools(&self) -> bool {
        self.template_mentions("tools")
    }

    /// Whether the chat template writes calls of earlier turns.
    pub fn takes_calls(&self) -> bool {
        self.template_mentions("tool_calls")
    }

    fn template_mentions(&self, word: &str) -> bool {
        self.template_source.as_ref().is_some_and(|source| source.contains(word))
    }

    /// A token as text; bytes that are no whole characters are spelled `bytes:\xe2\x82`, as OpenAI does.
    pub(crate) fn token_text(&self, id: u32) -> String {
        let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_else(|e| {
            let hex: String = e.as_bytes().iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{hex}")
        })
    }
}
