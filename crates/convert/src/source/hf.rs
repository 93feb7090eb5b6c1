//! A Hugging Face directory: `config.json`, safetensors shards, tokenizer files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use basert_model::{Arch, Config, ModelSpec};
use basert_quant::{FloatDtype, GgmlType};
use serde_json::Value;

use super::{Plan, in_file, read_json, refuse_unknown, unsupported};
use crate::recipe::{Inventory, Recipe, SourceTensor, hf};
use crate::safetensors::{Checkpoint, Dtype};
use crate::{ConvertError, Options, tokenizer};

/// Keys of `config.json` that go with the towers.
const TOWER_KEYS: [&str; 6] = [
    "vision_config",
    "audio_config",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
];

/// An opened directory.
pub(crate) struct HfSource {
    directory: PathBuf,
    config_path: PathBuf,
    config: Value,
    generation: Option<Value>,
    checkpoint: Checkpoint,
    files: Vec<PathBuf>,
}

impl HfSource {
    /// Opens the side files and every shard; nothing of the weights is read.
    pub fn open(directory: &Path) -> Result<HfSource, ConvertError> {
        let config_path = directory.join("config.json");
        let Some(config) = read_json(&config_path)? else {
            return Err(ConvertError::NotACheckpoint {
                path: directory.to_owned(),
                why: "there is no config.json".to_owned(),
            });
        };
        let generation_path = directory.join("generation_config.json");
        let generation = read_json(&generation_path)?;
        if generation.as_ref().is_some_and(|generation| !generation.is_object()) {
            let cause = serde::de::Error::custom("it must be a JSON object");
            return Err(ConvertError::Json { path: generation_path, cause });
        }
        let checkpoint = Checkpoint::open(directory)?;
        let mut files = vec![config_path.clone(), generation_path];
        files.extend(tokenizer::FILES.map(|name| directory.join(name)));
        files.retain(|path| path.is_file());
        files.extend(checkpoint.index.clone());
        files.extend(checkpoint.shards.iter().map(|shard| shard.path().to_owned()));
        Ok(HfSource { directory: directory.to_owned(), config_path, config, generation, checkpoint, files })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Every file that was found to matter.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// See [`super::Source::plan`].
    pub fn plan(&self, options: &Options) -> Result<Plan<'_>, ConvertError> {
        self.refuse_quantised_config()?;
        let (arch, mut config) =
            Config::from_hf(&self.config, self.generation.as_ref()).map_err(in_file(&self.config_path))?;
        let mut inventory = Inventory::new(&self.directory, self.tensors(), hf::normalise)?;
        self.refuse_other_conventions(&inventory)?;

        let mut notes = Vec::new();
        self.settle_head_and_draft(&inventory, arch, &mut config, &mut notes);
        let spec = ModelSpec::new(arch, &config).map_err(in_file(&self.config_path))?;
        let mut recipes = hf::recipes(&mut inventory, &spec, &spec.tensors())?;
        if config.mtp_num_hidden_layers > 0 {
            let draft =
                spec.draft_tensors(config.mtp_num_hidden_layers).map_err(in_file(&self.config_path))?;
            recipes.extend(hf::recipes(&mut inventory, &spec, &draft)?);
        }
        let towers = towers(&mut inventory)?;
        let mmproj = if towers.is_empty() { BTreeMap::new() } else { self.tower_config() };
        recipes.extend(towers);
        let ignored = ignore_derived(&mut inventory);
        refuse_unknown(&inventory, arch)?;
        let tokenizer =
            tokenizer::from_directory(&self.directory, options.allow_missing_tokenizer, &mut notes)?;
        let generation = self.generation.clone();
        Ok(Plan { arch, config, inventory, recipes, mmproj, tokenizer, generation, ignored, notes })
    }

    /// The tensors decide whether the head is the embedding table and whether draft layers exist.
    fn settle_head_and_draft(
        &self,
        inventory: &Inventory<'_>,
        arch: Arch,
        config: &mut Config,
        notes: &mut Vec<String>,
    ) {
        if inventory.has("lm_head.weight") {
            if self.declares_tied_head() {
                notes.push(
                    "config.json ties the head to the embedding table (tie_word_embeddings), but the checkpoint \
                     has lm_head.weight, which is used"
                        .to_owned(),
                );
            }
            config.tie_word_embeddings = false;
        }
        let declared = config.mtp_num_hidden_layers;
        let found = if arch.is_hybrid() { hf::draft_layers(inventory) } else { 0 };
        if declared > 0 && found == 0 {
            notes.push("config.json declares draft layers (mtp), but the checkpoint has none".to_owned());
        }
        config.mtp_num_hidden_layers = found;
    }

