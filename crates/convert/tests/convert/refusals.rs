//! Sources that cannot become a right file: one sentence that names the culprit, and nothing left behind.

use std::path::Path;

use crate::common::gguf::{Meta, Metadata};
use crate::common::{self, Tensors, Toy, converted, noise, options, refused, safetensors, shared_fixtures};
use basert_convert::{ConvertError, Importance, Method, Options, Profile, Target, with_source};
use serde_json::json;

fn refuse(toy: &Toy) -> String {
    let dir = tempfile::tempdir().unwrap();
    refused(&toy.write(dir.path(), "src"), &options("base-q4")).to_string()
}

#[test]
fn missing_extra_and_misshapen_tensors_are_named() {
    let mut toy = Toy::hybrid(4, false);
    toy.tensors.remove("model.layers.2.linear_attn.dt_bias");
    let error = refuse(&toy);
    assert!(error.contains("tensor `layers.2.linear_attn.dt_bias` is missing"), "{error}");

    let mut toy = Toy::hybrid(4, true);
    toy.tensors.remove("model.layers.1.mlp.experts.down_proj");
    let error = refuse(&toy);
    assert!(error.contains("`layers.1.mlp.experts.0.down_proj.weight` is missing"), "{error}");
    assert!(error.contains("needed for `layers.1.ffn_down_exps.weight`"), "{error}");

    let mut toy = Toy::llama();
    toy.tensors.insert("model.layers.0.self_attn.q_proj.bias".to_owned(), noise("b", &[64]));
    let error = refuse(&toy);
    assert!(error.contains("a tensor of architecture llama is not known"), "{error}");
    assert!(error.contains("`model.layers.0.self_attn.q_proj.bias`"), "{error}");

    let mut toy = Toy::llama();
    toy.tensors.insert("model.embed_tokens.weight".to_owned(), noise("e", &[95, 64]));
    let error = refuse(&toy);
    assert!(
        error.contains(
            "`model.embed_tokens.weight` has shape [95, 64], but the configuration implies [96, 64]"
        )
    );
}

#[test]
fn an_untied_model_without_head_is_incomplete() {
    let mut toy = Toy::hybrid(4, false);
    toy.tensors.remove("lm_head.weight");
    assert!(refuse(&toy).contains("tensor `lm_head.weight` is missing"));
    // Where nothing is declared, the missing head itself says tied.
    toy.config.as_object_mut().unwrap().remove("tie_word_embeddings");
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = converted(&toy.write(dir.path(), "src"), dir.path(), "out", &options("base-q4"));
    assert_eq!(file.header().config["tie_word_embeddings"], json!(true));
}

#[test]
fn rotary_frequencies_are_ignored_and_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::llama();
    let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    toy.tensors.insert(name.to_owned(), noise("f", &[8]));
    let (_, report) = converted(&toy.write(dir.path(), "src"), dir.path(), "out", &options("base-q4"));
    let [dropped] = &report.dropped[..] else { panic!("{:?}", report.dropped) };
    assert_eq!((dropped.name.as_str(), dropped.why), (name, "it follows from the configuration"));
}

#[test]
fn the_same_weight_under_two_prefixes_is_ambiguous() {
    let mut toy = Toy::llama();
    let norm = toy.tensors["model.norm.weight"].clone();
    toy.tensors.insert("model.language_model.norm.weight".to_owned(), norm);
    let error = refuse(&toy);
    assert!(error.contains("are the same weight twice"), "{error}");
}

