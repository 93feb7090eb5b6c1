//! The shape of a conversation, and tool-call arguments that arrive as text.

use serde_json::{Map, Value};

use crate::TextError;

/// A conversation ready for a template.
pub(super) struct Prepared {
    pub(super) messages: Value,
    /// Where the first tool call is whose arguments are a string but not of a JSON object.
    pub(super) odd_arguments: Option<String>,
}

/// Checks the outline and decodes the arguments of tool calls; what a message contains is the template's business.
pub(super) fn prepare(messages: &Value) -> Result<Prepared, TextError> {
    let wrong = |path: String, problem: &str| TextError::Message { path, problem: problem.to_owned() };
    let list = messages.as_array().ok_or_else(|| wrong("messages".to_owned(), "is not an array"))?;
    if list.is_empty() {
        return Err(TextError::NoMessages);
    }
    let mut odd_arguments = None;
    let mut prepared = Vec::with_capacity(list.len());
    for (index, message) in list.iter().enumerate() {
        let path = format!("messages[{index}]");
        let Some(message) = message.as_object() else { return Err(wrong(path, "is not an object")) };
        if !message.get("role").is_some_and(Value::is_string) {
            return Err(wrong(path + ".role", "is not a string"));
        }
        let mut message = message.clone();
        if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
            for (number, call) in calls.iter_mut().enumerate() {
                if !decode_arguments(call) && odd_arguments.is_none() {
                    odd_arguments = Some(format!("{path}.tool_calls[{number}].function.arguments"));
                }
            }
        }
        prepared.push(Value::Object(message));
    }
    Ok(Prepared { messages: Value::Array(prepared), odd_arguments })
}

/// Replaces arguments given as the text of a JSON object by the object; false if they are some other text. An empty
/// text, which clients send for a call without arguments, is the empty object.
fn decode_arguments(call: &mut Value) -> bool {
    let function = if call.get("function").is_some() { &mut call["function"] } else { call };
    let Some(arguments @ Value::String(_)) = function.get_mut("arguments") else { return true };
    let text = arguments.as_str().unwrap_or_default();
    let object: Option<Map<String, Value>> =
        if text.trim().is_empty() { Some(Map::new()) } else { serde_json::from_str(text).ok() };
    let decoded = object.is_some();
    if let Some(object) = object {
        *arguments = Value::Object(object);
    }
    decoded
}
