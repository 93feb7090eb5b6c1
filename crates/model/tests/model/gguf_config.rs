//! GGUF metadata to [`Config`].

use basert_model::{Arch, Config, LayerType, Mixer, ModelSpec, RopePairing, RopeScaling};
use serde_json::{Map, Value, json};

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn qwen35() -> Map<String, Value> {
    map(json!({
        "general.architecture": "qwen35",
        "qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1, "qwen35.context_length": 4096,
        "qwen35.embedding_length": 64, "qwen35.feed_forward_length": 128, "qwen35.attention.head_count": 4,
        "qwen35.attention.head_count_kv": 2, "qwen35.attention.key_length": 32, "qwen35.attention.value_length": 32,
        "qwen35.attention.layer_norm_rms_epsilon": 9.999999974752427e-7, "qwen35.rope.freq_base": 1e7,
        "qwen35.rope.dimension_count": 8, "qwen35.rope.dimension_sections": [3, 3, 2, 0],
        "qwen35.ssm.conv_kernel": 4, "qwen35.ssm.state_size": 16, "qwen35.ssm.group_count": 2,
        "qwen35.ssm.time_step_rank": 6, "qwen35.ssm.inner_size": 96, "qwen35.full_attention_interval": 4,
        "tokenizer.ggml.tokens": ["a", "<|im_end|>", "b", "<|endoftext|>"], "tokenizer.ggml.eos_token_id": 3
    }))
}

#[test]
fn draft_blocks_sections_and_rotated_width_are_read_right() {
    let (arch, config) = Config::from_gguf(&qwen35()).unwrap();
    assert_eq!((arch, config.num_hidden_layers, config.mtp_num_hidden_layers), (Arch::Qwen35, 4, 1));
    assert_eq!(config.vocab_size, 4);
    assert_eq!(config.mrope_section, [3, 3, 2]);
    let spec = ModelSpec::new(arch, &config).unwrap();
    let Mixer::Attention(attention) = spec.layers[3].mixer else { panic!("layer 3 is attention") };
    assert_eq!((attention.rope.dims, attention.rope.pairing), (8, RopePairing::Half));
    let Mixer::GatedDelta(delta) = spec.layers[0].mixer else { panic!("layer 0 is recurrent") };
    assert_eq!((delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim), (2, 6, 16, 16));
}

#[test]
fn end_tokens_are_declared_ids_then_known_texts() {
    assert_eq!(Config::from_gguf(&qwen35()).unwrap().1.eos_token_ids, [3, 1]);
}

#[test]
fn recurrent_layers_list_wins_and_may_count_the_draft_block() {
    let mut meta = qwen35();
    meta.insert("qwen35.attention.recurrent_layers".to_owned(), json!([true, false, true, false, false]));
    let (_, config) = Config::from_gguf(&meta).unwrap();
    use LayerType::{Full, Linear};
    assert_eq!(config.hybrid.unwrap().layer_types, [Linear, Full, Linear, Full]);
    meta.insert("qwen35.attention.recurrent_layers".to_owned(), json!([true, false]));
    assert!(Config::from_gguf(&meta).unwrap_err().to_string().contains("2 entries for 4 layers"));
}

#[test]
fn per_layer_counts_must_agree() {
    let mut meta = qwen35();
    meta.insert("qwen35.attention.head_count_kv".to_owned(), json!([0, 0, 0, 2, 2]));
    assert_eq!(Config::from_gguf(&meta).unwrap().1.num_key_value_heads, 2);
    meta.insert("qwen35.attention.head_count_kv".to_owned(), json!([0, 0, 0, 2, 4]));
    assert!(Config::from_gguf(&meta).unwrap_err().to_string().contains("differs between layers"));
}

#[test]
fn llama_lacks_what_its_converter_leaves_out() {
    let meta = map(json!({
        "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64,
        "llama.feed_forward_length": 128, "llama.attention.head_count": 4, "llama.vocab_size": 100,
        "llama.attention.layer_norm_rms_epsilon": 1e-5
    }));
    let (_, config) = Config::from_gguf(&meta).unwrap();
    assert_eq!((config.rope_theta, config.head_dim, config.num_key_value_heads), (10000.0, 16, 4));
    assert_eq!(config.rope_scaling, RopeScaling::None);

    let changes = [
        ("llama.rope.scaling.type", json!("yarn"), "rope scaling `yarn`"),
        ("llama.expert_count", json!(8), "a llama model with experts"),
        ("llama.attention.sliding_window", json!(4096), "sliding-window"),
        ("llama.rope.dimension_count", json!(8), "partial rotary embedding (8 of 16 elements)"),
        ("llama.attention.value_length", json!(8), "partial rotary embedding"),
        ("llama.nextn_predict_layers", json!(2), "2 of 2 blocks would be draft layers"),
        ("general.architecture", json!("gemma3"), "architecture `gemma3` is not supported"),
    ];
    for (key, value, expected) in changes {
        let mut meta = meta.clone();
        meta.insert(key.to_owned(), value);
        if key.ends_with("value_length") {
            // value_length alone stands for the head; the rotated width then differs from it.
            meta.insert("llama.rope.dimension_count".to_owned(), json!(4));
        }
        let error = Config::from_gguf(&meta).unwrap_err().to_string();
        assert!(error.contains(expected), "{key}: {error}");
    }
}

#[test]
fn missing_metadata_is_named_with_its_architecture() {
    for key in
        ["qwen35.ssm.group_count", "qwen35.rope.freq_base", "qwen35.block_count", "general.architecture"]
    {
        let mut meta = qwen35();
        meta.remove(key);
        assert_eq!(
            Config::from_gguf(&meta).unwrap_err().to_string(),
            format!("GGUF metadata has no `{key}`")
        );
    }
}
