//! Calls in the dialects of Llama, Mistral and Gemma: the same however the text is cut, told while they are generated and not.

use basert_text::tools::{Declared, Dialect, Parsed, Piece, ToolParser, parse};
use serde_json::{Value, json};

fn declared(dialect: Dialect) -> Declared {
    let tools = json!([
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "more": {}}}}},
        {"type": "function", "function": {"name": "now"}},
    ]);
    Declared::new(&tools).unwrap().spelled(dialect)
}

/// What a reader has in the end: the text, and every call with its arguments, `None` for one that went wrong.
#[derive(Debug, PartialEq, Default)]
struct Found {
    text: String,
    calls: Vec<(String, Option<Value>)>,
}

fn of_whole(parsed: &Parsed) -> Found {
    let calls = parsed.calls.iter().map(|call| match call {
        Ok(call) => (call.name.clone(), Some(Value::Object(call.arguments.clone()))),
        Err(_) => (String::new(), None),
    });
    Found { text: parsed.content.clone(), calls: calls.collect() }
}

fn in_pieces(pieces: &[&str], dialect: Dialect) -> Found {
    let mut parser = ToolParser::new(&declared(dialect));
    let mut all: Vec<Piece> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    let mut parsed = Parsed::default();
    for piece in all {
        match piece {
            Piece::Text(text) => parsed.content += &text,
            Piece::Call(call) => parsed.calls.push(call),
            Piece::Opened { .. } | Piece::Arguments(_) => panic!("only a streaming parser tells so much"),
        }
    }
    of_whole(&parsed)
}

/// The same from a streaming parser, whose fragments must add up to the arguments of good calls, and never to JSON for others.
fn streamed(pieces: &[&str], dialect: Dialect) -> Found {
    let mut parser = ToolParser::streaming(&declared(dialect));
    let mut all: Vec<Piece> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    let mut found = Found::default();
    let mut open: Option<(String, String)> = None;
    for piece in all {
        match piece {
            Piece::Text(text) => {
                assert!(open.is_none());
                found.text += &text;
            }
            Piece::Opened { name } => assert!(open.replace((name, String::new())).is_none()),
            Piece::Arguments(news) => open.as_mut().unwrap().1 += &news,
            Piece::Call(Ok(call)) => {
                let arguments = Value::Object(call.arguments);
                if let Some((name, told)) = open.take() {
                    assert_eq!(name, call.name);
                    assert_eq!(serde_json::from_str::<Value>(&told).unwrap(), arguments);
                }
                found.calls.push((call.name, Some(arguments)));
            }
            Piece::Call(Err(_)) => {
                let told = open.take().unwrap_or_default().1;
                assert!(serde_json::from_str::<Value>(&told).is_err(), "{told}");
                found.calls.push((String::new(), None));
            }
        }
    }
    found
}

#[track_caller]
fn check(dialect: Dialect, text: &str, want_text: &str, calls: Value) {
    let whole = of_whole(&parse(text, &declared(dialect)));
    let calls = calls.as_array().unwrap().iter().map(|call| match call {
        Value::Null => (String::new(), None),
        call => (call[0].as_str().unwrap().to_owned(), Some(call[1].clone())),
    });
    assert_eq!(whole, Found { text: want_text.to_owned(), calls: calls.collect() }, "{text:?}");
    assert_eq!(streamed(&[text], dialect), whole, "{text:?}");
    for (at, _) in text.char_indices() {
        let (a, b) = text.split_at(at);
        assert_eq!(in_pieces(&[a, b], dialect), whole, "cut at {at}: {text:?}");
        assert_eq!(streamed(&[a, b], dialect), whole, "streamed, cut at {at}: {text:?}");
    }
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(in_pieces(&chars, dialect), whole, "by characters: {text:?}");
    assert_eq!(streamed(&chars, dialect), whole, "streamed by characters: {text:?}");
}

