//! The demo that comes with the repository: it speaks, and its figures stay where they were when it was made.
//!
//! The arithmetic is exact, so the figures are the same on every machine; bands leave room for changes of the arithmetic
//! that do no harm. Who leaves a band on purpose says so here and in `models/demo/README.md`.

use std::path::{Path, PathBuf};

use serde_json::Value;

fn demo(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo").join(name)
}

#[track_caller]
fn within(what: &str, found: &Value, low: f64, high: f64) {
    let found = found.as_f64().unwrap_or_else(|| panic!("{what} is {found}"));
    assert!((low..=high).contains(&found), "{what} is {found}, not {low} to {high}");
}

#[test]
fn the_demo_answers_from_a_fresh_clone() {
    let said = run!("complete", demo("demo.base"), "--chat", "--no-think", "--temp", "0", "-p", "What is the capital of France?").ok();
    assert!(said.out.contains("Paris"), "{said:?}");
    let said = run!("verify", demo("demo.base"), "--logits").ok();
    assert!(said.out.contains("bit for bit"), "{said:?}");
}

#[test]
fn a_numeric_regression_leaves_the_demos_bands() {
    let found = run!(
        "eval", demo("demo.base"), "--text-file", demo("evaluation/text.txt"), "--window", "1024",
        "--recall", "--lengths", "512,1024", "--depths", "0,50,100", "--trials", "3",
        "--choices", demo("evaluation/choices.jsonl"), "--tool-calls", demo("evaluation/tool-calls.jsonl"), "--json"
    )
    .ok()
    .json();
    within("perplexity", &found["perplexity"], 0.0, 0.0);
    within("recall", &found["recall"]["share"]["mean"], 0.9, 1.0);
    within("choices", &found["choices"]["accuracy"]["mean"], 0.9, 1.0);
    within("valid tool calls", &found["tool_calls"]["valid"]["mean"], 0.9, 1.0);
    within("exact tool calls", &found["tool_calls"]["exact"]["mean"], 0.5, 1.0);
}

#[test]
fn four_bits_searched_lose_a_quarter_less_than_four_bits_rounded_and_eight_almost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    run!("export", demo("demo.base"), "--gguf", path("demo.gguf"), "--outtype", "f32").ok();
    let convert = |name: &str, target: &str, method: &str| {
        run!("convert", path("demo.gguf"), "-o", path(name), "--target", target, "--method", method).ok();
    };
    run!("convert", path("demo.gguf"), "-o", path("f32.base"), "--target", "f32").ok();
    convert("rtn.base", "q4", "rtn");
    convert("mse.base", "q4", "mse");
    convert("q8.base", "q8", "mse");
    let against = |name: &str| {
        let text = demo("evaluation/text.txt");
        let said = run!(
            "eval", path(name), "--text-file", text, "--window", "1024", "--against", path("f32.base"), "--kv-type", "f32", "--json"
        );
        said.ok().json()["against"].clone()
    };
    let kl = |name: &str| against(name)["kl"].as_f64().unwrap();
    let (rtn, mse) = (kl("rtn.base"), kl("mse.base"));
    assert!(mse <= 0.75 * rtn, "{mse} and {rtn}");
    within("top-1 agreement of q8", &against("q8.base")["top1_agreement"], 0.995, 1.0);
}
