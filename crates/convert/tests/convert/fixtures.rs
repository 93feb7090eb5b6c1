//! The golden models convert, completely.

use crate::common::{converted, decoded, fixture, options, shared_fixtures};
use basert_convert::{Method, Options};
use basert_format::BaseFile;
use half::f16;
use serde_json::json;

/// Tensors of the trunk, of the draft layer and of the vision tower.
const COUNTS: [(&str, usize, usize, usize); 4] = [
    ("qwen35-dense-tiny", 6 * 14 + 2 * 11 + 2, 15, 21),
    ("qwen3-dense-tiny", 2 * 11 + 2, 0, 0),
    ("qwen3-moe-tiny", 2 * 12 + 3, 0, 0),
    ("llama-tiny", 2 * 9 + 2, 0, 0),
];

#[test]
fn hugging_face_models_convert_with_every_tensor() {
    let dir = tempfile::tempdir().unwrap();
    for (name, trunk, draft, vision) in COUNTS {
        for target in ["base-q4", "bf16"] {
            let (file, report) =
                converted(&fixture(name), dir.path(), &format!("{name}-{target}"), &options(target));
            assert_eq!(file.tensors().count(), trunk + draft, "{name}");
            assert_eq!(file.mmproj_tensors().count(), vision, "{name}");
            assert_eq!((report.draft.tensors, report.vision.tensors), (draft, vision), "{name}");
            assert_eq!(file.header().config["eos_token_id"], json!(if draft > 0 { 1984 } else { 1986 }));
            assert!(file.header().tokenizer.contains_key("tokenizer.json"));
        }
    }
    let file = BaseFile::open(&dir.path().join("qwen35-dense-tiny-bf16.base")).unwrap();
    let mmproj = file.header().mmproj.as_ref().unwrap();
    assert_eq!(mmproj.arch, "qwen35_mm");
    assert_eq!(mmproj.config["image_token_id"], json!(1996));
    assert!(
        file.mmproj_tensors()
            .all(|t| t.entry.name.starts_with("visual.") && t.entry.dtype().name() == "bf16")
    );
}

#[test]
fn sharded_fused_experts_convert() {
    let Some(shared) = shared_fixtures() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (file, report) = converted(&shared.join("qwen35-moe-tiny"), dir.path(), "moe", &options("base-q4"));
    // Per layer: 13 or 10 of mixer and norms, router, 3 stacks, 3 shared, shared gate.
    assert_eq!(file.tensors().count(), 6 * (11 + 8) + 2 * (8 + 8) + 3);
    assert_eq!((report.vision.tensors, report.draft.tensors), (0, 0));
}

#[test]
fn gguf_models_convert_with_every_tensor() {
    let Some(shared) = shared_fixtures() else { return };
    let dir = tempfile::tempdir().unwrap();
    let counts = [
        ("llama-tiny-F16", 2 * 9 + 3, 0),
        ("qwen3-dense-tiny-Q4_0", 2 * 11 + 2, 0),
        ("qwen3-dense-tiny-Q4_1", 2 * 11 + 2, 0),
        ("qwen3-dense-tiny-Q5_K_M", 2 * 11 + 2, 0),
        ("qwen35-dense-2l-BF16", 14 + 11 + 2, 15),
        ("qwen35-dense-2l-Q4_K_M", 14 + 11 + 2, 15),
        ("qwen35-dense-2l-Q8_0", 14 + 11 + 2, 15),
        ("qwen35-moe-2l-Q4_K_M", 19 + 16 + 3, 0),
    ];
    for (name, trunk, draft) in counts {
        let source = shared.join("gguf").join(format!("{name}.gguf"));
        let (file, report) = converted(&source, dir.path(), name, &options("f32"));
        assert_eq!(file.tensors().count(), trunk + draft, "{name}");
        assert_eq!(report.draft.tensors, draft, "{name}");
        let ends = &file.header().config;
        assert_eq!((&ends["eos_token_id"], &ends["eos_token_ids"]), (&json!(1986), &json!([1984])), "{name}");
        assert!(file.header().tokenizer.contains_key("tokenizer.chat_template"), "{name}");
    }
}

/// llama.cpp converted the fixture from the same weights, so undoing its conventions must give our own
/// conversion.
#[test]
fn llama_from_gguf_equals_llama_from_hugging_face() {
    let Some(shared) = shared_fixtures() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (hf, _) = converted(&fixture("llama-tiny"), dir.path(), "hf", &options("f32"));
    let source = shared.join("gguf/llama-tiny-F16.gguf");
    let (gguf, _) = converted(&source, dir.path(), "gguf", &options("f32"));
    for tensor in hf.tensors() {
        let name = &tensor.entry.name;
        let matrix = tensor.shape.len() > 1;
        // The GGUF went through f16, which is coarser than bf16 below 2^-14.
        let round = |value: f32| if matrix { f16::from_f32(value).to_f32() } else { value };
        let expected: Vec<f32> = decoded(&hf, name).into_iter().map(round).collect();
        assert!(expected == decoded(&gguf, name), "{name}");
    }
    assert_eq!(gguf.tensor("rope_freqs.weight").unwrap().shape, [16]);
}

/// The original converter made its files from the Hugging Face form of the model that this GGUF holds in
/// bf16. With the same quantiser, matrices agree byte for byte, through value heads, columns and draft block;
/// what it rounds to f16 agrees after that rounding.
#[test]
fn a_gguf_converts_to_what_the_original_converter_made_of_the_same_model() {
    let Some(shared) = shared_fixtures() else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = shared.join("gguf/qwen35-dense-2l-BF16.gguf");
    for target in ["base-q4", "base-q8", "bf16"] {
        let theirs = BaseFile::open(&shared.join(format!("base/qwen35-dense-2l-{target}.base"))).unwrap();
        // Floats have no scales to find.
        let method = target.starts_with("base").then_some(Method::Rtn);
        let rounded = Options { method, ..options(target) };
        let (ours, _) = converted(&source, dir.path(), target, &rounded);
        let mut identical = 0;
        for tensor in theirs.tensors() {
            let name = &tensor.entry.name;
            let own = ours.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
            assert_eq!(own.shape, tensor.shape, "{name}");
            if own.entry.dtype() == tensor.entry.dtype() && !name.ends_with("A_log") {
                assert!(own.data == tensor.data, "{name} at {target}");
                identical += 1;
                continue;
            }
            let half = |value: f32| f16::from_f32(value).to_f32();
            let rounded: Vec<f32> = decoded(&ours, name).into_iter().map(half).collect();
            let expected: Vec<f32> = decoded(&theirs, name).into_iter().map(half).collect();
            assert!(rounded == expected, "{name} at {target}: {rounded:?} {expected:?}");
        }
        // Embedding, 6 matrices of each mixer's layer and dt_bias at least.
        assert!(identical >= 14, "{identical} at {target}");
        let mut config = ours.header().config.clone();
        config.remove("mtp_num_hidden_layers");
        for (key, value) in &theirs.header().config {
            if !key.starts_with("attn_output") && !key.starts_with("eos") {
                assert_eq!(config.get(key), Some(value), "{key}");
            }
        }
    }
}
