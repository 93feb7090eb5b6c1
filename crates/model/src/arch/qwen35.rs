//! Qwen3.5 dense and mixture of experts: Gated DeltaNet (arXiv 2412.06464) with gated attention every few
//! layers.
//!
//! Attention rotates the first part of a head only and is always gated. The experts' weights are always
//! renormalised, and every layer has one shared expert.

use super::{ffn, rope};
use crate::config::Keys;
use crate::{
    Arch, Attention, Config, GatedDelta, HybridConfig, LayerSpec, LayerType, Mixer, ModelError, MoeConfig,
    RopePairing,
};

pub(super) fn read_hf(arch: Arch, keys: &Keys, config: &mut Config) -> Result<(), ModelError> {
    if config.partial_rotary_factor.is_none() {
        return Err(keys.missing("partial_rotary_factor"));
    }
    if keys.counts_opt("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty()) {
        return Err(ModelError::Unsupported("`mlp_only_layers` in Qwen3.5".to_owned()));
    }
    config.mtp_num_hidden_layers = keys.count_opt("mtp_num_hidden_layers")?.unwrap_or(0);
    read_common(arch, keys, config)
}

pub(super) fn read_header(arch: Arch, keys: &Keys, config: &mut Config) -> Result<(), ModelError> {
    if config.partial_rotary_factor.is_none() {
        return Err(keys.missing("partial_rotary_factor"));
    }
    read_common(arch, keys, config)
}

/// What `config.json` and the `.base` header spell alike.
fn read_common(arch: Arch, keys: &Keys, config: &mut Config) -> Result<(), ModelError> {
    if keys.flag_opt("attn_output_gate")? == Some(false) {
        return Err(ModelError::Unsupported(
            "Qwen3.5 without attention gate (`attn_output_gate`)".to_owned(),
        ));
    }
    let interval = keys.count_opt("full_attention_interval")?;
    let layer_types = match (LayerType::list(keys)?, interval) {
        (Some(kinds), _) => kinds,
        (None, Some(interval)) => HybridConfig::regular(config.num_hidden_layers, interval),
        (None, None) => return Err(keys.missing("layer_types")),
    };
    config.hybrid = Some(HybridConfig {
        layer_types,
        full_attention_interval: interval,
        linear_num_key_heads: keys.count("linear_num_key_heads")?,
        linear_num_value_heads: keys.count("linear_num_value_heads")?,
        linear_key_head_dim: keys.count("linear_key_head_dim")?,
        linear_value_head_dim: keys.count("linear_value_head_dim")?,
        linear_conv_kernel_dim: keys.count("linear_conv_kernel_dim")?,
    });
    if arch == Arch::Qwen35Moe {
        if keys.flag_opt("norm_topk_prob")? == Some(false) {
            return Err(ModelError::Unsupported("Qwen3.5-MoE with `norm_topk_prob`: false".to_owned()));
        }
        // Headers of the original converter hold the shared expert's width in `intermediate_size`.
        let shared = match keys.count_opt("shared_expert_intermediate_size")? {
            Some(width) => width,
            None if config.intermediate_size > 0 => config.intermediate_size,
            None => return Err(keys.missing("shared_expert_intermediate_size")),
        };
        set_moe(
            config,
            keys.count("num_experts")?,
            keys.count("num_experts_per_tok")?,
            keys.count("moe_intermediate_size")?,
            shared,
        );
    }
    Ok(())
}

