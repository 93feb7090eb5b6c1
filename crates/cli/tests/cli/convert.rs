//! Checkpoints become files, and files say what they are.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::common::{Said, basert, converted, fixture, interrupt, names, wait_for_unfinished, with_hole};
use serde_json::{Value, json};

#[test]
fn a_hybrid_checkpoint_keeps_its_draft_and_vision_tensors_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("hybrid.base");
    let report =
        run!("convert", "--no-check", fixture("qwen35-dense-tiny"), "-o", &out, "--json").ok().json();
    assert_eq!(report["draft"]["tensors"], 15);
    assert_eq!(report["vision"]["tensors"], 21);
    assert_eq!(report["output_bytes"], fs::metadata(&out).unwrap().len());

    let facts = run!("inspect", &out, "--json", "--tensors", "--verify-checksums").ok().json();
    let expected = json!({
        "schedule": "2 full-attention + 6 linear",
        "feed_forward": "8 dense",
        "kv_cache": {
            "attention_layers": 2, "kv_heads": 2, "head_dim": 64, "bytes_per_token_f16": 2 * 2 * 2 * 64 * 2,
            "bytes_per_token": {"16": 1024, "4": 288, "8": 544, "84": 416},
        },
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&facts["model"][key], value, "{key}");
    }
    assert_eq!(facts["arch"], "qwen35");
    assert_eq!(facts["quant_scheme"], "base_q4");
    assert_eq!(facts["mtp"]["tensors"], 15);
    assert_eq!(facts["mmproj"]["tensors"], 21);
    assert_eq!(facts["signature"], Value::Null);
    assert_eq!(facts["checksums_correct"], true);
    let tensors = facts["tensors"]["tensors"].as_u64().unwrap();
    assert_eq!(facts["tensor_list"].as_array().unwrap().len() as u64, tensors + 21);
    let by_dtype: u64 =
        facts["dtypes"].as_array().unwrap().iter().map(|d| d["tensors"].as_u64().unwrap()).sum();
    assert_eq!(by_dtype, tensors);
    assert_eq!(report["written"]["tensors"].as_u64().unwrap(), tensors + 21);
}

#[test]
fn the_text_form_says_the_same_and_never_that_a_signature_was_checked() {
    let (_dir, model) = converted("qwen35-dense-tiny", "q4");
    let text = run!("inspect", &model, "--tensors").ok().out;
    for words in [
        "arch            qwen35\n",
        "quant scheme    base_q4\n",
        "layers          2 full-attention + 6 linear\n",
        "source          qwen35-dense-tiny (hf_safetensors)\n",
        "of those mtp    15 tensors",
        "mmproj          21 tensors",
        "slots           none\n",
        "signature       not signed\n",
        "layers.0.linear_attn.in_proj_qkv.weight",
        "1.00 KiB per token at f16 (2 layers x 2 heads x 64, K and V); 8: 544 B; 84: 416 B; 4: 288 B; recurrent state ",
    ] {
        assert!(text.contains(words), "no '{words}' in\n{text}");
    }
    assert!(!text.contains("verified") && !text.contains("checksums"), "{text}");
}

#[test]
fn every_target_converts_and_is_found_again() {
    let targets = ["q2", "base-q3", "base-q4", "q5", "q6", "q8", "bf16", "f16", "f32"];
    let mut sizes = Vec::new();
    for target in targets {
        let (_dir, model) = converted("qwen3-dense-tiny", target);
        let facts = run!("inspect", &model, "--json", "--verify-checksums").ok().json();
        let dtype = match target.trim_start_matches("base-") {
            q if q.starts_with('q') => format!("base_{q}"),
            float => float.to_owned(),
        };
        let found = facts["dtypes"].as_array().unwrap().iter().find(|d| d["dtype"] == dtype);
        assert!(found.is_some_and(|d| d["tensors"].as_u64().unwrap() > 10), "{target}: {facts}");
        sizes.push(facts["tensors"]["bytes"].as_u64().unwrap());
    }
    assert!(sizes[..7].is_sorted() && sizes[6] == sizes[7] && sizes[7] < sizes[8], "{sizes:?}");
}

#[test]
fn group_and_scale_options_are_honoured_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.base");
    let source = fixture("llama-tiny");
    run!("convert", "--no-check", &source, "-o", &out, "--group", "32", "--scales", "bf16").ok();
    let facts = run!("inspect", &out, "--json", "--tensors").ok().json();
    let tensors = facts["tensor_list"].as_array().unwrap().iter().filter(|t| t["dtype"] == "base_q4");
    let stored: Vec<(&Value, &Value)> = tensors.map(|t| (&t["group_size"], &t["scale_dtype"])).collect();
    assert!(!stored.is_empty() && stored.iter().all(|s| *s == (&json!(32), &json!("bf16"))), "{stored:?}");
    for (option, value, words) in [("--group", "48", "48"), ("--group", "0", "at least 1")] {
        let said = run!("convert", &source, "-o", &out, "--force", option, value);
        assert!(said.code != Some(0) && said.err.contains(words), "{said:?}");
    }
    run!("convert", &source, "-o", &out, "--force", "--target", "bf16", "--group", "32")
        .fails_with(&["no groups"]);
}

