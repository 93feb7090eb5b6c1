//! The messages of a chat request: their shape, and the forms that are brought to one.

use serde_json::{Map, Value};

use basert_text::TextError;

use super::body::wrong;
use crate::error::ApiError;

/// Most messages of a request.
const MOST: usize = 10_000;

/// Messages as templates know them.
#[derive(Debug)]
pub(crate) struct Messages {
    pub list: Value,
    /// Messages of the request that became part of the first one.
    joined: usize,
}

impl Messages {
    /// The index in the request of a message of the list.
    pub fn index(&self, index: usize) -> usize {
        if index == 0 { 0 } else { index + self.joined }
    }

    /// An error of the template with the indices of the request.
    pub fn in_request(&self, error: TextError) -> TextError {
        match error {
            TextError::Refused { message: Some(index), reason } => {
                TextError::Refused { message: Some(self.index(index)), reason }
            }
            TextError::Message { path, problem } => TextError::Message { path: self.path(&path), problem },
            other => other,
        }
    }

    fn path(&self, path: &str) -> String {
        let parts = path.strip_prefix("messages[").and_then(|rest| rest.split_once(']'));
        let moved = parts.and_then(|(index, rest)| Some((self.index(index.parse().ok()?), rest)));
        moved.map_or_else(|| path.to_owned(), |(index, rest)| format!("messages[{index}]{rest}"))
    }
}

/// Checks the shape of messages and brings them to the form that templates know: `developer` is `system`, content parts are
/// one text, and several system messages at the beginning are one. A later system message stays where it is; whether it may
/// stand there is the template's decision.
///
/// # Errors
/// Names the message and the part that is wrong.
pub(crate) fn read(messages: Value) -> Result<Messages, ApiError> {
    let Value::Array(list) = messages else { return Err(wrong("messages", "a list of messages", &messages)) };
    if list.is_empty() {
        return Err(ApiError::field("messages", "is empty"));
    }
    if list.len() > MOST {
        return Err(ApiError::field(
            "messages",
            format!("has {} messages; at most {MOST} are taken", list.len()),
        ));
    }
    let given = list.len();
    let mut read: Vec<Map<String, Value>> = Vec::with_capacity(list.len());
    for (index, message) in list.into_iter().enumerate() {
        let path = format!("messages[{index}]");
        let Value::Object(message) = message else { return Err(wrong(&path, "an object", &message)) };
        let message = one(message, &path)?;
        let all_system = read.iter().all(is_system);
        match read.last_mut().filter(|_| all_system && is_system(&message)) {
            Some(first) => join(first, &message),
            None => read.push(message),
        }
    }
    let joined = given - read.len();
    Ok(Messages { list: Value::Array(read.into_iter().map(Value::Object).collect()), joined })
}

fn is_system(message: &Map<String, Value>) -> bool {
    message.get("role").is_some_and(|role| role == "system")
}

fn join(first: &mut Map<String, Value>, second: &Map<String, Value>) {
    let text = |message: &Map<String, Value>| message["content"].as_str().unwrap_or_default().to_owned();
    let joined = format!("{}\n\n{}", text(first), text(second));
    first.insert("content".to_owned(), joined.into());
}

fn one(mut message: Map<String, Value>, path: &str) -> Result<Map<String, Value>, ApiError> {
    let role = message.get("role").unwrap_or(&Value::Null);
    let role = match role.as_str() {
        Some("developer") => "system".to_owned(),
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role.to_owned(),
        _ => {
            let known = "`system`, `developer`, `user`, `assistant` or `tool`";
            return Err(wrong(&format!("{path}.role"), known, role));
        }
    };
    let calls = calls(&mut message, path, &role)?;
    let content = content(message.get_mut("content").map(Value::take), &format!("{path}.content"))?;
    if content.is_none() && !calls {
        return Err(ApiError::field(format!("{path}.content"), "is missing"));
    }
    message.insert("content".to_owned(), content.unwrap_or_default().into());
    for name in ["reasoning_content", "name", "tool_call_id"] {
        if let Some(value) = message.get(name).filter(|value| !value.is_null() && !value.is_string()) {
            return Err(wrong(&format!("{path}.{name}"), "a string", value));
        }
    }
    message.insert("role".to_owned(), role.into());
    Ok(message)
}

