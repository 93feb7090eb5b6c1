//! Files go to GGUF and back, and into the original converter's layout.

use std::fs;

use crate::common::{converted, fixture, names};
use serde_json::Value;

#[test]
fn an_exported_model_answers_as_the_bundle_it_came_from() {
    // Groups of 32 are what a GGUF has, so that not a bit changes on the way.
    let dir = tempfile::tempdir().unwrap();
    let (model, gguf) = (dir.path().join("there.base"), dir.path().join("out.gguf"));
    run!("convert", "--no-check", fixture("qwen3-dense-tiny"), "--group", "32", "-o", &model).ok();
    let report = run!("export", &model, "--gguf", &gguf, "--json").ok().json();
    assert_eq!(report["arch"], "qwen3");
    assert!(report["tensors"].as_array().unwrap().iter().all(|tensor| tensor["exact"] == true));
    assert_eq!(report["output_bytes"], fs::metadata(&gguf).unwrap().len());
    let back = dir.path().join("back.base");
    run!("convert", "--no-check", &gguf, "-o", &back).ok();
    let ids = |model| {
        run!("complete", model, "--prompt-ids", "1,2,3", "--temp", "0", "-n", "8", "--json").ok().json()["ids"].clone()
    };
    let answer: Value = ids(&model);
    assert_eq!(answer.as_array().unwrap().len(), 8);
    assert_eq!(ids(&back), answer);
}

#[test]
fn what_cannot_be_exported_says_why_and_leaves_nothing() {
    let (dir, model) = converted("qwen3-dense-tiny", "q6");
    let gguf = dir.path().join("out.gguf");
    let before = names(dir.path());
    run!("export", &model, "--gguf", &gguf).fails_with(&["base_q6", "ggml has no type", "hint: --outtype"]);
    run!("export", &model, "--gguf", &model, "--force").fails_with(&["both source and output"]);
    assert_eq!(names(dir.path()), before);
    let text = run!("export", &model, "--gguf", &gguf, "--outtype", "q8_0").ok().out;
    assert!(text.contains("base_q6 group 64 -> Q8_0") && text.contains("rounded"), "{text}");
    run!("export", &model, "--gguf", &gguf, "--outtype", "q8_0").fails_with(&["exists already", "--force"]);
    let said = run!("export", &model, "--gguf", &gguf, "--outtype", "q7");
    assert!(said.code == Some(2) && said.err.contains("types are f32, bf16"), "{said:?}");
}

#[test]
fn the_original_layout_is_written_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("compat.base");
    let report = run!(
        "convert",
        "--no-check",
        fixture("qwen35-dense-tiny"),
        "--compat",
        "basert",
        "-o",
        &out,
        "--json"
    )
    .ok()
    .json();
    assert_eq!(report["draft"]["tensors"], 0);
    assert_eq!(report["dropped"].as_array().unwrap().len(), 15);
    let facts = run!("inspect", &out, "--json", "--verify-checksums").ok().json();
    assert_eq!(facts["checksums_correct"], true);
    assert_eq!(facts["metadata"]["basert.compat"], "basert");
    run!("complete", &out, "--prompt-ids", "1,2,3", "--temp", "0", "-n", "2").ok();
    run!("convert", fixture("qwen35-dense-tiny"), "--compat", "basert", "--target", "f32")
        .fails_with(&["no f32 target"]);
    let said = run!("convert", fixture("qwen35-dense-tiny"), "--compat", "other");
    assert!(said.code == Some(2) && said.err.contains("no layout to be compatible with"), "{said:?}");
}
