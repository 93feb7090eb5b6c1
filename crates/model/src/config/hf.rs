//! `config.json` of a Hugging Face checkpoint.
//!
//! Multimodal wrappers hold the text settings in `text_config`, some twice nested; the innermost object that
//! has a key wins. Rotary settings stand in `rope_parameters` (transformers 5) or in `rope_theta` and
//! `rope_scaling`.

use serde_json::Value;

use super::read::Settings;
use super::{Config, Keys, dedup};
use crate::{Arch, ModelError, RopeScaling};

const PLACE: &str = "config.json";

/// Wrappers seen in practice nest once or twice.
const MAX_NESTING: usize = 4;

impl Config {
    /// Reads `config.json` and, for further end-of-text ids, `generation_config.json`.
    ///
    /// # Errors
    /// An unknown `model_type`, a missing key that determines the result, a wrong type, or an unsupported
    /// feature.
    pub fn from_hf(config: &Value, generation_config: Option<&Value>) -> Result<(Arch, Config), ModelError> {
        let maps = nested(config)?;
        let keys = Keys::new(PLACE, maps);
        let arch =
            Arch::from_model_type(keys.text_opt("model_type")?.ok_or_else(|| keys.missing("model_type"))?)?;
        refuse_unsupported(&keys)?;

        let hidden_size = keys.count("hidden_size")?;
        let num_attention_heads = keys.count("num_attention_heads")?;
        let (num_key_value_heads, head_dim) = arch.hf_heads(&keys, hidden_size, num_attention_heads)?;
        let rope = RopeKeys::find(&keys)?;
        let mut config = Config {
            hidden_size,
            num_hidden_layers: keys.count("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            intermediate_size: keys.count_opt("intermediate_size")?.unwrap_or(0),
            vocab_size: keys.count("vocab_size")?,
            rope_theta: rope.theta(&keys, arch)?,
            rope_scaling: rope.scaling()?,
            partial_rotary_factor: rope.number("partial_rotary_factor", &keys)?,
            mrope_section: rope.mrope_section()?,
            mrope_interleaved: rope.flag("mrope_interleaved")?.unwrap_or(false),
            rms_norm_eps: keys.number("rms_norm_eps")? as f32,
            tie_word_embeddings: keys.flag_opt("tie_word_embeddings")?.unwrap_or(true),
            max_position_embeddings: keys.count_opt("max_position_embeddings")?,
            bos_token_id: keys.id_opt("bos_token_id")?,
            eos_token_ids: keys.ids("eos_token_id")?,
            moe: None,
            hybrid: None,
            mtp_num_hidden_layers: 0,
        };
        if let Some(Value::Object(map)) = generation_config {
            let more = Keys::new("generation_config.json", vec![Settings::Json(map)]).ids("eos_token_id")?;
            config.eos_token_ids.extend(more);
        }
        dedup(&mut config.eos_token_ids);
        arch.read_hf(&keys, &mut config)?;
        config.validate(arch)?;
        Ok((arch, config))
    }
}

/// The nested `text_config` objects, innermost first.
fn nested(config: &Value) -> Result<Vec<Settings<'_>>, ModelError> {
    let mut maps = Vec::new();
    let mut level = config;
    loop {
        let Value::Object(map) = level else {
            return Err(ModelError::Inconsistent(
                "config.json: the text settings are not an object".to_owned(),
            ));
        };
        maps.insert(0, Settings::Json(map));
        match map.get("text_config") {
            None | Some(Value::Null) => return Ok(maps),
            Some(_) if maps.len() > MAX_NESTING => {
                return Err(ModelError::Inconsistent(
                    "config.json: text_config is nested too deeply".to_owned(),
                ));
            }
            Some(inner) => level = inner,
        }
    }
}

/// Settings of any family that would change the result.
fn refuse_unsupported(keys: &Keys) -> Result<(), ModelError> {
    for key in ["attention_bias", "mlp_bias"] {
        if keys.flag_opt(key)? == Some(true) {
            return Err(ModelError::Unsupported(format!("`{key}`: true")));
        }
    }
    match keys.text_opt("hidden_act")? {
        None | Some("silu" | "swish") => {}
        Some(other) => return Err(ModelError::Unsupported(format!("activation `{other}`"))),
    }
    // Qwen configurations spell a window that `use_sliding_window: false` switches off.
    let window = keys.count_opt("sliding_window")?.is_some();
    if window && keys.flag_opt("use_sliding_window")? != Some(false) {
        return Err(ModelError::Unsupported("sliding-window attention (`sliding_window`)".to_owned()));
    }
    Ok(())
}

/// Rotary settings: the object that holds them, and whether it is the newer spelling.
struct RopeKeys<'a> {
    object: Option<Keys<'a>>,
}

impl<'a> RopeKeys<'a> {
    fn find(keys: &Keys<'a>) -> Result<Self, ModelError> {
        let newer = keys.object("rope_parameters", "rope_parameters.")?;
        let older = keys.object("rope_scaling", "rope_scaling.")?;
        if newer.is_some() && older.is_some() && keys.get("rope_parameters") != keys.get("rope_scaling") {
            return Err(ModelError::Inconsistent(
                "config.json: `rope_parameters` and `rope_scaling` differ; keep one of them".to_owned(),
            ));
        }
        Ok(RopeKeys { object: newer.or(older) })
    }

    fn theta(&self, keys: &Keys, arch: Arch) -> Result<f64, ModelError> {
        if let Some(theta) = self.number("rope_theta", keys)? {
            return Ok(theta);
        }
        // Llama 1 and 2 were published before the key existed; their base is part of the architecture.
        if arch == Arch::Llama { Ok(10_000.0) } else { Err(keys.missing("rope_theta")) }
    }

    /// A number of the rotary object, else of the settings themselves.
    fn number(&self, key: &str, keys: &Keys) -> Result<Option<f64>, ModelError> {
        match self.object.as_ref().map(|object| object.number_opt(key)).transpose()?.flatten() {
            Some(value) => Ok(Some(value)),
            None => keys.number_opt(key),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.object.as_ref().map_or(Ok(None), |object| object.flag_opt(key))
    }

    fn mrope_section(&self) -> Result<Vec<u32>, ModelError> {
        self.object.as_ref().map_or(Ok(Vec::new()), |object| object.ids("mrope_section"))
    }

    fn scaling(&self) -> Result<RopeScaling, ModelError> {
        let Some(object) = &self.object else { return Ok(RopeScaling::None) };
        let kind = match object.text_opt("rope_type")? {
            Some(kind) => kind,
            None => object.text_opt("type")?.unwrap_or("default"),
        };
        match kind {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: object.number("factor")? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: object.number("factor")?,
                low_freq_factor: object.number("low_freq_factor")?,
                high_freq_factor: object.number("high_freq_factor")?,
                original_context: object.number("original_max_position_embeddings")?,
            }),
            other => Err(ModelError::Unsupported(format!("rope scaling `{other}`"))),
        }
    }
}
