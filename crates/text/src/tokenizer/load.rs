//! Making a [`Tokenizer`] from its definition.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokenizers::{AddedToken, AddedVocabulary, Encoding, PostProcessor as _, Token};

use super::bound::Cover;
use super::definition::Definition;
use super::pretok::PreTokenizer;
use super::special::ends_by_text;
use super::table::Decoder;
use super::{Inner, Tokenizer};
use crate::{TextError, gguf};

/// What is known about a tokenizer beside its `tokenizer.json`.
#[derive(Debug, Default)]
struct Extra {
    bos: Option<String>,
    eos: Option<String>,
    /// Ids that end a turn or a message, from GGUF metadata.
    ends: Vec<u32>,
    chat_template: Option<String>,
}

impl Tokenizer {
    /// Reads the text of a `tokenizer.json`, without a configuration: there is no eos token and no chat template.
    ///
    /// # Errors
    /// If the JSON or one of its parts is malformed or of a kind that is not supported.
    pub fn from_json(json: &str) -> Result<Self, TextError> {
        build(json, Extra::default())
    }

    /// Reads the text of a `tokenizer.json` and, if there is one, of a `tokenizer_config.json`.
    ///
    /// # Errors
    /// As [`from_json`](Self::from_json), and if the configuration names a token that does not exist.
    pub fn from_hf(json: &str, config: Option<&str>) -> Result<Self, TextError> {
        let config = config.map(|text| parse("tokenizer_config.json", text)).transpose()?;
        build(json, config.as_ref().map(hf_extra).unwrap_or_default())
    }

    /// Rebuilds the tokenizer from GGUF metadata (the `tokenizer.*` keys, arrays as JSON arrays).
    ///
    /// # Errors
    /// As [`gguf::tokenizer_json`].
    pub fn from_gguf(meta: &Map<String, Value>) -> Result<Self, TextError> {
        let mut extra = hf_extra(&gguf::tokenizer_config(meta)?);
        extra.ends = gguf::end_ids(meta)?;
        build(&gguf::tokenizer_json(meta)?.to_string(), extra)
    }

    /// Reads the tokenizer block of a `.base` header, of either type (`hf` or `gguf`).
    ///
    /// # Errors
    /// If `tokenizer_type` is unknown or the block is incomplete; otherwise as [`from_hf`](Self::from_hf) and
    /// [`from_gguf`](Self::from_gguf).
    pub fn from_header(block: &BTreeMap<String, Box<RawValue>>) -> Result<Self, TextError> {
        let kind: Option<String> = get(block, "tokenizer_type")?;
        match kind.as_deref() {
            Some("hf") => {
                let json = block
                    .get("tokenizer.json")
                    .ok_or_else(|| TextError::field("tokenizer.json", "is missing from the header"))?;
                let config: Option<Value> = get(block, "tokenizer_config.json")?;
                let mut extra = config.as_ref().map(hf_extra).unwrap_or_default();
                if let Some(template) = get(block, "tokenizer.chat_template")? {
                    extra.chat_template = Some(template);
                }
                build(json.get(), extra)
            }
            Some("gguf") => {
                let mut meta = Map::new();
                for (key, value) in block {
                    meta.insert(key.clone(), parse("tokenizer", value.get())?);
                }
                Self::from_gguf(&meta)
            }
            Some(other) => Err(TextError::unsupported("tokenizer type", other, "`hf` and `gguf` are")),
            None => {
                Err(TextError::field("tokenizer_type", "is missing from the header: it has no tokenizer"))
            }
        }
    }
}

fn parse<T: serde::de::DeserializeOwned>(what: &'static str, json: &str) -> Result<T, TextError> {
    serde_json::from_str(json).map_err(|source| TextError::Json { what, source })
}

fn get<T: serde::de::DeserializeOwned>(
    block: &BTreeMap<String, Box<RawValue>>,
    key: &'static str,
) -> Result<Option<T>, TextError> {
    block.get(key).map(|raw| parse(key, raw.get())).transpose()
}

/// Reads a `tokenizer_config.json`.
fn hf_extra(config: &Value) -> Extra {
    // A token is its text or an object with the text in `content`.
    let token = |key: &str| {
        let token = config.get(key)?;
        token.get("content").unwrap_or(token).as_str().map(str::to_owned)
    };
    Extra {
        bos: token("bos_token"),
        eos: token("eos_token"),
        ends: Vec::new(),
        chat_template: template(config),
    }
}

/// The chat template: a string, or a list of named ones of which `default` counts.
fn template(config: &Value) -> Option<String> {
    let template = config.get("chat_template")?;
    let named = |t: &&Value| t.get("name").and_then(Value::as_str) == Some("default");
    let template = match template.as_array() {
        Some(list) => list.iter().find(named)?.get("template")?,
        None => template,
    };
    template.as_str().map(str::to_owned)
}

