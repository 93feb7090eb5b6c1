//! The tokenizer block of the output, always in Hugging Face form: `tokenizer.json`, `tokenizer_config.json`
//! and the chat template.

use std::collections::BTreeMap;
use std::path::Path;

use basert_text::Tokenizer;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::ConvertError;
use crate::source::read_text;

/// The block as it stands in the header.
pub(crate) type Block = BTreeMap<String, Box<RawValue>>;

/// Side files of a directory that the block is made of.
pub(crate) const FILES: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// Reads the block from a Hugging Face directory.
///
/// # Errors
/// Unless `optional`: a missing `tokenizer.json`, files that are not JSON, a tokenizer that cannot be run.
pub(crate) fn from_directory(
    directory: &Path,
    optional: bool,
    notes: &mut Vec<String>,
) -> Result<Block, ConvertError> {
    settle(read_directory(directory), optional, notes)
}

/// Rebuilds the block from GGUF metadata.
///
/// # Errors
/// Unless `optional`: a vocabulary that is missing or cannot be rebuilt, a tokenizer that cannot be run.
pub(crate) fn from_gguf(
    path: &Path,
    metadata: &Map<String, Value>,
    optional: bool,
    notes: &mut Vec<String>,
) -> Result<Block, ConvertError> {
    settle(rebuild(path, metadata), optional, notes)
}

/// An `optional` tokenizer that cannot be had is left out and a note says so.
fn settle(
    block: Result<Block, ConvertError>,
    optional: bool,
    notes: &mut Vec<String>,
) -> Result<Block, ConvertError> {
    let note = match &block {
        Err(ConvertError::NoTokenizer { .. }) => {
            "there is no tokenizer; the bundle runs on token ids only".to_owned()
        }
        Err(cause @ (ConvertError::Tokenizer { .. } | ConvertError::Json { .. })) => {
            format!("{cause}; it is left out, and the bundle runs on token ids only")
        }
        _ => return block,
    };
    if !optional {
        return block;
    }
    notes.push(note);
    Ok(Block::new())
}

/// The block, if the tokenizer in it can be run.
fn checked(path: &Path, block: Block) -> Result<Block, ConvertError> {
    match Tokenizer::from_header(&block) {
        Ok(_) => Ok(block),
        Err(cause) => Err(ConvertError::Tokenizer { path: path.to_owned(), cause }),
    }
}

fn read_directory(directory: &Path) -> Result<Block, ConvertError> {
    let [tokenizer, config, template] = FILES.map(|name| directory.join(name));
    let mut block = Block::new();
    let Some(text) = read_text(&tokenizer)? else {
        return Err(missing(directory, "tokenizer.json was looked for"));
    };
    block.insert("tokenizer_type".to_owned(), raw(&tokenizer, &"hf")?);
    block.insert("tokenizer.json".to_owned(), compact(&tokenizer, &text)?);
    let mut chat = read_text(&template)?;
    if let Some(text) = read_text(&config)? {
        let value: Value = serde_json::from_str(&text)
            .map_err(|cause| ConvertError::Json { path: config.clone(), cause })?;
        chat = chat.or_else(|| chat_template(&value));
        block.insert("tokenizer_config.json".to_owned(), compact(&config, &text)?);
    }
    if let Some(text) = chat {
        block.insert("tokenizer.chat_template".to_owned(), raw(&template, &text)?);
    }
    checked(&tokenizer, block)
}

fn rebuild(path: &Path, metadata: &Map<String, Value>) -> Result<Block, ConvertError> {
    if !metadata.contains_key("tokenizer.ggml.model") && !metadata.contains_key("tokenizer.huggingface.json")
    {
        return Err(missing(path, "tokenizer.ggml.model was looked for"));
    }
    let refuse = |cause| ConvertError::Tokenizer { path: path.to_owned(), cause };
    let tokenizer = basert_text::gguf::tokenizer_json(metadata).map_err(refuse)?;
    let config = basert_text::gguf::tokenizer_config(metadata).map_err(refuse)?;
    let mut block = Block::new();
    block.insert("tokenizer_type".to_owned(), raw(path, &"hf")?);
    block.insert("tokenizer.json".to_owned(), raw(path, &tokenizer)?);
    block.insert("tokenizer_config.json".to_owned(), raw(path, &config)?);
    if let Some(text) = chat_template(&config) {
        block.insert("tokenizer.chat_template".to_owned(), raw(path, &text)?);
    }
    checked(path, block)
}

/// The template in `tokenizer_config.json`: a string, or a list of named ones of which `default` counts.
fn chat_template(config: &Value) -> Option<String> {
    let template = match config.get("chat_template")? {
        Value::Array(named) => named.iter().find(|entry| entry["name"] == "default")?.get("template")?,
        other => other,
    };
    template.as_str().map(str::to_owned)
}

fn missing(path: &Path, what: &'static str) -> ConvertError {
    ConvertError::NoTokenizer { path: path.to_owned(), what }
}

fn raw(path: &Path, value: &impl serde::Serialize) -> Result<Box<RawValue>, ConvertError> {
    to_raw_value(value).map_err(|cause| ConvertError::Json { path: path.to_owned(), cause })
}

/// JSON text without the white space between its tokens. Numbers and strings keep their spelling: parsing and
/// printing a vocabulary's scores could change their last digit.
fn compact(path: &Path, text: &str) -> Result<Box<RawValue>, ConvertError> {
    let json = |cause| ConvertError::Json { path: path.to_owned(), cause };
    let valid: &RawValue = serde_json::from_str(text).map_err(json)?;
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for c in valid.get().chars() {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else if matches!(c, ' ' | '\n' | '\r' | '\t') {
            continue;
        } else {
            in_string = c == '"';
        }
        out.push(c);
    }
    RawValue::from_string(out).map_err(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compacting_keeps_strings_and_numbers() {
        let text = "{ \"a b\\\" \\\\\" : [ 1.10 ,\n\t-3e-05, \" \\u00e9 \" ], \"é\":{ } }\n";
        let compact = compact(Path::new("t.json"), text).unwrap();
        assert_eq!(compact.get(), "{\"a b\\\" \\\\\":[1.10,-3e-05,\" \\u00e9 \"],\"é\":{}}");
    }

    #[test]
    fn the_default_of_several_named_templates_counts() {
        let config = serde_json::json!({"chat_template": [
            {"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]});
        assert_eq!(chat_template(&config).as_deref(), Some("D"));
        assert_eq!(chat_template(&serde_json::json!({"chat_template": "S"})).as_deref(), Some("S"));
        assert_eq!(chat_template(&serde_json::json!({"chat_template": null})), None);
    }
}
