//! `config` of a `.base` header: the keys of the original format plus three of ours, which its readers
//! ignore: `shared_expert_intermediate_size`, `mlp_only_layers` and `mtp_num_hidden_layers`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::read::Settings;
use super::{Config, Keys};
use crate::{Arch, LayerType, ModelError, RopeScaling};

const PLACE: &str = "the .base header's config";

impl Config {
    /// Reads the `config` object of a `.base` header.
    ///
    /// `tie_word_embeddings` is reported as written; files of the original converter may say `false` for a
    /// tied model, so readers decide by the presence of `lm_head.weight`.
    ///
    /// # Errors
    /// A missing key that determines the result, a wrong type, or an unsupported feature.
    pub fn from_header(arch: Arch, map: &BTreeMap<String, Value>) -> Result<Config, ModelError> {
        let keys = Keys::new(PLACE, vec![Settings::Tree(map)]);
        if keys.count_opt("sliding_window")?.is_some_and(|window| window > 0) {
            return Err(ModelError::Unsupported("sliding-window attention (`sliding_window`)".to_owned()));
        }
        let num_attention_heads = keys.count("num_attention_heads")?;
        let mut eos_token_ids = keys.ids("eos_token_id")?;
        eos_token_ids.extend(keys.ids("eos_token_ids")?);
        let mut config = Config {
            hidden_size: keys.count("hidden_size")?,
            num_hidden_layers: keys.count("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: keys.count("num_key_value_heads")?,
            head_dim: keys.count("head_dim")?,
            intermediate_size: keys.count_opt("intermediate_size")?.unwrap_or(0),
            vocab_size: keys.count("vocab_size")?,
            rope_theta: keys.number("rope_theta")?,
            rope_scaling: rope_scaling(&keys)?,
            partial_rotary_factor: keys.number_opt("partial_rotary_factor")?,
            mrope_section: keys.ids("mrope_section")?,
            mrope_interleaved: keys.flag_opt("mrope_interleaved")?.unwrap_or(false),
            rms_norm_eps: keys.number("rms_norm_eps")? as f32,
            tie_word_embeddings: keys.flag_opt("tie_word_embeddings")?.unwrap_or(false),
            max_position_embeddings: keys.count_opt("max_position_embeddings")?,
            bos_token_id: keys.id_opt("bos_token_id")?,
            eos_token_ids,
            moe: None,
            hybrid: None,
            mtp_num_hidden_layers: keys.count_opt("mtp_num_hidden_layers")?.unwrap_or(0),
        };
        super::dedup(&mut config.eos_token_ids);
        arch.read_header(&keys, &mut config)?;
        config.validate(arch)?;
        Ok(config)
    }

    /// The `config` object of a `.base` header. Numbers that the engine holds as f32 are widened, as in files
    /// of the original converter; keys that carry nothing are left out.
    pub fn to_header(&self) -> BTreeMap<String, Value> {
        let mut map = BTreeMap::new();
        let mut put = |key: &str, value: Value| {
            map.insert(key.to_owned(), value);
        };
        put("hidden_size", json!(self.hidden_size));
        put("num_hidden_layers", json!(self.num_hidden_layers));
        put("num_attention_heads", json!(self.num_attention_heads));
        put("num_key_value_heads", json!(self.num_key_value_heads));
        put("head_dim", json!(self.head_dim));
        put("intermediate_size", json!(self.intermediate_size));
        put("vocab_size", json!(self.vocab_size));
        put("rope_theta", json!(self.rope_theta));
        put("rms_norm_eps", json!(f64::from(self.rms_norm_eps)));
        put("tie_word_embeddings", json!(self.tie_word_embeddings));
        if let Some(factor) = self.partial_rotary_factor {
            put("partial_rotary_factor", json!(factor));
        }
        if !self.mrope_section.is_empty() {
            put("mrope_section", json!(self.mrope_section));
            put("mrope_interleaved", json!(self.mrope_interleaved));
        }
        if let Some(context) = self.max_position_embeddings {
            put("max_position_embeddings", json!(context));
        }
        if let Some(id) = self.bos_token_id {
            put("bos_token_id", json!(id));
        }
        if let Some((primary, more)) = self.eos_token_ids.split_first() {
            put("eos_token_id", json!(primary));
            if !more.is_empty() {
                put("eos_token_ids", json!(more));
            }
        }
        if self.mtp_num_hidden_layers > 0 {
            put("mtp_num_hidden_layers", json!(self.mtp_num_hidden_layers));
        }
        self.put_rope_scaling(&mut map);
        self.put_moe(&mut map);
        self.put_hybrid(&mut map);
        map
    }

    fn put_rope_scaling(&self, map: &mut BTreeMap<String, Value>) {
        let mut put = |key: &str, value: Value| {
            map.insert(key.to_owned(), value);
        };
        match self.rope_scaling {
            RopeScaling::None => put("rope_scaling_factor", json!(1.0)),
            RopeScaling::Linear { factor } => {
                put("rope_scaling_type", json!("linear"));
                put("rope_scaling_factor", json!(factor));
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                put("rope_scaling_type", json!("llama3"));
                put("rope_scaling_factor", json!(factor));
                put("rope_scaling_low_freq_factor", json!(low_freq_factor));
                put("rope_scaling_high_freq_factor", json!(high_freq_factor));
                put("rope_scaling_original_max_position_embeddings", json!(original_context as u64));
            }
        }
    }

    fn put_moe(&self, map: &mut BTreeMap<String, Value>) {
        let Some(moe) = &self.moe else { return };
        let mut put = |key: &str, value: Value| {
            map.insert(key.to_owned(), value);
        };
        put("num_experts", json!(moe.num_experts));
        put("num_experts_per_tok", json!(moe.num_experts_per_tok));
        put("moe_intermediate_size", json!(moe.moe_intermediate_size));
        put("norm_topk_prob", json!(moe.norm_topk_prob));
        if let Some(width) = moe.shared_expert_intermediate_size {
            put("num_shared_experts", json!(1));
            put("shared_expert_intermediate_size", json!(width));
        }
        if !moe.mlp_only_layers.is_empty() {
            put("mlp_only_layers", json!(moe.mlp_only_layers));
        }
    }

    fn put_hybrid(&self, map: &mut BTreeMap<String, Value>) {
        let Some(hybrid) = &self.hybrid else { return };
        let mut put = |key: &str, value: Value| {
            map.insert(key.to_owned(), value);
        };
        let kinds: Vec<&str> = hybrid.layer_types.iter().map(|kind| kind.name()).collect();
        put("layer_types", json!(kinds));
        if let Some(interval) = hybrid.full_attention_interval {
            put("full_attention_interval", json!(interval));
        }
        put("linear_num_key_heads", json!(hybrid.linear_num_key_heads));
        put("linear_num_value_heads", json!(hybrid.linear_num_value_heads));
        put("linear_key_head_dim", json!(hybrid.linear_key_head_dim));
        put("linear_value_head_dim", json!(hybrid.linear_value_head_dim));
        put("linear_conv_kernel_dim", json!(hybrid.linear_conv_kernel_dim));
        put("attn_output_gate", json!(true));
    }
}

impl LayerType {
    /// The spelling of Hugging Face configurations and `.base` headers.
    pub fn name(self) -> &'static str {
        match self {
            LayerType::Linear => "linear_attention",
            LayerType::Full => "full_attention",
        }
    }

