//! Files from strangers: whatever is wrong with them is one sentence, a non-zero status and nothing left behind.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{self, checkpoint, fixture, llama, names, with_header};
use serde_json::{Value, json};

/// Runs every reading command on a damaged model file.
fn every_reader_refuses(path: &Path, words: &[&str]) {
    run!("inspect", path).fails_with(words);
    run!("inspect", path, "--json").fails_with(words);
    run!("complete", path, "-p", "a").fails_with(words);
    run!("eval", path, "--ids-file", "unread.json").fails_with(words);
}

#[test]
fn damaged_preambles_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let good = fs::read(llama()).unwrap();
    let huge = [&good[..8], &u64::MAX.to_le_bytes(), &good[16..]].concat();
    let long = [&good[..8], &(good.len() as u64).to_le_bytes(), &good[16..]].concat();
    let version = [&good[..4], &2u32.to_le_bytes(), &good[8..]].concat();
    let cases: [(&str, &[u8], &str); 8] = [
        ("empty", b"", "empty"),
        ("one-byte", b"B", "truncated"),
        ("preamble-only", &good[..15], "truncated"),
        ("wrong-magic", b"PK\x03\x04 a zip file, for example", "not a .base file"),
        ("other-version", &version, "version 2"),
        ("huge-header", &huge, "header_len"),
        ("long-header", &long, "truncated"),
        ("half-a-header", &good[..1000], "truncated"),
    ];
    for (name, bytes, words) in cases {
        let path = dir.path().join(format!("{name}.base"));
        fs::write(&path, bytes).unwrap();
        every_reader_refuses(&path, &[name, words]);
    }
}

#[test]
fn files_that_end_early_are_refused_wherever_they_end() {
    let dir = tempfile::tempdir().unwrap();
    let good = fs::read(llama()).unwrap();
    for part in 1..8 {
        let path = dir.path().join("cut.base");
        fs::write(&path, &good[..good.len() * part / 8]).unwrap();
        every_reader_refuses(&path, &["cut.base"]);
    }
}

