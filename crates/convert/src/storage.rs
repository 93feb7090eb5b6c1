//! How every output tensor is stored: encoding, place, flags, and what that costs in precision.

use basert_format::{ComputeRegion, PlannedTensor, Residency, TensorFlags};
use basert_model::{Role, Storage};
use basert_quant::{Encoding, FloatDtype, ScaleDtype};

use crate::awq::Scaling;
use crate::options::{GROUPS, Wanted};
use crate::recipe::{Inventory, Op, Recipe, SourceTensor};
use crate::report::{Fallback, Verdict, without_layer};
use crate::{ConvertError, Options, compat};

/// A recipe and what becomes of it.
pub(crate) struct Stored {
    /// How to make the values.
    pub recipe: Recipe,
    /// Its entry in the output.
    pub planned: PlannedTensor,
    /// Bytes of its payload.
    pub bytes: u64,
    /// Codes and scales of the source are kept, in the output's arrangement.
    pub repacked: bool,
    /// What becomes of the values.
    pub verdict: Verdict,
    /// What the source's elements are.
    pub source: String,
    /// Scales are searched instead of following from the range.
    pub searched: bool,
    /// Activation-aware factors, once they are known.
    pub scaling: Option<Scaling>,
}

/// What the options make of one tensor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish {
    /// What it becomes where its role leaves the choice; `None` = what is exact.
    pub wanted: Option<Wanted>,
    /// It gets activation-aware factors, so nothing of the source's form can stay.
    pub scaled: bool,
}

/// An encoding, and how the source's elements get there.
pub(crate) struct Choice {
    pub encoding: Encoding,
    /// Codes and scales are kept.
    pub repacked: bool,
    /// Not what the options ask for, because of the row length.
    pub fell_back: bool,
}

impl Choice {
    pub fn float(dtype: FloatDtype) -> Choice {
        Choice { encoding: Encoding::Float(dtype), repacked: false, fell_back: false }
    }
}

/// Chooses how `recipe` is stored; the second value says if that is not what is wished for. `look` allows reading scales
/// on which the choice depends.
///
/// # Errors
/// Sizes that cannot be addressed.
pub(crate) fn store(
    inventory: &Inventory<'_>,
    mut recipe: Recipe,
    wish: Wish,
    options: &Options,
    look: bool,
) -> Result<(Stored, Option<Fallback>), ConvertError> {
    let storage = recipe.role.map_or(Storage::SourceFloat, Role::storage);
    let choice = match storage {
        _ if options.compat.is_some() => compat::choose(inventory, &mut recipe, wish, look)?,
        Storage::F32 => Choice::float(FloatDtype::F32),
        // A narrower type would round the factors.
        Storage::SourceFloat if wish.scaled => Choice::float(FloatDtype::F32),
        Storage::SourceFloat => Choice::float(source_float(inventory, &recipe)),
        Storage::Target => target(inventory, &recipe, wish, look),
    };
    let encoding = choice.encoding;
    let bytes = encoding.payload_len(recipe.elements() as u64).map_err(|cause| ConvertError::Encode {
        path: inventory.path().to_owned(),
        tensor: recipe.name.clone(),
        cause,
    })?;
    let wanted = wish.wanted.map(|wanted| wanted.encoding(wanted.group_or_default()));
    let fallback = choice.fell_back.then(|| Fallback {
        tensor: recipe.name.clone(),
        row: recipe.width,
        wanted: wanted.map_or_else(String::new, describe),
        used: describe(encoding),
        unquantised: matches!(encoding, Encoding::Float(_)),
        bytes,
    });
    let place = if options.compat.is_some() { compat::place(&recipe) } else { place(&recipe) };
    let planned = planned(&recipe, encoding, place);
    let verdict = verdict(inventory, &recipe, &choice, wish.scaled);
    let source = sources(inventory, &recipe).next().map_or_else(String::new, SourceTensor::describe);
    let scaling = wish.scaled.then(Scaling::default);
    let (repacked, searched) = (choice.repacked, options.searches(encoding));
    Ok((Stored { recipe, planned, bytes, repacked, verdict, source, searched, scaling }, fallback))
}

