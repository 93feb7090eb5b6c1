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
    within(&found["perplexity"], 9.06, 9.08);
    within(&found["recall"]["share"]["mean"], 0.96, 0.97);
    within(&found["choices"]["accuracy"]["mean"], 0.64, 0.66);
    within(&found["tool_calls"]["valid"]["mean"], 0.88, 0.90);
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
    let bands = [(2.5e-5, 2.7e-5), (5.3e-5, 5.5e-5), (2.9e-4, 3.1e-4), (3.3e-3, 3.5e-3)];
    assert_eq!(rows.len(), bands.len());
    for (row, (low, high)) in rows.iter().zip(bands) {
        within(&row["against"]["kl"], low, high);
    }
}

/// Divergence of the demo in 4 bits, made with `method`, from its own values.
fn four_bits(dir: &Path, method: &str, text: &Path, reference: &Path, source: &Path) -> f64 {
    let out = dir.join(format!("{method}.base"));
    let options =
        ["--target", "q4", "--group", "64", "--no-check", "--allow-quant-from-quant", "--method", method];
    let mut command = basert();
    Said::from(command.arg("convert").arg(source).arg("-o").arg(&out).args(options).output().unwrap()).ok();
    let eval = run!("eval", out, "--json", "--text-file", text, "--window", "1024", "--against", reference);
    eval.ok().json()["against"]["kl"].as_f64().unwrap()
}

#[test]
fn searched_scales_beat_rounded_ones_at_four_bits() {
    let dir = tempfile::tempdir().unwrap();
    let (source, reference) = (dir.path().join("demo.gguf"), dir.path().join("f32.base"));
    run!("export", demo(), "--gguf", &source, "--outtype", "f32").ok();
    let f32 = ["--target", "f32", "--no-check", "--allow-quant-from-quant"];
    Said::from(basert().arg("convert").arg(&source).arg("-o").arg(&reference).args(f32).output().unwrap())
        .ok();
    let text = text(dir.path(), 16_000);
    let [rtn, mse] = ["rtn", "mse"].map(|method| four_bits(dir.path(), method, &text, &reference, &source));
    assert!((0.0251..0.0254).contains(&rtn) && (0.0193..0.0196).contains(&mse), "{mse} against {rtn}");
}
