//! Answers that are held to a grammar, by a model that would never keep to one by itself.

use basert_server::Config;
use serde_json::{Value, json};

use crate::common::Server;
use crate::scripted::folded;

fn ask(server: &Server, seed: u32, extra: &Value) -> (Value, String) {
    let mut request = json!({"seed": seed, "temperature": 1, "max_tokens": 200});
    request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let found = server.chat(request);
    let choice = &found["choices"][0];
    (
        choice["message"].clone(),
        choice["finish_reason"].as_str().unwrap_or_else(|| panic!("{found}")).to_owned(),
    )
}

#[test]
fn a_schema_is_kept_to_and_ends_the_answer() {
    let server = Server::toy(4, 512, Config::default());
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"], "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    for extra in [
        json!({"response_format": format, "max_tokens": 60}),
        json!({"guided_json": schema, "max_tokens": 60}),
    ] {
        // Blanks are free in JSON, so that not every answer ends in time.
        let whole = |(message, finish): (Value, String)| {
            let text = message["content"].as_str().unwrap().to_owned();
            (finish == "stop").then_some(text)
        };
        let text = (0..40).find_map(|seed| whole(ask(&server, seed, &extra))).unwrap();
        let found: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(found["a"].as_u64().is_some_and(|a| a < 100), "{text}");
        assert!(found["b"] == "x" || found["b"] == "y", "{text}");
    }
}

#[test]
fn choices_expressions_and_grammars_are_kept_to() {
    let server = Server::toy(4, 512, Config::default());
    for seed in 0..2 {
        let (message, finish) = ask(&server, seed, &json!({"guided_choice": ["yes", "no \"ifs\""]}));
        assert!(["yes", "no \"ifs\""].contains(&message["content"].as_str().unwrap()), "{message}");
        assert_eq!(finish, "stop");
        let (message, _) = ask(&server, seed, &json!({"guided_regex": "[a-f]{3}-[0-9]{2}"}));
        let text = message["content"].as_str().unwrap();
        let (word, number) = text.split_once('-').unwrap();
        assert!(word.len() == 3 && number.parse::<u8>().is_ok() && number.len() == 2, "{text}");
        let (message, _) = ask(&server, seed, &json!({"guided_grammar": "start: \"<\" /[0-9]/ \">\""}));
        assert_eq!(message["content"].as_str().unwrap().len(), 3);
    }
    let request = json!({"prompt": "x", "max_tokens": 9, "guided_choice": ["one", "two"]});
    let found = server.post("/v1/completions", &request).json();
    assert!(["one", "two"].contains(&found["choices"][0]["text"].as_str().unwrap()), "{found}");
}

#[test]
fn the_grammar_begins_behind_the_thinking() {
    let server = Server::toy(4, 512, Config::default());
    // The end of the thinking is forced as soon as it may come: the bias acts until the tag is there.
    let end = server.post("/tokenize", &json!({"content": "</think>"})).json();
    let ids = end["tokens"].as_array().unwrap();
    assert_eq!(ids.len(), 1, "the tag is one token: {end}");
    let id = ids[0].to_string();
    let extra = json!({"guided_choice": ["yes"], "enable_thinking": true, "logit_bias": {id: 100}});
    let (message, finish) = ask(&server, 1, &extra);
    assert_eq!((message["content"].as_str(), finish.as_str()), (Some("yes"), "stop"), "{message}");
}

#[test]
fn a_required_call_is_made_and_a_named_one_has_its_name() {
    let server = Server::toy(4, 1024, Config::default());
    let function = |name: &str| {
        json!({"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "required": ["days"], "additionalProperties": false,
            "properties": {"days": {"type": "integer", "minimum": 0, "maximum": 9}, "unit": {"enum": ["C", "F"]}}}}})
    };
    let tools = json!([function("weather"), function("forecast")]);
    for seed in 0..3 {
        for choice in [json!("required"), json!({"type": "function", "function": {"name": "forecast"}})] {
            let extra = json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false});
            let (message, finish) = ask(&server, seed, &extra);
            assert_eq!(finish, "tool_calls", "{message}");
            let call = &message["tool_calls"][0]["function"];
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            assert!(arguments["days"].as_u64().is_some_and(|days| days < 10), "{message}");
            if choice.is_object() {
                assert_eq!(call["name"], "forecast");
            }
            if seed == 0 {
                let mut request = json!({"seed": seed, "temperature": 1, "max_tokens": 200});
                request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
                let (streamed, reason) = folded(&server.chat_events(request));
                assert_eq!((&streamed["tool_calls"][0]["function"], reason), (call, json!("tool_calls")));
            }
        }
    }
}

#[test]
fn what_cannot_be_followed_is_refused_before_anything_is_generated() {
    let server = Server::toy(2, 256, Config::default());
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for (extra, param) in [
        (json!({"guided_json": 7}), "guided_json"),
        (json!({"guided_json": {"type": "spaceship"}}), "guided_json"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema.schema"),
        (json!({"guided_regex": "("}), "guided_regex"),
        (json!({"guided_regex": ["a"]}), "guided_regex"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"guided_grammar": "start: nowhere"}), "guided_grammar"),
        (json!({"guided_regex": "a", "guided_choice": ["a"]}), "guided_choice"),
        (json!({"guided_regex": "a", "ignore_eos": true}), "ignore_eos"),
        (json!({"guided_regex": "a", "tools": tools}), "guided_regex"),
    ] {
        let mut request = json!({"messages": [{"role": "user", "content": "hi"}]});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let reply = server.post("/v1/chat/completions", &request);
        assert_eq!(reply.error(), (400, Some(param.to_owned())), "{extra} {}", reply.text());
    }
}
