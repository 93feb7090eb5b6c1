//! What is wrong hurts only itself, and is told in OpenAI's shape.

use std::io::Write;
use std::time::Duration;

use basert_engine::Finish;
use basert_server::Config;
use basert_text::ChatTemplate;
use serde_json::{Value, json};

use crate::common::{Reply, Script, Server, model};

/// As Gemma 3's: turns alternate, and there is no word of tools.
const GEMMA3: &str = "\
{%- for message in messages -%}\
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif -%}\
{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}\
{{- message['content'] | trim + '<end_of_turn>\n' }}{%- endfor -%}\
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}";

#[test]
fn fields_of_the_wrong_type_or_size_are_named() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    script.say(&["ok"], Finish::Stop);
    let chat = "/v1/chat/completions";
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for (path, field, value, param) in [
        (chat, "model", json!(7), "model"),
        (chat, "messages", json!([]), "messages"),
        (chat, "messages", json!(null), "messages"),
        (chat, "stream", json!("yes"), "stream"),
        (chat, "max_tokens", json!(-1), "max_tokens"),
        (chat, "max_tokens", json!(0), "max_tokens"),
        (chat, "max_tokens", json!(1.5), "max_tokens"),
        (chat, "max_tokens", json!(1e300), "max_tokens"),
        (chat, "max_completion_tokens", json!("5"), "max_completion_tokens"),
        (chat, "temperature", json!(1e9), "temperature"),
        (chat, "temperature", json!(-0.1), "temperature"),
        (chat, "temperature", json!("hot"), "temperature"),
        (chat, "top_p", json!(1.1), "top_p"),
        (chat, "top_k", json!(-5), "top_k"),
        (chat, "repetition_penalty", json!(0), "repetition_penalty"),
        (chat, "presence_penalty", json!(3), "presence_penalty"),
        (chat, "n", json!(0), "n"),
        (chat, "n", json!(1000), "n"),
        (chat, "seed", json!(1.5), "seed"),
        (chat, "seed", json!("x"), "seed"),
        (chat, "stop", json!(["a", "b", "c", "d", "e"]), "stop"),
        (chat, "stop", json!([""]), "stop[0]"),
        (chat, "stop", json!(""), "stop[0]"),
        (chat, "stop", json!([7]), "stop[0]"),
        (chat, "logit_bias", json!([1]), "logit_bias"),
        (chat, "logit_bias", json!({"x": 1}), "logit_bias.x"),
        (chat, "logit_bias", json!({"1": 1000}), "logit_bias.1"),
        (chat, "logit_bias", json!({"99999": 1}), "logit_bias"),
        (chat, "logprobs", json!(3), "logprobs"),
        (chat, "top_logprobs", json!(3), "top_logprobs"),
        (chat, "stream_options", json!({"include_usage": true}), "stream_options"),
        (chat, "response_format", json!({"type": "yaml"}), "response_format.type"),
        (chat, "reasoning_effort", json!("extreme"), "reasoning_effort"),
        (chat, "chat_template_kwargs", json!({"messages": []}), "chat_template_kwargs.messages"),
        (chat, "chat_template_kwargs", json!(1), "chat_template_kwargs"),
        (chat, "tools", json!("x"), "tools"),
        (chat, "tools", json!([tool[0], tool[0]]), "tools[1]"),
        (chat, "tool_choice", json!("required"), "tool_choice"),
        (chat, "tool_choice", json!("always"), "tool_choice"),
        (chat, "tool_choice", json!({"type": "function", "function": {}}), "tool_choice.function.name"),
        (
            chat,
            "tool_choice",
            json!({"type": "function", "function": {"name": "g"}}),
            "tool_choice.function.name",
        ),
        ("/v1/completions", "prompt", json!(null), "prompt"),
        ("/v1/completions", "prompt", json!(7), "prompt"),
        ("/v1/completions", "prompt", json!([]), "prompt"),
        ("/v1/completions", "prompt", json!([1, 99999]), "prompt[1]"),
        ("/v1/completions", "prompt", json!(["a", 5.5]), "prompt[0]"),
        ("/v1/completions", "prompt", json!([[1], [-1]]), "prompt[1][0]"),
        ("/v1/completions", "logprobs", json!(6), "logprobs"),
        ("/v1/completions", "logprobs", json!(true), "logprobs"),
        ("/tokenize", "content", json!(7), "content"),
        ("/detokenize", "tokens", json!(["x"]), "tokens[0]"),
        ("/apply-template", "messages", json!(7), "messages"),
    ] {
        let mut request = json!({"messages": [{"role": "user", "content": "hi"}], "prompt": "x"});
        request[field] = value;
        let reply = server.post(path, &request);
        assert_eq!(reply.error(), (400, Some(param.to_owned())), "{request} {}", reply.text());
    }
    assert_eq!(server.post(chat, &json!({"messages": [{"role": "user", "content": "hi"}]})).status, 200);
}

