//! GGUF metadata from a Hugging Face tokenizer: the inverse of the rest of this module.

use serde_json::{Map, Value};

use super::pre::{DIGIT, GPT2, Pre};
use crate::TextError;
use crate::tokenizer::bytes;

/// Pre-tokenizer names to choose from, those that llama.cpp's own converter writes.
const NAMES: [&str; 6] = ["qwen2", "qwen35", "llama-bpe", "tekken", "smollm", "gpt-2"];

/// The `tokenizer.*` metadata of a GGUF that tokenises as `json` (a `tokenizer.json`) with `config` (a
/// `tokenizer_config.json`) does, for a model with `vocab` embedding rows. Ids that no token has become padding,
/// `[PADn]`. Unicode normalisation to NFC is left out, which a GGUF does not record.
///
/// # Errors
/// If the tokenizer is not a byte-level BPE whose split expressions a GGUF has a name for, or has more tokens than
/// `vocab`.
pub fn metadata(json: &Value, config: Option<&Value>, vocab: usize) -> Result<Map<String, Value>, TextError> {
    let model = &json["model"];
    let kind = model["type"].as_str().unwrap_or("BPE");
    if kind != "BPE" || model["byte_fallback"] == true {
        let name = if kind == "BPE" { "BPE with byte fallback" } else { kind };
        return Err(TextError::unsupported("writing a GGUF vocabulary of model", name, "byte-level BPE is"));
    }
    match &json["normalizer"] {
        Value::Null => {}
        normalizer if normalizer["type"] == "NFC" => {}
        other => {
            let name = other["type"].as_str().unwrap_or("unknown");
            return Err(TextError::unsupported("writing a GGUF vocabulary with normalizer", name, "NFC is"));
        }
    }
    let tokens = Tokens::read(json, vocab)?;
    let mut meta = Map::new();
    let mut put = |key: &str, value: Value| meta.insert(format!("tokenizer.ggml.{key}"), value);
    put("model", "gpt2".into());
    put("pre", pre_name(json, model["ignore_merges"] == true)?.into());
    put("merges", merges(model)?);
    let edges = edges(&json["post_processor"]);
    put("add_bos_token", edges.0.is_some().into());
    put("add_eos_token", edges.1.is_some().into());
    let named = |key: &str| {
        let token = config.map(|config| &config[key])?;
        tokens.id(token.as_str().or_else(|| token["content"].as_str())?)
    };
    for (key, name, edge) in [
        ("bos_token_id", "bos_token", edges.0),
        ("eos_token_id", "eos_token", edges.1),
        ("padding_token_id", "pad_token", None),
        ("unknown_token_id", "unk_token", None),
    ] {
        if let Some(id) = edge.and_then(|token| tokens.id(token)).or_else(|| named(name)) {
            put(key, id.into());
        }
    }
    put("tokens", tokens.texts.into());
    put("token_type", tokens.types.into());
    Ok(meta)
}

/// The `tokenizer.*` metadata of a byte-level vocabulary without merges, for a model with `vocab` embedding rows that has no
/// tokenizer: id and byte are the same number up to 255, the last id ends a text, the others are padding. `None` if there
/// are fewer rows than that.
///
/// llama.cpp loads a model without vocabulary (`no_vocab`), but its server and command line stop at the first token,
/// because they spell every one.
pub fn bytes_only(vocab: usize) -> Option<Map<String, Value>> {
    let mut tokens = Tokens::padding(vocab);
    for byte in 0..=u8::MAX {
        let mut text = String::new();
        bytes::spell(&[byte], &mut text);
        *tokens.texts.get_mut(usize::from(byte))? = text;
        *tokens.types.get_mut(usize::from(byte))? = NORMAL;
    }
    let end = vocab.checked_sub(1).filter(|end| *end > usize::from(u8::MAX))?;
    (tokens.texts[end], tokens.types[end]) = ("<|endoftext|>".to_owned(), CONTROL);
    let entries = [
        ("model", "gpt2".into()),
        ("pre", "gpt-2".into()),
        ("merges", Value::Array(Vec::new())),
        ("add_bos_token", false.into()),
        ("add_eos_token", false.into()),
        // Else llama.cpp takes 11, a byte like any other.
        ("bos_token_id", end.into()),
        ("eos_token_id", end.into()),
        ("tokens", tokens.texts.into()),
        ("token_type", tokens.types.into()),
    ];
    Some(
        entries
            .into_iter()
            .map(|(key, value): (&str, Value)| (format!("tokenizer.ggml.{key}"), value))
            .collect(),
    )
}

