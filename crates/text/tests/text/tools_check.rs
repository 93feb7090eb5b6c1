//! Calls judged by the schemas that were declared, and declarations that are refused.

use basert_text::tools::{CallProblem, Declared, ToolCall, check};
use serde_json::{Value, json};

fn declare(parameters: Value) -> Declared {
    Declared::new(&json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]))
        .unwrap()
}

fn judge(arguments: Value, declared: &Declared) -> String {
    let call = ToolCall { name: "f".to_owned(), arguments: arguments.as_object().unwrap().clone() };
    check(&call, declared).map_or_else(|problem| problem.to_string(), |()| "good".to_owned())
}

#[test]
fn a_call_to_a_function_that_nobody_declared() {
    let declared = declare(json!({"type": "object"}));
    let call = ToolCall { name: "g".to_owned(), arguments: serde_json::Map::new() };
    assert_eq!(check(&call, &declared), Err(CallProblem::Undeclared { name: "g".to_owned() }));
    assert_eq!(declared.names().collect::<Vec<_>>(), ["f"]);
}

#[test]
fn arguments_missing_invented_or_allowed() {
    let closed =
        json!({"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": false});
    let open = json!({"type": "object", "properties": {"a": {}}});
    let typed = json!({"type": "object", "additionalProperties": {"type": "integer"}});
    let pattern = json!({"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": false});
    for (schema, arguments, want) in [
        (&closed, json!({"a": null}), "good"),
        (&closed, json!({}), "argument `a` is missing"),
        (&closed, json!({"a": 1, "b": 2}), "there is no argument `b`"),
        (&open, json!({"b": 2}), "good"),
        (&typed, json!({"b": 2}), "good"),
        (&typed, json!({"b": "2"}), "argument `b` must be an integer, and is `\"2\"`"),
        (&pattern, json!({"xy": 2}), "good"),
        (&Value::Null, json!({}), "good"),
        (&Value::Null, json!({"a": 1}), "there is no argument `a`"),
    ] {
        assert_eq!(judge(arguments.clone(), &declare(schema.clone())), want, "{arguments} in {schema}");
    }
}

#[test]
fn values_of_the_right_type_and_out_of_bounds() {
    let point = json!({"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]});
    for (schema, good, bad, want) in [
        (json!({"type": "integer"}), json!(2.0), json!(2.5), "must be an integer, and is `2.5`"),
        (json!({"type": "number"}), json!(2), json!("2"), "must be a number, and is `\"2\"`"),
        (json!({"type": ["string", "null"]}), json!(null), json!(1), "must be a string or null, and is `1`"),
        (json!({"enum": ["a", 1]}), json!(1.0), json!("b"), "is `\"b\"`, which is not in [\"a\",1]"),
        (
            json!({"const": {"a": [1]}}),
            json!({"a": [1.0]}),
            json!({"a": []}),
            "is `{\"a\":[]}`, which is not in",
        ),
        (json!({"minimum": 2}), json!(2), json!(1), "must be at least 2, and is 1"),
        (json!({"maximum": 2.5}), json!(2.5), json!(3), "must be at most 2.5, and is 3"),
        (json!({"exclusiveMinimum": 0}), json!(0.1), json!(0), "must be more than 0, and is 0"),
        (json!({"exclusiveMaximum": 1}), json!(0), json!(1), "must be less than 1, and is 1"),
        (json!({"minLength": 2}), json!("東京"), json!("é"), "must have at least 2 characters, and has 1"),
        (json!({"maxLength": 2}), json!("😀😀"), json!("abc"), "must have at most 2 characters, and has 3"),
        (json!({"minItems": 1}), json!([0]), json!([]), "must have at least 1 items, and has 0"),
        (json!({"maxItems": 1}), json!([0]), json!([0, 0]), "must have at most 1 items, and has 2"),
        (json!({"items": {"type": "string"}}), json!(["x"]), json!(["x", 1]), "`v[1]` must be a string"),
        (json!({"items": point}), json!([{"x": 1}]), json!([{"x": 1}, {}]), "`v[1].x` is missing"),
        (point.clone(), json!({"x": 1.5}), json!({"x": []}), "`v.x` must be a number, and is `[]`"),
        (json!({"$ref": "#/$defs/P"}), json!({"p": {"x": 1}}), json!({"p": {}}), "`v.p.x` is missing"),
        (json!({"allOf": [{"minimum": 1}, {"maximum": 2}]}), json!(2), json!(3), "must be at most 2"),
        (
            json!({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}),
            json!(null),
            json!(0),
            "must be at least 1, and is 0",
        ),
        (
            json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}),
            json!(3),
            json!("x"),
            "must be an integer or null, and is `\"x\"`",
        ),
        (json!({"anyOf": [{"minimum": 1}, {"minimum": 2}]}), json!(1), json!(0), "fits none of 2 schemas"),
        (
            json!({"oneOf": [{"minimum": 1}, {"maximum": 3}]}),
            json!(0),
            json!(2),
            "more than one schema of `oneOf`",
        ),
        (json!({"items": [{"type": "string"}], "pattern": "^a"}), json!([1]), json!(1), "good"),
    ] {
        let declared = declare(json!({
            "type": "object", "properties": {"v": schema},
            "$defs": {"P": {"type": "object", "properties": {"p": {"$ref": "#/$defs/Q"}}}, "Q": point},
        }));
        assert_eq!(judge(json!({"v": good}), &declared), "good", "{good} in {schema}");
        let problem = judge(json!({"v": bad}), &declared);
        assert!(problem.contains(want), "{bad} in {schema}: {problem}");
    }
}

