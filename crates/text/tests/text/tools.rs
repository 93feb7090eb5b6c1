//! Tool calls in generated text: what users saw go wrong, wherever the text is cut.

use crate::common;
use std::path::Path;
use std::sync::LazyLock;

use basert_text::ChatTemplate;
use basert_text::tools::{CallProblem, Declared, Parsed, Piece, ToolCall, ToolParser, check, parse};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// One function, `f`, with these properties.
fn declared(properties: Value) -> Declared {
    Declared::new(&json!([{"type": "function", "function": {
        "name": "f", "parameters": {"type": "object", "properties": properties}
    }}]))
    .unwrap()
}

fn weather() -> Declared {
    Declared::new(&json!([
        {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"]}}},
        {"type": "function", "function": {"name": "now"}},
    ]))
    .unwrap()
}

fn call(name: &str, arguments: Value) -> ToolCall {
    ToolCall { name: name.to_owned(), arguments: arguments.as_object().unwrap().clone() }
}

fn assemble(pieces: impl IntoIterator<Item = Piece>) -> Parsed {
    let mut parsed = Parsed::default();
    for piece in pieces {
        match piece {
            Piece::Text(text) => {
                assert!(!text.is_empty());
                parsed.content += &text;
            }
            Piece::Call(call) => parsed.calls.push(call),
            Piece::Opened { .. } | Piece::Arguments(_) => panic!("only a streaming parser tells so much"),
        }
    }
    parsed
}

fn parse_in_pieces(text: &[&str], declared: &Declared) -> Parsed {
    let mut parser = ToolParser::new(declared);
    let mut pieces: Vec<Piece> = text.iter().flat_map(|piece| parser.push(piece)).collect();
    pieces.extend(parser.finish());
    assemble(pieces)
}

/// Parses the text whole, cut in two everywhere, and character by character; all must agree.
fn parse_every_way(text: &str, declared: &Declared) -> Parsed {
    let whole = parse(text, declared);
    for (at, _) in text.char_indices() {
        let (a, b) = text.split_at(at);
        assert_eq!(parse_in_pieces(&[a, b], declared), whole, "cut at {at} of {text:?}");
    }
    let single: Vec<&str> = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect();
    assert_eq!(parse_in_pieces(&single, declared), whole, "character by character: {text:?}");
    whole
}

fn problems(parsed: &Parsed) -> Vec<String> {
    parsed.calls.iter().map(|call| call.as_ref().unwrap_err().problem.to_string()).collect()
}

/// The XML call of `f` with one parameter.
fn xml(key: &str, value: &str) -> String {
    format!("<tool_call>\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>")
}

#[test]
fn calls_that_came_out_as_text() {
    let tokyo = "<tool_call>\n<function=get_weather>\n<parameter=city>\nTokyo\n</parameter>\n</function>\n</tool_call>";
    let hermes = r#"<tool_call>{"name": "get_weather", "arguments": {"city": "Tokyo"}}</tool_call>"#;
    let spaced = "<tool_call>\n{\"name\": \"now\"}\n</tool_call>";
    let inline = "<tool_call><function=get_weather><parameter=city>Tokyo</parameter></function></tool_call>";
    let want = || call("get_weather", json!({"city": "Tokyo"}));
    let now = || call("now", json!({}));
    for (text, content, calls) in [
        (tokyo.to_owned(), "", vec![want()]),
        (hermes.to_owned(), "", vec![want()]),
        (inline.to_owned(), "", vec![want()]),
        (spaced.to_owned(), "", vec![now()]),
        ("<tool_call>\n<function=now>\n</function>\n</tool_call>".to_owned(), "", vec![now()]),
        (format!("{tokyo}\n{tokyo}"), "", vec![want(), want()]),
        (format!("{hermes}{spaced}\n"), "", vec![want(), now()]),
        (format!("{tokyo}\n{spaced}\n\n"), "", vec![want(), now()]),
        (format!("Let me look.\n\n{tokyo}"), "Let me look.", vec![want()]),
        (format!("  Über <3 \n \n{tokyo}\n{hermes}\nDone. \n"), "  Über <3\nDone.", vec![want(), want()]),
        (format!("\n\n{tokyo}\n\nDone."), "Done.", vec![want()]),
    ] {
        let got = parse_every_way(&text, &weather());
        let calls = calls.into_iter().map(Ok).collect();
        assert_eq!(got, Parsed { content: content.to_owned(), calls }, "{text:?}");
    }
}

#[test]
fn text_without_a_call_comes_back_unchanged() {
    for text in [
        "",
        "\n\n",
        "Hello.\n\n  ",
        "a < b, <tool, <tool_call, <<tool_call",
        "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
        "</tool_call> {\"name\": \"f\"} <tool_calls>",
        "ends with <tool_cal",
        "東京\u{3000}\n",
    ] {
        let want = Parsed { content: text.to_owned(), calls: Vec::new() };
        assert_eq!(parse_every_way(text, &weather()), want, "{text:?}");
    }
}

#[test]
fn text_that_waits_for_the_end_of_the_answer() {
    let mut parser = ToolParser::new(&weather());
    for (piece, want) in [
        ("Hi", "Hi"),
        (" ", ""),
        ("\n", ""),
        ("you <", " \nyou"),
        ("b> a<tool_", " <b> a"),
        ("x", "<tool_x"),
        ("<tool_call", ""),
        ("s>", "<tool_calls>"),
        ("<<", "<"),
        ("!", "<!"),
    ] {
        let got = assemble(parser.push(piece));
        assert_eq!((got.content.as_str(), got.calls.len()), (want, 0), "after {piece:?}");
    }
    assert_eq!(parser.push("<tool_call>{\"name\": \"now\"}</tool_call").len(), 0);
    let done = parser.push(">");
    assert_eq!(done, [Piece::Call(Ok(call("now", json!({}))))], "a call comes with its last character");
    assert_eq!(parser.finish(), []);
}

#[test]
fn a_number_for_a_string_and_a_string_for_an_object() {
    let properties = json!({
        "a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "number"}, "d": {"type": "boolean"},
        "e": {"type": "array"}, "f": {"type": "object"}, "g": {"anyOf": [{"type": "object"}, {"type": "string"}]},
        "h": {"anyOf": [{"type": "string"}, {"type": "number"}]}, "i": {"type": ["string", "null"]},
        "j": {"enum": ["1", "2"]}, "k": {}, "l": {"$ref": "#/$defs/P"}, "m": {"const": 1},
        "n": {"anyOf": [{"enum": ["1"]}, {"type": "integer", "minimum": 5}]}, "o": {"type": "null"},
        "p": {"allOf": [{"$ref": "#/$defs/N"}]}, "q": {"oneOf": [{"type": "boolean"}, {"type": "array"}]},
    });
    let declared = Declared::new(&json!([{"name": "f", "parameters": {
        "type": "object", "properties": properties,
        "$defs": {"P": {"type": "object", "properties": {"x": {"$ref": "#/$defs/N"}}}, "N": {"type": "integer"}},
    }}]))
    .unwrap();
    for (key, text, want) in [
        ("a", "007", json!("007")),
        ("a", "{\"x\": 1}", json!("{\"x\": 1}")),
        ("a", "null", json!("null")),
        ("a", "\"quoted\"", json!("\"quoted\"")),
        ("a", "", json!("")),
        ("b", "42", json!(42)),
        ("b", " -7 ", json!(-7)),
        ("b", "9007199254740993", json!(9_007_199_254_740_993_i64)),
        ("c", "1e3", json!(1000.0)),
        ("c", "2", json!(2)),
        ("d", "true", json!(true)),
        ("d", "True", json!(true)),
        ("d", "False", json!(false)),
        ("e", "[1,\"x\"]", json!([1, "x"])),
        ("f", "{\"city\":\"Paris\"}", json!({"city": "Paris"})),
        ("g", "{\"city\":\"Paris\"}", json!({"city": "Paris"})),
        ("g", "{\"city\":", json!("{\"city\":")),
        ("g", "12", json!("12")),
        ("h", "250", json!(250)),
        ("h", "250 g", json!("250 g")),
        ("i", "null", json!(null)),
        ("i", "None", json!(null)),
        ("i", "nothing", json!("nothing")),
        ("j", "1", json!("1")),
        ("k", "{\"q\":1}", json!({"q": 1})),
        ("k", "[]", json!([])),
        ("k", "1", json!("1")),
        ("k", "{q", json!("{q")),
        ("l", "{\"x\":1}", json!({"x": 1})),
        ("m", "1", json!(1)),
        ("n", "1", json!("1")),
        ("n", "6", json!(6)),
        ("n", "2", json!(2)),
        ("o", "null", json!(null)),
        ("p", "5", json!(5)),
        ("q", "[true]", json!([true])),
        ("undeclared", "5", json!("5")),
    ] {
        let got = parse_every_way(&xml(key, text), &declared);
        let want = Ok(call("f", json!({ (key): want })));
        assert_eq!(got.calls, [want], "{key}: {text}");
    }
    for (key, text, problem) in [
        ("b", "abc", "argument `b` must be an integer, and is `abc`"),
        ("b", "4.5", "argument `b` must be an integer, and is `4.5`"),
        ("b", "", "argument `b` must be an integer, and is ``"),
        ("b", "\"4\"", "argument `b` must be an integer, and is `\"4\"`"),
        ("c", "1,5", "argument `c` must be a number, and is `1,5`"),
        ("c", "1e999", "argument `c` must be a number, and is `1e999`"),
        ("d", "yes", "argument `d` must be true or false, and is `yes`"),
        ("e", "[1,", "argument `e` must be an array, and is `[1,`"),
        ("f", "{'a': 1}", "argument `f` must be an object, and is `{'a': 1}`"),
        ("l", "12", "argument `l` must be an object, and is `12`"),
        ("p", "x", "argument `p` must be an integer, and is `x`"),
        ("q", "1", "argument `q` must be true or false or an array, and is `1`"),
    ] {
        let got = parse_every_way(&xml(key, text), &declared);
        assert_eq!(problems(&got), [problem], "{key}: {text}");
        assert_eq!(got.calls[0].as_ref().unwrap_err().raw, xml(key, text));
        assert_eq!(got.content, "");
    }
}

#[test]
fn a_string_that_lost_its_line_breaks_or_ended_at_a_tag_of_its_own() {
    let declared = declared(json!({"a": {"type": "string"}, "b": {"type": "string"}}));
    for value in [
        "two\nlines",
        "\nbegins and ends with one\n",
        "\n",
        "\n\n",
        "  blanks  ",
        "\ttab\r\n",
        "if a < b && c > d { \"x\" }",
        "<a href='/'>x</a>",
        "<",
        "</",
        "</parameter",
        "a </parameter> b",
        "</parameter>",
        "</parameter>\n\n </parameter>",
        "</function>",
        "</function>\n</parameter>",
        "</tool_call>",
        "<tool_call>{\"name\": \"g\"}</tool_call>",
        "<parameter=b>\nx",
        "<function=g>",
        "</parameter>\n<parametric>",
        "</function></tool_calls>",
        "😀 é 東京",
    ] {
        let got = parse_every_way(&xml("a", value), &declared);
        assert_eq!(got.calls, [Ok(call("f", json!({"a": value})))], "{value:?}");
    }
    let two = "<tool_call><function=f><parameter=b>1</parameter><parameter=a>\n2</parameter>\n\n</function></tool_call>";
    let got = parse_every_way(two, &declared);
    let arguments = &got.calls[0].as_ref().unwrap().arguments;
    assert_eq!(serde_json::to_string(arguments).unwrap(), r#"{"b":"1","a":"2"}"#, "order is kept");
}

#[test]
fn a_call_cut_off_by_the_token_limit_is_not_executed() {
    let whole = "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew York\n</parameter>\n</function>\n</tool_call>";
    let complete = whole.find("</function>").unwrap() + "</function>".len();
    for end in "<tool_call>".len()..=whole.len() {
        let got = parse_every_way(&format!("Hm.\n\n{}", &whole[..end]), &weather());
        assert_eq!(got.content, "Hm.");
        let [found] = &got.calls[..] else { panic!("{got:?}") };
        match found {
            Ok(found) => {
                assert!(end >= complete, "taken for whole: {}", &whole[..end]);
                assert_eq!(found, &call("get_weather", json!({"city": "New York"})));
            }
            Err(bad) => {
                assert!(end < complete, "only the wrapper is missing: {}", &whole[..end]);
                assert_eq!((&bad.problem, bad.raw.as_str()), (&CallProblem::CutOff, &whole[..end]));
            }
        }
    }
    let json = r#"<tool_call>{"name": "get_weather", "arguments": {"city": "a}\"{"}}"#;
    for end in "<tool_call>".len()..json.len() {
        let got = parse_every_way(&json[..end], &weather());
        assert_eq!(problems(&got), ["the call is cut off"], "{}", &json[..end]);
    }
    let got = parse_every_way(json, &weather());
    assert_eq!(got.calls, [Ok(call("get_weather", json!({"city": "a}\"{"})))]);
}

#[test]
fn a_malformed_call_neither_vanishes_nor_swallows_the_next_one() {
    let good = "<tool_call>{\"name\": \"now\"}</tool_call>";
    for (bad, problem) in [
        ("<tool_call></tool_call>", "`<function=` or a JSON object is missing before `</tool_call>`"),
        ("<tool_call>\nget_weather\n</tool_call>", "object is missing before `get_weather </tool_call>`"),
        ("<tool_call>\n", "object is missing before `<tool_call>`"),
        (
            "<tool_call><function=></tool_call>",
            "the name of a function, and `>` is missing before `></tool_call>`",
        ),
        ("<tool_call><function=a\nb></tool_call>", "and `>` is missing before ` b></tool_call>`"),
        ("<tool_call><function=now</tool_call>", "and `>` is missing before `</tool_call>`"),
        (
            "<tool_call><function=now></tool_call>",
            "`<parameter=` or `</function>` is missing before `</tool_call>`",
        ),
        (
            "<tool_call><function=now>{}</function></tool_call>",
            "is missing before `{}</function></tool_call>`",
        ),
        (
            "<tool_call><function=f><parameter=a>1</parameter></tool_call>",
            "`</function>` is missing before `</tool_call>`",
        ),
        (
            "<tool_call><function=f><parameter=a>1</function>\n</tool_call>",
            "`</parameter>` is missing before `</function> </tool_call>`",
        ),
        (
            "<tool_call><function=f><parameter=a\n1</parameter></function></tool_call>",
            "the name of a parameter",
        ),
        (
            "<tool_call><function=f></function>!</tool_call>",
            "`</tool_call>` is missing before `!</tool_call>`",
        ),
        ("<tool_call><function=f></function>", "`</tool_call>` is missing before `<tool_call>`"),
        ("<tool_call>{\"name\": \"f\"}}</tool_call>", "`</tool_call>` is missing before `}</tool_call>`"),
        (
            "<tool_call>{\"name\": \"f\"</tool_call>",
            "the end of a JSON object is missing before `</tool_call>`",
        ),
        ("<tool_call>{\"name\": \"f\n\"}</tool_call>", "the end of a JSON string is missing before ` \"}"),
        ("<tool_call>{\"name\": }</tool_call>", "not JSON of a name and arguments: expected value at line 1"),
        ("<tool_call>{\"arguments\": {}}</tool_call>", "missing field `name`"),
        ("<tool_call>{\"name\": 1}</tool_call>", "invalid type: integer `1`, expected a string"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", "expected an object of arguments"),
        ("<tool_call>{\"name\": \"f\", \"parameters\": {}}</tool_call>", "unknown field `parameters`"),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, \"a\": 2}}</tool_call>",
            "argument `a` is given twice",
        ),
        (
            "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
            "argument `a` is given twice",
        ),
    ] {
        let got = parse_every_way(&format!("x\n{bad}{good}\ny"), &weather());
        assert_eq!(got.content, "x\ny", "{bad}");
        let [Err(first), second] = &got.calls[..] else { panic!("{bad}: {got:?}") };
        assert_eq!(first.raw, bad);
        assert!(first.to_string().contains(problem), "{bad}: {first}");
        assert_eq!(second, &Ok(call("now", json!({}))));
    }
    let got = parse_every_way("<tool_call>I would call get_weather.", &weather());
    let want = [
        "the call is malformed: `<function=` or a JSON object is missing before `I would call get_weather.`",
    ];
    assert_eq!(problems(&got), want, "malformed before it was cut off");
}

#[test]
fn json_nested_too_deep_is_a_problem() {
    let deep = "[".repeat(5000) + &"]".repeat(5000);
    let json = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"a\": {deep}}}}}</tool_call>");
    let declared = declared(json!({"a": {"type": "array"}, "b": {}}));
    assert!(problems(&parse(&json, &declared))[0].contains("recursion limit exceeded"));
    assert!(problems(&parse(&xml("a", &deep), &declared))[0].starts_with("argument `a` must be an array"));
    assert_eq!(parse(&xml("b", &deep), &declared).calls, [Ok(call("f", json!({"b": deep})))]);
}

/// Quadratic work on these would take many minutes.
#[test]
fn a_megabyte_of_tags_takes_no_longer_than_a_megabyte_of_text() {
    let declared = declared(json!({"a": {"type": "string"}}));
    let open = "<tool_call><function=f><parameter=a>";
    for (prefix, unit) in [
        ("", "<tool_call>"),
        ("", "<"),
        ("", "\n"),
        ("", "a\n"),
        ("", "</tool_call>"),
        ("", "<tool_call>{}"),
        ("", "<tool_call><function=f></function></tool_call>"),
        ("<tool_call>", " "),
        ("<tool_call>", "{"),
        ("<tool_call>", "{\""),
        ("<tool_call>x", "<"),
        ("<tool_call><function=", "a"),
        ("<tool_call><function=f>", "<parameter="),
        ("<tool_call><function=f>", "<parameter=a>"),
        ("<tool_call><function=f>", "<parameter=a></parameter>"),
        (open, "<parameter="),
        (open, "</parameter>"),
        (open, "</parameter> "),
        (open, "</parameter>\n<parameter"),
        (open, "</function>"),
        (open, "</function></tool_call"),
        (&format!("{open}</parameter>"), "\n"),
    ] {
        let repeated = |bytes: usize| prefix.to_owned() + &unit.repeat(bytes / unit.len());
        let text = repeated(1 << 20);
        let parsed = parse(&text, &declared);
        let raw = parsed.calls.iter().filter_map(|call| call.as_ref().err());
        let kept = parsed.content.len() + raw.map(|bad| bad.raw.len()).sum::<usize>();
        let good = parsed.calls.iter().filter(|call| call.is_ok()).count();
        assert!(good > 0 || kept == text.len(), "{prefix}{unit}: text is lost");

        let text = repeated(1 << 18);
        let single: Vec<&str> = (0..text.len()).map(|at| &text[at..=at]).collect();
        assert!(parse_in_pieces(&single, &declared) == parse(&text, &declared), "{prefix}{unit}");
    }
}

/// The demo's template, and Qwen 3.5's own where it is.
static TEMPLATES: LazyLock<Vec<ChatTemplate>> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/train-demo/chat_template.jinja");
    let own = std::fs::read_to_string(path).unwrap();
    let others = common::outside_fixture("tokenizer/chat_template.jinja");
    let compile = |source: String| ChatTemplate::new(&source, None, Some("<|im_end|>")).unwrap();
    [Some(own), others].into_iter().flatten().map(compile).collect()
});

