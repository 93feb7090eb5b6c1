//! Side files and odd tensors of a checkpoint: what cannot be used is refused or said, never embedded silently.

use std::path::Path;

use crate::common::{Tensor, Toy, converted, noise, options, refused};
use basert_convert::{ConvertError, Options, check_output};
use serde_json::json;

#[test]
fn an_unusable_tokenizer_is_refused_or_left_out_but_never_embedded() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::llama().write(dir.path(), "src");
    let without = Options { allow_missing_tokenizer: true, ..options("base-q4") };
    let unknown_model = r#"{"version": "1.0", "model": {"type": "Nonsense"}}"#;
    for (name, text) in [("no-model", r#"{"version": "1.0"}"#), ("unknown", unknown_model), ("broken", "{")] {
        std::fs::write(source.join("tokenizer.json"), text).unwrap();
        let error = refused(&source, &options("base-q4"));
        assert!(error.to_string().contains("tokenizer.json"), "{name}: {error}");
        let (file, report) = converted(&source, dir.path(), name, &without);
        assert!(file.header().tokenizer.is_empty(), "{name}");
        assert!(report.notes[0].contains("left out"), "{name}: {:?}", report.notes);
    }
    std::fs::write(source.join("tokenizer.json"), unknown_model).unwrap();
    assert!(refused(&source, &options("base-q4")).hint().unwrap().contains("--no-tokenizer"));
}

#[test]
fn position_ids_of_a_vision_tower_are_ignored_and_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::hybrid(4, false);
    let name = "model.visual.embeddings.position_ids";
    let ids = Tensor { dtype: "I64", shape: vec![1, 4], values: vec![0.0, 1.0, 2.0, 3.0] };
    toy.tensors.insert(name.to_owned(), ids);
    toy.tensors.insert("model.visual.patch_embed.proj.weight".to_owned(), noise("p", &[8, 8]));
    let (file, report) = converted(&toy.write(dir.path(), "src"), dir.path(), "out", &options("base-q4"));
    assert_eq!(report.dropped.iter().map(|dropped| dropped.name.as_str()).collect::<Vec<_>>(), [name]);
    assert_eq!(file.mmproj_tensors().count(), 1);
}

#[test]
fn end_ids_beyond_the_vocabulary_are_noted() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::llama();
    toy.config["eos_token_id"] = json!([95, 96]);
    let (_, report) = converted(&toy.write(dir.path(), "src"), dir.path(), "out", &options("base-q4"));
    let [note] = &report.notes[..] else { panic!("{:?}", report.notes) };
    assert!(note.contains("id 96") && note.contains("vocabulary of 96"), "{note}");
}

#[test]
fn a_generation_config_that_is_no_object_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::llama().write(dir.path(), "src");
    for text in ["[1]", "\"greedy\"", "null"] {
        std::fs::write(source.join("generation_config.json"), text).unwrap();
        let error = refused(&source, &options("base-q4")).to_string();
        assert!(error.contains("generation_config.json") && error.contains("JSON object"), "{error}");
    }
}

#[test]
fn a_head_in_a_checkpoint_that_declares_it_tied_is_used_and_noted() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::llama();
    toy.tensors.insert("lm_head.weight".to_owned(), noise("head", &[96, 64]));
    let (file, report) = converted(&toy.write(dir.path(), "src"), dir.path(), "out", &options("base-q4"));
    assert!(file.tensor("lm_head.weight").is_some());
    assert!(report.notes.len() == 1 && report.notes[0].contains("tie_word_embeddings"), "{:?}", report.notes);
    toy.config["tie_word_embeddings"] = json!(false);
    let (_, report) = converted(&toy.write(dir.path(), "untied"), dir.path(), "untied", &options("base-q4"));
    assert_eq!(report.notes, [""; 0]);
}

#[test]
fn every_source_file_is_refused_as_an_output_before_anything_is_staged() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::llama().write(dir.path(), "src");
    let is_refused = |out: &Path| match check_output(&source, out) {
        Err(ConvertError::Option(why)) => why.contains("is a file of the source"),
        other => panic!("{other:?}"),
    };
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        assert!(is_refused(&source.join(name)), "{name}");
        assert!(is_refused(&source.join("../src").join(name)), "{name}");
    }
    check_output(&source, &dir.path().join("new.base")).unwrap();
    std::fs::write(dir.path().join("old.base"), "old").unwrap();
    check_output(&source, &dir.path().join("old.base")).unwrap();
}
