//! `basert plan`: the numbers of a run before it, published numbers, and questions asked the other way round.

use serde_json::Value;

use crate::common::{Said, basert, converted, fixture, hybrid, llama};

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The environment says how models run, and is no flag beside the options that it does not concern.
#[test]
fn speculation_in_the_environment_does_not_stop_catalogs_and_records() {
    for args in [&["--catalog", "--filter", "qwen3-0.6b"][..], &["qwen3.5-2b", "--record"]] {
        let mut command = basert();
        let said =
            Said::from(command.arg("plan").args(args).env("BASERT_SPECULATIVE", "auto").output().unwrap());
        said.ok();
    }
    let mut wrong = basert();
    let said = wrong.args(["plan", "qwen3.5-2b"]).env("BASERT_SPECULATIVE", "no").output().unwrap();
    Said::from(said).fails_with(&["BASERT_SPECULATIVE=no", "must be auto"]);
}

#[test]
fn a_head_that_would_not_guess_is_said_beside_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let config = |layers: u64| {
        let text = std::fs::read(fixture("toy-hybrid").join("config.json")).unwrap();
        let mut value: Value = serde_json::from_slice(&text).unwrap();
        let text = if value["text_config"].is_object() { &mut value["text_config"] } else { &mut value };
        text["mtp_num_hidden_layers"] = layers.into();
        let file = folder.path().join(format!("{layers}.json"));
        std::fs::write(&file, value.to_string()).unwrap();
        file
    };
    for (model, why) in [
        (config(0), "no prediction head"),
        (config(1), ""),
        (config(2), "several draft layers"),
        ("qwen3.5-2b".into(), "geometries are planned without a prediction head"),
    ] {
        for asked in ["3", "auto", "ngram", "off"] {
            let said = run!("plan", &model, "--speculative", asked, "--max-context", "200", "--json").ok();
            let notes = said.json()["notes"].to_string();
            let is_said = ["3", "auto"].contains(&asked) && !why.is_empty();
            assert_eq!(notes.contains("guessed from earlier text"), is_said, "{model:?} {asked}: {notes}");
            assert!(!is_said || notes.contains(why), "{notes}");
        }
    }
    let said = run!("complete", llama(), "--speculative", "2", "--prompt-ids", "1,2", "-n", "2").ok();
    assert!(
        said.err.contains("guessed from earlier text") && said.err.contains("no prediction head"),
        "{said:?}"
    );
}

#[test]
fn a_run_takes_what_was_planned_to_the_byte() {
    for model in [llama(), hybrid()] {
        for kv in ["16", "8", "4", "84"] {
            let planned = run!("plan", model, "--max-context", "200", "--kv-bits", kv, "--json").ok().json();
            let done = run!(
                "complete",
                model,
                "-c",
                "200",
                "--kv-bits",
                kv,
                "--prompt-ids",
                "1,2,3",
                "-n",
                "1",
                "--json"
            );
            // A model whose heads are no whole blocks of the type is refused by both.
            let done = done.ok().json();
            assert_eq!(planned["memory"], done["selected"]["memory"], "{kv}");
            assert_eq!(planned["k_type"], done["selected"]["k_type"]);
            assert_eq!(planned["kv_bytes_per_token"], done["selected"]["kv_bytes_per_token"]);
        }
    }
}

#[test]
fn what_a_flag_means_to_a_run_it_means_to_the_plan() {
    let cases: [&[&str]; 3] = [&["--paged-kv"], &["--weights", "copy"], &["--paged-kv", "--kv-bits", "8"]];
    for flags in cases {
        let plan = |flags: &[&str]| {
            let fixed = ["--max-context", "130", "-t", "1", "--json"];
            let said = basert().arg("plan").arg(hybrid()).args(fixed).args(flags).output().unwrap();
            Said::from(said).ok().json()["memory"].take()
        };
        let fixed = ["-c", "130", "-t", "1", "--prompt-ids", "1,2,3", "-n", "1", "--json"];
        let run = basert().arg("complete").arg(hybrid()).args(fixed).args(flags).output().unwrap();
        let planned = plan(flags);
        assert_eq!(planned, Said::from(run).ok().json()["selected"]["memory"], "{flags:?}");
        assert_ne!(planned, plan(&[]), "{flags:?} changes nothing");
    }
    let mut command = basert();
    command.arg("plan").arg(hybrid()).arg("--json").env("BASERT_CONTEXT", "130");
    assert_eq!(Said::from(command.output().unwrap()).ok().json()["context"], 130);
}

