//! The conversion itself: plan everything, then one tensor at a time through memory into the output.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use basert_format::{
    BaseWriter, ComputeRegion, Header, HeaderFlags, LayerDescriptor, LayerKind, LayerPrecision, MmProj,
    QuantScheme, SlotFlags, Source as HeaderSource,
};
use basert_model::{Role, Storage};
use basert_quant::Encoding;
use serde_json::Value;

use crate::awq::Fold;
use crate::options::Wanted;
use crate::recipe::{Recipe, SourceTensor};
use crate::report::{Count, Fallback, TensorReport, without_layer};
use crate::same_file::same_file;
use crate::source::{Plan, Source};
use crate::storage::{self, Stored, Wish};
use crate::values::model_spec;
use crate::{
    Convention, ConvertError, Evidence, Method, Options, Profile, Progress, Report, SelfCheck, SourceValues,
    Target, awq, convention, digest, encode, options,
};

/// Metadata key that holds the target as it was asked for.
const TARGET_KEY: &str = "basert.target";

/// Metadata key that holds the method by which scales were found, if any were.
const METHOD_KEY: &str = "basert.method";

/// Header metadata key that holds a checkpoint's `generation_config.json`: what it recommends for sampling.
pub const GENERATION_KEY: &str = "basert.generation_config";

