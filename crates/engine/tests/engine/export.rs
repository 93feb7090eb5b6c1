//! Bundles go to GGUF and back: the same payloads, and the same logits.

use std::path::{Path, PathBuf};

use crate::common::{GGUF_FIXTURES, KV_F32, fixture, load_with, logits, max_difference, shared_fixture};
use basert_convert::gguf::GgufFile;
use basert_convert::{
    ConvertError, ExportOptions, ExportReport, Options as ConvertOptions, Silent, Synthetic, convert,
    export_gguf, synthesize,
};
use basert_engine::Options;
use basert_format::{BaseFile, Output};
use basert_model::Config;

struct Bundle {
    folder: tempfile::TempDir,
    path: PathBuf,
}

fn bundle(source: &Path, options: &ConvertOptions) -> Bundle {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("there.base");
    let options = ConvertOptions { allow_missing_tokenizer: true, ..options.clone() };
    convert(source, &path, &options, &mut Silent).unwrap();
    Bundle { folder, path }
}

impl Bundle {
    fn export(&self, outtype: Option<&str>) -> Result<(PathBuf, ExportReport), ConvertError> {
        let out = self.folder.path().join("there.gguf");
        let outtype = outtype.map(|name| name.parse().unwrap());
        let options = ExportOptions { outtype, threads: Some(2), ..ExportOptions::default() };
        let report = export_gguf(&self.path, &Output::new(&out), &options, &mut Silent)?;
        Ok((out, report))
    }

    /// The bundle that the exported GGUF becomes. `target` is for floats; what is quantised stays.
    fn back(&self, outtype: Option<&str>, target: &str) -> (BaseFile, ExportReport) {
        let (gguf, report) = self.export(outtype).unwrap();
        let path = self.folder.path().join("back.base");
        let options = ConvertOptions { allow_missing_tokenizer: true, ..options(target, None) };
        convert(&gguf, &path, &options, &mut Silent).unwrap();
        (BaseFile::open(&path).unwrap(), report)
    }
}

fn values(file: &BaseFile, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
    let mut out = vec![0.0; tensor.shape.iter().product::<u64>() as usize];
    tensor.encoding.decode(tensor.data, out.len(), 0, &mut out).unwrap();
    out
}

/// Every tensor has the values it had; `A_log` went through an exponential and a logarithm.
fn assert_same_values(there: &BaseFile, back: &BaseFile, what: &str) {
    for tensor in there.tensors() {
        let name = &tensor.entry.name;
        let (before, after) = (values(there, name), values(back, name));
        if name.ends_with("A_log") {
            assert!(max_difference(&before, &after) <= 3e-7, "{what}: {name}");
        } else {
            assert!(before == after, "{what}: {name}");
        }
    }
}

/// Differences in the last bits of `A_log`, and of frequencies that were f32 in between, are all there is.
fn assert_same_logits(there: &Path, back: &BaseFile, what: &str) {
    let vocab = back.header().config["vocab_size"].as_u64().unwrap() as u32;
    let ids: Vec<u32> = (0..48).map(|i| i * 53 % vocab).collect();
    let run = |path: &Path| {
        let options = Options { kv: KV_F32, dequantize: true, ..Options::default() };
        logits(&mut load_with(path, options), &ids, &[64])
    };
    let difference = max_difference(&run(there), &run(back.path()));
    assert!(difference < 1e-4, "{what}: logits differ by {difference}");
}

fn options(target: &str, group: Option<usize>) -> ConvertOptions {
    ConvertOptions { target: target.parse().unwrap(), group, ..ConvertOptions::default() }
}