/// Type numbers of tokens.
const NORMAL: u32 = 1;
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;
const UNUSED: u32 = 5;

/// Texts and type numbers by id.
struct Tokens {
    texts: Vec<String>,
    types: Vec<u32>,
}

impl Tokens {
    /// Nothing but padding.
    fn padding(vocab: usize) -> Tokens {
        Tokens { texts: (0..vocab).map(|id| format!("[PAD{id}]")).collect(), types: vec![UNUSED; vocab] }
    }

    fn read(json: &Value, vocab: usize) -> Result<Tokens, TextError> {
        let mut tokens = Tokens::padding(vocab);
        let vocabulary = json["model"]["vocab"].as_object();
        let vocabulary = vocabulary.ok_or_else(|| TextError::field("model.vocab", "is missing"))?;
        for (text, id) in vocabulary {
            tokens.put("model.vocab", id, text, NORMAL)?;
        }
        for added in json["added_tokens"].as_array().into_iter().flatten() {
            let kind = if added["special"] == true { CONTROL } else { USER_DEFINED };
            tokens.put("added_tokens", &added["id"], added["content"].as_str().unwrap_or_default(), kind)?;
        }
        Ok(tokens)
    }

    fn put(&mut self, field: &str, id: &Value, text: &str, kind: u32) -> Result<(), TextError> {
        let rows = self.texts.len();
        let index = id.as_u64().and_then(|id| usize::try_from(id).ok()).filter(|&id| id < rows);
        let Some(index) = index else {
            let problem = format!("gives `{text}` the id {id}, but the model has {rows} embeddings");
            return Err(TextError::field(field, problem));
        };
        (self.texts[index], self.types[index]) = (text.to_owned(), kind);
        Ok(())
    }

    fn id(&self, text: &str) -> Option<usize> {
        self.texts.iter().position(|token| token == text)
    }
}

/// `left right`, however the file spells it.
fn merges(model: &Value) -> Result<Value, TextError> {
    let merges = model["merges"].as_array().ok_or_else(|| TextError::field("model.merges", "is missing"))?;
    let text = |(index, merge): (usize, &Value)| {
        let pair = merge.as_array().map(Vec::as_slice);
        let text = match pair {
            Some([left, right]) => left.as_str().zip(right.as_str()).map(|(l, r)| format!("{l} {r}")),
            _ => merge.as_str().map(str::to_owned),
        };
        text.map(Value::from)
            .ok_or_else(|| TextError::field("model.merges", format!("has no pair in entry {index}")))
    };
    merges.iter().enumerate().map(text).collect()
}

/// The name under which a GGUF has the tokenizer's split expressions.
fn pre_name(json: &Value, ignore_merges: bool) -> Result<&'static str, TextError> {
    let mut splits = Vec::new();
    collect_splits(&json["pre_tokenizer"], &mut splits);
    let found = NAMES.into_iter().find(|name| {
        Pre::by_name(name)
            .is_some_and(|pre| pre.splits == splits.as_slice() && pre.ignore_merges == ignore_merges)
    });
    found.ok_or_else(|| TextError::unsupported("pre-tokenizer with splits", splits.join("  "), Pre::NAMES))
}

/// Split expressions of a pre-tokenizer, in order; what is no split becomes something that no name stands for.
fn collect_splits<'j>(stage: &'j Value, splits: &mut Vec<&'j str>) {
    match stage["type"].as_str() {
        Some("Sequence") => {
            stage["pretokenizers"].as_array().into_iter().flatten().for_each(|s| collect_splits(s, splits));
        }
        Some("ByteLevel") if stage["add_prefix_space"] == true => splits.push("(a space before the text)"),
        Some("ByteLevel") if stage["use_regex"] != false => splits.push(GPT2),
        Some("ByteLevel") => {}
        Some("Digits") if stage["individual_digits"] == true => splits.push(DIGIT),
        Some("Split") if stage["behavior"] == "Isolated" && stage["invert"] != true => {
            splits.push(stage["pattern"]["Regex"].as_str().unwrap_or("(a literal)"));
        }
        other => splits.push(other.unwrap_or("(none)")),
    }
}

