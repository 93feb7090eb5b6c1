//! A `.base` file as the running commands see it: weights for the engine, tokenizer, chat template and what its
//! checkpoint recommends.

use std::io::Read;
use std::path::Path;

use basert_convert::GENERATION_KEY;
use basert_engine::SamplingParams;
use basert_format::{BaseFile, Header};
use basert_model::{Arch, Config, ModelError, ModelSpec};
use basert_text::{ChatTemplate, Tokenizer};
use serde_json::Value;

use crate::failure::{Failure, Outcome};
use crate::locate::locate;
use crate::options::Recommended;
use crate::output;

/// Opens a `.base` file, given by its path or by [name](locate); what is not one gets a hint how to make one of it.
///
/// # Errors
/// As [`BaseFile::open`].
pub fn open(model: &Path) -> Outcome<BaseFile> {
    let path = &locate(model)?;
    let found = path.metadata();
    if let Err(e) = &found
        && e.kind() == std::io::ErrorKind::NotFound
    {
        return Err(not_found(path));
    }
    if found.is_ok_and(|m| m.is_dir()) {
        return Err(
            Failure::new(format!("{} is a directory, not a .base file", path.display())).hint(convert(path))
        );
    }
    BaseFile::open(path).map_err(|e| {
        let failure = Failure::from_error(&e);
        match path.parent() {
            _ if starts_with(path, b"GGUF") => {
                Failure::new(format!("{} is a GGUF file, not a .base file", path.display()))
                    .hint(convert(path))
            }
            Some(folder) if path.extension().is_some_and(|e| e == "safetensors") => {
                failure.hint(convert(folder))
            }
            _ => failure,
        }
    })
}

fn not_found(path: &Path) -> Failure {
    let failure = Failure::new(format!("{} does not exist", path.display()));
    let mut with_extension = path.as_os_str().to_owned();
    with_extension.push(".base");
    if Path::new(&with_extension).is_file() {
        failure.hint(format!("did you mean {}?", quoted(Path::new(&with_extension))))
    } else {
        let hint = "a model file is made from a Hugging Face directory or a GGUF file: basert convert SOURCE -o MODEL.base";
        failure.hint(hint)
    }
}

fn convert(source: &Path) -> String {
    let source = if source.as_os_str().is_empty() { Path::new(".") } else { source };
    format!("convert it first: basert convert {}", quoted(source))
}

fn starts_with(path: &Path, magic: &[u8; 4]) -> bool {
    let mut start = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut start));
    read.is_ok() && start == *magic
}

/// A path that can be pasted into a POSIX shell.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,~".contains(c);
    let needs_dot = text.starts_with('-');
    let text = if needs_dot { format!("./{text}") } else { text };
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// The layers that a header describes.
///
/// # Errors
/// An architecture or configuration that this version does not know.
pub fn model(header: &Header) -> Result<ModelSpec, ModelError> {
    let (arch, config) = config(header)?;
    ModelSpec::new(arch, &config)
}

fn config(header: &Header) -> Result<(Arch, Config), ModelError> {
    let arch: Arch = header.arch.parse()?;
    Ok((arch, Config::from_header(arch, &header.config)?))
}

/// An open model file with its tokenizer.
pub struct Bundle {
    file: BaseFile,
    tokenizer: Result<Tokenizer, NoTokenizer>,
}

/// Why there is no tokenizer.
enum NoTokenizer {
    Absent,
    /// With the reason.
    Unusable(String),
}

impl Bundle {
    /// Opens the file, and its tokenizer if it has one that this version can run: ids go without.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(path: &Path) -> Outcome<Bundle> {
        let file = open(path)?;
        let block = &file.header().tokenizer;
        let tokenizer = if block.is_empty() {
            Err(NoTokenizer::Absent)
        } else {
            Tokenizer::from_header(block).map_err(|e| NoTokenizer::Unusable(e.to_string()))
        };
        Ok(Bundle { file, tokenizer })
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// When the file has none that can be run.
    pub fn tokenizer(&self) -> Outcome<&Tokenizer> {
        self.tokenizer.as_ref().map_err(|why| {
            let path = self.file.path().display();
            let message = match why {
                NoTokenizer::Absent => {
                    format!("{path} has no tokenizer, so it takes and gives token ids only")
                }
                NoTokenizer::Unusable(reason) => format!("the tokenizer in {path} cannot be used: {reason}"),
            };
            Failure::new(message).hint("use --prompt-ids or --ids-file, without --stop")
        })
    }

    /// Says that a tokenizer is there and of no use, for work that goes on without it.
    pub fn remark_unusable_tokenizer(&self) {
        if let Err(NoTokenizer::Unusable(reason)) = &self.tokenizer {
            let path = self.file.path().display();
            output::note(&format!("the tokenizer in {path} cannot be used, so there is no text: {reason}"));
        }
    }

