//! `.base` to GGUF, so that llama.cpp runs the same weights.
//!
//! Names, shapes and orders are the inverse of what [`crate::convert`] undoes when it reads a GGUF. Codes and scales are moved,
//! not encoded again, wherever a ggml type holds them, and every tensor is decoded on both sides and compared; what
//! no ggml type holds is refused unless another type is given for it.
//!
//! | encoding | ggml type | because |
//! |---|---|---|
//! | q4, q5 with biases | Q4_1, Q5_1 | groups of 64 and 128 become blocks of 32 with the same scale and bias |
//! | q4, q5, q8 symmetric | Q4_0, Q5_0, Q8_0 | the same formula |
//! | mxfp4 | MXFP4 | the same numbers, nibbles in another order |
//! | super-blocks, floats | themselves | |
//! | q2, q3, q6, q8 with biases, nvfp4 | none | |
//!
//! bf16 scales fit only where they are f16 numbers as well. Vectors, routers, convolutions and the shared expert's gate are F32
//! in a GGUF, which holds them exactly.

mod metadata;
mod outtype;
mod report;
mod tensor;
mod writer;

use std::path::Path;
use std::str::FromStr;
use std::time::Instant;

use basert_format::{BaseFile, Output, TensorView};
use basert_model::{Arch, Config, Mixer, ModelError, ModelSpec, RopeScaling, TensorSpec};

pub use outtype::Outtype;
pub use report::{ExportReport, Exported};

use crate::same_file::same_file;
use crate::{ConvertError, Dropped, Progress};
use tensor::{Item, Source};
use writer::GgufWriter;

/// Options of [`export_gguf`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportOptions {
    /// Type of the tensors that no ggml type holds exactly; `None` refuses them.
    pub outtype: Option<Outtype>,
    /// Leave the tokenizer out: the model then takes and gives token ids.
    pub no_tokenizer: bool,
    /// Threads; `None` = what the system reports as available.
    pub threads: Option<usize>,
}

/// Writes the `.base` file `source` as the GGUF `out`, which appears when everything has succeeded. The same file and
/// options give the same bytes.
///
/// # Errors
/// A model or tokenizer that llama.cpp has no words for, tensors that no type holds exactly, and whatever keeps the
/// output from being written.
pub fn export_gguf(
    source: &Path,
    out: &Output,
    options: &ExportOptions,
    progress: &mut dyn Progress,
) -> Result<ExportReport, ConvertError> {
    let started = Instant::now();
    let file = BaseFile::open(source)?;
    if same_file(source, out.path()) {
        return Err(ConvertError::Option(format!("{} is both source and output", out.path().display())));
    }
    let (spec, config) = model(&file)?;
    let mut report = ExportReport::new(spec.arch.gguf_architecture());
    let items = items(&file, &spec, &config, options, &mut report)?;
    let metadata = metadata::of(&file, &spec, &config, options, &mut report.notes)?;
    let infos: Vec<writer::TensorInfo<'_>> = items.iter().map(Item::info).collect();
    let mut writer = GgufWriter::create(out, &metadata, &infos)?;
    progress.start(items.len(), items.iter().map(|item| item.bytes() as u64).sum());
    let threads = options
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    for item in &items {
        progress.tensor(item.name(), item.bytes() as u64);
        let (bytes, max_error) = item.payload(source, threads)?;
        writer.write(&bytes)?;
        report.tensors.push(item.exported(max_error));
    }
    writer.finish()?;
    progress.finish();
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// The model in `file`. Whether its head is tied is decided by the tensors.
fn model(file: &BaseFile) -> Result<(ModelSpec, Config), ConvertError> {
    let refuse = |cause: ModelError| ConvertError::Model { path: file.path().to_owned(), cause };
    let header = file.header();
    let arch = Arch::from_str(&header.arch).map_err(refuse)?;
    let mut config = Config::from_header(arch, &header.config).map_err(refuse)?;
    config.tie_word_embeddings = file.tensor("lm_head.weight").is_none();
    let spec = ModelSpec::new(arch, &config).map_err(refuse)?;
    Ok((spec, config))
}

/// Every tensor of the output.
fn items<'a>(
    file: &'a BaseFile,
    spec: &ModelSpec,
    config: &Config,
    options: &ExportOptions,
    report: &mut ExportReport,
) -> Result<Vec<Item<'a>>, ConvertError> {
    let mut tensors = spec.tensors();
    if config.mtp_num_hidden_layers > 0 {
        let draft = spec.draft_tensors(config.mtp_num_hidden_layers);
        tensors.extend(draft.map_err(|cause| ConvertError::Model { path: file.path().to_owned(), cause })?);
    }
    let mut items = Vec::with_capacity(tensors.len());
    let mut used = std::collections::BTreeSet::new();
    let mut refused = Vec::new();
    for tensor in tensors {
        let Some((source, name)) = find(file, &tensor) else {
            if tensor.optional {
                continue;
            }
            return Err(ConvertError::MissingTensor {
                path: file.path().to_owned(),
                tensor: tensor.name.clone(),
                canonical: tensor.name,
            });
        };
        check_shape(file, &tensor, source)?;
        used.insert(name);
        match Item::new(spec, tensor, source, options.outtype) {
            Ok(item) => items.push(item),
            Err(cause) => refused.push(cause),
        }
    }
    if !refused.is_empty() {
        return Err(ConvertError::NoGgmlType { path: file.path().to_owned(), tensors: refused });
    }
    if let Some(freqs) = rope_divisors(spec, file) {
        items.insert(0, Item::computed("rope_freqs.weight", &freqs));
    }
    report.dropped = dropped(file, &used);
    Ok(items)
}

