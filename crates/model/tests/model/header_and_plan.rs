//! `.base` header configuration round trip, upstream spellings, and known cache sizes.

use std::collections::BTreeMap;

use basert_model::plan::ElementSize;
use basert_model::{Arch, Config, ModelError, ModelSpec, Role, Storage};
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

fn map(value: Value) -> BTreeMap<String, Value> {
    value.as_object().unwrap().clone().into_iter().collect()
}

/// Published geometry of Qwen3.6-35B-A3B and Qwen3.5-27B.
fn qwen(layers: usize, kv_heads: usize, heads: usize, value_heads: usize, moe: bool) -> ModelSpec {
    let mut config = json!({
        "model_type": if moe { "qwen3_5_moe_text" } else { "qwen3_5_text" },
        "hidden_size": 2048, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": 256, "vocab_size": 248320, "rms_norm_eps": 1e-6,
        "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    });
    if moe {
        let experts = [
            ("num_experts", 256),
            ("num_experts_per_tok", 8),
            ("moe_intermediate_size", 512),
            ("shared_expert_intermediate_size", 512),
        ];
        for (key, value) in experts {
            config[key] = json!(value);
        }
    } else {
        config["intermediate_size"] = json!(17408);
    }
    let (arch, config) = Config::from_hf(&config, None).unwrap();
    ModelSpec::new(arch, &config).unwrap()
}

#[test]
fn hybrid_caches_count_attention_layers_and_states_only() {
    let spec = qwen(40, 2, 16, 32, true);
    let f16 = spec.kv_bytes_per_token(ElementSize::F16, ElementSize::F16);
    assert_eq!(f16, 20480);
    assert_eq!(f16 * 262_144, 5 * GIB);
    assert_eq!(spec.kv_bytes_per_token(ElementSize::Q8, ElementSize::Q8), 10880);
    assert_eq!(spec.kv_bytes_per_token(ElementSize::Q4, ElementSize::Q4), 5760);
    assert_eq!(spec.kv_bytes_per_token(ElementSize::Q8, ElementSize::Q4), 8320);
    assert_eq!(spec.state_bytes_per_sequence(), 65_863_680);

    let dense = qwen(64, 4, 24, 48, false);
    assert_eq!(dense.kv_bytes_per_token(ElementSize::F16, ElementSize::F16), 65536);
    assert_eq!(dense.kv_bytes_per_token(ElementSize::F32, ElementSize::F16), 98304);
    assert_eq!(dense.state_bytes_per_sequence(), 156_893_184);
}

#[test]
fn header_round_trips_and_widens_f32() {
    let config = json!({
        "model_type": "qwen3_5_moe", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 2048, "rms_norm_eps": 1e-6,
        "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 128, "tie_word_embeddings": false, "eos_token_id": [0, 5],
        "bos_token_id": 3, "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                            "mrope_section": [3, 3, 2], "mrope_interleaved": true}
    });
    let (arch, config) = Config::from_hf(&config, None).unwrap();
    let header = config.to_header();
    assert_eq!(Config::from_header(arch, &header).unwrap(), config);
    assert_eq!(header["rms_norm_eps"].to_string(), "9.999999974752427e-7");
    assert_eq!(header["rope_theta"].to_string(), "10000000.0");
    assert_eq!(header["rope_scaling_factor"].to_string(), "1.0");
    assert_eq!(header["intermediate_size"], json!(128));
    assert_eq!(header["num_shared_experts"], json!(1));
    assert_eq!((&header["eos_token_id"], &header["eos_token_ids"]), (&json!(0), &json!([5])));
    assert_eq!(header["layer_types"], json!(["linear_attention", "full_attention"]));
    assert!(!header.contains_key("full_attention_interval"));
}

#[test]
fn headers_of_the_original_converter_are_read() {
    let header = map(json!({
        "attn_output_gate": true, "eos_token_id": 1984, "eos_token_ids": [1986], "full_attention_interval": 2,
        "head_dim": 64, "hidden_size": 128, "intermediate_size": 256,
        "layer_types": ["linear_attention", "full_attention"], "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_value_head_dim": 64, "max_position_embeddings": 262144, "mrope_interleaved": true,
        "mrope_section": [3, 3, 2], "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "partial_rotary_factor": 0.25, "rms_norm_eps": 9.999999974752427e-7, "rope_scaling_factor": 1.0,
        "rope_theta": 10000000.0, "tie_word_embeddings": true, "vocab_size": 2048
    }));
    let config = Config::from_header(Arch::Qwen35, &header).unwrap();
    assert_eq!(config.to_header(), header);
    assert_eq!(config.eos_token_ids, [1984, 1986]);

    let mut header = header;
    header.remove("layer_types");
    assert_eq!(Config::from_header(Arch::Qwen35, &header).unwrap(), config);
    header.remove("full_attention_interval");
    let error = Config::from_header(Arch::Qwen35, &header).unwrap_err();
    assert_eq!(error.to_string(), "the .base header's config has no `layer_types`");
}

#[test]
fn a_scaling_factor_without_its_kind_is_refused() {
    let header = map(json!({
        "head_dim": 16, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_hidden_layers": 1, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_scaling_factor": 8.0,
        "rope_theta": 500000.0, "tie_word_embeddings": true, "vocab_size": 100
    }));
    let error = Config::from_header(Arch::Llama, &header).unwrap_err();
    assert!(matches!(&error, ModelError::MissingKey { key, .. } if key == "rope_scaling_type"), "{error}");
}

#[test]
fn arch_strings_have_both_spellings_of_the_original() {
    for arch in [Arch::Llama, Arch::Qwen, Arch::Qwen3Moe, Arch::Qwen35, Arch::Qwen35Moe] {
        assert_eq!(arch.name().parse::<Arch>().unwrap(), arch);
    }
    assert_eq!("qwen_moe".parse::<Arch>().unwrap(), Arch::Qwen3Moe);
    assert!("gemma3".parse::<Arch>().unwrap_err().to_string().contains("`gemma3` is not supported"));
}

#[test]
fn sensitive_tensors_stay_float() {
    let spec = qwen(4, 2, 16, 32, true);
    let target: Vec<String> = spec
        .tensors()
        .into_iter()
        .filter(|t| t.role.storage() == Storage::Target)
        .map(|t| {
            t.name.rsplit('.').rev().skip_while(|s| s.parse::<usize>().is_ok()).collect::<Vec<_>>().join(".")
        })
        .collect();
    for name in
        ["mlp.gate.weight", "norm", "in_proj_a", "in_proj_b", "conv1d", "A_log", "dt_bias", "expert_gate."]
    {
        assert!(!target.iter().any(|t| t.contains(name)), "{name} would be quantised");
    }
    assert!(
        target.iter().any(|t| t.contains("in_proj_qkv"))
            && target.iter().any(|t| t.contains("ffn_down_exps"))
    );
    assert_eq!(Role::DecayLog.storage(), Storage::F32);
}

#[test]
fn draft_layers_have_the_geometry_of_attention_layers() {
    let spec = qwen(4, 2, 16, 32, true);
    let draft = spec.draft_tensors(1).unwrap();
    let shape = |name: &str| draft.iter().find(|t| t.name == name).unwrap().shape.clone();
    assert_eq!(shape("mtp.fc.weight"), [2048, 4096]);
    assert_eq!(shape("mtp.layers.0.self_attn.q_proj.weight"), [2 * 16 * 256, 2048]);
    assert_eq!(shape("mtp.layers.0.ffn_gate_exps.weight"), [256, 512, 2048]);
    assert!(draft.iter().find(|t| t.name == "mtp.lm_head.weight").unwrap().optional);
}
