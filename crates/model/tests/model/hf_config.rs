//! `config.json` to [`Config`]: nesting, spellings, and refusals that name the key.

use basert_model::{Arch, Config, LayerType, Mixer, ModelError, ModelSpec, RopeScaling};
use serde_json::{Value, json};

fn qwen35() -> Value {
    json!({
        "model_type": "qwen3_5_text",
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "intermediate_size": 128, "vocab_size": 512, "rms_norm_eps": 1e-6,
        "full_attention_interval": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                            "mrope_section": [2, 1, 1], "mrope_interleaved": true},
        "tie_word_embeddings": false, "eos_token_id": 7
    })
}

fn llama() -> Value {
    json!({
        "model_type": "llama",
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false
    })
}

fn with(mut config: Value, key: &str, value: Value) -> Value {
    config[key] = value;
    config
}

fn without(mut config: Value, key: &str) -> Value {
    config.as_object_mut().unwrap().remove(key);
    config
}

fn fixture(name: &str) -> (Value, Value) {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
    let read = |file: &str| serde_json::from_slice(&std::fs::read(root.join(file)).unwrap()).unwrap();
    (read("config.json"), read("generation_config.json"))
}

#[test]
fn value_heads_come_from_the_file() {
    for heads in [2, 4, 6] {
        let (arch, config) =
            Config::from_hf(&with(qwen35(), "linear_num_value_heads", json!(heads)), None).unwrap();
        assert_eq!(config.hybrid.as_ref().unwrap().linear_num_value_heads, heads);
        let spec = ModelSpec::new(arch, &config).unwrap();
        let a = spec.tensors().into_iter().find(|t| t.name.ends_with("in_proj_a.weight")).unwrap();
        assert_eq!(a.shape, [heads, 64]);
    }
}

#[test]
fn text_config_once_and_twice_nested_is_the_same_model() {
    let bare = Config::from_hf(&qwen35(), None).unwrap();
    let once = json!({"model_type": "qwen3_5", "text_config": qwen35(), "vision_config": {"hidden_size": 8}});
    let twice = json!({"model_type": "some_wrapper", "text_config": {"text_config": qwen35()}});
    assert_eq!(Config::from_hf(&once, None).unwrap(), bare);
    assert_eq!(Config::from_hf(&twice, None).unwrap(), bare);
}

#[test]
fn wrapper_supplies_what_the_text_part_lacks() {
    let inner = without(without(qwen35(), "tie_word_embeddings"), "eos_token_id");
    let wrapper = json!({"model_type": "qwen3_5", "text_config": inner, "tie_word_embeddings": false, "eos_token_id": 7});
    assert_eq!(Config::from_hf(&wrapper, None), Config::from_hf(&qwen35(), None));
}

#[test]
fn missing_keys_are_named_never_defaulted() {
    let keys = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "rms_norm_eps",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "model_type",
    ];
    for key in keys {
        let error = Config::from_hf(&without(qwen35(), key), None).unwrap_err();
        assert_eq!(error, ModelError::MissingKey { place: "config.json", key: key.to_owned() });
    }
    let moe = with(qwen35(), "model_type", json!("qwen3_5_moe_text"));
    assert_eq!(Config::from_hf(&moe, None).unwrap_err().to_string(), "config.json has no `num_experts`");
    let error = Config::from_hf(&without(qwen35(), "rope_parameters"), None).unwrap_err();
    assert_eq!(error.to_string(), "config.json has no `rope_theta`");
    let error = Config::from_hf(&without(qwen35(), "full_attention_interval"), None).unwrap_err();
    assert_eq!(error.to_string(), "config.json has no `layer_types`");
}

#[test]
fn both_rope_spellings_give_the_same_scaling() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192});
    let old = with(with(llama(), "rope_theta", json!(500000.0)), "rope_scaling", scaling.clone());
    let mut newer = scaling.clone();
    newer["rope_theta"] = json!(500000.0);
    let new = with(llama(), "rope_parameters", newer);
    let (_, old) = Config::from_hf(&old, None).unwrap();
    let (_, new) = Config::from_hf(&new, None).unwrap();
    assert_eq!(old, new);
    assert_eq!(old.rope_theta, 500000.0);
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192.0,
    };
    assert_eq!(old.rope_scaling, expected);

    let lacking = with(llama(), "rope_scaling", without(scaling, "low_freq_factor"));
    let error = Config::from_hf(&lacking, None).unwrap_err();
    assert_eq!(error.to_string(), "config.json has no `rope_scaling.low_freq_factor`");
}

#[test]
fn llama_2_has_no_rope_theta_and_one_kv_head_per_head() {
    let (arch, config) = Config::from_hf(&llama(), None).unwrap();
    assert_eq!((arch, config.rope_theta), (Arch::Llama, 10000.0));
    assert_eq!((config.num_key_value_heads, config.head_dim), (4, 16));
}

#[test]
fn end_tokens_of_both_files_are_merged_in_order() {
    let generation = json!({"eos_token_id": [9, 7, 8]});
    let (_, config) = Config::from_hf(&qwen35(), Some(&generation)).unwrap();
    assert_eq!(config.eos_token_ids, [7, 9, 8]);
}