#[test]
fn every_architecture_survives_the_way_to_gguf_and_back() {
    let models =
        ["llama-tiny", "qwen3-dense-tiny", "qwen3-moe-tiny", "qwen35-dense-tiny", "toy-hybrid", "toy-moe"];
    for model in models {
        // Groups of 64 where rows allow it are split, groups of 32 are not.
        let targets =
            [("base-q4", None), ("base-q4", Some(32)), ("f32", None), ("base-q5", None), ("bf16", None)];
        let count = if model == "qwen35-dense-tiny" { targets.len() } else { 3 };
        for (target, group) in targets.into_iter().take(count) {
            let what = format!("{model} {target} {group:?}");
            let bundle = bundle(&fixture(model), &options(target, group));
            let float = if target.starts_with("base") { "auto" } else { target };
            // The toys' value heads of 16 cut through blocks, which is refused; F32 holds the values.
            let outtype = (model.starts_with("toy") && float == "auto").then_some("f32");
            assert_eq!(bundle.export(None).is_err(), outtype.is_some(), "{what}");
            let (back, report) = bundle.back(outtype, float);
            assert_eq!(report.count(false).tensors, 0, "{what}");
            let there = BaseFile::open(&bundle.path).unwrap();
            assert_same_values(&there, &back, &what);
            assert_same_logits(&bundle.path, &back, &what);
            if group == Some(32) {
                for tensor in there
                    .tensors()
                    .filter(|t| t.entry.dtype().is_affine() && t.encoding.group() == 32 && outtype.is_none())
                {
                    let own = back.tensor(&tensor.entry.name).unwrap();
                    assert!(
                        own.data == tensor.data && own.encoding == tensor.encoding,
                        "{what}: {}",
                        tensor.entry.name
                    );
                }
            }
        }
    }
}

#[test]
fn what_came_from_a_gguf_goes_back_block_by_block() {
    for name in GGUF_FIXTURES {
        let Some(source) = shared_fixture(&format!("gguf/{name}.gguf")) else { return };
        let target = if name.ends_with("-BF16") {
            "bf16"
        } else if name.ends_with("-F16") {
            "f16"
        } else {
            "auto"
        };
        let bundle = bundle(&source, &options(target, None));
        let (out, report) = bundle.export(None).unwrap();
        assert_eq!(report.count(false).tensors, 0, "{name}");
        let (theirs, ours) = (GgufFile::open(&source).unwrap(), GgufFile::open(&out).unwrap());
        assert_eq!(ours.tensors().count(), theirs.tensors().count(), "{name}");
        for tensor in theirs.tensors() {
            let own = ours.get(tensor.name).unwrap_or_else(|| panic!("{name}: no {}", tensor.name));
            assert_eq!(own.shape, tensor.shape, "{name}: {}", tensor.name);
            // Steering projections are kept as floats, and A_log passes through a logarithm.
            if own.ty == tensor.ty && tensor.name != "blk.0.ssm_a" {
                assert!(own.data == tensor.data, "{name}: {}", tensor.name);
            } else {
                assert!(
                    tensor.name.contains("ssm_"),
                    "{name}: {} is {}, was {}",
                    tensor.name,
                    own.ty,
                    tensor.ty
                );
            }
        }
        for (key, value) in ours.metadata() {
            let differs =
                ["general.name", "general.file_type"].contains(&key.as_str()) || key.ends_with("vocab_size");
            if let Some(theirs) = theirs.metadata().get(key)
                && !differs
            {
                assert_eq!(value, theirs, "{name}: {key}");
            }
        }
        for key in theirs.metadata().keys().filter(|key| !key.starts_with("general.")) {
            let optional = ["add_space_prefix", "padding_token_id", "bos_token_id"];
            let known = ours.metadata().contains_key(key) || optional.iter().any(|o| key.ends_with(o));
            assert!(known, "{name}: {key} is missing");
        }
    }
}

/// Widths without a ggml type are refused by name, or take the type that is given for them.
#[test]
fn what_no_ggml_type_holds_is_refused_or_given_another_type() {
    for (target, outtypes) in [
        ("base-q6", &["f32", "q8_0"][..]),
        ("base-q8", &["f16", "q8_0"]),
        ("base-q3", &["q4_1", "q4_0", "q5_0", "q5_1"]),
    ] {
        let bundle = bundle(&fixture("qwen35-dense-tiny"), &options(target, None));
        let error = bundle.export(None).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&target.replace('-', "_")) && text.contains("embed_tokens.weight"), "{text}");
        assert!(error.hint().unwrap().contains("--outtype"));
        assert!(!bundle.folder.path().join("there.gguf").exists());
        for outtype in outtypes {
            let (back, report) =
                bundle.back(Some(outtype), if outtype.starts_with('f') { "f32" } else { "auto" });
            let rounded = report.count(false).tensors;
            assert_eq!(rounded == 0, *outtype == "f32", "{target} {outtype}: {rounded} rounded");
            let there = BaseFile::open(&bundle.path).unwrap();
            for tensor in &report.tensors {
                let (before, after) = (values(&there, &tensor.name), values(&back, &tensor.name));
                let difference = max_difference(&before, &after);
                assert!(difference <= tensor.max_error.max(3e-7), "{}: {difference}", tensor.name);
            }
        }
    }
}

