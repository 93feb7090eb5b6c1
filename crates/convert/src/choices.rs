//! What becomes of every tensor: what its role, the target or profile and the source's own form make of it.

use std::collections::HashSet;

use basert_format::SourceFormat;
use basert_model::{Role, Storage};
use basert_quant::Encoding;

use crate::awq::{self, Fold};
use crate::encode;
use crate::options::Wanted;
use crate::pipeline;
use crate::recipe::Recipe;
use crate::report::{Fallback, TensorReport, without_layer};
use crate::source::Plan;
use crate::storage::{self, Stored, Wish};
use crate::trail::Trail;
use crate::values::model_spec;
use crate::{ConvertError, Method, Options, Report};

/// All tensors in output order, noted in `report`. With a trail, what the choice depends on is read: scales, and with
/// activation-aware factors a sample of the values.
///
/// # Errors
/// Options that no tensor obeys, tensors that a profile does not cover, importance of another model, and sizes that
/// cannot be addressed.
pub(crate) fn of(
    plan: &Plan<'_>,
    options: &Options,
    trail: Option<&Trail<'_>>,
    report: &mut Report,
) -> Result<Vec<Stored>, ConvertError> {
    let wanted = wanted(plan, options, report)?;
    let folds = folds(plan, options, &wanted)?;
    if options.method == Some(Method::Awq) && folds.is_empty() {
        return Err(ConvertError::Option(
            "method awq has nothing to scale: no tensor that is to be quantised has known activations"
                .to_owned(),
        ));
    }
    let touched = awq::touched(&folds);
    let mut tensors = Vec::with_capacity(plan.recipes.len());
    for (recipe, wanted) in plan.recipes.iter().zip(wanted) {
        let wish = Wish { wanted, scaled: touched.contains(recipe.name.as_str()) };
        let (stored, fallback) =
            storage::store(&plan.inventory, recipe.clone(), wish, options, trail.is_some())?;
        if let Some(trail) = trail {
            trail.release(&encode::spans(recipe, 0, recipe.rows()), recipe.width);
        }
        note(report, &stored, fallback);
        if let Some(note) = wanted.and_then(|wanted| kept_otherwise(&stored, wanted))
            && !report.notes.contains(&note)
        {
            report.notes.push(note);
        }
        if let Some(note) = storage::cut_blocks(&plan.inventory, recipe)
            && !report.notes.contains(&note)
        {
            report.notes.push(note);
        }
        tensors.push(stored);
    }
    let (found, rtn) = (method(&tensors, options), options.method == Some(Method::Rtn));
    if let Some(what) = options.quantises_with()
        && (found.is_none() || (found == Some(Method::Rtn) && !rtn))
    {
        return Err(ConvertError::Option(format!("no tensor has scales to find, so {what} means nothing")));
    }
    note_factors(report, &touched);
    if let (Some(importance), Some(_), false) = (&options.importance, trail, folds.is_empty()) {
        let threads = options.thread_count();
        let mut scalings = awq::scalings(&plan.inventory, &tensors, &folds, importance, threads)?;
        for stored in &mut tensors {
            stored.scaling = scalings.remove(&stored.recipe.name);
        }
    }
    let pipeline = pipeline::peak_bytes(&plan.inventory, &tensors, options.thread_count());
    report.peak_memory_bytes = pipeline + tokenizer_bytes(plan);
    Ok(tensors)
}

/// Says which tensors hold other values than the source's, because factors were folded in.
fn note_factors(report: &mut Report, touched: &HashSet<&str>) {
    if touched.is_empty() {
        return;
    }
    let mut kinds: Vec<String> = touched.iter().map(|name| without_layer(name)).collect();
    kinds.sort();
    kinds.dedup();
    report.notes.push(format!(
        "activation-aware factors were folded in; verdicts and errors are about the scaled values of: {}",
        kinds.join(", ")
    ));
}

/// About the most bytes that checking the tokenizer and putting it into the header takes. Measured with SmolLM2's, as a
/// multiple of its JSON: vocabulary and merges become tables, and from GGUF they are JSON values first.
fn tokenizer_bytes(plan: &Plan<'_>) -> u64 {
    let multiple = if plan.format == SourceFormat::Gguf { 64 } else { 32 };
    multiple * plan.tokenizer.values().map(|value| value.get().len() as u64).sum::<u64>()
}

/// Where activation-aware factors go; nowhere but with [`Method::Awq`]. Importance of another model is refused.
fn folds(plan: &Plan<'_>, options: &Options, wanted: &[Option<Wanted>]) -> Result<Vec<Fold>, ConvertError> {
    let Some(importance) = &options.importance else { return Ok(Vec::new()) };
    let spec = model_spec(plan)?;
    importance.check(&spec)?;
    match options.method {
        Some(Method::Awq) => Ok(awq::active(&spec, importance, &plan.recipes, wanted)),
        _ => Ok(Vec::new()),
    }
}

