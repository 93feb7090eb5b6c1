//! A Hugging Face tokenizer from GGUF metadata, and back.
//!
//! A GGUF holds the vocabulary, the merges or scores, and the name of the pre-tokenizer; the rest of a `tokenizer.json`
//! follows from these names. What a GGUF does not record is supplied where it is known (NFC for Qwen) and otherwise
//! absent (whitespace stripping around added tokens).

pub(crate) mod pre;
mod reverse;
mod spm;
mod vocab;

use serde_json::{Map, Value, json};

use crate::TextError;
use pre::Pre;
pub use reverse::{bytes_only, metadata};
use vocab::{Vocab, flag, text, token_id};

/// The `tokenizer.json` that encodes and decodes as this GGUF's tokenizer is meant to.
///
/// `meta` is the file's metadata as JSON, arrays as JSON arrays; only `tokenizer.*` keys are read. Byte-level BPE
/// (`gpt2`) and SentencePiece BPE (`llama`) are supported. A complete `tokenizer.huggingface.json`, if present, is
/// taken instead.
///
/// # Errors
/// If the tokenizer model or pre-tokenizer is not known (both by name: a guess would be nearly right, which is worse),
/// or a key is missing or malformed.
pub fn tokenizer_json(meta: &Map<String, Value>) -> Result<Value, TextError> {
    if let Some(json) = text(meta, "tokenizer.huggingface.json")? {
        return serde_json::from_str(json)
            .map_err(|source| TextError::Json { what: "tokenizer.huggingface.json", source });
    }
    let kind = Kind::of(meta)?;
    let vocab = Vocab::new(meta)?;
    let parts = match kind {
        Kind::ByteLevel(pre) => byte_level(meta, &vocab, pre)?,
        Kind::Spm => spm::parts(meta, &vocab)?,
    };
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocab.added_tokens(),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post_processor(meta, &vocab, kind)?,
        "decoder": parts.decoder,
        "model": parts.model,
    }))
}

/// The `tokenizer_config.json` of this GGUF: the bos, eos, pad and unk tokens as text, and the chat templates.
///
/// # Errors
/// If a token id is outside the vocabulary or a key has the wrong type.
pub fn tokenizer_config(meta: &Map<String, Value>) -> Result<Value, TextError> {
    let kind = Kind::of(meta)?;
    let vocab = Vocab::new(meta)?;
    let mut config = Map::new();
    for (name, key, default) in [
        ("bos_token", BOS, kind.default_bos()),
        ("eos_token", EOS, kind.default_eos()),
        ("pad_token", "tokenizer.ggml.padding_token_id", None),
        ("unk_token", UNK, kind.default_unk()),
    ] {
        let id = token_id(meta, key)?.or(default.filter(|&id| vocab.get(id).is_some()));
        let token = id.map(|id| vocab.require(id, key)).transpose()?;
        config.insert(name.to_owned(), token.map_or(Value::Null, Value::from));
    }
    config.insert("add_bos_token".to_owned(), (!bos(meta, &vocab, kind)?.is_empty()).into());
    config.insert("add_eos_token".to_owned(), (!eos(meta, &vocab, kind)?.is_empty()).into());
    if let Some(template) = chat_template(meta)? {
        config.insert("chat_template".to_owned(), template);
    }
    Ok(config.into())
}

/// The ids that the metadata names as ends of a turn, of a message, or of a fill-in-the-middle section.
pub(crate) fn end_ids(meta: &Map<String, Value>) -> Result<Vec<u32>, TextError> {
    let mut ids = Vec::new();
    for name in ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
        ids.extend(token_id(meta, &format!("tokenizer.ggml.{name}_token_id"))?);
    }
    Ok(ids)
}

const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const UNK: &str = "tokenizer.ggml.unknown_token_id";

#[derive(Debug, Clone, Copy)]
enum Kind {
    ByteLevel(Pre),
    Spm,
}

impl Kind {
    fn of(meta: &Map<String, Value>) -> Result<Self, TextError> {
        match text(meta, "tokenizer.ggml.model")? {
            Some("gpt2") => {
                let name = text(meta, "tokenizer.ggml.pre")?.ok_or_else(|| {
                    TextError::field(
                        "tokenizer.ggml.pre",
                        "is missing: convert the model anew with a current converter",
                    )
                })?;
                let pre = Pre::by_name(name);
                pre.map(Self::ByteLevel)
                    .ok_or_else(|| TextError::unsupported("pre-tokenizer", name, Pre::NAMES))
            }
            Some("llama") => Ok(Self::Spm),
            Some(other) => Err(TextError::unsupported("tokenizer model", other, "`gpt2` and `llama` are")),
            None => Err(TextError::field("tokenizer.ggml.model", "is missing: the file has no tokenizer")),
        }
    }

