//! The fields that hold an answer to a grammar.

use serde_json::Value;

use super::body::{Body, wrong};
use super::calls::Calls;
use crate::core::{Budget, Constraint, Grammar, Vocabulary, any_object};
use crate::error::ApiError;
use crate::model::Model;

/// A grammar, and the field that asks for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub grammar: Grammar,
    pub field: &'static str,
}

/// Most bytes of a grammar, a schema or a regular expression.
const LONGEST: usize = 100_000;

/// Whether something is to be compiled for a request.
pub(crate) fn asks_for_grammar(body: &Body) -> bool {
    let fields =
        ["response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar"];
    let forces_call = |choice: &Value| choice != "auto" && choice != "none";
    fields.iter().any(|field| body.get(field).is_some()) || body.get("tool_choice").is_some_and(forces_call)
}

/// Reads the value of one field.
type Read = fn(&Value) -> Result<Option<Grammar>, ApiError>;

/// Finds the one field that asks for a grammar.
///
/// # Errors
/// Two of them, or what is wrong with one.
pub(crate) fn read(body: &Body) -> Result<Option<Asked>, ApiError> {
    let fields: [(&'static str, Read); 6] = [
        ("response_format", response_format),
        ("guided_json", |value| schema("guided_json", value).map(Some)),
        ("guided_regex", |value| text("guided_regex", value).map(|regex| Some(Grammar::Regex(regex)))),
        ("guided_choice", |value| choice(value).map(Some)),
        ("guided_grammar", |value| text("guided_grammar", value).map(|lark| Some(Grammar::Lark(lark)))),
        ("grammar", |value| text("grammar", value).map(|lark| Some(Grammar::Lark(lark)))),
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

/// What an answer may be.
#[derive(Debug)]
pub(crate) enum Allowed {
    /// Anything.
    Any,
    /// A text that obeys a grammar.
    Text(Asked),
    /// Calls.
    Calls(Calls),
    /// Calls, or a text that obeys a grammar.
    Either(Calls, Asked),
}

impl Allowed {
    /// Compiles it; nothing if there is nothing to hold an answer to.
    fn compile(
        &self,
        model: &Model,
        vocabulary: &Vocabulary<'_>,
    ) -> Result<Option<llguidance::Matcher>, ApiError> {
        let compile = |grammar: &Grammar, field| model.grammars.compile(grammar, field, vocabulary);
        match self {
            Allowed::Any => Ok(None),
            Allowed::Text(Asked { grammar, field }) => compile(grammar, field).map(Some),
            Allowed::Calls(calls) => compile(&calls.alone(), "tools").map(Some),
            Allowed::Either(calls, Asked { grammar, field }) => {
                compile(&calls.or(grammar), "tools").map(Some).map_err(|error| {
                    // Whose fault it is.
                    compile(grammar, field).err().unwrap_or(error)
                })
            }
        }
    }
}

/// What holds the answers of one request.
pub(crate) struct Holder<'a> {
    matcher: Option<llguidance::Matcher>,
    budget: Option<Budget>,
    model: &'a Model,
    thinks: bool,
}

impl<'a> Holder<'a> {
    /// Compiles what is allowed. `thinks` says that the prompt has opened a thinking part, `budget` how many tokens it may have.
    ///
    /// # Errors
    /// Names the field.
    pub fn new(
        allowed: &Allowed,
        budget: Option<usize>,
        model: &'a Model,
        vocab: usize,
        thinks: bool,
    ) -> Result<Holder<'a>, ApiError> {
        let vocabulary = Vocabulary { tokenizer: &model.tokenizer, size: vocab, eos: &model.eos };
        let matcher = allowed.compile(model, &vocabulary)?;
        let budget = budget.map(|tokens| Budget::new(tokens, &model.tokenizer)).transpose()?;
        Ok(Holder { matcher, budget, model, thinks })
    }

    /// A constraint for one answer, if it needs one.
    pub fn constraint(&self) -> Option<Constraint> {
        let Holder { matcher, budget, model, thinks } = self;
        let is_held = matcher.is_some() || budget.is_some();
        is_held.then(|| Constraint::new(matcher.as_ref(), budget.clone(), &model.tokenizer, *thinks))
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
        Value::Object(_) | Value::Bool(_) => {
            within(path, value.to_string().len())?;
            Ok(Grammar::Json(value.clone()))
        }
        other => Err(wrong(path, "a JSON schema", other)),
    }
}

fn text(path: &str, value: &Value) -> Result<String, ApiError> {
    let text = value.as_str().ok_or_else(|| wrong(path, "a string", value))?;
    within(path, text.len())?;
    Ok(text.to_owned())
}

fn within(path: &str, bytes: usize) -> Result<(), ApiError> {
    let long = || ApiError::field(path, format!("is longer than {LONGEST} bytes; use less of it"));
    if bytes > LONGEST { Err(long()) } else { Ok(()) }
}

fn choice(value: &Value) -> Result<Grammar, ApiError> {
    let list = value.as_array().filter(|list| !list.is_empty() && list.iter().all(Value::is_string));
    let list = list.ok_or_else(|| wrong("guided_choice", "a list of strings", value))?;
    let (empty, words): (Vec<_>, Vec<_>) = list.iter().cloned().partition(|choice| choice == "");
    // A terminal is one expression, which takes thousands of words; a rule does not.
    Ok(Grammar::Lark(match (words.is_empty(), empty.is_empty()) {
        (true, _) => "start: \"\"".to_owned(),
        (false, true) => format!("start: CHOICE\nCHOICE: {}", alternatives(&words)),
        (false, false) => format!("start: CHOICE?\nCHOICE: {}", alternatives(&words)),
    }))
}

/// Values as alternatives in Lark's form, whose strings are JSON's.
pub(crate) fn alternatives(values: &[Value]) -> String {
    values.iter().map(quoted).collect::<Vec<_>>().join(" | ")
}

fn quoted(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Value::String(text).to_string()
}