/// The special tokens that a post-processor puts before and after a text.
fn edges<'j>(processor: &'j Value) -> (Option<&'j str>, Option<&'j str>) {
    match processor["type"].as_str() {
        Some("Sequence") => {
            let stages = processor["processors"].as_array().into_iter().flatten();
            stages.map(edges).fold((None, None), |all, one| (all.0.or(one.0), all.1.or(one.1)))
        }
        Some("TemplateProcessing") => {
            let single = processor["single"].as_array();
            let name = |item: Option<&'j Value>| item.and_then(|item| item["SpecialToken"]["id"].as_str());
            (name(single.and_then(|items| items.first())), name(single.and_then(|items| items.last())))
        }
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gguf::{tokenizer_config, tokenizer_json};

    /// A vocabulary of all bytes would do, but two tokens show the same.
    fn tokenizer(pre: &str, add_bos: bool) -> (Value, Value) {
        let meta = json!({
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>", "</s>", "<tool>", "[PAD6]"],
            "tokenizer.ggml.token_type": [1, 1, 1, 3, 3, 4, 5],
            "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.bos_token_id": 3,
            "tokenizer.ggml.eos_token_id": 4, "tokenizer.ggml.add_bos_token": add_bos,
            "tokenizer.ggml.add_eos_token": false
        });
        let meta = meta.as_object().unwrap();
        (tokenizer_json(meta).unwrap(), tokenizer_config(meta).unwrap())
    }

    #[test]
    fn what_a_gguf_says_survives_the_way_there_and_back() {
        for pre in NAMES {
            for add_bos in [false, true] {
                let (json, config) = tokenizer(pre, add_bos);
                let meta = metadata(&json, Some(&config), 7).unwrap();
                assert_eq!(meta["tokenizer.ggml.pre"], pre);
                assert_eq!(meta["tokenizer.ggml.token_type"], json!([1, 1, 1, 3, 3, 4, 5]));
                assert_eq!(meta["tokenizer.ggml.tokens"][6], "[PAD6]");
                assert_eq!(
                    (&meta["tokenizer.ggml.bos_token_id"], &meta["tokenizer.ggml.eos_token_id"]),
                    (&json!(3), &json!(4))
                );
                assert_eq!(meta["tokenizer.ggml.add_bos_token"], add_bos);
                assert_eq!(tokenizer_json(&meta).unwrap(), json, "{pre}");
            }
        }
    }

    #[test]
    fn a_vocabulary_of_bytes_spells_every_byte() {
        assert!(bytes_only(256).is_none());
        let meta = bytes_only(300).unwrap();
        let tokenizer = crate::Tokenizer::from_gguf(&meta).unwrap();
        let text = "naïve \u{ad}歌\n";
        let ids = tokenizer.encode(text, true, false).unwrap();
        assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
        assert_eq!(tokenizer.decode(&ids, false), text);
    }

    #[test]
    fn what_a_gguf_has_no_words_for_is_refused() {
        let (good, _) = tokenizer("qwen2", false);
        let edit = |edit: &dyn Fn(&mut Value)| {
            let mut json = good.clone();
            edit(&mut json);
            metadata(&json, None, 7).unwrap_err().to_string()
        };
        for (error, words) in [
            (edit(&|json| json["model"]["byte_fallback"] = true.into()), "byte fallback"),
            (edit(&|json| json["model"]["type"] = "Unigram".into()), "Unigram"),
            (edit(&|json| json["normalizer"] = json!({"type": "Lowercase"})), "Lowercase"),
            (edit(&|json| json["pre_tokenizer"] = json!({"type": "Metaspace"})), "Metaspace"),
            (edit(&|json| json["model"]["vocab"]["zz"] = json!(7)), "the model has 7 embeddings"),
            (edit(&|json| json["model"]["merges"] = json!([["a"]])), "no pair in entry 0"),
        ] {
            assert!(error.contains(words), "{error}");
        }
    }
}
