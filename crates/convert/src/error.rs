//! Why a conversion failed: one sentence that names the file and the tensor, and a hint what to do.

use std::path::{Path, PathBuf};

use basert_format::{Fault, FormatError};
use basert_model::ModelError;
use basert_quant::QuantError;
use basert_text::TextError;
use thiserror::Error;

use crate::gguf::GgufError;
use crate::safetensors::SafetensorsError;

/// A conversion that could not be done. No output file is left behind but unfinished work that is to be kept.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// An option that makes no sense.
    #[error("{0}")]
    Option(String),
    /// The path is nothing that can be converted.
    #[error("{}: {why}", path.display())]
    NotACheckpoint {
        /// The path given.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
    /// The operating system refused.
    #[error("{}: cannot {action}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done, e.g. `read it`.
        action: &'static str,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// A side file is not the JSON it should be.
    #[error("{}: {cause}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        cause: serde_json::Error,
    },
    /// A `.safetensors` file or its index is damaged.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// A GGUF file is damaged.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The configuration is incomplete or describes an unsupported model.
    #[error("{}: {cause}", path.display())]
    Model {
        /// The file with the configuration.
        path: PathBuf,
        /// What is wrong with it.
        cause: ModelError,
    },
    /// A kind of checkpoint that is recognised and not converted.
    #[error("{}: {what} not supported", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Subject and verb, e.g. `GPTQ checkpoints are`.
        what: String,
    },
    /// A weight the model needs is not there.
    #[error("{}: tensor {} is missing (needed for `{canonical}`)", path.display(), shown(tensor))]
    MissingTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The name it should have, without the checkpoint's prefix.
        tensor: String,
        /// The output tensor that needs it.
        canonical: String,
    },
    /// A weight has another shape than the configuration implies.
    #[error("{}: tensor {} has shape {found:?}, but the configuration implies {expected:?}", path.display(), shown(tensor))]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape, row-major.
        found: Vec<usize>,
        /// The shape that follows from the configuration.
        expected: Vec<usize>,
    },
    /// A weight is stored in a type that cannot be read.
    #[error("{}: tensor {} has type {found}, which is not supported", path.display(), shown(tensor))]
    ElementType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// A quantised module whose arrays contradict each other, `config.json` or the model.
    #[error("{}: tensor {}: {why}", path.display(), shown(tensor))]
    Module {
        /// The file.
        path: PathBuf,
        /// The module's codes.
        tensor: String,
        /// What is wrong.
        why: String,
    },
    /// The quantisation that `config.json` declares makes no sense.
    #[error("{}: quantization {what}", path.display())]
    Quantization {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Signs of Hugging Face's and of MLX's conventions in one checkpoint.
    #[error("{}: the conventions of this checkpoint conflict: {first}, but {second}", path.display())]
    Convention {
        /// The checkpoint.
        path: PathBuf,
        /// A fact.
        first: String,
        /// Another that contradicts it.
        second: String,
    },
    /// Already quantised tensors would lose precision.
    #[error(
        "{}: this checkpoint is already quantised, and target {target} would lose precision in {}: {}",
        path.display(), count(tensors.len()), list_losses(tensors)
    )]
    WouldLose {
        /// The checkpoint.
        path: PathBuf,
        /// The target.
        target: String,
        /// Canonical name, what it is and what it would become.
        tensors: Vec<(String, String, String)>,
    },
    /// A profile that cannot be read.
    #[error("profile {profile}: {why}")]
    Profile {
        /// Path or name.
        profile: String,
        /// What is wrong with it.
        why: String,
    },
    /// An importance file that cannot be used.
    #[error("{origin}: {why}")]
    Importance {
        /// The file, or `calibration`.
        origin: String,
        /// What is wrong with it.
        why: String,
    },
    /// Tensors that no rule of a profile matches.
    #[error("profile {profile} has no rule for {}: {}", count(names.len()), list(names))]
    NotCovered {
        /// The profile's name.
        profile: String,
        /// Canonical names.
        names: Vec<String>,
    },
    /// The converted model did not pass its self-check.
    #[error("{}: the converted model does not pass its self-check: {cause}", path.display())]
    SelfCheck {
        /// The checkpoint.
        path: PathBuf,
        /// What the check says.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Tensors that no ggml type holds exactly.
    #[error(
        "{}: {} {} no GGUF type that holds {} exactly: {}",
        path.display(), count(tensors.len()), if tensors.len() == 1 { "has" } else { "have" },
        if tensors.len() == 1 { "it" } else { "them" }, list_reasons(tensors)
    )]
    NoGgmlType {
        /// The `.base` file.
        path: PathBuf,
        /// Canonical name, and its encoding with the reason.
        tensors: Vec<(String, String)>,
    },
    /// A tensor that should have come out exactly did not.
    #[error("{}: tensor {}: element {index} is {found:e} after conversion, expected {expected:e}", path.display(), shown(tensor))]
    NotExact {
        /// The source.
        path: PathBuf,
        /// The output tensor.
        tensor: String,
        /// Flat index.
        index: usize,
        /// The source's value.
        expected: f32,
        /// The output's.
        found: f32,
    },
    /// Two tensors mean the same weight.
    #[error("{}: tensors {} and {} are the same weight twice", path.display(), shown(first), shown(second))]
    Ambiguous {
        /// The checkpoint.
        path: PathBuf,
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// Tensors that no recipe knows; converting without them would silently lose something.
    #[error(
        "{}: {} of architecture {arch} {} not known: {}",
        path.display(), count(names.len()), is_are(names.len()), list(names)
    )]
    UnknownTensors {
        /// The checkpoint.
        path: PathBuf,
        /// The architecture.
        arch: String,
        /// Their names.
        names: Vec<String>,
    },
    /// A weight's values cannot be stored as asked.
    #[error("{}: tensor {}: {cause}", path.display(), shown(tensor))]
    Encode {
        /// The file the values come from.
        path: PathBuf,
        /// The output tensor.
        tensor: String,
        /// The reason.
        cause: QuantError,
    },
    /// A decay rate that is not negative has no logarithm.
    #[error("{}: tensor {}: element {index} is {value}, expected a negative number", path.display(), shown(tensor))]
    Decay {
        /// The file.
        path: PathBuf,
        /// The source tensor.
        tensor: String,
        /// Flat index.
        index: usize,
        /// The value.
        value: f32,
    },
    /// The tokenizer is missing.
    #[error("{}: there is no tokenizer ({what})", path.display())]
    NoTokenizer {
        /// The checkpoint.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// The tokenizer cannot be rebuilt from a GGUF, or is of a kind that cannot be run.
    #[error("{}: the tokenizer cannot be used: {cause}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The reason.
        cause: TextError,
    },
    /// Unfinished work that this conversion cannot go on with.
    #[error("{}: this unfinished conversion cannot be resumed: {what}", partial.display())]
    Resume {
        /// The unfinished file.
        partial: PathBuf,
        /// Why not.
        what: String,
    },
    /// Unfinished work that another process goes on with at this moment.
    #[error("{}: another conversion is writing it at this moment", partial.display())]
    Busy {
        /// The unfinished file.
        partial: PathBuf,
    },
    /// A file that is not ours where the journal of unfinished work goes.
    #[error("{}: the journal of unfinished work goes here, and this file is none; it was left alone", path.display())]
    InTheWay {
        /// The file.
        path: PathBuf,
    },
    /// A number of threads that makes no sense, or that the system refuses.
    #[error("cannot start {count} threads: {why}")]
    Threads {
        /// How many were wanted.
        count: usize,
        /// Why not.
        why: String,
    },
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] FormatError),
}

