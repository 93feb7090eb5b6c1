//! Profiles, methods and calibration on the command line.

use std::fs;

use crate::common::{fixture, names};
use serde_json::json;

#[test]
fn profiles_are_listed_printed_used_and_recorded() {
    let list = run!("profiles").ok().out;
    let found = run!("profiles", "--json").ok().json();
    for profile in found.as_array().unwrap() {
        let name = profile["name"].as_str().unwrap();
        assert!(list.contains(name), "{list}");
        let text = run!("profiles", name).ok().json();
        assert_eq!((&text["name"], &text["arch"]), (&profile["name"], &profile["arch"]));
    }
    run!("profiles", "no-such").fails_with(&["no-such", "basert profiles"]);

    let dir = tempfile::tempdir().unwrap();
    let mine = dir.path().join("mine.json");
    let text = run!("profiles", "moe").ok().out.replace("\"moe\"", "\"mine\"");
    fs::write(&mine, text).unwrap();
    let source = fixture("qwen3-moe-tiny");
    for (profile, name) in [(mine.as_path(), "mine"), ("moe".as_ref(), "moe")] {
        let out = dir.path().join(format!("{name}.base"));
        let report =
            run!("convert", "--no-check", &source, "--profile", profile, "-o", &out, "--json").ok().json();
        assert_eq!(report["target"], name);
        let facts = run!("inspect", &out, "--json", "--tensors").ok().json();
        let dtype = |tensor: &str| {
            let list = facts["tensor_list"].as_array().unwrap();
            list.iter().find(|t| t["name"] == tensor).unwrap()["dtype"].clone()
        };
        assert_eq!(dtype("layers.0.ffn_up_exps.weight"), "base_q4");
        assert_eq!(dtype("layers.0.self_attn.o_proj.weight"), "base_q6");
        assert_eq!(facts["quant_profile"], name);
    }
    for option in [["--target", "q4"], ["--group", "32"], ["--scales", "f16"]] {
        let said = run!("convert", &source, "--profile", "moe", option[0], option[1]);
        assert!(said.code == Some(2) && said.err.contains("--profile"), "{said:?}");
    }
    run!("convert", &source, "--profile", "no-such").fails_with(&["no-such", "moe-q4mix", "hint"]);
}

#[test]
fn an_importance_file_gives_the_bytes_that_its_calibration_gave() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (text, kept) = (path("text"), path("importance"));
    fs::write(&text, "The quick brown fox jumps over the lazy dog. ".repeat(8)).unwrap();
    let source = fixture("qwen35-dense-tiny");
    for method in ["mse", "awq"] {
        let convert = |out: &str, options: &[&std::ffi::OsStr]| {
            let mut command = crate::common::basert();
            command
                .args(["convert", "--no-check", "--json", "--method", method, "-o"])
                .arg(path(out))
                .arg(&source);
            crate::common::Said::from(command.args(options).output().unwrap())
        };
        let calibrated = format!("{method}-calibrated");
        let options: [&std::ffi::OsStr; 7] = [
            "--calibration".as_ref(),
            text.as_ref(),
            "--calibration-tokens".as_ref(),
            "50".as_ref(),
            "--save-importance".as_ref(),
            kept.as_ref(),
            "--force".as_ref(),
        ];
        let report = convert(&calibrated, &options).ok().json();
        let scaled =
            report["tensors"].as_array().unwrap().iter().filter(|t| t["scaled"] == json!(true)).count();
        assert_eq!(scaled > 0, method == "awq", "{report}");
        let reused = format!("{method}-reused");
        convert(&reused, &["--importance".as_ref(), kept.as_ref()]).ok();
        assert!(fs::read(path(&calibrated)).unwrap() == fs::read(path(&reused)).unwrap(), "{method}");
    }
    let plain = run!("convert", "--no-check", &source, "--method", "mse", "-o", path("plain"));
    plain.ok();
    assert!(fs::read(path("plain")).unwrap() != fs::read(path("mse-reused")).unwrap());

    // Another model's importance, and files that are none.
    let other = fixture("qwen3-dense-tiny");
    let out = path("other");
    run!("convert", "--no-check", &other, "--importance", &kept, "-o", &out)
        .fails_with(&["importance: it was collected from a model with other tensors", "--save-importance"]);
    run!("convert", "--no-check", &other, "--importance", other.join("model.safetensors"), "-o", &out)
        .fails_with(&["not an importance file"]);
    run!("convert", "--no-check", &source, "--calibration", &text, "--save-importance", &kept, "-o", &out)
        .fails_with(&["importance exists already", "--force"]);
    assert!(!out.exists() && !names(dir.path()).iter().any(|name| name.starts_with('.')));
}

