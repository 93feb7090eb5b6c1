//! A GGUF file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use basert_format::SourceFormat;
use basert_model::{Config, ModelSpec};

use super::{Plan, in_file, refuse_unknown, unsupported};
use crate::gguf::GgufFile;
use crate::recipe::{Data, Inventory, SourceTensor, gguf};
use crate::{ConvertError, Options, tokenizer};

/// An opened file.
pub(crate) struct GgufSource {
    files: Vec<PathBuf>,
    path: PathBuf,
    file: GgufFile,
}

impl GgufSource {
    /// Opens the file; nothing of the weights is read.
    pub fn open(path: &Path) -> Result<GgufSource, ConvertError> {
        let file = GgufFile::open(path)?;
        Ok(GgufSource { files: vec![path.to_owned()], path: path.to_owned(), file })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, as a list.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// See [`super::Source::plan`].
    pub fn plan(&self, options: &Options) -> Result<Plan<'_>, ConvertError> {
        let metadata = self.file.metadata();
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
        let tokenizer = tokenizer::from_gguf(&self.path, metadata, options.allow_missing_tokenizer)?;
        let mut notes = Vec::new();
        if tokenizer.is_empty() {
            notes.push("there is no tokenizer; the bundle runs on token ids only".to_owned());
        }
        Ok(Plan {
            arch,
            config,
            inventory,
            format: SourceFormat::Gguf,
            convention: None,
            recipes,
            mmproj: BTreeMap::new(),
            tokenizer,
            dropped: Vec::new(),
            notes,
        })
    }

    fn tensors(&self) -> Vec<SourceTensor<'_>> {
        let tensors = self.file.tensors().map(|tensor| SourceTensor {
            name: tensor.name,
            file: &self.path,
            shape: tensor.shape.to_vec(),
            data: Data::Blocks { ty: tensor.ty, bytes: tensor.data },
        });
        tensors.collect()
    }
}