impl ConvertError {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> ConvertError {
        move |cause| ConvertError::Io { path: path.to_owned(), action, cause }
    }

    /// What to do about it, if there is something better than reading the error again.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ConvertError::NotACheckpoint { .. } => {
                Some("give a directory with config.json and .safetensors files, or a .gguf file")
            }
            ConvertError::NoTokenizer { .. } => {
                Some("put tokenizer.json beside config.json, or do without one: --no-tokenizer")
            }
            ConvertError::Tokenizer { .. } => {
                Some("--no-tokenizer leaves it out; the bundle then takes and gives token ids only")
            }
            ConvertError::MissingTensor { .. } => Some("the download may be incomplete; check every shard"),
            ConvertError::Shape { .. } => Some(
                "config.json and weights do not belong together, or the tensor is laid out in another way",
            ),
            ConvertError::UnknownTensors { .. } => {
                Some("the checkpoint has parts this architecture does not have here; they would be lost")
            }
            ConvertError::Module { .. } | ConvertError::Quantization { .. } => {
                Some("config.json and weights do not belong together, or the download is incomplete")
            }
            ConvertError::Convention { .. } => Some(
                "--source-convention hf or mlx decides, if you know who wrote the file; a wrong choice ruins the model",
            ),
            ConvertError::WouldLose { .. } => Some(
                "--target auto keeps every tensor exactly, --target f32 as plain floats; --allow-quant-from-quant accepts the loss",
            ),
            ConvertError::Profile { .. } => {
                Some("`basert profiles` lists the built-in ones and prints them as examples")
            }
            ConvertError::Importance { .. } => {
                Some("collect it from this model: --calibration TEXT --save-importance FILE")
            }
            ConvertError::NotCovered { .. } => {
                Some("add a rule for them; a last rule with pattern ** covers all that is left")
            }
            ConvertError::SelfCheck { .. } => Some(
                "--no-check converts it all the same; if the checkpoint is sound in the program that wrote it, please report this",
            ),
            ConvertError::NoGgmlType { .. } => Some(
                "--outtype says what becomes of them, e.g. f16 or q8_0; q4 and q5 bundles fit as they are",
            ),
            ConvertError::NotExact { .. } => {
                Some("the type that was chosen does not hold this value; --target f32 does")
            }
            ConvertError::Encode { cause: QuantError::ScaleRange { .. }, .. } => {
                Some("choose --scales bf16, whose range is that of f32")
            }
            ConvertError::Encode { cause: QuantError::FloatRange { .. }, .. } => {
                Some("choose --target bf16 or f32")
            }
            ConvertError::Encode { cause: QuantError::NonFinite { .. }, .. } => {
                Some("the checkpoint is damaged or training diverged")
            }
            ConvertError::Resume { .. } => {
                Some("remove the partial file to begin anew, or repeat the command it was begun with")
            }
            ConvertError::Busy { .. } => Some("wait until it has ended, or give the output another name"),
            ConvertError::InTheWay { .. } => Some("move that file away, or give the output another name"),
            ConvertError::Threads { .. } => Some("--threads with a smaller number"),
            ConvertError::Output(error) if matches!(*error.fault, Fault::Exists) => {
                Some("give another name, or replace it with --force")
            }
            ConvertError::Unsupported { .. } => {
                Some("convert from the original, unquantised Hugging Face checkpoint")
            }
            _ => None,
        }
    }
}