/// The original's layout fuses experts, quantises routers and keeps no draft layers.
#[test]
fn bundles_of_the_original_converter_can_be_exported() {
    for name in ["qwen35-dense-2l-base-q4", "qwen35-moe-2l-base-q4"] {
        let Some(path) = shared_fixture(&format!("base/{name}.base")) else { return };
        let there = BaseFile::open(&path).unwrap();
        let bundle = Bundle { folder: tempfile::tempdir().unwrap(), path };
        let (back, report) = bundle.back(None, "auto");
        assert_eq!(report.count(false).tensors, 0);
        for tensor in there.tensors() {
            let name = &tensor.entry.name;
            let Some((layer, _)) = name.split_once("ffn_gate_up_exps") else { continue };
            let halves = ["gate", "up"].map(|half| values(&back, &format!("{layer}ffn_{half}_exps.weight")));
            let size = tensor.shape[1] as usize / 2 * tensor.shape[2] as usize;
            for (expert, fused) in values(&there, name).chunks_exact(2 * size).enumerate() {
                let at = expert * size..(expert + 1) * size;
                assert!(fused[..size] == halves[0][at.clone()] && fused[size..] == halves[1][at], "{name}");
            }
        }
        assert_same_logits(&bundle.path, &back, name);
    }
}

#[test]
fn a_bundle_without_tokenizer_gets_a_vocabulary_of_bytes() {
    let config = std::fs::read(fixture("qwen35-dense-tiny").join("config.json")).unwrap();
    let (arch, mut config) = Config::from_hf(&serde_json::from_slice(&config).unwrap(), None).unwrap();
    config.mtp_num_hidden_layers = 0;
    let model = Synthetic { name: "tiny".to_owned(), arch, config, assumptions: Vec::new() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.base");
    synthesize(&model, &Output::new(&path), &ConvertOptions::default(), &mut Silent).unwrap();
    let bundle = Bundle { folder, path };
    let (out, report) = bundle.export(None).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("a vocabulary of bytes")), "{:?}", report.notes);
    let gguf = GgufFile::open(&out).unwrap();
    assert_eq!(gguf.metadata()["tokenizer.ggml.model"], "gpt2");
    assert_eq!(gguf.metadata()["tokenizer.ggml.tokens"].as_array().unwrap().len(), 2048);
    assert_eq!(gguf.metadata()["qwen35.vocab_size"], 2048);
    let (back, _) = bundle.back(None, "auto");
    assert_same_values(&BaseFile::open(&bundle.path).unwrap(), &back, "random");
}

#[test]
fn a_bundle_whose_tensors_contradict_its_configuration_is_refused() {
    let bundle = bundle(&fixture("qwen3-moe-tiny"), &options("base-q4", None));
    let intact = std::fs::read(&bundle.path).unwrap();
    for (key, damaged) in
        [("\"vocab_size\":2048", "\"vocab_size\":2047"), ("\"num_experts\":4,", "\"num_experts\":5,")]
    {
        let mut bytes = intact.clone();
        let at = bytes.windows(key.len()).position(|part| part == key.as_bytes()).unwrap();
        bytes[at..at + key.len()].copy_from_slice(damaged.as_bytes());
        std::fs::write(&bundle.path, bytes).unwrap();
        let error = bundle.export(None).unwrap_err().to_string();
        assert!(error.contains("but the configuration implies"), "{error}");
        assert!(!bundle.folder.path().join("there.gguf").exists());
    }
}
