//! Qwen3 dense and mixture of experts (arXiv 2505.09388): q and k heads are normed before the rotation.

use super::{ffn, rope, whole_head_rotary};
use crate::config::Keys;
use crate::{Arch, Attention, Config, LayerSpec, LayerType, Mixer, ModelError, MoeConfig, RopePairing};

pub(super) fn read_hf(arch: Arch, keys: &Keys, config: &mut Config) -> Result<(), ModelError> {
    whole_head_rotary(config)?;
    config.partial_rotary_factor = None;
    if let Some(kinds) = LayerType::list(keys)?
        && kinds.contains(&LayerType::Linear)
    {
        return Err(ModelError::Unsupported("linear attention in Qwen3".to_owned()));
    }
    if arch == Arch::Qwen3Moe {
        let step = keys.count_opt("decoder_sparse_step")?.unwrap_or(1);
        let named = keys.counts_opt("mlp_only_layers")?.unwrap_or_default();
        let dense = |layer: &usize| named.contains(layer) || step == 0 || !(layer + 1).is_multiple_of(step);
        config.moe = Some(MoeConfig {
            num_experts: keys.count("num_experts")?,
            num_experts_per_tok: keys.count("num_experts_per_tok")?,
            moe_intermediate_size: keys.count("moe_intermediate_size")?,
            norm_topk_prob: keys.flag_opt("norm_topk_prob")?.ok_or_else(|| keys.missing("norm_topk_prob"))?,
            shared_expert_intermediate_size: None,
            mlp_only_layers: (0..config.num_hidden_layers).filter(dense).collect(),
        });
    }
    Ok(())
}

pub(super) fn read_gguf(arch: Arch, keys: &Keys, config: &mut Config) -> Result<(), ModelError> {
    whole_head_rotary(config)?;
    if arch == Arch::Qwen3Moe {
        config.moe = Some(MoeConfig {
            num_experts: keys.count("expert_count")?,
            num_experts_per_tok: keys.count("expert_used_count")?,
            moe_intermediate_size: keys.count("expert_feed_forward_length")?,
            // llama.cpp renormalises in this architecture whatever the source said.
            norm_topk_prob: keys.flag_opt("expert_weights_norm")?.unwrap_or(true),
            shared_expert_intermediate_size: None,
            mlp_only_layers: Vec::new(),
        });
    }
    Ok(())
}

pub(super) fn read_header(arch: Arch, keys: &Keys, config: &mut Config) -> Result<(), ModelError> {
    whole_head_rotary(config)?;
    config.partial_rotary_factor = None;
    if arch == Arch::Qwen3Moe {
        if keys.count_opt("num_shared_experts")?.is_some_and(|shared| shared > 0) {
            return Err(ModelError::Unsupported("a shared expert in Qwen3-MoE".to_owned()));
        }
        config.moe = Some(MoeConfig {
            num_experts: keys.count("num_experts")?,
            num_experts_per_tok: keys.count("num_experts_per_tok")?,
            moe_intermediate_size: keys.count("moe_intermediate_size")?,
            norm_topk_prob: keys.flag_opt("norm_topk_prob")?.ok_or_else(|| keys.missing("norm_topk_prob"))?,
            shared_expert_intermediate_size: None,
            mlp_only_layers: keys.counts_opt("mlp_only_layers")?.unwrap_or_default(),
        });
    }
    Ok(())
}

pub(super) fn layer(config: &Config, index: usize) -> Result<LayerSpec, ModelError> {
    let attention = Attention {
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        rope: rope(config, RopePairing::Half)?,
        qk_norm: true,
        output_gate: false,
        qkv_bias: false,
    };
    Ok(LayerSpec { mixer: Mixer::Attention(attention), ffn: ffn(config, index) })
}