#[test]
fn llama() {
    let check = |text: &str, want: &str, calls: Value| check(Dialect::Llama, text, want, calls);
    let tokyo = r#"{"name": "weather", "parameters": {"city": "Tokyo"}}"#;
    let call = json!(["weather", {"city": "Tokyo"}]);
    check(tokyo, "", json!([call]));
    check(&format!("\n\n{tokyo}\n"), "", json!([call]));
    check(&format!("<|python_tag|>{tokyo}"), "", json!([call]));
    check(&format!("{tokyo}; {tokyo}"), "", json!([call, call]));
    check(&format!("{tokyo}\n{tokyo}<|python_tag|>{tokyo}"), "", json!([call, call, call]));
    check(r#"{"type": "function", "name": "now", "parameters": {}}"#, "", json!([["now", {}]]));
    check(r#"{"name":"now","arguments":{}} done"#, "done", json!([["now", {}]]));
    check(
        r#"{"name": "weather", "parameters": {"city": "a \"}{\" b", "more": [1, {"x": null}]}}"#,
        "",
        json!([["weather", {"city": "a \"}{\" b", "more": [1, {"x": null}]}]]),
    );
    // Text.
    for text in [
        "",
        "\n ",
        "Hello {\"name\": \"now\", \"parameters\": {}}",
        "{\"city\": \"Tokyo\"}",
        "{",
        "{\"name\": \"no",
        "{\"name\": \"unknown\", \"parameters\": {}}",
        "<|python_tag|>weather.call(city=\"Tokyo\")",
        "<|python",
        "{\"name\": \"now\", \"age\": 3}",
        "{\"name\": 3}",
    ] {
        check(text, text, json!([]));
    }
    check(&format!("{tokyo}\nText, then {tokyo}"), &format!("Text, then {tokyo}"), json!([call]));
    // Wrong, or cut off.
    for text in [
        r#"{"name": "weather", "parameters": {"city": "To"#,
        r#"{"name": "weather", "parameters": {"city": "Tokyo"}"#,
        r#"{"name": "weather", "parameters": {"city": "a", "city": "b"}}"#,
        r#"{"name": "weather", "parameters": {"city": 1,}}"#,
        r#"{"name": "weather", "parameters": {"city": "a"}, "mood": 3}"#,
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"a\nb\"}}",
    ] {
        check(text, "", json!([null]));
    }
}

#[test]
fn mistral() {
    let check = |text: &str, want: &str, calls: Value| check(Dialect::Mistral, text, want, calls);
    let call = json!(["weather", {"city": "Tokyo"}]);
    let element = r#"{"name": "weather", "arguments": {"city": "Tokyo"}, "id": "a1b2c3d4e"}"#;
    let named = r#"[TOOL_CALLS]weather[ARGS]{"city": "Tokyo"}"#;
    check(&format!("[TOOL_CALLS] [{element}]"), "", json!([call]));
    check(&format!("[TOOL_CALLS][{element}, {element}]\n"), "", json!([call, call]));
    check(&format!("[TOOL_CALLS][{element},\n{element}"), "", json!([call, call]));
    check(&format!("Well.\n[TOOL_CALLS][{element}] So."), "Well. So.", json!([call]));
    check(named, "", json!([call]));
    check(&format!("I look. {named}{named}"), "I look.", json!([call, call]));
    check(r#"[TOOL_CALLS]weather[CALL_ID]x7[ARGS]{"city": "Tokyo"}"#, "", json!([call]));
    check(r#"[TOOL_CALLS]weather{"city": "Tokyo"}"#, "", json!([call]));
    check("[TOOL_CALLS]now[ARGS]{}", "", json!([["now", {}]]));
    check(
        r#"[TOOL_CALLS]weather[ARGS]{"city": "[TOOL_CALLS]now[ARGS]{}"}"#,
        "",
        json!([["weather", {"city": "[TOOL_CALLS]now[ARGS]{}"}]]),
    );
    check(r#"[TOOL_CALLS]unknown[ARGS]{"a": 1}"#, "", json!([["unknown", {"a": 1}]]));
    for text in ["", "a [1, 2] [TOOL", "[TOOL_CALL]", "array[0] = {\"name\": 1}\n", "[ARGS]{}"] {
        check(text, text, json!([]));
    }
    for text in [
        "[TOOL_CALLS]",
        "[TOOL_CALLS]weather",
        "[TOOL_CALLS]weather[ARGS]",
        "[TOOL_CALLS]weather[ARGS]{\"city\": \"To",
        "[TOOL_CALLS][",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS][{\"name\": \"weather\"",
        "[TOOL_CALLS][ARGS]{}",
        "[TOOL_CALLS]weather[NO]{}",
        "[TOOL_CALLS]weather\n{}",
        "[TOOL_CALLS]weather[ARGS]7",
        r#"[TOOL_CALLS]weather[ARGS]{"city": "a", "city": "b"}"#,
        r#"[TOOL_CALLS][{"arguments": {}}]"#,
    ] {
        check(text, "", json!([null]));
    }
    check(&format!("[TOOL_CALLS]weather[ARGS]7{named}"), "", json!([null, call]));
    check(&format!("[TOOL_CALLS][{element}, 7]"), "", json!([call, null]));
}

#[test]
fn gemma() {
    for (dialect, open, close, quote) in [
        (Dialect::FunctionGemma, "<start_function_call>", "<end_function_call>", "<escape>"),
        (Dialect::Gemma4, "<|tool_call>", "<tool_call|>", "<|\"|>"),
    ] {
        let spelled =
            |arguments: &str| format!("{open}call:weather{{{}}}{close}", arguments.replace('~', quote));
        let check = |text: &str, want: &str, calls: Value| check(dialect, text, want, calls);
        let good = |arguments: &str, want: Value| check(&spelled(arguments), "", json!([["weather", want]]));
        good("city:~Tokyo~", json!({"city": "Tokyo"}));
        good("city:~Tokyo~,days:3", json!({"city": "Tokyo", "days": 3}));
        good("", json!({}));
        good(" city : ~~ , days : -1.5e3 ", json!({"city": "", "days": -1.5e3}));
        good("~city~:~a{b}:c,[d]\"\\\n<e>~", json!({"city": "a{b}:c,[d]\"\\\n<e>"}));
        good("more:{a:[1,true,null,~x~,[]],b:{}}", json!({"more": {"a": [1, true, null, "x", []], "b": {}}}));
        good("more:False", json!({"more": false}));
        let call = json!(["weather", {"city": "é😀"}]);
        let one = spelled("city:~é😀~");
        check(&format!("So: {one}\n{one} Done."), "So: Done.", json!([call, call]));
        // Only the closing tag is missing.
        check(&one.replace(close, ""), "", json!([call]));
        check(&format!("{open} call:now{{}} {close}"), "", json!([["now", {}]]));
        for text in ["", "a < b <start <| {call:weather{}}", &open[..open.len() - 1]] {
            check(text, text, json!([]));
        }
        for arguments in [
            "city",
            "city:",
            "city:}",
            "city:Tokyo",
            "city:~a~ b",
            "city:~a~,",
            ":1",
            "{}",
            "more:[1",
            "more:[1}",
            "city:~a~,city:~b~",
            "more:1 2",
        ] {
            check(&spelled(arguments), "", json!([null]));
        }
        let cut = format!("{open}call:weather{{city:{quote}To");
        check(&cut, "", json!([null]));
        check(&format!("{open}weather{{}}{close}{one}"), "", json!([null, call]));
        check(&spelled(&format!("more:{}1{}", "[".repeat(200), "]".repeat(200))), "", json!([null]));
    }
}

#[test]
fn long_arguments_arrive_as_they_are_generated() {
    let body = "0123456789 <tag> \"quoted\"\n".repeat(60);
    let json = json!({"city": body});
    for (dialect, text) in [
        (Dialect::Llama, format!("{{\"name\": \"weather\", \"parameters\": {json}}}")),
        (Dialect::Mistral, format!("[TOOL_CALLS]weather[ARGS]{json}")),
        (Dialect::Mistral, format!("[TOOL_CALLS][{{\"name\": \"weather\", \"arguments\": {json}}}]")),
        (Dialect::Gemma4, format!("<|tool_call>call:weather{{city:<|\"|>{body}<|\"|>}}<tool_call|>")),
    ] {
        let mut parser = ToolParser::streaming(&declared(dialect));
        let pieces = text.chars().flat_map(|c| parser.push(c.encode_utf8(&mut [0; 4])));
        let fragments = pieces.filter(|piece| matches!(piece, Piece::Arguments(_))).count();
        assert!(fragments > 1000, "{dialect:?}: {fragments}");
    }
}