    /// Whether any level of `config.json` says so; where nothing is said, the tensors alone decide.
    fn declares_tied_head(&self) -> bool {
        let levels = std::iter::successors(Some(&self.config), |config| config.get("text_config"));
        levels.filter_map(|config| config.get("tie_word_embeddings")).last() == Some(&Value::Bool(true))
    }

    fn tensors(&self) -> Vec<SourceTensor<'_>> {
        let mut tensors = Vec::new();
        for shard in &self.checkpoint.shards {
            tensors.extend(shard.tensors().map(|tensor| SourceTensor {
                name: tensor.name,
                file: shard.path(),
                shape: tensor.shape.to_vec(),
                ty: element_type(tensor.dtype),
                type_name: tensor.dtype.name(),
                bytes: tensor.data,
            }));
        }
        tensors
    }

    /// Quantised checkpoints name their method in `config.json`, at any level of nesting.
    fn refuse_quantised_config(&self) -> Result<(), ConvertError> {
        let mut level = Some(&self.config);
        while let Some(config) = level {
            for key in ["quantization", "quantization_config"] {
                let Some(Value::Object(settings)) = config.get(key) else { continue };
                let what = match settings.get("quant_method").and_then(Value::as_str) {
                    Some(method) => format!("checkpoints quantised with `{method}` are"),
                    None => "quantised MLX checkpoints are".to_owned(),
                };
                return Err(unsupported(&self.config_path, what));
            }
            level = config.get("text_config");
        }
        Ok(())
    }

    /// Signals of other conventions that travel with the tensors.
    fn refuse_other_conventions(&self, inventory: &Inventory<'_>) -> Result<(), ConvertError> {
        let is_mlx = |format: &String| format == "mlx";
        let mut shards = self.checkpoint.shards.iter();
        if let Some(shard) = shards.find(|shard| shard.metadata().get("format").is_some_and(is_mlx)) {
            return Err(unsupported(shard.path(), "MLX checkpoints (`format: mlx`) are"));
        }
        for tensor in inventory.tensors() {
            let what = match tensor.name.rsplit_once('.').map(|(_, suffix)| suffix) {
                Some("scales") => "quantised MLX checkpoints (`.scales`) are",
                Some("qweight") => "GPTQ and AWQ checkpoints (`.qweight`) are",
                Some("weight_scale" | "weight_scale_inv") => {
                    "FP8 and compressed-tensors checkpoints (`.weight_scale`) are"
                }
                _ if is_mlx_convolution(tensor) => {
                    "MLX checkpoints (conv1d stored as [channels, taps, 1]) are"
                }
                _ => continue,
            };
            return Err(unsupported(tensor.file, format!("tensor `{}`: {what}", tensor.name)));
        }
        Ok(())
    }

    fn tower_config(&self) -> BTreeMap<String, Value> {
        let value = |key: &str| Some((key.to_owned(), self.config.get(key)?.clone()));
        TOWER_KEYS.into_iter().filter_map(value).collect()
    }
}

/// mlx-lm moves the taps in front of the unit axis. Files in that form also have 1 added to their norms.
fn is_mlx_convolution(tensor: &SourceTensor<'_>) -> bool {
    tensor.name.ends_with("linear_attn.conv1d.weight") && matches!(tensor.shape[..], [_, taps, 1] if taps > 1)
}

/// Recipes that keep vision and audio towers as they are.
fn towers(inventory: &mut Inventory<'_>) -> Result<Vec<Recipe>, ConvertError> {
    let mut recipes = Vec::new();
    for (name, _) in inventory.unused() {
        if !hf::is_tower(&name) || hf::is_derived(&name) {
            continue;
        }
        let shape = inventory.find(&name).map(|tensor| tensor.shape.clone()).unwrap_or_default();
        let tensor = inventory.take(&name, &shape, &name)?;
        recipes.push(Recipe::kept(name, shape, tensor));
    }
    Ok(recipes)
}

/// Marks tensors that carry nothing and returns their names.
fn ignore_derived(inventory: &mut Inventory<'_>) -> Vec<String> {
    let mut ignored = Vec::new();
    for (name, original) in inventory.unused() {
        if hf::is_derived(&name) {
            inventory.ignore(&name);
            ignored.push(original);
        }
    }
    ignored
}

/// The readable type that `dtype` is, if it is one.
fn element_type(dtype: Dtype) -> Option<GgmlType> {
    dtype.float().map(|float| match float {
        FloatDtype::F32 => GgmlType::F32,
        FloatDtype::F16 => GgmlType::F16,
        FloatDtype::Bf16 => GgmlType::BF16,
    })
}