/// A name from a file as errors show it: quoted, control characters escaped, shortened. Names come from
/// strangers, and a terminal would obey them.
pub(crate) fn shown(name: &str) -> String {
    const SHOWN: usize = 120;
    let mut text: String = name.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if name.chars().count() > SHOWN {
        text.push_str("...");
    }
    format!("`{text}`")
}

fn count(tensors: usize) -> String {
    if tensors == 1 { "a tensor".to_owned() } else { format!("{tensors} tensors") }
}

/// The first losses, each as `name: from -> to`.
fn list_losses(tensors: &[(String, String, String)]) -> String {
    const SHOWN: usize = 3;
    let one = |(name, from, to): &(String, String, String)| format!("{} ({from} -> {to})", shown(name));
    let mut text = tensors.iter().take(SHOWN).map(one).collect::<Vec<_>>().join(", ");
    if tensors.len() > SHOWN {
        text.push_str(", ...");
    }
    text
}

/// The first tensors, each as `name (reason)`.
fn list_reasons(tensors: &[(String, String)]) -> String {
    const SHOWN: usize = 3;
    let one = |(name, why): &(String, String)| format!("{} ({why})", shown(name));
    let mut text = tensors.iter().take(SHOWN).map(one).collect::<Vec<_>>().join(", ");
    if tensors.len() > SHOWN {
        text.push_str(", ...");
    }
    text
}

fn is_are(tensors: usize) -> &'static str {
    if tensors == 1 { "is" } else { "are" }
}

/// The first names, quoted.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let mut text = names.iter().take(SHOWN).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(", ...");
    }
    text
}
