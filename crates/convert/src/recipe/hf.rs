//! Recipes for Hugging Face checkpoints, and for MLX checkpoints, which are these with a few things done already.
//!
//! | family | what differs from the canonical form |
//! |---|---|
//! | Llama | q and k rows: rotary halves become neighbours |
//! | Qwen3 | nothing but names |
//! | Qwen3.5, Hugging Face | norm gains are stored as `w - 1`, except the gated norm of linear attention |
//! | Qwen3.5, MLX | the convolution is `[C, K, 1]`, the same bytes; norm gains are whole |
//!
//! MLX added the 1 in the checkpoint's own type, which rounds; gains are taken as they are.

use basert_model::{Arch, Mixer, ModelSpec, Role, TensorSpec};

use super::experts::{self, Stack};
use super::{Inventory, Op, Recipe, RowOrder, layer_of};
use crate::{Convention, ConvertError};

/// What wrappers put before the text model's names. The longest match is removed; `lm_head` and `mtp` stand
/// apart.
const PREFIXES: [&str; 4] = ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// Names of vision (and audio) towers, after the prefix.
const TOWERS: [&str; 4] = ["visual.", "vision_tower.", "audio_tower.", "multi_modal_projector."];

/// A tensor name without the wrapper's prefix.
pub(crate) fn normalise(name: &str) -> String {
    let stripped = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    stripped.unwrap_or(name).to_owned()
}

/// Whether a normalised name belongs to a vision or audio tower.
pub(crate) fn is_tower(name: &str) -> bool {
    TOWERS.iter().any(|tower| name.starts_with(tower))
}

/// Whether a normalised name carries nothing: rotary frequencies and a tower's position ids follow from the
/// configuration.
pub(crate) fn is_derived(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq") || is_tower(name) && name.ends_with("position_ids")
}

/// Number of draft layers that the tensors make up; 0 if there are none.
pub(crate) fn draft_layers(inventory: &Inventory<'_>) -> usize {
    let index = |name: &str| name.strip_prefix("mtp.layers.")?.split('.').next()?.parse::<usize>().ok();
    let layers = inventory.names().filter_map(index).max().map_or(0, |last| last.saturating_add(1));
    if layers == 0 && inventory.names().any(|name| name.starts_with("mtp.")) { 1 } else { layers }
}

/// Recipes for `tensors`; optional ones only if the source has them.
///
/// # Errors
/// A tensor that is missing, has another shape than the configuration implies, or an unreadable type.
pub(crate) fn recipes(
    inventory: &mut Inventory<'_>,
    spec: &ModelSpec,
    tensors: &[TensorSpec],
    convention: Convention,
) -> Result<Vec<Recipe>, ConvertError> {
    let mut recipes = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let (prefix, leaf) = split(&tensor.name);
        if let Some(stack) = Stack::of(leaf) {
            recipes.push(experts::hf(inventory, tensor, stack, &format!("{prefix}mlp."))?);
            continue;
        }
        let name = format!("{prefix}{}", rename(leaf));
        if tensor.optional && !inventory.has(&name) {
            continue;
        }
        let index = inventory.take(&name, &source_shape(tensor, convention), &tensor.name)?;
        recipes.push(converted(spec, tensor, Recipe::whole(tensor, index), convention));
    }
    Ok(recipes)
}

/// The shape a tensor has in the source.
fn source_shape(tensor: &TensorSpec, convention: Convention) -> Vec<usize> {
    match (tensor.role, &tensor.shape[..], convention) {
        (Role::Conv, &[channels, one, taps], Convention::Mlx) => vec![channels, taps, one],
        _ => tensor.shape.clone(),
    }
}

/// Applies what the family stores differently.
fn converted(spec: &ModelSpec, tensor: &TensorSpec, mut recipe: Recipe, convention: Convention) -> Recipe {
    match spec.arch {
        Arch::Llama => {
            let head_dim = layer_of(&tensor.name).and_then(|(index, leaf)| {
                let rotated = matches!(leaf, "self_attn.q_proj.weight" | "self_attn.k_proj.weight");
                let Mixer::Attention(attention) = &spec.layers.get(index)?.mixer else { return None };
                rotated.then_some(attention.head_dim)
            });
            match head_dim {
                Some(head_dim) => recipe.ordered(RowOrder::Interleave { head_dim }),
                None => recipe,
            }
        }
        Arch::Qwen | Arch::Qwen3Moe => recipe,
        Arch::Qwen35 | Arch::Qwen35Moe => {
            if convention == Convention::Hf
                && tensor.role == Role::Norm
                && !tensor.name.ends_with(".linear_attn.norm.weight")
            {
                recipe.op = Op::AddOne;
            }
            recipe
        }
    }
}

/// `layers.N.` or `mtp.layers.N.` and the rest; other names are all rest.
fn split(name: &str) -> (&str, &str) {
    let start = if name.starts_with("mtp.layers.") { "mtp.layers.".len() } else { "layers.".len() };
    if !name.starts_with("mtp.layers.") && !name.starts_with("layers.") {
        return ("", name);
    }
    match name[start..].find('.') {
        Some(dot) => name.split_at(start + dot + 1),
        None => ("", name),
    }
}

/// Hugging Face's name of a canonical one, both without the layer's prefix.
fn rename(leaf: &str) -> &str {
    match leaf {
        "final_norm.weight" => "norm.weight",
        "input_norm.weight" => "input_layernorm.weight",
        "post_attn_norm.weight" => "post_attention_layernorm.weight",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrapper_prefix_is_removed_once() {
        let cases = [
            ("model.language_model.layers.0.mlp.gate.weight", "layers.0.mlp.gate.weight"),
            ("language_model.model.embed_tokens.weight", "embed_tokens.weight"),
            ("language_model.lm_head.weight", "lm_head.weight"),
            ("model.norm.weight", "norm.weight"),
            ("lm_head.weight", "lm_head.weight"),
            ("mtp.fc.weight", "mtp.fc.weight"),
            ("model.visual.pos_embed.weight", "visual.pos_embed.weight"),
        ];
        for (name, expected) in cases {
            assert_eq!(normalise(name), expected);
        }
    }

    #[test]
    fn layer_prefixes_are_split_off_for_trunk_and_draft() {
        assert_eq!(split("layers.12.input_norm.weight"), ("layers.12.", "input_norm.weight"));
        assert_eq!(split("mtp.layers.0.mlp.gate.weight"), ("mtp.layers.0.", "mlp.gate.weight"));
        assert_eq!(split("mtp.fc.weight"), ("", "mtp.fc.weight"));
        assert_eq!(split("final_norm.weight"), ("", "final_norm.weight"));
    }
}