/// The tensor, or the fused one that it is half of, and the name of what is used.
fn find<'a>(file: &'a BaseFile, tensor: &TensorSpec) -> Option<(Source<'a>, String)> {
    if let Some(view) = file.tensor(&tensor.name) {
        return Some((Source::Whole(view), tensor.name.clone()));
    }
    for (half, skip) in [("ffn_gate_exps", false), ("ffn_up_exps", true)] {
        if tensor.name.contains(half) {
            let fused = tensor.name.replace(half, "ffn_gate_up_exps");
            return Some((Source::Half { fused: file.tensor(&fused)?, second: skip }, fused));
        }
    }
    None
}

/// Refuses a tensor of another shape than the configuration implies.
fn check_shape(file: &BaseFile, tensor: &TensorSpec, source: Source<'_>) -> Result<(), ConvertError> {
    let (view, expected) = match (source, &tensor.shape[..]) {
        (Source::Half { fused, .. }, &[experts, rows, width]) => (fused, vec![experts, 2 * rows, width]),
        (Source::Whole(view) | Source::Half { fused: view, .. }, shape) => (view, shape.to_vec()),
    };
    let found: Vec<usize> = view.shape.iter().map(|&dim| dim as usize).collect();
    if found == expected {
        return Ok(());
    }
    let (path, tensor) = (file.path().to_owned(), view.entry.name.clone());
    Err(ConvertError::Shape { path, tensor, found, expected })
}

/// What a GGUF of a language model has no place for.
fn dropped(file: &BaseFile, used: &std::collections::BTreeSet<String>) -> Vec<Dropped> {
    let name = |view: TensorView<'_>| view.entry.name.clone();
    let main = file.tensors().map(name).filter(|name| !used.contains(name));
    let main = main.map(|name| Dropped { name, why: "llama.cpp has no such tensor" });
    let towers = file.mmproj_tensors().map(name);
    let towers = towers.map(|name| Dropped { name, why: "towers go into a GGUF of their own" });
    main.chain(towers).collect()
}

/// The divisors of the rotary frequencies that stand for llama3 scaling in a GGUF, unless the bundle has them already.
fn rope_divisors(spec: &ModelSpec, file: &BaseFile) -> Option<Vec<f32>> {
    let attention = spec.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Attention(attention) => Some(attention),
        Mixer::GatedDelta(_) => None,
    })?;
    let rope = &attention.rope;
    if !matches!(rope.scaling, RopeScaling::Llama3 { .. }) || file.tensor("rope_freqs.weight").is_some() {
        return None;
    }
    let divisor = |i: usize| {
        let frequency = rope.theta.powf(-(2.0 * i as f64) / rope.dims as f64);
        (frequency / rope.scaling.apply(frequency)) as f32
    };
    Some((0..rope.dims / 2).map(divisor).collect())
}