#[test]
fn features_that_would_change_the_result_are_refused_by_name() {
    let cases = [
        (with(qwen35(), "attention_bias", json!(true)), "`attention_bias`: true is not supported"),
        (with(qwen35(), "hidden_act", json!("gelu")), "activation `gelu` is not supported"),
        (with(qwen35(), "attn_output_gate", json!(false)), "without attention gate"),
        (with(qwen35(), "layer_types", json!(["a", "b", "c", "d"])), "layer type `a` is not supported"),
        (with(llama(), "rope_scaling", json!({"type": "yarn", "factor": 4.0})), "rope scaling `yarn`"),
        (with(llama(), "rope_scaling", json!({"rope_type": "longrope"})), "rope scaling `longrope`"),
        (
            with(llama(), "rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0})),
            "rope scaling `dynamic`",
        ),
        (with(llama(), "sliding_window", json!(4096)), "sliding-window attention"),
        (with(llama(), "partial_rotary_factor", json!(0.5)), "partial rotary embedding (8 of 16 elements)"),
        (with(llama(), "model_type", json!("qwen3_next")), "Qwen3-Next"),
        (
            with(llama(), "model_type", json!("mamba")),
            "architecture `mamba` is not supported (supported: llama",
        ),
    ];
    for (config, expected) in cases {
        let error = Config::from_hf(&config, None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let off = with(with(llama(), "sliding_window", json!(4096)), "use_sliding_window", json!(false));
    Config::from_hf(&off, None).unwrap();
}

#[test]
fn numbers_that_cannot_be_a_model_are_refused() {
    let cases = [
        ("num_key_value_heads", json!(3), "not a multiple of num_key_value_heads 3"),
        ("linear_num_value_heads", json!(5), "not a multiple of linear_num_key_heads 2"),
        ("num_hidden_layers", json!(0), "num_hidden_layers is 0"),
        ("hidden_size", json!(1u64 << 62), "hidden_size is 4611686018427387904"),
        ("hidden_size", json!(-64), "`hidden_size` is -64, expected a whole number"),
        ("hidden_size", json!("64"), "`hidden_size` is \"64\", expected a whole number"),
        ("linear_conv_kernel_dim", json!(0), "linear_conv_kernel_dim is 0"),
        ("layer_types", json!(["full_attention"]), "layer_types has 1 entries for 4 layers"),
        ("eos_token_id", json!("</s>"), "expected a token id"),
        ("text_config", json!(5), "not an object"),
    ];
    for (key, value, expected) in cases {
        let error = Config::from_hf(&with(qwen35(), key, value), None).unwrap_err().to_string();
        assert!(error.contains(expected), "{key}: {error}");
    }
}

#[test]
fn fixture_configurations_give_the_documented_models() {
    let (config, generation) = fixture("qwen35-dense-tiny");
    let (arch, config) = Config::from_hf(&config, Some(&generation)).unwrap();
    assert_eq!((arch, &config.eos_token_ids[..]), (Arch::Qwen35, &[1984, 1986][..]));
    let spec = ModelSpec::new(arch, &config).unwrap();
    let attention: Vec<usize> = (0..8).filter(|&i| spec.layers[i].mixer.attention().is_some()).collect();
    assert_eq!(attention, [3, 7]);
    assert_eq!(config.hybrid.as_ref().unwrap().layer_types[0], LayerType::Linear);
    let Mixer::Attention(full) = spec.layers[3].mixer else { panic!("layer 3 is attention") };
    assert_eq!((full.rope.dims, full.output_gate, full.qk_norm), (16, true, true));
    // 6 delta layers x 14, 2 attention layers x 11, embedding and final norm; the head is tied.
    assert_eq!(spec.tensors().len(), 6 * 14 + 2 * 11 + 2);

    let (config, generation) = fixture("qwen3-moe-tiny");
    let (arch, config) = Config::from_hf(&config, Some(&generation)).unwrap();
    assert_eq!(arch, Arch::Qwen3Moe);
    assert!(config.moe.as_ref().unwrap().norm_topk_prob);
    // Per layer: 2 norms, q k v o, 2 head norms, router, 3 expert stacks.
    assert_eq!(ModelSpec::new(arch, &config).unwrap().tensors().len(), 2 * 12 + 3);
}

#[test]
fn sparse_step_and_named_layers_make_dense_layers() {
    let moe = json!({
        "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 512, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": false, "decoder_sparse_step": 2, "mlp_only_layers": [3]
    });
    let (arch, config) = Config::from_hf(&moe, None).unwrap();
    assert_eq!(config.moe.as_ref().unwrap().mlp_only_layers, [0, 2, 3]);
    let names: Vec<String> =
        ModelSpec::new(arch, &config).unwrap().tensors().into_iter().map(|t| t.name).collect();
    assert!(names.contains(&"layers.0.mlp.gate_proj.weight".to_owned()));
    assert!(names.contains(&"layers.1.ffn_gate_exps.weight".to_owned()));
    assert_eq!(Config::from_header(arch, &config.to_header()).unwrap(), config);
}

#[test]
fn contexts_that_no_machine_could_hold_are_refused() {
    for context in [json!(0), json!(1u64 << 63), json!(u64::MAX)] {
        let config = Config::from_hf(&with(qwen35(), "max_position_embeddings", context.clone()), None);
        let spec = config.and_then(|(arch, config)| ModelSpec::new(arch, &config));
        let error = spec.unwrap_err().to_string();
        assert!(error.contains("max_position_embeddings"), "{context}: {error}");
    }
}
