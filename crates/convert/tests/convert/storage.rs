//! How tensors are stored, what falls back, what the header says, and that output is reproducible.

use crate::common::{self, Toy, converted, decoded, noise, options, refused};
use basert_convert::{Method, Options, Silent, convert};
use basert_format::{BaseFile, HeaderFlags, QuantScheme, SourceFormat, TensorFlags};
use basert_quant::ScaleDtype;
use serde_json::json;

fn dtype(file: &BaseFile, name: &str) -> String {
    file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}")).entry.dtype().to_string()
}

#[test]
fn sensitive_tensors_keep_their_precision_whatever_the_target() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::hybrid(6, true);
    toy.tensors.values_mut().for_each(|tensor| tensor.dtype = "BF16");
    let source = toy.write(dir.path(), "src");
    for target in ["base-q2", "base-q3", "base-q4", "base-q5", "base-q6", "base-q8", "bf16", "f16", "f32"] {
        let (file, report) = converted(&source, dir.path(), target, &options(target));
        for f32_name in [
            "layers.0.input_norm.weight",
            "layers.0.linear_attn.norm.weight",
            "layers.0.linear_attn.conv1d.weight",
            "layers.0.linear_attn.A_log",
            "layers.0.linear_attn.dt_bias",
            "final_norm.weight",
        ] {
            assert_eq!(dtype(&file, f32_name), "f32", "{f32_name} at {target}");
        }
        for source_name in [
            "layers.0.mlp.gate.weight",
            "layers.0.mlp.shared_expert_gate.weight",
            "layers.0.linear_attn.in_proj_a.weight",
            "layers.0.linear_attn.in_proj_b.weight",
        ] {
            assert_eq!(dtype(&file, source_name), "bf16", "{source_name} at {target}");
        }
        let expected = target.replace('-', "_");
        for name in ["embed_tokens.weight", "lm_head.weight", "layers.3.self_attn.q_proj.weight"] {
            // Rows of 64 do not divide into q8's groups of 128, but into 64.
            assert_eq!(dtype(&file, name), expected, "{name}");
        }
        assert_eq!(file.header().metadata["basert.target"], json!(target));
        assert_eq!(report.written.tensors, file.tensors().count());
        let per_dtype: u64 = report.dtypes.values().map(|count| count.bytes).sum();
        assert_eq!(per_dtype, report.written.bytes);
    }
    let f32 = BaseFile::open(&dir.path().join("f32.base")).unwrap();
    assert_eq!(f32.header().quant_scheme, QuantScheme::Bf16);
    let bf16 = BaseFile::open(&dir.path().join("bf16.base")).unwrap();
    assert_eq!(decoded(&bf16, "lm_head.weight"), decoded(&f32, "lm_head.weight"));
}

/// Field case: row lengths that the group does not divide.
#[test]
fn rows_that_no_group_divides_are_reported_and_never_fail() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::hybrid(6, false);
    toy.config["intermediate_size"] = json!(48);
    for layer in 0..4 {
        let p = format!("model.layers.{layer}.mlp.");
        toy.tensors.insert(format!("{p}gate_proj.weight"), noise("g", &[48, 64]));
        toy.tensors.insert(format!("{p}up_proj.weight"), noise("u", &[48, 64]));
        toy.tensors.insert(format!("{p}down_proj.weight"), noise("d", &[64, 48]));
    }
    let source = toy.write(dir.path(), "src");
    let (file, report) = converted(&source, dir.path(), "q4", &options("base-q4"));
    assert_eq!(dtype(&file, "layers.0.mlp.gate_proj.weight"), "base_q4");
    assert_eq!(dtype(&file, "layers.0.mlp.down_proj.weight"), "bf16");
    // 96 elements per row: half a group of 64 would be left.
    let out = file.tensor("layers.0.linear_attn.out_proj.weight").unwrap();
    assert_eq!((out.entry.dtype().name(), out.entry.group_size), ("base_q4", Some(32)));
    let plain = report.unquantised();
    assert_eq!((plain.tensors, plain.bytes), (4, 4 * 64 * 48 * 2));
    assert_eq!(report.fallbacks.len(), 4 + 3);
    let text = report.to_string();
    let lines = [
        "note: rows of 48 do not divide into base_q4 group 64; 4 tensors stored as bf16: layers.*.mlp.down_proj.weight",
        "note: rows of 96 do not divide into base_q4 group 64; 3 tensors stored as base_q4 group 32: \
         layers.*.linear_attn.out_proj.weight",
    ];
    assert!(lines.iter().all(|line| text.lines().any(|found| found == *line)), "{text}");
    assert!(text.contains("note: 4 tensors (24.0 KiB) left unquantised"), "{text}");

    let mut wide = options("base-q4");
    wide.group = Some(128);
    let (file, report) = converted(&source, dir.path(), "g128", &wide);
    assert_eq!(file.tensor("layers.3.self_attn.o_proj.weight").unwrap().entry.group_size, Some(128));
    assert_eq!(file.tensor("layers.3.self_attn.k_proj.weight").unwrap().entry.group_size, Some(64));
    assert!(report.fallbacks.iter().any(|f| f.used == "base_q4 group 64" && !f.unquantised));
}

