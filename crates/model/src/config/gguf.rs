//! GGUF metadata, as written by llama.cpp's converters.
//!
//! `block_count` includes draft blocks; `rope.dimension_count` is the rotated width of a head;
//! end-of-generation tokens are partly recognised by their text, as llama.cpp does.

use serde_json::{Map, Value};

use super::read::Settings;
use super::{Config, Keys, dedup};
use crate::{Arch, ModelError, RopeScaling};

const PLACE: &str = "GGUF metadata";

/// Texts that llama.cpp treats as the end of a generation whatever the metadata ids say.
const END_TEXTS: [&str; 15] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<|return|>",
    "<|call|>",
    "<EOT>",
    "[EOS]",
];

impl Config {
    /// Reads GGUF metadata.
    ///
    /// The embedding tensor is authoritative for `vocab_size` and the presence of `output.weight` for
    /// `tie_word_embeddings`; the caller, who sees the tensors, corrects both.
    ///
    /// # Errors
    /// An unknown architecture, a missing key that determines the result, a wrong type, or an unsupported
    /// feature.
    pub fn from_gguf(metadata: &Map<String, Value>) -> Result<(Arch, Config), ModelError> {
        let general = Keys::new(PLACE, vec![Settings::Json(metadata)]);
        let name = general
            .text_opt("general.architecture")?
            .ok_or_else(|| general.missing("general.architecture"))?;
        let arch = Arch::from_gguf_architecture(name)?;
        let keys = Keys::new(PLACE, vec![Settings::Json(metadata)]).prefixed(format!("{name}."));
        refuse_unsupported(&keys)?;

        let draft = keys.count_opt("nextn_predict_layers")?.unwrap_or(0);
        let blocks = keys.count("block_count")?;
        let Some(num_hidden_layers) = blocks.checked_sub(draft).filter(|&layers| layers > 0) else {
            return Err(ModelError::Inconsistent(format!(
                "{PLACE}: {draft} of {blocks} blocks would be draft layers (`{name}.nextn_predict_layers`)"
            )));
        };
        let hidden_size = keys.count("embedding_length")?;
        let num_attention_heads = uniform(&keys, "attention.head_count")?;
        let num_attention_heads = num_attention_heads.ok_or_else(|| keys.missing("attention.head_count"))?;
        let head_dim = head_dim(&keys, hidden_size, num_attention_heads)?;
        let rotated = keys.count_opt("rope.dimension_count")?.unwrap_or(head_dim);
        let mut config = Config {
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: uniform(&keys, "attention.head_count_kv")?.unwrap_or(num_attention_heads),
            head_dim,
            intermediate_size: uniform(&keys, "feed_forward_length")?.unwrap_or(0),
            vocab_size: vocab_size(&keys, &general)?,
            rope_theta: theta(&keys, arch)?,
            rope_scaling: rope_scaling(&keys)?,
            partial_rotary_factor: (rotated != head_dim).then_some(rotated as f64 / head_dim as f64),
            mrope_section: Vec::new(),
            mrope_interleaved: false,
            rms_norm_eps: keys.number("attention.layer_norm_rms_epsilon")? as f32,
            tie_word_embeddings: false,
            max_position_embeddings: keys.count_opt("context_length")?,
            bos_token_id: general.id_opt("tokenizer.ggml.bos_token_id")?,
            eos_token_ids: end_ids(&general)?,
            moe: None,
            hybrid: None,
            mtp_num_hidden_layers: draft,
        };
        arch.read_gguf(&keys, &mut config)?;
        config.validate(arch)?;
        Ok((arch, config))
    }
}

/// A number that may be given per layer; recurrent layers then hold 0.
pub(crate) fn uniform(keys: &Keys, key: &str) -> Result<Option<usize>, ModelError> {
    if !matches!(keys.get(key), Some(Value::Array(_))) {
        return keys.count_opt(key);
    }
    let values = keys.counts_opt(key)?.unwrap_or_default();
    let mut used = values.into_iter().filter(|&value| value > 0);
    let first = used.next();
    if used.any(|value| Some(value) != first) {
        return Err(ModelError::Unsupported(format!("`{key}` that differs between layers")));
    }
    Ok(first)
}

fn head_dim(keys: &Keys, hidden: usize, heads: usize) -> Result<usize, ModelError> {
    let key = keys.count_opt("attention.key_length")?;
    let value = keys.count_opt("attention.value_length")?;
    if let (Some(key), Some(value)) = (key, value)
        && key != value
    {
        return Err(ModelError::Unsupported(format!("key_length {key} with value_length {value}")));
    }
    key.or(value).or_else(|| hidden.checked_div(heads)).ok_or_else(|| keys.missing("attention.key_length"))
}

fn vocab_size(keys: &Keys, general: &Keys) -> Result<usize, ModelError> {
    let tokens = || general.get("tokenizer.ggml.tokens").and_then(Value::as_array).map(Vec::len);
    keys.count_opt("vocab_size")?.or_else(tokens).ok_or_else(|| keys.missing("vocab_size"))
}

fn theta(keys: &Keys, arch: Arch) -> Result<f64, ModelError> {
    match keys.number_opt("rope.freq_base")? {
        Some(theta) => Ok(theta),
        // Converters leave the key out for Llama 1 and 2, whose configurations had none.
        None if arch == Arch::Llama => Ok(10_000.0),
        None => Err(keys.missing("rope.freq_base")),
    }
}

fn rope_scaling(keys: &Keys) -> Result<RopeScaling, ModelError> {
    match keys.text_opt("rope.scaling.type")? {
        None | Some("none") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: keys.number("rope.scaling.factor")? }),
        Some(other) => Err(ModelError::Unsupported(format!("rope scaling `{other}`"))),
    }
}

/// Settings of any family that would change the result.
fn refuse_unsupported(keys: &Keys) -> Result<(), ModelError> {
    if keys.count_opt("attention.sliding_window")?.is_some_and(|window| window > 0) {
        return Err(ModelError::Unsupported(
            "sliding-window attention (`attention.sliding_window`)".to_owned(),
        ));
    }
    for key in ["rope.scale_linear", "rope.scaling.attn_factor", "expert_weights_scale"] {
        if keys.number_opt(key)?.is_some_and(|scale| scale != 1.0 && scale != 0.0) {
            return Err(ModelError::Unsupported(format!("`{key}` other than 1")));
        }
    }
    // 1 = softmax over all experts, the only gating of the supported families.
    if keys.count_opt("expert_gating_func")?.is_some_and(|function| function > 1) {
        return Err(ModelError::Unsupported("an expert gating function other than softmax".to_owned()));
    }
    Ok(())
}

/// End-of-generation ids: the declared ones, then the tokens with a known text.
fn end_ids(general: &Keys) -> Result<Vec<u32>, ModelError> {
    let mut ids = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ids.extend(general.id_opt(&format!("tokenizer.ggml.{key}"))?);
    }
    let tokens = general.get("tokenizer.ggml.tokens").and_then(Value::as_array);
    for (id, token) in (0u32..).zip(tokens.into_iter().flatten()) {
        if token.as_str().is_some_and(|text| END_TEXTS.contains(&text)) {
            ids.push(id);
        }
    }
    dedup(&mut ids);
    Ok(ids)
}