/// What the model would have generated for this message, by the template.
fn generated(template: &ChatTemplate, content: &str, calls: &[ToolCall]) -> String {
    let calls: Vec<Value> = calls
        .iter()
        .map(|call| json!({"type": "function", "function": {"name": call.name, "arguments": call.arguments}}))
        .collect();
    let user = json!({"role": "user", "content": "q"});
    let render = |messages: Value, kwargs: Value| {
        template.render(&messages, None, kwargs.as_object().unwrap()).unwrap()
    };
    let prompt = render(json!([user]), json!({"add_generation_prompt": true, "enable_thinking": false}));
    let answer = json!({"role": "assistant", "content": content, "tool_calls": calls});
    let all = render(json!([user, answer]), json!({}));
    let answer = all.strip_prefix(&prompt).unwrap();
    answer.strip_suffix("<|im_end|>\n").unwrap().to_owned()
}

fn texts() -> impl Strategy<Value = String> {
    let parts = proptest::sample::select(vec![
        "<",
        ">",
        "\n",
        "\n\n",
        " ",
        "\"",
        "'",
        "\\",
        "{",
        "}",
        "[1]",
        "null",
        "007",
        "é",
        "東京",
        "😀",
        "\u{0}",
        "word",
        "</parameter>",
        "<parameter=x>",
        "<parameter=",
        "</function>",
        "<function=f>",
        "<tool_call>",
        "</tool_call>",
    ]);
    let ends_value = regex::Regex::new(
        "</parameter>[ \n]*(<parameter=|</function>|</tool_call>)|</function>[ \n]*</tool_call>",
    )
    .unwrap();
    proptest::collection::vec(parts, 0..6)
        .prop_map(|parts| parts.concat())
        .prop_filter("spells the end of a value", move |text| !ends_value.is_match(text))
}

