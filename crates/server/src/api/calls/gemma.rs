//! Calls in Gemma's spelling, whose values are not JSON.

use std::fmt::Write;

use basert_text::Tokenizer;
use basert_text::tools::Dialect;
use serde_json::Value;

use super::{Spelling, json_part, literal, one_of, parameters, resolved, special, tag};

/// How deep schemas are followed; beyond, a value is any value.
const DEPTH: usize = 12;

/// Most rules of objects and lists, for references can lead to any number; beyond, they are any object and any list.
const MOST: usize = 256;

/// What values have in common; `str` is a string.
const VALUES: &str = r#"any: str | NUMBER | "true" | "false" | "null" | list | map
list: "[" (any ("," any)*)? "]"
map: "{" (pair ("," pair)*)? "}"
pair: KEY ":" any
KEY: /[A-Za-z_][A-Za-z0-9_]*/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?/
"#;

pub(super) fn calls(functions: &[&Value], dialect: Dialect, tokenizer: &Tokenizer) -> Spelling {
    let mut rules = Rules { text: VALUES.to_owned(), made: 0, quote: tag(dialect.quote(), tokenizer) };
    rules.text += &string(dialect, tokenizer);
    for (index, function) in functions.iter().enumerate() {
        let parameters = parameters(function);
        let arguments = rules.object(&parameters, &parameters, DEPTH);
        let head = literal(&format!("call:{}", function["name"].as_str().unwrap_or_default()));
        // Writing to a string cannot fail.
        let _ = writeln!(rules.text, "f{index}: {head} {arguments}");
    }
    let (open, close) = (tag(dialect.open(), tokenizer), tag(dialect.close(), tokenizer));
    Spelling {
        around: [String::new(), String::new(), String::new()],
        call: format!("{open} one {close}\none: {}", one_of(functions)),
        rules: rules.text,
    }
}

/// The rule of a string, which ends at the next quote.
fn string(dialect: Dialect, tokenizer: &Tokenizer) -> String {
    match special(dialect.quote(), tokenizer) {
        Some(quote) => format!("str: {quote} TEXT? {quote}\nTEXT: /(?s:.+)/\n"),
        None => {
            let quote = literal(dialect.quote());
            format!("str: {quote} text_and_quote\ntext_and_quote[suffix={quote}]: /(?s:.*)/\n")
        }
    }
}

/// The schemas of which a value satisfies one, or one for each of several types.
fn alternatives(schema: &Value) -> Option<Vec<Value>> {
    let some = ["anyOf", "oneOf"].into_iter().find_map(|key| schema[key].as_array());
    if let Some(some) = some.filter(|some| !some.is_empty()) {
        return Some(some.clone());
    }
    let types = schema["type"].as_array().filter(|types| !types.is_empty())?;
    let of_type = |one: &Value| {
        let mut schema = schema.clone();
        schema["type"] = one.clone();
        schema
    };
    Some(types.iter().map(of_type).collect())
}

/// Rules as they are needed.
struct Rules {
    text: String,
    /// Rules of objects and lists so far.
    made: usize,
    quote: String,
}

impl Rules {
    /// A value that satisfies a schema, as a part of a rule.
    fn value(&mut self, schema: &Value, root: &Value, depth: usize) -> String {
        let schema = resolved(schema, root);
        if depth == 0 {
            return "any".to_owned();
        }
        if let Some(choices) = schema["enum"].as_array().filter(|choices| !choices.is_empty()) {
            return self.choice(choices);
        }
        if let Some(only) = schema.get("const") {
            return self.choice(std::slice::from_ref(only));
        }
        if let Some(some) = alternatives(schema) {
            return self.either(&some, root, depth - 1);
        }
        match schema["type"].as_str() {
            Some("string") => "str".to_owned(),
            Some("integer" | "number" | "boolean" | "null") => format!("({})", json_part(schema)),
            Some("array") if self.made < MOST => self.list(&schema["items"], root, depth - 1),
            Some("array") => "list".to_owned(),
            Some("object") if schema["properties"].is_object() && self.made < MOST => {
                self.object(schema, root, depth - 1)
            }
            Some("object") => "map".to_owned(),
            _ => "any".to_owned(),
        }
    }

