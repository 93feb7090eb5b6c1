//! Calls that are told while they are generated: nothing is taken back, and what is joined is what a whole answer has.

use basert_text::tools::{Declared, Piece, ToolParser, parse};
use serde_json::{Value, json};

fn declared() -> Declared {
    Declared::new(&json!([
        {"type": "function", "function": {"name": "write", "parameters": {"type": "object", "properties": {
            "path": {"type": "string"}, "mode": {"type": "integer"}, "text": {"type": "string"},
            "any": {}, "maybe": {"type": ["string", "null"]}}}}},
        {"type": "function", "function": {"name": "now"}},
    ]))
    .unwrap()
}

/// A call as a client of a stream has it in the end.
#[derive(Debug, Default, PartialEq)]
struct Told {
    name: String,
    arguments: String,
    fragments: usize,
    /// What the parser says at the end of the call.
    good: Option<bool>,
}

fn tell(pieces: &[&str]) -> Vec<Told> {
    let mut parser = ToolParser::streaming(&declared());
    let mut all: Vec<Piece> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    let mut calls: Vec<Told> = Vec::new();
    let is_open = |calls: &[Told]| calls.last().is_some_and(|call| call.good.is_none());
    for piece in all {
        match piece {
            Piece::Text(_) => assert!(!is_open(&calls), "text inside of a call"),
            Piece::Opened { name } => {
                assert!(!is_open(&calls));
                calls.push(Told { name, ..Told::default() });
            }
            Piece::Arguments(news) => {
                assert!(is_open(&calls) && !news.is_empty());
                let call = calls.last_mut().unwrap();
                call.arguments += &news;
                call.fragments += 1;
            }
            Piece::Call(found) => match calls.last_mut().filter(|call| call.good.is_none()) {
                Some(call) => call.good = Some(found.is_ok()),
                None => assert!(found.is_err() || found.is_ok_and(|call| call.name == "unknown")),
            },
        }
    }
    calls
}

/// All ways to cut a text agree in all but the number of fragments.
fn tell_every_way(text: &str) -> Vec<Told> {
    let plain = |mut calls: Vec<Told>| {
        calls.iter_mut().for_each(|call| call.fragments = 0);
        calls
    };
    let whole = plain(tell(&[text]));
    for (at, _) in text.char_indices() {
        assert_eq!(plain(tell(&[&text[..at], &text[at..]])), whole, "cut at {at}: {text:?}");
    }
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(plain(tell(&chars)), whole, "by characters: {text:?}");
    whole
}

fn xml(function: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String =
        parameters.iter().map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n")).collect();
    format!("<tool_call>\n<function={function}>\n{parameters}</function>\n</tool_call>")
}

#[test]
fn what_is_told_of_a_good_call_is_its_arguments() {
    let long = "line \"one\"\n\n\tline <b>two</b> </parameter> é😀\\ </function>x\n".repeat(3);
    for text in [
        xml("write", &[("path", "a.rs"), ("mode", "7"), ("text", "fn main() {}\n")]),
        xml("write", &[("mode", "7"), ("text", &long), ("any", "{\"a\": 1}"), ("maybe", "null")]),
        xml("write", &[("text", ""), ("path", "\n")]),
        xml("write", &[("any", "text"), ("maybe", "text")]),
        xml("now", &[]),
        "<tool_call>{\"name\": \"write\", \"arguments\": {\"path\": \"a\\\"}\", \"mode\": [1, {}]} }</tool_call>".to_owned(),
        "<tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</tool_call>".to_owned(),
        "<tool_call>{\"name\":\"now\"}</tool_call>".to_owned(),
        "<tool_call>{\"arguments\": {\"mode\": 1}, \"name\": \"write\"}</tool_call>".to_owned(),
        format!("so: {}\n{}", xml("now", &[]), xml("write", &[("path", "b")])),
        // Only the wrapper is missing.
        xml("write", &[("path", "b")]).replace("</tool_call>", ""),
    ] {
        let told = tell_every_way(&text);
        let calls = parse(&text, &declared()).calls;
        assert_eq!(told.len(), calls.len(), "{text}");
        for (told, call) in told.iter().zip(calls) {
            let call = call.unwrap();
            assert_eq!((&told.name, told.good), (&call.name, Some(true)));
            let arguments: Value = serde_json::from_str(&told.arguments).unwrap();
            assert_eq!(arguments, Value::Object(call.arguments));
        }
    }
}

#[test]
fn a_call_that_is_cut_off_or_goes_wrong_is_never_json() {
    for text in [
        "<tool_call>\n<function=write>\n<parameter=path>\nNew York",
        "<tool_call>\n<function=write>\n<parameter=path>\nNew York\n</parameter>\n",
        "<tool_call><function=write><parameter=path>a</parameter><parameter=path>b</parameter></function></tool_call>",
        "<tool_call><function=write><parameter=mode>x</parameter><parameter=path>b</parameter></function></tool_call>",
        "<tool_call>{\"name\": \"write\", \"arguments\": {\"path\": \"a\"}",
        "<tool_call>{\"name\": \"write\", \"arguments\": {\"path\": \"a\"}, \"id\": 3}</tool_call>",
        "<tool_call>{\"name\": \"write\", \"arguments\": {\"path\": \"a\", \"path\": \"b\"}}</tool_call>",
    ] {
        let told = tell_every_way(text);
        assert_eq!(told.len(), 1, "{text}");
        assert_eq!(told[0].good, Some(false), "{text}");
        assert!(serde_json::from_str::<Value>(&told[0].arguments).is_err(), "{told:?}");
    }
}

#[test]
fn undeclared_functions_and_unfinished_names_are_not_told() {
    for text in [
        "<tool_call>\n<function=get_w",
        &xml("unknown", &[("a", "b")]),
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {\"a\": 1}}</tool_call>",
        "<tool_call>{\"name\": \"wri",
    ] {
        assert_eq!(tell_every_way(text), [], "{text}");
    }
}

#[test]
fn long_string_arguments_do_not_arrive_in_one_lump() {
    let body = "0123456789 <tag> \"quoted\"\n".repeat(160);
    for text in [
        xml("write", &[("path", "a"), ("text", &body)]),
        format!("<tool_call>{}</tool_call>", json!({"name": "write", "arguments": {"text": body}})),
    ] {
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let told = tell(&pieces);
        assert!(told[0].fragments > 1000, "{}", told[0].fragments);
    }
}