    // SentencePiece's own numbering, which llama.cpp takes where the metadata is silent.
    fn default_unk(self) -> Option<u32> {
        matches!(self, Self::Spm).then_some(0)
    }

    fn default_bos(self) -> Option<u32> {
        matches!(self, Self::Spm).then_some(1)
    }

    fn default_eos(self) -> Option<u32> {
        matches!(self, Self::Spm).then_some(2)
    }
}

/// The parts that differ between the two kinds.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Value,
}

fn byte_level(meta: &Map<String, Value>, vocab: &Vocab<'_>, pre: Pre) -> Result<Parts, TextError> {
    let merges = vocab::strings(meta, "tokenizer.ggml.merges")?;
    let merge = |(rank, merge): (usize, &&str)| {
        // The parts may themselves begin with a space, but are not empty.
        let cut = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        let malformed =
            || TextError::field("tokenizer.ggml.merges", format!("has no second part in entry {rank}"));
        cut.map(|at| json!([&merge[..at], &merge[at + 1..]])).ok_or_else(malformed)
    };
    let merges: Vec<Value> = merges.iter().enumerate().map(merge).collect::<Result<_, _>>()?;
    let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let mut stages: Vec<Value> = pre.splits.iter().map(split).collect();
    stages.push(bytes.clone());
    Ok(Parts {
        normalizer: if pre.nfc { json!({"type": "NFC"}) } else { Value::Null },
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": stages}),
        decoder: bytes,
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocab.ids(),
            "merges": merges,
        }),
    })
}

/// Puts bos and eos around a text, as far as the model wants them.
fn post_processor(meta: &Map<String, Value>, vocab: &Vocab<'_>, kind: Kind) -> Result<Value, TextError> {
    let (bos, eos) = (bos(meta, vocab, kind)?, eos(meta, vocab, kind)?);
    if bos.is_empty() && eos.is_empty() {
        return Ok(Value::Null);
    }
    let special =
        |(_, token): &(u32, &str), type_id: u32| json!({"SpecialToken": {"id": token, "type_id": type_id}});
    let sequence = |name: &str, type_id: u32| {
        let before = bos.iter().map(|t| special(t, type_id));
        let after = eos.iter().map(|t| special(t, type_id));
        let text = json!({"Sequence": {"id": name, "type_id": type_id}});
        before.chain([text]).chain(after).collect::<Vec<_>>()
    };
    let tokens: Map<String, Value> = bos
        .iter()
        .chain(&eos)
        .map(|(id, token)| ((*token).to_owned(), json!({"id": token, "ids": [id], "tokens": [token]})))
        .collect();
    let pair = [sequence("A", 0), sequence("B", 1)].concat();
    Ok(json!({
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": pair,
        "special_tokens": tokens,
    }))
}

/// The token to put before a text: none or one.
fn bos<'a>(
    meta: &Map<String, Value>,
    vocab: &Vocab<'a>,
    kind: Kind,
) -> Result<Vec<(u32, &'a str)>, TextError> {
    let default = match kind {
        Kind::ByteLevel(pre) => pre.add_bos && token_id(meta, BOS)?.is_some(),
        Kind::Spm => true,
    };
    edge(meta, vocab, "tokenizer.ggml.add_bos_token", default, BOS, kind.default_bos())
}

/// The token to put after a text: none or one.
fn eos<'a>(
    meta: &Map<String, Value>,
    vocab: &Vocab<'a>,
    kind: Kind,
) -> Result<Vec<(u32, &'a str)>, TextError> {
    edge(meta, vocab, "tokenizer.ggml.add_eos_token", false, EOS, kind.default_eos())
}

fn edge<'a>(
    meta: &Map<String, Value>,
    vocab: &Vocab<'a>,
    add: &str,
    add_default: bool,
    key: &str,
    id_default: Option<u32>,
) -> Result<Vec<(u32, &'a str)>, TextError> {
    if !flag(meta, add)?.unwrap_or(add_default) {
        return Ok(Vec::new());
    }
    let id = token_id(meta, key)?.or(id_default);
    let id = id.ok_or_else(|| TextError::field(key, format!("is missing, but `{add}` is set")))?;
    Ok(vec![(id, vocab.require(id, key)?)])
}

/// The default template, or a list of all where there are named ones.
fn chat_template(meta: &Map<String, Value>) -> Result<Option<Value>, TextError> {
    const KEY: &str = "tokenizer.chat_template";
    let mut all: Vec<Value> = Vec::new();
    let default = text(meta, KEY)?;
    all.extend(default.map(|template| json!({"name": "default", "template": template})));
    for (key, template) in meta {
        if let Some(name) = key.strip_prefix(KEY).and_then(|rest| rest.strip_prefix('.')) {
            all.push(json!({"name": name, "template": template}));
        }
    }
    Ok(match (default, all.len()) {
        (_, 0) => None,
        (Some(only), 1) => Some(only.into()),
        _ => Some(all.into()),
    })
}