/// The text of a content.
fn content(content: Option<Value>, path: &str) -> Result<Option<String>, ApiError> {
    match content {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let part = |(i, part): (usize, &Value)| part_text(part, &format!("{path}[{i}]"));
            parts.iter().enumerate().map(part).collect::<Result<String, _>>().map(Some)
        }
        Some(other) => Err(wrong(path, "a string or a list of parts", &other)),
    }
}

fn part_text(part: &Value, path: &str) -> Result<String, ApiError> {
    let kind = part.get("type").and_then(Value::as_str);
    let text = match kind {
        Some("text") => part.get("text"),
        Some("refusal") => part.get("refusal"),
        Some(kind @ ("image_url" | "input_audio" | "file")) => {
            return Err(ApiError::unsupported(
                path,
                format!("is of type `{kind}`; this model reads text only"),
            ));
        }
        _ => return Err(ApiError::field(format!("{path}.type"), "must be `text`")),
    };
    let text = text.and_then(Value::as_str);
    text.map(str::to_owned).ok_or_else(|| ApiError::field(format!("{path}.text"), "must be a string"))
}

/// Whether there are calls, whose shape is checked.
fn calls(message: &mut Map<String, Value>, path: &str, role: &str) -> Result<bool, ApiError> {
    let path = format!("{path}.tool_calls");
    let calls = match message.get("tool_calls") {
        None | Some(Value::Null) => {
            message.remove("tool_calls");
            return Ok(false);
        }
        Some(Value::Array(calls)) => calls,
        Some(other) => return Err(wrong(&path, "a list", other)),
    };
    if role != "assistant" {
        return Err(ApiError::field(path, "belongs to an assistant's message"));
    }
    for (i, call) in calls.iter().enumerate() {
        let path = format!("{path}[{i}].function");
        let function = call.get("function").and_then(Value::as_object);
        let function = function.ok_or_else(|| ApiError::field(&path, "must be an object"))?;
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(ApiError::field(format!("{path}.name"), "must be a string"));
        }
        match function.get("arguments") {
            None | Some(Value::String(_) | Value::Object(_)) => {}
            Some(other) => {
                return Err(wrong(&format!("{path}.arguments"), "JSON in a string, or an object", other));
            }
        }
    }
    let any = !calls.is_empty();
    if !any {
        message.remove("tool_calls");
    }
    Ok(any)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_come_to_one_form() {
        let found = read(json!([
            {"role": "developer", "content": "a"},
            {"role": "system", "content": [{"type": "text", "text": "b"}]},
            {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "ok"},
            {"role": "system", "content": "late"},
        ]))
        .unwrap();
        assert_eq!([0, 1, 4].map(|index| found.index(index)), [0, 2, 5]);
        assert_eq!(found.path("messages[2].tool_calls[0]"), "messages[3].tool_calls[0]");
        let found = found.list;
        let outline: Vec<_> = found.as_array().unwrap().iter().map(|m| (&m["role"], &m["content"])).collect();
        let expected = json!([
            ["system", "a\n\nb"],
            ["user", "cd"],
            ["assistant", ""],
            ["tool", "ok"],
            ["system", "late"]
        ]);
        assert_eq!(json!(outline), expected);
        assert_eq!(found[2]["tool_calls"][0]["function"]["arguments"], "{}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (messages, param) in [
            (json!("hi"), "messages"),
            (json!([]), "messages"),
            (json!([7]), "messages[0]"),
            (json!([{"role": "king", "content": ""}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 7}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0]"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
            (json!([{"role": "user", "content": "", "tool_calls": [{}]}]), "messages[0].tool_calls"),
            (json!([{"role": "assistant", "tool_calls": [{}]}]), "messages[0].tool_calls[0].function"),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}]),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            assert_eq!(read(messages.clone()).unwrap_err().param.as_deref(), Some(param), "{messages}");
        }
    }
}
