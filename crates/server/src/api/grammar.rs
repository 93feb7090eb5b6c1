//! The fields that hold an answer to a grammar.

use serde_json::{Map, Value};

use super::body::{Body, wrong};
use crate::core::{Constraint, Grammar, Vocabulary, any_object};
use crate::error::ApiError;
use crate::model::Model;

/// A grammar, and the field that asks for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub grammar: Grammar,
    pub field: &'static str,
}

/// Most characters of a grammar or a regular expression.
const LONGEST: usize = 100_000;

/// Reads the value of one field.
type Read = fn(&Value) -> Result<Option<Grammar>, ApiError>;

/// Finds the one field that asks for a grammar.
///
/// # Errors
/// Two of them, or what is wrong with one.
pub(crate) fn read(body: &Body) -> Result<Option<Asked>, ApiError> {
    let fields: [(&'static str, Read); 5] = [
        ("response_format", response_format),
        ("guided_json", |value| schema("guided_json", value).map(Some)),
        ("guided_regex", |value| text("guided_regex", value).map(|regex| Some(Grammar::Regex(regex)))),
        ("guided_choice", |value| choice(value).map(Some)),
        ("guided_grammar", |value| text("guided_grammar", value).map(|lark| Some(Grammar::Lark(lark)))),
    ];
    let mut found: Option<Asked> = None;
    for (field, read) in fields {
        let Some(grammar) = body.get(field).map(read).transpose()?.flatten() else { continue };
        if let Some(first) = &found {
            return Err(ApiError::field(field, format!("and `{}` are both there; give one", first.field)));
        }
        found = Some(Asked { grammar, field });
    }
    if found.is_some() && body.bool("ignore_eos")? == Some(true) {
        return Err(ApiError::field(
            "ignore_eos",
            "cannot be combined with a grammar, which ends the answer",
        ));
    }
    Ok(found)
}

/// What holds one answer to a compiled grammar.
pub(crate) struct Holder<'a> {
    matcher: llguidance::Matcher,
    model: &'a Model,
    thinks: bool,
}

impl<'a> Holder<'a> {
    /// Compiles a grammar. `thinks` says that the prompt has opened a thinking part.
    ///
    /// # Errors
    /// Names the field.
    pub fn new(asked: &Asked, model: &'a Model, vocab: usize, thinks: bool) -> Result<Holder<'a>, ApiError> {
        let vocabulary = Vocabulary { tokenizer: &model.tokenizer, size: vocab, eos: &model.eos };
        let matcher = model.grammars.compile(&asked.grammar, asked.field, &vocabulary)?;
        Ok(Holder { matcher, model, thinks })
    }

    /// A constraint for one answer.
    pub fn constraint(&self) -> Constraint {
        Constraint::new(&self.matcher, &self.model.tokenizer, self.thinks)
    }
}

fn response_format(value: &Value) -> Result<Option<Grammar>, ApiError> {
    match value.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(any_object())),
        Some("json_schema") => {
            let path = "response_format.json_schema.schema";
            let found = value.get("json_schema").and_then(|format| format.get("schema"));
            schema(path, found.unwrap_or(&Value::Null)).map(Some)
        }
        _ => Err(ApiError::field("response_format.type", "must be `text`, `json_object` or `json_schema`")),
    }
}

fn schema(path: &str, value: &Value) -> Result<Grammar, ApiError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(Grammar::Json(value.clone())),
        other => Err(wrong(path, "a JSON schema", other)),
    }
}

fn text(path: &str, value: &Value) -> Result<String, ApiError> {
    let text = value.as_str().ok_or_else(|| wrong(path, "a string", value))?;
    if text.len() > LONGEST {
        return Err(ApiError::field(path, format!("is longer than {LONGEST} bytes")));
    }
    Ok(text.to_owned())
}

fn choice(value: &Value) -> Result<Grammar, ApiError> {
    let list = value.as_array().filter(|list| !list.is_empty() && list.iter().all(Value::is_string));
    let list = list.ok_or_else(|| wrong("guided_choice", "a list of strings", value))?;
    Ok(Grammar::Lark(format!("start: {}", alternatives(list))))
}

/// Values as alternatives in Lark's form, whose strings are JSON's.
pub(crate) fn alternatives(values: &[Value]) -> String {
    values.iter().map(quoted).collect::<Vec<_>>().join(" | ")
}

fn quoted(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Value::String(text).to_string()
}

