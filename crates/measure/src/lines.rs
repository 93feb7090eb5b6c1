//! Files with one JSON object on each line.

use serde::de::DeserializeOwned;

use crate::MeasureError;

/// Reads what every line that is not empty says, if `check` has nothing against it.
pub(crate) fn parse<T: DeserializeOwned>(
    text: &str,
    check: impl Fn(&T) -> Result<(), String>,
) -> Result<Vec<T>, MeasureError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parsed: Result<Vec<T>, MeasureError> = lines
        .map(|(index, line)| {
            let value: Result<T, String> = serde_json::from_str(line).map_err(|e| e.to_string());
            let checked = value.and_then(|value| check(&value).map(|()| value));
            checked.map_err(|problem| MeasureError::Question { line: index + 1, problem })
        })
        .collect();
    match parsed {
        Ok(values) if values.is_empty() => Err(MeasureError::NoQuestions),
        other => other,
    }
}
