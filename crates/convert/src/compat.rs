//! Bundles laid out as the original converter writes them from a Hugging Face checkpoint, for its own engine.
//!
//! What differs from our own layout: small tensors are f16, routers and shared gates are matrices like any other, experts
//! that a checkpoint fuses stay fused, vision matrices are quantised, draft layers are left out, tensors lie in
//! the order of the source's names, and the header has none of our configuration keys. Values follow the
//! original's rules except where those are wrong: 1 is added to a norm once, also where the source is MLX.
//!
//! A matrix whose rows its groups do not divide is refused: the original lets such groups run on into the next row, and
//! nothing shows that its engine expects that. In vision towers, which it does the same to, they are kept so.

use std::fmt;
use std::str::FromStr;

use basert_format::{ComputeRegion, Header, HeaderFlags, Residency, SourceFormat};
use basert_model::{Config, Role};
use basert_quant::{Encoding, FloatDtype, ScaleDtype};

use crate::driver::GENERATION_KEY;
use crate::options::Wanted;
use crate::recipe::{Inventory, Part, Recipe, RowOrder};
use crate::report::Dropped;
use crate::source::Plan;
use crate::storage::{self, Choice, Wish};
use crate::{ConvertError, Method, Options, Target};

/// Whose files the output must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// Those of the original BaseRT converter, 0.2.
    Basert,
}

impl Compat {
    /// The spelling in options: `basert`.
    pub fn name(self) -> &'static str {
        match self {
            Compat::Basert => "basert",
        }
    }
}

impl FromStr for Compat {
    type Err = ConvertError;

    fn from_str(name: &str) -> Result<Compat, ConvertError> {
        match name {
            "basert" => Ok(Compat::Basert),
            _ => Err(ConvertError::Option(format!("`{name}` is no layout to be compatible with; basert is"))),
        }
    }
}

impl fmt::Display for Compat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Metadata key that marks such a bundle.
const COMPAT_KEY: &str = "basert.compat";

/// Configuration keys that only we write.
const OWN_KEYS: [&str; 3] = ["shared_expert_intermediate_size", "mlp_only_layers", "mtp_num_hidden_layers"];

/// Tower settings that only we keep.
const OWN_TOWER_KEYS: [&str; 2] = ["vision_start_token_id", "vision_end_token_id"];

/// Refuses options that the layout has no room for.
///
/// # Errors
/// Target f32, which the original has no scheme for; profiles, whose symmetric and FP4 rules its engine has never
/// seen; activation-aware factors, which f16 norms would round.
pub(crate) fn check(options: &Options) -> Result<(), ConvertError> {
    let why = match options {
        Options { compat: None, .. } => return Ok(()),
        Options { target: Target::F32, .. } => "the original format has no f32 target; choose bf16 or f16",
        Options { profile: Some(_), .. } => "it goes with --target, not with --profile",
        Options { method: Some(Method::Awq), .. } => "the layout's f16 norms would round the factors of awq",
        _ => return Ok(()),
    };
    Err(ConvertError::Option(format!("--compat basert: {why}")))
}

/// Leaves out, fuses and orders what is to be written, if `options` ask for the layout.
///
/// # Errors
/// Sources that cannot be said in it.
pub(crate) fn arrange(plan: &mut Plan<'_>, options: &Options) -> Result<(), ConvertError> {
    if options.compat.is_none() {
        return Ok(());
    }
    let refuse = |why: &str| {
        let path = plan.inventory.path().display();
        Err(ConvertError::Option(format!("{path}: --compat basert is not possible: {why}")))
    };
    if plan.format == SourceFormat::Gguf {
        return refuse(
            "the original lays bundles from GGUF files out in another way, without the settings of hybrids; \
             convert from the Hugging Face or MLX checkpoint",
        );
    }
    if plan.config.moe.as_ref().is_some_and(|moe| !moe.mlp_only_layers.is_empty()) {
        return refuse("the original format has no key for dense layers between layers of experts");
    }
    let inventory = &plan.inventory;
    let (draft, kept): (Vec<Recipe>, Vec<Recipe>) =
        std::mem::take(&mut plan.recipes).into_iter().partition(|recipe| recipe.name.starts_with("mtp."));
    let sources = draft.iter().flat_map(|recipe| &recipe.parts).map(|part| part.tensor);
    let sources: std::collections::BTreeSet<usize> = sources.collect();
    let why = "the original format has no draft layers";
    plan.dropped.extend(
        sources.into_iter().map(|index| Dropped { name: inventory.tensor(index).name.to_owned(), why }),
    );
    plan.config.mtp_num_hidden_layers = 0;
    let mut recipes = fused(kept, inventory);
    recipes.sort_by_cached_key(|recipe| place_in_order(recipe, inventory));
    plan.recipes = recipes;
    Ok(())
}

/// Main tensors before towers, then stacks of single experts last, then by name in the source.
fn place_in_order(recipe: &Recipe, inventory: &Inventory<'_>) -> (bool, bool, String) {
    let mut sources = recipe.parts.iter().map(|part| part.tensor);
    let first = sources.next();
    let stacked = sources.any(|source| Some(source) != first);
    let name = if stacked { None } else { first.map(|index| inventory.tensor(index).name.to_owned()) };
    (recipe.role.is_none(), stacked, name.unwrap_or_else(|| recipe.name.clone()))
}

