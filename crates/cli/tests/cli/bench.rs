//! `bench`: what is measured and said, never how fast it is.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Said, basert, converted, hybrid, interrupt, llama, run_in};

/// The smallest measurement that has everything.
const SMALL: [&str; 10] = ["-p", "4", "-n", "2", "-r", "3", "-w", "0", "-t", "1"];

fn bench(model: &Path, more: &[&str]) -> Said {
    Said::from(basert().arg("bench").arg(model).args(SMALL).args(more).output().unwrap())
}

fn rows(report: &Value) -> Vec<(String, u64, u64, u64)> {
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let row = |row: &Value| {
        let test = row["test"].as_str().unwrap().to_owned();
        (test, number(row, "tokens"), number(row, "depth"), number(row, "sequences"))
    };
    report["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn every_case_is_measured_with_every_setting_side_by_side() {
    let args = [
        "bench",
        "-p",
        "4,40",
        "-n",
        "2-3",
        "-d",
        "0,20",
        "-b",
        "1-2",
        "-r",
        "2",
        "-w",
        "1",
        "-t",
        "1-2",
        "--with-kv",
        "f16",
        "--with-kv",
        "k=f32,v=f16",
        "--json",
    ];
    let report = Said::from(basert().args(args).arg(llama()).output().unwrap()).ok().json();
    let settings = report["settings"].as_array().unwrap();
    let found: Vec<_> = settings.iter().map(|s| (s["threads"].as_u64(), s["k_type"].as_str())).collect();
    assert_eq!(
        found,
        [(Some(1), Some("f16")), (Some(2), Some("f16")), (Some(1), Some("f32")), (Some(2), Some("f32"))]
    );
    for setting in settings {
        assert_eq!(setting["selected"]["k_type"], setting["k_type"], "as loaded, not as asked");
        assert_eq!(setting["selected"]["context"], 60);
        assert_eq!(setting["load_s"]["samples"].as_array().unwrap().len(), 2);
    }
    let mut expected = Vec::new();
    for depth in [0, 20] {
        let prefill = [4, 40].map(|tokens| ("prefill".to_owned(), tokens, depth, 1));
        let decode = [2, 3].into_iter().flat_map(|n| [1, 2].map(|b| ("decode".to_owned(), n, depth, b)));
        expected.extend(prefill.into_iter().chain(decode).flat_map(|case| vec![case; 4]));
    }
    assert_eq!(rows(&report), expected);
    for (index, row) in report["rows"].as_array().unwrap().iter().enumerate() {
        assert_eq!(row["setting"], index % 4);
        assert_eq!(row["tokens_per_s"]["samples"].as_array().unwrap().len(), 2, "warm-ups do not count");
        assert_eq!(row["first_token_s"].is_object(), row["test"] == "prefill");
        assert_eq!(row["share_of_limit"], Value::Null);
    }
}

#[test]
fn the_header_states_what_ran() {
    let report = bench(llama(), &["--json"]).ok().json();
    let facts = run!("inspect", llama(), "--json").ok().json();
    let model = &report["models"][0];
    assert_eq!(model["weight_bytes"], facts["tensors"]["bytes"]);
    assert_eq!(model["bits_per_weight"], 32.0);
    assert_eq!(model["file_bytes"], llama().metadata().unwrap().len());
    assert_eq!(report["complete"], true);
    assert!(report["peak_memory_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(report["peak_memory_is_of_one_setting"], true);
    assert_eq!(report["settings"][0]["selected"]["weights"][0]["dtype"], "f32");
    let text = bench(llama(), &[]).ok().out;
    for words in
        ["instruction set ", "kernels ", "bits per weight (f32 ", "K f16, V f16", "context 4", "identity "]
    {
        assert!(text.contains(words), "no '{words}' in {text}");
    }
}

#[test]
fn the_identity_follows_the_weights_and_not_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy.base");
    std::fs::copy(llama(), &copy).unwrap();
    let (_q4_dir, q4) = converted("llama-tiny", "q4");
    let args = ["bench", "-p", "1", "-n", "0", "-r", "1", "-w", "0", "--json"];
    let said = Said::from(basert().args(args).args([llama(), &copy, &q4]).output().unwrap()).ok();
    let report = said.json();
    let identity = |index: usize| report["models"][index]["identity"].as_str().unwrap();
    assert_eq!(identity(0), identity(1));
    assert_ne!(identity(0), identity(2));
    assert_eq!(report["peak_memory_is_of_one_setting"], false);
    assert_eq!(report["rows"].as_array().unwrap().len(), 3);
}

#[test]
fn page_sizes_are_the_engines_or_refused() {
    let report = bench(hybrid(), &["--paged-kv", "0,32", "--json"]).ok().json();
    let pages: Vec<_> =
        report["settings"].as_array().unwrap().iter().map(|s| s["page_tokens"].as_u64()).collect();
    assert_eq!(pages, [Some(0), Some(32)]);
    assert_eq!(report["settings"][1]["selected"]["page_tokens"], 32);
    bench(hybrid(), &["--paged-kv", "33"])
        .fails_with(&["page size", "hint: give --paged-kv multiples of 32"]);
}

#[test]
fn with_a_roofline_every_row_is_a_share_of_its_limit() {
    for (name, target) in [("qwen3-moe-tiny", "q8"), ("qwen35-dense-tiny", "f32")] {
        let (_dir, model) = converted(name, target);
        let report = bench(&model, &["--roofline", "-b", "1,4", "--json"]).ok().json();
        let limits = &report["settings"][0]["limits"];
        for limit in ["read_bytes_per_s", "byte_multiply_adds_per_s", "float_multiply_adds_per_s"] {
            assert_eq!(
                limits[limit]["samples"].as_array().unwrap().len(),
                9,
                "three passes in each repetition"
            );
        }
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row["share_of_limit"].as_f64().unwrap() > 0.0), "{report}");
        let bytes = |row: usize| rows[row]["bytes_per_token"].as_f64().unwrap();
        assert!(bytes(2) < bytes(1), "a batch shares the weights: {report}");
        assert!(bytes(1) <= report["models"][0]["weight_bytes"].as_f64().unwrap() * 2.0);
        let products = rows[0]["byte_multiply_adds"].as_f64().unwrap();
        assert_eq!(products > 0.0, target == "q8", "{report}");
        let text = bench(&model, &["--roofline"]).ok().out;
        assert!(text.contains("% multiply") && text.contains("% read") && text.contains("limits "), "{text}");
    }
}

