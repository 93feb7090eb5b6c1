//! The tools of a request.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Dialect;
use super::schema::{Schemas, Types};
use crate::TextError;

/// The tools that a request declares. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Declared {
    tools: Arc<[Tool]>,
    dialect: Dialect,
}

/// A declared function.
#[derive(Debug)]
pub(super) struct Tool {
    name: String,
    pub(super) parameters: Schemas,
}

impl Declared {
    /// Reads the `tools` of a request in OpenAI's form,
    /// `[{"type": "function", "function": {"name", "description", "parameters"}}]`, or with the function's own object in
    /// place of its wrapper. `null` declares nothing. Keys that do not concern calls are left alone.
    ///
    /// # Errors
    /// [`TextError::Field`] with the path of what is wrong: a missing or repeated name, a name that no call can spell, a
    /// `parameters` that is not the JSON Schema of an object, a `$ref` that leads nowhere or out of the declaration.
    pub fn new(tools: &Value) -> Result<Self, TextError> {
        let list = match tools {
            Value::Null => &[][..],
            Value::Array(list) => list,
            _ => return Err(TextError::field("tools", "is not an array")),
        };
        let mut read: Vec<Tool> = Vec::with_capacity(list.len());
        for (index, entry) in list.iter().enumerate() {
            let tool = tool(entry, &format!("tools[{index}]"))?;
            if let Some(first) = read.iter().position(|other| other.name == tool.name) {
                let problem = format!("declares `{}`, as tools[{first}] does", tool.name);
                return Err(TextError::field(format!("tools[{index}]"), problem));
            }
            read.push(tool);
        }
        Ok(Self { tools: read.into(), dialect: Dialect::default() })
    }

    /// The same tools, whose calls are spelled otherwise.
    #[must_use]
    pub fn spelled(self, dialect: Dialect) -> Self {
        Self { dialect, ..self }
    }

    /// How calls are spelled; unless told otherwise as [`Dialect::Qwen`] has it.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The names of the functions, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|tool| tool.name.as_str())
    }

    pub(super) fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}

fn tool(entry: &Value, path: &str) -> Result<Tool, TextError> {
    let object = entry.as_object().ok_or_else(|| TextError::field(path, "is not an object"))?;
    if object.get("type").is_some_and(|kind| kind != "function") {
        return Err(TextError::field(format!("{path}.type"), "is not `function`"));
    }
    match object.get("function") {
        None => function(object, path),
        Some(Value::Object(inner)) => function(inner, &format!("{path}.function")),
        Some(_) => Err(TextError::field(format!("{path}.function"), "is not an object")),
    }
}

fn function(object: &Map<String, Value>, path: &str) -> Result<Tool, TextError> {
    let wrong_name = |problem: &str| TextError::field(format!("{path}.name"), problem);
    let name = object.get("name").ok_or_else(|| wrong_name("is missing"))?;
    let name = name.as_str().ok_or_else(|| wrong_name("is not a string"))?;
    if name.is_empty() {
        return Err(wrong_name("is empty"));
    }
    if name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '<' || c == '>') {
        return Err(wrong_name("has a blank, `<` or `>`, which a call cannot spell"));
    }
    let none = json!({"type": "object", "additionalProperties": false});
    let parameters = object.get("parameters").filter(|p| !p.is_null()).unwrap_or(&none);
    let path = format!("{path}.parameters");
    let parameters = Schemas::new(parameters, &path)?;
    if !super::judge::Judge::new(&parameters).types(parameters.root()).meets(Types::OBJECT) {
        return Err(TextError::field(path, "is not the schema of an object"));
    }
    Ok(Tool { name: name.to_owned(), parameters })
}
