//! Recipes for GGUF files, as llama.cpp's converters write them.
//!
//! | family | what differs from the canonical form |
//! |---|---|
//! | Llama | nothing but names: rows are interleaved already; `rope_freqs.weight` carries llama3 scaling |
//! | Qwen3 | nothing but names |
//! | Qwen3.5 | value heads are tiled (rows, channels, columns); `ssm_a` is `-exp(A_log)`; norm gains are whole |
//!
//! Qwen3.5's convolution is `[C, K]` and the shared expert's gate `[H]`; the draft block is one more block
//! after the trunk's, with names of its own for what the trunk lacks.

use basert_model::{GatedDelta, ModelSpec, TensorSpec};

use super::experts::{self, Stack};
use super::{Inventory, Op, Recipe, RowOrder, Untile, delta_of, layer_of};
use crate::ConvertError;

/// Recipes for `tensors`; optional ones only if the source has them. Draft tensors (`mtp.`) are read from the
/// block after the trunk's.
///
/// # Errors
/// A tensor that is missing, has another shape than the metadata implies, or an unreadable type.
pub(crate) fn recipes(
    inventory: &mut Inventory<'_>,
    spec: &ModelSpec,
    tensors: &[TensorSpec],
) -> Result<Vec<Recipe>, ConvertError> {
    let mut recipes = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let place = Place::of(spec, &tensor.name);
        if let Some(stack) = Stack::of(place.leaf) {
            recipes.push(experts::gguf(inventory, tensor, stack, &place.prefix)?);
            continue;
        }
        let name = place.source_name(spec);
        if tensor.optional && !inventory.has(&name) {
            continue;
        }
        let index = inventory.take(&name, &source_shape(tensor, place.leaf), &tensor.name)?;
        let recipe = Recipe::whole(tensor, index);
        recipes.push(match place.delta {
            Some(delta) => untiled(recipe, place.leaf, delta),
            None => recipe,
        });
    }
    Ok(recipes)
}

/// How [`recipes`] would read `tensor` from a GGUF: the name and the row-major shape it has there, and the recipe. Whoever
/// writes a GGUF does the inverse.
pub(crate) fn reading(spec: &ModelSpec, tensor: &TensorSpec) -> (String, Vec<usize>, Recipe) {
    let place = Place::of(spec, &tensor.name);
    let recipe = Recipe::whole(tensor, 0);
    let recipe = match place.delta {
        Some(delta) => untiled(recipe, place.leaf, delta),
        None => recipe,
    };
    (place.source_name(spec), source_shape(tensor, place.leaf), recipe)
}

/// Where a canonical tensor stands in a GGUF.
struct Place<'n, 's> {
    /// `blk.N.` or nothing.
    prefix: String,
    /// Canonical name inside the layer.
    leaf: &'n str,
    /// Gated-DeltaNet geometry of the layer, if it has one.
    delta: Option<&'s GatedDelta>,
}

impl<'n, 's> Place<'n, 's> {
    fn of(spec: &'s ModelSpec, name: &'n str) -> Place<'n, 's> {
        let trunk = spec.layers.len();
        if let Some((index, leaf)) = layer_of(name) {
            return Place { prefix: format!("blk.{index}."), leaf, delta: delta_of(spec, index) };
        }
        if let Some(rest) = name.strip_prefix("mtp.") {
            let (index, leaf) = layer_of(rest).unwrap_or((0, rest));
            return Place { prefix: format!("blk.{}.", trunk + index), leaf, delta: None };
        }
        Place { prefix: String::new(), leaf: name, delta: None }
    }

    fn source_name(&self, spec: &ModelSpec) -> String {
        let Place { prefix, leaf, .. } = self;
        let leaf = match *leaf {
            "post_attn_norm.weight" if spec.arch.is_hybrid() => "post_attention_norm.weight",
            // The draft block's own embedding, head and norms.
            "embed_tokens.weight" if !prefix.is_empty() => "nextn.embed_tokens.weight",
            "lm_head.weight" if !prefix.is_empty() => "nextn.shared_head_head.weight",
            "norm.weight" => "nextn.shared_head_norm.weight",
            "fc.weight" => "nextn.eh_proj.weight",
            "pre_fc_norm_embedding.weight" => "nextn.enorm.weight",
            "pre_fc_norm_hidden.weight" => "nextn.hnorm.weight",
            other => rename(other),
        };
        format!("{prefix}{leaf}")
    }
}

