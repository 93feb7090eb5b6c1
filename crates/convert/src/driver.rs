//! The conversion itself: plan everything, then one tensor at a time through memory into the output.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use basert_format::{
    BaseWriter, ComputeRegion, Header, HeaderFlags, LayerDescriptor, LayerKind, LayerPrecision, MmProj,
    Source as HeaderSource,
};

use crate::report::{Count, Fallback};
use crate::same_file::same_file;
use crate::source::{Plan, Source};
use crate::storage::{self, Stored};
use crate::{ConvertError, Options, Progress, Report, digest, encode};

/// Metadata key that holds the target as it was asked for.
const TARGET_KEY: &str = "basert.target";

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
    let started = Instant::now();
    options.check()?;
    let source = Source::open(source)?;
    refuse_overwriting(&source, out)?;
    let plan = source.plan(options)?;
    let mut report = empty_report(&source, &plan, options);
    let (header, tensors) = prepare(&source, &plan, options, &mut report)?;

    let planned = tensors.iter().map(|stored| stored.planned.clone()).collect();
    let mut writer = BaseWriter::create(out, header, planned)?;
    progress.start(tensors.len(), report.written.bytes);
    let cancelled = AtomicBool::new(false);
    let notes = &mut report.notes;
    let sha256 = std::thread::scope(|scope| {
        // Hashing reads what the conversion reads; side by side they share the page cache.
        let hash = scope.spawn(|| hash(&source, &cancelled));
        let written = write_all(&plan, &tensors, options, &mut writer, progress, notes);
        cancelled.store(written.is_err(), Ordering::Relaxed);
        let hash = hash.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written.and(hash)
    })?;
    writer.finish(|header| header.source.sha256 = sha256.unwrap_or_default())?;
    progress.finish();
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

fn hash(source: &Source, cancelled: &AtomicBool) -> Result<Option<String>, ConvertError> {
    match source {
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
    notes: &mut Vec<String>,
) -> Result<(), ConvertError> {
    let threads = options.thread_count();
    for stored in tensors {
        let Stored { recipe, planned, bytes } = stored;
        progress.tensor(&planned.name, *bytes);
        let payload = encode::payload(&plan.inventory, recipe, planned.encoding, threads)?;
        writer.write_tensor(&payload.bytes)?;
        if storage::scales_underflow(planned.encoding, payload.largest) {
            notes.push(format!(
                "{}: its largest value is {:e}, too small for f16 scales; bf16 scales would keep more of it",
                planned.name, payload.largest
            ));
        }
    }
    Ok(())
}

/// The header without what is known only at the end, and the tensors in output order.
fn prepare(
    source: &Source,
    plan: &Plan<'_>,
    options: &Options,
    report: &mut Report,
) -> Result<(Header, Vec<Stored>), ConvertError> {
    let mut tensors = Vec::with_capacity(plan.recipes.len());
    for recipe in &plan.recipes {
        let (stored, fallback) = storage::store(&plan.inventory, recipe.clone(), options)?;
        count(report, &stored, fallback);
        tensors.push(stored);
    }
    Ok((header(source, plan, options)?, tensors))
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
}

fn empty_report(source: &Source, plan: &Plan<'_>, options: &Options) -> Report {
    Report {
        arch: plan.arch.to_string(),
        source: source.format().to_string(),
        source_bytes: plan.inventory.tensors().iter().map(|tensor| tensor.bytes.len() as u64).sum(),
        target: options.target.to_string(),
        written: Count::default(),
        dtypes: Default::default(),
        fallbacks: Vec::new(),
        draft: Count::default(),
        vision: Count::default(),
        ignored: plan.ignored.clone(),
        notes: plan.notes.clone(),
        seconds: 0.0,
    }
}

fn header(source: &Source, plan: &Plan<'_>, options: &Options) -> Result<Header, ConvertError> {
    let filename = source.path().canonicalize().ok();
    let filename = filename.as_deref().unwrap_or(source.path()).file_name();
    let provenance = HeaderSource {
        format: source.format(),
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
    let mut header = Header::new(plan.arch.name(), options.target.scheme(), provenance, &created.to_string());
    header.tokenizer = plan.tokenizer.clone();
    header.config = plan.config.to_header();
    header.metadata.insert(TARGET_KEY.to_owned(), options.target.name().into());
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