#[test]
fn values_beyond_half_precision_are_refused_by_name_and_bf16_holds_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::llama();
    let tensor = toy.tensors.get_mut("model.layers.0.mlp.up_proj.weight").unwrap();
    tensor.values[77] = 1e6;
    let source = toy.write(dir.path(), "src");
    let error = refused(&source, &options("base-q4"));
    assert!(error.to_string().contains("layers.0.mlp.up_proj.weight"), "{error}");
    assert!(error.to_string().contains("f16 scales"), "{error}");
    assert!(error.hint().unwrap().contains("--scales bf16"));
    let error = refused(&source, &options("f16"));
    assert!(error.to_string().contains("element 77 (1e6) is out of range for f16"), "{error}");

    let scales = Options { scale: Some(ScaleDtype::Bf16), ..options("base-q4") };
    let (file, _) = converted(&source, dir.path(), "bf16_scales", &scales);
    let largest = decoded(&file, "layers.0.mlp.up_proj.weight").into_iter().fold(0.0, f32::max);
    assert!((largest - 1e6).abs() < 1e4, "{largest}");
    converted(&source, dir.path(), "bf16", &options("bf16"));
}

#[test]
fn values_too_small_for_half_precision_scales_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::llama();
    let name = "layers.0.mlp.up_proj.weight";
    let tensor = toy.tensors.get_mut(&format!("model.{name}")).unwrap();
    tensor.values.iter_mut().for_each(|value| *value *= 1e-6);
    let source = toy.write(dir.path(), "src");
    let (_, report) = converted(&source, dir.path(), "f16", &options("base-q4"));
    assert_eq!(report.notes.len(), 1);
    assert!(
        report.notes[0].starts_with(name) && report.notes[0].contains("bf16 scales"),
        "{:?}",
        report.notes
    );

    // A search may clip the largest values.
    let rounded = Some(Method::Rtn);
    let scales = Options { scale: Some(ScaleDtype::Bf16), method: rounded, ..options("base-q4") };
    let (file, report) = converted(&source, dir.path(), "bf16", &scales);
    assert!(report.notes.is_empty());
    let error = decoded(&file, name)
        .into_iter()
        .zip(toy.values(&format!("model.{name}")))
        .map(|(a, b)| (a - b).abs());
    assert!(error.fold(0.0, f32::max) < 1e-7);
}

#[test]
fn not_a_number_is_refused_with_its_place_in_the_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::llama();
    toy.config["vocab_size"] = json!(4096);
    let mut embed = noise("e", &[4096, 64]);
    // Far behind the first block of rows that one thread takes.
    embed.values[200_000] = f32::NAN;
    toy.tensors.insert("model.embed_tokens.weight".to_owned(), embed);
    let error = refused(&toy.write(dir.path(), "src"), &options("base-q4")).to_string();
    assert!(error.contains("tensor `embed_tokens.weight`: element 200000 is NaN"), "{error}");
}

