//! What happens where memory is short: narrower caches, shorter contexts, or a refusal, and never silently.

use std::path::Path;

use serde_json::Value;

use crate::allocated::served;
use crate::chat::{chat, toy};
use crate::common::{Said, basert, hybrid};
use crate::serve::{get, signal, start};

const CONTEXT: &str = "65536";

fn complete(model: &Path, args: &[&str]) -> Said {
    let fixed = ["--prompt-ids", "1,2,3", "-n", "4", "--json"];
    Said::from(basert().arg("complete").arg(model).args(fixed).args(args).output().unwrap())
}

/// Bytes of everything at [`CONTEXT`].
fn total(bits: &str) -> u64 {
    let plan = run!("plan", hybrid(), "--max-context", CONTEXT, "--kv-bits", bits, "--json").ok().json();
    plan["memory"]["total"].as_u64().unwrap()
}

fn types(report: &Value) -> (&str, &str) {
    (report["selected"]["k_type"].as_str().unwrap(), report["selected"]["v_type"].as_str().unwrap())
}

fn context(report: &Value) -> u64 {
    report["selected"]["context"].as_u64().unwrap()
}

#[test]
fn with_fit_the_cache_is_as_wide_as_the_memory_lets_it_be_and_says_so() {
    for (bits, k, v) in [("16", "f16", "f16"), ("8", "q8", "q8"), ("84", "q8", "q4"), ("4", "q4", "q4")] {
        let budget = total(bits).to_string();
        let said = complete(hybrid(), &["-c", CONTEXT, "--fit", &budget]).ok();
        let report = said.json();
        assert_eq!((types(&report), context(&report)), ((k, v), 65536));
        assert_eq!(report["selected"]["memory"]["total"], total(bits));
        assert_eq!(said.err.contains("instead of f16"), bits != "16", "{said:?}");
        assert_eq!(report["selected"]["notes"].to_string().contains("instead of f16"), bits != "16");
    }
}

#[test]
fn weights_are_where_they_were_asked_to_be_and_change_no_answer() {
    let answer = |place: &str| {
        let said = complete(hybrid(), &["--temp", "0", "--weights", place]);
        let failed = said.code != Some(0);
        // Not every machine lets a process lock memory.
        if failed && place == "lock" {
            said.fails_with(&["cannot be locked in memory", "hint: raise the limit"]);
            return None;
        }
        let report = said.ok().json();
        let memory = &report["selected"]["memory"];
        Some((
            report["text"].clone(),
            ["weights_mapped", "weights_held"].map(|part| memory[part].as_u64().unwrap()),
        ))
    };
    let (text, [stored, none]) = answer("map").unwrap();
    assert!(stored > 0 && none == 0);
    assert_eq!(answer("prefault"), Some((text.clone(), [stored, 0])));
    assert_eq!(answer("copy"), Some((text.clone(), [0, stored])));
    assert!(answer("lock").is_none_or(|found| found == (text, [0, stored])));
    let said = complete(hybrid(), &["--weights", "disk"]);
    assert!(said.code == Some(2) && said.err.contains("not one of map, prefault, lock, copy"), "{said:?}");
}

#[test]
fn a_context_that_no_cache_fits_is_shortened_to_the_last_token_that_does() {
    let budget = total("4") - (1 << 20);
    let said = complete(hybrid(), &["-c", CONTEXT, "--fit", &budget.to_string()]).ok();
    let report = said.json();
    assert_eq!(types(&report), ("q4", "q4"));
    assert!(context(&report) < 65536 && context(&report) > 1000, "{report}");
    assert!(said.err.contains("tokens instead of 65536, the most that fit"), "{said:?}");
    let total = report["selected"]["memory"]["total"].as_u64().unwrap();
    assert!(total <= budget && total > budget - (1 << 17), "{total} of {budget}");
    // Types that were asked for do not give way.
    let typed = complete(hybrid(), &["-c", CONTEXT, "--kv-bits", "16", "--fit", &budget.to_string()]).ok();
    assert_eq!(types(&typed.json()), ("f16", "f16"));
    assert!(context(&typed.json()) < context(&report));
    complete(hybrid(), &["--fit", "1MiB"]).fails_with(&[
        "not even a context of one token",
        "1 MiB are allowed",
        "hint: give --fit more",
    ]);
}