pub(super) fn read_gguf(arch: Arch, keys: &Keys, config: &mut Config) -> Result<(), ModelError> {
    // Written out even for whole heads, so that the header says it.
    config.partial_rotary_factor = Some(config.partial_rotary_factor.unwrap_or(1.0));
    config.mrope_section =
        keys.ids("rope.dimension_sections")?.into_iter().take(3).filter(|&section| section > 0).collect();
    config.mrope_interleaved = !config.mrope_section.is_empty();

    let value_heads = keys.count("ssm.time_step_rank")?;
    let inner = keys.count("ssm.inner_size")?;
    if value_heads == 0 || !inner.is_multiple_of(value_heads) {
        return Err(ModelError::Inconsistent(format!(
            "GGUF metadata: ssm.inner_size is {inner}, which is not a multiple of ssm.time_step_rank {value_heads}"
        )));
    }
    let (layer_types, full_attention_interval) = gguf_layer_types(keys, config.num_hidden_layers)?;
    config.hybrid = Some(HybridConfig {
        layer_types,
        full_attention_interval,
        linear_num_key_heads: keys.count("ssm.group_count")?,
        linear_num_value_heads: value_heads,
        linear_key_head_dim: keys.count("ssm.state_size")?,
        linear_value_head_dim: inner / value_heads,
        linear_conv_kernel_dim: keys.count("ssm.conv_kernel")?,
    });
    if arch == Arch::Qwen35Moe {
        set_moe(
            config,
            keys.count("expert_count")?,
            keys.count("expert_used_count")?,
            keys.count("expert_feed_forward_length")?,
            keys.count("expert_shared_feed_forward_length")?,
        );
    }
    Ok(())
}

/// `(layer_types, full_attention_interval)`; the per-layer list counts draft blocks as well, which are left
/// out.
fn gguf_layer_types(keys: &Keys, layers: usize) -> Result<(Vec<LayerType>, Option<usize>), ModelError> {
    let interval = keys.count_opt("full_attention_interval")?;
    let Some(recurrent) = keys.flags_opt("attention.recurrent_layers")? else {
        // llama.cpp's own default, and the interval of every published Qwen3.5.
        let interval = interval.unwrap_or(4);
        return Ok((HybridConfig::regular(layers, interval), Some(interval)));
    };
    if recurrent.len() < layers {
        return Err(ModelError::Inconsistent(format!(
            "GGUF metadata: attention.recurrent_layers has {} entries for {layers} layers",
            recurrent.len()
        )));
    }
    let kind = |&linear: &bool| if linear { LayerType::Linear } else { LayerType::Full };
    Ok((recurrent.iter().take(layers).map(kind).collect(), interval))
}

fn set_moe(config: &mut Config, experts: usize, active: usize, width: usize, shared: usize) {
    config.intermediate_size = shared;
    config.moe = Some(MoeConfig {
        num_experts: experts,
        num_experts_per_tok: active,
        moe_intermediate_size: width,
        norm_topk_prob: true,
        shared_expert_intermediate_size: Some(shared),
        mlp_only_layers: Vec::new(),
    });
}

pub(super) fn layer(config: &Config, index: usize) -> Result<LayerSpec, ModelError> {
    let hybrid = config.hybrid.as_ref();
    let kind = hybrid.and_then(|hybrid| hybrid.layer_types.get(index).map(|&kind| (hybrid, kind)));
    let Some((hybrid, kind)) = kind else {
        return Err(ModelError::Inconsistent(format!("layer_types has no entry for layer {index}")));
    };
    let mixer = match kind {
        LayerType::Linear => Mixer::GatedDelta(GatedDelta {
            key_heads: hybrid.linear_num_key_heads,
            value_heads: hybrid.linear_num_value_heads,
            key_dim: hybrid.linear_key_head_dim,
            value_dim: hybrid.linear_value_head_dim,
            conv_kernel: hybrid.linear_conv_kernel_dim,
        }),
        LayerType::Full => Mixer::Attention(attention(config)?),
    };
    Ok(LayerSpec { mixer, ffn: ffn(config, index) })
}

/// The attention of full-attention and draft layers.
fn attention(config: &Config) -> Result<Attention, ModelError> {
    Ok(Attention {
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        rope: rope(config, RopePairing::Half)?,
        qk_norm: true,
        output_gate: true,
        qkv_bias: false,
    })
}
