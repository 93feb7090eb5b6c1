//! Grammars of calls: what an answer is held to that must call a function.

mod gemma;

use basert_text::Tokenizer;
use basert_text::tools::Dialect;
use serde_json::{Map, Value};

use super::grammar::alternatives;
use crate::core::{Grammar, json_part};
use crate::model::Model;

/// The grammar of calls.
#[derive(Debug)]
pub(crate) struct Calls {
    /// What an answer of calls begins with.
    start: String,
    /// The rules that it leads to.
    rules: String,
}

impl Calls {
    /// Of all `tools`, or of `only` one of them; several if `several`.
    pub fn new(tools: &Value, only: Option<&str>, several: bool, model: &Model) -> Calls {
        let functions =
            tools.as_array().into_iter().flatten().map(|tool| tool.get("function").unwrap_or(tool));
        let functions: Vec<&Value> =
            functions.filter(|f| only.is_none_or(|name| f["name"] == name)).collect();
        let has = |word: &str| model.template_source.as_ref().is_some_and(|source| source.contains(word));
        let (tokenizer, dialect) = (&model.tokenizer, model.dialect());
        let spelling = match dialect {
            Dialect::Qwen => tagged(&functions, has("<function="), tokenizer),
            Dialect::Llama => llama(&functions),
            Dialect::Mistral if has("[ARGS]") => mistral(&functions, tokenizer),
            Dialect::Mistral => mistral_array(&functions, tokenizer),
            Dialect::FunctionGemma | Dialect::Gemma4 => gemma::calls(&functions, dialect, tokenizer),
        };
        spelling.into_calls(several && only.is_none())
    }

    /// The grammar of an answer of calls.
    pub fn alone(&self) -> Grammar {
        Grammar::Lark(format!("start: {}\n{}", self.start, self.rules))
    }

    /// The grammar of an answer of calls, or of a text.
    pub fn or(&self, text: &Grammar) -> Grammar {
        let Calls { start, rules } = self;
        Grammar::Lark(format!("start: calls | text\ncalls: {start}\n{rules}text: {}\n", text.as_part()))
    }
}

/// How one dialect spells calls.
struct Spelling {
    /// What stands before the first call, between two, and behind the last one.
    around: [String; 3],
    /// The rule of one call.
    call: String,
    /// Rules of functions, and what else `call` leads to.
    rules: String,
}

impl Spelling {
    fn into_calls(self, several: bool) -> Calls {
        let Spelling { around: [before, between, behind], call, rules } = self;
        let more = if several { format!(" ({between} call)*") } else { String::new() };
        Calls { start: format!("{before} call{more} {behind}"), rules: format!("call: {call}\n{rules}") }
    }
}

/// A tag as one token where it is a special one, else as text.
fn tag(name: &str, tokenizer: &Tokenizer) -> String {
    special(name, tokenizer).unwrap_or_else(|| literal(name))
}

fn special(name: &str, tokenizer: &Tokenizer) -> Option<String> {
    let id = tokenizer.token_to_id(name).filter(|id| tokenizer.is_special(*id));
    id.map(|id| format!("<[{id}]>"))
}

/// A text in Lark's form, whose strings are JSON's.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// The names of as many rules.
fn one_of(functions: &[&Value]) -> String {
    (0..functions.len()).map(|index| format!("f{index}")).collect::<Vec<_>>().join(" | ")
}

fn rules(functions: &[&Value], rule: impl Fn(usize, &Value) -> String) -> String {
    functions.iter().enumerate().map(|(index, function)| rule(index, function)).collect()
}

fn tagged(functions: &[&Value], in_xml: bool, tokenizer: &Tokenizer) -> Spelling {
    let (open, close) = (tag(Dialect::Qwen.open(), tokenizer), tag(Dialect::Qwen.close(), tokenizer));
    let rule = if in_xml { xml_function } else { |index, f: &Value| json_function(index, f, "arguments") };
    Spelling {
        around: [literal("\n\n") + "?", literal("\n"), String::new()],
        call: format!("{open} \"\\n\" one \"\\n\" {close}\none: {}", one_of(functions)),
        rules: rules(functions, rule),
    }
}

fn llama(functions: &[&Value]) -> Spelling {
    Spelling {
        around: [literal("\n\n") + "?", literal("; "), String::new()],
        call: one_of(functions),
        rules: rules(functions, |index, f| json_function(index, f, "parameters")),
    }
}

fn mistral_array(functions: &[&Value], tokenizer: &Tokenizer) -> Spelling {
    let open = tag(Dialect::Mistral.open(), tokenizer);
    Spelling {
        around: [format!("{open} \" \"? \"[\""), literal(", "), literal("]")],
        call: one_of(functions),
        rules: rules(functions, |index, f| json_function(index, f, "arguments")),
    }
}

fn mistral(functions: &[&Value], tokenizer: &Tokenizer) -> Spelling {
    let (open, arguments) = (tag(Dialect::Mistral.open(), tokenizer), tag("[ARGS]", tokenizer));
    let rule = |index, function: &Value| {
        let name = literal(function["name"].as_str().unwrap_or_default());
        format!("f{index}: {name} {arguments} a{index}\na{index}: {}\n", json_part(&parameters(function)))
    };
    Spelling {
        around: [String::new(), String::new(), String::new()],
        call: format!("{open} one\none: {}", one_of(functions)),
        rules: rules(functions, rule),
    }
}

fn json_function(index: usize, function: &Value, key: &str) -> String {
    let head = literal(&format!("{{\"name\": {}, \"{key}\": ", function["name"]));
    format!("f{index}: {head} a{index} \"}}\"\na{index}: {}\n", json_part(&parameters(function)))
}

fn xml_function(index: usize, function: &Value) -> String {
    let parameters = parameters(function);
    let name = function["name"].as_str().unwrap_or_default();
    let head = literal(&format!("<function={name}>\n"));
    let mut rule = format!("f{index}: {head}");
    let mut values = String::new();
    let required = parameters["required"].as_array().cloned().unwrap_or_default();
    let properties = parameters["properties"].as_object().cloned().unwrap_or_default();
    for (place, (key, schema)) in properties.iter().enumerate() {
        let part = format!("p{index}_{place}");
        let optional = if required.iter().any(|name| name == key) { "" } else { "?" };
        rule += &format!(" {part}{optional}");
        let open = literal(&format!("<parameter={key}>\n"));
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
    format!("v{place}: j{place} {end}\nj{place}: {}\n", json_part(&schema))
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
