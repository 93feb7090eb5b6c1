//! BPE models are read without the library, and must be what it would have read.

use basert_text::Tokenizer;
use serde_json::{Value, json};

use crate::common::{fixture_json, text};

/// The fixture with another model.
fn with_model(change: impl FnOnce(&mut Value)) -> String {
    let mut definition = fixture_json("tokenizer.json");
    change(&mut definition["model"]);
    definition.to_string()
}

/// Merges as old files have them.
fn as_lines(model: &mut Value) {
    let merges = model["merges"].as_array_mut().unwrap();
    for merge in merges.iter_mut() {
        if let Value::Array(pair) = merge {
            *merge = format!("{} {}", text(&pair[0]), text(&pair[1])).into();
        }
    }
    merges.insert(0, "#version: 0.2".into());
}

fn as_pairs(model: &mut Value) {
    for merge in model["merges"].as_array_mut().unwrap() {
        if let Value::String(line) = merge {
            *merge = line.split(' ').collect::<Vec<_>>().into();
        }
    }
}

#[test]
fn every_form_of_a_model_is_the_librarys() {
    let golden = fixture_json("golden.json");
    let cases = || golden["cases"].as_array().unwrap().iter().map(|case| text(&case["text"]));
    for json in [
        with_model(|_| {}),
        with_model(as_lines),
        with_model(as_pairs),
        with_model(|model| model["ignore_merges"] = true.into()),
        with_model(|model| model["byte_fallback"] = Value::Null),
        with_model(|model| model["merges"].as_array_mut().unwrap().truncate(100)),
        with_model(|model| model["merges"] = json!([])),
        with_model(|model| drop(model.as_object_mut().unwrap().remove("type"))),
    ] {
        let ours = Tokenizer::from_json(&json).unwrap();
        let library: tokenizers::Tokenizer = json.parse().unwrap();
        for text in cases() {
            let expected = library.encode_fast(text, false).unwrap();
            assert_eq!(ours.encode(text, false, true).unwrap(), expected.get_ids(), "{text:?}");
        }
        assert_eq!(ours.vocab_size(), library.get_vocab_size(true));
        for id in 0..ours.vocab_size() as u32 + 2 {
            assert_eq!(ours.id_to_token(id), library.id_to_token(id));
        }
    }
}

#[test]
fn models_that_the_library_would_break_on_or_misread_are_refused() {
    let model = |vocab: Value, merges: Value| json!({"type": "BPE", "vocab": vocab, "merges": merges});
    let prefixed = |prefix: &str| {
        let mut model = model(json!({"a": 0, "##b": 1, "ab": 2}), json!([["a", "##b"]]));
        model["continuing_subword_prefix"] = prefix.into();
        model
    };
    let read = |model: &str| {
        let decoder = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true});
        let json = format!(r#"{{"version": "1.0", "decoder": {decoder}, "model": {model}}}"#);
        Tokenizer::from_json(&json).map(drop).map_err(|e| e.to_string())
    };
    let twice = r#"{"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}"#;
    for (model, words) in [
        // Joined, the two are longer than the buffer that the library joins them in.
        (model(json!({"aaa": 0, "bbb": 1}), json!([["aaa", "bbb"]])).to_string(), "join `aaa` and `bbb`"),
        (model(json!({"aaa": 0, "bbb": 1}), json!([["aaa", "b"]])).to_string(), "join `aaa` and `b`"),
        (model(json!({"a": 0, "b": 1, "cc": 2}), json!([["a", "b"]])).to_string(), "out of vocabulary"),
        (model(json!({"a": 0}), json!(["a b c"])).to_string(), "`a b c`"),
        (model(json!({"a": 0}), json!(["ab"])).to_string(), "`ab`"),
        (model(json!({"a": 0}), json!([["a", "b", "c"]])).to_string(), "merges"),
        (model(json!({"a": -1}), json!([])).to_string(), "vocab"),
        (model(json!({"a": 0}), Value::Null).to_string(), "`model.merges` is missing"),
        (model(Value::Null, json!([])).to_string(), "`model.vocab` is missing"),
        (prefixed("€€€").to_string(), "does not begin with `€€€`"),
        (twice.to_owned(), "a token twice"),
    ] {
        let error = read(&model).unwrap_err();
        assert!(error.contains(words), "{model}: {error}");
    }
    read(&prefixed("##").to_string()).unwrap();
}