    /// Reads a `layer_types` list.
    pub(crate) fn list(keys: &Keys) -> Result<Option<Vec<LayerType>>, ModelError> {
        let Some(names) = keys.texts_opt("layer_types")? else { return Ok(None) };
        let parse = |name: &&str| match *name {
            "linear_attention" => Ok(LayerType::Linear),
            "full_attention" => Ok(LayerType::Full),
            other => Err(ModelError::Unsupported(format!("layer type `{other}`"))),
        };
        names.iter().map(parse).collect::<Result<_, _>>().map(Some)
    }
}

fn rope_scaling(keys: &Keys) -> Result<RopeScaling, ModelError> {
    let factor = keys.number_opt("rope_scaling_factor")?.unwrap_or(1.0);
    match keys.text_opt("rope_scaling_type")? {
        None if factor == 1.0 || factor == 0.0 => Ok(RopeScaling::None),
        // A factor alone could mean linear or llama3 scaling; both give fluent but different text.
        None => Err(keys.missing("rope_scaling_type")),
        Some("none" | "default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor,
            low_freq_factor: keys.number("rope_scaling_low_freq_factor")?,
            high_freq_factor: keys.number("rope_scaling_high_freq_factor")?,
            original_context: keys.number("rope_scaling_original_max_position_embeddings")?,
        }),
        Some(other) => Err(ModelError::Unsupported(format!("rope scaling `{other}`"))),
    }
}