#[test]
fn what_a_template_refuses_is_a_400_with_the_message() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    let messages = json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "system", "content": "date changed"}, {"role": "user", "content": "c"}
    ]);
    let reply = server.post("/v1/chat/completions", &json!({"messages": messages}));
    assert_eq!(reply.error(), (400, Some("messages[2]".to_owned())), "{}", reply.text());
}

fn with_template(script: &Script, source: &str) -> Server {
    let mut model = model();
    model.template = Some(ChatTemplate::new(source, None, None).unwrap());
    model.template_source = Some(source.to_owned());
    Server::scripted_as(model, script, Config::default())
}

#[test]
fn tools_that_a_template_has_no_place_for_are_refused_and_not_dropped() {
    let script = Script::new();
    let fenced = "```tool_code\nget_weather(city=\"Tokyo\")\n```";
    script.say(&[fenced], Finish::Stop);
    let tools = json!([{"type": "function", "function": {"name": "get_weather"}}]);
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for source in [GEMMA3, &format!("{{#- There are no tools. -#}}{GEMMA3}")] {
        let server = with_template(&script, source);
        for choice in [Value::Null, json!("auto"), json!("required"), named.clone()] {
            let messages = json!([{"role": "user", "content": "Look it up"}]);
            let request = json!({"messages": messages, "tools": tools, "tool_choice": choice});
            for path in ["/v1/chat/completions", "/apply-template"] {
                let reply = server.post(path, &request);
                assert_eq!(reply.error(), (400, Some("tools".to_owned())), "{choice}");
                assert_eq!(reply.json()["error"]["code"], "unsupported_parameter");
            }
        }
        assert_eq!(server.chat(json!({"tools": tools, "tool_choice": "none"}))["choices"][0]["index"], 0);
    }
    let server = with_template(&script, GEMMA3);
    assert_eq!(server.get("/v1/models/toy").json()["capabilities"]["tools"], false);
    // What it writes in a spelling that only its prompt has asked for is for whoever asked.
    let found = server.chat(json!({}));
    assert_eq!(found["choices"][0]["message"]["content"], fenced);
    assert_eq!(found["choices"][0]["finish_reason"], "stop");
}

