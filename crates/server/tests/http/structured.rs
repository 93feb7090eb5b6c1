//! Answers that are held to a grammar, by a model that would never keep to one by itself.

use basert_server::Config;
use serde_json::{Value, json};

use crate::common::{Server, model};
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
        // Some blanks are free in JSON, so that not every answer ends in time.
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
fn a_model_that_likes_blanks_comes_to_the_end() {
    let server = Server::toy(4, 512, Config::default());
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x"]}},
        "required": ["a", "b"], "additionalProperties": false});
    let bias = json!({token(&server, " "): 100});
    let (message, finish) =
        ask(&server, 1, &json!({"guided_json": schema, "logit_bias": bias, "max_tokens": 480}));
    let text = message["content"].as_str().unwrap();
    assert_eq!(finish, "stop", "{text}");
    assert!(text.contains(&" ".repeat(8)) && !text.contains(&" ".repeat(40)), "{text}");
    assert_eq!(serde_json::from_str::<Value>(text).unwrap()["b"], "x");
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
        for name in ["guided_grammar", "grammar"] {
            let (message, _) = ask(&server, seed, &json!({(name): "start: \"<\" /[0-9]/ \">\""}));
            assert_eq!(message["content"].as_str().unwrap().len(), 3, "{name}: {message}");
        }
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

/// The id of a text that is one token.
fn token(server: &Server, text: &str) -> String {
    let found = server.post("/tokenize", &json!({"content": text})).json();
    let ids = found["tokens"].as_array().unwrap();
    assert_eq!(ids.len(), 1, "{text:?} is one token: {found}");
    ids[0].to_string()
}

#[test]
fn with_tools_and_a_format_an_answer_is_calls_or_a_text_that_obeys() {
    let server = Server::toy(4, 1024, Config::default());
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}}]);
    let (open, seven) = (token(&server, "<tool_call>"), token(&server, "7"));
    for format in [
        json!({"guided_json": {"enum": ["one/two", 7]}}),
        json!({"guided_regex": "one/two|7"}),
        json!({"guided_choice": ["one/two", "7"]}),
        json!({"guided_grammar": "start: word\nword: \"one/two\" | \"7\"\n"}),
    ] {
        for (liked, calls) in [(&open, true), (&seven, false)] {
            let bias = json!({liked.as_str(): 100});
            let mut extra = json!({"tools": tools, "parallel_tool_calls": false, "logit_bias": bias});
            extra.as_object_mut().unwrap().extend(format.as_object().unwrap().clone());
            let (message, finish) = ask(&server, 1, &extra);
            if calls {
                assert_eq!((finish.as_str(), &message["content"]), ("tool_calls", &Value::Null), "{message}");
                let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                assert!(arguments["a"].is_boolean(), "{message}");
            } else {
                assert_eq!(finish, "stop");
                assert_eq!(message["content"], "7", "{format} {message}");
            }
        }
        // Calls there must be, so that there is no text to have a format.
        let mut extra = json!({"tools": tools, "parallel_tool_calls": false, "tool_choice": "required"});
        extra.as_object_mut().unwrap().extend(format.as_object().unwrap().clone());
        assert_eq!(ask(&server, 1, &extra).1, "tool_calls");
    }
}

#[test]
fn required_calls_are_made_in_every_dialect() {
    let parameters = json!({"type": "object", "required": ["days"], "additionalProperties": false, "properties": {
        "unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "at": {"type": "object", "required": ["on"], "additionalProperties": false, "properties": {
            "on": {"type": "boolean"}, "hours": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 3}}}}}});
    let mut with_text = parameters.clone();
    with_text["properties"]["note"] = json!({"type": "string"});
    let tools = |parameters: &Value| json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}, {"name": "now"}]);
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for mark in [
        "<function=",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[TOOL_CALLS]name[ARGS]",
        "<start_function_call>",
        "<|tool_call>",
    ] {
        let mut model = model();
        model.template_source = Some(format!("tools {mark}"));
        let server = Server::toy_as(model, 4, 1024, Config::default());
        let (_, finish) = ask(
            &server,
            0,
            &json!({"tools": tools(&with_text), "tool_choice": "required", "max_tokens": 30}),
        );
        assert_eq!(finish, "length", "{mark}");
        let whole = |seed| {
            let extra = json!({"tools": tools(&parameters), "tool_choice": named, "max_tokens": 300});
            let (message, finish) = ask(&server, seed, &extra);
            // Blanks and lists may go on for ever.
            assert!(finish == "tool_calls" || finish == "length", "{mark} {message}");
            (finish == "tool_calls").then_some(message)
        };
        let message = (0..12).find_map(whole).unwrap_or_else(|| panic!("{mark}: no call"));
        assert_eq!(message["content"], Value::Null, "{mark} {message}");
        let call = &message["tool_calls"][0];
        assert_eq!(call["function"]["name"], "weather");
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments["days"].as_u64().is_some_and(|days| days < 10), "{mark} {message}");
        assert!(arguments["at"].is_null() || arguments["at"]["on"].is_boolean(), "{mark} {message}");
        assert!(arguments["unit"].is_null() || arguments["unit"] == "C" || arguments["unit"] == "F");
        let id = call["id"].as_str().unwrap();
        assert_eq!(id.len() == 9, mark.starts_with("[TOOL"), "{mark} {id}");
    }
}