/// Loading refuses them, so a plan of them would promise what never runs.
#[test]
fn a_width_that_holds_no_heads_of_this_size_has_no_plan() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    let text = std::fs::read(fixture("llama-tiny").join("config.json")).unwrap();
    let mut value: Value = serde_json::from_slice(&text).unwrap();
    value["head_dim"] = 48.into();
    std::fs::write(&config, value.to_string()).unwrap();
    run!("plan", &config, "--json").ok();
    for bits in ["8", "4", "84"] {
        for question in [&[][..], &["--record"], &["--fit", "1GiB"]] {
            let said = basert().arg("plan").arg(&config).args(["--kv-bits", bits]).args(question).output();
            Said::from(said.unwrap()).fails_with(&["multiple of 32", "this model's have 48"]);
        }
    }
}

#[test]
fn weights_of_a_checkpoint_are_those_of_its_conversion() {
    for target in ["base-q4", "base-q8", "bf16"] {
        let (_folder, file) = converted("qwen3-dense-tiny", target);
        let of = |said: crate::common::Said| number(&said.ok().json()["memory"]["weights_mapped"]);
        let expected = of(run!("plan", &file, "--json"));
        let folder = fixture("qwen3-dense-tiny");
        assert_eq!(of(run!("plan", &folder, "--target", target, "--json")), expected, "{target}");
        let config = folder.join("config.json");
        assert_eq!(of(run!("plan", &config, "--target", target, "--json")), expected, "{target}");
    }
}

#[test]
fn hybrids_estimated_as_full_attention() {
    let plan = |kv: &str| {
        run!("plan", "qwen3.5-35b-a3b", "--max-context", "262144", "--kv-bits", kv, "--json").ok().json()
    };
    let f16 = plan("16");
    assert_eq!(number(&f16["kv_bytes_per_token"]), 20_480);
    assert_eq!(number(&f16["full_stack_bytes_per_token"]), 81_920);
    assert_eq!(f16["reduction"], 4.0);
    assert_eq!(number(&f16["memory"]["kv"]), 5 << 30);
    assert_eq!(number(&f16["memory"]["state"]), 65_863_680);
    let narrow = plan("84");
    assert_eq!(number(&narrow["memory"]["kv"]), 2_181_038_080);
    assert_eq!(number(&narrow["memory"]["kv_keys"]), 5440 * 262_144);
    let text = run!("plan", "qwen3.5-35b-a3b", "--max-context", "262144", "--kv-bits", "84").ok().out;
    for words in [
        "K q8, V q4",
        "KV per token       8320 bytes",
        "10 layers x 2 KV heads",
        "4.00 times as many",
        "state                62.8 MiB",
        "estimated for base-q4",
    ] {
        assert!(text.contains(words), "no '{words}' in {text}");
    }
}

#[test]
fn the_largest_context_is_the_last_that_fits() {
    let fit = |size: &str| run!("plan", "qwen3.5-4b", "--fit", size, "--kv-bits", "16", "--json");
    let found = fit("6GiB").ok().json();
    let context = number(&found["context"]);
    assert!(context > 1000 && context < 262_144, "{found}");
    assert_eq!((&found["found"], &found["fits"]), (&"the largest context that fits".into(), &true.into()));
    let at = |context: u64| {
        let plan = run!("plan", "qwen3.5-4b", "--max-context", context.to_string(), "--json").ok().json();
        number(&plan["memory"]["total"])
    };
    assert_eq!(at(context), number(&found["memory"]["total"]));
    assert!(at(context) <= 6 << 30 && at(context + 1) > 6 << 30);
    // Keys and values that are left open give way before the context does.
    let narrow = run!("plan", "qwen3.5-4b", "--fit", "6GiB", "--json").ok().json();
    assert!(narrow["k_type"] != "f16" && number(&narrow["context"]) > context, "{narrow}");
    assert!(narrow["notes"].to_string().contains("instead of f16, with which"), "{narrow}");
    fit("100MiB").fails_with(&["not even a context of one token fits", "of them for weights", "hint: "]);
}

