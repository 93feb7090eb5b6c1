//! Contents of a conversation are text: what spells a control token in them must not become one.
//!
//! Before rendering, every such spelling is broken by one private-use character behind its first; the template then
//! writes it out like any other text, and [`Tokenizer::encode_marked`] takes the character away again. Breaking inside,
//! instead of marking both ends, survives whatever a template does with contents: splitting, trimming, JSON.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::{TextError, Tokenizer};

/// Control tokens that an assistant's message keeps: templates take its text apart at them, and it may hold them,
/// because the model wrote them. They structure an answer; none of them ends or opens a turn.
pub(crate) const ANSWER_TAGS: [&str; 4] = ["<think>", "</think>", "<tool_call>", "</tool_call>"];

/// A conversation in which no content spells a control token.
pub(super) struct Marked {
    pub(super) messages: Value,
    pub(super) tools: Option<Value>,
    pub(super) kwargs: Map<String, Value>,
    /// What breaks the spellings; `None` if there were none.
    pub(super) mark: Option<char>,
}

/// Breaks the spellings of control tokens in all texts (and keys) of messages, tools and variables.
///
/// # Errors
/// [`TextError::NoMark`] if the conversation uses every private-use character.
pub(super) fn mark(
    tokenizer: &Tokenizer,
    messages: Value,
    tools: Option<&Value>,
    kwargs: &Map<String, Value>,
) -> Result<Marked, TextError> {
    let controls = tokenizer.control_tokens();
    let everywhere: Vec<&str> = controls.iter().map(String::as_str).filter(|t| !t.is_empty()).collect();
    let in_answers: Vec<&str> = everywhere.iter().copied().filter(|t| !ANSWER_TAGS.contains(t)).collect();
    let mut marked = Marked { messages, tools: tools.cloned(), kwargs: kwargs.clone(), mark: None };
    let mut used = BTreeSet::new();
    let mut spelled = false;
    marked.visit(&everywhere, &in_answers, &mut |text, tokens| {
        used.extend(text.chars().filter(|&c| is_private(c)));
        spelled |= !places(text, tokens).is_empty();
    });
    if spelled {
        let free = PRIVATE.rev().find(|c| !used.contains(c)).ok_or(TextError::NoMark)?;
        marked.visit(&everywhere, &in_answers, &mut |text, tokens| {
            for at in places(text, tokens).into_iter().rev() {
                text.insert(at, free);
            }
        });
        marked.mark = Some(free);
    }
    Ok(marked)
}

impl Marked {
    /// Shows every text to `see`, with the tokens that must not be spelled in it.
    fn visit(&mut self, everywhere: &[&str], in_answers: &[&str], see: &mut dyn FnMut(&mut String, &[&str])) {
        for message in self.messages.as_array_mut().into_iter().flatten() {
            let answer = message.get("role").and_then(Value::as_str) == Some("assistant");
            walk(message, if answer { in_answers } else { everywhere }, see);
        }
        if let Some(tools) = &mut self.tools {
            walk(tools, everywhere, see);
        }
        walk_map(&mut self.kwargs, everywhere, see);
    }
}

fn walk(value: &mut Value, tokens: &[&str], see: &mut dyn FnMut(&mut String, &[&str])) {
    match value {
        Value::String(text) => see(text, tokens),
        Value::Array(items) => items.iter_mut().for_each(|item| walk(item, tokens, see)),
        Value::Object(map) => walk_map(map, tokens, see),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn walk_map(map: &mut Map<String, Value>, tokens: &[&str], see: &mut dyn FnMut(&mut String, &[&str])) {
    let entries = std::mem::take(map);
    for (mut key, mut value) in entries {
        see(&mut key, tokens);
        walk(&mut value, tokens, see);
        map.insert(key, value);
    }
}

/// Where a mark breaks every spelling of `tokens` in `text`, ascending: one behind the first character of each, and of an
/// end of the text that the next part of a content could complete, whatever white space is trimmed between.
fn places(text: &str, tokens: &[&str]) -> Vec<usize> {
    let end = text.trim_end();
    let begins = |at: usize| {
        let (rest, tail) = (&text[at..], end.get(at..).unwrap_or_default());
        tokens.iter().any(|t| rest.starts_with(t) || (!tail.is_empty() && t.starts_with(tail)))
    };
    let firsts: BTreeSet<char> = tokens.iter().filter_map(|t| t.chars().next()).collect();
    let candidates = text.char_indices().filter(|(_, c)| firsts.contains(c));
    candidates.filter(|(at, _)| begins(*at)).map(|(at, c)| at + c.len_utf8()).collect()
}

/// The private-use characters outside the basic plane, where no font and hardly any text has one.
const PRIVATE: std::ops::RangeInclusive<char> = '\u{f0000}'..='\u{10fffd}';

/// Whether `c` might be chosen as a mark.
pub(super) fn is_private(c: char) -> bool {
    PRIVATE.contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_are_broken_where_they_begin() {
        let tokens = ["<|im_end|>", "<s>", "</s>"];
        for (text, want) in [
            ("harmless < text > |im_end|>", &[][..]),
            ("<|im_end|>", &[1]),
            ("a<|im_end|><s>b", &[2, 12]),
            ("<<s>", &[2]),
            // The rest may come in the next part.
            ("x<|im_", &[2]),
            ("x<|im_ \n", &[2]),
            ("<", &[1]),
            ("<|im_en d|>", &[]),
            ("", &[]),
            (" ", &[]),
        ] {
            assert_eq!(places(text, &tokens), want, "{text:?}");
        }
    }

    #[test]
    fn a_conversation_of_all_private_characters_is_refused() {
        let json = include_str!("../../../../tests/fixtures/tokenizer/tokenizer.json");
        let tokenizer = Tokenizer::from_json(json).unwrap();
        let all: String = PRIVATE.collect();
        let say = |text: &str| serde_json::json!([{"role": "user", "content": text}]);
        let with = |text: &str| mark(&tokenizer, say(text), None, &Map::new());
        assert!(with(&all).unwrap().mark.is_none());
        assert!(matches!(with(&(all.clone() + "<|im_end|>")), Err(TextError::NoMark)));
        let but_one = all.replace('\u{f1234}', "") + "<|im_end|>";
        assert_eq!(with(&but_one).unwrap().mark, Some('\u{f1234}'));
    }
}
