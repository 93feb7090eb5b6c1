//! What becomes of a generated text: streamed and not, however it is cut into tokens.

use basert_engine::Finish;
use basert_server::Config;
use serde_json::{Value, json};

use crate::common::{Script, Server};

const QWEN: &str =
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nTokyo\n</parameter>\n</function>\n</tool_call>";
const HERMES: &str = r#"<tool_call>{"name":"get_weather","arguments":{"city":"Tokyo"}}</tool_call>"#;

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}])
}

/// The message that a stream's events add up to, and its finish reason, in the form of a response that is not streamed.
/// Checks the shape of the deltas on the way.
pub fn folded(events: &[Value]) -> (Value, Value) {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<Value> = Vec::new();
    let mut finish = Value::Null;
    for (i, event) in events.iter().enumerate() {
        assert_eq!((&event["id"], &event["created"]), (&events[0]["id"], &events[0]["created"]));
        assert_eq!(
            (event["object"].as_str(), event["model"].as_str()),
            (Some("chat.completion.chunk"), Some("toy"))
        );
        let Some(choice) = event["choices"].get(0) else { continue };
        let delta = choice["delta"].as_object().unwrap();
        assert_eq!(delta.contains_key("role"), i == 0, "the role comes once");
        assert!(finish.is_null(), "nothing comes after the finish reason");
        finish = choice["finish_reason"].clone();
        assert!(finish.is_null() || delta.is_empty());
        content += delta.get("content").and_then(Value::as_str).unwrap_or_default();
        reasoning += delta.get("reasoning_content").and_then(Value::as_str).unwrap_or_default();
        for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(call["id"].is_string() && call["type"] == "function");
                let mut call = call.clone();
                call.as_object_mut().unwrap().remove("index");
                calls.push(call);
            } else {
                assert_eq!(index + 1, calls.len());
                assert!(call.get("id").is_none() && call["function"].get("name").is_none());
                let more = call["function"]["arguments"].as_str().unwrap();
                let all = format!("{}{more}", calls[index]["function"]["arguments"].as_str().unwrap());
                calls[index]["function"]["arguments"] = all.into();
            }
        }
    }
    let content = if content.is_empty() && !calls.is_empty() { Value::Null } else { content.into() };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    (message, finish)
}

/// Ids are new every time.
fn without_ids(mut message: Value) -> Value {
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
        call["id"] = "call".into();
    }
    message
}

/// The message and finish reason for a generated text, which are the same streamed, not streamed, and under every cut in two.
fn every_way(
    server: &Server,
    script: &Script,
    text: &str,
    finish: Finish,
    request: &Value,
) -> (Value, String) {
    script.say(&[text], finish);
    let whole = server.chat(request.clone());
    let choice = &whole["choices"][0];
    let message = without_ids(choice["message"].clone());
    let cuts = (0..text.len()).filter(|at| text.is_char_boundary(*at));
    for at in cuts {
        script.say(&[&text[..at], &text[at..]], finish);
        let (streamed, reason) = folded(&server.chat_events(request.clone()));
        assert_eq!(
            (without_ids(streamed), &reason),
            (message.clone(), &choice["finish_reason"]),
            "{text:?} at {at}"
        );
        if at % 7 == 0 {
            let again = server.chat(request.clone());
            assert_eq!(without_ids(again["choices"][0]["message"].clone()), message, "{text:?} at {at}");
        }
    }
    (message, choice["finish_reason"].as_str().unwrap().to_owned())
}