/// `test`, rows of a step, tokens, and whether the time of a step and its cost are known.
fn steps(report: &Value) -> Vec<(&str, Option<u64>, u64, bool)> {
    let known = |row: &Value| row["step_s"].is_object() && row["step_cost"].as_f64().is_some_and(|x| x > 0.0);
    let row = |row: &'_ Value| (row["rows"].as_u64(), row["tokens"].as_u64().unwrap(), known(row));
    let rows = report["rows"].as_array().unwrap().iter();
    rows.map(|one| (one["test"].as_str().unwrap(), row(one)))
        .map(|(test, (n, t, k))| (test, n, t, k))
        .collect()
}

/// The converted fixture has a prediction head; `qwen3` has none, and its guesses cost nothing that could be shown.
#[test]
fn verifying_guesses_is_measured_against_one_row_with_the_draft_on_a_row_of_its_own() {
    let args = ["-p", "0", "-n", "5", "-r", "3", "-w", "0", "-t", "1", "--verify", "2,3"];
    let bench = |model: &Path, more: &[&str]| {
        Said::from(basert().arg("bench").arg(model).args(args).args(more).output().unwrap())
    };
    let report = bench(hybrid(), &["--json"]).ok().json();
    let expected = [
        ("decode", None, 5, false),
        ("verify", Some(1), 5, true),
        ("verify", Some(2), 5, true),
        ("draft", Some(1), 5, true),
        ("verify", Some(3), 5, true),
        ("draft", Some(2), 5, true),
    ];
    assert_eq!(steps(&report), expected);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows[1]["step_cost"], 1.0, "against itself");
    let median = |row: usize, key: &str| rows[row][key]["median"].as_f64().unwrap();
    // A step of three is three tokens, and 5 of them take two steps.
    assert!((median(4, "tokens_per_s") * median(4, "step_s") - 3.0).abs() < 1e-9, "{report}");
    assert!((median(5, "tokens_per_s") * median(5, "step_s") - 2.0).abs() < 1e-9, "{report}");
    assert!(rows.iter().all(|row| row["tokens_per_s"]["samples"].as_array().unwrap().len() == 3));
    let selected = &report["settings"][0]["selected"];
    assert_eq!((&selected["speculation"]["most"], &selected["context"]), (&2.into(), &6.into()));

    let plain = bench(llama(), &["--json"]).ok().json();
    assert_eq!(steps(&plain), [expected[0], expected[1], expected[2], expected[4]]);
    let text = bench(hybrid(), &[]).ok().out;
    assert!(text.contains("of one row") && text.contains("1.00x"), "{text}");
    for (format, count) in [("markdown", 8), ("csv", 7)] {
        let out = bench(hybrid(), &["--format", format]).ok().out;
        let mark = if format == "csv" { ',' } else { '|' };
        let cells: Vec<usize> = out
            .lines()
            .filter(|l| l.contains(mark) && !l.starts_with("- "))
            .map(|l| l.matches(mark).count())
            .collect();
        assert!(cells.len() == count && cells.iter().all(|&n| n == cells[0]), "{out}");
    }
    run!("bench", hybrid(), "-n", "0", "--verify", "2")
        .fails_with(&["--verify runs the tokens of an answer"]);
}