/// Gate and up stacks that come out of one tensor become that tensor, `ffn_gate_up_exps`.
fn fused(recipes: Vec<Recipe>, inventory: &Inventory<'_>) -> Vec<Recipe> {
    let fuse = |recipe: Recipe| {
        let Some((tensor, shape)) = fused_source(&recipe, inventory) else { return Some(recipe) };
        // The up half comes with the gate's.
        let prefix = recipe.name.strip_suffix("ffn_gate_exps.weight")?;
        let part = Part { tensor, first_row: 0, rows: shape[0] * shape[1], order: RowOrder::Straight };
        let name = format!("{prefix}ffn_gate_up_exps.weight");
        Some(Recipe { name, shape: shape.to_vec(), parts: vec![part], ..recipe })
    };
    recipes.into_iter().filter_map(fuse).collect()
}

/// The source tensor that holds gate and up of all experts, if `recipe` is one of the two, and its shape.
fn fused_source(recipe: &Recipe, inventory: &Inventory<'_>) -> Option<(usize, [usize; 3])> {
    let &[experts, rows, width] = &recipe.shape[..] else { return None };
    let tensor = recipe.parts.first()?.tensor;
    let shape = [experts, 2 * rows, width];
    (recipe.role == Some(Role::Experts) && inventory.tensor(tensor).shape == shape).then_some((tensor, shape))
}

/// The dtype that the layout fixes whatever the target: the rest is up to the target.
fn fixed(recipe: &Recipe) -> Option<FloatDtype> {
    match recipe.role {
        Some(Role::DecayLog | Role::DtBias) => Some(FloatDtype::F32),
        Some(Role::Norm | Role::Bias | Role::RopeFreqs | Role::Conv | Role::DeltaGate) => {
            Some(FloatDtype::F16)
        }
        Some(_) => None,
        None => {
            let elements = recipe.elements();
            let names = ["position_embedding", "pos_embed", ".per_dim_scale", ".relative_k_proj"];
            let small = recipe.shape.len() != 2 || elements < 64 || !elements.is_multiple_of(64);
            (small || names.iter().any(|name| recipe.name.contains(name))).then_some(FloatDtype::F16)
        }
    }
}

/// Whether the layout rounds the tensor to f16, which asking for the layout allows.
pub(crate) fn rounds(recipe: &Recipe, options: &Options) -> bool {
    options.compat.is_some() && fixed(recipe).is_some()
}

/// How `recipe` is stored. Rows of a tower's tensor may be cut anew, into groups.
///
/// # Errors
/// A main tensor that groups do not divide, or that would need an encoding the original does not write.
pub(crate) fn choose(
    inventory: &Inventory<'_>,
    recipe: &mut Recipe,
    wish: Wish,
    look: bool,
) -> Result<Choice, ConvertError> {
    if let Some(float) = fixed(recipe) {
        return Ok(Choice::float(float));
    }
    let choice = storage::target(inventory, recipe, wish, look);
    match (choice.encoding, wish.wanted) {
        (Encoding::Affine { symmetric: false, scale: ScaleDtype::F16 | ScaleDtype::Bf16, .. }, _)
            if !choice.fell_back =>
        {
            Ok(choice)
        }
        (Encoding::Fp4(_) | Encoding::Float(FloatDtype::F16 | FloatDtype::Bf16), _) if !choice.fell_back => {
            Ok(choice)
        }
        (_, Some(wanted)) if choice.fell_back && recipe.role.is_none() => Ok(straddling(recipe, wanted)),
        (_, Some(wanted)) if choice.fell_back => Err(refused(inventory, recipe, &undivided(recipe, wanted))),
        (encoding, _) => {
            let stored = storage::describe(encoding);
            Err(refused(inventory, recipe, &format!("the original never writes {stored}; name a --target")))
        }
    }
}

/// A tower's matrix whose groups run on into the next row; f16 where the last one would not be whole.
fn straddling(recipe: &mut Recipe, wanted: Wanted) -> Choice {
    let group = wanted.group_or_default();
    let [part] = &mut recipe.parts[..] else { return Choice::float(FloatDtype::F16) };
    let elements = part.rows * recipe.width;
    if !elements.is_multiple_of(group) || part.first_row != 0 {
        return Choice { fell_back: true, ..Choice::float(FloatDtype::F16) };
    }
    (recipe.width, part.rows) = (group, elements / group);
    Choice { encoding: wanted.encoding(group), repacked: false, fell_back: false }
}

fn undivided(recipe: &Recipe, wanted: Wanted) -> String {
    let group = wanted.group_or_default();
    format!("groups of {group} do not divide its rows of {}; choose a smaller --group", recipe.width)
}

fn refused(inventory: &Inventory<'_>, recipe: &Recipe, why: &str) -> ConvertError {
    let (path, name) = (inventory.path().display(), &recipe.name);
    ConvertError::Option(format!("{path}: --compat basert is not possible for {name}: {why}"))
}

/// Region and residency as the original assigns them where we do it differently.
pub(crate) fn place(recipe: &Recipe) -> (ComputeRegion, Residency) {
    match recipe.role {
        None if fixed(recipe).is_some() => (ComputeRegion::Gpu, Residency::Cold),
        _ => storage::place(recipe),
    }
}

/// Brings a header into the original's form, if `options` ask for it.
pub(crate) fn header(header: &mut Header, config: &Config, options: &Options) {
    let Some(compat) = options.compat else { return };
    OWN_KEYS.iter().for_each(|key| drop(header.config.remove(*key)));
    if let Some(mmproj) = &mut header.mmproj {
        OWN_TOWER_KEYS.iter().for_each(|key| drop(mmproj.config.remove(*key)));
    }
    header.metadata.remove(GENERATION_KEY);
    header.metadata.insert(COMPAT_KEY.to_owned(), compat.name().into());
    header.flags = HeaderFlags::QUANTIZED;
    if config.moe.is_some() {
        header.flags |= HeaderFlags::HAS_MOE;
    }
    if config.tie_word_embeddings {
        header.flags |= HeaderFlags::TIED_EMBEDDINGS;
    }
}
