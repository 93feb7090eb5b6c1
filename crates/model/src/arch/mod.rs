//! Architecture families. Each file says what a family's configuration means and which layers follow from it.

mod llama;
mod qwen3;
mod qwen35;

use std::fmt;
use std::str::FromStr;

use crate::config::Keys;
use crate::{Config, Ffn, LayerSpec, ModelError, ModelSpec, Moe, Rope, RopePairing};

/// Architecture families, named as in `.base` headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Llama 2 and 3: `llama`.
    Llama,
    /// Qwen3 dense: `qwen`.
    Qwen,
    /// Qwen3 mixture of experts: `qwen3_moe`.
    Qwen3Moe,
    /// Qwen3.5 dense hybrid: `qwen35`.
    Qwen35,
    /// Qwen3.5 mixture-of-experts hybrid: `qwen35moe`.
    Qwen35Moe,
}

impl Arch {
    /// The `arch` string of a `.base` header.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Llama => "llama",
            Arch::Qwen => "qwen",
            Arch::Qwen3Moe => "qwen3_moe",
            Arch::Qwen35 => "qwen35",
            Arch::Qwen35Moe => "qwen35moe",
        }
    }

    /// Feed-forward blocks have routed experts.
    pub fn is_moe(self) -> bool {
        matches!(self, Arch::Qwen3Moe | Arch::Qwen35Moe)
    }

    /// Gated-DeltaNet layers stand between attention layers.
    pub fn is_hybrid(self) -> bool {
        matches!(self, Arch::Qwen35 | Arch::Qwen35Moe)
    }

    /// The family of a Hugging Face `model_type`.
    ///
    /// # Errors
    /// [`ModelError::UnknownArch`], also for relatives whose tensors are laid out differently (Qwen3-Next).
    pub fn from_model_type(name: &str) -> Result<Arch, ModelError> {
        match name {
            "llama" => Ok(Arch::Llama),
            "qwen3" => Ok(Arch::Qwen),
            "qwen3_moe" => Ok(Arch::Qwen3Moe),
            "qwen3_5" | "qwen3_5_text" => Ok(Arch::Qwen35),
            "qwen3_5_moe" | "qwen3_5_moe_text" => Ok(Arch::Qwen35Moe),
            "qwen3_next" => Err(ModelError::Unsupported(
                "Qwen3-Next, whose projections are interleaved per key head unlike Qwen3.5's,".to_owned(),
            )),
            other => Err(ModelError::UnknownArch {
                place: "config.json",
                found: other.to_owned(),
                supported: "llama, qwen3, qwen3_moe, qwen3_5, qwen3_5_moe",
            }),
        }
    }

    /// The family of a GGUF `general.architecture`.
    ///
    /// # Errors
    /// [`ModelError::UnknownArch`].
    pub fn from_gguf_architecture(name: &str) -> Result<Arch, ModelError> {
        match name {
            "llama" => Ok(Arch::Llama),
            "qwen3" => Ok(Arch::Qwen),
            "qwen3moe" => Ok(Arch::Qwen3Moe),
            "qwen35" => Ok(Arch::Qwen35),
            "qwen35moe" => Ok(Arch::Qwen35Moe),
            "qwen3next" => Err(ModelError::Unsupported(
                "Qwen3-Next, whose projections are interleaved per key head unlike Qwen3.5's,".to_owned(),
            )),
            other => Err(ModelError::UnknownArch {
                place: "GGUF metadata",
                found: other.to_owned(),
                supported: "llama, qwen3, qwen3moe, qwen35, qwen35moe",
            }),
        }
    }

    /// The `general.architecture` of a GGUF.
    pub fn gguf_architecture(self) -> &'static str {
        match self {
            Arch::Llama => "llama",
            Arch::Qwen => "qwen3",
            Arch::Qwen3Moe => "qwen3moe",
            Arch::Qwen35 => "qwen35",
            Arch::Qwen35Moe => "qwen35moe",
        }
    }

    /// `(kv_heads, head_dim)` of a Hugging Face configuration.
    pub(crate) fn hf_heads(
        self,
        keys: &Keys,
        hidden: usize,
        heads: usize,
    ) -> Result<(usize, usize), ModelError> {
        match self {
            Arch::Llama => llama::hf_heads(keys, hidden, heads),
            _ => Ok((keys.count("num_key_value_heads")?, keys.count("head_dim")?)),
        }
    }

    /// Family-specific part of reading `config.json`.
    pub(crate) fn read_hf(self, keys: &Keys, config: &mut Config) -> Result<(), ModelError> {
        match self {
            Arch::Llama => llama::read(config),
            Arch::Qwen | Arch::Qwen3Moe => qwen3::read_hf(self, keys, config),
            Arch::Qwen35 | Arch::Qwen35Moe => qwen35::read_hf(self, keys, config),
        }
    }

    /// Family-specific part of reading GGUF metadata.
    pub(crate) fn read_gguf(self, keys: &Keys, config: &mut Config) -> Result<(), ModelError> {
        match self {
            Arch::Llama => llama::read_gguf(keys, config),
            Arch::Qwen | Arch::Qwen3Moe => qwen3::read_gguf(self, keys, config),
            Arch::Qwen35 | Arch::Qwen35Moe => qwen35::read_gguf(self, keys, config),
        }
    }

    /// Family-specific part of reading a `.base` header.
    pub(crate) fn read_header(self, keys: &Keys, config: &mut Config) -> Result<(), ModelError> {
        match self {
            Arch::Llama => llama::read(config),
            Arch::Qwen | Arch::Qwen3Moe => qwen3::read_header(self, keys, config),
            Arch::Qwen35 | Arch::Qwen35Moe => qwen35::read_header(self, keys, config),
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Arch {
    type Err = ModelError;

    /// Reads the `arch` string of a `.base` header, both spellings of the original converter.
    fn from_str(name: &str) -> Result<Arch, ModelError> {
        match name {
            "llama" => Ok(Arch::Llama),
            "qwen" => Ok(Arch::Qwen),
            "qwen3_moe" | "qwen_moe" => Ok(Arch::Qwen3Moe),
            "qwen35" => Ok(Arch::Qwen35),
            "qwen35moe" => Ok(Arch::Qwen35Moe),
            other => Err(ModelError::UnknownArch {
                place: "the .base header",
                found: other.to_owned(),
                supported: "llama, qwen, qwen3_moe, qwen35, qwen35moe",
            }),
        }
    }
}

impl ModelSpec {
    /// The layers that `config` describes.
    ///
    /// # Errors
    /// Sizes that are out of range or contradict each other.
    pub fn new(arch: Arch, config: &Config) -> Result<ModelSpec, ModelError> {
        config.validate(arch)?;
        let layer = match arch {
            Arch::Llama => llama::layer,
            Arch::Qwen | Arch::Qwen3Moe => qwen3::layer,
            Arch::Qwen35 | Arch::Qwen35Moe => qwen35::layer,
        };
        let layers: Vec<LayerSpec> =
            (0..config.num_hidden_layers).map(|index| layer(config, index)).collect::<Result<_, _>>()?;
        // Several draft layers would be a chain for which there is no reference.
        let has_draft = config.mtp_num_hidden_layers == 1;
        let draft = layers.iter().find(|layer| has_draft && layer.mixer.attention().is_some()).copied();
        Ok(ModelSpec {
            arch,
            hidden: config.hidden_size,
            vocab: config.vocab_size,
            norm_eps: config.rms_norm_eps,
            layers,
            draft,
            tied_head: config.tie_word_embeddings,
            max_context: config.max_position_embeddings,
        })
    }
}

/// Rotary embedding of `config` with the family's pairing.
fn rope(config: &Config, pairing: RopePairing) -> Result<Rope, ModelError> {
    Ok(Rope { dims: config.rotary_dims()?, theta: config.rope_theta, pairing, scaling: config.rope_scaling })
}

/// Feed-forward block of layer `index`.
fn ffn(config: &Config, index: usize) -> Ffn {
    match &config.moe {
        Some(moe) if !moe.mlp_only_layers.contains(&index) => Ffn::Moe(Moe {
            experts: moe.num_experts,
            top_k: moe.num_experts_per_tok,
            intermediate: moe.moe_intermediate_size,
            shared_intermediate: moe.shared_expert_intermediate_size,
            renormalise: moe.norm_topk_prob,
        }),
        _ => Ffn::Dense { intermediate: config.intermediate_size },
    }
}

/// Families whose heads are rotated whole refuse anything else, because no reference exists for it.
fn whole_head_rotary(config: &Config) -> Result<(), ModelError> {
    match config.rotary_dims()? {
        dims if dims == config.head_dim => Ok(()),
        dims => Err(ModelError::Unsupported(format!(
            "partial rotary embedding ({dims} of {} elements) in this architecture",
            config.head_dim
        ))),
    }
}