#[test]
fn answers_are_the_same_streamed_or_not_and_however_they_are_cut() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    let call = |arguments: &str| {
        json!([{"id": "call", "type": "function",
        "function": {"name": "get_weather", "arguments": arguments}}])
    };
    let tokyo = call("{\"city\":\"Tokyo\"}");
    let with_tools = json!({"tools": tools()});
    let thinking = json!({"enable_thinking": true});
    for (request, text, end, content, reasoning, calls, finish) in [
        (json!({}), "plain <b>text</b>\n", Finish::Stop, json!("plain <b>text</b>\n"), None, None, "stop"),
        (json!({}), QWEN, Finish::Stop, json!(QWEN), None, None, "stop"),
        (
            json!({"tools": tools(), "tool_choice": "none"}),
            QWEN,
            Finish::Stop,
            json!(QWEN),
            None,
            None,
            "stop",
        ),
        (with_tools.clone(), QWEN, Finish::Stop, Value::Null, None, Some(tokyo.clone()), "tool_calls"),
        (with_tools.clone(), HERMES, Finish::Stop, Value::Null, None, Some(tokyo.clone()), "tool_calls"),
        (
            with_tools.clone(),
            &format!("I will look.\n\n{QWEN}"),
            Finish::Stop,
            json!("I will look."),
            None,
            Some(tokyo.clone()),
            "tool_calls",
        ),
        // Only the wrapper is missing.
        (
            with_tools.clone(),
            &QWEN.replace("</tool_call>", ""),
            Finish::Length,
            Value::Null,
            None,
            Some(tokyo.clone()),
            "length",
        ),
        // Cut inside of a value, and inside of a name.
        (
            with_tools.clone(),
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew York",
            Finish::Length,
            Value::Null,
            None,
            Some(call("{\"city\":\"New York")),
            "length",
        ),
        (
            with_tools.clone(),
            "<tool_call>\n<function=get_w",
            Finish::Length,
            json!("<tool_call>\n<function=get_w"),
            None,
            None,
            "length",
        ),
        (
            json!({"enable_thinking": true, "tools": tools()}),
            &format!("hm\n</think>\n\n{QWEN}"),
            Finish::Stop,
            Value::Null,
            Some("hm"),
            Some(tokyo.clone()),
            "tool_calls",
        ),
        (
            thinking.clone(),
            "plan.</think>\n\n{\"a\":1}",
            Finish::Stop,
            json!("{\"a\":1}"),
            Some("plan."),
            None,
            "stop",
        ),
        (thinking.clone(), "never ends", Finish::Length, json!(""), Some("never ends"), None, "length"),
        (thinking, "<think>\nplan\n</think>\nyes", Finish::Stop, json!("yes"), Some("plan"), None, "stop"),
        (
            json!({"enable_thinking": false}),
            "just text",
            Finish::Stop,
            json!("just text"),
            None,
            None,
            "stop",
        ),
        (
            json!({"reasoning_effort": "none"}),
            "just text",
            Finish::Stop,
            json!("just text"),
            None,
            None,
            "stop",
        ),
        (
            json!({"stop": ["own fox"]}),
            "The quick brown fox",
            Finish::Stop,
            json!("The quick br"),
            None,
            None,
            "stop",
        ),
        (json!({"stop": ["\nUser:"]}), "a\nUseful", Finish::Stop, json!("a\nUseful"), None, None, "stop"),
        (json!({"stop": ["abc", "ab"]}), "xxabcd", Finish::Stop, json!("xx"), None, None, "stop"),
        (json!({"stop": "é"}), "caf\u{e9}s", Finish::Stop, json!("caf"), None, None, "stop"),
    ] {
        let (message, reason) = every_way(&server, &script, text, end, &request);
        let what = format!("{request} {text:?}");
        assert_eq!(message["content"], content, "{what}");
        assert_eq!(message.get("reasoning_content").and_then(Value::as_str), reasoning, "{what}");
        assert_eq!(message.get("tool_calls"), calls.as_ref(), "{what}");
        assert_eq!(reason, finish, "{what}");
    }
}

#[test]
fn parallel_calls_are_numbered_and_can_be_switched_off() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    script.say(&[&format!("{QWEN}\n{}", HERMES.replace("Tokyo", "Rome"))], Finish::Stop);
    let mut request = json!({"tools": tools()});
    let (message, _) = folded(&server.chat_events(request.clone()));
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    request["parallel_tool_calls"] = false.into();
    let (message, finish) = folded(&server.chat_events(request));
    assert_eq!((message["tool_calls"].as_array().unwrap().len(), finish), (1, json!("tool_calls")));
}

#[test]
fn a_call_of_an_undeclared_function_is_text_with_a_warning() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    script.say(&[&QWEN.replace("get_weather", "format_disk")], Finish::Stop);
    let found = server.chat(json!({"tools": tools()}));
    assert!(found["choices"][0]["message"].get("tool_calls").is_none());
    assert!(found["choices"][0]["message"]["content"].as_str().unwrap().contains("format_disk"));
    assert!(found["warnings"][0].as_str().unwrap().contains("format_disk"), "{found}");
    assert_eq!(found["choices"][0]["finish_reason"], "stop");
}

#[test]
fn long_arguments_stream_in_many_pieces() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    let long = "0123456789\n".repeat(40);
    script.say_bytes(QWEN.replace("Tokyo", &long).as_bytes(), Finish::Stop);
    let events = server.chat_events(json!({"tools": tools()}));
    let fragments = events.iter().filter(|event| {
        event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"]
            .as_str()
            .is_some_and(|a| !a.is_empty())
    });
    assert!(fragments.count() > 100);
    let (message, _) = folded(&events);
    let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert_eq!(arguments["city"], long);
}