/// The tokens of an answer, its message, and the number of those that were thinking.
fn thoughts(server: &Server, extra: &Value) -> (Vec<String>, Value, u64) {
    let mut request = json!({"seed": 1, "max_tokens": 40, "logprobs": true, "enable_thinking": true});
    request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let mut found = server.chat(request.clone());
    let thinking = &found["usage"]["completion_tokens_details"]["reasoning_tokens"];
    let thinking = thinking.as_u64().unwrap_or_else(|| panic!("{found}"));
    let mut choice = found["choices"][0].take();
    let tokens = choice["logprobs"]["content"].as_array().unwrap().iter();
    let tokens = tokens.map(|token| token["token"].as_str().unwrap().to_owned()).collect();
    let (streamed, _) = folded(&server.chat_events(request));
    assert_eq!(streamed, choice["message"]);
    (tokens, choice["message"].take(), thinking)
}

#[test]
fn thinking_that_has_had_its_tokens_is_closed_cleanly() {
    let server = Server::toy(4, 512, Config { thinking_budget: Some(3), ..Config::default() });
    // Left to itself it never ends.
    let end = token(&server, "</think>");
    let endless = json!({"ignore_eos": true, "logit_bias": {end: -100}});
    for (field, budget) in [
        (json!({}), 3),
        (json!({"thinking_budget": 9}), 9),
        (json!({"thinking_token_budget": 1}), 1),
        (json!({"thinking_budget": 0}), 0),
        (json!({"chat_template_kwargs": {"thinking_budget": 5}, "thinking_budget": 5}), 5),
    ] {
        let mut extra = endless.clone();
        extra.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        let (tokens, message, thinking) = thoughts(&server, &extra);
        let (before, after) = tokens.split_at(budget);
        let closing = if before.concat().ends_with('\n') { "</think>\n\n" } else { "\n</think>\n\n" };
        assert!(after.concat().starts_with(closing), "{tokens:?}");
        assert!((thinking as usize) <= budget + 2, "{thinking} {tokens:?}");
        assert!(!message["content"].as_str().unwrap().is_empty(), "{message}");
        assert!(!message.to_string().contains("think>"), "{message}");
    }
    let extra = json!({"thinking_budget": 4, "guided_choice": ["yes"], "logit_bias": endless["logit_bias"]});
    assert_eq!(thoughts(&server, &extra).1["content"], "yes");
}

#[test]
fn thinking_is_not_closed_within_a_character_unless_that_never_ends() {
    let server = Server::toy(4, 512, Config::default());
    let found = server.post("/tokenize", &json!({"content": "€", "with_pieces": true})).json();
    let half = &found["tokens"][0];
    assert_eq!(half["piece"], "bytes:\\xe2");
    let extra =
        json!({"thinking_budget": 2, "ignore_eos": true, "logit_bias": {half["id"].to_string(): 100}});
    let (tokens, _, thinking) = thoughts(&server, &extra);
    assert!(tokens[..6].iter().all(|token| token == "bytes:\\xe2"), "{tokens:?}");
    assert!(tokens[6..].concat().starts_with("\n</think>\n\n"), "{tokens:?}");
    assert_eq!(thinking, 8);
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
        (json!({"guided_regex": "a".repeat(100_001)}), "guided_regex"),
        (json!({"guided_json": {"enum": ["a".repeat(100_001)]}}), "guided_json"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"guided_grammar": "start: nowhere"}), "guided_grammar"),
        (json!({"guided_grammar": "start: start"}), "guided_grammar"),
        // As llama.cpp writes it.
        (json!({"grammar": "root ::= \"a\""}), "grammar"),
        (json!({"guided_regex": "a", "guided_choice": ["a"]}), "guided_choice"),
        (json!({"guided_regex": "a", "ignore_eos": true}), "ignore_eos"),
        (json!({"guided_regex": "(", "tools": tools}), "guided_regex"),
        (json!({"guided_json": {"type": "spaceship"}, "tools": tools}), "guided_json"),
        (json!({"thinking_budget": -1}), "thinking_budget"),
        (json!({"thinking_token_budget": 1, "thinking_budget": 2}), "thinking_budget"),
    ] {
        let mut request = json!({"messages": [{"role": "user", "content": "hi"}]});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let reply = server.post("/v1/chat/completions", &request);
        assert_eq!(reply.error(), (400, Some(param.to_owned())), "{extra} {}", reply.text());
    }
}

#[test]
fn a_grammar_that_is_too_large_to_follow_ends_its_own_answer_and_no_other() {
    let server = Server::toy(4, 256, Config::default());
    let properties: serde_json::Map<String, Value> =
        (0..900).map(|i| (format!("p{i}"), json!({"type": "string", "maxLength": 100}))).collect();
    let wide = json!({"guided_json": {"type": "object", "properties": properties, "minProperties": 2}});
    let plain = json!({"ignore_eos": true, "max_tokens": 60});
    let alone: Vec<Value> = (0..3).map(|seed| ask(&server, seed, &plain).0).collect();
    let together = std::thread::scope(|scope| {
        let ask = |seed| {
            scope.spawn({
                let (server, plain) = (&server, &plain);
                move || ask(server, seed, plain).0
            })
        };
        let plain: Vec<_> = (0..3).map(ask).collect();
        let mut request = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60});
        request.as_object_mut().unwrap().extend(wide.as_object().unwrap().clone());
        let reply = server.post("/v1/chat/completions", &request);
        assert_eq!(reply.error().0, 400, "{}", reply.text());
        plain.into_iter().map(|answer| answer.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(together, alone);
}