/// llama.cpp's name of a canonical one, both without the layer's prefix.
fn rename(leaf: &str) -> &str {
    match leaf {
        "embed_tokens.weight" => "token_embd.weight",
        "final_norm.weight" => "output_norm.weight",
        "lm_head.weight" => "output.weight",
        "input_norm.weight" => "attn_norm.weight",
        "post_attn_norm.weight" => "ffn_norm.weight",
        "self_attn.q_proj.weight" => "attn_q.weight",
        "self_attn.k_proj.weight" => "attn_k.weight",
        "self_attn.v_proj.weight" => "attn_v.weight",
        "self_attn.o_proj.weight" => "attn_output.weight",
        "self_attn.q_norm.weight" => "attn_q_norm.weight",
        "self_attn.k_norm.weight" => "attn_k_norm.weight",
        "linear_attn.in_proj_qkv.weight" => "attn_qkv.weight",
        "linear_attn.in_proj_z.weight" => "attn_gate.weight",
        "linear_attn.in_proj_a.weight" => "ssm_alpha.weight",
        "linear_attn.in_proj_b.weight" => "ssm_beta.weight",
        "linear_attn.conv1d.weight" => "ssm_conv1d.weight",
        "linear_attn.A_log" => "ssm_a",
        "linear_attn.dt_bias" => "ssm_dt.bias",
        "linear_attn.norm.weight" => "ssm_norm.weight",
        "linear_attn.out_proj.weight" => "ssm_out.weight",
        "mlp.gate_proj.weight" => "ffn_gate.weight",
        "mlp.up_proj.weight" => "ffn_up.weight",
        "mlp.down_proj.weight" => "ffn_down.weight",
        "mlp.gate.weight" => "ffn_gate_inp.weight",
        "mlp.shared_expert.gate_proj.weight" => "ffn_gate_shexp.weight",
        "mlp.shared_expert.up_proj.weight" => "ffn_up_shexp.weight",
        "mlp.shared_expert.down_proj.weight" => "ffn_down_shexp.weight",
        "mlp.shared_expert_gate.weight" => "ffn_gate_inp_shexp.weight",
        other => other,
    }
}

/// The shape a tensor has in a GGUF, row-major.
fn source_shape(tensor: &TensorSpec, leaf: &str) -> Vec<usize> {
    match (leaf, &tensor.shape[..]) {
        ("linear_attn.conv1d.weight", &[channels, _, taps]) => vec![channels, taps],
        ("mlp.shared_expert_gate.weight", &[_, hidden]) => vec![hidden],
        _ => tensor.shape.clone(),
    }
}

/// Brings value heads into canonical order, and the decay rate into logarithmic form.
fn untiled(mut recipe: Recipe, leaf: &str, delta: &GatedDelta) -> Recipe {
    let rows = |from, unit| Untile::of(delta, unit).map(|heads| RowOrder::Untile { from, heads });
    let queries_and_keys = 2 * delta.key_heads * delta.key_dim;
    let order = match leaf {
        "linear_attn.in_proj_qkv.weight" | "linear_attn.conv1d.weight" => {
            rows(queries_and_keys, delta.value_dim)
        }
        "linear_attn.in_proj_z.weight" => rows(0, delta.value_dim),
        "linear_attn.in_proj_a.weight" | "linear_attn.in_proj_b.weight" => rows(0, 1),
        "linear_attn.A_log" | "linear_attn.dt_bias" => {
            recipe = recipe.by_element();
            rows(0, 1)
        }
        "linear_attn.out_proj.weight" => {
            recipe.columns = Untile::of(delta, delta.value_dim);
            None
        }
        _ => None,
    };
    if leaf == "linear_attn.A_log" {
        recipe.op = Op::LogOfNegative;
    }
    match order {
        Some(order) => recipe.ordered(order),
        None => recipe,
    }
}
