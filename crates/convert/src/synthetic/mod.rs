//! Bundles with random weights and the geometry of a real model, for benchmarks and tests of everything that does not
//! depend on what the weights say.
//!
//! Codes are filled with a counter-based generator and scales are chosen for them, so that no value is ever quantised:
//! making the file costs little more than writing it. Linear layers have zero mean and a variance of one over their
//! inputs, norm gains lie near 1, and decay and update rates where trained models have them, so activations,
//! states and logits stay finite and spread. Same geometry and options, same bytes, on any number of threads.

mod fill;

use std::fmt;
use std::sync::mpsc;
use std::time::Instant;

use basert_format::{BaseWriter, Header, Output, PlannedTensor, Source, SourceFormat};
use basert_model::catalog::Catalog;
use basert_model::{Arch, Config, ModelError, ModelSpec, Storage, TensorSpec};
use basert_quant::{Encoding, FloatDtype};
use serde::Serialize;

use crate::driver::{TARGET_KEY, filler, flags, source_date_epoch};
use crate::recipe::Recipe;
use crate::report::Count;
use crate::{ConvertError, Options, Progress, Target, options, storage};

/// Header metadata key that says what a random bundle is, in words.
pub const SYNTHETIC_KEY: &str = "basert.synthetic";

/// A model to be filled with random weights.
#[derive(Clone, Debug)]
pub struct Synthetic {
    /// What it is called: a geometry's id, and how many of its layers if not all.
    pub name: String,
    /// Family.
    pub arch: Arch,
    /// Hyperparameters.
    pub config: Config,
    /// What was assumed about the geometry beyond what is verified.
    pub assumptions: Vec<String>,
}

/// What was written.
#[derive(Clone, Debug, Serialize)]
pub struct SyntheticReport {
    /// As [`Synthetic::name`].
    pub name: String,
    /// Architecture of the output.
    pub arch: &'static str,
    /// The target, e.g. `base-q4`.
    pub target: &'static str,
    /// Everything written.
    pub written: Count,
    /// As [`Synthetic::assumptions`], and tensors that could not be stored as the target asks.
    pub notes: Vec<String>,
    /// Wall time in seconds.
    pub seconds: f64,
}

impl Synthetic {
    /// The geometry `id` of the catalog, without draft layers, its first `layers` layers only if given.
    ///
    /// # Errors
    /// An id that is not in the catalog, lacks a verified field or belongs to a family that is not computed here; a
    /// number of layers that it does not have.
    pub fn from_catalog(id: &str, layers: Option<usize>) -> Result<Synthetic, ConvertError> {
        let refuse = |cause: ModelError| ConvertError::Option(cause.to_string());
        let catalog = Catalog::load().map_err(refuse)?;
        let mut settled = catalog.get(id).and_then(|geometry| geometry.config()).map_err(refuse)?;
        let mut name = id.to_owned();
        if let Some(layers) = layers {
            settled.cut(layers).map_err(refuse)?;
            name = format!("{id}-{layers}-layers");
        }
        let basert_model::catalog::Settled { arch, config, assumptions } = settled;
        Ok(Synthetic { name, arch, config, assumptions })
    }

    /// With the draft layers that the catalog says are published with the model.
    ///
    /// # Errors
    /// The catalog knows of none.
    pub fn with_draft_layers(mut self, id: &str) -> Result<Synthetic, ConvertError> {
        let refuse = |cause: ModelError| ConvertError::Option(cause.to_string());
        let catalog = Catalog::load().map_err(refuse)?;
        let layers = catalog.get(id).map_err(refuse)?.draft_layers().unwrap_or(0);
        if layers == 0 {
            return Err(ConvertError::Option(format!("{id}: no draft layers are known of this model")));
        }
        self.config.mtp_num_hidden_layers = layers as usize;
        self.name += "-drafts";
        Ok(self)
    }
}

