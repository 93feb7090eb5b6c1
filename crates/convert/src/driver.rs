//! The conversion itself: plan everything, send all tensors through the pipeline, finish the output.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

use basert_format::{
    BaseWriter, ComputeRegion, Header, HeaderFlags, LayerDescriptor, LayerKind, LayerPrecision, MmProj,
    Output, QuantScheme, SlotFlags, Source as HeaderSource,
};
use basert_model::{Arch, Config};
use serde_json::Value;

use crate::choices::{self, method};
use crate::encode::Measured;
use crate::pipeline::{self, Pipeline, Watch};
use crate::recipe::SourceTensor;
use crate::report::Count;
use crate::resume::{Done, Identity, Journal};
use crate::same_file::same_file;
use crate::source::{Plan, Source};
use crate::storage::{self, Stored};
use crate::trail::Trail;
use crate::{
    Convention, ConvertError, Evidence, Options, Profile, Progress, Report, SelfCheck, SourceValues, Target,
    compat, convention, digest, estimate, options,
};

/// Metadata key that holds the target as it was asked for.
pub(crate) const TARGET_KEY: &str = "basert.target";

/// Metadata key that holds the method by which scales were found, if any were.
const METHOD_KEY: &str = "basert.method";

/// Header metadata key that holds a checkpoint's `generation_config.json`: what it recommends for sampling.
pub const GENERATION_KEY: &str = "basert.generation_config";

