//! How models spell calls.

/// A way to spell calls; [the grammar](super) shows all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Between `<tool_call>` tags: Qwen's XML, or Hermes' JSON. What follows the tag tells which.
    #[default]
    Qwen,
    /// An answer that is JSON: Llama 3.
    Llama,
    /// Behind `[TOOL_CALLS]`: Mistral.
    Mistral,
    /// Between `<start_function_call>` tags: FunctionGemma.
    FunctionGemma,
    /// Between `<|tool_call>` tags: Gemma 4.
    Gemma4,
}

/// Special tokens that belong to calls, and that decoding therefore keeps.
pub(crate) const CALL_TAGS: [&str; 12] = [
    "<tool_call>",
    "</tool_call>",
    PYTHON,
    "[TOOL_CALLS]",
    CALL_ID,
    ARGUMENTS,
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
];

/// May stand before a call of [`Dialect::Llama`].
pub(super) const PYTHON: &str = "<|python_tag|>";
/// Behind the name in a call of [`Dialect::Mistral`].
pub(super) const CALL_ID: &str = "[CALL_ID]";
/// Before the arguments in one.
pub(super) const ARGUMENTS: &str = "[ARGS]";

impl Dialect {
    /// The dialect that a chat template, by its source, writes calls of the history in.
    pub fn of_template(source: &str) -> Dialect {
        let has = |tag: &str| source.contains(tag);
        if has(Dialect::Mistral.open()) {
            Dialect::Mistral
        } else if has(Dialect::FunctionGemma.open()) {
            Dialect::FunctionGemma
        } else if has(Dialect::Gemma4.open()) {
            Dialect::Gemma4
        } else if has(PYTHON) || (has("<|start_header_id|>") && has("\"parameters\"")) {
            Dialect::Llama
        } else {
            Dialect::Qwen
        }
    }

    /// What opens a call; empty where nothing does.
    pub fn open(self) -> &'static str {
        match self {
            Dialect::Qwen => "<tool_call>",
            Dialect::Llama => "",
            Dialect::Mistral => "[TOOL_CALLS]",
            Dialect::FunctionGemma => "<start_function_call>",
            Dialect::Gemma4 => "<|tool_call>",
        }
    }

    /// What closes a call; empty where nothing does.
    pub fn close(self) -> &'static str {
        match self {
            Dialect::Qwen => "</tool_call>",
            Dialect::Llama | Dialect::Mistral => "",
            Dialect::FunctionGemma => "<end_function_call>",
            Dialect::Gemma4 => "<tool_call|>",
        }
    }

    /// What closes a call, for messages.
    pub(super) fn close_in_words(self) -> &'static str {
        match self {
            Dialect::FunctionGemma => "`<end_function_call>`",
            Dialect::Gemma4 => "`<tool_call|>`",
            _ => "`</tool_call>`",
        }
    }

    /// What stands on both sides of a string in Gemma's dialects; empty in others.
    pub fn quote(self) -> &'static str {
        match self {
            Dialect::FunctionGemma => "<escape>",
            Dialect::Gemma4 => "<|\"|>",
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_tell_their_dialect() {
        for (source, dialect) in [
            ("{{- '<tool_call>\\n<function=' + name }}", Dialect::Qwen),
            ("{{- '<tool_call>\\n{\"name\": \"' }}", Dialect::Qwen),
            ("{{- '<|start_header_id|>' }}{{- '\"parameters\": ' }}", Dialect::Llama),
            ("{{- \"<|python_tag|>\" + call.name + \".call(\" }}", Dialect::Llama),
            ("{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}", Dialect::Mistral),
            ("{{- '<start_function_call>call:' + name }}", Dialect::FunctionGemma),
            ("{{- '<|tool_call>call:' + name }}", Dialect::Gemma4),
            ("{{- '<|start_header_id|>user' }}", Dialect::Qwen),
        ] {
            assert_eq!(Dialect::of_template(source), dialect, "{source}");
        }
    }
}
