//! `eval` beyond perplexity: several models, strides, questions, pictures.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::common::{converted, fixture, golden, hybrid, llama, names, prompt, run_in};
use crate::verify::recorded;

/// A small hybrid with a chat template that knows no tools, made once per test program.
fn talker() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("talker.base");
        run!("convert", "--no-check", fixture("toy-hybrid"), "-o", &out, "--target", "q8", "--force").ok();
        out
    })
}

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    path
}

fn ids_file(dir: &Path) -> PathBuf {
    let ids = prompt(&golden("llama-tiny"), "p130");
    write(dir, "ids.json", &serde_json::to_string(&ids).unwrap())
}

#[test]
fn several_models_and_kv_types_are_one_table() {
    let dir = tempfile::tempdir().unwrap();
    let ids = ids_file(dir.path());
    let (_q4_dir, q4) = converted("llama-tiny", "q4");
    let said =
        run!("eval", llama(), &q4, "--ids-file", &ids, "--with-kv", "84", "--with-kv", "k=f32,v=f16").ok();
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines.len(), 5, "{said:?}");
    for heading in ["model", "KV", "bits/weight", "KV bytes/token", "perplexity"] {
        assert!(lines[0].contains(heading), "{said:?}");
    }
    assert!(
        !lines[0].contains("recall") && !lines[0].contains("KL"),
        "what was not measured has no column: {said:?}"
    );
    for (line, (model, kv)) in lines[1..].iter().zip([
        (llama(), "k=q8,v=q4"),
        (llama(), "k=f32,v=f16"),
        (&q4, "k=q8,v=q4"),
        (&q4, "k=f32,v=f16"),
    ]) {
        let mut words = line.split_whitespace();
        assert_eq!((words.next(), words.next()), (model.to_str(), Some(kv)), "{said:?}");
    }
}

#[test]
fn a_script_gets_one_object_a_line_for_one_model_and_for_many() {
    let dir = tempfile::tempdir().unwrap();
    let ids = ids_file(dir.path());
    let said =
        run!("eval", llama(), "--ids-file", &ids, "--json", "--with-kv", "f16", "--with-kv", "f32").ok();
    let rows: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let alone = run!("eval", llama(), "--ids-file", &ids, "--json").ok().json();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["perplexity"], alone["perplexity"]);
    assert_eq!(rows[0]["footprint"], alone["footprint"]);
    assert_eq!(rows[0]["selected"]["k_type"], "f16");
    assert_eq!(rows[1]["selected"]["k_type"], "f32");
    let bytes = |row: &Value| row["footprint"]["kv_bytes_per_token"].as_u64().unwrap();
    assert_eq!(2 * bytes(&rows[0]), bytes(&rows[1]));
    let facts = run!("inspect", llama(), "--json").ok().json();
    assert_eq!(rows[0]["footprint"]["kv_bytes_per_token"], facts["model"]["kv_cache"]["bytes_per_token_f16"]);
    assert_eq!(rows[0]["footprint"]["weight_bytes"], facts["tensors"]["bytes"]);
    assert_eq!(rows[0]["footprint"]["bits_per_weight"], 32.0);
}

#[test]
fn a_stride_scores_every_token_but_the_first_and_sees_more() {
    let dir = tempfile::tempdir().unwrap();
    let ids = ids_file(dir.path());
    let read = |more: &[&str]| {
        let mut command = crate::common::basert();
        command.arg("eval").arg(llama()).arg("--ids-file").arg(&ids).arg("--json").args(more);
        crate::common::Said::from(command.output().unwrap()).ok().json()
    };
    let scored = |found: &Value| found["scored"].as_u64().unwrap();
    assert_eq!(scored(&read(&["--window", "32"])), 125);
    for stride in ["1", "8", "31"] {
        assert_eq!(scored(&read(&["--window", "32", "--stride", stride])), 129, "stride {stride}");
    }
    let whole = read(&[]);
    assert_eq!(read(&["--window", "130", "--stride", "7"])["perplexity"], whole["perplexity"]);
    assert_eq!(
        read(&["--window", "9999"])["perplexity"],
        whole["perplexity"],
        "a window may be longer than the text"
    );
    let (_dir, reference) = converted("llama-tiny", "q8");
    let against = ["--against", reference.to_str().unwrap()];
    let compared = read(&[&["--window", "32", "--stride", "8"], &against[..]].concat());
    assert_eq!(compared["against"]["positions"], 130);
    assert_eq!(compared["perplexity"], read(&["--window", "32", "--stride", "8"])["perplexity"]);
}