/// Writes `model` to `out`, on up to `options.threads` threads. Of the options, the target, group, scale format, threads
/// and time stamp count; the others are about sources.
///
/// # Errors
/// Options that make no sense, a configuration that is no model, and whatever keeps the file from being written.
pub fn synthesize(
    model: &Synthetic,
    out: &Output,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<SyntheticReport, ConvertError> {
    let started = Instant::now();
    options.check()?;
    let options = &options.resolved(false)?;
    let refuse = |cause: ModelError| ConvertError::Option(format!("{}: {cause}", model.name));
    let spec = ModelSpec::new(model.arch, &model.config).map_err(refuse)?;
    let mut report = SyntheticReport {
        name: model.name.clone(),
        arch: model.arch.name(),
        target: options.target.name(),
        written: Count::default(),
        notes: model.assumptions.clone(),
        seconds: 0.0,
    };
    let mut tensors = Vec::new();
    for tensor in all_tensors(&spec, model.config.mtp_num_hidden_layers)? {
        tensors.push(plan(tensor, options, &mut report.notes)?);
    }
    tensors.iter().for_each(|tensor| report.written.add(tensor.bytes));
    let header = header(model, options)?;
    let planned = tensors.iter().map(|tensor| tensor.planned.clone()).collect();
    let mut writer = BaseWriter::create_at(out, header, planned)?;
    progress.start(tensors.len(), report.written.bytes);
    write(&tensors, options.thread_count(), &mut writer, progress)?;
    writer.finish(|_| {})?;
    progress.finish();
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// A tensor of a file that is not written yet.
#[derive(Clone, Copy, Debug)]
pub struct StoredTensor {
    /// How it is stored.
    pub encoding: Encoding,
    /// Elements of a row.
    pub cols: usize,
    /// Bytes of its payload.
    pub bytes: u64,
}

/// The tensors of a model, draft layers included, where nothing is known but its geometry: as `options.target` stores
/// them, floats as published checkpoints have them.
///
/// # Errors
/// Options that make no sense, and draft layers of a model that has no attention layer.
pub fn stored_tensors(
    spec: &ModelSpec,
    draft_layers: usize,
    options: &Options,
) -> Result<Vec<StoredTensor>, ConvertError> {
    options.check()?;
    let options = &options.resolved(false)?;
    let stored = all_tensors(spec, draft_layers)?.into_iter().map(|tensor| {
        let Planned { spec, planned, bytes } = plan(tensor, options, &mut Vec::new())?;
        let cols = spec.shape.last().copied().unwrap_or(1);
        Ok(StoredTensor { encoding: planned.encoding, cols, bytes })
    });
    stored.collect()
}

/// The tensors that every model of these layers has, those of the draft layers last.
fn all_tensors(spec: &ModelSpec, draft_layers: usize) -> Result<Vec<TensorSpec>, ConvertError> {
    let mut tensors = spec.tensors();
    if draft_layers > 0 {
        let draft = spec.draft_tensors(draft_layers);
        tensors.extend(draft.map_err(|cause| ConvertError::Option(cause.to_string()))?);
    }
    tensors.retain(|tensor| !tensor.optional);
    Ok(tensors)
}

/// A tensor and how it is stored.
struct Planned {
    spec: TensorSpec,
    planned: PlannedTensor,
    bytes: u64,
}

fn plan(spec: TensorSpec, options: &Options, notes: &mut Vec<String>) -> Result<Planned, ConvertError> {
    let recipe = Recipe::whole(&spec, 0);
    let target = options.target.dtype().or(Target::BASE_Q4.dtype());
    let encoding = match (spec.role.storage(), target) {
        (Storage::F32, _) | (_, None) => Encoding::Float(FloatDtype::F32),
        // Published checkpoints are bf16.
        (Storage::SourceFloat, _) => Encoding::Float(FloatDtype::Bf16),
        (Storage::Target, Some(dtype)) => match dtype.float() {
            Some(float) => Encoding::Float(float),
            None => {
                let choice = storage::fitting(&recipe, options.like(dtype));
                if choice.fell_back {
                    let (name, width) = (&spec.name, recipe.width);
                    let stored = storage::describe(choice.encoding);
                    notes.push(format!("{name}: rows of {width} do not divide; stored as {stored}"));
                }
                choice.encoding
            }
        },
    };
    let bytes = encoding.payload_len(recipe.elements() as u64).map_err(|cause| encode_error(&spec, cause))?;
    let planned = storage::planned(&recipe, encoding, storage::place(&recipe));
    Ok(Planned { spec, planned, bytes })
}

/// Fills one tensor while the one before is written.
fn write(
    tensors: &[Planned],
    threads: usize,
    writer: &mut BaseWriter,
    progress: &mut dyn Progress,
) -> Result<(), ConvertError> {
    std::thread::scope(|scope| {
        // Buffers go round: fresh ones would cost a page fault for every 4 KiB.
        let (filled, ready) = mpsc::sync_channel::<Result<Vec<u8>, ConvertError>>(1);
        let (used, free) = mpsc::channel::<Vec<u8>>();
        scope.spawn(move || {
            for tensor in tensors {
                let mut buffer = free.try_recv().unwrap_or_default();
                let result = fill::payload(&tensor.spec, tensor.planned.encoding, threads, &mut buffer);
                let result = result.map(|()| buffer).map_err(|cause| encode_error(&tensor.spec, cause));
                // The writer has given up, and says why.
                if filled.send(result).is_err() {
                    break;
                }
            }
        });
        for (tensor, payload) in tensors.iter().zip(ready) {
            progress.tensor(&tensor.spec.name, tensor.bytes);
            let payload = payload?;
            writer.write_tensor(&payload)?;
            // The other side may be done already.
            let _ = used.send(payload);
        }
        Ok(())
    })
}

fn header(model: &Synthetic, options: &Options) -> Result<Header, ConvertError> {
    let dtype = options.target.dtype().or(Target::BASE_Q4.dtype());
    let encoding = dtype.map_or(Encoding::Float(FloatDtype::F32), |dtype| {
        let wanted = options.like(dtype);
        wanted.encoding(wanted.group_or_default())
    });
    let source =
        Source { format: SourceFormat::Synthetic, sha256: String::new(), filename: model.name.clone() };
    let created = match options.created {
        Some(seconds) => seconds,
        None => source_date_epoch()?.unwrap_or(0),
    };
    let scheme = options::scheme(encoding);
    let mut header = Header::new(model.arch.name(), scheme, source, &created.to_string());
    header.config = model.config.to_header();
    header.metadata.insert(TARGET_KEY.to_owned(), options.target.name().into());
    let words = format!("random weights with the geometry of {}; without tokenizer", model.name);
    header.metadata.insert(SYNTHETIC_KEY.to_owned(), words.into());
    header.flags = flags(model.arch, &model.config);
    header.layers = vec![filler(); model.config.num_hidden_layers];
    Ok(header)
}

fn encode_error(spec: &TensorSpec, cause: basert_quant::QuantError) -> ConvertError {
    ConvertError::Option(format!("tensor {}: {cause}", spec.name))
}

impl fmt::Display for SyntheticReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        let rate = self.written.bytes as f64 / 1e9 / self.seconds.max(1e-9);
        write!(
            f,
            "synthetic {} ({}) -> {}: {} tensors, {} bytes in {:.1} s ({rate:.2} GB/s)",
            self.name, self.arch, self.target, self.written.tensors, self.written.bytes, self.seconds
        )
    }
}
