//! The hyperparameters of a model in one form, whatever file they came from.
//!
//! Readers: [`Config::from_hf`] (`config.json`), [`Config::from_gguf`] (GGUF metadata) and
//! [`Config::from_header`] (the `config` object of a `.base` header, which [`Config::to_header`] writes).
//! Values stand in the file or the reader fails: class defaults of any library are not consulted.

mod gguf;
mod header;
mod hf;
mod read;

pub(crate) use read::Keys;

use crate::{Arch, ModelError, RopeScaling};

/// Hyperparameters; field names are the keys of the `.base` header.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers, draft layers not included.
    pub num_hidden_layers: usize,
    /// Query heads of an attention layer.
    pub num_attention_heads: usize,
    /// Key/value heads of an attention layer.
    pub num_key_value_heads: usize,
    /// Elements of an attention head.
    pub head_dim: usize,
    /// Width of a dense feed-forward block; for Qwen3.5-MoE the width of the shared expert, 0 if there is
    /// none.
    pub intermediate_size: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// Part of a head that is rotated; `None` = all of it.
    pub partial_rotary_factor: Option<f64>,
    /// Rotary frequencies per position axis (time, height, width); equal positions make them irrelevant for
    /// text.
    pub mrope_section: Vec<u32>,
    /// The axes take turns over the frequencies instead of occupying blocks.
    pub mrope_interleaved: bool,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f32,
    /// The embedding table is the head as well. A checkpoint's `lm_head.weight` decides; this only says what
    /// was declared (a checkpoint that declares nothing counts as tied).
    pub tie_word_embeddings: bool,
    /// Longest context in tokens, if declared.
    pub max_position_embeddings: Option<usize>,
    /// Token that starts a text, if declared.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a generation, the primary one first.
    pub eos_token_ids: Vec<u32>,
    /// Routed experts.
    pub moe: Option<MoeConfig>,
    /// Gated-DeltaNet layers between attention layers.
    pub hybrid: Option<HybridConfig>,
    /// Draft (multi-token prediction) layers stored under `mtp.`; the trunk does not use them.
    pub mtp_num_hidden_layers: usize,
}

/// Routed experts of a mixture-of-experts model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    /// Experts per layer.
    pub num_experts: usize,
    /// Experts per token.
    pub num_experts_per_tok: usize,
    /// Width of one expert.
    pub moe_intermediate_size: usize,
    /// Selected probabilities are divided by their sum.
    pub norm_topk_prob: bool,
    /// Width of the shared expert, if there is one.
    pub shared_expert_intermediate_size: Option<usize>,
    /// Layers with a dense block instead of experts, ascending.
    pub mlp_only_layers: Vec<usize>,
}

/// Which mixer a layer of a hybrid model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerType {
    /// Gated DeltaNet.
    Linear,
    /// Softmax attention.
    Full,
}

/// Gated-DeltaNet part of a hybrid model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HybridConfig {
    /// One entry per layer.
    pub layer_types: Vec<LayerType>,
    /// Every n-th layer is full attention, if the source says so; `layer_types` is what counts.
    pub full_attention_interval: Option<usize>,
    /// Key heads.
    pub linear_num_key_heads: usize,
    /// Value heads.
    pub linear_num_value_heads: usize,
    /// Elements of a key head.
    pub linear_key_head_dim: usize,
    /// Elements of a value head.
    pub linear_value_head_dim: usize,
    /// Taps of the causal convolution.
    pub linear_conv_kernel_dim: usize,
}

impl HybridConfig {
    /// Layer types of a regular hybrid: layer `i` is full attention iff `(i + 1) % interval == 0`.
    pub(crate) fn regular(layers: usize, interval: usize) -> Vec<LayerType> {
        (1..=layers)
            .map(|n| if interval > 0 && n % interval == 0 { LayerType::Full } else { LayerType::Linear })
            .collect()
    }
}

/// Upper bounds that keep every later product inside 64 bits and refuse nonsense early.
const MAX_LAYERS: usize = 4096;
const MAX_WIDTH: usize = 1 << 20;
const MAX_VOCAB: usize = 1 << 24;
const MAX_EXPERTS: usize = 1 << 14;
const MAX_CONTEXT: usize = 1 << 31;