    /// Ids that end an answer: the configuration's and the tokenizer's.
    pub fn eos(&self) -> Vec<u32> {
        let mut ids = config(self.file.header()).map_or(Vec::new(), |(_, config)| config.eos_token_ids);
        ids.extend(self.tokenizer.iter().flat_map(|t| t.eog_ids()));
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Longest context that the model declares.
    pub fn max_context(&self) -> Option<usize> {
        model(self.file.header()).ok().and_then(|spec| spec.max_context)
    }

    /// The model's chat template.
    ///
    /// # Errors
    /// A file without one, or without a tokenizer.
    pub fn chat_template(&self) -> Outcome<ChatTemplate> {
        let template = ChatTemplate::of(self.tokenizer()?).map_err(|e| Failure::from_error(&e))?;
        template.ok_or_else(|| Failure::new(format!("{} has no chat template", self.file.path().display())))
    }

    /// The file behind the bundle.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Whether the chat template has a switch for thinking.
    pub fn can_switch_thinking(&self) -> bool {
        let template = self.tokenizer.as_ref().ok().and_then(Tokenizer::chat_template);
        template.is_some_and(|t| t.contains("enable_thinking"))
    }

    /// Sampling values of the checkpoint's generation config, if it was carried along.
    pub fn recommended(&self) -> Recommended {
        self.file.header().metadata.get(GENERATION_KEY).map(recommended).unwrap_or_default()
    }

    /// The parts that the engine and the decoder own.
    pub fn into_parts(self) -> (Option<Tokenizer>, BaseFile) {
        (self.tokenizer.ok(), self.file)
    }
}

/// Reads the sampling part of a `generation_config.json`. `do_sample: false` asks for the likeliest token. What
/// is of the wrong type or out of range is left out and listed.
fn recommended(config: &Value) -> Recommended {
    let mut unusable = Vec::new();
    let mut float = |key: &'static str, set: fn(&mut SamplingParams, f32)| -> Option<f32> {
        let value = config.get(key).filter(|value| !value.is_null())?;
        let number = value.as_f64().map(|x| x as f32);
        let why = match number {
            None => "a number is needed".to_owned(),
            Some(number) => {
                let mut params = SamplingParams::default();
                set(&mut params, number);
                match params.validate(usize::MAX) {
                    Ok(()) => return Some(number),
                    Err(e) => e.to_string(),
                }
            }
        };
        unusable.push((key, format!("is {value}: {why}")));
        None
    };
    let temperature = float("temperature", |p, x| p.temperature = x);
    let top_p = float("top_p", |p, x| p.top_p = x);
    let min_p = float("min_p", |p, x| p.min_p = x);
    let repetition_penalty = float("repetition_penalty", |p, x| p.repetition_penalty = x);
    let mut other = |key: &'static str, needed: &str, fits: fn(&Value) -> bool| -> Option<&Value> {
        let value = config.get(key).filter(|value| !value.is_null())?;
        if !fits(value) {
            unusable.push((key, format!("is {value}: {needed} is needed")));
        }
        Some(value)
    };
    let top_k = other("top_k", "a whole number of at least 0", Value::is_u64).and_then(Value::as_u64);
    let greedy = other("do_sample", "true or false", Value::is_boolean) == Some(&Value::Bool(false));
    Recommended {
        temperature: if greedy { Some(0.0) } else { temperature },
        top_k: top_k.map(|k| usize::try_from(k).unwrap_or(usize::MAX)),
        top_p,
        min_p,
        repetition_penalty,
        unusable,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_generation_config_recommends_what_it_says_and_no_more() {
        let sampled =
            json!({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1]});
        let expected = Recommended {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            ..Recommended::default()
        };
        assert_eq!(recommended(&sampled), expected);
        let greedy = Recommended { temperature: Some(0.0), ..Recommended::default() };
        assert_eq!(recommended(&json!({"do_sample": false, "temperature": 0.6})), greedy);
        assert_eq!(recommended(&json!("nonsense")), Recommended::default());
    }

    #[test]
    fn unusable_recommendations_are_listed_by_key_and_not_used() {
        let config = json!({
            "temperature": -1, "top_k": -1, "top_p": 1.5, "min_p": "low", "repetition_penalty": 0.0,
            "do_sample": "yes"
        });
        let found = recommended(&config);
        let keys: Vec<&str> = found.unusable.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["temperature", "top_p", "min_p", "repetition_penalty", "top_k", "do_sample"]);
        assert_eq!(Recommended { unusable: Vec::new(), ..found }, Recommended::default());
        assert_eq!(recommended(&json!({"top_p": null, "top_k": 0})).unusable, []);
    }

    #[test]
    fn hints_survive_a_shell() {
        let cases = [
            ("models/qwen-3.base", "models/qwen-3.base"),
            ("my model", "'my model'"),
            ("it's", r"'it'\''s'"),
            ("-rf", "./-rf"),
            ("", "''"),
        ];
        for (path, expected) in cases {
            assert_eq!(quoted(Path::new(path)), expected);
        }
    }
}
