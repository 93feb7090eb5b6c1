//! The vocabulary arrays of a GGUF, and reading its metadata.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::TextError;

/// `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Tokens by id with their types.
#[derive(Debug)]
pub(crate) struct Vocab<'a> {
    tokens: Vec<(&'a str, TokenType)>,
}

impl<'a> Vocab<'a> {
    /// Reads `tokenizer.ggml.tokens` and `.token_type`. No token may occur twice: an id could not be told from a text.
    pub(crate) fn new(meta: &'a Map<String, Value>) -> Result<Self, TextError> {
        let texts = strings(meta, "tokenizer.ggml.tokens")?;
        const TYPES: &str = "tokenizer.ggml.token_type";
        let types: Vec<TokenType> = match meta.get(TYPES) {
            None => vec![TokenType::Normal; texts.len()],
            Some(value) => array(value, TYPES)?.iter().map(token_type).collect::<Result<_, _>>()?,
        };
        if types.len() != texts.len() {
            let problem = format!("has {} entries for {} tokens", types.len(), texts.len());
            return Err(TextError::field(TYPES, problem));
        }
        let vocab = Self { tokens: texts.into_iter().zip(types).collect() };
        let mut seen = HashMap::with_capacity(vocab.tokens.len());
        for (id, token, _) in vocab.used() {
            if let Some(other) = seen.insert(token, id) {
                let problem = format!("has `{token}` twice, as {other} and {id}");
                return Err(TextError::field("tokenizer.ggml.tokens", problem));
            }
        }
        Ok(vocab)
    }

    /// The tokens that can occur: without the padding (`[PAD151669]`, type unused) that rounds a vocabulary up.
    pub(crate) fn used(&self) -> impl Iterator<Item = (u32, &'a str, TokenType)> {
        let used =
            |(_, (token, kind)): &(u32, &(&str, TokenType))| *kind != TokenType::Unused && !token.is_empty();
        (0..).zip(&self.tokens).filter(used).map(|(id, &(token, kind))| (id, token, kind))
    }

    pub(crate) fn get(&self, id: u32) -> Option<&'a str> {
        self.tokens.get(id as usize).map(|(token, _)| *token)
    }

    /// The token that `key` refers to.
    pub(crate) fn require(&self, id: u32, key: &str) -> Result<&'a str, TextError> {
        let outside = || TextError::field(key, format!("is {id}, outside the {} tokens", self.tokens.len()));
        self.get(id).ok_or_else(outside)
    }

    /// `model.vocab`. Added tokens are in it too, because in a GGUF their ids may be anywhere.
    pub(crate) fn ids(&self) -> Map<String, Value> {
        self.used().map(|(id, token, _)| (token.to_owned(), id.into())).collect()
    }

    /// `added_tokens`: control tokens as special, user-defined ones as not special.
    pub(crate) fn added_tokens(&self) -> Vec<Value> {
        let added = |(id, token, kind): (u32, &str, TokenType)| {
            let special = match kind {
                TokenType::Control | TokenType::Unknown => true,
                TokenType::UserDefined => false,
                TokenType::Normal | TokenType::Unused | TokenType::Byte => return None,
            };
            Some(json!({
                "id": id,
                "content": token,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": special,
            }))
        };
        self.used().filter_map(added).collect()
    }
}

fn token_type(value: &Value) -> Result<TokenType, TextError> {
    Ok(match value.as_u64() {
        Some(1) => TokenType::Normal,
        Some(2) => TokenType::Unknown,
        Some(3) => TokenType::Control,
        Some(4) => TokenType::UserDefined,
        Some(5) => TokenType::Unused,
        Some(6) => TokenType::Byte,
        _ => {
            return Err(TextError::field(
                "tokenizer.ggml.token_type",
                format!("has an entry {value} (1 to 6 are known)"),
            ));
        }
    })
}

/// A string, if the key is there.
pub(crate) fn text<'a>(meta: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, TextError> {
    let wrong = || TextError::field(key, "is not a string");
    meta.get(key).map(|value| value.as_str().ok_or_else(wrong)).transpose()
}

/// A boolean, if the key is there.
pub(crate) fn flag(meta: &Map<String, Value>, key: &str) -> Result<Option<bool>, TextError> {
    let wrong = || TextError::field(key, "is not a boolean");
    meta.get(key).map(|value| value.as_bool().ok_or_else(wrong)).transpose()
}

/// A token id, if the key is there.
pub(crate) fn token_id(meta: &Map<String, Value>, key: &str) -> Result<Option<u32>, TextError> {
    let wrong = || TextError::field(key, "is not a token id");
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong);
    meta.get(key).map(id).transpose()
}

/// An array of strings, which must be there.
pub(crate) fn strings<'a>(meta: &'a Map<String, Value>, key: &str) -> Result<Vec<&'a str>, TextError> {
    let value = meta.get(key).ok_or_else(|| TextError::field(key, "is missing"))?;
    let text = |(i, value): (usize, &'a Value)| {
        value
            .as_str()
            .ok_or_else(|| TextError::field(key, format!("has something other than text in entry {i}")))
    };
    array(value, key)?.iter().enumerate().map(text).collect()
}

/// An array of numbers, which must be there.
pub(crate) fn numbers(meta: &Map<String, Value>, key: &str) -> Result<Vec<f64>, TextError> {
    let value = meta.get(key).ok_or_else(|| TextError::field(key, "is missing"))?;
    let number = |(i, value): (usize, &Value)| {
        value
            .as_f64()
            .ok_or_else(|| TextError::field(key, format!("has something other than a number in entry {i}")))
    };
    array(value, key)?.iter().enumerate().map(number).collect()
}

fn array<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, TextError> {
    value.as_array().ok_or_else(|| TextError::field(key, "is not an array"))
}