#[test]
fn options_that_would_have_no_effect_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ids = ids_file(dir.path());
    let (model, ids) = (llama().to_str().unwrap(), ids.to_str().unwrap());
    let out = dir.path().join("l.safetensors");
    let out = out.to_str().unwrap();
    let cases: [(&[&str], &[&str]); 6] = [
        (&["--own-reference", "--stride", "8"], &["--stride needs a text", "--text-file"]),
        (&["--own-reference", "--against", model], &["--against needs a text"]),
        (&["--ids-file", ids, "--with-kv", "f16", "--kv-type", "f32"], &["--with-kv", "--kv-type"]),
        (&[model, "--ids-file", ids, "--dump-logits", out], &["one model"]),
        (&["--ids-file", ids, "--window", "99", "-c", "64"], &["99", "64", "--window 64"]),
        (&["--ids-file", ids, "--window", "8", "--stride", "9"], &["stride of 9"]),
    ];
    for (words, expected) in cases {
        let mut command = crate::common::basert();
        command.arg("eval").arg(model).args(words);
        crate::common::Said::from(command.output().unwrap()).fails_with(expected);
    }
    assert_eq!(names(dir.path()), ["ids.json"]);
    for words in [&["--lengths", "64"][..], &["--trials", "3"], &[]] {
        let mut command = crate::common::basert();
        command.arg("eval").arg(model).args(words);
        assert_eq!(command.output().unwrap().status.code(), Some(2), "{words:?}");
    }
}

/// The log-likelihood of the ids after the first `known`, from the logits that a dump has.
fn log_likelihood(ids: &[u32], known: usize, dump: &Path) -> f64 {
    let bytes = fs::read(dump).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let logits: Vec<f64> = bytes[8 + header..]
        .chunks_exact(4)
        .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
        .collect();
    let vocab = logits.len() / ids.len();
    let score = |position: usize| {
        let row = &logits[(position - 1) * vocab..position * vocab];
        row[ids[position] as usize] - row.iter().map(|l| l.exp()).sum::<f64>().ln()
    };
    (known..ids.len()).map(score).sum()
}

#[test]
fn the_likeliest_choice_is_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let encode = |text: &str| {
        crate::common::ids(
            &run!("complete", hybrid(), "-p", text, "-n", "1", "--json").ok().json()["prompt_ids"],
        )
    };
    let (start, choices) =
        ("The quick brown fox", [" jumps over the lazy dog.", " sleeps.", " is blue and green"]);
    let known = encode(start).len();
    let likelihoods: Vec<f64> = choices
        .iter()
        .map(|choice| {
            let ids = encode(&format!("{start}{choice}"));
            let dump = dir.path().join("logits");
            let file = write(dir.path(), "ids.json", &serde_json::to_string(&ids).unwrap());
            run!("eval", hybrid(), "--ids-file", &file, "--dump-logits", &dump, "--force").ok();
            log_likelihood(&ids, known, &dump)
        })
        .collect();
    let best = |values: &[f64]| (0..3).max_by(|&a, &b| values[a].total_cmp(&values[b])).unwrap();
    let per_byte: Vec<f64> = likelihoods.iter().zip(choices).map(|(l, c)| l / c.len() as f64).collect();
    for answer in 0..3 {
        let line = json!({"prompt": start, "choices": choices, "answer": answer}).to_string();
        let file = write(dir.path(), "choices.jsonl", &line);
        let found = run!("eval", hybrid(), "--choices", &file, "--json").ok().json();
        let right = |is_right: bool| json!(if is_right { 1.0 } else { 0.0 });
        assert_eq!(
            found["choices"]["accuracy"]["mean"],
            right(answer == best(&likelihoods)),
            "{likelihoods:?}"
        );
        assert_eq!(
            found["choices"]["accuracy_per_byte"]["mean"],
            right(answer == best(&per_byte)),
            "{per_byte:?}"
        );
    }
}

#[test]
fn recall_is_asked_at_every_length_and_depth() {
    let said = run!(
        "eval",
        talker(),
        "--recall",
        "--lengths",
        "160,200",
        "--depths",
        "0,100",
        "--trials",
        "2",
        "--json"
    );
    let found = said.ok().json();
    let cells = found["recall"]["cells"].as_array().unwrap();
    let places: Vec<(u64, f64)> =
        cells.iter().map(|c| (c["length"].as_u64().unwrap(), c["depth"].as_f64().unwrap())).collect();
    assert_eq!(places, [(160, 0.0), (160, 1.0), (200, 0.0), (200, 1.0)]);
    assert_eq!(found["recall"]["asked"], 8);
    assert!(cells.iter().all(|c| c["asked"] == 2 && c["found"].as_u64().unwrap() <= 2), "{found}");
    let said = run!("eval", talker(), "--recall", "--lengths", "160", "--depths", "0,100").ok();
    assert!(said.out.contains("recall ") && said.out.contains("0 %   100 %"), "{said:?}");
}

