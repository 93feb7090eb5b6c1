//! Numbers about models, through the real binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{
    self, Said, basert, converted, fixture, golden, hybrid, interrupt, llama, names, prompt, wait_for_output,
};
use serde_json::Value;
use tempfile::TempDir;

/// A file with the ids of a golden prompt.
fn ids_file(dir: &Path, model: &str, name: &str) -> PathBuf {
    let path = dir.join(format!("{name}.json"));
    fs::write(&path, serde_json::to_string(&prompt(&golden(model), name)).unwrap()).unwrap();
    path
}

/// One f32 tensor of a safetensors file and its shape.
fn tensor(path: &Path, name: &str) -> (Vec<f32>, Vec<usize>) {
    let bytes = fs::read(path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let entry = &header[name];
    assert_eq!(entry["dtype"], "F32");
    let numbers = |key: &str| -> Vec<usize> {
        entry[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
    };
    let range = numbers("data_offsets");
    let data = &bytes[8 + len..][range[0]..range[1]];
    (data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(), numbers("shape"))
}

/// Runs `eval` with `--json`.
fn eval(model: &Path, ids: &Path, more: &[&str]) -> Value {
    let mut command = basert();
    command.arg("eval").arg(model).arg("--ids-file").arg(ids).arg("--json").args(more);
    Said::from(command.output().unwrap()).ok().json()
}

#[test]
fn dumped_logits_are_those_of_transformers() {
    for name in ["llama-tiny", "qwen35-dense-tiny"] {
        let (dir, model) = converted(name, "f32");
        let golden = golden(name);
        for prompt_name in ["p5", "p65", "p300"] {
            let ids = ids_file(dir.path(), name, prompt_name);
            let dump = dir.path().join(prompt_name).with_extension("safetensors");
            run!("eval", &model, "--ids-file", &ids, "--dump-logits", &dump, "--kv-type", "f32").ok();
            let (found, shape) = tensor(&dump, "logits");
            let case =
                golden["prompts"].as_array().unwrap().iter().find(|p| p["name"] == prompt_name).unwrap();
            let positions = common::ids(&case["positions"]);
            assert_eq!(shape, [common::ids(&case["ids"]).len(), 2048]);
            let (expected, _) =
                tensor(&fixture(name).join("golden.safetensors"), &format!("{prompt_name}.logits"));
            let mut worst = 0.0f32;
            for (&position, expected) in positions.iter().zip(expected.chunks_exact(2048)) {
                let found = &found[position as usize * 2048..][..2048];
                worst = found.iter().zip(expected).fold(worst, |w, (a, b)| w.max((a - b).abs()));
            }
            assert!(worst <= 1e-3, "{name} {prompt_name}: {worst}");
        }
    }
}

#[test]
fn perplexity_is_the_one_of_the_dumped_logits() {
    let dir = tempfile::tempdir().unwrap();
    let file = ids_file(dir.path(), "llama-tiny", "p130");
    let dump = dir.path().join("logits.safetensors");
    let found = eval(llama(), &file, &["--dump-logits", dump.to_str().unwrap()]);
    let (logits, shape) = tensor(&dump, "logits");
    let ids: Vec<u32> = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let nll: Vec<f64> = ids[1..]
        .iter()
        .zip(logits.chunks_exact(shape[1]))
        .map(|(&next, row)| {
            let sum: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
            sum.ln() - f64::from(row[next as usize])
        })
        .collect();
    let n = nll.len() as f64;
    let mean = nll.iter().sum::<f64>() / n;
    let deviation = (nll.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    let close = |key: &str, expected: f64| {
        let found = found[key].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-9 * expected.abs(), "{key}: {found} and {expected}");
    };
    close("nll", mean);
    close("nll_standard_error", deviation / n.sqrt());
    close("perplexity", mean.exp());
    close("perplexity_standard_error", mean.exp() * deviation / n.sqrt());
    assert_eq!((found["tokens"].as_u64(), found["scored"].as_u64()), (Some(130), Some(129)));
}

#[test]
fn chunks_and_threads_do_not_change_one_bit_of_the_logits() {
    let (dir, model) = converted("qwen35-dense-tiny", "q4");
    let ids = ids_file(dir.path(), "qwen35-dense-tiny", "p130");
    let dump = |chunk: &str, threads: &str| {
        let path = dir.path().join(format!("{chunk}-{threads}.safetensors"));
        run!("eval", &model, "--ids-file", &ids, "--dump-logits", &path, "--chunk", chunk, "-t", threads)
            .ok();
        fs::read(path).unwrap()
    };
    let whole = dump("130", "1");
    for (chunk, threads) in [("1", "1"), ("7", "2"), ("64", "2"), ("128", "3")] {
        assert!(dump(chunk, threads) == whole, "chunk {chunk}, {threads} threads");
    }
}

#[test]
fn a_short_context_reads_windows() {
    let dir = tempfile::tempdir().unwrap();
    let ids = ids_file(dir.path(), "llama-tiny", "p130");
    let found = eval(llama(), &ids, &["-c", "32"]);
    assert_eq!((found["window"].as_u64(), found["scored"].as_u64()), (Some(32), Some(130 - 5)));
    let said = run!("eval", llama(), "--ids-file", &ids, "-c", "32").ok();
    assert!(said.out.contains("over 125 tokens in 5 windows of 32"), "{said:?}");
}

#[test]
fn text_is_scored_through_the_bundles_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    let text = "The quick brown fox jumps over the lazy dog.";
    fs::write(&file, text).unwrap();
    let found = run!("eval", hybrid(), "--text-file", &file, "--json").ok().json();
    let object = run!("complete", hybrid(), "-p", text, "-n", "1", "--json").ok().json();
    assert_eq!(found["tokens"].as_u64().unwrap() as usize, object["prompt_ids"].as_array().unwrap().len());
}

#[test]
fn divergence_is_zero_from_itself_and_grows_as_bits_go() {
    let dir = tempfile::tempdir().unwrap();
    let ids = ids_file(dir.path(), "qwen3-dense-tiny", "p130");
    let (_reference_dir, reference) = converted("qwen3-dense-tiny", "f32");
    let against = |model: &Path| {
        let found = eval(model, &ids, &["--against", reference.to_str().unwrap(), "--kv-type", "f32"]);
        let get = |key: &str| found["against"][key].as_f64().unwrap();
        assert_eq!(get("positions"), 130.0);
        (get("kl"), get("top1_agreement"))
    };
    assert_eq!(against(&reference), (0.0, 1.0));
    let narrow = eval(&reference, &ids, &["--against", reference.to_str().unwrap(), "--kv-type", "q4"]);
    assert!(narrow["against"]["kl"].as_f64().unwrap() > 0.0, "a narrow cache shows: {narrow}");
    let models: Vec<(TempDir, PathBuf)> = ["q8", "q4", "q2"].map(|t| converted("qwen3-dense-tiny", t)).into();
    let kl: Vec<f64> = models.iter().map(|m| against(&m.1).0).collect();
    assert!(kl[0] > 0.0 && kl.is_sorted() && kl[2] > 10.0 * kl[0], "{kl:?}");
}

#[test]
fn models_that_cannot_be_compared_say_why() {
    let source = tempfile::tempdir().unwrap();
    let ids = ids_file(source.path(), "llama-tiny", "p5");
    run!("eval", llama(), "--ids-file", &ids, "--against", "no-such.base").fails_with(&["no-such.base"]);
}

#[test]
fn inputs_that_cannot_be_scored_leave_no_dump_behind() {
    let dir = tempfile::tempdir().unwrap();
    let write = |text: &str| {
        let path = dir.path().join("ids.json");
        fs::write(&path, text).unwrap();
        path
    };
    let cases = [
        ("[311]", "at least 2"),
        ("[]", "at least 2"),
        ("[1, 2, 5000]", "5000"),
        ("[1, -2]", "JSON array of token ids"),
        ("{\"ids\": [1, 2]}", "JSON array of token ids"),
        ("some words", "--text-file"),
    ];
    for (text, words) in cases {
        let ids = write(text);
        run!("eval", llama(), "--ids-file", &ids, "--dump-logits", dir.path().join("l.safetensors"))
            .fails_with(&[words]);
        assert_eq!(names(dir.path()), ["ids.json"], "{text}");
    }
    let ids = write("[1, 2, 3]");
    run!("eval", llama(), "--ids-file", &ids, "--dump-logits", "/no/such/l.safetensors")
        .fails_with(&["/no/such"]);
    run!("eval", llama(), "--ids-file", "no-such.json").fails_with(&["no-such.json"]);
}

#[test]
fn an_interrupted_dump_leaves_nothing_behind() {
    let (ids, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = ids.path().join("ids.json");
    fs::write(&file, serde_json::to_string(&vec![311; 100_000]).unwrap()).unwrap();
    let mut child = basert()
        .arg("eval")
        .arg(llama())
        .args(["-c", "64", "--ids-file"])
        .args([file.as_path(), Path::new("--dump-logits"), &out.path().join("l.safetensors")])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_output(&mut child, out.path());
    interrupt(&child);
    let said = Said::from(child.wait_with_output().unwrap());
    assert_eq!((said.code, said.err.as_str()), (Some(130), ""));
    assert_eq!(names(out.path()), Vec::<String>::new());
}