fn build(json: &str, extra: Extra) -> Result<Tokenizer, TextError> {
    let definition = Definition::parse(json)?;
    let pre_tokenizer = PreTokenizer::new(&definition.pre_tokenizer)?;
    let decoder = Decoder::new(&definition.decoder)?;
    let unk: Option<String> = definition.model_field("unk_token")?;
    let added = added_tokens(&definition.added_tokens)?;
    let cover = Cover::of_a_byte(&definition, &added, pre_tokenizer.is_bytes())?;
    let (library, table) = definition.build(&added, &decoder)?;
    for (id, token) in &added {
        let got = library.token_to_id(&token.content);
        if got != Some(*id) {
            let problem =
                format!("gives `{}` the id {id}, which the vocabulary does not allow", token.content);
            return Err(TextError::field("added_tokens", problem));
        }
    }
    let named = |text: &Option<String>, field: &str| match text {
        Some(text) => library
            .token_to_id(text)
            .ok_or_else(|| TextError::field(field, format!("is `{text}`, which is not in the vocabulary")))
            .map(Some),
        None => Ok(None),
    };
    let (bos, eos) = (named(&extra.bos, "bos_token")?, named(&extra.eos, "eos_token")?);
    let mut ends = ends_by_text(added.iter().map(|(id, token)| (token.content.as_str(), *id)));
    ends.extend(eos.iter().chain(&extra.ends));
    let ends = sorted(ends);
    let special = sorted(added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect());
    let unk = unk.and_then(|text| library.token_to_id(&text));
    let control = sorted(special.iter().chain(&ends).copied().filter(|&id| Some(id) != unk).collect());
    let harmless = harmless(&library, added, &ends)?;
    let (prefix, suffix) = surroundings(&library)?;
    let spelled = if pre_tokenizer.is_bytes() { 0 } else { table.longest_spelled() };
    let cover = cover.times(table.longest().max(spelled));
    Ok(Tokenizer(Arc::new(Inner {
        library,
        harmless,
        pre_tokenizer,
        table,
        cover,
        strips_first_space: decoder.strips_first_space,
        special,
        control,
        prefix,
        suffix,
        bos,
        eos,
        ends,
        chat_template: extra.chat_template,
    })))
}

fn sorted(mut ids: Vec<u32>) -> Vec<u32> {
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn added_tokens(list: &Value) -> Result<Vec<(u32, AddedToken)>, TextError> {
    let entry = |value: &Value| {
        let id = value.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| TextError::field("added_tokens", "has an entry without a valid `id`"))?;
        let token = serde_json::from_value(value.clone());
        Ok((id, token.map_err(|source| TextError::Json { what: "added_tokens", source })?))
    };
    let added: Vec<(u32, AddedToken)> =
        list.as_array().into_iter().flatten().map(entry).collect::<Result<_, TextError>>()?;
    let mut by_id: Vec<(u32, &str)> = added.iter().map(|(id, token)| (*id, token.content.as_str())).collect();
    by_id.sort_by_key(|&(id, _)| id);
    match by_id.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1) {
        None => Ok(added),
        Some(pair) => {
            let ((id, first), (_, second)) = (pair[0], pair[1]);
            Err(TextError::field("added_tokens", format!("gives `{first}` the id {id}, and `{second}` too")))
        }
    }
}

/// The added tokens with the control tokens switched off.
fn harmless(
    library: &tokenizers::Tokenizer,
    added: Vec<(u32, AddedToken)>,
    ends: &[u32],
) -> Result<AddedVocabulary, TextError> {
    let mut vocabulary = AddedVocabulary::new();
    // All of them, in their order, so that the ids come out the same; the flag makes the library pass over some.
    let tokens = added.into_iter().map(|(id, token)| {
        let control = token.special || ends.binary_search(&id).is_ok();
        token.special(control)
    });
    vocabulary
        .add_tokens(tokens, library.get_model(), library.get_normalizer())
        .map_err(|e| TextError::tokenizer("added tokens", e))?;
    vocabulary.set_encode_special_tokens(true);
    Ok(vocabulary)
}

/// What the post-processor puts before and after a text: found by giving it a token that no vocabulary has.
fn surroundings(library: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), TextError> {
    const TEXT: u32 = u32::MAX;
    let Some(processor) = library.get_post_processor() else { return Ok((Vec::new(), Vec::new())) };
    let text = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
    let around =
        processor.process(text, None, true).map_err(|e| TextError::tokenizer("post-processor", e))?;
    let mut parts = around.get_ids().splitn(2, |&id| id == TEXT).map(<[u32]>::to_vec);
    match (parts.next(), parts.next()) {
        (Some(prefix), Some(suffix)) => Ok((prefix, suffix)),
        _ => Err(TextError::field("post_processor", "has a template without the text itself")),
    }
}
