//! The table of fields is true.

use basert_engine::Finish;
use basert_server::Config;
use basert_server::api::fields::{Endpoint, FIELDS, Handling, markdown};
use basert_server::api::openapi;
use serde_json::{Value, json};

use crate::common::{Script, Server};

#[test]
fn every_field_is_handled_as_the_table_says() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    for (endpoint, path, base) in [
        (Endpoint::Chat, "/v1/chat/completions", json!({"messages": [{"role": "user", "content": "hi"}]})),
        (Endpoint::Completions, "/v1/completions", json!({"prompt": "hi"})),
    ] {
        for field in FIELDS {
            let mut request = base.clone();
            let streams = field.name == "stream_options";
            if streams {
                request["stream"] = true.into();
            }
            request[field.name] = match (field.name, endpoint) {
                ("logprobs", Endpoint::Completions) => json!(1),
                _ => serde_json::from_str(field.sample).unwrap(),
            };
            if (field.name, endpoint) == ("top_logprobs", Endpoint::Chat) {
                request["logprobs"] = true.into();
            }
            // The script must keep to a grammar.
            let said = match field.name {
                "response_format" | "guided_json" => "{}",
                "guided_regex" | "guided_grammar" | "grammar" => "a",
                "guided_choice" => "yes",
                _ => "ok",
            };
            script.say(&[said], Finish::Stop);
            let reply = server.post(path, &request);
            let what = format!("{path} {}: {}", field.name, reply.text());
            let warns = reply.text().contains(&format!("`{}`", field.name));
            match field.handling(endpoint) {
                Handling::Honoured => {
                    assert_eq!(reply.status, 200, "{what}");
                    assert!(!warns, "{what}");
                }
                Handling::Refused => assert_eq!(reply.error(), (400, Some(field.name.to_owned())), "{what}"),
                Handling::Warned | Handling::Unknown => {
                    assert_eq!(reply.status, 200, "{what}");
                    let warnings = reply.json()["warnings"].clone();
                    assert!(warnings[0].as_str().is_some_and(|w| w.contains(field.name)), "{what}");
                }
            }
            if field.handling(endpoint) == Handling::Refused {
                request[field.name] = serde_json::from_str(field.neutral).unwrap();
                assert_eq!(server.post(path, &request).status, 200, "{what}");
            }
            // The fields that a request cannot do without.
            if !["messages", "prompt"].contains(&field.name) {
                request[field.name] = Value::Null;
                assert_eq!(server.post(path, &request).status, 200, "null: {what}");
            }
        }
    }
}

#[test]
fn warnings_come_in_streams_too() {
    let script = Script::new();
    let server = Server::scripted(&script, Config::default());
    script.say(&["ok"], Finish::Stop);
    let events = server.chat_events(json!({"user": "u", "no_such_field": 1}));
    assert_eq!(events[0]["warnings"].as_array().unwrap().len(), 2, "{events:?}");
    let events =
        server.post("/v1/completions", &json!({"prompt": "x", "user": "u", "stream": true})).events();
    assert!(events[0]["warnings"][0].as_str().unwrap().contains("user"));
}

#[test]
fn the_table_in_the_documentation_is_this_one() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(&markdown()), "put this table into docs/api.md:\n{}", markdown());
}

/// `BASERT_WRITE_DOCS=1` writes the document instead.
#[test]
fn the_openapi_document_is_this_one_and_its_paths_are_there() {
    let server = Server::scripted(&Script::new(), Config::default());
    let served = server.get("/openapi.json").json();
    assert_eq!(served, openapi::document());
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let text = serde_json::to_string_pretty(&served).unwrap() + "\n";
    if std::env::var_os("BASERT_WRITE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let known = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        known == text,
        "docs/openapi.json is out of date: BASERT_WRITE_DOCS=1 cargo test --workspace --test http openapi"
    );
    for (path, methods) in served["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "toy");
        let reply = match methods.get("post") {
            Some(_) => server.post(&path, &json!({})),
            None => server.get(&path),
        };
        assert!(reply.status == 200 || reply.status == 400, "{path}: {}", reply.status);
    }
}

#[test]
fn the_paths_of_the_documentation_are_those_of_the_openapi_document() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `POST /") || line.starts_with("| `GET /"));
    let rows: String = rows.collect();
    let mut known: Vec<String> =
        rows.split('`').filter_map(|word| word.find('/').map(|at| word[at..].to_owned())).collect();
    known.retain(|word| word.starts_with('/') && !word.contains(' '));
    known.sort();
    let document = openapi::document();
    let mut paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    paths.sort();
    assert_eq!(known.iter().collect::<Vec<_>>(), paths);
}