#[test]
fn headers_that_contradict_themselves_are_refused_with_the_tensor_named() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&str, &str, &[&str]); 6] = [
        (
            r#""name":"final_norm.weight""#,
            r#""name":"embed_tokens.weight""#,
            &["embed_tokens.weight", "twice"],
        ),
        (r#""shape":[2048,128]"#, r#""shape":[2048,129]"#, &["embed_tokens.weight"]),
        (
            r#""shape":[2048,128]"#,
            r#""shape":[18446744073709551615,18446744073709551615]"#,
            &["embed_tokens.weight"],
        ),
        (r#""dtype":"f32""#, r#""dtype":"f31""#, &["f31"]),
        (r#""quant_scheme":"bf16""#, r#""quant_scheme":"best""#, &["best"]),
        (r#"{"schema""#, r#"{"schema":1,"#, &["header"]),
    ];
    for (from, to, words) in cases {
        let path = with_header(dir.path(), |header| {
            assert!(header.contains(from), "{from}");
            header.replacen(from, to, 1)
        });
        every_reader_refuses(&path, words);
    }
}

#[test]
fn an_architecture_of_the_future_can_be_inspected_but_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let path =
        with_header(dir.path(), |header| header.replacen(r#""arch":"llama""#, r#""arch":"qwen9_omni""#, 1));
    let said = run!("inspect", &path).ok();
    for words in ["qwen9_omni", "not runnable", "2, of kinds that this version does not know", "f32"] {
        assert!(said.out.contains(words), "no '{words}' in {said:?}");
    }
    assert_eq!(run!("inspect", &path, "--json").ok().json()["model"], Value::Null);
    run!("complete", &path, "-p", "a").fails_with(&["edited.base", "qwen9_omni"]);
}

#[test]
fn a_flipped_bit_is_found_by_its_checksum_and_the_tensor_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flipped.base");
    let facts = run!("inspect", llama(), "--json", "--tensors").ok().json();
    let tensor =
        facts["tensor_list"].as_array().unwrap().iter().find(|t| t["name"] == "layers.1.mlp.up_proj.weight");
    let offset = tensor.unwrap()["offset"].as_u64().unwrap() as usize;
    let mut bytes = fs::read(llama()).unwrap();
    let header_len = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    let blob = (16 + header_len).next_multiple_of(65536);
    bytes[blob + offset + 77] ^= 0x10;
    fs::write(&path, bytes).unwrap();
    run!("inspect", &path).ok();
    let words = ["flipped.base", "layers.1.mlp.up_proj.weight"];
    run!("inspect", &path, "--verify-checksums").fails_with(&words);
    let said = run!("inspect", &path, "--verify-checksums", "--json").fails_with(&words);
    assert_eq!(said.json()["checksums_correct"], false);
}

#[test]
fn what_is_not_a_base_file_gets_a_hint_how_to_make_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let gguf = file("my model.gguf", b"GGUF\x03\0\0\0rest");
    let name = gguf.display().to_string();
    let checkpoint = fixture("llama-tiny");
    for command in [["complete", "-p"], ["inspect", ""]] {
        let run = |path: &Path| match command {
            ["inspect", _] => run!("inspect", path),
            _ => run!("complete", path, "-p", "a"),
        };
        run(&gguf).fails_with(&["is a GGUF file", &format!("basert convert '{name}'")]);
        run(&checkpoint).fails_with(&["is a directory", "basert convert ", "llama-tiny"]);
        run(&checkpoint.join("model.safetensors")).fails_with(&["not a .base file", "basert convert "]);
        run(&dir.path().join("absent")).fails_with(&["absent does not exist", "basert convert SOURCE"]);
        file("near.base", b"");
        run(&dir.path().join("near")).fails_with(&["near does not exist", "did you mean", "near.base"]);
    }
}

/// A copy of a checkpoint that can be damaged, and an output folder.
struct Source {
    dir: tempfile::TempDir,
    out: tempfile::TempDir,
}

impl Source {
    fn of(name: &str) -> Source {
        Source { dir: checkpoint(name), out: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn weights(&self) -> Vec<u8> {
        fs::read(self.path("model.safetensors")).unwrap()
    }

    /// Writes the weights with a header edited as JSON.
    fn edit_weights(&self, edit: impl FnOnce(&mut Value)) {
        let bytes = self.weights();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
        edit(&mut header);
        let header = header.to_string();
        let edited = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes[8 + len..]].concat();
        fs::write(self.path("model.safetensors"), edited).unwrap();
    }

    fn edit_config(&self, edit: impl FnOnce(&mut Value)) {
        let path = self.path("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut config);
        fs::write(path, config.to_string()).unwrap();
    }

    /// Checks that nothing is converted, and that nothing is left behind.
    #[track_caller]
    fn is_refused(&self, words: &[&str]) {
        run!("convert", self.dir.path(), "-o", self.out.path().join("m.base")).fails_with(words);
        assert_eq!(names(self.out.path()), Vec::<String>::new());
    }
}

#[test]
fn damaged_weights_are_refused() {
    let good = Source::of("llama-tiny").weights();
    let cut = &good[..good.len() - 1];
    let longer = [&good[..], b"x"].concat();
    let huge = [&u64::MAX.to_le_bytes(), &good[8..]].concat();
    let text = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    let cases: [&[u8]; 7] = [b"", &good[..7], &good[..100], cut, &longer, &huge, text];
    for bytes in cases {
        let source = Source::of("llama-tiny");
        fs::write(source.path("model.safetensors"), bytes).unwrap();
        source.is_refused(&["model.safetensors"]);
    }
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let norm = "model.layers.1.input_layernorm.weight";
    let source = Source::of("llama-tiny");
    source.edit_weights(|header| {
        let tensor = header.as_object_mut().unwrap().remove(norm).unwrap();
        header["model.layers.1.self_attn.rotary_emb.inv_freq"] = tensor;
    });
    source.is_refused(&["layers.1.input_layernorm.weight"]);

    let source = Source::of("llama-tiny");
    source.edit_weights(|header| header[norm]["shape"] = json!([64, 2]));
    source.is_refused(&["layers.1.input_layernorm.weight"]);

    let source = Source::of("llama-tiny");
    source.edit_weights(|header| header[norm]["shape"] = json!([129]));
    source.is_refused(&["layers.1.input_layernorm.weight"]);

    let source = Source::of("llama-tiny");
    source.edit_weights(|header| header[norm]["dtype"] = json!("F8_E9"));
    source.is_refused(&["model.safetensors", "F8_E9"]);
}

#[test]
fn configurations_that_fit_no_model_are_refused() {
    type Edit = fn(&mut Value);
    let cases: [(Edit, &[&str]); 4] = [
        (|c| c["model_type"] = json!("llama9"), &["config.json", "llama9"]),
        (|c| c["num_hidden_layers"] = json!(3), &["layers.2."]),
        (|c| c["num_attention_heads"] = json!(0), &["config.json", "num_attention_heads"]),
        (|c| c["hidden_size"] = json!("wide"), &["config.json", "hidden_size"]),
    ];
    for (edit, words) in cases {
        let source = Source::of("llama-tiny");
        source.edit_config(edit);
        source.is_refused(words);
    }
    let source = Source::of("llama-tiny");
    fs::write(source.path("config.json"), "{\"model_type\": ").unwrap();
    source.is_refused(&["config.json"]);
    fs::remove_file(source.path("config.json")).unwrap();
    source.is_refused(&["config.json"]);
}

#[test]
fn shards_that_are_missing_or_lead_in_circles_are_named() {
    let index = |shard: &str| {
        let source = Source::of("llama-tiny");
        let bytes = source.weights();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
        let tensors = header.as_object().unwrap().keys().filter(|k| *k != "__metadata__");
        let map: serde_json::Map<String, Value> = tensors.map(|k| (k.clone(), json!(shard))).collect();
        fs::remove_file(source.path("model.safetensors")).unwrap();
        fs::write(source.path("model.safetensors.index.json"), json!({"weight_map": map}).to_string())
            .unwrap();
        source
    };
    let shard = "model-00001-of-00001.safetensors";
    index(shard).is_refused(&[shard]);

    let circle = index(shard);
    std::os::unix::fs::symlink(shard, circle.path("other.safetensors")).unwrap();
    std::os::unix::fs::symlink("other.safetensors", circle.path(shard)).unwrap();
    circle.is_refused(&[shard]);

    // An index that names itself, or a file outside of its folder.
    index("model.safetensors.index.json").is_refused(&["model.safetensors.index.json"]);
    let outside = fixture("llama-tiny").join("model.safetensors").canonicalize().unwrap();
    index(outside.to_str().unwrap()).is_refused(&["model.safetensors"]);
}

#[test]
fn sources_that_are_no_checkpoints_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    let refused = |path: &Path, words: &[&str]| {
        run!("convert", path, "-o", out.path().join("m.base")).fails_with(words);
        assert_eq!(names(out.path()), Vec::<String>::new());
    };
    refused(dir.path(), &["config.json"]);
    refused(&dir.path().join("absent"), &["absent"]);
    let file = dir.path().join("notes.txt");
    fs::write(&file, "hello").unwrap();
    refused(&file, &["notes.txt"]);
    refused(llama(), &["llama-tiny.base"]);
}

#[test]
fn damaged_gguf_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let refused = |bytes: &[u8], words: &[&str]| {
        fs::write(&path, bytes).unwrap();
        run!("convert", &path, "-o", out.path().join("m.base")).fails_with(words);
        assert_eq!(names(out.path()), Vec::<String>::new());
    };
    let gguf = |tensor_type: u32, architecture: &str| {
        let string = |s: &str| [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat();
        let mut metadata =
            [string("general.architecture"), 8u32.to_le_bytes().to_vec(), string(architecture)].concat();
        let sizes = [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", 256),
            ("feed_forward_length", 64),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 2),
            ("vocab_size", 4),
        ];
        for (key, value) in sizes {
            metadata.extend([string(&format!("llama.{key}")), 4u32.to_le_bytes().to_vec()].concat());
            metadata.extend(u32::to_le_bytes(value));
        }
        metadata
            .extend([string("llama.attention.layer_norm_rms_epsilon"), 6u32.to_le_bytes().to_vec()].concat());
        metadata.extend(1e-5f32.to_le_bytes());
        let counts = [1u64.to_le_bytes(), (sizes.len() as u64 + 2).to_le_bytes()].concat();
        let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &counts, &metadata].concat();
        bytes.extend([string("token_embd.weight"), 2u32.to_le_bytes().to_vec()].concat());
        bytes.extend([256u64.to_le_bytes(), 4u64.to_le_bytes()].concat());
        bytes.extend([&tensor_type.to_le_bytes()[..], &0u64.to_le_bytes()].concat());
        bytes.resize(bytes.len().next_multiple_of(32) + 4096, 0);
        bytes
    };
    let good = gguf(0, "llama");
    refused(b"", &["model.gguf"]);
    refused(b"GGUF", &["model.gguf"]);
    refused(&good[..60], &["model.gguf"]);
    refused(&[&good[..4], &9u32.to_le_bytes(), &good[8..]].concat(), &["model.gguf", "version"]);
    refused(&[&good[..8], &u64::MAX.to_le_bytes(), &good[16..]].concat(), &["model.gguf"]);
    refused(&gguf(0, "mamba9"), &["mamba9"]);
    // 18 is IQ3_XXS, which exists and is not supported; 999 does not exist.
    refused(&gguf(18, "llama"), &["token_embd.weight", "IQ3_XXS"]);
    refused(&gguf(999, "llama"), &["token_embd.weight", "999"]);
}

#[test]
fn a_real_gguf_converts_and_runs_like_its_reference() {
    let Some(path) = common::shared_fixture("gguf/llama-tiny-F16.gguf") else { return };
    let golden: Value =
        serde_json::from_slice(&fs::read(path.with_file_name("llama-tiny-F16.golden.json")).unwrap())
            .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("m.base");
    run!("convert", "--no-check", &path, "-o", &model, "--target", "f32").ok();
    let prompt = common::prompt(&golden, "p5");
    let object = run!(
        "complete",
        &model,
        "--prompt-ids",
        common::comma_separated(&prompt),
        "--temp",
        "0",
        "-n",
        "1",
        "--ignore-eos",
        "--json",
        "--kv-type",
        "f32"
    )
    .ok()
    .json();
    let last = golden["prompts"].as_array().unwrap().iter().find(|p| p["name"] == "p5").unwrap()["argmax"]
        .as_array()
        .unwrap()
        .last();
    assert_eq!(object["ids"][0], *last.unwrap());
}