/// Stands in for a SHA-256 while the files are still being hashed.
const HASH_TO_COME: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Converts the checkpoint at `source` into the `.base` file `out`.
///
/// The output appears when everything has succeeded; after an error nothing is left. The same source and
/// options give the same bytes, whatever the number of threads.
///
/// # Errors
/// Anything that keeps the output from being complete and right; see [`ConvertError`].
pub fn convert(
    source: &Path,
    out: &Path,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Report, ConvertError> {
    run(source, out, options, progress, None)
}

/// [`convert`], with a check of the finished tensors before the output appears; what it finds stands in the report
/// and in the output.
///
/// # Errors
/// As [`convert`], and [`ConvertError::SelfCheck`] if the check does not pass.
pub fn convert_checked(
    source: &Path,
    out: &Path,
    options: &Options,
    progress: &mut dyn Progress,
    check: &mut dyn SelfCheck,
) -> Result<Report, ConvertError> {
    run(source, out, options, progress, Some(check))
}

fn run(
    source: &Path,
    out: &Path,
    options: &Options,
    progress: &mut dyn Progress,
    check: Option<&mut dyn SelfCheck>,
) -> Result<Report, ConvertError> {
    let started = Instant::now();
    options.check()?;
    let source = Source::open(source)?;
    refuse_overwriting(&source, out)?;
    let plan = source.plan(options)?;
    let options = &options.resolved(plan.inventory.is_quantised())?;
    // Whoever names the convention knows better than the norms.
    if let (Some(convention), None) = (plan.convention, options.convention) {
        convention::check_norms(&plan.inventory, &plan.recipes, convention)?;
    }
    let mut report = empty_report(&plan, options);
    let tensors = store_all(&plan, options, true, &mut report)?;
    refuse_losses(&plan, &tensors, options)?;
    let header = header(&source, &plan, &tensors, options)?;

    let planned = tensors.iter().map(|stored| stored.planned.clone()).collect();
    let mut writer = BaseWriter::create(out, header, planned)?;
    progress.start(tensors.len(), report.written.bytes);
    let cancelled = AtomicBool::new(false);
    let sha256 = std::thread::scope(|scope| {
        // Hashing reads what the conversion reads; side by side they share the page cache.
        let hash = scope.spawn(|| hash(&source, &cancelled));
        let written = write_all(&plan, &tensors, options, &mut writer, progress, &mut report);
        cancelled.store(written.is_err(), Ordering::Relaxed);
        let hash = hash.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written.and(hash)
    })?;
    if let Some(check) = check {
        progress.check();
        report.quality = self_check(check, &plan, &mut writer)?;
    }
    writer.finish(|header| {
        header.source.sha256 = sha256.unwrap_or_default();
        if !report.quality.is_empty() {
            header.flags |= HeaderFlags::HAS_TRACE_REF;
            header.metadata.extend(report.quality.clone());
        }
    })?;
    progress.finish();
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Has the finished tensors tried and appends the evidence's slots; returns its metadata.
fn self_check(
    check: &mut dyn SelfCheck,
    plan: &Plan<'_>,
    writer: &mut BaseWriter,
) -> Result<BTreeMap<String, Value>, ConvertError> {
    let values = SourceValues::new(&plan.inventory, &plan.recipes);
    let found = check.check(&values, writer.preview()?);
    let Evidence { metadata, slots } =
        found.map_err(|cause| ConvertError::SelfCheck { path: plan.inventory.path().to_owned(), cause })?;
    for (kind, payload) in slots {
        writer.write_slot(kind, SlotFlags::default(), &payload)?;
    }
    Ok(metadata)
}

/// What [`convert`] would do, from headers and configuration alone; nothing of the weights is read and nothing
/// written. What depends on values stays open: errors are not measured, and scales are taken for ordinary ones.
///
/// # Errors
/// As [`convert`], for everything that headers show.
pub fn plan(source: &Path, options: &Options) -> Result<Report, ConvertError> {
    let started = Instant::now();
    options.check()?;
    let source = Source::open(source)?;
    let plan = source.plan(options)?;
    let options = &options.resolved(plan.inventory.is_quantised())?;
    let mut report = empty_report(&plan, options);
    let tensors = store_all(&plan, options, false, &mut report)?;
    refuse_losses(&plan, &tensors, options)?;
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// The name of the target or profile that `options` mean for the checkpoint at `source`: automatic only if it is
/// quantised.
///
/// # Errors
/// A source that is no checkpoint or damaged.
pub fn resolve_goal(source: &Path, options: &Options) -> Result<String, ConvertError> {
    if options.target != Target::AUTO || options.profile.is_some() {
        return Ok(options.goal().to_owned());
    }
    let source = Source::open(source)?;
    Ok(options.resolved(source.plan(options)?.inventory.is_quantised())?.goal().to_owned())
}

/// Without permission, a quantised source must come out exactly.
fn refuse_losses(plan: &Plan<'_>, tensors: &[Stored], options: &Options) -> Result<(), ConvertError> {
    if options.allow_quant_from_quant || !plan.inventory.is_quantised() {
        return Ok(());
    }
    let lossy = tensors.iter().filter(|stored| !stored.verdict.is_exact());
    let loss = |stored: &Stored| {
        let becomes = storage::describe(stored.planned.encoding);
        (stored.planned.name.clone(), stored.source.clone(), becomes)
    };
    let losses: Vec<_> = lossy.map(loss).collect();
    if losses.is_empty() {
        return Ok(());
    }
    Err(ConvertError::WouldLose {
        path: plan.inventory.path().to_owned(),
        target: options.goal().to_owned(),
        tensors: losses,
    })
}

fn hash(source: &Source, cancelled: &AtomicBool) -> Result<Option<String>, ConvertError> {
    match source {
        Source::Gguf(gguf) if gguf.files().len() > 1 => {
            let directory = gguf.path().parent().unwrap_or(Path::new(""));
            digest::files(directory, gguf.files(), cancelled)
        }
        Source::Gguf(gguf) => digest::file(gguf.path(), cancelled),
        Source::Hf(hf) => digest::files(hf.directory(), hf.files(), cancelled),
    }
}

fn write_all(
    plan: &Plan<'_>,
    tensors: &[Stored],
    options: &Options,
    writer: &mut BaseWriter,
    progress: &mut dyn Progress,
    report: &mut Report,
) -> Result<(), ConvertError> {
    let threads = options.thread_count();
    let importance = options.importance.as_ref();
    for (stored, line) in tensors.iter().zip(&mut report.tensors) {
        progress.tensor(&stored.planned.name, stored.bytes);
        let importance = importance.and_then(|importance| importance.of(&stored.recipe.name));
        let payload = encode::payload(&plan.inventory, stored, importance, threads)?;
        writer.write_tensor(&payload.bytes)?;
        let measured = payload.measured;
        line.max_error = Some(measured.max_error);
        line.rms_error = Some((measured.squares / (stored.recipe.elements().max(1) as f64)).sqrt());
        if !stored.repacked && storage::scales_underflow(stored.planned.encoding, measured.largest) {
            report.notes.push(format!(
                "{}: its largest value is {:e}, too small for f16 scales; bf16 scales would keep more of it",
                stored.planned.name, measured.largest
            ));
        }
    }
    Ok(())
}

/// All tensors in output order, noted in `report`.
fn store_all(
    plan: &Plan<'_>,
    options: &Options,
    look: bool,
    report: &mut Report,
) -> Result<Vec<Stored>, ConvertError> {
    let wanted = wanted(plan, options, report)?;
    let folds = folds(plan, options, &wanted)?;
    let touched = awq::touched(&folds);
    let mut tensors = Vec::with_capacity(plan.recipes.len());
    let mut largest = 0;
    for (recipe, wanted) in plan.recipes.iter().zip(wanted) {
        let wish = Wish { wanted, scaled: touched.contains(recipe.name.as_str()) };
        let (stored, fallback) = storage::store(&plan.inventory, recipe.clone(), wish, options, look)?;
        count(report, &stored, fallback);
        largest = largest.max(stored.bytes);
        if let Some(note) = storage::cut_blocks(&plan.inventory, recipe)
            && !report.notes.contains(&note)
        {
            report.notes.push(note);
        }
        tensors.push(stored);
    }
    if let (None, Some(what)) = (method(&tensors, options), options.quantises_with()) {
        return Err(ConvertError::Option(format!("no tensor has scales to find, so {what} means nothing")));
    }
    if !touched.is_empty() {
        let mut kinds: Vec<String> = touched.iter().map(|name| without_layer(name)).collect();
        kinds.sort();
        kinds.dedup();
        report.notes.push(format!(
            "activation-aware factors were folded in; verdicts and errors are about the scaled values of: {}",
            kinds.join(", ")
        ));
    }
    report.peak_memory_bytes = largest + encode::buffer_bytes(options.thread_count());
    if let (Some(importance), true) = (&options.importance, look && !folds.is_empty()) {
        let threads = options.thread_count();
        let mut scalings = awq::scalings(&plan.inventory, &tensors, &folds, importance, threads)?;
        for stored in &mut tensors {
            stored.scaling = scalings.remove(&stored.recipe.name);
        }
    }
    Ok(tensors)
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
            wanted.push(None);
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

fn count(report: &mut Report, stored: &Stored, fallback: Option<Fallback>) {
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

fn empty_report(plan: &Plan<'_>, options: &Options) -> Report {
    Report {
        arch: plan.arch.to_string(),
        source: plan.format.to_string(),
        source_bytes: plan.inventory.tensors().iter().map(SourceTensor::bytes).sum(),
        target: options.goal().to_owned(),
        written: Count::default(),
        dtypes: Default::default(),
        fallbacks: Vec::new(),
        draft: Count::default(),
        vision: Count::default(),
        tensors: Vec::new(),
        dropped: plan.dropped.clone(),
        convention: plan.convention.map(Convention::name),
        peak_memory_bytes: 0,
        notes: plan.notes.iter().cloned().chain(calibration_note(options)).collect(),
        quality: BTreeMap::new(),
        seconds: 0.0,
    }
}

/// Says so if a profile describes a calibration, which does nothing here.
fn calibration_note(options: &Options) -> Option<String> {
    let Profile { name, calibration, .. } = options.profile.as_ref()?;
    let calibration = calibration.as_ref()?;
    Some(format!(
        "profile {name} describes its calibration as {calibration}; it is not repeated by naming the profile"
    ))
}

/// The header without what is known only at the end.
fn header(
    source: &Source,
    plan: &Plan<'_>,
    tensors: &[Stored],
    options: &Options,
) -> Result<Header, ConvertError> {
    let filename = source.path().canonicalize().ok();
    let filename = filename.as_deref().unwrap_or(source.path()).file_name();
    let provenance = HeaderSource {
        format: plan.format,
        sha256: HASH_TO_COME.to_owned(),
        filename: filename.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
    };
    let created = match options.created {
        Some(seconds) => seconds,
        None => match source_date_epoch()? {
            Some(seconds) => seconds,
            None => digest::newest(source.files())?,
        },
    };
    let mut header =
        Header::new(plan.arch.name(), scheme(tensors, options), provenance, &created.to_string());
    header.tokenizer = plan.tokenizer.clone();
    header.config = plan.config.to_header();
    match &options.profile {
        Some(profile) => header.quant_profile = profile.name.clone(),
        None => {
            header.metadata.insert(TARGET_KEY.to_owned(), options.target.name().into());
        }
    }
    if let Some(method) = method(tensors, options) {
        header.metadata.insert(METHOD_KEY.to_owned(), method.name().into());
    }
    if let Some(generation) = &plan.generation {
        header.metadata.insert(GENERATION_KEY.to_owned(), generation.clone());
    }
    header.flags = flags(plan);
    header.layers = vec![filler(); plan.config.num_hidden_layers];
    if plan.recipes.iter().any(|recipe| recipe.role.is_none()) {
        let arch = format!("{}_mm", plan.arch);
        header.mmproj = Some(MmProj { arch, config: plan.mmproj.clone(), tensors: Vec::new() });
    }
    Ok(header)
}

/// How scales were found, searched if any were; `None` if nothing is quantised anew.
fn method(tensors: &[Stored], options: &Options) -> Option<Method> {
    let is_affine =
        |stored: &&Stored| matches!(stored.planned.encoding, Encoding::Affine { .. }) && !stored.repacked;
    let searched = tensors.iter().filter(is_affine).map(|stored| stored.searched).max()?;
    Some(match options.method {
        Some(method) => method,
        None if searched => Method::Mse,
        None => Method::Rtn,
    })
}

/// The target's scheme; for an automatic one or a profile, that of most bytes.
fn scheme(tensors: &[Stored], options: &Options) -> QuantScheme {
    if let Some(dtype) = options.target.dtype() {
        let wanted = Wanted { dtype, group: options.group, scale: options.scale, symmetric: false };
        return options::scheme(wanted.encoding(wanted.group_or_default()));
    }
    let mut bytes: BTreeMap<&'static str, (u64, QuantScheme)> = BTreeMap::new();
    for stored in tensors {
        let scheme = options::scheme(stored.planned.encoding);
        bytes.entry(scheme.name()).or_insert((0, scheme)).0 += stored.bytes;
    }
    bytes.into_values().max_by_key(|(bytes, _)| *bytes).map_or(QuantScheme::Bf16, |(_, scheme)| scheme)
}

fn flags(plan: &Plan<'_>) -> HeaderFlags {
    // The original converter sets QUANTIZED on float files as well.
    let mut flags = HeaderFlags::QUANTIZED;
    if plan.arch.is_moe() {
        flags |= HeaderFlags::HAS_MOE;
    }
    if plan.arch.is_hybrid() {
        flags |= HeaderFlags::HAS_SSM | HeaderFlags::HAS_HYBRID;
    }
    if plan.config.mtp_num_hidden_layers > 0 {
        flags |= HeaderFlags::HAS_SPECULATOR;
    }
    if plan.config.tie_word_embeddings {
        flags |= HeaderFlags::TIED_EMBEDDINGS;
    }
    flags
}

/// The entry that existing files repeat for every layer of every architecture.
fn filler() -> LayerDescriptor {
    LayerDescriptor {
        kind: LayerKind::AttentionGqa,
        moe_n_experts: 0,
        moe_n_active: 0,
        shared_attn_layer: None,
        compute_hint: Some(ComputeRegion::Accelerator),
        precision: LayerPrecision::default(),
    }
}

/// `SOURCE_DATE_EPOCH`, if it is set.
fn source_date_epoch() -> Result<Option<u64>, ConvertError> {
    const NAME: &str = "SOURCE_DATE_EPOCH";
    match std::env::var(NAME) {
        Err(std::env::VarError::NotPresent) => Ok(None),
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => match text.parse() {
            Ok(seconds) => Ok(Some(seconds)),
            Err(_) => Err(ConvertError::Option(format!("{NAME} is `{text}`, expected Unix seconds"))),
        },
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(ConvertError::Option(format!("{NAME} is not a number of Unix seconds")))
        }
    }
}

/// Refuses an output that is one of the files of the checkpoint at `source`; for callers that let [`convert`]
/// write elsewhere and move the result.
///
/// # Errors
/// If it is, or if `out` exists and the source cannot be opened.
pub fn check_output(source: &Path, out: &Path) -> Result<(), ConvertError> {
    if out.exists() { refuse_overwriting(&Source::open(source)?, out) } else { Ok(()) }
}

/// Renaming the output over a source file would destroy the source.
fn refuse_overwriting(source: &Source, out: &Path) -> Result<(), ConvertError> {
    if source.files().iter().any(|file| same_file(file, out)) {
        return Err(ConvertError::Option(format!("{} is a file of the source", out.display())));
    }
    Ok(())
}