#[test]
fn prompts_that_hold_nothing_or_do_not_fit_are_refused() {
    run!("eval", talker(), "--recall", "--lengths", "5").fails_with(&["5 tokens", "no room"]);
    run!("eval", talker(), "--recall", "--lengths", "400", "-c", "256").fails_with(&[
        "432",
        "256",
        "--lengths",
    ]);
    run!("eval", talker(), "--recall", "-c", "256").fails_with(&["512", "256", "--lengths"]);
}

#[test]
fn a_template_without_tools_is_not_asked_for_calls() {
    let dir = tempfile::tempdir().unwrap();
    let task = json!({
        "messages": [{"role": "user", "content": "Turn on the light."}],
        "tools": [{"type": "function", "function": {"name": "light", "parameters": {"type": "object", "properties": {}}}}],
    });
    let file = write(dir.path(), "calls.jsonl", &task.to_string());
    run!("eval", talker(), "--tool-calls", &file).fails_with(&["no chat template with a place for tools"]);
}

#[test]
fn a_file_of_questions_that_cannot_be_read_is_named_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let good = r#"{"prompt": "The sky is", "choices": [" blue", " red"], "answer": 0}"#;
    let file = write(dir.path(), "q.jsonl", &format!("{good}\n{{\"prompt\": 1}}\n"));
    run!("eval", talker(), "--choices", &file).fails_with(&["q.jsonl: line 2: ", "basert help eval"]);
    run!("eval", talker(), "--tool-calls", &file).fails_with(&["q.jsonl: line 1: "]);
    let empty = write(dir.path(), "empty.jsonl", "\n");
    run!("eval", talker(), "--choices", &empty).fails_with(&["no questions"]);
}

#[test]
fn a_model_is_compared_with_the_reference_in_its_own_file() {
    let dir = tempfile::tempdir().unwrap();
    let model = recorded(dir.path());
    let record = run!("inspect", &model, "--json").ok().json()["quality"]["reference_kl"].as_f64().unwrap();
    let kl = |more: &[&str]| {
        let mut command = crate::common::basert();
        command.arg("eval").arg(&model).args(["--own-reference", "--json"]).args(more);
        let found = crate::common::Said::from(command.output().unwrap()).ok().json();
        assert_eq!(found["own_reference"]["positions"], 8);
        found["own_reference"]["kl"]["mean"].as_f64().unwrap()
    };
    let with_f32 = kl(&["--with-kv", "f32"]);
    assert!((with_f32 - record).abs() <= 1e-5 * record, "{with_f32} and the record's {record}");
    assert_eq!(with_f32.to_bits(), kl(&["--kv-type", "f32", "--chunk", "7"]).to_bits());
    assert_ne!(with_f32.to_bits(), kl(&["--kv-type", "f16"]).to_bits(), "the KV type counts");
    run!("eval", llama(), "--own-reference").fails_with(&["no reference logits", "--against"]);
}

#[test]
fn a_picture_has_a_point_for_every_row() {
    let dir = tempfile::tempdir().unwrap();
    let ids = ids_file(dir.path());
    let picture = dir.path().join("quality.svg");
    let (_q4_dir, q4) = converted("llama-tiny", "q4");
    let command =
        || run!("eval", &q4, llama(), "--ids-file", &ids, "--against", llama(), "--picture", &picture);
    command().ok();
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<circle ").count(), 4, "two panels with two models");
    assert!(svg.contains("KL divergence, nats per token") && svg.contains("llama-tiny f16"), "{svg}");
    assert_eq!(svg.matches("NaN").count() + svg.matches("inf\"").count(), 0);
    command().fails_with(&["quality.svg exists already", "--force"]);
    run!("eval", llama(), "--ids-file", &ids, "--picture", &ids).fails_with(&["would replace"]);
    // By whatever name the model goes.
    fs::copy(&q4, dir.path().join("small.base")).unwrap();
    let words = ["eval", "small", "--ids-file", "ids.json", "--force", "--picture", "small.base"];
    run_in(dir.path(), &words, &[]).fails_with(&["would replace", "small.base"]);
}

#[test]
fn no_words_are_needed_where_only_ids_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let model = recorded(dir.path());
    let ids = prompt(&golden("llama-tiny"), "p5");
    let file = write(dir.path(), "ids.json", &serde_json::to_string(&ids).unwrap());
    run!("eval", &model, "--ids-file", &file).ok();
    run!("eval", &model, "--recall").fails_with(&["no tokenizer"]);
}