#[test]
fn calls_of_earlier_turns_that_a_template_leaves_out_are_answered_with_a_warning() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let messages = json!([{"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "tool_calls": [call]}, {"role": "user", "content": "b"}]);
    let found = with_template(&script, GEMMA3).chat(json!({"messages": messages}));
    let warning = found["warnings"][0].as_str().unwrap_or_else(|| panic!("{found}"));
    assert!(warning.contains("`messages[1].tool_calls`"), "{warning}");
    let found = Server::scripted(&script, Config::default()).chat(json!({"messages": messages}));
    assert_eq!(found.get("warnings"), None, "a template that has a place for them");
}

#[test]
fn bodies_that_are_no_request() {
    let script = Script::new();
    let server = Server::scripted(&script, Config { body_limit: 10_000, ..Config::default() });
    let path = "/v1/chat/completions";
    for body in
        [&b""[..], b"{", b"[]", b"\"hi\"", b"{\"temperature\": NaN}", b"{\"a\": 1e999}", b"{\"a\": \"\xff\"}"]
    {
        let reply = server.post_with(path, body, &[]);
        assert_eq!(reply.error().0, 400, "{body:?}");
    }
    let deep = "[".repeat(5000);
    assert_eq!(server.post_with(path, deep.as_bytes(), &[]).error().0, 400);
    let large = vec![b' '; 10_001];
    assert_eq!(server.post_with(path, &large, &[]).error().0, 413);
    // A length that is only claimed is enough.
    let head = server.head("POST", path, &[("Content-Length", "100000000")]);
    assert_eq!(server.send(&head, b"").error().0, 413);
    let head = server.head("POST", path, &[("Transfer-Encoding", "chunked")]);
    let chunks = format!("{:x}\r\n{}\r\n0\r\n\r\n", large.len(), " ".repeat(large.len()));
    assert_eq!(server.send(&head, chunks.as_bytes()).error().0, 413);
}

#[test]
fn slow_clients_are_not_waited_for_and_hold_up_nobody() {
    let script = Script::new();
    let config = Config { read_timeout: Duration::from_millis(300), ..Config::default() };
    let server = Server::scripted(&script, config);
    let mut slow_head = server.connect();
    slow_head.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHo").unwrap();
    let mut slow_body = server.connect();
    let head = server.head("POST", "/v1/chat/completions", &[("Content-Length", "50")]);
    slow_body.write_all(head.as_bytes()).unwrap();
    slow_body.write_all(b"{\"me").unwrap();
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(Reply::read(slow_body).error().0, 408);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut slow_head, &mut rest).unwrap();
    let rest = String::from_utf8(rest).unwrap();
    assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408"), "{rest}");
}

#[test]
fn names_of_models_are_compared_and_never_looked_up() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    script.say(&["ok"], Finish::Stop);
    let long = "m".repeat(1_000_000);
    for name in ["../../etc/passwd", "/etc/passwd", "org/name", "toy.base", "\u{0}", "", &long] {
        for path in ["/v1/chat/completions", "/v1/completions", "/v1/models/load", "/tokenize"] {
            let reply = server.post(path, &json!({"model": name, "messages": [], "prompt": "x"}));
            assert_eq!(reply.error(), (404, Some("model".to_owned())));
            assert!(reply.body.len() < 1000);
        }
    }
    assert_eq!(server.get("/v1/models/..%2F..%2Fetc").error().0, 404);
    assert_eq!(server.get("/v1/models/toy").json()["id"], "toy");
}

#[test]
fn paths_and_methods_that_are_none() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    assert_eq!(server.get("/v1/nothing").error().0, 404);
    assert_eq!(server.get("/../etc/passwd").error().0, 404);
    assert_eq!(server.get("/v1/chat/completions").error().0, 405);
    assert_eq!(server.post("/v1/models", &json!({})).error().0, 405);
    let preflight = server.send(&server.head("OPTIONS", "/v1/chat/completions", &[]), b"");
    assert_eq!(preflight.status, 405);
    assert!(preflight.header("access-control-allow-origin").is_none());
}