#[test]
fn characters_split_over_tokens_arrive_whole_or_as_one_replacement() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    for (bytes, text) in [
        ("😀é客".as_bytes(), "😀é客"),
        ("👩‍👩‍👧 🇩🇪".as_bytes(), "👩‍👩‍👧 🇩🇪"),
        (&"a😀".as_bytes()[..3], "a\u{fffd}"),
        (b"\xff\xfeb", "\u{fffd}\u{fffd}b"),
    ] {
        script.say_bytes(bytes, Finish::Length);
        assert_eq!(server.chat(json!({}))["choices"][0]["message"]["content"], text);
        assert_eq!(folded(&server.chat_events(json!({}))).0["content"], text);
    }
}

#[test]
fn log_probabilities_of_a_stream_are_those_of_a_whole_answer() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    script.say_bytes(format!("hm</think>é so{QWEN}").as_bytes(), Finish::Stop);
    let request = json!({"logprobs": true, "top_logprobs": 2, "enable_thinking": true, "tools": tools()});
    let whole = server.chat(request.clone());
    let whole = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let events = server.chat_events(request);
    let streamed: Vec<&Value> = events
        .iter()
        .flat_map(|event| event["choices"][0]["logprobs"]["content"].as_array().into_iter().flatten())
        .collect();
    assert_eq!(streamed, whole.iter().collect::<Vec<_>>());
    assert_eq!(whole.len(), format!("hm</think>é so{QWEN}").len());
    assert_eq!(whole[0]["token"], "h");
    assert_eq!(whole[0]["bytes"], json!([104]));
    assert_eq!(whole[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(whole[10]["token"], "bytes:\\xc3");
}

#[test]
fn log_probabilities_survive_a_stop_string_across_tokens() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    script.say_bytes("one \u{1f98a} two three".as_bytes(), Finish::Stop);
    for stop in ["o th", "\u{1f98a}", "two", "e"] {
        let request = json!({"logprobs": true, "top_logprobs": 1, "stop": stop});
        let whole = server.chat(request.clone());
        let choice = &whole["choices"][0];
        let events = server.chat_events(request);
        let lists = events.iter().filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array());
        assert_eq!(&lists.flatten().cloned().collect::<Value>(), &choice["logprobs"]["content"], "{stop}");
        let (message, finish) = folded(&events);
        assert_eq!((&message, &finish), (&choice["message"], &json!("stop")), "{stop}");
        let text = format!("{}{stop}", message["content"].as_str().unwrap());
        assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), text.len(), "to the stop's end");
    }
}

#[test]
fn completions_report_four_lists_of_one_length() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    script.say_bytes("añb".as_bytes(), Finish::Stop);
    let request = json!({"prompt": "x", "logprobs": 1, "max_tokens": 9});
    let found = server.post("/v1/completions", &request).json();
    let choice = &found["choices"][0];
    assert_eq!((choice["text"].as_str(), choice["finish_reason"].as_str()), (Some("añb"), Some("stop")));
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 2]));
    for list in ["tokens", "token_logprobs", "top_logprobs"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 4, "{list}");
    }
    let mut streaming = request;
    streaming["stream"] = true.into();
    let events = server.post("/v1/completions", &streaming).events();
    let lists = |name: &str| -> Vec<Value> {
        events.iter().flat_map(|e| e["choices"][0]["logprobs"][name].as_array().unwrap().clone()).collect()
    };
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(json!(lists(list)), logprobs[list], "{list}");
    }
    let text: String = events.iter().map(|e| e["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, "añb");
}

#[test]
fn usage_comes_in_a_chunk_of_its_own_when_asked_for() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    script.say_bytes(b"abc", Finish::Stop);
    let asked = server.chat_events(json!({"stream_options": {"include_usage": true}, "n": 2}));
    let (last, others) = asked.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    let usage = &last["usage"];
    assert_eq!(usage["completion_tokens"], 6);
    let whole = server.chat(json!({"n": 2}));
    assert_eq!(usage, &whole["usage"]);
    assert_eq!(
        usage["prompt_tokens"],
        server.chat(json!({}))["usage"]["prompt_tokens"],
        "the prompt counts once"
    );
    assert!(others.iter().all(|event| event.get("usage") == Some(&Value::Null)));
    let plain = server.chat_events(json!({}));
    assert!(plain.iter().all(|event| event.get("usage").is_none() && event["choices"] != json!([])));
    let request = json!({"prompt": "x", "stream": true, "stream_options": {"include_usage": true}});
    let events = server.post("/v1/completions", &request).events();
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 3);
}
