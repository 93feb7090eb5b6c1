//! Typed reading of a request's fields. Null counts as absent.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// A request's body.
#[derive(Debug)]
pub(crate) struct Body(pub Map<String, Value>);

impl Body {
    /// Reads JSON.
    ///
    /// # Errors
    /// What is no JSON object.
    pub fn parse(bytes: &[u8]) -> Result<Body, ApiError> {
        // Windows' tools write files with a mark at their begin.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|e| ApiError::invalid(format!("the body is not valid JSON: {e}")))?;
        match value {
            Value::Object(map) => Ok(Body(map)),
            _ => Err(ApiError::invalid("the body is not a JSON object")),
        }
    }

    /// A field that is there.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A field, by value.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.get_mut(name).map(Value::take).filter(|value| !value.is_null())
    }

    /// A string.
    pub fn string(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let read = |value| Value::as_str(value).ok_or_else(|| wrong(name, "a string", value));
        self.get(name).map(read).transpose()
    }

    /// A boolean.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| wrong(name, "true or false", value));
        self.get(name).map(read).transpose()
    }

    /// A whole number between bounds.
    pub fn integer(&self, name: &str, low: u64, high: u64) -> Result<Option<usize>, ApiError> {
        let read = |value: &Value| {
            let whole = value.as_u64().or_else(|| whole_float(value));
            let fits = whole.filter(|n| (low..=high).contains(n)).and_then(|n| usize::try_from(n).ok());
            let range = if high == LARGEST {
                format!("a whole number of 64 bits, at least {low}")
            } else {
                format!("a whole number from {low} to {high}")
            };
            fits.ok_or_else(|| wrong(name, &range, value))
        };
        self.get(name).map(read).transpose()
    }

    /// A number between bounds.
    pub fn number(&self, name: &str, low: f32, high: f32) -> Result<Option<f32>, ApiError> {
        let read = |value: &Value| {
            let number = value.as_f64().map(|n| n as f32);
            let fits = number.filter(|n| (low..=high).contains(n));
            let least = if low == f32::MIN_POSITIVE {
                "above 0 and at most".to_owned()
            } else {
                format!("from {low} to")
            };
            fits.ok_or_else(|| wrong(name, &format!("a number {least} {high}"), value))
        };
        self.get(name).map(read).transpose()
    }
}

/// The largest count that is taken; some clients write it for no limit.
pub(crate) const LARGEST: u64 = u64::MAX;

/// Some clients write 16.0.
fn whole_float(value: &Value) -> Option<u64> {
    let number = value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..9e15).contains(n))?;
    Some(number as u64)
}

/// The error for a value of the wrong type or size.
pub(crate) fn wrong(name: &str, expected: &str, found: &Value) -> ApiError {
    let shown: String = match found {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string().chars().take(40).collect(),
    };
    ApiError::field(name, format!("must be {expected}, not {shown}"))
}
