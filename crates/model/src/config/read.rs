//! Typed look-ups in JSON-like maps, with errors that name the key and the place it was expected in.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::ModelError;

/// A map of settings, borrowed.
#[derive(Clone, Copy)]
pub(crate) enum Settings<'a> {
    Json(&'a Map<String, Value>),
    Tree(&'a BTreeMap<String, Value>),
}

impl<'a> Settings<'a> {
    fn get(self, key: &str) -> Option<&'a Value> {
        match self {
            Settings::Json(map) => map.get(key),
            Settings::Tree(map) => map.get(key),
        }
    }
}

/// One or several maps searched in order; `null` counts as absent.
pub(crate) struct Keys<'a> {
    place: &'static str,
    /// Put before every key that is looked up, e.g. `llama.`.
    prefix: String,
    /// Put before every key that an error shows only, e.g. `rope_parameters.`.
    shown: &'static str,
    maps: Vec<Settings<'a>>,
}

impl<'a> Keys<'a> {
    /// Looks keys up in `maps`, the first map that has one wins.
    pub(crate) fn new(place: &'static str, maps: Vec<Settings<'a>>) -> Self {
        Keys { place, prefix: String::new(), shown: "", maps }
    }

    /// The same maps with `prefix` before every key.
    pub(crate) fn prefixed(mut self, prefix: String) -> Self {
        self.prefix = prefix;
        self
    }

    /// The object under `key`, if present; anything but an object is an error.
    pub(crate) fn object(&self, key: &str, shown: &'static str) -> Result<Option<Keys<'a>>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Keys {
                place: self.place,
                prefix: String::new(),
                shown,
                maps: vec![Settings::Json(map)],
            })),
            Some(other) => Err(self.bad(key, other, "an object")),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        let key = format!("{}{key}", self.prefix);
        self.maps.iter().filter_map(|map| map.get(&key)).find(|value| !value.is_null())
    }

    pub(crate) fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingKey { place: self.place, key: self.full(key) }
    }

    pub(crate) fn bad(&self, key: &str, found: &Value, expected: &str) -> ModelError {
        let mut found = found.to_string();
        if found.chars().count() > 80 {
            found = found.chars().take(77).chain("...".chars()).collect();
        }
        ModelError::BadValue { place: self.place, key: self.full(key), found, expected: expected.to_owned() }
    }

    fn full(&self, key: &str) -> String {
        format!("{}{}{key}", self.prefix, self.shown)
    }

    fn parse<T>(
        &self,
        key: &str,
        expected: &str,
        parse: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => parse(value).map(Some).ok_or_else(|| self.bad(key, value, expected)),
        }
    }

    /// A whole number of at least 0, if present.
    pub(crate) fn count_opt(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.parse(key, "a whole number", as_count)
    }

    /// A whole number of at least 0.
    pub(crate) fn count(&self, key: &str) -> Result<usize, ModelError> {
        self.count_opt(key)?.ok_or_else(|| self.missing(key))
    }

    /// A number, if present.
    pub(crate) fn number_opt(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.parse(key, "a number", Value::as_f64)
    }

    /// A number.
    pub(crate) fn number(&self, key: &str) -> Result<f64, ModelError> {
        self.number_opt(key)?.ok_or_else(|| self.missing(key))
    }

    /// `true` or `false`, if present.
    pub(crate) fn flag_opt(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.parse(key, "true or false", Value::as_bool)
    }

    /// A string, if present.
    pub(crate) fn text_opt(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.bad(key, other, "a string")),
        }
    }

    /// A token id, if present.
    pub(crate) fn id_opt(&self, key: &str) -> Result<Option<u32>, ModelError> {
        self.parse(key, "a token id", as_id)
    }

    /// A token id or a list of them; absent = empty.
    pub(crate) fn ids(&self, key: &str) -> Result<Vec<u32>, ModelError> {
        let ids = self.parse(key, "a token id or a list of token ids", |value| match value {
            Value::Array(items) => items.iter().map(as_id).collect(),
            single => as_id(single).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    /// A list of whole numbers, if present.
    pub(crate) fn counts_opt(&self, key: &str) -> Result<Option<Vec<usize>>, ModelError> {
        self.parse(key, "a list of whole numbers", |value| value.as_array()?.iter().map(as_count).collect())
    }

    /// A list of `true` and `false`, if present.
    pub(crate) fn flags_opt(&self, key: &str) -> Result<Option<Vec<bool>>, ModelError> {
        self.parse(key, "a list of true and false", |value| {
            value.as_array()?.iter().map(Value::as_bool).collect()
        })
    }

    /// A list of strings, if present.
    pub(crate) fn texts_opt(&self, key: &str) -> Result<Option<Vec<&'a str>>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value
                .as_array()
                .and_then(|items| items.iter().map(Value::as_str).collect())
                .map(Some)
                .ok_or_else(|| self.bad(key, value, "a list of strings")),
        }
    }
}

fn as_count(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok())
}

fn as_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| u32::try_from(n).ok())
}