/// The entry of a tensor in the output.
pub(crate) fn planned(
    recipe: &Recipe,
    encoding: Encoding,
    (region, residency): (ComputeRegion, Residency),
) -> PlannedTensor {
    let decay = recipe.role == Some(Role::DecayLog);
    PlannedTensor {
        name: recipe.name.clone(),
        shape: recipe.shape.iter().map(|&dim| dim as u64).collect(),
        encoding,
        region,
        residency,
        flags: if decay { TensorFlags::SSM_A_MATRIX } else { TensorFlags::default() },
        mmproj: recipe.role.is_none(),
    }
}

fn sources<'i, 'a>(
    inventory: &'i Inventory<'a>,
    recipe: &Recipe,
) -> impl Iterator<Item = &'i SourceTensor<'a>> {
    recipe.parts.iter().map(|part| inventory.tensor(part.tensor))
}

/// What becomes of a tensor that is stored as wanted, or exactly.
pub(crate) fn target(inventory: &Inventory<'_>, recipe: &Recipe, wish: Wish, look: bool) -> Choice {
    let exact = exact(inventory, recipe, look).filter(|_| !wish.scaled);
    let exact = exact.map(|encoding| Choice { encoding, repacked: true, fell_back: false });
    let Some(wanted) = wish.wanted else {
        return exact.unwrap_or_else(|| Choice::float(exact_float(inventory, recipe)));
    };
    let satisfies = |encoding: Encoding| match encoding {
        Encoding::Affine { bits, group, .. } => {
            wanted.dtype.is_affine()
                && bits == wanted.dtype.bits()
                && wanted.group.is_none_or(|wanted| wanted == group)
        }
        Encoding::Fp4(fp4) => wanted.dtype.fp4() == Some(fp4),
        _ => false,
    };
    match exact {
        Some(exact) if satisfies(exact.encoding) => exact,
        _ => fitting(recipe, wanted),
    }
}

/// The wanted encoding for this row length: with the group asked for, else the largest smaller one that divides
/// the row, else bf16.
pub(crate) fn fitting(recipe: &Recipe, wanted: Wanted) -> Choice {
    let group = wanted.group_or_default();
    if recipe.width.is_multiple_of(group) {
        return Choice { encoding: wanted.encoding(group), repacked: false, fell_back: false };
    }
    let fits = |&smaller: &usize| smaller <= group && recipe.width.is_multiple_of(smaller);
    match GROUPS.into_iter().find(fits).filter(|_| wanted.dtype.is_affine()) {
        Some(group) => Choice { encoding: wanted.encoding(group), repacked: false, fell_back: true },
        None => Choice { fell_back: true, ..Choice::float(FloatDtype::Bf16) },
    }
}

/// The quantised encoding that holds the codes and scales of all parts, if there is one: all parts must agree, and
/// columns may move in whole groups only.
fn exact(inventory: &Inventory<'_>, recipe: &Recipe, look: bool) -> Option<Encoding> {
    let mut encodings = sources(inventory, recipe).map(|source| source.exact_encoding(look));
    let encoding = encodings.next()??;
    let group = encoding.group();
    let whole_groups = recipe.columns.is_none_or(|columns| columns.unit.is_multiple_of(group));
    let fits = recipe.op == Op::Keep && recipe.width.is_multiple_of(group) && whole_groups;
    (fits && encodings.all(|other| other == Some(encoding))).then_some(encoding)
}

/// Says so if columns move in units that cut through the source's blocks, whose codes cannot follow.
pub(crate) fn cut_blocks(inventory: &Inventory<'_>, recipe: &Recipe) -> Option<String> {
    let unit = recipe.columns?.unit;
    let source = sources(inventory, recipe).find(|source| !unit.is_multiple_of(source.block()))?;
    let (name, ty, block) = (without_layer(&recipe.name), source.describe(), source.block());
    Some(format!(
        "{name}: value heads of {unit} columns cut through {ty} blocks of {block}, so its values went through floats"
    ))
}

