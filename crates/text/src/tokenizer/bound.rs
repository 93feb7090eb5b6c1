//! Texts that are too long are given up, most of them before anything is merged: a token covers only so many bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tokenizers::AddedToken;

use super::definition::Definition;
use crate::TextError;

/// Bytes that are read to their end whatever they come to, so that the error has the exact number.
const READ_ANYWAY: usize = 16 << 10;

/// How much of a text is worth reading.
#[derive(Debug, Clone)]
pub struct Bound {
    /// Most tokens that are of use.
    pub tokens: usize,
    /// Set by whoever no longer wants them. It is looked at between words.
    pub given_up: Arc<AtomicBool>,
}

impl Bound {
    /// A bound of so many tokens, which nobody gives up.
    pub fn of(tokens: usize) -> Bound {
        Bound { tokens, given_up: Arc::default() }
    }

    /// No bound.
    pub(crate) fn none() -> Bound {
        Bound::of(usize::MAX)
    }

    /// Stops where `made` tokens with at least `to_come` more are too many and `left` bytes have still to be read.
    ///
    /// # Errors
    /// [`TextError::TooLong`], [`TextError::GivenUp`].
    pub(crate) fn check(&self, made: usize, to_come: usize, left: usize) -> Result<(), TextError> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(TextError::GivenUp);
        }
        let at_least = made.saturating_add(to_come);
        if at_least > self.tokens && left > READ_ANYWAY {
            return Err(TextError::TooLong { at_least, most: self.tokens });
        }
        Ok(())
    }
}

/// What of a text a token can cover at most.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cover {
    /// Bytes of the text as the model gets it; absent if a token may stand for any number of them.
    pub(crate) normalized: Option<usize>,
    /// Bytes of the text as it was given; absent if the normalizer or an added token may swallow any number of them.
    pub(crate) raw: Option<usize>,
}

impl Cover {
    /// What a token of one byte can cover, by the parts of a `tokenizer.json`.
    pub(crate) fn of_a_byte(
        definition: &Definition<'_>,
        added: &[(u32, AddedToken)],
        is_bytes: bool,
    ) -> Result<Cover, TextError> {
        let is_bpe = definition.is_bpe()?;
        let falls_back = definition.model_field("byte_fallback")? == Some(true);
        // Otherwise characters without a token become one for all of them, or none.
        let normalized = (is_bpe && (is_bytes || falls_back)).then_some(1);
        let strips = added.iter().any(|(_, token)| token.lstrip || token.rstrip);
        let shrink = shrinkage(&definition.normalizer).filter(|_| !strips);
        Ok(Cover { normalized, raw: normalized.and(shrink) })
    }

    /// The same for tokens of at most so many bytes.
    pub(crate) fn times(self, longest: usize) -> Cover {
        let times = |bytes: Option<usize>| bytes.map(|bytes| bytes * longest.max(1));
        Cover { normalized: times(self.normalized), raw: times(self.raw) }
    }
}

/// The bytes that become one in a normalizer, at most; `None` if any number of them may.
fn shrinkage(normalizer: &Value) -> Option<usize> {
    match normalizer.get("type").and_then(Value::as_str) {
        None => Some(1),
        // Nine bytes of Hangul letters become a syllable of three; nothing shrinks more.
        Some("NFC") => Some(3),
        Some("Prepend") => Some(1),
        Some("Replace") => {
            let from = normalizer.get("pattern")?.get("String")?.as_str()?;
            let to = normalizer.get("content")?.as_str()?;
            (!from.is_empty() && from.len() <= to.len()).then_some(1)
        }
        Some("Sequence") => {
            let parts = normalizer.get("normalizers")?.as_array()?;
            parts.iter().map(shrinkage).try_fold(1, |product, part| Some(product * part?))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_may_swallow_text_proves_nothing() {
        let replace =
            |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let sequence = |parts: &[Value]| json!({"type": "Sequence", "normalizers": parts});
        for (normalizer, want) in [
            (Value::Null, Some(1)),
            (json!({"type": "NFC"}), Some(3)),
            (replace(" ", "▁"), Some(1)),
            (replace("  ", " "), None),
            (json!({"type": "Strip"}), None),
            (sequence(&[json!({"type": "Prepend", "prepend": "▁"}), json!({"type": "NFC"})]), Some(3)),
            (sequence(&[json!({"type": "NFC"}), json!({"type": "NFKC"})]), None),
        ] {
            assert_eq!(shrinkage(&normalizer), want, "{normalizer}");
        }
        let cover = |model: Value, added: &[(u32, AddedToken)], is_bytes| {
            let json = json!({"model": model}).to_string();
            Cover::of_a_byte(&Definition::parse(&json).unwrap(), added, is_bytes).unwrap().times(7)
        };
        let both = |cover: Cover| (cover.normalized, cover.raw);
        let plain = [(1, AddedToken::from("<a>", true))];
        let strips = [(1, AddedToken::from("<a>", true).rstrip(true))];
        assert_eq!(both(cover(json!({"type": "BPE"}), &plain, true)), (Some(7), Some(7)));
        assert_eq!(both(cover(json!({"type": "BPE"}), &strips, true)), (Some(7), None));
        assert_eq!(
            both(cover(json!({"type": "BPE", "byte_fallback": true}), &[], false)),
            (Some(7), Some(7))
        );
        assert_eq!(both(cover(json!({"type": "BPE", "fuse_unk": true}), &[], false)), (None, None));
        assert_eq!(both(cover(json!({"type": "Unigram"}), &[], true)), (None, None));
    }
}