#[test]
fn tables_have_a_line_for_each_row_in_every_form() {
    let table = bench(llama(), &[]).ok().out;
    let lines: Vec<&str> = table.lines().skip_while(|line| !line.is_empty()).skip(1).collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(
        lines[0].contains("tokens/s") && lines[1].contains("prefill") && lines[2].contains("decode"),
        "{table}"
    );

    let markdown = bench(llama(), &["--format", "markdown"]).ok().out;
    let lines: Vec<&str> = markdown.lines().filter(|line| line.starts_with('|')).collect();
    let bars: Vec<usize> = lines.iter().map(|line| line.matches('|').count()).collect();
    assert_eq!(bars, [10; 4], "{markdown}");

    let csv = bench(llama(), &["--format", "csv", "-d", "0,8"]).ok().out;
    let cells: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(csv.starts_with("model,file_bytes,identity,"), "{csv}");
    assert!(cells.len() == 5 && cells.iter().all(|&n| n == cells[0]), "{csv}");
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_runs() {
    bench(llama(), &["--with-kv", "f16", "--kv-type", "f32"]).fails_with(&["--with-kv", "--kv-type"]);
    run!("bench", llama(), "-p", "0", "-n", "0").fails_with(&["nothing to measure"]);
    run!("bench", llama(), "-p", "99999999999999").fails_with(&["context", "hint: give smaller -p"]);
    run!("bench", llama(), "-b", "100000").fails_with(&["sequences", "hint: give a smaller -b"]);
    run!("bench", "nowhere.base").fails_with(&["nowhere.base"]);
    let threads = |value: &str| {
        let mut command = basert();
        command
            .env("BASERT_THREADS", value)
            .args(["bench", "-p", "1", "-n", "0", "-r", "1", "--json"])
            .arg(llama());
        Said::from(command.output().unwrap())
    };
    assert_eq!(threads("1,2").ok().json()["settings"].as_array().unwrap().len(), 2);
    threads("two").fails_with(&["BASERT_THREADS", "'two'"]);
}

#[test]
fn wrong_usage_exits_with_2() {
    let cases: [(&[&str], &str); 12] = [
        (&["bench"], "MODEL"),
        (&["bench", "m", "-p", "8-4"], "ends before it begins"),
        (&["bench", "m", "-d", "1-8+0"], "never gets from 1 to 8"),
        (&["bench", "m", "-b", "0-2"], "at least 1"),
        (&["bench", "m", "-t", "0"], "at least 1"),
        (&["bench", "m", "-r", "0"], "at least 1"),
        (&["bench", "m", "--format", "xml"], "table, markdown, json or csv"),
        (&["bench", "m", "--json", "--format", "csv"], "--format"),
        (&["bench", "m", "--tolerance", "5"], "--tolerance"),
        (&["bench", "m", "--force"], "--force"),
        (&["bench", "--compare", "a", "b", "-p", "4"], "--compare"),
        (&["bench", "--compare", "a"], "2 values"),
    ];
    for (args, words) in cases {
        let said = Said::from(basert().args(args).output().unwrap());
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        assert!(said.err.contains(words), "{args:?}: {said:?}");
    }
}

/// A result whose repetitions are made up.
struct MadeUp {
    dir: TempDir,
    report: Value,
}

impl MadeUp {
    fn new() -> MadeUp {
        let mut report = bench(llama(), &["--json"]).ok().json();
        let set = |spread: &mut Value, median: f64| {
            let samples = [0.99, 1.0, 1.01, 1.0, 1.0].map(|factor| factor * median);
            *spread = json!({"median": median, "mad": 0.0, "samples": samples});
        };
        set(&mut report["settings"][0]["load_s"], 0.1);
        set(&mut report["rows"][0]["tokens_per_s"], 200.0);
        set(&mut report["rows"][0]["first_token_s"], 0.5);
        set(&mut report["rows"][1]["tokens_per_s"], 50.0);
        MadeUp { dir: tempfile::tempdir().unwrap(), report }
    }

    fn write(&self, name: &str, report: &Value) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, report.to_string()).unwrap();
        path
    }

    /// Compares the result with itself after `change`.
    fn compare(&self, change: impl Fn(&mut Value), more: &[&str]) -> Said {
        let mut changed = self.report.clone();
        change(&mut changed);
        self.write("a.json", &self.report);
        self.write("b.json", &changed);
        run_in(self.dir.path(), &["bench", "--compare", "a.json", "b.json"], more)
    }
}

