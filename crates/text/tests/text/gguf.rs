//! Tokenizers rebuilt from GGUF metadata.

use std::collections::BTreeMap;

use crate::common::{self, fixture, fixture_json, gguf_metadata, text};
use basert_text::{Tokenizer, gguf};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

fn with(mut meta: Map<String, Value>, changes: Value) -> Map<String, Value> {
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => meta.remove(key),
            value => meta.insert(key.clone(), value.clone()),
        };
    }
    meta
}

/// Metadata whose first unused id is another token.
fn with_token(pre: &str, token: &str, kind: u32) -> Map<String, Value> {
    let mut meta = gguf_metadata(pre);
    meta["tokenizer.ggml.tokens"][2017] = token.into();
    meta["tokenizer.ggml.token_type"][2017] = kind.into();
    meta
}

fn error(meta: &Map<String, Value>) -> String {
    Tokenizer::from_gguf(meta).unwrap_err().to_string()
}

/// The fixture's vocabulary in the library, under a pre-tokenizer as the models' own files define it.
fn library(normalizer: Value, stages: Value) -> tokenizers::Tokenizer {
    let mut json = fixture_json("tokenizer.json");
    json["normalizer"] = normalizer;
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": stages});
    serde_json::from_value(json).unwrap()
}

#[test]
fn every_known_pre_tokenizer_gives_the_ids_of_its_hugging_face_counterpart() {
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": regex});
    let word = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+";
    let rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let qwen2 = json!([split(&format!(r"{word}|\p{{N}}|{rest}")), bytes(false)]);
    let llama3 = json!([split(&format!(r"{word}|\p{{N}}{{1,3}}|{rest}")), bytes(false)]);
    let upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
    let lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
    let tekken = format!(
        r"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    );
    let nfc = json!({"type": "NFC"});
    for (names, normalizer, stages) in [
        (&["qwen2", "deepseek-r1-qwen"][..], nfc.clone(), qwen2),
        (&["qwen35"], nfc, fixture_json("tokenizer.json")["pre_tokenizer"]["pretokenizers"].clone()),
        (&["llama-bpe", "llama3", "llama-v3", "pixtral", "falcon3"], Value::Null, llama3),
        (&["tekken"], Value::Null, json!([split(&tekken), bytes(false)])),
        (&["smollm"], Value::Null, json!([{"type": "Digits", "individual_digits": true}, bytes(true)])),
        (&["gpt-2"], Value::Null, json!([bytes(true)])),
    ] {
        let library = library(normalizer, stages);
        for name in names {
            let tok = Tokenizer::from_gguf(&gguf_metadata(name)).unwrap();
            for case in fixture_json("golden.json")["cases"].as_array().unwrap() {
                let want = library.encode_fast(text(&case["text"]), false).unwrap();
                assert_eq!(
                    tok.encode(text(&case["text"]), false, true).unwrap(),
                    want.get_ids(),
                    "{name}: {case}"
                );
            }
        }
    }
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    for (changes, want) in [
        (json!({"tokenizer.ggml.pre": "viking"}), "pre-tokenizer `viking` is not supported"),
        (json!({"tokenizer.ggml.pre": null}), "`tokenizer.ggml.pre` is missing"),
        (json!({"tokenizer.ggml.model": "bert"}), "tokenizer model `bert` is not supported"),
        (json!({"tokenizer.ggml.model": "t5"}), "tokenizer model `t5` is not supported"),
        (json!({"tokenizer.ggml.model": "gemma4"}), "tokenizer model `gemma4` is not supported"),
        (json!({"tokenizer.ggml.model": null}), "`tokenizer.ggml.model` is missing"),
        (json!({"tokenizer.ggml.tokens": null}), "`tokenizer.ggml.tokens` is missing"),
        (json!({"tokenizer.ggml.tokens": "a"}), "`tokenizer.ggml.tokens` is not an array"),
        (json!({"tokenizer.ggml.tokens": ["a", 1]}), "something other than text in entry 1"),
        (json!({"tokenizer.ggml.tokens": ["a"]}), "has 2048 entries for 1 tokens"),
        (json!({"tokenizer.ggml.token_type": [7]}), "has an entry 7"),
        (json!({"tokenizer.ggml.merges": null}), "`tokenizer.ggml.merges` is missing"),
        (json!({"tokenizer.ggml.merges": ["Ġ t", "x"]}), "has no second part in entry 1"),
        (json!({"tokenizer.ggml.eos_token_id": 2048}), "is 2048, outside the 2048 tokens"),
        (json!({"tokenizer.ggml.eos_token_id": -1}), "is not a token id"),
        (json!({"tokenizer.ggml.add_bos_token": "yes"}), "is not a boolean"),
        (json!({"tokenizer.ggml.add_bos_token": true}), "`tokenizer.ggml.bos_token_id` is missing"),
        (json!({"tokenizer.huggingface.json": "{"}), "`tokenizer.huggingface.json` is not valid JSON"),
    ] {
        let got = error(&with(gguf_metadata("qwen35"), changes));
        assert!(got.contains(want), "{got} should contain {want}");
    }
    let twice = error(&with_token("qwen35", "<think>", 3));
    assert!(twice.contains("has `<think>` twice, as 2008 and 2017"), "{twice}");
}

#[test]
fn merges_of_tokens_with_spaces_are_cut_at_the_first_space_after_the_beginning() {
    let mut meta = gguf_metadata("qwen2");
    meta["tokenizer.ggml.tokens"][2017] = " x".into();
    meta["tokenizer.ggml.tokens"][2018] = " x y".into();
    meta["tokenizer.ggml.token_type"][2017] = 1.into();
    meta["tokenizer.ggml.token_type"][2018] = 1.into();
    meta["tokenizer.ggml.merges"] = json!([" x  y"]);
    let json = gguf::tokenizer_json(&meta).unwrap();
    assert_eq!(json["model"]["merges"], json!([[" x", " y"]]));
}

#[test]
fn padding_is_not_vocabulary() {
    let tok = Tokenizer::from_gguf(&gguf_metadata("qwen35")).unwrap();
    assert_eq!(
        (tok.vocab_size(), tok.token_to_id("[PAD2017]"), tok.decode(&[2030], false)),
        (2017, None, String::new())
    );
}

#[test]
fn a_bos_token_is_added_where_the_model_wants_it() {
    let bos = json!({"tokenizer.ggml.bos_token_id": 1984});
    let encode = |pre: &str, changes: Value| {
        let tok = Tokenizer::from_gguf(&with(with(gguf_metadata(pre), bos.clone()), changes)).unwrap();
        (tok.encode("a", true, true).unwrap().len(), tok.encode("a", false, true).unwrap().len(), tok.bos())
    };
    assert_eq!(encode("llama-bpe", json!({})), (2, 1, Some(1984)));
    assert_eq!(encode("llama-bpe", json!({"tokenizer.ggml.add_bos_token": false})), (1, 1, Some(1984)));
    assert_eq!(encode("qwen35", json!({})), (1, 1, Some(1984)));
    assert_eq!(encode("qwen35", json!({"tokenizer.ggml.add_bos_token": true})), (2, 1, Some(1984)));
    assert_eq!(encode("qwen35", json!({"tokenizer.ggml.add_eos_token": true})), (2, 1, Some(1984)));
    assert_eq!(encode("tekken", json!({"tokenizer.ggml.bos_token_id": null})), (1, 1, None));
}

#[test]
fn whole_pieces_are_taken_from_the_vocabulary_where_the_model_does_so() {
    for (pre, whole) in [("llama-bpe", true), ("tekken", true), ("qwen2", false), ("gpt-2", false)] {
        let tok = Tokenizer::from_gguf(&with_token(pre, "qzqzqz", 1)).unwrap();
        assert_eq!(tok.encode("qzqzqz", false, true).unwrap() == [2017], whole, "{pre}");
    }
}

#[test]
fn a_control_token_that_looks_like_a_whole_piece_still_cannot_be_forged() {
    let tok = Tokenizer::from_gguf(&with_token("llama-bpe", "!?!?!", 3)).unwrap();
    assert_eq!(tok.encode("!?!?!", false, true).unwrap(), [2017]);
    let plain = tok.encode("!?!?!", false, false).unwrap();
    assert!(!plain.contains(&2017));
    assert_eq!(tok.decode(&plain, false), "!?!?!");
}

#[test]
fn ends_named_by_the_metadata_count() {
    let meta = with(
        gguf_metadata("qwen35"),
        json!({"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 9}),
    );
    assert_eq!(Tokenizer::from_gguf(&meta).unwrap().eog_ids(), [7, 9, 1984, 1986, 2003, 2004, 2005]);
}

#[test]
fn a_complete_hugging_face_tokenizer_in_the_metadata_is_preferred() {
    let meta = with(gguf_metadata("qwen2"), json!({"tokenizer.huggingface.json": fixture("tokenizer.json")}));
    assert_eq!(gguf::tokenizer_json(&meta).unwrap(), fixture_json("tokenizer.json"));
}

#[test]
fn the_configuration_names_the_special_tokens_and_templates() {
    let meta = with(
        gguf_metadata("qwen35"),
        json!({"tokenizer.ggml.bos_token_id": 1984, "tokenizer.ggml.add_bos_token": false, "tokenizer.chat_template": "T"}),
    );
    let want = json!({
        "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": null,
        "add_bos_token": false, "add_eos_token": false, "chat_template": "T",
    });
    assert_eq!(gguf::tokenizer_config(&meta).unwrap(), want);
    let named = with(meta, json!({"tokenizer.chat_template.tool_use": "U"}));
    let templates = json!([{"name": "default", "template": "T"}, {"name": "tool_use", "template": "U"}]);
    assert_eq!(gguf::tokenizer_config(&named).unwrap()["chat_template"], templates);
    assert_eq!(Tokenizer::from_gguf(&named).unwrap().chat_template(), Some("T"));
}

fn block(entries: Value) -> BTreeMap<String, Box<RawValue>> {
    let entries = entries.as_object().unwrap().iter();
    entries.map(|(key, value)| (key.clone(), serde_json::value::to_raw_value(value).unwrap())).collect()
}

#[test]
fn both_kinds_of_header_block_give_the_same_tokenizer() {
    let hf = block(json!({
        "tokenizer_type": "hf",
        "tokenizer.json": fixture_json("tokenizer.json"),
        "tokenizer_config.json": fixture_json("tokenizer_config.json"),
        "tokenizer.chat_template": "T",
    }));
    let mut entries =
        with(gguf_metadata("qwen35"), json!({"tokenizer_type": "gguf", "tokenizer.chat_template": "T"}));
    entries.remove("general.architecture");
    let gguf = block(entries.into());
    for block in [hf, gguf] {
        let tok = Tokenizer::from_header(&block).unwrap();
        assert_eq!((tok.eos(), tok.chat_template()), (Some(1986), Some("T")));
        for case in fixture_json("golden.json")["cases"].as_array().unwrap() {
            assert_eq!(tok.encode(text(&case["text"]), true, true).unwrap(), common::ids(&case["ids"]));
        }
    }
}

#[test]
fn header_blocks_that_are_incomplete_are_refused() {
    for (entries, want) in [
        (json!({}), "`tokenizer_type` is missing"),
        (json!({"tokenizer_type": "spm"}), "tokenizer type `spm` is not supported"),
        (json!({"tokenizer_type": "hf"}), "`tokenizer.json` is missing"),
        (json!({"tokenizer_type": "hf", "tokenizer.json": {}}), "decoder `null` is not supported"),
        (json!({"tokenizer_type": "gguf"}), "`tokenizer.ggml.model` is missing"),
    ] {
        let err = Tokenizer::from_header(&block(entries)).unwrap_err().to_string();
        assert!(err.contains(want), "{err}");
    }
}

#[test]
fn a_tokenizer_file_that_contradicts_itself_is_refused() {
    let change = |path: &str, value: Value| {
        let mut json = fixture_json("tokenizer.json");
        *json.pointer_mut(path).unwrap() = value;
        Tokenizer::from_json(&json.to_string()).unwrap_err().to_string()
    };
    let shifted = change("/added_tokens/0/id", 1999.into());
    assert!(shifted.contains("gives `<|endoftext|>` the id 1999"), "{shifted}");
    assert!(change("/decoder", Value::Null).contains("decoder `null`"));
    assert!(change("/model/merges/0", json!(["no", "such"])).contains("out of vocabulary"));
    let config = json!({"eos_token": {"content": "<nope>"}}).to_string();
    let err = Tokenizer::from_hf(&fixture("tokenizer.json"), Some(&config)).unwrap_err().to_string();
    assert!(err.contains("`eos_token` is `<nope>`, which is not in the vocabulary"), "{err}");
}
