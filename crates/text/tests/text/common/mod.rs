//! Test data shared by the tests of this crate.

use std::path::{Path, PathBuf};

use basert_text::{Bound, TextError, Tokenizer};
use serde_json::{Map, Value, json};

/// A file of the tokenizer fixture.
pub fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizer").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn fixture_json(name: &str) -> Value {
    serde_json::from_str(&fixture(name)).unwrap()
}

/// A file of fixtures that may not be part of the repository; where they are absent, says so and returns `None`, or
/// fails under `BASERT_REQUIRE_FIXTURES=1`.
pub fn outside_fixture(name: &str) -> Option<String> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures").join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(e) => {
            let required = std::env::var("BASERT_REQUIRE_FIXTURES").is_ok_and(|v| v == "1");
            assert!(!required, "{}: {e}", path.display());
            println!("not run: {} is not here", path.display());
            None
        }
    }
}

pub fn tokenizer() -> Tokenizer {
    Tokenizer::from_hf(&fixture("tokenizer.json"), Some(&fixture("tokenizer_config.json"))).unwrap()
}

/// GGUF metadata for the fixture tokenizer, with padding up to 2048 tokens.
pub fn gguf_metadata(pre: &str) -> Map<String, Value> {
    let vocab = fixture_json("vocab.json");
    let mut tokens: Vec<(u64, String, u64)> = vocab
        .as_object()
        .unwrap()
        .iter()
        .map(|(token, id)| (id.as_u64().unwrap(), token.clone(), 1))
        .collect();
    for added in fixture_json("tokenizer.json")["added_tokens"].as_array().unwrap() {
        let kind = if added["special"] == true { 3 } else { 4 };
        tokens.push((added["id"].as_u64().unwrap(), added["content"].as_str().unwrap().to_owned(), kind));
    }
    tokens.extend((tokens.len() as u64..2048).map(|id| (id, format!("[PAD{id}]"), 5)));
    tokens.sort();
    let merges = fixture("merges.txt");
    let merges: Vec<&str> = merges.lines().filter(|line| !line.starts_with("#version")).collect();
    let meta = json!({
        "general.architecture": "qwen35",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens.iter().map(|(_, token, _)| token).collect::<Vec<_>>(),
        "tokenizer.ggml.token_type": tokens.iter().map(|(.., kind)| kind).collect::<Vec<_>>(),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 1986,
        "tokenizer.ggml.padding_token_id": 1984,
    });
    meta.as_object().unwrap().clone()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Encodes a text within all kinds of bounds: it is refused only where it has too many tokens, and no more than it has are
/// said to be there.
pub fn check_bounds(tok: &Tokenizer, text: &str) {
    let ids = tok.encode(text, true, true).unwrap();
    for most in [ids.len(), ids.len() - 1, ids.len() / 2, ids.len() / 100, 10] {
        match tok.encode_within(text, true, true, &Bound::of(most)) {
            Ok(got) => assert_eq!(got, ids),
            Err(TextError::TooLong { at_least, most: told }) => {
                assert!(
                    told == most && most < at_least && at_least <= ids.len(),
                    "{at_least} of {}",
                    ids.len()
                );
            }
            Err(e) => panic!("{e}"),
        }
    }
    let refused = tok.encode_within(text, true, true, &Bound::of(10));
    assert!(refused.is_err(), "{} tokens are taken for 10", ids.len());
}