#[test]
fn header_says_what_the_file_is() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::hybrid(6, true).with_draft(true).write(dir.path(), "toy");
    std::fs::write(source.join("generation_config.json"), r#"{"eos_token_id": [7, 9]}"#).unwrap();
    let (file, report) = converted(&source, dir.path(), "out", &options("base-q4"));
    let header = file.header();
    assert_eq!((header.arch.as_str(), header.min_hw.as_str()), ("qwen35moe", "apple_m1"));
    assert_eq!(header.created, "0");
    assert_eq!(header.source.format, SourceFormat::HfSafetensors);
    assert_eq!(header.source.filename, "toy");
    assert_eq!(header.source.sha256.len(), 64);
    assert!(header.source.sha256.bytes().any(|digit| digit != b'0'));
    assert_eq!(header.config["eos_token_id"], json!(7));
    assert_eq!(header.config["eos_token_ids"], json!([9]));
    assert_eq!(header.metadata[basert_convert::GENERATION_KEY], json!({"eos_token_id": [7, 9]}));
    assert_eq!(header.layers.len(), 4);
    let expected = HeaderFlags::QUANTIZED
        | HeaderFlags::HAS_MOE
        | HeaderFlags::HAS_SSM
        | HeaderFlags::HAS_HYBRID
        | HeaderFlags::HAS_SPECULATOR;
    assert_eq!(header.flags, expected);
    assert_eq!(header.tokenizer["tokenizer_type"].get(), "\"hf\"");
    assert!(header.mmproj.is_none());
    let decay = file.tensor("layers.0.linear_attn.A_log").unwrap();
    assert_eq!(decay.entry.flags, TensorFlags::SSM_A_MATRIX);
    // Four of the draft head, 8 of norms and attention, 8 of experts.
    assert_eq!(report.draft.tensors, 20);
    assert!(report.to_string().contains("draft: 20 tensors"), "{report}");

    let tied = Toy::llama().write(dir.path(), "tied");
    let (file, _) = converted(&tied, dir.path(), "tied", &options("base-q4"));
    assert_eq!(file.header().flags, HeaderFlags::QUANTIZED | HeaderFlags::TIED_EMBEDDINGS);
    assert!(file.tensor("lm_head.weight").is_none());
}

#[test]
fn same_input_gives_the_same_bytes_on_any_number_of_threads_and_shards() {
    let dir = tempfile::tempdir().unwrap();
    let toy = Toy::hybrid(6, true);
    let source = toy.write(dir.path(), "src");
    let bytes = |source: &std::path::Path, threads: usize| {
        let out = dir.path().join("out.base");
        let options = Options { threads: Some(threads), ..options("base-q4") };
        convert(source, &out, &options, &mut Silent).unwrap();
        std::fs::read(out).unwrap()
    };
    let one = bytes(&source, 1);
    assert!(one == bytes(&source, 1));
    assert!(one == bytes(&source, 3));

    let sharded = toy.write(dir.path(), "sharded");
    std::fs::remove_file(sharded.join("model.safetensors")).unwrap();
    common::safetensors::write_sharded(&sharded, &toy.tensors, 3);
    bytes(&sharded, 2);
    let sharded = BaseFile::open(&dir.path().join("out.base")).unwrap();
    let (whole, _) = converted(&source, dir.path(), "whole", &options("base-q4"));
    assert!(common::payloads(&sharded) == common::payloads(&whole));
    assert_ne!(sharded.header().source.sha256, whole.header().source.sha256);
}

#[test]
fn time_stamp_is_that_of_the_newest_source_file() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::llama().write(dir.path(), "src");
    for (name, seconds) in [("config.json", 50), ("tokenizer.json", 70), ("model.safetensors", 60)] {
        let file = std::fs::File::options().write(true).open(source.join(name)).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
    }
    // A test must not depend on what the environment says.
    let from_files = std::env::var_os("SOURCE_DATE_EPOCH").is_none();
    let options = Options { created: (!from_files).then_some(70), ..options("base-q4") };
    let (file, _) = converted(&source, dir.path(), "out", &options);
    assert_eq!(file.header().created, "70");
}

#[test]
fn progress_counts_what_is_written() {
    #[derive(Default)]
    struct Counter {
        announced: (usize, u64),
        seen: (usize, u64),
        finished: bool,
    }
    impl basert_convert::Progress for Counter {
        fn start(&mut self, tensors: usize, bytes: u64) {
            self.announced = (tensors, bytes);
        }
        fn tensor(&mut self, _: &str, bytes: u64) {
            self.seen.0 += 1;
            self.seen.1 += bytes;
        }
        fn finish(&mut self) {
            self.finished = true;
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::llama().write(dir.path(), "src");
    let mut counter = Counter::default();
    let report = convert(&source, &dir.path().join("out.base"), &options("base-q6"), &mut counter).unwrap();
    assert_eq!(counter.announced, counter.seen);
    assert_eq!(counter.seen, (report.written.tensors, report.written.bytes));
    assert!(counter.finished);
}