#[test]
fn other_conventions_are_refused_by_name() {
    let set = |key: &str, value: serde_json::Value| {
        let mut toy = Toy::hybrid(4, false);
        toy.config[key] = value;
        toy
    };
    let cases = [
        (
            set("quantization_config", json!({"quant_method": "gptq"})),
            "quantised with `gptq` are not supported",
        ),
        (
            set("quantization_config", json!({"quant_method": "fp8"})),
            "quantised with `fp8` are not supported",
        ),
        (set("model_type", json!("qwen3_next")), "Qwen3-Next"),
        (
            set("model_type", json!("gpt2")),
            "`gpt2` is not supported (supported: llama, qwen3, qwen3_moe, qwen3_5",
        ),
    ];
    for (toy, expected) in cases {
        let error = refuse(&toy);
        assert!(error.contains(expected), "{error}");
    }

    for (suffix, expected) in [(".qweight", "GPTQ"), (".weight_scale_inv", "FP8")] {
        let mut toy = Toy::llama();
        toy.tensors.insert(format!("model.layers.0.mlp.up_proj{suffix}"), noise("s", &[4, 4]));
        let error = refuse(&toy);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn unreadable_element_types_are_named() {
    let mut toy = Toy::llama();
    toy.tensors.get_mut("model.layers.0.mlp.up_proj.weight").unwrap().dtype = "U32";
    let error = refuse(&toy);
    assert!(error.contains("`model.layers.0.mlp.up_proj.weight` has type U32"), "{error}");
}

#[test]
fn damaged_or_missing_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = |source: &Path| refused(source, &options("base-q4")).to_string();

    let source = Toy::llama().write(dir.path(), "truncated");
    let shard = source.join("model.safetensors");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 8]).unwrap();
    assert!(error(&source).contains("model.safetensors"));

    let toy = Toy::llama();
    let source = toy.write(dir.path(), "shard");
    std::fs::remove_file(source.join("model.safetensors")).unwrap();
    safetensors::write_sharded(&source, &toy.tensors, 2);
    std::fs::remove_file(source.join("model-00002-of-00002.safetensors")).unwrap();
    assert!(error(&source).contains("model-00002-of-00002.safetensors"));

    let source = Toy::llama().write(dir.path(), "config");
    std::fs::write(source.join("config.json"), "{").unwrap();
    assert!(error(&source).contains("config.json"));

    let source = Toy::llama().write(dir.path(), "tokenizer");
    std::fs::remove_file(source.join("tokenizer.json")).unwrap();
    let refusal = refused(&source, &options("base-q4"));
    assert!(matches!(refusal, ConvertError::NoTokenizer { .. }) && refusal.hint().is_some(), "{refusal}");
    let allowed = Options { allow_missing_tokenizer: true, ..options("base-q4") };
    let (file, report) = converted(&source, dir.path(), "bare", &allowed);
    assert!(file.header().tokenizer.is_empty() && report.notes.len() == 1);
}

#[test]
fn paths_that_are_no_checkpoint_get_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(dir.path().join("pytorch_model.bin"), "x").unwrap();
    std::fs::write(dir.path().join("done.base"), "x").unwrap();
    let cases = [
        ("empty", "there is no config.json"),
        ("pytorch_model.bin", "pickle"),
        ("done.base", "converted file already"),
        ("nowhere", "cannot open it"),
    ];
    for (name, expected) in cases {
        let error = refused(&dir.path().join(name), &options("base-q4")).to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    std::fs::write(empty.join("model.gguf"), "x").unwrap();
    let error = refused(&empty, &options("base-q4"));
    assert!(
        error.to_string().contains("did you mean") && error.to_string().contains("model.gguf"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains(".gguf"));
    let error = refused(&empty.join("model.gguf"), &options("base-q4")).to_string();
    assert!(error.contains("model.gguf"), "{error}");

    // One of a directory's files stands for the directory.
    let source = Toy::llama().write(dir.path(), "src");
    converted(&source.join("model.safetensors"), dir.path(), "out", &options("base-q4"));
}

#[test]
fn the_source_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::llama().write(dir.path(), "src");
    let out = source.join("model.safetensors");
    let before = std::fs::read(&out).unwrap();
    let error = basert_convert::convert(&source, &out, &options("base-q4"), &mut basert_convert::Silent);
    assert!(error.unwrap_err().to_string().contains("is a file of the source"));
    assert!(std::fs::read(&out).unwrap() == before);
}

#[test]
fn gguf_refusals_name_the_key_or_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    let text = |arch: &'static str| vec![("general.architecture".to_owned(), Meta::Text(arch))] as Metadata;
    let allowed = Options { allow_missing_tokenizer: true, ..options("base-q4") };
    let mut tensors = Tensors::new();
    tensors.insert("token_embd.weight".to_owned(), noise("e", &[96, 64]));

    common::gguf::write(&path, &text("bert"), &tensors);
    let error = refused(&path, &allowed).to_string();
    assert!(
        error.contains("x.gguf") && error.contains("`bert` is not supported (supported: llama, qwen3"),
        "{error}"
    );

    common::gguf::write(&path, &text("llama"), &tensors);
    let error = refused(&path, &allowed).to_string();
    assert!(error.contains("GGUF metadata has no `llama.block_count`"), "{error}");

    let mut toy = Toy::hybrid(6, false);
    toy.tensors.remove("model.layers.0.linear_attn.A_log");
    let error = refused(&common::gguf::write_hybrid(&toy, dir.path(), "a.gguf"), &allowed).to_string();
    assert!(error.contains("tensor `blk.0.ssm_a` is missing"), "{error}");

    let toy = Toy::hybrid(6, false);
    let error = refused(&common::gguf::write_hybrid(&toy, dir.path(), "t.gguf"), &options("base-q4"));
    assert!(matches!(error, ConvertError::NoTokenizer { .. }), "{error}");
}

