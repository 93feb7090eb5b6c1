//! A `tokenizer.json`, taken apart in one pass: the small parts as JSON values, the model as the text that it is.
//!
//! The library reads a model through four copies of it as JSON values, which takes most of a second for 250 000 tokens. A
//! BPE model is therefore read here, straight into the library's own maps; every other part and kind of model is the
//! library's to read.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, Model as _};

use super::bpe;
use super::table::{Decoder, Table};
use crate::TextError;

/// The fields of a model, unread.
pub(crate) type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// The parts of a `tokenizer.json`. Unknown ones are passed over, as in the library.
#[derive(Debug, Deserialize)]
pub(crate) struct Definition<'a> {
    #[serde(default)]
    version: Value,
    #[serde(default)]
    truncation: Value,
    #[serde(default)]
    padding: Value,
    #[serde(default)]
    pub(crate) added_tokens: Value,
    #[serde(default)]
    pub(crate) normalizer: Value,
    #[serde(default)]
    pub(crate) pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    pub(crate) decoder: Value,
    #[serde(borrow, default)]
    model: Fields<'a>,
}

impl<'a> Definition<'a> {
    /// Takes the text of a `tokenizer.json` apart.
    pub(crate) fn parse(json: &'a str) -> Result<Self, TextError> {
        serde_json::from_str(json).map_err(invalid)
    }

    /// A small field of the model.
    pub(crate) fn model_field<T: Deserialize<'a>>(&self, key: &'static str) -> Result<Option<T>, TextError> {
        field(&self.model, key)
    }

    /// Whether the model says that it is BPE.
    pub(crate) fn is_bpe(&self) -> Result<bool, TextError> {
        Ok(self.model_field::<Value>("type")?.is_some_and(|kind| kind == "BPE"))
    }

    /// The library's tokenizer, and every token's bytes by id.
    pub(crate) fn build(
        &self,
        added: &[(u32, AddedToken)],
        decoder: &Decoder,
    ) -> Result<(tokenizers::Tokenizer, Table), TextError> {
        let (model, table) = self.model(added, decoder)?;
        let mut library = self.without_model()?;
        library.with_model(model);
        library
            .add_tokens(added.iter().map(|(_, token)| token.clone()))
            .map_err(|e| TextError::tokenizer("added tokens", e))?;
        Ok((library, table))
    }

    fn model(
        &self,
        added: &[(u32, AddedToken)],
        decoder: &Decoder,
    ) -> Result<(ModelWrapper, Table), TextError> {
        if self.is_bpe()? {
            let (model, table) = bpe::read(&self.model, added, decoder)?;
            return Ok((model.into(), table));
        }
        let text = serde_json::to_string(&self.model).map_err(invalid)?;
        let model: ModelWrapper = serde_json::from_str(&text).map_err(invalid)?;
        let vocab = model.get_vocab();
        let all = vocab.iter().map(|(token, &id)| (token.as_str(), id));
        let table = Table::new(&tokens(all, added), decoder)?;
        Ok((model, table))
    }

    /// All but the model and the added tokens, which are numbered by it.
    fn without_model(&self) -> Result<tokenizers::Tokenizer, TextError> {
        let mut parts = Map::new();
        for (key, part) in [
            ("version", &self.version),
            ("truncation", &self.truncation),
            ("padding", &self.padding),
            ("normalizer", &self.normalizer),
            ("pre_tokenizer", &self.pre_tokenizer),
            ("post_processor", &self.post_processor),
            ("decoder", &self.decoder),
        ] {
            if !part.is_null() {
                parts.insert(key.to_owned(), part.clone());
            }
        }
        parts.insert("model".to_owned(), json!({"type": "BPE", "vocab": {}, "merges": []}));
        serde_json::from_value(parts.into()).map_err(invalid)
    }
}

/// A field of a model; `None` if it is absent or null.
pub(crate) fn field<'a, T: Deserialize<'a>>(
    fields: &Fields<'a>,
    key: &'static str,
) -> Result<Option<T>, TextError> {
    let read = |raw: &&'a RawValue| serde_json::from_str::<Option<T>>(raw.get());
    let value = fields.get(key).map(read).transpose();
    Ok(value.map_err(|source| TextError::Json { what: key, source })?.flatten())
}

fn invalid(source: serde_json::Error) -> TextError {
    TextError::Json { what: "tokenizer.json", source }
}

/// All tokens of a vocabulary, and those that only the added ones bring.
pub(crate) fn tokens<'a>(
    vocab: impl Iterator<Item = (&'a str, u32)>,
    added: &'a [(u32, AddedToken)],
) -> Vec<(&'a str, u32)> {
    let mut new: HashMap<&str, u32> = added.iter().map(|(id, token)| (token.content.as_str(), *id)).collect();
    let mut all = Vec::new();
    for (token, id) in vocab {
        new.remove(token);
        all.push((token, id));
    }
    all.extend(new);
    all
}
