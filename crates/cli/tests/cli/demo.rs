//! The model that comes with the project: it answers, and its figures stay where they were measured.
//!
//! Arithmetic is exact, so a figure that leaves its band is a change of the arithmetic, the text or the questions, not noise.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::{fs, io::Write};

use serde_json::{Value, json};

use crate::common::{Said, basert};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

fn demo() -> PathBuf {
    folder().join("demo.base")
}

fn evaluation(name: &str) -> PathBuf {
    folder().join("evaluation").join(name)
}

/// The first `bytes` bytes of the held-out text, to the end of a line.
fn text(dir: &Path, bytes: usize) -> PathBuf {
    let whole = fs::read_to_string(evaluation("text.txt")).unwrap();
    let end = whole[..bytes].rfind('\n').unwrap();
    let path = dir.join("text.txt");
    fs::write(&path, &whole[..end]).unwrap();
    path
}

/// A conversation in a pipe: what is said to the demo, line by line, and its answers.
fn talk(lines: &str) -> Vec<String> {
    let mut command = basert();
    command.arg("chat").arg(demo()).args(["--temp", "0"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let said = Said::from(child.wait_with_output().unwrap()).ok();
    said.out.split('\n').filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[track_caller]
fn within(found: &Value, low: f64, high: f64) {
    let value = found.as_f64().unwrap_or_else(|| panic!("no number: {found}"));
    assert!((low..=high).contains(&value), "{value} is outside {low} to {high}");
}

#[test]
fn the_readme_s_first_command_finds_the_demo_by_its_name() {
    let mut command = basert();
    command.current_dir(folder().join("../..")).args(["chat", "demo"]).stdin(Stdio::null());
    Said::from(command.output().unwrap()).ok();
}

#[test]
fn the_demo_remembers_what_it_was_told() {
    let answers = talk("Hello!\nMy name is Ada.\nWhat is my name?\n");
    assert_eq!(answers.len(), 3, "{answers:?}");
    assert!(answers[2].contains("Ada"), "{answers:?}");
}

/// What `complete` says of a story, with more arguments.
fn story(more: &[&str]) -> Value {
    let mut command = basert();
    command.arg("complete").arg(demo()).args(["--chat", "--prompt", "Tell me a story about a small fox."]);
    command.args(["-n", "60", "-c", "256", "--seed", "4", "--ignore-eos", "--json"]).args(more);
    Said::from(command.output().unwrap()).ok().json()
}

#[test]
fn guessing_is_shown_counted_and_changes_no_word() {
    for temperature in ["0", "0.8"] {
        let without = story(&["--temp", temperature]);
        assert_eq!(
            (&without["selected"]["speculation"], &without["speculated"]["drafted"]),
            (&Value::Null, &json!(0))
        );
        for (asked, source) in [("2", "mtp"), ("auto", "mtp"), ("ngram", "text")] {
            let with = story(&["--temp", temperature, "--speculative", asked]);
            assert_eq!(with["ids"], without["ids"], "{asked} at {temperature}");
            assert_eq!(with["selected"]["speculation"]["source"], source);
            let count = |key: &str| with["speculated"][key].as_u64().unwrap();
            assert_eq!(count("steps") + count("accepted"), with["ids"].as_array().unwrap().len() as u64 - 1);
            assert!(count("drafted") > 0 || source == "text", "{with}");
        }
    }
    let plan = run!("plan", demo(), "-c", "256", "--speculative", "2", "--json").ok().json();
    let run = story(&["--speculative", "2"]);
    assert!(plan["memory"]["drafts"].as_u64().unwrap() > 0);
    assert_eq!(plan["memory"], run["selected"]["memory"], "planned is allocated");
    let verbose = run!("complete", demo(), "--prompt", "Hello", "-n", "9", "--speculative", "3", "-v").ok();
    for words in ["speculative", "prediction head (mtp)", "tokens a step", "guesses were right", "drafts"] {
        assert!(verbose.err.contains(words), "no '{words}' in {verbose:?}");
    }
    assert_eq!(run!("complete", demo(), "--prompt", "Hello", "--speculative", "17").code, Some(2));
}

#[test]
fn the_demo_computes_what_it_did_when_it_was_made() {
    run!("verify", demo(), "--logits").ok();
}

#[test]
fn the_demo_s_figures_stay_in_their_bands() {
    let (choices, calls) = (evaluation("choices.jsonl"), evaluation("tool-calls.jsonl"));
    let found = run!(
        "eval",
        demo(),
        "--json",
        "--text-file",
        evaluation("text.txt"),
        "--window",
        "1024",
        "--recall",
        "--lengths",
        "512,1024,2048",
        "--trials",
        "2",
        "--choices",
        choices,
        "--tool-calls",
        calls,
    );
    let found = found.ok().json();
    within(&found["perplexity"], 3.57, 3.58);
    within(&found["recall"]["share"]["mean"], 1.0, 1.0);
    within(&found["choices"]["accuracy"]["mean"], 0.84, 0.86);
    within(&found["tool_calls"]["valid"]["mean"], 0.96, 0.98);
}

#[test]
fn narrow_caches_cost_the_demo_what_they_did() {
    let dir = tempfile::tempdir().unwrap();
    let text = text(dir.path(), 16_000);
    let said = run!(
        "eval",
        demo(),
        "--json",
        "--text-file",
        text,
        "--window",
        "1024",
        "--against",
        demo(),
        "--with-kv",
        "16",
        "--with-kv",
        "8",
        "--with-kv",
        "84",
        "--with-kv",
        "4",
    );
    let rows: Vec<Value> = said.ok().out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let bands = [(2.0e-5, 2.2e-5), (2.8e-5, 3.0e-5), (1.1e-4, 1.3e-4), (1.0e-3, 1.2e-3)];
    assert_eq!(rows.len(), bands.len());
    for (row, (low, high)) in rows.iter().zip(bands) {
        within(&row["against"]["kl"], low, high);
    }
}

/// A bundle of `source` in `dir`, made with `options`.
fn remade(dir: &Path, name: &str, source: &Path, options: &[&str]) -> PathBuf {
    let out = dir.join(name).with_extension("base");
    let mut command = basert();
    command.arg("convert").arg(source).arg("-o").arg(&out).args(options);
    Said::from(command.args(["--no-check", "--allow-quant-from-quant"]).output().unwrap()).ok();
    out
}

/// Divergence from `reference` on the held-out text, and the share of equal likeliest tokens.
fn against(model: &Path, reference: &Path) -> (f64, f64) {
    let text = evaluation("text.txt");
    let said = run!(
        "eval",
        model,
        "--against",
        reference,
        "--text-file",
        text,
        "--window",
        "1024",
        "--kv-type",
        "f32",
        "--json",
    );
    let found = &said.ok().json()["against"];
    (found["kl"].as_f64().unwrap(), found["top1_agreement"].as_f64().unwrap())
}

/// The demo's values in f32: as a checkpoint, and as a bundle.
fn in_f32(dir: &Path) -> (PathBuf, PathBuf) {
    let source = dir.join("demo.gguf");
    run!("export", demo(), "--gguf", &source, "--outtype", "f32").ok();
    let bundle = remade(dir, "f32", &source, &["--target", "f32"]);
    (source, bundle)
}

#[test]
fn eight_bit_arithmetic_finds_the_same_likeliest_token() {
    let dir = tempfile::tempdir().unwrap();
    let (_, reference) = in_f32(dir.path());
    let (kl, same) = against(&demo(), &reference);
    assert!((6.4e-5..6.6e-5).contains(&kl) && (0.996..0.998).contains(&same), "KL {kl}, {same} the same");
}

#[test]
fn searched_scales_beat_rounded_ones_at_four_bits() {
    let dir = tempfile::tempdir().unwrap();
    let (source, reference) = in_f32(dir.path());
    let calibration = evaluation("calibration.txt");
    let calibrated = ["mse", "--calibration-tokens", "16384", "--calibration", calibration.to_str().unwrap()];
    let [rtn, mse, known] =
        [("rtn", &["rtn"][..]), ("mse", &["mse"]), ("known", &calibrated)].map(|(name, method)| {
            let options = [&["--target", "q4", "--group", "64", "--method"], method].concat();
            against(&remade(dir.path(), name, &source, &options), &reference).0
        });
    let bands = [(rtn, 0.0109..0.0110), (mse, 0.0089..0.0090), (known, 0.0081..0.0082)];
    assert!(bands.iter().all(|(kl, band)| band.contains(kl)), "{bands:?}");
    assert!(known < 0.75 * rtn, "known activations take a quarter off: {bands:?}");
}