/// What every tensor is asked to become; `None` leaves it to its role, or exact.
///
/// # Errors
/// Tensors that a profile does not cover.
fn wanted(
    plan: &Plan<'_>,
    options: &Options,
    report: &mut Report,
) -> Result<Vec<Option<Wanted>>, ConvertError> {
    let mut missing = Vec::new();
    let mut wanted = Vec::with_capacity(plan.recipes.len());
    for recipe in &plan.recipes {
        if !must_be_covered(recipe) {
            // The original quantises its towers like everything else.
            let tower = options.target.dtype().filter(|_| options.compat.is_some());
            wanted.push(tower.map(|dtype| options.like(dtype)));
            continue;
        }
        let found = options.wanted(&recipe.name).unwrap_or_else(|name| {
            missing.push(name.to_owned());
            None
        });
        if let (Some(profile), Some(found)) = (&options.profile, found)
            && recipe.role.map(Role::storage) != Some(Storage::Target)
            && !found.dtype.is_float()
        {
            let (name, profile) = (without_layer(&recipe.name), &profile.name);
            let note = format!("profile {profile} quantises {name}, which keeps its float type here");
            if !report.notes.contains(&note) {
                report.notes.push(note);
            }
        }
        wanted.push(found);
    }
    if let Some(profile) = &options.profile {
        let covered = plan.recipes.iter().filter(|recipe| must_be_covered(recipe));
        let names: Vec<&str> = covered.map(|recipe| recipe.name.as_str()).collect();
        report.notes.extend(profile.idle(&names));
    }
    match &options.profile {
        Some(profile) if !missing.is_empty() => {
            Err(ConvertError::NotCovered { profile: profile.name.clone(), names: missing })
        }
        _ => Ok(wanted),
    }
}

/// Whether a profile must have a rule for the tensor. Those for routers and gates of shared experts are not used,
/// but the original converter insists on them, and a profile should do for both.
fn must_be_covered(recipe: &Recipe) -> bool {
    use Role::{Embed, Experts, Head, Linear, Router, SharedGate};
    matches!(recipe.role, Some(Embed | Head | Linear | Experts | Router | SharedGate))
}

/// Says so if a tensor that is quantised already is kept exactly with another scale format, or with biases or without,
/// than its rule or option asks for: changing that would lose precision and gain nothing.
fn kept_otherwise(stored: &Stored, wanted: Wanted) -> Option<String> {
    let Encoding::Affine { scale, symmetric, .. } = stored.planned.encoding else { return None };
    let other_scale = wanted.asked_scale.is_some_and(|asked| asked != scale);
    let other_symmetry = wanted.asked_symmetric.is_some_and(|asked| asked != symmetric);
    if !stored.repacked || !(other_scale || other_symmetry) {
        return None;
    }
    let name = without_layer(&stored.planned.name);
    let (has, asked) = (if symmetric { "no biases" } else { "biases" }, wanted.asked_scale);
    let asked = asked.map_or_else(String::new, |asked| format!(" scales {asked}"));
    let symmetric = wanted.asked_symmetric.map_or_else(String::new, |asked| format!(" symmetric {asked}"));
    Some(format!("{name} is kept exactly, with {scale} scales and {has}; asked for:{asked}{symmetric}"))
}

/// Enters a tensor into the report.
fn note(report: &mut Report, stored: &Stored, fallback: Option<Fallback>) {
    report.written.add(stored.bytes);
    let dtype = stored.planned.encoding.dtype().map_or("other", |dtype| dtype.name());
    report.dtypes.entry(dtype).or_default().add(stored.bytes);
    if stored.planned.mmproj {
        report.vision.add(stored.bytes);
    } else if stored.planned.name.starts_with("mtp.") {
        report.draft.add(stored.bytes);
    }
    report.fallbacks.extend(fallback);
    report.tensors.push(TensorReport {
        name: stored.planned.name.clone(),
        source: stored.source.clone(),
        stored: storage::describe(stored.planned.encoding),
        verdict: stored.verdict,
        scaled: stored.scaling.is_some(),
        max_error: None,
        rms_error: None,
        bytes: stored.bytes,
    });
}

/// How scales were found, searched if any were; `None` if nothing is quantised anew.
pub(crate) fn method(tensors: &[Stored], options: &Options) -> Option<Method> {
    let is_affine =
        |stored: &&Stored| matches!(stored.planned.encoding, Encoding::Affine { .. }) && !stored.repacked;
    let searched = tensors.iter().filter(is_affine).map(|stored| stored.searched).max()?;
    Some(if searched { options.method.unwrap_or(Method::Mse) } else { Method::Rtn })
}
