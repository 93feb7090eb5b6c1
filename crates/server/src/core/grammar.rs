//! Grammars that answers can be held to, compiled for a model's tokens.

use std::fmt;
use std::sync::{Arc, OnceLock};

use basert_text::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::error::ApiError;

/// Most blanks in a row between the parts of a JSON value: a line break, and an indentation.
const MOST_BLANKS: usize = 32;

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Grammar {
    /// JSON that satisfies this schema.
    Json(Value),
    /// A text that this regular expression matches, from begin to end.
    Regex(String),
    /// A text of this grammar, in Lark's form.
    Lark(String),
}

impl Grammar {
    /// The grammar as a part of a rule in Lark's form.
    pub fn as_part(&self) -> String {
        match self {
            Grammar::Json(schema) => json_part(schema),
            Grammar::Regex(regex) => format!("/{}/", between_slashes(regex)),
            Grammar::Lark(lark) => format!("%lark {{\n{lark}\n}}"),
        }
    }
}

/// JSON that satisfies a schema, as a part of a rule in Lark's form.
pub(crate) fn json_part(schema: &Value) -> String {
    format!("%json {}", spaced(schema))
}

/// The schema, with few enough blanks between the parts of a value that a model that likes blanks comes to the end.
fn spaced(schema: &Value) -> Value {
    let mut schema = if *schema == Value::Bool(true) { json!({}) } else { schema.clone() };
    if let Value::Object(schema) = &mut schema {
        let options = || json!({"whitespace_pattern": format!("[ \\n\\r\\t]{{1,{MOST_BLANKS}}}")});
        schema.entry("x-guidance").or_insert_with(options);
    }
    schema
}

/// A regular expression as it stands between slashes on one line.
fn between_slashes(regex: &str) -> String {
    let mut escaped = false;
    let mut out = String::with_capacity(regex.len());
    for c in regex.chars() {
        match c {
            '/' if !escaped => out.push_str("\\/"),
            '\n' if !escaped => out.push_str("\\n"),
            '\n' => out.push('n'),
            c => out.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    out
}

/// Compiles grammars for one model. What all of them share is made for the first one. Cheap to clone.
#[derive(Clone, Default)]
pub struct Grammars(Arc<OnceLock<Result<ParserFactory, String>>>);

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammars")
    }
}

impl Grammars {
    /// Compiles a grammar; `field` is where it was given. Takes a while for the first one, and for large ones.
    ///
    /// # Errors
    /// What is wrong with the grammar, or that it is too large.
    pub(crate) fn compile(
        &self,
        grammar: &Grammar,
        field: &str,
        vocabulary: &Vocabulary<'_>,
    ) -> Result<Matcher, ApiError> {
        let factory = self.0.get_or_init(|| vocabulary.factory());
        let factory = factory.as_ref().map_err(|e| ApiError::internal(format!("grammars: {e}")))?;
        let grammar = match grammar {
            Grammar::Json(schema) => TopLevelGrammar::from_json_schema(spaced(schema)),
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        };
        let mut matcher = Matcher::new(factory.create_parser(grammar));
        // Some grammars go wrong at their first token only.
        let first = |matcher: &mut Matcher| matcher.compute_mask_or_eos().err().map(|e| e.to_string());
        match matcher.get_error().or_else(|| first(&mut matcher)) {
            None => Ok(matcher),
            // Its limits are assertions.
            Some(reason) if reason.starts_with("panic") => {
                Err(ApiError::field(field, "makes a grammar that is too large; use fewer or smaller schemas"))
            }
            Some(reason) => {
                let reason: String = reason.lines().next().unwrap_or_default().chars().take(300).collect();
                Err(ApiError::field(field, format!("cannot be followed: {reason}")))
            }
        }
    }
}

/// The tokens of a model.
#[derive(Debug)]
pub(crate) struct Vocabulary<'a> {
    pub tokenizer: &'a Tokenizer,
    /// Width of the logits.
    pub size: usize,
    pub eos: &'a [u32],
}

impl Vocabulary<'_> {
    fn factory(&self) -> Result<ParserFactory, String> {
        let size = u32::try_from(self.size).map_err(|e| e.to_string())?;
        let eos: Vec<u32> = self.eos.iter().copied().filter(|id| *id < size).collect();
        let first = *eos.first().ok_or("the model has no end-of-sequence token")?;
        let word = |id: u32| {
            let mut bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
            if self.tokenizer.is_special(id) || eos.contains(&id) {
                bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
            bytes
        };
        let words: Vec<Vec<u8>> = (0..size).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, first), &words).with_eos_tokens(&eos);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|e| e.to_string())?;
        factory.quiet().limits_mut().verbose_errors = false;
        Ok(factory)
    }
}

/// The schema of any JSON object.
pub(crate) fn any_object() -> Grammar {
    Grammar::Json(json!({"type": "object"}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_fits_between_slashes() {
        for (regex, want) in [
            ("a/b", "a\\/b"),
            ("a\\/b", "a\\/b"),
            ("a\\\\/b", "a\\\\\\/b"),
            ("a\nb", "a\\nb"),
            ("[^\\\n]", "[^\\n]"),
        ] {
            assert_eq!(between_slashes(regex), want, "{regex:?}");
        }
    }
}
