//! What the acceptance of strangers' files and hasty commands found: outputs that would destroy something, texts that
//! a terminal would obey, and settings that blame the wrong one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Said, basert, checkpoint, fixture, llama, names, send, wait_for_output, with_header};
use serde_json::{Value, json};

/// The llama model with an edited header.
fn edited(dir: &Path, edit: impl Fn(&mut Value)) -> PathBuf {
    with_header(dir, |header| {
        let mut header = serde_json::from_str(header).unwrap();
        edit(&mut header);
        header.to_string()
    })
}

fn ids_file(dir: &Path) -> PathBuf {
    let path = dir.join("ids.json");
    fs::write(&path, "[1, 2, 3, 4]").unwrap();
    path
}

#[test]
fn a_forced_conversion_never_replaces_a_file_of_its_source() {
    let source = checkpoint("llama-tiny");
    let before = names(source.path());
    for name in &before {
        let path = source.path().join(name);
        let content = fs::read(&path).unwrap();
        run!("convert", source.path(), "-o", &path, "--force").fails_with(&[name, "is a file of the source"]);
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("link");
        fs::hard_link(&path, &link).unwrap();
        run!("convert", source.path(), "-o", &link, "--force").fails_with(&["is a file of the source"]);
        assert!(fs::read(&path).unwrap() == content, "{name}");
    }
    assert_eq!(names(source.path()), before);
}

#[test]
fn a_dump_never_replaces_what_is_read_and_other_files_only_with_force() {
    let dir = tempfile::tempdir().unwrap();
    let (ids, text, model) = (ids_file(dir.path()), dir.path().join("t.txt"), dir.path().join("m.base"));
    fs::write(&text, "some words").unwrap();
    fs::copy(llama(), &model).unwrap();
    let before = fs::read(&model).unwrap();
    let refused = |input: [&Path; 2], dump: &Path| {
        run!("eval", &model, input[0], input[1], "--dump-logits", dump, "--force")
            .fails_with(&["which is read"]);
    };
    refused([Path::new("--ids-file"), &ids], &ids);
    refused([Path::new("--ids-file"), &ids], &model);
    refused([Path::new("--text-file"), &text], &text);
    assert!(fs::read(&model).unwrap() == before);
    assert_eq!(fs::read(&text).unwrap(), b"some words");

    let dump = dir.path().join("old");
    fs::write(&dump, "precious").unwrap();
    let words = ["exists already", "--force"];
    run!("eval", &model, "--ids-file", &ids, "--dump-logits", &dump).fails_with(&words);
    assert_eq!(fs::read(&dump).unwrap(), b"precious");
    run!("eval", &model, "--ids-file", &ids, "--dump-logits", &dump, "--force").ok();
    assert!(fs::read(&dump).unwrap().len() > 4 * 2048 * 4);
}

#[test]
fn devices_and_links_are_no_places_for_an_output() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("target"), "precious").unwrap();
    symlink("target", path("link")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    let ids = ids_file(dir.path());
    let cases = [
        (path("link"), "is a symbolic link"),
        (path("dangling"), "is a symbolic link"),
        (PathBuf::from("/dev/null"), "is not a regular file"),
    ];
    for (out, words) in &cases {
        run!("convert", fixture("llama-tiny"), "-o", out, "--force").fails_with(&[words]);
        run!("convert", fixture("llama-tiny"), "-o", out).fails_with(&[words]);
        run!("eval", llama(), "--ids-file", &ids, "--dump-logits", out, "--force").fails_with(&[words]);
    }
    assert_eq!(names(dir.path()), ["dangling", "ids.json", "link", "target"]);
    assert_eq!(fs::read(path("target")).unwrap(), b"precious");
}

#[test]
fn errors_while_writing_name_the_output_and_not_a_temporary_file() {
    let dir = tempfile::tempdir().unwrap();
    let ids = ids_file(dir.path());
    let out = dir.path().join("two  spaces.base");
    let limited = |arguments: &[&Path]| {
        // The system's answer to a file beyond this limit is a signal that would end the process without a word.
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f 8; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_basert")]);
        let said = Said::from(shell.args(arguments).output().unwrap());
        let said = said.fails_with(&["two  spaces.base", "File too large"]);
        assert!(!said.err.contains(".basert-"), "{said:?}");
        assert_eq!(names(dir.path()), ["ids.json"]);
    };
    limited(&[Path::new("convert"), &fixture("llama-tiny"), Path::new("-o"), &out]);
    let flags = [Path::new("--ids-file"), &ids, Path::new("--dump-logits"), &out];
    limited(&[&[Path::new("eval"), llama()], &flags[..]].concat());
}

#[test]
fn a_bundle_with_an_unusable_tokenizer_runs_on_ids() {
    let dir = tempfile::tempdir().unwrap();
    let model = edited(dir.path(), |h| h["tokenizer"]["tokenizer.json"]["model"]["type"] = json!("Nonsense"));
    let said = run!("complete", &model, "--prompt-ids", "311", "-n", "2", "--temp", "0", "--json").ok();
    assert_eq!(said.json()["text"], Value::Null);
    assert!(said.err.contains("note: the tokenizer in ") && said.err.contains("edited.base"), "{said:?}");
    let said = run!("eval", &model, "--ids-file", ids_file(dir.path())).ok();
    assert!(said.err.contains("note: the tokenizer in "), "{said:?}");
    let words = ["edited.base", "cannot be used", "--prompt-ids"];
    run!("complete", &model, "-p", "Hi").fails_with(&words);
    run!("complete", &model, "--prompt-ids", "1", "--stop", "x").fails_with(&words);
}