#[test]
fn the_output_is_named_after_source_and_target_and_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let convert = |more: &[&str]| {
        let output = basert()
            .current_dir(&dir)
            .args(["convert", "--no-check"])
            .arg(fixture("llama-tiny").canonicalize().unwrap())
            .args(more)
            .output();
        Said::from(output.unwrap())
    };
    let said = convert(&["--target", "q8"]).ok();
    assert!(said.out.contains("wrote llama-tiny-base-q8.base"), "{said:?}");
    assert_eq!(names(dir.path()), ["llama-tiny-base-q8.base"]);

    let path = dir.path().join("llama-tiny-base-q8.base");
    fs::write(&path, "precious").unwrap();
    convert(&["--target", "q8"]).fails_with(&["exists already", "--force"]);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    convert(&["--target", "q8", "--force"]).ok();
    assert!(fs::read(&path).unwrap().starts_with(b"BASE"));
    assert_eq!(names(dir.path()).len(), 1);
}

/// A download cache links a readable name to a file that is named by its hash.
#[test]
#[cfg(unix)]
fn a_linked_source_is_called_by_the_links_name() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(fixture("llama-tiny").canonicalize().unwrap(), dir.path().join("Tiny-1B"))
        .unwrap();
    let output = basert().current_dir(&dir).args(["convert", "--no-check", "Tiny-1B/"]).output().unwrap();
    assert!(Said::from(output).ok().out.contains("wrote Tiny-1B-base-q4.base"));
    let facts = run!("inspect", dir.path().join("Tiny-1B-base-q4.base"), "--json").ok().json();
    assert_eq!(facts["source"]["filename"], "Tiny-1B");
}

/// What is planned happens: same tensors, same verdicts, nothing written before.
#[test]
fn a_plan_says_what_the_conversion_then_does() {
    let dir = tempfile::tempdir().unwrap();
    for (target, more) in [("auto", &[][..]), ("q2", &[]), ("bf16", &["--threads", "2"])] {
        let source = fixture("qwen35-dense-tiny").canonicalize().unwrap();
        let said = |extra: &[&str]| {
            let mut command = basert();
            command
                .current_dir(&dir)
                .args(["convert", "--no-check"])
                .arg(&source)
                .args(["--target", target, "--json"]);
            Said::from(command.args(more).args(extra).output().unwrap()).ok().json()
        };
        let plan = said(&["--plan"]);
        assert_eq!(names(dir.path()), Vec::<String>::new());
        let report = said(&["-o", "m.base"]);
        for key in ["arch", "target", "written", "dtypes", "fallbacks", "dropped", "peak_memory_bytes"] {
            assert_eq!(plan[key], report[key], "{key}");
        }
        let lines = |report: &Value| {
            let line =
                |line: &Value| ["name", "source", "stored", "verdict", "bytes"].map(|k| line[k].clone());
            report["tensors"].as_array().unwrap().iter().map(line).collect::<Vec<_>>()
        };
        assert_eq!(lines(&plan), lines(&report));
        assert_eq!(plan["tensors"][0]["max_error"], Value::Null);
        assert!(report["tensors"][0]["rms_error"].is_f64());
        fs::remove_file(dir.path().join("m.base")).unwrap();
    }
    let text = run!("convert", fixture("qwen35-dense-tiny"), "--plan").ok().out;
    for words in ["byte copy", "quantized", "kept in float", "peak memory: about", "nothing was written"] {
        assert!(text.contains(words), "no '{words}' in\n{text}");
    }
    assert!(text.contains("bf16 -> base_q4 group 64  layers.*.mlp.up_proj.weight"), "{text}");
    let said = run!("convert", fixture("llama-tiny"), "--plan", "-o", "m.base");
    assert!(said.code == Some(2) && said.err.contains("--plan"), "{said:?}");
}

#[test]
fn the_same_source_gives_the_same_bytes_with_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    for (name, threads) in [("a", "1"), ("b", "2")] {
        run!("convert", "--no-check", fixture("qwen3-moe-tiny"), "-o", dir.path().join(name), "-t", threads)
            .ok();
    }
    assert!(fs::read(dir.path().join("a")).unwrap() == fs::read(dir.path().join("b")).unwrap());
}

#[test]
fn outputs_that_cannot_be_are_refused_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama-tiny");
    run!("convert", &source, "-o", dir.path()).fails_with(&["is a directory"]);
    run!("convert", &source, "-o", dir.path().join("no/such/m.base")).fails_with(&["m.base", "mkdir -p"]);
    let file = dir.path().join("m.gguf");
    fs::write(&file, "GGUF").unwrap();
    run!("convert", &file, "-o", &file, "--force").fails_with(&["both source and output"]);
    assert_eq!(names(dir.path()), ["m.gguf"]);
}

#[test]
fn an_interrupted_conversion_leaves_nothing_behind() {
    let source = tempfile::tempdir().unwrap();
    with_hole(source.path(), 2 << 30);
    let dir = tempfile::tempdir().unwrap();
    let mut child = basert()
        .arg("convert")
        .args([source.path(), Path::new("-o"), &dir.path().join("m.base")])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_unfinished(&mut child, dir.path());
    interrupt(&child);
    let said = Said::from(child.wait_with_output().unwrap());
    assert_eq!((said.code, said.err.as_str()), (Some(130), ""));
    assert_eq!(names(dir.path()), Vec::<String>::new());
}