/// What is done to a result, and what is then said.
type Change = (fn(&mut Value), &'static str);

fn scale(spread: &mut Value, factor: f64) {
    for sample in spread["samples"].as_array_mut().unwrap() {
        *sample = json!(sample.as_f64().unwrap() * factor);
    }
}

#[test]
fn a_comparison_fails_only_on_what_is_slower_beyond_noise_and_tolerance() {
    let made_up = MadeUp::new();
    let said = made_up.compare(|_| {}, &[]).ok();
    assert!(said.out.contains("4 measurements: 0 slower, 0 faster"), "{said:?}");
    let slow_decode = |report: &mut Value| scale(&mut report["rows"][1]["tokens_per_s"], 0.9);
    let said = made_up.compare(slow_decode, &[]).fails_with(&["1 of 4 measurements became slower"]);
    let line = said.out.lines().find(|line| line.contains("SLOWER")).unwrap();
    assert!(line.contains("decode") && line.contains("0.900x"), "{said:?}");
    made_up.compare(slow_decode, &["--tolerance", "15"]).ok();
    made_up
        .compare(|report| scale(&mut report["rows"][0]["first_token_s"], 1.2), &[])
        .fails_with(&["1 of 4"]);
    let said = made_up.compare(|report| scale(&mut report["rows"][0]["first_token_s"], 0.5), &[]).ok();
    assert!(said.out.contains("faster") && said.out.contains("2.000x"), "{said:?}");
    let noisy = |report: &mut Value| {
        report["rows"][1]["tokens_per_s"]["samples"] = json!([30.0, 55.0, 45.0, 20.0, 60.0]);
    };
    made_up.compare(noisy, &[]).ok();
}

#[test]
fn a_comparison_for_scripts_has_ratios_and_verdicts() {
    let made_up = MadeUp::new();
    let said = made_up.compare(|report| scale(&mut report["rows"][0]["tokens_per_s"], 0.5), &["--json"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let found = said.json();
    assert_eq!((&found["slower"], &found["faster"]), (&json!(1), &json!(0)));
    let row = &found["rows"].as_array().unwrap().iter().find(|row| row["verdict"] == "slower").unwrap();
    assert_eq!(
        (&row["test"], &row["metric"], &row["ratio"]),
        (&json!("prefill"), &json!("tokens_per_s"), &json!(0.5))
    );
    for format in ["markdown", "csv"] {
        let said = made_up.compare(|_| {}, &["--format", format]).ok();
        assert!(said.out.contains("first_token_s"), "{said:?}");
    }
}

#[test]
fn results_of_different_things_are_compared_only_by_force() {
    let made_up = MadeUp::new();
    let changes: [Change; 5] = [
        (|report| report["models"][0]["identity"] = json!("0000000000000000"), "different models"),
        (|report| report["machine"]["cpu"] = json!("Another CPU"), "different machines"),
        (|report| report["machine"]["cpus"] = json!(1024), "different machines"),
        (|report| report["isa"] = json!("none"), "different instruction sets"),
        (|report| report["complete"] = json!(false), "incomplete"),
    ];
    for (change, words) in changes {
        made_up.compare(change, &[]).fails_with(&[words, "hint: --force"]);
        made_up.compare(change, &["--force"]).ok();
    }
}

#[test]
fn what_is_no_result_is_refused() {
    let made_up = MadeUp::new();
    let changes: [Change; 6] = [
        (|report| *report = json!({"perplexity": 3.0}), "b.json is not a result of `basert bench --json`"),
        (|report| report["basert_bench"] = json!(99), "its layout is 99"),
        (|report| report["rows"][0]["setting"] = json!(7), "damaged"),
        (|report| report["rows"] = json!([]), "in common"),
        (|report| report["rows"][0]["tokens_per_s"]["samples"] = json!([1.0, -2.0, 3.0]), "positive"),
        (|report| report["rows"][0]["tokens_per_s"]["samples"] = json!([200.0]), "1 repetition"),
    ];
    for (change, words) in changes {
        made_up.compare(change, &[]).fails_with(&[words]);
    }
    run!("bench", "--compare", made_up.dir.path().join("none.json"), llama()).fails_with(&["none.json"]);
    made_up.compare(|_| {}, &["--kv-type", "f16"]).fails_with(&["--compare"]);
    // Rows that only one result has are counted, not judged.
    let said = made_up.compare(|report| report["rows"][1]["tokens"] = json!(999), &[]).ok();
    assert!(said.out.contains("1 only in the first result, 1 only in the second"), "{said:?}");
}

/// Waits until a process has computed for half a second.
fn wait_for_work(child: &mut Child) {
    let stat = format!("/proc/{}/stat", child.id());
    loop {
        assert!(child.try_wait().unwrap().is_none(), "the command ended by itself");
        let text = std::fs::read_to_string(&stat).unwrap();
        let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
        if fields[11].parse::<u64>().unwrap() >= 50 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn ctrl_c_keeps_what_was_measured_and_marks_it() {
    let mut command = basert();
    command
        .args(["bench", "-p", "1", "-n", "200000", "-r", "1", "-w", "0", "-t", "1", "--json"])
        .arg(llama());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_work(&mut child);
    interrupt(&child);
    let said = Said::from(child.wait_with_output().unwrap());
    assert_eq!(said.code, Some(130), "{said:?}");
    let report = said.json();
    assert_eq!(report["complete"], false);
    assert_eq!(rows(&report), [("prefill".to_owned(), 1, 0, 1)], "only what has finished");
}