#[test]
fn the_widest_cache_is_found_for_a_context() {
    let fit = |size: &str| {
        run!("plan", "qwen3.5-35b-a3b", "--fit", size, "--max-context", "131072", "--json").ok().json()
    };
    let weights = number(&fit("100GiB")["memory"]["weights_mapped"]);
    let types = [
        ("3072MiB", "f16", "f16"),
        ("2048MiB", "q8", "q8"),
        ("1300MiB", "q8", "q4"),
        ("1000MiB", "q4", "q4"),
    ];
    for (beside, k, v) in types {
        let beside: u64 = beside.trim_end_matches("MiB").parse().unwrap();
        let found = fit(&(weights + (beside << 20)).to_string());
        assert_eq!((found["k_type"].as_str(), found["v_type"].as_str()), (Some(k), Some(v)), "{beside} MiB");
        assert_eq!(found["fits"], true);
    }
    // A type that was named stays, and the context gives way.
    let args = ["--fit", "16GiB", "--max-context", "131072", "--kv-bits", "16", "--json"];
    let said = run!("plan", "qwen3.5-35b-a3b", args[0], args[1], args[2], args[3], args[4], args[5], args[6]);
    let weights_alone = said.fails_with(&["not even a context of one token fits", "16384 MiB are allowed"]);
    assert!(weights_alone.err.contains("hint: give --fit more"), "{weights_alone:?}");
    let args = ["--fit", &(weights + (2048 << 20)).to_string(), "--max-context", "131072", "--kv-bits", "16"];
    let said =
        run!("plan", "qwen3.5-35b-a3b", args[0], args[1], args[2], args[3], args[4], args[5], "--json");
    let found = said.ok().json();
    assert_eq!((&found["k_type"], &found["found"]), (&"f16".into(), &"the largest context that fits".into()));
    assert!(number(&found["context"]) < 131_072 && found["fits"] == true, "{found}");
}

#[test]
fn room_for_prefixes_is_part_of_the_plan() {
    let plan = |size: &str| run!("plan", "qwen3.5-2b", "--prefix-cache", size, "--parallel", "4", "--json");
    let memory = plan("1GiB").ok().json()["memory"].clone();
    let (pages, states) = (number(&memory["prefix_kv"]), number(&memory["snapshots"]));
    assert!(pages + states <= 1 << 30 && pages + states > 1020 << 20, "{memory}");
    assert_eq!(states, 512 / 20 * 20_201_472 + 20_201_472);
    assert_eq!(number(&memory["state"]), 4 * 20_201_472);
    plan("1MiB").fails_with(&["prefix cache: 1048576 bytes are too few", "at least 40402944 are needed"]);
}

#[test]
fn records_carry_derivation_and_sources() {
    let args = ["--max-context", "131072", "--record"];
    let record = run!("plan", "qwen3.5-35b-a3b", args[0], args[1], args[2]).ok().json();
    assert_eq!(record["id"], "kv-efficiency/qwen3-5-35b-a3b-hybrid-kv-128k");
    assert_eq!((&record["kv_gib"], &record["full_stack_gib"]), (&2.5.into(), &10.0.into()));
    assert_eq!(record["reduction_vs_full_attention"], 4.0);
    assert!(record["measured_memory_gb"].is_null());
    assert!(record["geometry_verification"].as_str().unwrap().starts_with("A: config.json copy"));
    assert!(!record["geometry_source"].as_array().unwrap().is_empty());
    let own = run!("plan", hybrid(), "--record", "--kv-bits", "8").ok().json();
    assert_eq!(own["k_format"]["block_bytes"], 34);
    let mixed = run!("plan", "deepseek-v3", "--record", "--kv-bits", "84");
    mixed.fails_with(&["one latent row", "hint: give one type"]);
}

