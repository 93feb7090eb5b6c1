//! Expert stacks. Whatever a source calls and how it lays out its experts, the output is `ffn_gate_exps`,
//! `ffn_up_exps` and `ffn_down_exps`, each `[experts, out, in]`.

use basert_model::TensorSpec;

use super::{Inventory, Recipe};
use crate::ConvertError;

/// One of the three stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    Gate,
    Up,
    Down,
}

impl Stack {
    /// The stack that a canonical name's last part means, e.g. `ffn_gate_exps.weight`.
    pub fn of(leaf: &str) -> Option<Stack> {
        match leaf {
            "ffn_gate_exps.weight" => Some(Stack::Gate),
            "ffn_up_exps.weight" => Some(Stack::Up),
            "ffn_down_exps.weight" => Some(Stack::Down),
            _ => None,
        }
    }

    fn projection(self) -> &'static str {
        match self {
            Stack::Gate => "gate_proj",
            Stack::Up => "up_proj",
            Stack::Down => "down_proj",
        }
    }
}

/// The recipe for `stack` under the Hugging Face prefix `prefix`, e.g. `layers.0.mlp.`.
///
/// Layouts, in the order they are looked for: a stack per projection (`switch_mlp.gate_proj`, MLX),
/// gate and up fused (`experts.gate_up_proj`) with `experts.down_proj`, one tensor per expert
/// (`experts.0.gate_proj`). Stacks are spelled with and without `.weight`.
pub(super) fn hf(
    inventory: &mut Inventory<'_>,
    spec: &TensorSpec,
    stack: Stack,
    prefix: &str,
) -> Result<Recipe, ConvertError> {
    let projection = stack.projection();
    let whole = [
        spelled(inventory, &format!("{prefix}switch_mlp.{projection}")),
        spelled(inventory, &format!("{prefix}experts.{projection}")),
    ];
    if let Some(name) = whole.into_iter().flatten().next() {
        let tensor = inventory.take(&name, &spec.shape, &spec.name)?;
        return Ok(Recipe::whole(spec, tensor));
    }
    let fused = spelled(inventory, &format!("{prefix}experts.gate_up_proj"));
    if let (Some(name), Stack::Gate | Stack::Up) = (fused, stack) {
        return fused_half(inventory, spec, stack, &name);
    }
    let [experts, rows, width] = dimensions(spec);
    let mut ranges = Vec::with_capacity(experts);
    for expert in 0..experts {
        let name = format!("{prefix}experts.{expert}.{projection}");
        let name = spelled(inventory, &name).unwrap_or(format!("{name}.weight"));
        ranges.push((inventory.take(&name, &[rows, width], &spec.name)?, 0, rows));
    }
    Ok(Recipe::stacked(spec, ranges))
}

/// The recipe for `stack` in GGUF block `prefix`, e.g. `blk.0.`: a stack per projection, or gate and up
/// fused.
pub(super) fn gguf(
    inventory: &mut Inventory<'_>,
    spec: &TensorSpec,
    stack: Stack,
    prefix: &str,
) -> Result<Recipe, ConvertError> {
    let fused = format!("{prefix}ffn_gate_up_exps.weight");
    if stack != Stack::Down && inventory.has(&fused) {
        return fused_half(inventory, spec, stack, &fused);
    }
    let name = match stack {
        Stack::Gate => "ffn_gate_exps.weight",
        Stack::Up => "ffn_up_exps.weight",
        Stack::Down => "ffn_down_exps.weight",
    };
    let tensor = inventory.take(&format!("{prefix}{name}"), &spec.shape, &spec.name)?;
    Ok(Recipe::whole(spec, tensor))
}

/// Gate or up out of `[experts, 2·out, in]`: of every expert, gate is the first half of the rows.
fn fused_half(
    inventory: &mut Inventory<'_>,
    spec: &TensorSpec,
    stack: Stack,
    name: &str,
) -> Result<Recipe, ConvertError> {
    let [experts, rows, width] = dimensions(spec);
    let tensor = inventory.take(name, &[experts, 2 * rows, width], &spec.name)?;
    let skip = if stack == Stack::Up { rows } else { 0 };
    Ok(Recipe::stacked(spec, (0..experts).map(|expert| (tensor, expert * 2 * rows + skip, rows))))
}

/// `name` or `name.weight`, whichever exists.
fn spelled(inventory: &Inventory<'_>, name: &str) -> Option<String> {
    let suffixed = format!("{name}.weight");
    if inventory.has(&suffixed) { Some(suffixed) } else { inventory.has(name).then(|| name.to_owned()) }
}

fn dimensions(spec: &TensorSpec) -> [usize; 3] {
    match spec.shape[..] {
        [experts, rows, width] => [experts, rows, width],
        // Expert stacks have three dimensions by construction; a stack of none makes an empty recipe.
        _ => [0, 0, 0],
    }
}
