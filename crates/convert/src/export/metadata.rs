//! The metadata of a GGUF: hyperparameters and tokenizer under llama.cpp's keys.

use basert_format::BaseFile;
use basert_model::{Arch, Config, HybridConfig, LayerType, Mixer, ModelSpec, RopeScaling};
use serde_json::{Value, json};

use super::ExportOptions;
use super::writer::Metadata;
use crate::ConvertError;

/// Written where a model does not declare its context, which llama.cpp insists on.
const DEFAULT_CONTEXT: usize = 32768;

/// All keys.
///
/// # Errors
/// Settings that llama.cpp computes in another way, a tokenizer that a GGUF has no words for.
pub(super) fn of(
    file: &BaseFile,
    spec: &ModelSpec,
    config: &Config,
    options: &ExportOptions,
    notes: &mut Vec<String>,
) -> Result<Metadata, ConvertError> {
    let name = spec.arch.gguf_architecture();
    refuse_other_arithmetic(file, spec, config)?;
    let mut all: Metadata = vec![
        ("general.architecture".to_owned(), name.into()),
        ("general.type".to_owned(), "model".into()),
        ("general.name".to_owned(), file.header().source.filename.trim_end_matches(".gguf").into()),
        ("general.quantization_version".to_owned(), 2.into()),
    ];
    let mut put = |key: &str, value: Value| all.push((format!("{name}.{key}"), value));
    let blocks = config.num_hidden_layers + config.mtp_num_hidden_layers;
    put("block_count", blocks.into());
    if config.mtp_num_hidden_layers > 0 {
        put("nextn_predict_layers", config.mtp_num_hidden_layers.into());
    }
    if config.max_position_embeddings.is_none() {
        notes.push(format!("the model declares no context length; {DEFAULT_CONTEXT} is written"));
    }
    put("context_length", config.max_position_embeddings.unwrap_or(DEFAULT_CONTEXT).into());
    put("embedding_length", config.hidden_size.into());
    put("vocab_size", config.vocab_size.into());
    put("attention.head_count", config.num_attention_heads.into());
    put("attention.head_count_kv", config.num_key_value_heads.into());
    put("attention.key_length", config.head_dim.into());
    put("attention.value_length", config.head_dim.into());
    put("attention.layer_norm_rms_epsilon", f64::from(config.rms_norm_eps).into());
    put("rope.freq_base", json!(config.rope_theta));
    put("rope.dimension_count", rotary_dims(spec, config).into());
    if let RopeScaling::Linear { factor } = config.rope_scaling {
        put("rope.scaling.type", "linear".into());
        put("rope.scaling.factor", json!(factor));
    }
    // In a hybrid of experts it is the shared expert's width, which has a key of its own.
    if config.intermediate_size > 0 && spec.arch != Arch::Qwen35Moe {
        put("feed_forward_length", config.intermediate_size.into());
    }
    if let Some(moe) = &config.moe {
        put("expert_count", moe.num_experts.into());
        put("expert_used_count", moe.num_experts_per_tok.into());
        put("expert_feed_forward_length", moe.moe_intermediate_size.into());
        if let Some(width) = moe.shared_expert_intermediate_size {
            put("expert_shared_feed_forward_length", width.into());
        }
    }
    if let Some(hybrid) = &config.hybrid {
        put_hybrid(&mut put, hybrid, config);
    }
    all.extend(tokenizer(file, config, options, notes)?);
    Ok(all)
}

/// Settings for which llama.cpp would compute something else.
fn refuse_other_arithmetic(file: &BaseFile, spec: &ModelSpec, config: &Config) -> Result<(), ConvertError> {
    let refuse = |why: &str| {
        let path = file.path().display();
        Err(ConvertError::Option(format!("{path}: llama.cpp cannot run this model: {why}")))
    };
    if let Some(moe) = &config.moe {
        if !moe.norm_topk_prob {
            return refuse("it renormalises expert weights, and this model does not");
        }
        if !moe.mlp_only_layers.is_empty() {
            return refuse("it knows no dense layers between layers of experts");
        }
    }
    let scaled = matches!(config.rope_scaling, RopeScaling::Llama3 { .. })
        || file.tensor("rope_freqs.weight").is_some();
    if scaled && spec.arch != Arch::Llama {
        return refuse("it scales rotary frequencies by factors in llama models only");
    }
    match &config.hybrid {
        Some(hybrid) if hybrid.linear_key_head_dim != hybrid.linear_value_head_dim => {
            refuse("its linear attention has key and value heads of one size")
        }
        _ if config.mtp_num_hidden_layers > 1 => refuse("it knows one draft layer at most"),
        _ => Ok(()),
    }
}