fn values() -> impl Strategy<Value = Value> {
    let number = any::<f64>().prop_filter("JSON has no other", |n| n.is_finite());
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        number.prop_map(Value::from),
        texts().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((texts(), inner), 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

/// A name that a tag can spell, and a value.
fn arguments() -> impl Strategy<Value = Map<String, Value>> {
    proptest::collection::vec(("[a-zA-Z_é<][a-zA-Z0-9_.\" -]{0,8}", values()), 0..4)
        .prop_map(|entries| entries.into_iter().collect())
}

/// The schema that names the type of a value.
fn schema_of(value: &Value) -> Value {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    json!({ "type": kind })
}

proptest! {
    /// What a template makes of a history, parsed, is the history.
    #[test]
    fn history_comes_back_as_it_was(
        content in "[a-z<.\n]{0,12}",
        calls in proptest::collection::vec(("[a-zA-Z0-9_-]{1,12}", arguments()), 1..4),
    ) {
        let calls: Vec<ToolCall> = calls
            .into_iter()
            .enumerate()
            .map(|(i, (name, arguments))| ToolCall { name: format!("{name}{i}"), arguments })
            .collect();
        let tools: Vec<Value> = calls
            .iter()
            .map(|call| {
                let properties: Map<_, _> =
                    call.arguments.iter().map(|(key, value)| (key.clone(), schema_of(value))).collect();
                json!({"name": call.name, "parameters": {
                    "type": "object", "properties": properties, "additionalProperties": false,
                    "required": properties.keys().collect::<Vec<_>>(),
                }})
            })
            .collect();
        let declared = Declared::new(&Value::from(tools)).unwrap();
        for call in &calls {
            prop_assert_eq!(check(call, &declared), Ok(()));
        }
        let want = Parsed { content: content.trim().to_owned(), calls: calls.iter().cloned().map(Ok).collect() };
        for template in TEMPLATES.iter() {
            let text = generated(template, &content, &calls);
            prop_assert_eq!(parse(&text, &declared), want.clone(), "{}", text);
        }
        let json: Vec<String> = calls
            .iter()
            .map(|call| json!({"name": call.name, "arguments": call.arguments}).to_string())
            .map(|json| format!("<tool_call>\n{json}\n</tool_call>"))
            .collect();
        let text = format!("{}\n{}", content.trim(), json.join("\n"));
        prop_assert_eq!(parse(&text, &declared), want);
    }

    /// Nothing panics, and cuts do not matter, for any sequence of the grammar's parts.
    #[test]
    fn any_mixture_of_tags_is_parsed_the_same_in_pieces(
        parts in proptest::collection::vec(proptest::sample::select(vec![
            "<tool_call>", "</tool_call>", "<function=", "f", ">", "</function>", "<parameter=", "a", "</parameter>",
            "\n", " ", "{", "}", "\"", "\\", "\"name\": \"f\"", "<", "1", "é", "[", ",",
        ]), 0..24),
    ) {
        parse_every_way(&parts.concat(), &declared(json!({"a": {"type": "integer"}})));
    }
}
