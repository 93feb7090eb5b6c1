//! Split expressions of the pre-tokenizers that a GGUF knows by name only.
//!
//! Sources: the `tokenizer.json` of a model of each kind; llama.cpp's `llama-vocab.cpp` maps names to the same
//! expressions.

/// GPT-2, also what `ByteLevel` with `use_regex` means in a `tokenizer.json`.
pub(crate) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// A single numeral.
pub(crate) const DIGIT: &str = r"\p{N}";

/// Qwen 2, 2.5 and 3: one numeral at a time.
pub(crate) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Qwen 3.5: combining marks belong to words.
pub(crate) const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Llama 3: up to three numerals at a time.
pub(crate) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Mistral Nemo and later: a word ends where lower case turns to upper.
pub(crate) const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What a pre-tokenizer's name implies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pre {
    /// Split by the first, each piece by the next.
    pub(crate) splits: &'static [&'static str],
    /// Whether the model normalises text to NFC. A GGUF does not say; llama.cpp never does.
    pub(crate) nfc: bool,
    /// Whether a piece that is a token as it stands is taken whole.
    pub(crate) ignore_merges: bool,
    /// Whether a beginning-of-sequence token is added unless the metadata says otherwise.
    pub(crate) add_bos: bool,
}

impl Pre {
    /// The known names, for messages.
    pub(crate) const NAMES: &str = "qwen2, qwen35, deepseek-r1-qwen, llama-bpe, tekken, smollm and gpt-2 are";

    /// Looks a name up. Guessing would give ids that are nearly right, so there is no default.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        let splits: &[&str] = match name {
            "qwen2" | "deepseek-r1-qwen" => &[QWEN2],
            "qwen35" => &[QWEN35],
            "llama-bpe" | "llama3" | "llama-v3" | "pixtral" | "falcon3" => &[LLAMA3],
            "tekken" => &[TEKKEN],
            "smollm" => &[DIGIT, GPT2],
            "gpt-2" => &[GPT2],
            _ => return None,
        };
        let whole = matches!(splits, [LLAMA3 | TEKKEN]);
        Some(Self { splits, nfc: matches!(splits, [QWEN2 | QWEN35]), ignore_merges: whole, add_bos: whole })
    }
}
