//! `profile`: every part of a step is accounted for.

use std::fs;

use serde_json::Value;

use crate::common::{hybrid, llama};

#[test]
fn a_hybrid_s_operations_are_named_layer_by_layer() {
    let found = run!("profile", hybrid(), "-p", "40", "-n", "3", "-r", "2", "--json").ok().json();
    let profiles = found["profiles"].as_array().unwrap();
    assert_eq!(profiles.iter().map(|p| &p["test"]).collect::<Vec<_>>(), ["prefill", "decode"]);
    for (profile, steps) in profiles.iter().zip([1, 3]) {
        let operations = profile["operations"].as_array().unwrap();
        let calls = |name: &str| -> u64 {
            let named = operations.iter().filter(|o| o["operation"] == name);
            named.map(|o| o["calls"].as_u64().unwrap()).sum()
        };
        for name in ["embed", "head", "attention", "store kv", "delta rule", "convolution", "gate", "norm"] {
            assert!(calls(name) > 0, "{name} is missing: {profile}");
        }
        assert_eq!(calls("embed"), 2 * steps, "two repetitions");
        assert_eq!(calls("attention"), calls("store kv"));
        let sum: f64 = operations.iter().map(|o| o["seconds"].as_f64().unwrap()).sum();
        let samples = profile["traced_s"]["samples"].as_array().unwrap();
        let whole: f64 = samples.iter().map(|s| s.as_f64().unwrap()).sum();
        assert!(sum > 0.0 && sum <= whole, "{sum} of {whole} s");
    }
}

#[test]
fn bytes_of_a_decode_step_are_those_of_the_weights() {
    let found = run!("profile", llama(), "-p", "0", "-n", "2", "-r", "1", "--json").ok().json();
    let operations = found["profiles"][0]["operations"].as_array().unwrap();
    let linear = |o: &&Value| o["operation"] == "linear" || o["operation"] == "head";
    let bytes: f64 = operations.iter().filter(linear).map(|o| o["bytes"].as_f64().unwrap()).sum();
    let facts = run!("inspect", llama(), "--json", "--tensors").ok().json();
    let all = facts["tensors"]["bytes"].as_f64().unwrap();
    assert!(bytes > 0.5 * 2.0 * all && bytes <= 2.0 * all * 1.001, "{bytes} of twice {all}");
}

#[test]
fn the_picture_shows_layers_and_is_never_written_over_anything() {
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("profile.svg");
    let args = ["-p", "8", "-n", "1", "-r", "1"];
    let draw = || {
        crate::common::run_in(
            dir.path(),
            &["profile", llama().to_str().unwrap(), "--flame", "profile.svg"],
            &args,
        )
    };
    let said = draw().ok();
    assert!(said.out.contains("between operations"), "{said:?}");
    let drawn = fs::read_to_string(&picture).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("layer 0") && drawn.ends_with("</svg>\n"));
    draw().fails_with(&["exists"]);
    run!("profile", llama(), "--flame", llama(), "--force").fails_with(&["is read", "--flame"]);
}

#[test]
fn numbers_that_mean_nothing_are_refused() {
    run!("profile", llama(), "-p", "0", "-n", "0").fails_with(&["nothing to profile"]);
    run!("profile", llama(), "-n", "99999999999999", "-c", "512").fails_with(&["too small"]);
}