/// Stands in for a SHA-256 while the files are still being hashed.
const HASH_TO_COME: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Converts the checkpoint at `source` into the `.base` file `out`, which replaces an older one, without a self-check;
/// see [`convert_to`].
///
/// # Errors
/// As [`convert_to`].
pub fn convert(
    source: &Path,
    out: &Path,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Report, ConvertError> {
    convert_to(source, &Output::new(out), options, progress, None)
}

/// Converts the checkpoint at `source` into the `.base` file `output`.
///
/// The output appears when everything has succeeded. After an error nothing is left, unless `output` keeps unfinished
/// work: then there is [`Output::partial`] and a journal beside it, and the same call goes on from there to the same
/// file as without the interruption. The same source and options give the same bytes, whatever the number of threads.
///
/// With `check`, the finished tensors are tried before the output appears; what it finds stands in the report and in the
/// output.
///
/// # Errors
/// Anything that keeps the output from being complete and right, a check that does not pass, and unfinished work that was
/// begun from something else; see [`ConvertError`].
pub fn convert_to(
    source: &Path,
    output: &Output,
    options: &Options,
    progress: &mut dyn Progress,
    check: Option<&mut dyn SelfCheck>,
) -> Result<Report, ConvertError> {
    let started = Instant::now();
    options.check()?;
    let source = Source::open(source)?;
    refuse_overwriting(&source, output.path())?;
    let mut plan = source.plan(options)?;
    compat::arrange(&mut plan, options)?;
    let options = &options.resolved(plan.inventory.is_quantised())?;
    // Whoever names the convention knows better than the norms.
    if let (Some(convention), None) = (plan.convention, options.convention) {
        convention::check_norms(&plan.inventory, &plan.recipes, convention)?;
    }
    let mut report = empty_report(&plan, options);
    let trail = Trail::of(&source, &plan);
    let tensors = choices::of(&plan, options, Some(&trail), &mut report)?;
    refuse_losses(&plan, &tensors, options)?;
    let header = header(&source, &plan, &tensors, options)?;

    let threads = pipeline::workers(&plan.inventory, &tensors, options.thread_count())?;
    let (journal, mut writer) = begin(&source, output, options, header, &plan, &tensors)?;
    if options.compat.is_some() {
        writer.pad_header_with_zeros();
    }
    progress.start(tensors.len(), report.written.bytes);
    let mut ledger = Ledger { tensors: &tensors, report: &mut report, progress, journal };
    trail.release_all();
    let pipeline = Pipeline {
        inventory: &plan.inventory,
        tensors: &tensors,
        trail: &trail,
        importance: options.importance.as_ref(),
        threads,
    };
    let filled = write_all(&pipeline, &source, &mut writer, &mut ledger).and_then(|sha256| {
        let Some(check) = check else { return Ok((sha256, BTreeMap::new())) };
        ledger.progress.check();
        let values = SourceValues::new(&plan.inventory, &plan.recipes, &trail);
        Ok((sha256, self_check(check, &values, &mut writer, options)?))
    });
    let Ledger { journal, progress, .. } = ledger;
    let (sha256, quality) = match filled {
        Ok(filled) => filled,
        Err(error) => {
            give_up_what_is_worthless(&error, journal, writer);
            return Err(error);
        }
    };
    writer.finish(|header| {
        header.source.sha256 = sha256;
        if !quality.is_empty() && options.compat.is_none() {
            header.flags |= HeaderFlags::HAS_TRACE_REF;
            header.metadata.extend(quality.clone());
        }
    })?;
    journal.map_or(Ok(()), Journal::remove)?;
    progress.finish();
    report.quality = quality;
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Removes kept work that was refused as a whole, or in which no tensor is complete.
fn give_up_what_is_worthless(error: &ConvertError, journal: Option<Journal>, writer: BaseWriter) {
    if let Some(journal) = journal
        && (matches!(error, ConvertError::SelfCheck { .. }) || journal.is_empty())
    {
        // What cannot be removed does not open either, and the error that led here matters more.
        let _ = writer.discard();
        let _ = journal.remove();
    }
}

/// Has the finished tensors tried and appends the evidence's slots; returns its metadata. A file in the original's layout
/// is tried as well, but has no place for the evidence.
fn self_check(
    check: &mut dyn SelfCheck,
    values: &SourceValues<'_>,
    writer: &mut BaseWriter,
    options: &Options,
) -> Result<BTreeMap<String, Value>, ConvertError> {
    let found = check.check(values, writer.preview()?);
    let Evidence { metadata, slots } =
        found.map_err(|cause| ConvertError::SelfCheck { path: values.path().to_owned(), cause })?;
    for (kind, payload) in slots.iter().filter(|_| options.compat.is_none()) {
        writer.write_slot(*kind, SlotFlags::default(), payload)?;
    }
    Ok(metadata)
}

/// What [`convert`] would do, from headers and configuration alone; nothing is written, and of the weights only a sample
/// is read, to time it. What depends on values stays open: errors are not measured, and scales are taken for ordinary
/// ones.
///
/// # Errors
/// As [`convert`], for everything that headers show.
pub fn plan(source: &Path, options: &Options) -> Result<Report, ConvertError> {
    let started = Instant::now();
    options.check()?;
    let source = Source::open(source)?;
    let mut plan = source.plan(options)?;
    compat::arrange(&mut plan, options)?;
    let options = &options.resolved(plan.inventory.is_quantised())?;
    let mut report = empty_report(&plan, options);
    let tensors = choices::of(&plan, options, None, &mut report)?;
    refuse_losses(&plan, &tensors, options)?;
    let threads = pipeline::workers(&plan.inventory, &tensors, options.thread_count())?;
    let estimate = estimate::estimate(&source, &plan.inventory, &tensors, threads)?;
    report.estimate = Some(estimate);
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
    let lossy = tensors
        .iter()
        .filter(|stored| !stored.verdict.is_exact() && !compat::rounds(&stored.recipe, options));
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

/// Opens the output, and before it the journal of work that is to be kept, so that no unfinished file is without one.
fn begin(
    source: &Source,
    output: &Output,
    options: &Options,
    header: Header,
    plan: &Plan<'_>,
    tensors: &[Stored],
) -> Result<(Option<Journal>, BaseWriter), ConvertError> {
    let planned: Vec<_> = tensors.iter().map(|stored| stored.planned.clone()).collect();
    let journal = match output.partial() {
        None => None,
        Some(partial) => {
            let planned_header = BaseWriter::planned_header(output, &header, &planned)?;
            let identity = Identity::of(source, &plan.inventory, options, &planned_header)?;
            Some(Journal::open(&partial, &identity)?)
        }
    };
    match (BaseWriter::create_at(output, header, planned), journal) {
        (Ok(writer), journal) => Ok((journal, writer)),
        (Err(error), journal) => {
            // No space, and nothing was begun before: a journal alone is of no use to anybody.
            if let (Some(journal), Some(partial)) = (journal, output.partial())
                && !partial.exists()
            {
                journal.remove()?;
            }
            Err(error.into())
        }
    }
}

/// Writes all tensors that are not written yet, and hashes the source on the way.
fn write_all(
    pipeline: &Pipeline<'_>,
    source: &Source,
    writer: &mut BaseWriter,
    ledger: &mut Ledger<'_>,
) -> Result<String, ConvertError> {
    let trail = pipeline.trail;
    let digests = std::thread::scope(|scope| {
        let conversion = trail.conversion();
        let hash = scope.spawn(|| trail.hash(source.files()));
        let first = ledger.take_over(writer)?;
        pipeline.run(first, writer, ledger)?;
        conversion.complete();
        hash.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    // Only a conversion that failed cancels the hash.
    Ok(source.sha256(digests.unwrap_or_default()))
}

/// Where everything is noted that happens to the tensors.
struct Ledger<'a> {
    tensors: &'a [Stored],
    report: &'a mut Report,
    progress: &'a mut dyn Progress,
    journal: Option<Journal>,
}

impl Ledger<'_> {
    /// Takes over what an interrupted conversion has left, as far as it is intact; returns the number of tensors.
    fn take_over(&mut self, writer: &mut BaseWriter) -> Result<usize, ConvertError> {
        let Some(journal) = &mut self.journal else { return Ok(0) };
        let done = journal.done();
        let checksums: Vec<u64> = done.iter().map(|done| done.xxh64).collect();
        let (tensors, progress) = (self.tensors, &mut self.progress);
        let taken = writer.take_over(&checksums, &mut |index| {
            let Stored { planned, bytes, .. } = &tensors[index];
            progress.tensor(&planned.name, *bytes);
        })?;
        journal.keep(taken)?;
        if !done.is_empty() {
            let all = tensors.len();
            self.report.notes.push(format!("resumed: {taken} of {all} tensors were complete and intact"));
        }
        for (index, done) in done.into_iter().take(taken).enumerate() {
            self.note(index, done.measured);
        }
        Ok(taken)
    }

    fn note(&mut self, index: usize, measured: Measured) {
        let (stored, line) = (&self.tensors[index], &mut self.report.tensors[index]);
        line.max_error = Some(measured.max_error);
        line.rms_error = Some((measured.squares / (stored.recipe.elements().max(1) as f64)).sqrt());
        if !stored.repacked && storage::scales_underflow(stored.planned.encoding, measured.largest) {
            self.report.notes.push(format!(
                "{}: its largest value is {:e}, too small for f16 scales; bf16 scales would keep more of it",
                stored.planned.name, measured.largest
            ));
        }
    }
}

impl Watch for Ledger<'_> {
    fn begun(&mut self, index: usize) {
        let Stored { planned, bytes, .. } = &self.tensors[index];
        self.progress.tensor(&planned.name, *bytes);
    }

    fn written(&mut self, index: usize, measured: Measured, checksum: u64) -> Result<(), ConvertError> {
        self.note(index, measured);
        match &mut self.journal {
            Some(journal) => journal.record(Done { xxh64: checksum, measured }),
            None => Ok(()),
        }
    }
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
        estimate: None,
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
    let filename = source_name(source.path());
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
    header.flags = flags(plan.arch, &plan.config);
    header.layers = vec![filler(); plan.config.num_hidden_layers];
    if plan.recipes.iter().any(|recipe| recipe.role.is_none()) {
        let arch = format!("{}_mm", plan.arch);
        header.mmproj = Some(MmProj { arch, config: plan.mmproj.clone(), tensors: Vec::new() });
    }
    compat::header(&mut header, &plan.config, options);
    Ok(header)
}

/// The target's scheme; for an automatic one or a profile, that of most bytes.
fn scheme(tensors: &[Stored], options: &Options) -> QuantScheme {
    if let Some(dtype) = options.target.dtype() {
        let wanted = options.like(dtype);
        return options::scheme(wanted.encoding(wanted.group_or_default()));
    }
    let mut bytes: BTreeMap<&'static str, (u64, QuantScheme)> = BTreeMap::new();
    for stored in tensors {
        let scheme = options::scheme(stored.planned.encoding);
        bytes.entry(scheme.name()).or_insert((0, scheme)).0 += stored.bytes;
    }
    bytes.into_values().max_by_key(|(bytes, _)| *bytes).map_or(QuantScheme::Bf16, |(_, scheme)| scheme)
}

pub(crate) fn flags(arch: Arch, config: &Config) -> HeaderFlags {
    // The original converter sets QUANTIZED on float files as well.
    let mut flags = HeaderFlags::QUANTIZED;
    if arch.is_moe() {
        flags |= HeaderFlags::HAS_MOE;
    }
    if arch.is_hybrid() {
        flags |= HeaderFlags::HAS_SSM | HeaderFlags::HAS_HYBRID;
    }
    if config.mtp_num_hidden_layers > 0 {
        flags |= HeaderFlags::HAS_SPECULATOR;
    }
    if config.tie_word_embeddings {
        flags |= HeaderFlags::TIED_EMBEDDINGS;
    }
    flags
}

/// The entry that existing files repeat for every layer of every architecture.
pub(crate) fn filler() -> LayerDescriptor {
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
pub(crate) fn source_date_epoch() -> Result<Option<u64>, ConvertError> {
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

/// The last component of a checkpoint's path as it was given; of `.` and `..` that of the directory meant. Links are not
/// followed: a download cache links readable names to files named by their hash.
pub fn source_name(path: &Path) -> Option<OsString> {
    match path.file_name() {
        Some(name) => Some(name.to_owned()),
        None => Some(path.canonicalize().ok()?.file_name()?.to_owned()),
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
