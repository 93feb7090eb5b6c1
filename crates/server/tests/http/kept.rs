//! Prompts that were read before: what is said of them, and whom they are kept for.

use basert_server::Config;
use serde_json::{Value, json};

use crate::common::Server;

fn long() -> String {
    "The cat sat on the mat. ".repeat(12)
}

/// The answer and the number of prompt tokens that were not read again.
fn ask(server: &Server, key: &str, body: &Value) -> (Value, u64) {
    let headers = [("x-api-key", key)];
    let reply = server.post_with("/v1/completions", body.to_string().as_bytes(), &headers);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let mut json = reply.json();
    let cached = json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (json["choices"].take(), cached)
}

fn server() -> Server {
    Server::toy(2, 512, Config { api_keys: vec!["first".into(), "second".into()], ..Config::default() })
}

#[test]
fn a_prompt_is_read_once_and_only_for_the_key_that_sent_it() {
    let server = server();
    let body = json!({"prompt": long(), "max_tokens": 6, "temperature": 0});
    let (cold, none) = ask(&server, "first", &body);
    assert_eq!(none, 0);
    let (warm, kept) = ask(&server, "first", &body);
    assert_eq!(warm, cold);
    assert!(kept >= 32 && kept.is_multiple_of(32), "{kept}");
    let (other, none) = ask(&server, "second", &body);
    assert_eq!(
        (other, none),
        (cold, 0),
        "what one key has asked is not shown to another, not even by the time"
    );
}

#[test]
fn a_prompt_that_is_scored_is_read_whole() {
    let server = server();
    let scored = json!({"prompt": long(), "max_tokens": 0, "echo": true, "logprobs": 2});
    let (cold, _) = ask(&server, "first", &scored);
    ask(&server, "first", &json!({"prompt": long(), "max_tokens": 2}));
    let (warm, cached) = ask(&server, "first", &scored);
    assert_eq!((warm, cached), (cold, 0));
}