#[test]
fn a_method_that_would_do_nothing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.base");
    let text = dir.path().join("text");
    fs::write(&text, "Some words. ".repeat(40)).unwrap();
    let source = fixture("llama-tiny");
    let convert = |options: &[&str]| {
        let mut command = crate::common::basert();
        command.args(["convert", "--no-check", "-o"]).arg(&out).arg(&source).args(options);
        crate::common::Said::from(command.output().unwrap())
    };
    let text = text.to_str().unwrap();
    convert(&["--method", "awq"]).fails_with(&["needs activations"]);
    convert(&["--method", "rtn", "--calibration", text]).fails_with(&["rtn"]);
    convert(&["--method", "mse", "--target", "bf16"]).fails_with(&["target bf16 has no scales"]);
    convert(&["--calibration", text, "--target", "f32"]).fails_with(&["target f32 has no scales"]);
    let floats = dir.path().join("floats.json");
    fs::write(&floats, r#"{"name": "n", "arch": "a", "rules": [{"pattern": "**", "dtype": "bf16"}]}"#)
        .unwrap();
    convert(&["--method", "mse", "--profile", floats.to_str().unwrap()])
        .fails_with(&["no tensor has scales to find"]);
    for (options, words) in [
        (vec!["--method", "gptq"], "rtn, mse, awq"),
        (vec!["--save-importance", "x"], "--calibration"),
        (vec!["--calibration-tokens", "10"], "--calibration"),
        (vec!["--calibration", text, "--importance", "x"], "--importance"),
    ] {
        let said = convert(&options);
        assert!(said.code == Some(2) && said.err.contains(words), "{options:?}: {said:?}");
    }
    // What clap lets through because the option that is missing would clash with one that is there.
    for (options, words) in [
        (&["--importance", "x", "--save-importance", "y"][..], "--save-importance goes with --calibration"),
        (&["--importance", "x", "--calibration-tokens", "9"], "--calibration-tokens goes with --calibration"),
    ] {
        convert(options).fails_with(&[words]);
    }
    for option in ["--save-importance", "--calibration-tokens"] {
        run!("convert", &source, "--plan", option, "9").fails_with(&[option, "goes with --calibration"]);
    }
    assert!(!out.exists());
}

/// `--force` replaces an older output, never what the conversion is made from or something else that it makes.
#[test]
fn no_file_is_written_over_what_the_conversion_reads_or_also_writes() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    for entry in fs::read_dir(fixture("llama-tiny")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), source.join(entry.file_name())).unwrap();
    }
    let path = |name: &str| dir.path().join(name);
    fs::write(path("cal.txt"), "The quick brown fox jumps over the lazy dog. ".repeat(9)).unwrap();
    fs::hard_link(path("cal.txt"), path("hard.txt")).unwrap();
    let rules = r#"{"name": "n", "arch": "a", "rules": [{"pattern": "**", "dtype": "base_q4"}]}"#;
    fs::write(path("p.json"), rules).unwrap();
    let contents = || {
        let read = |dir: &std::path::Path| {
            let files = names(dir).into_iter().filter(|name| name != "source");
            files.map(|name| (name.clone(), fs::read(dir.join(name)).unwrap())).collect::<Vec<_>>()
        };
        (read(dir.path()), read(&source))
    };
    let before = contents();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (line, said) in [
        ("-o cal.txt --calibration cal.txt", "cal.txt is both --calibration and output"),
        ("-o hard.txt --calibration cal.txt", "is both --calibration and output"),
        ("-o m --calibration m.partial", "is both --calibration and the output's unfinished work"),
        ("-o p.json --profile p.json", "is both --profile and output"),
        (
            "-o m --calibration cal.txt --save-importance cal.txt",
            "is both --calibration and --save-importance",
        ),
        (
            "-o m --calibration cal.txt --save-importance hard.txt",
            "is both --calibration and --save-importance",
        ),
        ("-o m --calibration cal.txt --save-importance ./m", "is both output and --save-importance"),
        ("-o m --calibration cal.txt --save-importance m.partial", "unfinished work and --save-importance"),
        ("-o m --calibration cal.txt --save-importance m.partial.journal", "journal and --save-importance"),
        ("-o m --calibration cal.txt --save-importance source/model.safetensors", "a file of the source"),
        ("-o m --calibration cal.txt --save-importance source/config.json", "a file of the source"),
        ("-o source/tokenizer.json", "a file of the source"),
        ("-o m --calibration cal.txt --save-importance no/such/folder", "the folder of no/such/folder"),
    ] {
        let base = ["convert", "--no-check", "--force", "source"];
        let more = words(line);
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        crate::common::run_in(dir.path(), &base, &more).fails_with(&[said]);
        assert!(contents() == before, "{line} changed files");
    }
}