#[test]
fn a_schema_that_refers_to_itself() {
    let list = declare(json!({
        "type": "object", "properties": {"list": {"$ref": "#/$defs/list"}}, "$defs": {"list": {"anyOf": [
            {"type": "null"},
            {"type": "object", "properties": {"next": {"$ref": "#/$defs/list"}}, "required": ["next"]},
        ]}},
    }));
    assert_eq!(judge(json!({"list": {"next": {"next": null}}}), &list), "good");
    assert_eq!(
        judge(json!({"list": {"next": {"next": {}}}}), &list),
        "argument `list.next.next.next` is missing"
    );

    let mut doubling = json!({"type": "object", "$ref": "#/$defs/0", "$defs": {"40": {"minProperties": 9}}});
    for level in 0..40 {
        let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
        doubling["$defs"][level.to_string()] = json!({"oneOf": [next, next]});
    }
    for parameters in [doubling, json!({"$ref": "#"}), json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]})] {
        let problem = judge(json!({"a": 1}), &declare(parameters));
        assert!(problem.ends_with("has a schema that refers to itself too often to be judged"), "{problem}");
    }
}

#[test]
fn declarations_that_cannot_be_used_say_where() {
    let function = |function: Value| json!([{"type": "function", "function": function}]);
    let parameters = |schema: Value| json!([{"name": "f"}, {"name": "g", "parameters": schema}]);
    let property = |schema: Value| parameters(json!({"type": "object", "properties": {"x": schema}}));
    for (tools, want) in [
        (json!({}), "`tools` is not an array"),
        (json!([1]), "`tools[0]` is not an object"),
        (json!([{"type": "retrieval", "name": "f"}]), "`tools[0].type` is not `function`"),
        (json!([{"type": "function", "function": "f"}]), "`tools[0].function` is not an object"),
        (function(json!({})), "`tools[0].function.name` is missing"),
        (json!([{"name": "f"}, {"name": 1}]), "`tools[1].name` is not a string"),
        (json!([{"name": ""}]), "`tools[0].name` is empty"),
        (json!([{"name": "a b"}]), "`tools[0].name` has a blank"),
        (json!([{"name": "f"}, {"name": "f"}]), "`tools[1]` declares `f`, as tools[0] does"),
        (parameters(json!([])), "`tools[1].parameters` is not a schema"),
        (parameters(json!({"type": "string"})), "`tools[1].parameters` is not the schema of an object"),
        (parameters(json!({"properties": []})), "`tools[1].parameters.properties` is not an object"),
        (
            property(json!({"type": "strng"})),
            "`tools[1].parameters.properties.x.type` is \"strng\", which is no type",
        ),
        (property(json!({"type": ["string", 1]})), "properties.x.type` is 1, which is no type"),
        (property(json!({"enum": 1})), "properties.x.enum` is not an array"),
        (property(json!({"required": ["a", 1]})), "properties.x.required` is not a list of names"),
        (property(json!({"minimum": "1"})), "properties.x.minimum` is not a number"),
        (property(json!({"exclusiveMinimum": true})), "properties.x.exclusiveMinimum` is not a number"),
        (property(json!({"maxItems": -1})), "properties.x.maxItems` is not a number of things"),
        (property(json!({"items": {"anyOf": []}})), "properties.x.items.anyOf` is not a list of schemas"),
        (property(json!({"items": {"anyOf": [1]}})), "properties.x.items.anyOf[0]` is not a schema"),
        (property(json!({"$ref": "#/$defs/P"})), "properties.x.$ref` leads nowhere"),
        (property(json!({"$ref": "https://example.com/s"})), "properties.x.$ref` is not of the form `#/...`"),
    ] {
        let problem = Declared::new(&tools).unwrap_err().to_string();
        assert!(problem.contains(want), "{tools}: {problem}");
    }
    assert_eq!(Declared::new(&Value::Null).unwrap().names().count(), 0);
}
