//! The quality record: made at conversion, shown by inspect, replayed by verify; models that babble are not published.

use std::fs;
use std::path::{Path, PathBuf};

use basert_convert::gguf;
use serde_json::Value;

use crate::common::{checkpoint, converted, fixture, names, smollm2};

/// A conversion of a model whose tokens have no text: its record is made, but says nothing about English.
pub fn recorded(dir: &Path) -> PathBuf {
    let source = dir.join("source");
    fs::create_dir(&source).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture("llama-tiny").join(name), source.join(name)).unwrap();
    }
    let out = dir.join("m.base");
    run!("convert", &source, "-o", &out, "--no-tokenizer", "--target", "q8").ok();
    out
}

#[test]
fn a_record_is_shown_and_replays_bit_for_bit_on_every_path() {
    let dir = tempfile::tempdir().unwrap();
    let model = recorded(dir.path());
    let facts = run!("inspect", &model, "--json").ok().json();
    let quality = &facts["quality"];
    assert_eq!((&quality["text"], &quality["tokens"]), (&Value::from("ids"), &Value::from(128)), "{quality}");
    assert!(quality["mean_kl"].as_f64().unwrap() > 0.0 && quality["mean_kl"].as_f64().unwrap() < 0.1);
    let kinds: Vec<&Value> = facts["slots"].as_array().unwrap().iter().map(|slot| &slot["kind"]).collect();
    assert_eq!(kinds, ["TraceReference", "Custom"]);
    assert!(run!("inspect", &model).ok().out.contains("perplexity "));
    for threads in ["1", "2"] {
        let said = run!("verify", &model, "--logits", "--json", "-t", threads).ok().json();
        assert_eq!(said["checksums_correct"], true);
        assert_eq!(said["logits"]["logits_equal"], true, "{said}");
    }
    let output = crate::common::basert()
        .env("BASERT_ISA", "reference")
        .args([Path::new("verify"), &model, Path::new("--logits")])
        .output();
    let said = crate::common::Said::from(output.unwrap()).ok();
    assert!(said.out.contains("bit for bit those of the record"), "{said:?}");
}

#[test]
fn a_file_that_computes_something_else_than_its_record_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let model = recorded(dir.path());
    let hash = run!("inspect", &model, "--json").ok().json()["quality"]["logits_xxh64"].clone();
    let hash = hash.as_str().unwrap();
    let bytes = fs::read(&model).unwrap();
    let at = bytes.windows(16).position(|window| window == hash.as_bytes()).unwrap();
    let mut wrong = bytes.clone();
    wrong[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
    fs::write(&model, &wrong).unwrap();
    run!("verify", &model).ok();
    let said = run!("verify", &model, "--logits").fails_with(&["does not compute here what its record says"]);
    assert!(said.out.contains("NOT those of the record"), "{said:?}");

    let mut damaged = bytes.clone();
    let in_the_last_slot = damaged.len() - 1000;
    damaged[in_the_last_slot] ^= 1;
    fs::write(&model, &damaged).unwrap();
    run!("verify", &model).fails_with(&["slot 1 (Custom) is damaged"]);
}

#[test]
fn a_file_without_a_record_says_so() {
    let (_dir, model) = converted("llama-tiny", "q8");
    assert!(run!("inspect", &model).ok().out.contains("not checked when it was converted"));
    run!("verify", &model).ok();
    run!("verify", &model, "--logits").fails_with(&["no reference logits", "convert the checkpoint again"]);
}

#[test]
fn random_weights_are_refused_unless_the_check_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.base");
    for name in ["llama-tiny", "qwen35-dense-tiny", "qwen3-moe-tiny"] {
        let said = run!("convert", fixture(name), "-o", &out);
        said.fails_with(&["does not pass its self-check", "noise", "--no-check"]);
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }
    let said = run!("convert", fixture("llama-tiny"), "-o", &out, "--no-check").ok();
    assert!(said.out.contains("self-check: skipped"), "{said:?}");
}

