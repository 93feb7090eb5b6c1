//! Opening a checkpoint: which kind it is, its configuration and tokenizer, and the recipes for all its
//! tensors.

mod gguf;
mod hf;
mod mlx;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use basert_format::{FileMap, SourceFormat};
use basert_model::{Arch, Config, ModelError};
use serde_json::Value;

use crate::digest::{self, FileDigest};
use crate::recipe::{Inventory, Recipe};
use crate::report::Dropped;
use crate::{Convention, ConvertError, Options, tokenizer};

pub(crate) use gguf::GgufSource;
pub(crate) use hf::HfSource;

/// An opened checkpoint.
pub(crate) enum Source {
    /// A directory of Hugging Face files.
    Hf(HfSource),
    /// A GGUF file.
    Gguf(GgufSource),
}

/// Everything that is known about an output before its first tensor is made.
pub(crate) struct Plan<'a> {
    /// Architecture.
    pub arch: Arch,
    /// Hyperparameters, corrected by what tensors there are.
    pub config: Config,
    /// The source's tensors.
    pub inventory: Inventory<'a>,
    /// What the header says about the kind of source.
    pub format: SourceFormat,
    /// The convention of the norms, where there is more than one.
    pub convention: Option<Convention>,
    /// How to make each output tensor: trunk, draft (`mtp.`), towers.
    pub recipes: Vec<Recipe>,
    /// Configuration of the towers; empty without towers.
    pub mmproj: BTreeMap<String, Value>,
    /// Tokenizer block of the header.
    pub tokenizer: tokenizer::Block,
    /// What the checkpoint recommends for sampling, as `generation_config.json` says it.
    pub generation: Option<Value>,
    /// Source tensors that are left out.
    pub dropped: Vec<Dropped>,
    /// What else to report.
    pub notes: Vec<String>,
}

impl Source {
    /// Opens `path`: a directory with `config.json`, one of its `.safetensors` files, or a `.gguf` file.
    ///
    /// # Errors
    /// Anything else, or files that are damaged.
    pub fn open(path: &Path) -> Result<Source, ConvertError> {
        let refuse = |why: &str| ConvertError::NotACheckpoint { path: path.to_owned(), why: why.to_owned() };
        let meta = std::fs::metadata(path).map_err(ConvertError::io(path, "open it"))?;
        if meta.is_dir() {
            return Source::open_directory(path);
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gguf") => Ok(Source::Gguf(GgufSource::open(path)?)),
            Some("safetensors") => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                Source::open_directory(parent.unwrap_or(Path::new(".")))
            }
            Some("bin" | "pt" | "pth") => Err(refuse("PyTorch pickle files are not read")),
            Some("base") => Err(refuse("this is a converted file already")),
            _ => Err(refuse("not a checkpoint directory, a .safetensors or a .gguf file")),
        }
    }

    fn open_directory(directory: &Path) -> Result<Source, ConvertError> {
        if directory.join("config.json").is_file() {
            return Ok(Source::Hf(HfSource::open(directory)?));
        }
        let entries = std::fs::read_dir(directory).map_err(ConvertError::io(directory, "list it"))?;
        let mut ggufs: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "gguf"))
            .collect();
        ggufs.sort();
        let why = match ggufs.first() {
            Some(gguf) => format!("there is no config.json; did you mean {}", gguf.display()),
            None => "there is no config.json".to_owned(),
        };
        Err(ConvertError::NotACheckpoint { path: directory.to_owned(), why })
    }

    /// The directory or file.
    pub fn path(&self) -> &Path {
        match self {
            Source::Hf(source) => source.directory(),
            Source::Gguf(source) => source.path(),
        }
    }

    /// Every file that the output depends on.
    pub fn files(&self) -> &[PathBuf] {
        match self {
            Source::Hf(source) => source.files(),
            Source::Gguf(source) => source.files(),
        }
    }

    /// The mapped files, which are those with tensors.
    pub fn maps(&self) -> Vec<(&Path, &FileMap)> {
        match self {
            Source::Hf(source) => source.maps().collect(),
            Source::Gguf(source) => source.maps().collect(),
        }
    }

    /// SHA-256 of the checkpoint: of a single GGUF file its own, else over the directory's files ([`digest`]).
    pub fn sha256(&self, digests: Vec<FileDigest>) -> String {
        match self {
            Source::Gguf(source) if source.files().len() == 1 => {
                digests.first().map_or_else(String::new, FileDigest::hex)
            }
            _ => digest::combine(self.directory(), digests),
        }
    }

    /// The directory that file names are relative to.
    pub fn directory(&self) -> &Path {
        match self {
            Source::Hf(source) => source.directory(),
            Source::Gguf(source) => source.path().parent().unwrap_or(Path::new("")),
        }
    }

    /// Reads the configuration and matches tensors with recipes.
    ///
    /// # Errors
    /// Models that are not supported, tensors that are missing, different or unknown.
    pub fn plan(&self, options: &Options) -> Result<Plan<'_>, ConvertError> {
        let mut plan = match self {
            Source::Hf(source) => source.plan(options),
            Source::Gguf(source) => source.plan(options),
        }?;
        let vocab = plan.config.vocab_size;
        for id in plan.config.eos_token_ids.iter().filter(|&&id| id as usize >= vocab) {
            plan.notes.push(format!(
                "end-of-sequence id {id} is beyond the vocabulary of {vocab}, so the model cannot produce it"
            ));
        }
        Ok(plan)
    }
}

/// The text of a file; `None` if it does not exist.
///
/// # Errors
/// If it exists and cannot be read as UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<Option<String>, ConvertError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(ConvertError::Io { path: path.to_owned(), action: "read it", cause }),
    }
}

/// The JSON in a file; `None` if it does not exist.
fn read_json(path: &Path) -> Result<Option<Value>, ConvertError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let value = serde_json::from_str(&text);
    value.map(Some).map_err(|cause| ConvertError::Json { path: path.to_owned(), cause })
}

/// Adds the file to a model error.
fn in_file(path: &Path) -> impl FnOnce(ModelError) -> ConvertError {
    move |cause| ConvertError::Model { path: path.to_owned(), cause }
}

/// The error for a kind of checkpoint that is recognised; `what` is subject and verb.
fn unsupported(path: &Path, what: impl Into<String>) -> ConvertError {
    ConvertError::Unsupported { path: path.to_owned(), what: what.into() }
}

/// Fails if any tensor is not accounted for.
fn refuse_unknown(inventory: &Inventory<'_>, arch: Arch) -> Result<(), ConvertError> {
    let names: Vec<String> = inventory.unused().into_iter().map(|(_, name)| name).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(ConvertError::UnknownTensors { path: inventory.path().to_owned(), arch: arch.to_string(), names })
}
