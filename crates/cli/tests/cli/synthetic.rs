//! Random weights with the geometry of a published model.

use std::fs;

use crate::common::run_in;

#[test]
fn the_list_says_what_can_be_made_and_why_the_rest_cannot() {
    let text = run!("convert", "--synthetic", "list").ok().out;
    let (usable, others) = text.split_once("not usable:").unwrap();
    assert!(usable.contains("qwen3.5-35b-a3b ") && usable.contains("qwen3-0.6b "), "{text}");
    assert!(others.contains("gemma-3-4b: architecture `gemma3_text`"), "{text}");
    let json = run!("convert", "--synthetic", "list", "--json").ok().json();
    let count = |key: &str| json[key].as_array().unwrap().len();
    assert_eq!(count("usable") + count("unusable"), 89);
}

/// The smallest real geometry, cut to one layer: what is left is its embedding table.
#[test]
fn a_cut_geometry_runs_on_token_ids() {
    let dir = tempfile::tempdir().unwrap();
    let convert = |more: &[&str]| {
        run_in(dir.path(), &["convert", "--synthetic", "qwen3-0.6b", "--layers", "1", "--target", "q2"], more)
    };
    let report = convert(&["--json"]).ok().json();
    assert_eq!((&report["arch"], &report["target"]), (&"qwen".into(), &"base-q2".into()));
    let path = dir.path().join("qwen3-0.6b-1-layers-base-q2.base");
    let first = fs::read(&path).unwrap();
    convert(&[]).fails_with(&["exists already"]);
    convert(&["--force", "--threads", "1"]).ok();
    assert!(fs::read(&path).unwrap() == first, "the bytes depend on the run");
    let facts = run!("inspect", &path, "--json", "--verify-checksums").ok().json();
    assert_eq!(facts["source"]["format"], "synthetic");
    assert!(facts["metadata"]["basert.synthetic"].as_str().unwrap().contains("random weights"));
    let answer =
        run!("complete", &path, "--prompt-ids", "1,2,3", "--temp", "0", "-n", "3", "--json").ok().json();
    assert_eq!(answer["ids"].as_array().unwrap().len(), 3);
}

#[test]
fn geometries_and_options_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let convert = |more: &[&str]| run_in(dir.path(), &["convert"], more);
    convert(&["--synthetic", "gpt-5"]).fails_with(&["`gpt-5` is not in the catalog", "--synthetic list"]);
    convert(&["--synthetic", "mistral-7b-v0.3"]).fails_with(&["architecture `mistral`"]);
    convert(&["--synthetic", "qwen3-0.6b", "--layers", "29"]).fails_with(&["expected 1 to 28"]);
    let list = [
        "--output=x",
        "--target=q4",
        "--group=32",
        "--scales=f16",
        "--layers=2",
        "--draft-layers",
        "--threads=1",
        "--no-check",
        "--force",
    ];
    for option in list {
        let name = option.split('=').next().unwrap();
        convert(&["--synthetic", "list", option]).fails_with(&[&format!("{name} means nothing")]);
    }
    for option in ["--save-importance=x", "--calibration-tokens=9"] {
        convert(&["--synthetic", "qwen3-0.6b", option]).fails_with(&["goes with --calibration only"]);
    }
    for clash in [&["--plan"][..], &["--allow-quant-from-quant"], &["--compat", "basert"], &["source"]] {
        let said = convert(&[&["--synthetic", "qwen3-0.6b"], clash].concat());
        assert!(said.code == Some(2) && said.err.contains("cannot be used with"), "{said:?}");
    }
    let headless = convert(&["--synthetic", "qwen3-0.6b", "--draft-layers"]);
    headless.fails_with(&["no draft layers are known", "--draft-layers"]);
    convert(&["--draft-layers", "source"]).fails_with(&["--draft-layers goes with --synthetic only"]);
    convert(&["--layers", "2", "source"]).fails_with(&["--layers goes with --synthetic only"]);
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
}