/// The smallest float type that holds the values of all parts.
fn exact_float(inventory: &Inventory<'_>, recipe: &Recipe) -> FloatDtype {
    common(sources(inventory, recipe).map(SourceTensor::exact_float))
}

/// The float type that all sources share, f32 if they are quantised or differ.
fn source_float(inventory: &Inventory<'_>, recipe: &Recipe) -> FloatDtype {
    common(sources(inventory, recipe).map(|source| source.float().unwrap_or(FloatDtype::F32)))
}

/// The one type, or f32.
fn common(mut floats: impl Iterator<Item = FloatDtype>) -> FloatDtype {
    let first = floats.next().unwrap_or(FloatDtype::F32);
    if floats.all(|float| float == first) { first } else { FloatDtype::F32 }
}

/// What becomes of the values, as far as types decide it.
fn verdict(inventory: &Inventory<'_>, recipe: &Recipe, choice: &Choice, scaled: bool) -> Verdict {
    let copied = |source: &SourceTensor<'_>| match choice.encoding {
        Encoding::Float(float) => source.float() == Some(float) && recipe.op == Op::Keep,
        encoding => choice.repacked && source.is_copied_into(encoding),
    };
    if !scaled && sources(inventory, recipe).all(copied) {
        return if recipe.is_reordered() { Verdict::ExactRelayout } else { Verdict::ByteCopy };
    }
    if choice.repacked {
        return Verdict::ExactRelayout;
    }
    let quantised = sources(inventory, recipe).any(SourceTensor::is_quantised);
    match choice.encoding {
        Encoding::Float(FloatDtype::F32) => Verdict::KeptInFloat,
        Encoding::Float(float)
            if !scaled && exact_float(inventory, recipe) == float && recipe.op == Op::Keep =>
        {
            Verdict::KeptInFloat
        }
        _ if quantised => Verdict::Requantized,
        Encoding::Float(_) => Verdict::Rounded,
        _ => Verdict::Quantized,
    }
}

/// Whether every scale of a tensor whose largest magnitude is `largest` has fewer significant bits in f16
/// than in bf16.
///
/// No scale exceeds `2·largest / (2^bits - 1)`. Below 2^-16 the spacing of f16's subnormals, 2^-24, is
/// coarser than bf16's relative step of 2^-8.
pub(crate) fn scales_underflow(encoding: Encoding, largest: f32) -> bool {
    let Encoding::Affine { bits, scale: ScaleDtype::F16, .. } = encoding else { return false };
    let steps = ((1u32 << bits) - 1) as f32;
    largest > 0.0 && 2.0 * largest / steps < 1.0 / 65536.0
}

/// Region and residency as the original converter assigns them.
pub(crate) fn place(recipe: &Recipe) -> (ComputeRegion, Residency) {
    let matrix = recipe.shape.len() > 1;
    match recipe.role {
        None if matrix => (ComputeRegion::Accelerator, Residency::Cold),
        None => (ComputeRegion::Gpu, Residency::Cold),
        Some(Role::DecayLog | Role::DtBias) => (ComputeRegion::Cpu, Residency::Hot),
        Some(Role::Linear | Role::Experts | Role::Router | Role::SharedGate) if matrix => {
            (ComputeRegion::Accelerator, Residency::Warm)
        }
        Some(_) => (ComputeRegion::Gpu, Residency::Hot),
    }
}

/// E.g. `base_q4 group 64`.
pub(crate) fn describe(encoding: Encoding) -> String {
    let dtype = encoding.dtype().map_or("", |dtype| dtype.name());
    match encoding {
        Encoding::Affine { group, .. } => format!("{dtype} group {group}"),
        Encoding::Super(block) => format!("{block} blocks"),
        _ => dtype.to_owned(),
    }
}