#[test]
fn without_fit_auto_narrows_a_context_that_was_asked_for_and_a_typed_width_is_refused() {
    let plan = run!("plan", hybrid(), "--max-context", "1000000", "--kv-bits", "16", "--json").ok().json();
    let Some(free) = plan["budget_bytes"].as_u64() else { return };
    let per_token = plan["kv_bytes_per_token"].as_u64().unwrap();
    // Far from the borders, for what is free changes: f16 takes 1.4 times that, q8 three quarters.
    let tokens = (free * 14 / 10 / per_token).to_string();
    let said = complete(hybrid(), &["-c", &tokens]).ok();
    assert_eq!(types(&said.json()), ("q8", "q8"));
    assert!(said.err.contains("the KV cache is q8 instead of f16"), "{said:?}");
    let refused = complete(hybrid(), &["-c", &tokens, "--kv-bits", "16"]);
    refused.fails_with(&["need", "MiB are free", "tokens would fit", "hint: --fit"]);
    // Measurements are of what was asked for.
    let refused = run!("profile", hybrid(), "-c", &tokens, "-p", "32", "-n", "4");
    refused.fails_with(&["K f16 and V f16", "MiB are free"]);
}

#[test]
fn a_default_context_of_the_models_maximum_is_fitted_and_said() {
    let budget = total("4");
    let said = complete(hybrid(), &["--fit", &budget.to_string()]).ok();
    let report = said.json();
    // The model's own is 262144; the last token that fits is that of the plan.
    assert_eq!((types(&report), context(&report)), (("q4", "q4"), 65536));
    for words in ["the KV cache is q4 instead of f16", "the context is 65536 tokens instead of 262144"] {
        assert!(said.err.contains(words), "{said:?}");
    }
}

/// The plan of a command on one thread that has to fit `budget`.
fn fitted(model: &Path, purpose: &str, budget: &str, args: &[&str]) -> Value {
    let fixed = ["--for", purpose, "--fit", budget, "-t", "1", "--json"];
    Said::from(basert().arg("plan").arg(model).args(fixed).args(args).output().unwrap()).ok().json()
}

#[test]
fn a_plan_to_fit_names_what_the_server_then_allocates() {
    let [wide, narrow] = ["16", "4"].map(|bits| {
        let asked = ["--max-context", "16384", "--kv-bits", bits, "--prefix-cache", "1MiB"];
        let fixed = ["--for", "serve", "-t", "1", "--json"];
        let said = basert().arg("plan").arg(hybrid()).args(fixed).args(asked).output().unwrap();
        Said::from(said).ok().json()["memory"]["total"].as_u64().unwrap()
    });
    let mut found = Vec::new();
    for budget in [wide + (8 << 20), (wide + narrow) / 2, narrow - (1 << 20)] {
        let budget = budget.to_string();
        let context = ["--max-context", "16384", "--prefix-cache", "1MiB"];
        for asked in [&[][..], &context, &[&context[..], &["--kv-bits", "16"]].concat()] {
            let plan = fitted(hybrid(), "serve", &budget, asked);
            let selected = served(hybrid(), &[&["--fit", budget.as_str()], asked].concat());
            for key in ["context", "k_type", "v_type", "memory"] {
                assert_eq!(plan[key], selected[key], "{key} with {asked:?} in {budget}");
            }
            for said in plan["notes"].as_array().unwrap() {
                assert!(selected["notes"].as_array().unwrap().contains(said), "{said} in {selected}");
            }
            assert_eq!(plan["fits"], true);
            found.push((plan["context"].as_u64().unwrap(), plan["k_type"].as_str().unwrap().to_owned()));
        }
    }
    // Neither narrows nor shortens; narrows; shortens what is narrow or typed.
    for (case, context, k) in
        [(1, Some(16384), "f16"), (4, Some(16384), "q8"), (7, None, "q4"), (8, None, "f16")]
    {
        assert_eq!(found[case].1, k, "{found:?}");
        assert!(context.map_or(found[case].0 < 16384, |context| found[case].0 == context), "{found:?}");
    }
}