/// The public report: a converter that adds the norm offset a second time makes a file of the right shapes that
/// speaks mojibake.
#[test]
fn a_trained_model_with_one_added_to_its_norms_is_refused() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.base");
    let said = run!("convert", &model, "-o", &out, "--json").ok().json();
    assert!(said["quality"]["perplexity"].as_f64().unwrap() < 20.0, "{}", said["quality"]);
    run!("verify", &out, "--logits").ok();
    fs::remove_file(&out).unwrap();

    let mut bytes = fs::read(&model).unwrap();
    let tensors = gguf::parse(&bytes).unwrap().tensors;
    let norms: Vec<_> = tensors.iter().filter(|tensor| tensor.name.ends_with("norm.weight")).collect();
    for tensor in &norms {
        for gain in bytes[tensor.start..tensor.end].chunks_exact_mut(4) {
            let shifted = f32::from_le_bytes(gain.try_into().unwrap()) + 1.0;
            gain.copy_from_slice(&shifted.to_le_bytes());
        }
    }
    assert_eq!(norms.len(), 61);
    let shifted = dir.path().join("shifted.gguf");
    fs::write(&shifted, bytes).unwrap();
    run!("convert", &shifted, "-o", &out)
        .fails_with(&["does not pass its self-check", "vocabulary of 49152"]);
    assert_eq!(names(dir.path()), ["shifted.gguf"]);
}

/// Two bits ruin a small model; the source is not to blame, and the message does not say so.
#[test]
fn a_model_that_quantisation_ruins_is_refused_with_the_right_reason() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    run!("convert", &model, "-o", dir.path().join("m.base"), "--target", "q2", "--allow-quant-from-quant")
        .fails_with(&["quantisation has ruined it", "more bits", "--no-check"]);
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn a_model_that_quantisation_has_hurt_is_published_with_a_note() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.base");
    let noted = |target: &str| {
        let said =
            run!("convert", &model, "-o", &out, "--target", target, "--allow-quant-from-quant", "--force");
        said.ok().err.contains("more than twice its source's perplexity")
    };
    assert!(noted("q3"));
    assert!(!noted("q8"));
}

/// Likelihoods of zero have no finite perplexity: nothing is published that JSON cannot describe.
#[test]
fn a_model_that_finds_every_token_impossible_is_refused_and_not_half_recorded() {
    let source = checkpoint("llama-tiny");
    fs::remove_file(source.path().join("tokenizer.json")).unwrap();
    let weights = source.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let [start, end] = [0, 1]
        .map(|i| tensors["model.norm.weight"]["data_offsets"][i].as_u64().unwrap() as usize + 8 + header);
    for gain in bytes[start..end].chunks_exact_mut(2) {
        // 2^20 in bf16.
        gain.copy_from_slice(&1048576.0f32.to_le_bytes()[2..]);
    }
    fs::write(&weights, bytes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    run!("convert", source.path(), "-o", dir.path().join("m.base"), "--no-tokenizer")
        .fails_with(&["does not pass its self-check", "impossible"]);
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

/// Naming the wrong convention shifts the norms of a checkpoint twice; the finished file can be told by its weights.
#[test]
fn doubly_shifted_norms_are_recognised_in_a_finished_file() {
    let source = checkpoint("qwen35-dense-tiny");
    let weights = source.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let norms = tensors.as_object().unwrap().iter().filter(|(name, _)| name.ends_with("layernorm.weight"));
    for (_, tensor) in norms {
        let [start, end] = [0, 1].map(|i| tensor["data_offsets"][i].as_u64().unwrap() as usize + 8 + header);
        // bf16, the upper half of an f32.
        for gain in bytes[start..end].chunks_exact_mut(2) {
            let shifted = f32::from_le_bytes([0, 0, gain[0], gain[1]]) + 1.0;
            gain.copy_from_slice(&shifted.to_le_bytes()[2..]);
        }
    }
    fs::write(&weights, bytes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.base");
    run!("convert", source.path(), "-o", &out, "--no-check").fails_with(&["norm"]);
    run!("convert", "--no-check", source.path(), "-o", &out, "--source-convention", "hf").ok();
    let facts = run!("inspect", &out, "--json").ok().json();
    assert!(facts["suspicious"].as_str().unwrap().contains("added twice"), "{}", facts["suspicious"]);
    run!("verify", &out).fails_with(&["the offset of 1 is in these norms twice"]);
    run!("convert", source.path(), "-o", &out, "--force", "--source-convention", "hf")
        .fails_with(&["does not pass its self-check", "twice"]);
    run!("convert", "--no-check", fixture("qwen35-dense-tiny"), "-o", &out, "--force").ok();
    assert_eq!(run!("inspect", &out, "--json").ok().json()["suspicious"], Value::Null);
}
