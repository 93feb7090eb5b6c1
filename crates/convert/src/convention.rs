//! Which convention a checkpoint's weights follow: Hugging Face's or MLX's.
//!
//! The two differ in values only for Qwen3.5, whose norm gains Hugging Face stores as `w - 1` and MLX as `w`, and a
//! mistake there keeps every shape and ruins the model. So it is read off signals that travel with the change, and
//! they must agree:
//!
//! | signal | Hugging Face | MLX |
//! |---|---|---|
//! | `conv1d.weight` (mlx-lm's own test) | `[C, 1, K]` | `[C, K, 1]` |
//! | names | `model.language_model.`, `mlp.experts.` | `language_model.model.`, `mlp.switch_mlp.` |
//! | `__metadata__.format` | `pt` | `mlx` |
//!
//! Quantisation is no signal: unquantised MLX exports exist. The norms' values decide nothing either, but they must
//! not contradict the result: their mean over all layers is near 0 where 1 is still to be added, near 1 where it was
//! added, and near 2 where it was added twice.

use std::fmt;
use std::str::FromStr;

use crate::ConvertError;
use crate::recipe::{Inventory, Recipe};
use crate::safetensors::Checkpoint;

/// Whose conventions a checkpoint's weights follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// Hugging Face transformers.
    Hf,
    /// mlx-lm and mlx-vlm.
    Mlx,
}

impl Convention {
    /// The spelling in options: `hf` or `mlx`.
    pub fn name(self) -> &'static str {
        match self {
            Convention::Hf => "hf",
            Convention::Mlx => "mlx",
        }
    }
}

impl FromStr for Convention {
    type Err = ConvertError;

    fn from_str(name: &str) -> Result<Convention, ConvertError> {
        [Convention::Hf, Convention::Mlx].into_iter().find(|convention| convention.name() == name).ok_or_else(
            || {
                ConvertError::Option(format!(
                    "convention `{name}` does not exist; conventions are hf and mlx"
                ))
            },
        )
    }
}

impl fmt::Display for Convention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Convention::Hf => "Hugging Face",
            Convention::Mlx => "MLX",
        })
    }
}

/// Something about a checkpoint that one convention implies.
struct Signal {
    says: Convention,
    fact: String,
}

/// The convention of a checkpoint; Hugging Face's if nothing says otherwise.
///
/// `matters` tells whether the conventions differ for the architecture; only then must signals agree.
///
/// # Errors
/// Signals that contradict each other, with one fact for each side.
pub(crate) fn detect(
    checkpoint: &Checkpoint,
    inventory: &Inventory<'_>,
    matters: bool,
) -> Result<Convention, ConvertError> {
    let mut signals = Vec::new();
    for tensor in inventory.tensors() {
        signals.extend(axis(tensor.name, &tensor.shape));
    }
    for shard in &checkpoint.shards {
        let format = shard.metadata().get("format").map(String::as_str);
        let says = match format {
            Some("mlx") => Convention::Mlx,
            Some("pt") => Convention::Hf,
            _ => continue,
        };
        let (file, format) = (shard.path().file_name().unwrap_or_default(), format.unwrap_or_default());
        signals.push(Signal { says, fact: format!("{} has format `{format}`", file.to_string_lossy()) });
    }
    for tensor in inventory.tensors() {
        signals.extend(naming(tensor.name));
    }
    let Some(first) = signals.first() else { return Ok(Convention::Hf) };
    match signals.iter().find(|signal| signal.says != first.says) {
        Some(other) if matters => {
            Err(conflict(inventory, fact(first.says, &first.fact), fact(other.says, &other.fact)))
        }
        Some(_) if signals.iter().any(|signal| signal.says == Convention::Mlx) => Ok(Convention::Mlx),
        _ => Ok(first.says),
    }
}

/// Checks the mean of the stored input norms against `convention`.
///
/// # Errors
/// A mean that belongs to another form of the norms.
pub(crate) fn check_norms(
    inventory: &Inventory<'_>,
    recipes: &[Recipe],
    convention: Convention,
) -> Result<(), ConvertError> {
    let (mut sum, mut count) = (0.0f64, 0usize);
    for recipe in recipes {
        let [part] = &recipe.parts[..] else { continue };
        if !recipe.name.starts_with("layers.") || !recipe.name.ends_with(".input_norm.weight") {
            continue;
        }
        let tensor = inventory.tensor(part.tensor);
        let mut values = vec![0.0; recipe.elements()];
        tensor.decode_rows(0, recipe.width, &mut values).map_err(|cause| ConvertError::Encode {
            path: tensor.file.to_owned(),
            tensor: tensor.name.to_owned(),
            cause,
        })?;
        sum += values.iter().map(|&value| f64::from(value)).sum::<f64>();
        count += values.len();
    }
    let mean = if count == 0 { return Ok(()) } else { sum / count as f64 };
    let form = match mean {
        mean if mean < 0.5 => "gains less 1 (Hugging Face)",
        mean if mean < 1.5 => "whole gains (MLX)",
        _ => "gains to which 1 was added twice",
    };
    let fits = match convention {
        Convention::Hf => mean < 0.5,
        Convention::Mlx => (0.5..1.5).contains(&mean),
    };
    // Not a number is the encoder's to report, which names the element.
    if fits || mean.is_nan() {
        return Ok(());
    }
    let names = format!("names and shapes are those of {convention}");
    Err(conflict(inventory, names, format!("the input norms average {mean:.3}, as {form} do")))
}

fn axis(name: &str, shape: &[usize]) -> Option<Signal> {
    let says = match shape {
        [_, 1, taps] if *taps > 1 => Convention::Hf,
        [_, taps, 1] if *taps > 1 => Convention::Mlx,
        _ => return None,
    };
    let fact = format!("`{name}` has shape {shape:?}");
    name.ends_with("linear_attn.conv1d.weight").then_some(Signal { says, fact })
}

fn naming(name: &str) -> Option<Signal> {
    let says = if name.starts_with("language_model.") || name.contains(".switch_mlp.") {
        Convention::Mlx
    } else if name.starts_with("model.language_model.") || name.contains(".mlp.experts.") {
        Convention::Hf
    } else {
        return None;
    };
    Some(Signal { says, fact: format!("a tensor is called `{name}`") })
}

fn fact(convention: Convention, fact: &str) -> String {
    format!("{fact} ({convention})")
}

fn conflict(inventory: &Inventory<'_>, first: String, second: String) -> ConvertError {
    ConvertError::Convention { path: inventory.path().to_owned(), first, second }
}
