//! From the text of a call's parts to values.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::judge::Judge;
use super::schema::{Schema, Types};
use super::{CallProblem, Declared, ToolCall, excerpt};

/// The call of the XML dialect; parameters are keys and the text between their tags.
pub(super) fn xml_call<'t>(
    name: &str,
    parameters: impl Iterator<Item = (&'t str, &'t str)>,
    declared: &Declared,
) -> Result<ToolCall, CallProblem> {
    let mut judge = declared.tool(name).map(|tool| Judge::new(&tool.parameters));
    let mut arguments = Map::new();
    for (key, text) in parameters {
        if arguments.contains_key(key) {
            return Err(CallProblem::Repeated { path: key.to_owned() });
        }
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        let schema = judge.as_mut().and_then(|judge| Some((judge.parameter(key)?, judge)));
        let value = match schema {
            Some((schema, judge)) => typed(key, text, schema, judge)?,
            None => untyped(text),
        };
        arguments.insert(key.to_owned(), value);
    }
    judge.map_or(Ok(()), |judge| judge.verdict(Ok(())))?;
    Ok(ToolCall { name: name.to_owned(), arguments })
}

/// The value of a text by the rules of [the module](super).
fn typed(key: &str, text: &str, schema: &Schema, judge: &mut Judge<'_>) -> Result<Value, CallProblem> {
    let types = judge.types(schema);
    if types == Types::ANY || types == Types::NONE {
        return Ok(untyped(text));
    }
    let literal = || literal(text).filter(|value| types.meets(Types::of(value)));
    if !types.meets(Types::STRING) {
        let wrong = || CallProblem::WrongType {
            path: key.to_owned(),
            expected: types.describe(),
            found: excerpt(text),
        };
        return literal().ok_or_else(wrong);
    }
    let string = Value::String(text.to_owned());
    let literal = if types == Types::STRING { None } else { literal().filter(|value| !value.is_string()) };
    let Some(literal) = literal else { return Ok(string) };
    let string_is_better = !judge.satisfies(schema, &literal) && judge.satisfies(schema, &string);
    Ok(if string_is_better { string } else { literal })
}

fn untyped(text: &str) -> Value {
    let structure = literal(text).filter(|value| value.is_object() || value.is_array());
    structure.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// A text as JSON, or as one of the three words that Python spells otherwise.
pub(super) fn literal(text: &str) -> Option<Value> {
    match text.trim() {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        "None" => Some(Value::Null),
        json => serde_json::from_str(json).ok(),
    }
}

/// A call in JSON; if that is `loose`, with `id` and `type` beside the name, and `parameters` for `arguments`.
pub(super) fn json_call(json: &str, loose: bool) -> Result<ToolCall, CallProblem> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Call {
        name: String,
        arguments: Option<Arguments>,
        parameters: Option<Arguments>,
        id: Option<IgnoredAny>,
        r#type: Option<IgnoredAny>,
    }
    let call: Call = serde_json::from_str(json).map_err(wrong_json)?;
    let is_double = call.arguments.is_some() && call.parameters.is_some();
    let foreign = [
        ("parameters", call.parameters.is_some() && (is_double || !loose)),
        ("id", call.id.is_some() && !loose),
        ("type", call.r#type.is_some() && !loose),
    ];
    if let Some((name, _)) = foreign.iter().find(|(_, is_foreign)| *is_foreign) {
        return Err(CallProblem::Json { reason: format!("unknown field `{name}`") });
    }
    call.arguments.or(call.parameters).unwrap_or_default().of(call.name)
}

/// A call whose arguments are JSON.
pub(super) fn arguments_call(name: &str, json: &str) -> Result<ToolCall, CallProblem> {
    serde_json::from_str::<Arguments>(json).map_err(wrong_json)?.of(name.to_owned())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn wrong_json(error: serde_json::Error) -> CallProblem {
    CallProblem::Json { reason: error.to_string() }
}

/// Arguments that remember a key given twice, which a map of `serde_json` forgets.
#[derive(Default)]
struct Arguments {
    values: Map<String, Value>,
    repeated: Option<String>,
}

impl Arguments {
    /// The call of a function with these arguments.
    fn of(self, name: String) -> Result<ToolCall, CallProblem> {
        match self.repeated {
            Some(path) => Err(CallProblem::Repeated { path }),
            None => Ok(ToolCall { name, arguments: self.values }),
        }
    }
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Arguments;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of arguments")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Arguments, A::Error> {
                let mut arguments = Arguments::default();
                while let Some((key, value)) = entries.next_entry::<String, Value>()? {
                    if arguments.values.contains_key(&key) {
                        arguments.repeated.get_or_insert_with(|| key.clone());
                    }
                    arguments.values.insert(key, value);
                }
                Ok(arguments)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