impl Config {
    /// Checks ranges and divisibility; what passes can be turned into shapes without overflow.
    pub(crate) fn validate(&self, arch: Arch) -> Result<(), ModelError> {
        at_most("hidden_size", self.hidden_size, MAX_WIDTH)?;
        at_most("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)?;
        at_most("vocab_size", self.vocab_size, MAX_VOCAB)?;
        at_most("head_dim", self.head_dim, 1 << 14)?;
        at_most("num_attention_heads", self.num_attention_heads, 1 << 14)?;
        at_most("num_key_value_heads", self.num_key_value_heads, 1 << 14)?;
        divides(
            "num_key_value_heads",
            self.num_key_value_heads,
            "num_attention_heads",
            self.num_attention_heads,
        )?;
        if let Some(context) = self.max_position_embeddings {
            at_most("max_position_embeddings", context, MAX_CONTEXT)?;
        }
        if self.mtp_num_hidden_layers > MAX_LAYERS {
            return Err(ModelError::Inconsistent("mtp_num_hidden_layers is out of range".to_owned()));
        }
        if !(self.rms_norm_eps.is_finite() && self.rms_norm_eps >= 0.0) {
            return Err(ModelError::Inconsistent(format!("rms_norm_eps is {}", self.rms_norm_eps)));
        }
        if !(self.rope_theta.is_finite() && self.rope_theta > 0.0) {
            return Err(ModelError::Inconsistent(format!("rope_theta is {}", self.rope_theta)));
        }
        self.rotary_dims()?;
        if let Some(moe) = &self.moe {
            moe.validate(self.num_hidden_layers)?;
        }
        if let Some(hybrid) = &self.hybrid {
            hybrid.validate(self.num_hidden_layers)?;
        }
        let dense = self.moe.as_ref().is_none_or(|moe| !moe.mlp_only_layers.is_empty());
        if dense {
            at_most("intermediate_size", self.intermediate_size, MAX_WIDTH)?;
        }
        match (arch.is_moe() == self.moe.is_some(), arch.is_hybrid() == self.hybrid.is_some()) {
            (true, true) => Ok(()),
            (false, _) => {
                Err(ModelError::Inconsistent(format!("expert settings do not fit architecture {arch}")))
            }
            (_, false) => {
                Err(ModelError::Inconsistent(format!("layer settings do not fit architecture {arch}")))
            }
        }
    }

    /// Rotated elements of a head; 0 and 1 as factor both mean all of it.
    pub(crate) fn rotary_dims(&self) -> Result<usize, ModelError> {
        let dims = match self.partial_rotary_factor {
            None => self.head_dim,
            Some(factor) if factor == 0.0 || factor == 1.0 => self.head_dim,
            Some(factor) if factor > 0.0 && factor < 1.0 => (self.head_dim as f64 * factor) as usize,
            Some(factor) => {
                return Err(ModelError::Inconsistent(format!(
                    "partial_rotary_factor is {factor}, expected 0 to 1"
                )));
            }
        };
        if dims == 0 || !dims.is_multiple_of(2) {
            return Err(ModelError::Inconsistent(format!(
                "{dims} of {} head elements would be rotated, expected an even number above 0",
                self.head_dim
            )));
        }
        Ok(dims)
    }
}

impl MoeConfig {
    fn validate(&self, layers: usize) -> Result<(), ModelError> {
        at_most("num_experts", self.num_experts, MAX_EXPERTS)?;
        at_most("num_experts_per_tok", self.num_experts_per_tok, self.num_experts)?;
        at_most("moe_intermediate_size", self.moe_intermediate_size, MAX_WIDTH)?;
        if let Some(width) = self.shared_expert_intermediate_size {
            at_most("shared_expert_intermediate_size", width, MAX_WIDTH)?;
        }
        match self.mlp_only_layers.iter().find(|&&layer| layer >= layers) {
            Some(layer) => {
                Err(ModelError::Inconsistent(format!("mlp_only_layers names layer {layer} of {layers}")))
            }
            None => Ok(()),
        }
    }
}

impl HybridConfig {
    fn validate(&self, layers: usize) -> Result<(), ModelError> {
        if self.layer_types.len() != layers {
            return Err(ModelError::Inconsistent(format!(
                "layer_types has {} entries for {layers} layers",
                self.layer_types.len()
            )));
        }
        at_most("linear_num_key_heads", self.linear_num_key_heads, 1 << 12)?;
        at_most("linear_num_value_heads", self.linear_num_value_heads, 1 << 12)?;
        at_most("linear_key_head_dim", self.linear_key_head_dim, 1 << 12)?;
        at_most("linear_value_head_dim", self.linear_value_head_dim, 1 << 12)?;
        at_most("linear_conv_kernel_dim", self.linear_conv_kernel_dim, 1 << 8)?;
        divides(
            "linear_num_key_heads",
            self.linear_num_key_heads,
            "linear_num_value_heads",
            self.linear_num_value_heads,
        )
    }
}

fn at_most(key: &str, value: usize, limit: usize) -> Result<(), ModelError> {
    if value == 0 || value > limit {
        return Err(ModelError::Inconsistent(format!("{key} is {value}, expected 1 to {limit}")));
    }
    Ok(())
}

fn divides(small_key: &str, small: usize, large_key: &str, large: usize) -> Result<(), ModelError> {
    if small == 0 || !large.is_multiple_of(small) {
        return Err(ModelError::Inconsistent(format!(
            "{large_key} is {large}, which is not a multiple of {small_key} {small}"
        )));
    }
    Ok(())
}

/// Removes repeated ids, the first of each stays in place.
fn dedup(ids: &mut Vec<u32>) {
    let mut seen = std::collections::HashSet::new();
    ids.retain(|&id| seen.insert(id));
}