#[test]
fn pages_of_other_sites_and_false_names_are_turned_away() {
    let script = Script::new();
    let config = Config { allowed_hosts: vec!["my.lan".to_owned()], ..Config::default() };
    let server = Server::scripted(&script, config);
    script.say(&["ok"], Finish::Stop);
    let body = json!({"messages": [{"role": "user", "content": "hi"}]}).to_string();
    let status =
        |headers: &[(&str, &str)]| server.post_with("/v1/chat/completions", body.as_bytes(), headers).status;
    let port = server.address.port();
    assert_eq!(status(&[]), 200);
    assert_eq!(status(&[("Origin", "https://evil.example")]), 403);
    assert_eq!(status(&[("Origin", "null")]), 403);
    assert_eq!(status(&[("Origin", "http://93.184.216.34")]), 403);
    assert_eq!(status(&[("Origin", &format!("http://127.0.0.1:{port}"))]), 200);
    assert_eq!(status(&[("Origin", "http://localhost:3000")]), 200);
    assert_eq!(status(&[("Origin", "https://my.lan")]), 200);
    assert_eq!(status(&[("Host", "evil.example")]), 403);
    assert_eq!(status(&[("Host", &format!("evil.example:{port}"))]), 403);
    assert_eq!(status(&[("Host", "my.lan:80")]), 200);
    assert_eq!(status(&[("Host", "[::1]:80")]), 200);
    assert!(Config::default().host.is_loopback(), "others reach it only if it is told so");
    let page = server.get("/");
    assert!(page.text().contains("<title>") && page.header("content-security-policy").is_some());
}

/// Three megabytes of one letter took a core for eleven seconds before they were found to be too long.
#[test]
fn a_prompt_of_one_huge_word_is_refused_before_it_is_taken_apart() {
    let server = Server::toy(2, 64, Config::default());
    let word = "x".repeat(3_000_000);
    let message = json!([{"role": "user", "content": word}]);
    let forged = json!([{"role": "user", "content": format!("<|im_end|>{word}")}]);
    for (path, request) in [
        ("/v1/completions", json!({"prompt": word})),
        ("/v1/completions", json!({"prompt": ["a", word], "stream": true})),
        ("/v1/chat/completions", json!({"messages": message})),
        ("/v1/chat/completions", json!({"messages": forged, "stream": true})),
        ("/v1/apply-template", json!({"messages": message})),
        ("/v1/tokenize", json!({"content": word})),
        ("/tokenize", json!({"content": word, "parse_special": false})),
    ] {
        let reply = server.post(path, &request);
        assert_eq!(reply.error().0, 400, "{path}");
        let error = reply.json()["error"].clone();
        assert_eq!(error["code"], "context_length_exceeded");
        let message = error["message"].as_str().unwrap();
        let (_, rest) = message.split_once("has at least ").unwrap_or_else(|| panic!("{message}"));
        let at_least: usize = rest.split(' ').next().unwrap().parse().unwrap();
        assert!((65..=3_000_100).contains(&at_least) && message.contains("of 64 tokens"), "{message}");
    }
    let found = server.post("/v1/tokenize", &json!({"content": "x ".repeat(500)})).json();
    assert_eq!(
        found["count"],
        found["tokens"].as_array().unwrap().len(),
        "a little too long is told exactly"
    );
}

#[test]
fn a_prompt_that_leaves_no_room_is_refused_with_both_numbers() {
    let server = Server::toy(2, 64, Config::default());
    let ids = |n: usize| -> Value { vec![5; n].into() };
    for stream in [false, true] {
        for n in [64, 65, 1000] {
            let request = json!({"prompt": ids(n), "stream": stream, "max_tokens": 4});
            let reply = server.post("/v1/completions", &request);
            assert_eq!(reply.error().0, 400);
            let error = reply.json()["error"].clone();
            assert_eq!(error["code"], "context_length_exceeded");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(&n.to_string()) && message.contains("64"), "{message}");
        }
    }
    for stream in [false, true] {
        let messages = json!([{"role": "user", "content": "a long word ".repeat(50)}]);
        let reply = server.post("/v1/chat/completions", &json!({"messages": messages, "stream": stream}));
        assert_eq!(
            (reply.error().0, &reply.json()["error"]["code"]),
            (400, &json!("context_length_exceeded"))
        );
    }
    let request = json!({"prompt": ids(63), "max_tokens": 50, "ignore_eos": true});
    let found = server.post("/v1/completions", &request).json();
    assert_eq!(found["choices"][0]["finish_reason"], "length");
    assert_eq!(found["usage"]["completion_tokens"], 1);
}
