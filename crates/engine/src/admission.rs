//! What a file says it is, and which files are not run.

use basert_format::{BaseFile, Header, SlotFlags, SourceFormat, VERSION_KEY};
use basert_model::{Arch, Config, ModelSpec};

use crate::EngineError;

/// The layers of a file, its prediction head included: what its header says, as far as it has the tensors.
///
/// # Errors
/// An architecture or configuration that this version does not know.
pub fn model_spec(file: &BaseFile) -> Result<ModelSpec, EngineError> {
    let header = file.header();
    let at = |source| EngineError::Model { path: file.path().to_path_buf(), source };
    let arch: Arch = header.arch.parse().map_err(at)?;
    let config = Config::from_header(arch, &header.config).map_err(at)?;
    let mut spec = ModelSpec::new(arch, &config).map_err(at)?;
    // The presence of the tensor decides; flags and config only confirm (docs/format.md).
    spec.tied_head = file.tensor_index("lm_head.weight").is_none();
    spec.draft = spec.draft.filter(|_| file.tensor_index("mtp.fc.weight").is_some());
    Ok(spec)
}

/// Files that need more than this engine does, or that hold too little to be run.
pub(crate) fn refuse_unrunnable(file: &BaseFile) -> Result<(), EngineError> {
    let refuse = |reason: String| Err(EngineError::Refused { path: file.path().to_path_buf(), reason });
    if let Some(slot) = file.slots().iter().find(|s| s.flags.contains(SlotFlags::REQUIRED)) {
        return refuse(format!(
            "the file requires its slot '{:?}' to be honoured, which this engine does not do",
            slot.kind
        ));
    }
    let hybrid = file.tensors().any(|t| t.entry.name.contains(".ssm."));
    if file.header().is_upstream_gguf() && hybrid {
        let reason = "this hybrid was converted from GGUF by the original converter, which leaves out the \
                      linear-attention configuration; convert the GGUF again with `basert convert`";
        return refuse(reason.to_owned());
    }
    Ok(())
}

/// Upstream adds 1 to norms that MLX checkpoints already hold shifted: such a file runs and babbles.
pub(crate) fn refuse_double_shifted_norms(file: &BaseFile, arch: Arch) -> Result<(), EngineError> {
    let Header { source, metadata, .. } = file.header();
    let from_mlx = source.format == SourceFormat::MlxSafetensors && !metadata.contains_key(VERSION_KEY);
    let Some(mean) = doubled_norm_offset(file, arch).filter(|_| from_mlx) else { return Ok(()) };
    Err(EngineError::Refused {
        path: file.path().to_path_buf(),
        reason: format!(
            "the mean input norm gain is {mean:.2} instead of about 1: the original converter added the norm \
             offset twice to this MLX checkpoint; convert it again with `basert convert`"
        ),
    })
}

/// The mean input norm gain of a Qwen3.5 file if it is nearer to 2 than to 1, as it is after the offset of 1 was added
/// twice. A trained model's is close to 1.
pub fn doubled_norm_offset(file: &BaseFile, arch: Arch) -> Option<f64> {
    if !matches!(arch, Arch::Qwen35 | Arch::Qwen35Moe) {
        return None;
    }
    let (mut sum, mut count) = (0.0, 0usize);
    let norms = file.tensors().filter(|tensor| {
        tensor.entry.name.starts_with("layers.") && tensor.entry.name.ends_with(".input_norm.weight")
    });
    for norm in norms {
        let mut gains = vec![0.0; norm.shape.iter().product::<u64>() as usize];
        norm.encoding.decode(norm.data, gains.len(), 0, &mut gains).ok()?;
        sum += gains.iter().map(|&gain| f64::from(gain)).sum::<f64>();
        count += gains.len();
    }
    let mean = sum / count.max(1) as f64;
    (mean >= 1.5).then_some(mean)
}
