//! A Hugging Face or MLX directory: `config.json`, safetensors shards, tokenizer files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use basert_format::{FileMap, SourceFormat};
use basert_model::{Arch, Config, ModelSpec};
use basert_quant::{FloatDtype, GgmlType};
use serde_json::Value;

use super::mlx::{self, Quantization};
use super::{Plan, in_file, read_json, refuse_unknown, unsupported};
use crate::recipe::{Data, Inventory, Recipe, SourceTensor, hf};
use crate::report::Dropped;
use crate::safetensors::{Checkpoint, TensorView};
use crate::{Convention, ConvertError, Options, convention, tokenizer};

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

    /// The shards and their mapped bytes.
    pub fn maps(&self) -> impl Iterator<Item = (&Path, &FileMap)> {
        self.checkpoint.shards.iter().map(|shard| (shard.path(), shard.map()))
    }

    /// See [`super::Source::plan`].
    pub fn plan(&self, options: &Options) -> Result<Plan<'_>, ConvertError> {
        self.refuse_quantised_config()?;
        let (arch, mut config) =
            Config::from_hf(&self.config, self.generation.as_ref()).map_err(in_file(&self.config_path))?;
        self.refuse_other_quantisers()?;
        let mut inventory = Inventory::new(&self.directory, self.tensors()?, hf::normalise)?;
        let convention = match options.convention {
            Some(convention) => convention,
            None => convention::detect(&self.checkpoint, &inventory, arch.is_hybrid())?,
        };

        let mut notes = Vec::new();
        self.settle_head_and_draft(&inventory, arch, &mut config, &mut notes);
        let spec = ModelSpec::new(arch, &config).map_err(in_file(&self.config_path))?;
        let mut recipes = hf::recipes(&mut inventory, &spec, &spec.tensors(), convention)?;
        if config.mtp_num_hidden_layers > 0 {
            let draft =
                spec.draft_tensors(config.mtp_num_hidden_layers).map_err(in_file(&self.config_path))?;
            recipes.extend(hf::recipes(&mut inventory, &spec, &draft, convention)?);
        }
        let towers = towers(&mut inventory)?;
        let mmproj = if towers.is_empty() { BTreeMap::new() } else { self.tower_config() };
        recipes.extend(towers);
        let dropped = drop_derived(&mut inventory);
        refuse_unknown(&inventory, arch)?;
        let tokenizer =
            tokenizer::from_directory(&self.directory, options.allow_missing_tokenizer, &mut notes)?;
        let generation = self.generation.clone();
        let quantised = inventory.is_quantised();
        let format = match convention {
            Convention::Hf if !quantised => SourceFormat::HfSafetensors,
            _ => SourceFormat::MlxSafetensors,
        };
        // Where the two conventions store the same values, there is nothing to check.
        let convention = arch.is_hybrid().then_some(convention);
        Ok(Plan {
            arch,
            config,
            inventory,
            format,
            convention,
            recipes,
            mmproj,
            tokenizer,
            generation,
            dropped,
            notes,
        })
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

    fn tensors(&self) -> Result<Vec<SourceTensor<'_>>, ConvertError> {
        let quantization = Quantization::read(&self.config, &self.config_path)?;
        let shards = self.checkpoint.shards.iter();
        let views: Vec<_> =
            shards.flat_map(|shard| shard.tensors().map(|tensor| (shard.path(), tensor))).collect();
        mlx::join(&views, &quantization, element)
    }

    /// Other quantisers name themselves in `config.json`, at any level of nesting.
    fn refuse_quantised_config(&self) -> Result<(), ConvertError> {
        let mut level = Some(&self.config);
        while let Some(config) = level {
            for key in ["quantization", "quantization_config"] {
                if let Some(method) =
                    config.get(key).and_then(|s| s.get("quant_method")).and_then(Value::as_str)
                {
                    return Err(unsupported(
                        &self.config_path,
                        format!("checkpoints quantised with `{method}` are"),
                    ));
                }
            }
            level = config.get("text_config");
        }
        Ok(())
    }

    /// Other quantisers' arrays.
    fn refuse_other_quantisers(&self) -> Result<(), ConvertError> {
        for shard in &self.checkpoint.shards {
            for tensor in shard.tensors() {
                let what = match tensor.name.rsplit_once('.').map(|(_, suffix)| suffix) {
                    Some("qweight") => "GPTQ and AWQ checkpoints (`.qweight`) are",
                    Some("weight_scale" | "weight_scale_inv") => {
                        "FP8 and compressed-tensors checkpoints (`.weight_scale`) are"
                    }
                    _ => continue,
                };
                return Err(unsupported(shard.path(), format!("tensor `{}`: {what}", tensor.name)));
            }
        }
        Ok(())
    }

    fn tower_config(&self) -> BTreeMap<String, Value> {
        let value = |key: &str| Some((key.to_owned(), self.config.get(key)?.clone()));
        TOWER_KEYS.into_iter().filter_map(value).collect()
    }
}

/// Recipes that keep vision and audio towers as they are.
fn towers(inventory: &mut Inventory<'_>) -> Result<Vec<Recipe>, ConvertError> {
    let mut recipes = Vec::new();
    for (name, _) in inventory.unused() {
        if !hf::is_tower(&name) || hf::is_derived(&name) {
            continue;
        }
        let shape = inventory.shape(&name)?;
        let tensor = inventory.take(&name, &shape, &name)?;
        recipes.push(Recipe::kept(name, shape, tensor));
    }
    Ok(recipes)
}

/// Leaves out tensors that carry nothing.
fn drop_derived(inventory: &mut Inventory<'_>) -> Vec<Dropped> {
    let mut dropped = Vec::new();
    for (name, original) in inventory.unused() {
        if hf::is_derived(&name) {
            inventory.ignore(&name);
            dropped.push(Dropped { name: original, why: "it follows from the configuration" });
        }
    }
    dropped
}

/// The elements of a tensor that is no module.
fn element<'a>(view: &TensorView<'a>) -> Data<'a> {
    let ty = match view.dtype.float() {
        Some(FloatDtype::F32) => GgmlType::F32,
        Some(FloatDtype::F16) => GgmlType::F16,
        Some(FloatDtype::Bf16) => GgmlType::BF16,
        None => return Data::Unreadable { type_name: view.dtype.name(), bytes: view.data },
    };
    Data::Blocks { ty, bytes: view.data }
}
