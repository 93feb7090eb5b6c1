//! The bytes of every token, worked out once from the vocabulary and the `decoder` definition.
//!
//! Decoding is then concatenation. The library's decoders work on whole strings of tokens, may fail, and spell a broken
//! byte sequence differently in the middle of a text than at its end; one table serves whole texts and streams alike.

use serde_json::Value;

use super::bytes;
use crate::TextError;

/// The highest id that a vocabulary may use. The largest real vocabularies have about 300 000 tokens; this bounds what
/// a damaged file can make us allocate.
const MAX_ID: u32 = 1 << 24;

/// What the `decoder` of a `tokenizer.json` does to one token's text.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    replace: Vec<(String, String)>,
    byte_fallback: bool,
    byte_level: bool,
    fused: bool,
    /// The first space of the whole text stands for the beginning of a word and is not text.
    pub(crate) strips_first_space: bool,
}

impl Decoder {
    /// Reads a `decoder` definition.
    pub(crate) fn new(definition: &Value) -> Result<Self, TextError> {
        let mut decoder = Self::default();
        decoder.read(definition)?;
        Ok(decoder)
    }

    fn read(&mut self, definition: &Value) -> Result<(), TextError> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let kind = definition.get("type").and_then(Value::as_str).unwrap_or("null");
        match kind {
            "Sequence" => {
                let parts = definition.get("decoders").and_then(Value::as_array);
                let missing = || TextError::field("decoder.decoders", "is missing");
                parts.ok_or_else(missing)?.iter().try_for_each(|part| self.read(part))?;
            }
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => self.fused = true,
            "Replace" => {
                let from = text(definition.get("pattern").and_then(|p| p.get("String")));
                let to = text(definition.get("content"));
                let (Some(from), Some(to)) = (from, to) else {
                    return Err(TextError::field("decoder.pattern", "of a `Replace` is not a plain string"));
                };
                self.replace.push((from, to));
            }
            "Metaspace" => {
                let mark = text(definition.get("replacement")).unwrap_or_else(|| "▁".to_owned());
                self.replace.push((mark, " ".to_owned()));
                self.strips_first_space = text(definition.get("prepend_scheme")).as_deref() != Some("never");
            }
            "Strip" if self.fused && is_one_leading_space(definition) => self.strips_first_space = true,
            other => {
                let hint = "decoders made of ByteLevel, Metaspace, Replace, ByteFallback, Fuse and a Strip of one \
                            leading space are";
                return Err(TextError::unsupported("decoder", other, hint));
            }
        }
        Ok(())
    }

    /// The bytes that a token of this spelling stands for.
    fn bytes(&self, token: &str) -> Vec<u8> {
        if self.byte_fallback
            && let Some(byte) = fallback_byte(token)
        {
            return vec![byte];
        }
        let mut text = token.to_owned();
        for (from, to) in &self.replace {
            text = text.replace(from, to);
        }
        // As in the library, a token with any character outside the byte alphabet (an added token with a space, say)
        // is plain text.
        let spelled = if self.byte_level { bytes::read(&text) } else { None };
        spelled.unwrap_or_else(|| text.into_bytes())
    }
}

fn is_one_leading_space(strip: &Value) -> bool {
    strip.get("content").and_then(Value::as_str) == Some(" ")
        && strip.get("start").and_then(Value::as_u64) == Some(1)
        && strip.get("stop").and_then(Value::as_u64) == Some(0)
}

/// The byte of a `<0x0A>` token.
pub(crate) fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| hex)
}

/// Every token's bytes, by id. Ids may have holes: padding of the vocabulary to a round number, unused entries.
#[derive(Debug)]
pub(crate) struct Table {
    /// `bytes[ends[id - 1]..ends[id]]` belongs to `id`.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    known: Vec<bool>,
    longest_spelled: usize,
}

impl Table {
    /// Builds the table for a vocabulary: every token's text, once, and its id.
    pub(crate) fn new(vocab: &[(&str, u32)], decoder: &Decoder) -> Result<Self, TextError> {
        let size = vocab.iter().map(|&(_, id)| id as usize + 1).max().unwrap_or(0);
        if size > MAX_ID as usize {
            return Err(TextError::field(
                "model.vocab",
                format!("has an id of {} (limit {MAX_ID})", size - 1),
            ));
        }
        let mut tokens = vec![None; size];
        for &(token, id) in vocab {
            if let Some(other) = tokens[id as usize].replace(token) {
                return Err(TextError::field(
                    "model.vocab",
                    format!("gives id {id} to `{other}` and to `{token}`"),
                ));
            }
        }
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(size),
            known: Vec::with_capacity(size),
            longest_spelled: vocab.iter().map(|(token, _)| token.len()).max().unwrap_or(0),
        };
        for token in tokens {
            table.known.push(token.is_some());
            if let Some(token) = token {
                table.bytes.extend(decoder.bytes(token));
            }
            table.ends.push(table.bytes.len());
        }
        Ok(table)
    }

    /// One past the highest id.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Most bytes of a token.
    pub(crate) fn longest(&self) -> usize {
        (0..).zip(&self.ends).filter_map(|(id, _)| self.get(id)).map(<[u8]>::len).max().unwrap_or(0)
    }

    /// Most bytes of a token as the vocabulary spells it.
    pub(crate) fn longest_spelled(&self) -> usize {
        self.longest_spelled
    }

    /// The bytes of a token; `None` for an id that has none.
    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        if !*self.known.get(id)? {
            return None;
        }
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Some(&self.bytes[start..self.ends[id]])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn byte_tokens_of_a_sentencepiece_vocabulary_are_single_bytes() {
        for (token, byte) in [("<0x00>", Some(0)), ("<0xAD>", Some(0xAD)), ("<0xff>", Some(0xFF))] {
            assert_eq!(fallback_byte(token), byte);
        }
        for token in ["<0x1>", "<0x123>", "<0xG0>", "0xAD", "<0x+1>"] {
            assert_eq!(fallback_byte(token), None, "{token}");
        }
    }

    #[test]
    fn decoders_that_look_across_tokens_are_refused_by_name() {
        for (definition, name) in [
            (Value::Null, "`null`"),
            (json!({"type": "WordPiece", "prefix": "##", "cleanup": true}), "`WordPiece`"),
            (json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}), "`Strip`"),
        ] {
            let err = Decoder::new(&definition).unwrap_err().to_string();
            assert!(err.contains(name), "{err}");
        }
    }

    #[test]
    fn two_tokens_with_one_id_are_refused() {
        let vocab = [("a", 3), ("b", 3)];
        let err = Table::new(&vocab, &Decoder::default()).unwrap_err().to_string();
        assert!(err.contains("id 3") && err.contains("`a`") && err.contains("`b`"), "{err}");
    }

    #[test]
    fn an_absurd_id_is_refused_before_anything_is_allocated() {
        let vocab = [("a", u32::MAX)];
        assert!(Table::new(&vocab, &Decoder::default()).is_err());
    }

    #[test]
    fn holes_in_the_vocabulary_have_no_bytes() {
        let vocab = [("a", 0), ("b", 2)];
        let table = Table::new(&vocab, &Decoder::default()).unwrap();
        let all: Vec<_> = (0..4).map(|id| table.get(id)).collect();
        assert_eq!(all, [Some(&b"a"[..]), None, Some(&b"b"[..]), None]);
    }
}