    /// A value that satisfies one of some schemas: the name of its rule.
    fn either(&mut self, schemas: &[Value], root: &Value, depth: usize) -> String {
        if self.made >= MOST {
            return "any".to_owned();
        }
        let name = self.next('a');
        let values: Vec<_> = schemas.iter().map(|schema| self.value(schema, root, depth)).collect();
        self.text += &format!("{name}: {}\n", values.join(" | "));
        name
    }

    fn choice(&self, choices: &[Value]) -> String {
        if choices.iter().any(|choice| choice.is_object() || choice.is_array()) {
            return "any".to_owned();
        }
        let one = |choice: &Value| match choice.as_str() {
            Some(text) => format!("{0} {1} {0}", self.quote, literal(text)),
            None => literal(&choice.to_string()),
        };
        format!("({})", choices.iter().map(one).collect::<Vec<_>>().join(" | "))
    }

    fn next(&mut self, kind: char) -> String {
        self.made += 1;
        format!("{kind}{}", self.made)
    }

    /// A list of such items: the name of its rule.
    fn list(&mut self, items: &Value, root: &Value, depth: usize) -> String {
        let name = self.next('l');
        let item = self.value(items, root, depth);
        self.text += &format!("{name}: \"[\" ({item} (\",\" {item})*)? \"]\"\n");
        name
    }

    /// An object, whose properties come in the order of the schema: the name of its rule.
    fn object(&mut self, schema: &Value, root: &Value, depth: usize) -> String {
        let name = self.next('o');
        let properties = schema["properties"].as_object().cloned().unwrap_or_default();
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let mut rules = format!("{name}: \"{{\" {name}_first0 \"}}\"\n");
        for (place, (key, schema)) in properties.iter().enumerate() {
            let value = self.value(schema, root, depth);
            let (pair, next) = (format!("{} {value}", literal(&format!("{key}:"))), place + 1);
            let is_required = required.iter().any(|required| required == key);
            for (before, comma) in [("first", ""), ("rest", "\",\" ")] {
                let without = if is_required { String::new() } else { format!(" | {name}_{before}{next}") };
                rules += &format!("{name}_{before}{place}: {comma}{pair} {name}_rest{next}{without}\n");
            }
        }
        let end = properties.len();
        rules += &format!("{name}_first{end}: \"\"\n{name}_rest{end}: \"\"\n");
        self.text += &rules;
        name
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(schema: &Value) -> String {
        let mut rules = Rules { text: String::new(), made: 0, quote: "'".to_owned() };
        rules.object(schema, schema, DEPTH);
        rules.text
    }

    #[test]
    fn schemas_that_refer_to_themselves_do_not_grow_without_end() {
        let tree = json!({"$ref": "#"});
        let schema = json!({"type": "object", "properties": {"a": tree, "b": tree, "c": tree, "d": tree}});
        let text = rules(&schema);
        assert!(text.len() < 200_000, "{} bytes", text.len());
        assert!(text.contains(" map "), "what is left is any object");
    }

    #[test]
    fn constants_and_alternatives_are_held_to() {
        let of = |schema: Value| rules(&json!({"type": "object", "properties": {"n": schema}}));
        assert!(of(json!({"const": 7})).contains(r#""n:" ("7")"#));
        let either = of(json!({"anyOf": [{"type": "string"}, {"enum": [1, 2]}]}));
        assert!(either.contains("a2: str | (\"1\" | \"2\")"), "{either}");
        let types = of(json!({"type": ["string", "null"]}));
        assert!(types.contains("a2: str | (") && !types.contains("any"), "{types}");
        let tangle = json!({"anyOf": [{"$ref": "#/properties/n"}, {"$ref": "#/properties/n"}]});
        assert!(of(tangle).len() < 100_000);
    }

    #[test]
    fn lists_of_lists_do_not_repeat_their_items() {
        let mut items = json!({"enum": ["x".repeat(1000)]});
        for _ in 0..DEPTH - 2 {
            items = json!({"type": "array", "items": items});
        }
        let text = rules(&json!({"type": "object", "properties": {"a": items}}));
        assert!(text.len() < 20_000, "{} bytes", text.len());
    }
}