/// How a model spells calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// Qwen's XML.
    Xml,
    /// Hermes' JSON.
    Json,
}

/// The grammar of an answer that consists of calls: of all `tools`, or of `only` one of them; several if `several`.
pub(crate) fn calls(tools: &Value, only: Option<&str>, several: bool, model: &Model) -> Asked {
    let source = model.template_source.as_deref().unwrap_or_default();
    let dialect = if source.contains("<function=") { Dialect::Xml } else { Dialect::Json };
    let tag = |name: &str| {
        let special = model.tokenizer.token_to_id(name).is_some_and(|id| model.tokenizer.is_special(id));
        if special { name.to_owned() } else { Value::from(name).to_string() }
    };
    let functions = tools.as_array().into_iter().flatten().map(|tool| tool.get("function").unwrap_or(tool));
    let functions = functions.filter(|f| only.is_none_or(|name| f["name"] == name));
    let (mut names, mut rules) = (Vec::new(), String::new());
    for (index, function) in functions.enumerate() {
        names.push(format!("f{index}"));
        rules += &match dialect {
            Dialect::Json => json_function(index, function),
            Dialect::Xml => xml_function(index, function),
        };
    }
    let call = format!("{} \"\\n\" one \"\\n\" {}", tag("<tool_call>"), tag("</tool_call>"));
    let more = if several && only.is_none() { " (\"\\n\" call)*" } else { "" };
    let lark = format!("start: \"\\n\\n\"? call{more}\ncall: {call}\none: {}\n{rules}", names.join(" | "));
    Asked { grammar: Grammar::Lark(lark), field: "tools" }
}

fn json_function(index: usize, function: &Value) -> String {
    let head = Value::from(format!("{{\"name\": {}, \"arguments\": ", function["name"]));
    format!("f{index}: {head} a{index} \"}}\"\na{index}: %json {}\n", parameters(function))
}

fn xml_function(index: usize, function: &Value) -> String {
    let parameters = parameters(function);
    let name = function["name"].as_str().unwrap_or_default();
    let head = Value::from(format!("<function={name}>\n"));
    let mut rule = format!("f{index}: {head}");
    let mut values = String::new();
    let required = parameters["required"].as_array().cloned().unwrap_or_default();
    let properties = parameters["properties"].as_object().cloned().unwrap_or_default();
    for (place, (key, schema)) in properties.iter().enumerate() {
        let part = format!("p{index}_{place}");
        let optional = if required.iter().any(|name| name == key) { "" } else { "?" };
        rule += &format!(" {part}{optional}");
        let open = Value::from(format!("<parameter={key}>\n"));
        values += &format!("{part}: {open} v{index}_{place}\n");
        values += &xml_value(&format!("{index}_{place}"), schema, &parameters);
    }
    format!("{rule} \"</function>\"\n{values}")
}

/// A value may be any text if it may be a string; the schema decides about all others.
fn xml_value(place: &str, schema: &Value, parameters: &Value) -> String {
    let end = r#""\n</parameter>\n""#;
    let schema = resolved(schema, parameters);
    if let Some(choices) = schema["enum"].as_array().filter(|choices| !choices.is_empty()) {
        return format!("v{place}: ({}) {end}\n", alternatives(choices));
    }
    let is_string = |name: &Value| name == "string";
    let types = &schema["type"];
    let never_string = match types {
        Value::String(_) => !is_string(types),
        Value::Array(names) => !names.iter().any(is_string),
        _ => false,
    };
    if !never_string {
        return format!("v{place}[suffix={end}]: /(?s:.*)/\n");
    }
    let mut schema = schema.clone();
    for definitions in ["$defs", "definitions"] {
        if let (Value::Object(schema), Some(found)) = (&mut schema, parameters.get(definitions)) {
            schema.entry(definitions).or_insert_with(|| found.clone());
        }
    }
    format!("v{place}: j{place} {end}\nj{place}: %json {schema}\n")
}

/// What a schema refers to.
fn resolved<'a>(schema: &'a Value, parameters: &'a Value) -> &'a Value {
    let pointer = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    pointer.and_then(|pointer| parameters.pointer(pointer)).unwrap_or(schema)
}

fn parameters(function: &Value) -> Value {
    let none = || {
        let mut none = Map::new();
        none.insert("type".to_owned(), "object".into());
        none.insert("additionalProperties".to_owned(), false.into());
        Value::Object(none)
    };
    function.get("parameters").filter(|parameters| !parameters.is_null()).cloned().unwrap_or_else(none)
}
