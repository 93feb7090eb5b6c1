//! A GGUF file, or all parts of a split one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use basert_format::{FileMap, SourceFormat};
use basert_model::{Config, ModelSpec};
use serde_json::{Map, Value};

use super::{Plan, in_file, refuse_unknown, unsupported};
use crate::gguf::{self as container, GgufFile};
use crate::recipe::{Data, Inventory, SourceTensor, gguf};
use crate::{ConvertError, Options, tokenizer};

/// An opened file.
pub(crate) struct GgufSource {
    files: Vec<PathBuf>,
    /// The file, or its first part.
    path: PathBuf,
    /// At least one.
    parts: Vec<GgufFile>,
    metadata: Map<String, Value>,
}

impl GgufSource {
    /// Opens the file and all other parts if it is one; nothing of the weights is read.
    pub fn open(path: &Path) -> Result<GgufSource, ConvertError> {
        let parts = container::open_parts(path)?;
        let files: Vec<PathBuf> = parts.iter().map(|part| part.path().to_owned()).collect();
        let path = files.first().map_or(path, PathBuf::as_path).to_owned();
        let metadata = parts.first().map(|part| part.metadata().clone()).unwrap_or_default();
        Ok(GgufSource { files, path, parts, metadata })
    }

    /// The file, or its first part.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, or all parts.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The parts and their mapped bytes.
    pub fn maps(&self) -> impl Iterator<Item = (&Path, &FileMap)> {
        self.parts.iter().map(|part| (part.path(), part.map()))
    }

    /// See [`super::Source::plan`].
    pub fn plan(&self, options: &Options) -> Result<Plan<'_>, ConvertError> {
        if let Some(convention) = options.convention {
            return Err(ConvertError::Option(format!(
                "{}: GGUF has one convention only, so source convention {} means nothing",
                self.path.display(),
                convention.name()
            )));
        }
        let metadata = &self.metadata;
        let (arch, mut config) = Config::from_gguf(metadata).map_err(in_file(&self.path))?;
        let mut inventory = Inventory::new(&self.path, self.tensors(), str::to_owned)?;
        if let Some(&[rows, _]) = inventory.find("token_embd.weight").map(|tensor| &tensor.shape[..]) {
            config.vocab_size = rows;
        }
        config.tie_word_embeddings = !inventory.has("output.weight");
        if config.mtp_num_hidden_layers > 1 {
            return Err(unsupported(&self.path, "several draft layers (`nextn_predict_layers` above 1) are"));
        }
        let spec = ModelSpec::new(arch, &config).map_err(in_file(&self.path))?;
        let mut recipes = gguf::recipes(&mut inventory, &spec, &spec.tensors())?;
        if config.mtp_num_hidden_layers > 0 {
            let draft = spec.draft_tensors(config.mtp_num_hidden_layers).map_err(in_file(&self.path))?;
            recipes.extend(gguf::recipes(&mut inventory, &spec, &draft)?);
        }
        refuse_unknown(&inventory, arch)?;
        let mut notes = Vec::new();
        let tokenizer =
            tokenizer::from_gguf(&self.path, metadata, options.allow_missing_tokenizer, &mut notes)?;
        Ok(Plan {
            arch,
            config,
            inventory,
            format: SourceFormat::Gguf,
            convention: None,
            recipes,
            mmproj: BTreeMap::new(),
            generation: None,
            tokenizer,
            dropped: Vec::new(),
            notes,
        })
    }

    fn tensors(&self) -> Vec<SourceTensor<'_>> {
        let mut tensors = Vec::new();
        for part in &self.parts {
            tensors.extend(part.tensors().map(|tensor| SourceTensor {
                name: tensor.name,
                file: part.path(),
                shape: tensor.shape.to_vec(),
                data: Data::Blocks { ty: tensor.ty, bytes: tensor.data },
            }));
        }
        tensors
    }
}