#[test]
fn options_that_mean_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::llama().write(dir.path(), "src");
    let cases = [
        (Options { group: Some(48), ..options("base-q4") }, "group size 48"),
        (Options { group: Some(64), ..options("bf16") }, "target bf16 has no groups"),
        (
            Options { scale: Some(basert_quant::ScaleDtype::E8m0), ..options("base-q4") },
            "scales can be f16 or bf16",
        ),
        (
            Options { scale: Some(basert_quant::ScaleDtype::F16), ..options("bf16") },
            "target bf16 has no scales",
        ),
        (Options { threads: Some(0), ..options("base-q4") }, "0 threads"),
    ];
    for (options, expected) in cases {
        let error = refused(&source, &options).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = "base-q7".parse::<Target>().unwrap_err().to_string();
    assert!(error.contains("`base-q7`") && error.contains("auto, base-q2, base-q3"), "{error}");
    assert_eq!("base_q4".parse::<Target>().unwrap(), Target::BASE_Q4);
}

#[test]
fn options_that_a_quantised_source_cannot_obey_are_refused() {
    let Some(shared) = shared_fixtures() else { return };
    let source = shared.join("gguf/qwen3-dense-tiny-Q4_0.gguf");
    let cases = [
        (Options { scale: Some(basert_quant::ScaleDtype::F16), ..options("auto") }, "takes its scales from"),
        (
            Options { convention: Some("hf".parse().unwrap()), ..options("auto") },
            "source convention hf means",
        ),
    ];
    for (options, expected) in cases {
        let error = refused(&source, &options).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// `basert.method` in the header would claim what did not happen.
#[test]
fn a_method_that_finds_nothing_to_do_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::llama().write(dir.path(), "src");
    let profile = |rules: serde_json::Value| {
        let text = json!({"name": "mine", "arch": "any", "rules": rules}).to_string();
        Options { profile: Some(Profile::parse(&text, "test").unwrap()), ..options("auto") }
    };
    let importance = |name: &str| {
        let make = |model: &basert_convert::SourceModel<'_>| {
            let tensors = model.spec.tensors();
            let columns = tensors.iter().find(|t| t.name == name).map(|t| t.shape[1]);
            let squares = columns.map(|columns| (name.to_owned(), vec![1.0; columns]));
            Importance::new(&model.spec, 64, squares.into_iter().collect()).unwrap()
        };
        with_source(&source, &options("auto"), make).unwrap()
    };
    // Scales of 8 bits are not searched.
    let coarse = profile(json!([{"pattern": "**", "dtype": "base_q8", "scale_dtype": "e4m3"}]));
    let error = refused(&source, &Options { method: Some(Method::Mse), ..coarse.clone() }).to_string();
    assert!(error.contains("no tensor has scales to find, so method mse"), "{error}");
    let (file, _) = converted(&source, dir.path(), "coarse", &coarse);
    assert_eq!(file.header().metadata["basert.method"], "rtn");

    // Only the embedding is quantised, which no factors reach.
    let rules =
        json!([{"pattern": "embed_tokens.weight", "dtype": "base_q4"}, {"pattern": "**", "dtype": "f32"}]);
    let found = Some(importance("layers.0.self_attn.q_proj.weight"));
    let options = Options { method: Some(Method::Awq), importance: found, ..profile(rules) };
    let error = refused(&source, &options).to_string();
    assert!(error.contains("method awq has nothing to scale"), "{error}");

    let path = dir.path().join("empty");
    std::fs::write(&path, importance("none").to_bytes()).unwrap();
    let error = Importance::load(&path).unwrap_err().to_string();
    assert!(error.contains("it has no tensors"), "{error}");
}