#[test]
fn an_unusable_tokenizer_is_refused_by_convert_with_the_way_out() {
    let source = checkpoint("llama-tiny");
    let out = source.path().join("m.base");
    fs::write(source.path().join("tokenizer.json"), r#"{"model": {"type": "Nonsense"}}"#).unwrap();
    run!("convert", source.path(), "-o", &out).fails_with(&["tokenizer.json", "--no-tokenizer"]);
    let said = run!("convert", source.path(), "-o", &out, "--no-tokenizer").ok();
    assert!(said.out.contains("left out"), "{said:?}");
    fs::remove_file(source.path().join("tokenizer.json")).unwrap();
    run!("convert", source.path(), "-o", &out, "--force").fails_with(&["no tokenizer", "--no-tokenizer"]);
}

#[test]
fn control_characters_from_files_do_not_reach_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let evil = "\x1b[2J\u{9b}31m\nforged line\u{202e}";
    let model = edited(dir.path(), |h| {
        h["source"]["filename"] = json!(evil);
        h["created"] = json!(evil);
        h["arch"] = json!(evil);
        h["metadata"][evil] = json!(evil);
        h["min_hw"] = json!(evil);
        h["baserT_version"] = json!(evil);
    });
    let clean = |text: &str| {
        let bad = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!text.contains(bad) && !text.contains("\nforged"), "{text:?}");
    };
    for said in [
        run!("inspect", &model, "--tensors").ok(),
        run!("inspect", &model, "--json").ok(),
        run!("complete", &model, "--prompt-ids", "1").fails_with(&["edited.base"]),
        run!("complete", &model, "--prompt-ids", "1", "-v").fails_with(&["edited.base"]),
    ] {
        clean(&said.out);
        clean(&said.err);
    }
    assert_eq!(run!("inspect", &model, "--json").json()["source"]["filename"], evil);

    let source = checkpoint("llama-tiny");
    let config = fs::read_to_string(source.path().join("config.json")).unwrap();
    let config = config.replacen("\"llama\"", &json!(evil).to_string(), 1);
    fs::write(source.path().join("config.json"), config).unwrap();
    let said = run!("convert", source.path(), "-o", dir.path().join("m.base")).fails_with(&["config.json"]);
    clean(&said.err);
}

#[test]
fn texts_may_start_with_a_hyphen() {
    let args = ["-n", "1", "--temp", "0"];
    let dash = ["-p", "- a list item", "--stop", "--"];
    let output = basert().arg("complete").arg(llama()).args(dash).args(args).output().unwrap();
    Said::from(output).ok();
    run!("complete", llama(), "-p", "--help", "-n", "1", "--temp", "0").ok();
    let said = run!("complete", llama(), "--chat", "--system", "-v", "-p", "-x");
    said.fails_with(&["has no chat template"]);
}

#[test]
fn an_unusable_generation_config_is_noted_with_bundle_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let model = edited(dir.path(), |h| {
        h["metadata"]["basert.generation_config"] = json!({"temperature": -2.0, "top_p": 7, "top_k": "many"});
    });
    let said = run!("complete", &model, "--prompt-ids", "1", "-n", "1", "--json").ok();
    for key in ["temperature", "top_p", "top_k"] {
        let line = said.err.lines().find(|l| l.contains(&format!("`{key}`")));
        assert!(
            line.is_some_and(|l| l.starts_with("note: ") && l.contains("edited.base")),
            "{key}: {said:?}"
        );
    }
    assert_eq!(said.json()["sampling"]["top_k"], 40);
    let flags = ["--temp", "0.5", "--top-p", "0.9", "--top-k", "3"];
    let output =
        basert().arg("complete").arg(&model).args(["--prompt-ids", "1", "-n", "1"]).args(flags).output();
    assert_eq!(Said::from(output.unwrap()).ok().err, "");
}

#[test]
fn an_empty_variable_counts_as_unset_and_a_bad_one_is_named() {
    const VARIABLES: [&str; 5] =
        ["BASERT_THREADS", "BASERT_CONTEXT", "BASERT_KV_BITS", "BASERT_KV_TYPE", "BASERT_ISA"];
    let command = || {
        let mut command = basert();
        command.arg("complete").arg(llama()).args(["--prompt-ids", "1", "-n", "1"]);
        command
    };
    let mut empty = command();
    empty.envs(VARIABLES.map(|name| (name, "")));
    Said::from(empty.output().unwrap()).ok();
    for name in VARIABLES {
        let said = Said::from(command().env(name, "x5").output().unwrap());
        assert!(
            said.code != Some(0) && said.err.contains(name) && said.err.contains("x5"),
            "{name}: {said:?}"
        );
    }
    // What was typed is not the variable's fault.
    let said = Said::from(command().env("BASERT_THREADS", "2").args(["-t", "0"]).output().unwrap());
    assert!(said.err.contains("--threads") && !said.err.contains("BASERT_THREADS"), "{said:?}");
}

#[test]
fn the_exit_status_tells_which_signal_ended_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let ids = dir.path().join("ids.json");
    fs::write(&ids, serde_json::to_string(&vec![311; 100_000]).unwrap()).unwrap();
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let out = tempfile::tempdir().unwrap();
        let mut command = basert();
        command.arg("eval").arg(llama()).args(["-c", "64", "--ids-file"]).arg(&ids);
        command.arg("--dump-logits").arg(out.path().join("l.safetensors"));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_output(&mut child, out.path());
        send(&child, signal);
        let said = Said::from(child.wait_with_output().unwrap());
        assert_eq!((said.code, said.err.as_str()), (Some(status), ""), "{signal}");
        assert_eq!(names(out.path()), Vec::<String>::new());
    }
}