fn rotary_dims(spec: &ModelSpec, config: &Config) -> usize {
    let attention = spec.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Attention(attention) => Some(attention.rope.dims),
        Mixer::GatedDelta(_) => None,
    });
    attention.unwrap_or(config.head_dim)
}

fn put_hybrid(put: &mut impl FnMut(&str, Value), hybrid: &HybridConfig, config: &Config) {
    put("ssm.conv_kernel", hybrid.linear_conv_kernel_dim.into());
    put("ssm.state_size", hybrid.linear_key_head_dim.into());
    put("ssm.group_count", hybrid.linear_num_key_heads.into());
    put("ssm.time_step_rank", hybrid.linear_num_value_heads.into());
    put("ssm.inner_size", (hybrid.linear_num_value_heads * hybrid.linear_value_head_dim).into());
    let linear: Vec<bool> = hybrid.layer_types.iter().map(|kind| *kind == LayerType::Linear).collect();
    // Older versions of llama.cpp know the interval only.
    let first_full = linear.iter().position(|linear| !linear).map(|index| index + 1);
    let regular = |interval: &usize| (1..=linear.len()).all(|n| linear[n - 1] != n.is_multiple_of(*interval));
    if let Some(interval) = hybrid.full_attention_interval.or(first_full).filter(regular) {
        put("full_attention_interval", interval.into());
    }
    let draft = vec![false; config.mtp_num_hidden_layers];
    put("attention.recurrent_layers", [linear, draft].concat().into());
    if let [time, height, width] = config.mrope_section[..] {
        put("rope.dimension_sections", json!([time, height, width, 0]));
    } else {
        // llama.cpp insists on the key; for text all four positions are the same, so any split of the pairs will do.
        put("rope.dimension_sections", json!([config.head_dim, 0, 0, 0]));
    }
}

/// `tokenizer.*`. A model without a tokenizer gets one of bytes, because llama.cpp's programs cannot do without.
fn tokenizer(
    file: &BaseFile,
    config: &Config,
    options: &ExportOptions,
    notes: &mut Vec<String>,
) -> Result<Metadata, ConvertError> {
    let block = &file.header().tokenizer;
    if options.no_tokenizer || block.is_empty() {
        return Ok(stand_in(config.vocab_size, notes));
    }
    let parse = |key: &str| match block.get(key) {
        None => Ok(None),
        Some(raw) => serde_json::from_str::<Value>(raw.get())
            .map(Some)
            .map_err(|cause| ConvertError::Json { path: file.path().to_owned(), cause }),
    };
    if parse("tokenizer_type")? == Some("gguf".into()) {
        let mut keys = Metadata::new();
        for key in block.keys().filter(|key| key.as_str() != "tokenizer_type") {
            keys.extend(parse(key)?.map(|value| (key.clone(), value)));
        }
        return Ok(keys);
    }
    let Some(json) = parse("tokenizer.json")? else {
        return Err(ConvertError::NoTokenizer {
            path: file.path().to_owned(),
            what: "tokenizer.json was looked for in its header",
        });
    };
    if json["normalizer"]["type"] == "NFC" {
        notes.push(
            "a GGUF does not say that text is normalised to NFC: llama.cpp's ids of other text differ"
                .to_owned(),
        );
    }
    let tokenizer_config = parse("tokenizer_config.json")?;
    let keys = basert_text::gguf::metadata(&json, tokenizer_config.as_ref(), config.vocab_size);
    let keys = keys.map_err(|cause| ConvertError::Tokenizer { path: file.path().to_owned(), cause })?;
    let mut keys: Metadata = keys.into_iter().collect();
    let mut or = |key: &str, id: Option<u32>| {
        if let Some(id) = id.filter(|_| keys.iter().all(|(known, _)| known != key)) {
            keys.push((key.to_owned(), id.into()));
        }
    };
    or("tokenizer.ggml.bos_token_id", config.bos_token_id);
    or("tokenizer.ggml.eos_token_id", config.eos_token_ids.first().copied());
    let template = parse("tokenizer.chat_template")?;
    keys.extend(template.map(|template| ("tokenizer.chat_template".to_owned(), template)));
    Ok(keys)
}

/// What stands in for a tokenizer: bytes, or nothing (`no_vocab`) if the model has fewer embeddings than there are bytes.
fn stand_in(vocab: usize, notes: &mut Vec<String>) -> Metadata {
    let note = "there is no tokenizer; give token ids to llama.cpp";
    match basert_text::gguf::bytes_only(vocab) {
        Some(keys) => {
            notes.push(format!("{note}, whose programs see a vocabulary of bytes and padding"));
            keys.into_iter().collect()
        }
        None => {
            notes.push(format!("{note} (`no_vocab`)"));
            vec![("tokenizer.ggml.model".to_owned(), "no_vocab".into())]
        }
    }
}