#[test]
fn a_record_is_measured_where_it_was_asked_for_and_null_elsewhere() {
    let record =
        run!("plan", hybrid(), "--record", "--measure", "--max-context", "40960", "--kv-bits", "84").ok();
    let record = record.json();
    assert_eq!(record["requested_vs_actual"]["allocated"], serde_json::json!(["q8", "q4"]));
    assert_eq!(record["requested_vs_actual"]["equal"], true);
    assert!(record["measured_decode_tok_s"].as_f64().unwrap() > 0.0, "{record}");
    assert!(record["methodology"].as_str().unwrap().contains("were measured"));
    // What was filled is what was computed, but for the last tokens, and what else the process did meanwhile.
    if let Some(found) = record["measured_memory_gb"].as_f64() {
        let computed = number(&record["kv_bytes_per_token"]) as f64 * 40_960.0 / 1e9;
        assert!((found - computed).abs() < 0.1 * computed + 0.002, "{found} GB instead of {computed}");
    }
    let plain = run!("plan", hybrid(), "--record").ok().json();
    for key in ["measured_memory_gb", "measured_decode_tok_s", "measured_on", "requested_vs_actual"] {
        assert!(plain[key].is_null(), "{key}");
    }
    let text = plain["methodology"].as_str().unwrap();
    assert!(text.contains("nothing timed"));
    run!("plan", "qwen3.5-2b", "--record", "--measure")
        .fails_with(&["--measure needs the weights", "hint: basert convert"]);
}

#[test]
fn the_catalog_lists_filters_and_sorts_every_geometry() {
    let all = run!("plan", "--catalog").ok().out;
    assert_eq!(all.lines().take_while(|line| !line.is_empty()).count(), 90, "{all}");
    let line = |id: &str| all.lines().find(|line| line.starts_with(&format!("{id} "))).unwrap().to_owned();
    let cells = |id: &str| line(id).split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert!(
        cells("qwen3.5-35b-a3b").ends_with("yes A 20480 4.00 62.8 MiB 2.50 GiB"),
        "{}",
        cells("qwen3.5-35b-a3b")
    );
    assert!(cells("gemma-3-27b").ends_with("A 81920 6.20 - 10.4 GiB"), "{}", cells("gemma-3-27b"));
    assert!(cells("granite-4.0-h-1b").contains("not verified"));
    let json = run!("plan", "--catalog", "--filter", "hybrid", "--sort", "reduction", "--json").ok().json();
    let models = json["models"].as_array().unwrap();
    assert_eq!(models.len(), 29);
    assert!(models.is_sorted_by(|a, b| a["reduction"].as_f64() >= b["reduction"].as_f64()));
    let narrow = run!("plan", "--catalog", "--filter", "grade:a", "--filter", "mla", "--kv-bits", "84");
    narrow.fails_with(&["no geometry has all of these texts", "left out"]);
    run!("plan", "--catalog", "--filter", "no such model").fails_with(&["no geometry has all", "hint: "]);
}

#[test]
fn models_that_cannot_be_run_have_a_cache_and_no_weights() {
    let plan = run!("plan", "gemma-3-27b", "--max-context", "32768", "--json").ok().json();
    assert_eq!(plan["runnable"], false);
    assert_eq!(number(&plan["memory"]["kv"]), 81_920 * 32_768 + 52 * 16 * 256 * 2 * 1024);
    assert!(plan["weights"].is_null());
    run!("plan", "gemma-3-27b", "--fit", "8GiB")
        .fails_with(&["need a model that can be run here", "gemma3_text"]);
    run!("plan", "gemma-3-27b", "--target", "base-q4").fails_with(&["weights cannot be planned"]);
}

#[test]
fn what_cannot_be_planned_is_refused_in_words() {
    run!("plan", "no-such-model").fails_with(&["is no file, no folder", "hint: basert plan --catalog"]);
    run!("plan", llama(), "--sort", "id").fails_with(&["belong to --catalog", "hint: "]);
    run!("plan", llama(), "--target", "base-q4").fails_with(&["has its weights already", "hint: "]);
    let empty = tempfile::tempdir().unwrap();
    run!("plan", empty.path()).fails_with(&["cannot read", "config.json", "hint: "]);
    std::fs::write(empty.path().join("config.json"), "{}").unwrap();
    run!("plan", empty.path()).fails_with(&["config.json: "]);
    for wrong in [["--fit", "nothing"], ["--sort", "size"], ["--max-context", "0"]] {
        let said = run!("plan", "qwen3.5-2b", wrong[0], wrong[1]);
        assert_eq!(said.code, Some(2), "{said:?}");
    }
}
