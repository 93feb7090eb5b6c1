//! How every output tensor is stored: encoding, place, flags, and what could not be stored as asked.

use basert_format::{ComputeRegion, PlannedTensor, Residency, TensorFlags};
use basert_model::{Role, Storage};
use basert_quant::{Encoding, FloatDtype, GgmlType, ScaleDtype};

use crate::options::GROUPS;
use crate::recipe::{Inventory, Recipe};
use crate::report::Fallback;
use crate::{ConvertError, Options};

/// A recipe and what becomes of it.
pub(crate) struct Stored {
    /// How to make the values.
    pub recipe: Recipe,
    /// Its entry in the output.
    pub planned: PlannedTensor,
    /// Bytes of its payload.
    pub bytes: u64,
}

/// Chooses how `recipe` is stored; the second value says if that is not what the options ask for.
///
/// # Errors
/// Sizes that cannot be addressed.
pub(crate) fn store(
    inventory: &Inventory<'_>,
    recipe: Recipe,
    options: &Options,
) -> Result<(Stored, Option<Fallback>), ConvertError> {
    let storage = recipe.role.map_or(Storage::SourceFloat, Role::storage);
    let (encoding, fell_back) = match storage {
        Storage::F32 => (Encoding::Float(FloatDtype::F32), false),
        Storage::SourceFloat => (Encoding::Float(source_float(inventory, &recipe)), false),
        Storage::Target => target(&recipe, options),
    };
    let bytes = encoding.payload_len(recipe.elements() as u64).map_err(|cause| ConvertError::Encode {
        path: inventory.path().to_owned(),
        tensor: recipe.name.clone(),
        cause,
    })?;
    let fallback = fell_back.then(|| Fallback {
        tensor: recipe.name.clone(),
        row: recipe.width,
        wanted: describe(options.affine(options.wanted_group())),
        used: describe(encoding),
        unquantised: matches!(encoding, Encoding::Float(_)),
        bytes,
    });
    let (region, residency) = place(&recipe);
    let planned = PlannedTensor {
        name: recipe.name.clone(),
        shape: recipe.shape.iter().map(|&dim| dim as u64).collect(),
        encoding,
        region,
        residency,
        flags: if recipe.role == Some(Role::DecayLog) {
            TensorFlags::SSM_A_MATRIX
        } else {
            TensorFlags::default()
        },
        mmproj: recipe.role.is_none(),
    };
    Ok((Stored { recipe, planned, bytes }, fallback))
}

/// The target's encoding for this row length: the group asked for, else the largest smaller one that divides
/// the row, else bf16. The flag tells whether it is not the first.
fn target(recipe: &Recipe, options: &Options) -> (Encoding, bool) {
    if let Some(float) = options.float_target() {
        return (Encoding::Float(float), false);
    }
    let wanted = options.wanted_group();
    let fits = |&group: &usize| group <= wanted && recipe.width.is_multiple_of(group);
    match GROUPS.into_iter().find(fits) {
        Some(group) => (options.affine(group), group != wanted),
        None => (Encoding::Float(FloatDtype::Bf16), true),
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

/// The float type that all sources share, f32 if they are quantised or differ.
fn source_float(inventory: &Inventory<'_>, recipe: &Recipe) -> FloatDtype {
    let float = |tensor: usize| inventory.tensor(tensor).ty.and_then(GgmlType::float);
    let mut floats = recipe.parts.iter().map(|part| float(part.tensor).unwrap_or(FloatDtype::F32));
    let first = floats.next().unwrap_or(FloatDtype::F32);
    if floats.all(|float| float == first) { first } else { FloatDtype::F32 }
}

/// Region and residency as the original converter assigns them.
fn place(recipe: &Recipe) -> (ComputeRegion, Residency) {
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
fn describe(encoding: Encoding) -> String {
    let dtype = encoding.dtype().map_or("", |dtype| dtype.name());
    match encoding {
        Encoding::Affine { group, .. } => format!("{dtype} group {group}"),
        _ => dtype.to_owned(),
    }
}
