//! Llama 2 and 3 (arXiv 2307.09288, 2407.21783): plain attention and SwiGLU, rotary pairs interleaved in
//! `.base`.

use super::{ffn, rope, whole_head_rotary};
use crate::config::Keys;
use crate::{Attention, Config, LayerSpec, Mixer, ModelError, RopePairing};

/// Llama 1 and 2 configurations may leave both out: the architecture then has one KV head per query head and
/// splits the hidden width evenly. Tensor shapes confirm it at conversion.
pub(super) fn hf_heads(keys: &Keys, hidden: usize, heads: usize) -> Result<(usize, usize), ModelError> {
    let kv_heads = keys.count_opt("num_key_value_heads")?.unwrap_or(heads);
    let head_dim = keys.count_opt("head_dim")?.or_else(|| hidden.checked_div(heads));
    Ok((kv_heads, head_dim.ok_or_else(|| keys.missing("head_dim"))?))
}

pub(super) fn read(config: &mut Config) -> Result<(), ModelError> {
    whole_head_rotary(config)?;
    config.partial_rotary_factor = None;
    Ok(())
}

pub(super) fn read_gguf(keys: &Keys, config: &mut Config) -> Result<(), ModelError> {
    // Mixtral and other expert models share the architecture name.
    if keys.count_opt("expert_count")?.is_some_and(|experts| experts > 0) {
        return Err(ModelError::Unsupported("a llama model with experts (`llama.expert_count`)".to_owned()));
    }
    read(config)
}

pub(super) fn layer(config: &Config, index: usize) -> Result<LayerSpec, ModelError> {
    let attention = Attention {
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        rope: rope(config, RopePairing::Interleaved)?,
        qk_norm: false,
        output_gate: false,
        qkv_bias: false,
    };
    Ok(LayerSpec { mixer: Mixer::Attention(attention), ffn: ffn(config, index) })
}