/// Each of several models was once given the whole of it.
#[test]
fn all_models_of_a_server_share_what_fit_allows() {
    let folder = tempfile::tempdir().unwrap();
    let second = folder.path().join("second.base");
    std::fs::copy(hybrid(), &second).unwrap();
    let second = second.to_str().unwrap();
    let context = ["--max-context", "16384", "--prefix-cache", "1MiB", "--kv-bits", "16"];
    let total = |value: &Value| value["total"].as_u64().unwrap();
    let one = total(&fitted(hybrid(), "serve", "1GiB", &context)["memory"]);

    let budget = (one + one / 2).to_string();
    let args = [&["--model", second, "--fit", budget.as_str()], &context[..]].concat();
    let (mut child, _said, address) = start(hybrid(), &args);
    let engines: Value = serde_json::from_str(&get(&address, "/v1/engine")).unwrap();
    let models = engines["models"].as_array().unwrap();
    let taken: u64 = models.iter().map(|model| total(&model["engine"]["memory"])).sum();
    assert_eq!(models.len(), 2);
    signal(&child, "-TERM");
    assert!(child.wait().unwrap().success());
    assert!(one < taken && taken <= one + one / 2, "{taken} of {budget}, one takes {one}");

    let budget = (one + (64 << 10)).to_string();
    let args = [&["--model", second, "--fit", budget.as_str(), "--port", "0"], &context[..]].concat();
    let refused = basert().arg("serve").arg(hybrid()).args(args).args(["-t", "1"]).output().unwrap();
    Said::from(refused).fails_with(&["not even a context of one token fits", "other models have taken"]);
}

/// Memory that is reserved and not yet used is free to the system, so each model was once weighed as if it were alone.
#[test]
fn models_of_a_server_that_do_not_fit_together_are_refused_without_fit_too() {
    let plan = run!("plan", hybrid(), "--max-context", "1000000", "--kv-bits", "16", "--json").ok().json();
    let Some(free) = plan["budget_bytes"].as_u64() else { return };
    let folder = tempfile::tempdir().unwrap();
    let second = folder.path().join("second.base");
    std::fs::copy(hybrid(), &second).unwrap();
    // Far from the borders, for what is free changes: one takes three quarters.
    let tokens = free / 4 * 3 / plan["kv_bytes_per_token"].as_u64().unwrap();
    let tokens = tokens.to_string();
    let args = [
        "--max-context",
        tokens.as_str(),
        "--max-batch-size",
        "1",
        "--prefix-cache",
        "0",
        "-t",
        "1",
        "--port",
        "0",
    ];
    let serve = |kv: &[&str]| {
        let mut command = basert();
        Said::from(command.arg("serve").arg(hybrid()).arg(&second).args(args).args(kv).output().unwrap())
    };
    serve(&["--kv-bits", "16"]).fails_with(&[
        "tokens would fit",
        "other models have taken",
        "that were free",
    ]);

    let args = [&["--model", second.to_str().unwrap()], &args[..6]].concat();
    let (mut child, _said, address) = start(hybrid(), &args);
    let engines: Value = serde_json::from_str(&get(&address, "/v1/engine")).unwrap();
    signal(&child, "-TERM");
    assert!(child.wait().unwrap().success());
    // K and V that were left open become narrower, as for one model that is alone.
    let k = |index: usize| engines["models"][index]["engine"]["k_type"].clone();
    assert_eq!((k(0), k(1)), ("f16".into(), "q4".into()), "{engines}");
}

#[test]
fn a_plan_to_fit_names_what_a_conversation_then_allocates() {
    for (budget, asked) in [("6MiB", &[][..]), ("6MiB", &["-c", "8192"]), ("6MiB", &["--kv-bits", "16"])] {
        let planned: Vec<&str> =
            asked.iter().map(|arg| if *arg == "-c" { "--max-context" } else { arg }).collect();
        let plan = fitted(toy(), "chat", budget, &planned);
        let args = [&["--fit", budget, "-t", "1", "-v", "-n", "1"], asked].concat();
        let said = chat(toy(), &args, "Hi\n").ok();
        let kv = format!("K {}, V {}", plan["k_type"].as_str().unwrap(), plan["v_type"].as_str().unwrap());
        let context = format!("{} tokens", plan["context"]);
        for words in [kv, context] {
            assert!(said.err.contains(&words), "no '{words}' in {said:?}");
        }
    }
}

#[test]
fn what_is_needed_is_never_said_to_be_less_than_what_is_there() {
    let said = complete(hybrid(), &["-c", CONTEXT, "--fit", &(total("16") - 1).to_string()]).ok();
    let note = said.err.lines().find(|line| line.contains("instead of f16")).unwrap();
    let numbers: Vec<u64> = note.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [needed, allowed] = numbers[..] else { panic!("{note}") };
    assert!(needed > allowed && note.contains("MiB are needed"), "{note}");
}
