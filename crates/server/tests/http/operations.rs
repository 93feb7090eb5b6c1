//! Keys, limits, drains, and clients that leave.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use basert_engine::Finish;
use basert_server::{ApiKey, Config};
use serde_json::{Value, json};

use crate::common::{Reply, Script, Server, wait_until};

const CHAT: &str = "/v1/chat/completions";

fn hi() -> Value {
    json!({"messages": [{"role": "user", "content": "hi"}]})
}

/// Sends a request and leaves the answer to come.
pub fn begin(server: &Server, path: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = server.connect();
    let head = server.head("POST", path, &[("Content-Length", &body.len().to_string())]);
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    stream
}

/// Reads until `words` have come.
fn read_until(stream: &mut TcpStream, words: &str) -> String {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&seen).contains(words) {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
    String::from_utf8(seen).unwrap()
}

#[test]
fn requests_without_a_key_get_nowhere() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    let config = Config { api_keys: vec!["first".into(), "second".into()], ..Config::default() };
    let server = Server::scripted(&script, config);
    let body = hi().to_string();
    let with = |headers: &[(&str, &str)]| server.post_with(CHAT, body.as_bytes(), headers);
    for headers in [
        &[][..],
        &[("Authorization", "Bearer ")],
        &[("Authorization", "Bearer firs")],
        &[("Authorization", "Bearer firstx")],
        &[("Authorization", "first")],
        &[("x-api-key", "third")],
    ] {
        let reply = with(headers);
        assert_eq!(reply.error().0, 401, "{headers:?}");
        assert_eq!(reply.json()["error"]["code"], "invalid_api_key");
    }
    for headers in
        [("Authorization", "Bearer first"), ("authorization", "bearer second"), ("x-api-key", "first")]
    {
        assert_eq!(with(&[headers]).status, 200, "{headers:?}");
    }
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(server.get("/metrics").status, 401);
    for open in ["/", "/health", "/ready"] {
        assert_eq!(server.get(open).status, 200, "{open}");
    }
    // A key is asked for before anything of the body is read.
    let head = server.head("POST", CHAT, &[("Content-Length", "1000000")]);
    assert_eq!(server.send(&head, b"").status, 401);
}

#[test]
fn more_requests_than_allowed_are_told_when_to_try_again() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    let server = Server::scripted(&script, Config { rate_limit: Some(2), ..Config::default() });
    assert_eq!(server.post(CHAT, &hi()).status, 200);
    assert_eq!(server.post(CHAT, &hi()).status, 200);
    let reply = server.post(CHAT, &hi());
    assert_eq!(reply.error().0, 429);
    let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&seconds));
    assert_eq!(server.get("/v1/models").status, 200);
}

#[test]
fn keys_have_limits_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    let slow = ApiKey { name: Some("slow".to_owned()), rate_limit: Some(1), ..ApiKey::from("a") };
    let narrow = ApiKey { requests: Some(1), rate_limit: Some(100), ..ApiKey::from("b") };
    let api_keys = vec![slow, narrow, ApiKey::from("c")];
    let config = Config { api_keys, rate_limit: Some(2), log_file: Some(log.clone()), ..Config::default() };
    let server = Server::scripted(&script, config);
    let ask = |key: &str| server.post_with(CHAT, hi().to_string().as_bytes(), &[("x-api-key", key)]);
    assert_eq!([ask("a").status, ask("a").status], [200, 429]);
    assert_eq!([ask("c").status, ask("c").status, ask("c").status], [200, 200, 429], "the limit of all keys");
    assert_eq!([(); 4].map(|()| ask("b").status), [200; 4]);
    // One at a time, streamed or not.
    script.steps.store(0, Ordering::SeqCst);
    let mut request = hi();
    request["stream"] = true.into();
    let body = request.to_string();
    let length = body.len().to_string();
    let mut running = server.connect();
    let head = server.head("POST", CHAT, &[("Content-Length", &length), ("x-api-key", "b")]);
    running.write_all(format!("{head}{body}").as_bytes()).unwrap();
    read_until(&mut running, "\"role\":\"assistant\"");
    let reply = ask("b");
    assert_eq!((reply.error().0, reply.header("retry-after")), (429, Some("1")));
    drop(running);
    script.steps.store(usize::MAX, Ordering::SeqCst);
    wait_until("the request has ended", || ask("b").status == 200);
    let log = std::fs::read_to_string(&log).unwrap();
    let names = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].clone());
    let names: Vec<Value> = names.filter(|name| !name.is_null()).take(3).collect();
    assert_eq!(names, ["slow", "slow", "key 3"]);
}

#[test]
fn a_key_s_limit_counts_answers_and_not_requests() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    let narrow = ApiKey { requests: Some(3), ..ApiKey::from("k") };
    let server = Server::scripted(&script, Config { api_keys: vec![narrow], ..Config::default() });
    let with = |path: &str, body: &Value| {
        let reply = server.post_with(path, body.to_string().as_bytes(), &[("x-api-key", "k")]);
        (reply.status, reply.json()["error"]["param"].as_str().map(str::to_owned))
    };
    let answers = |n: usize| json!({"messages": [{"role": "user", "content": "hi"}], "n": n});
    let prompts = |n: usize, list: usize| json!({"prompt": vec!["hi"; list], "n": n});
    // None of them can ever be let in.
    assert_eq!(with(CHAT, &answers(4)), (400, Some("n".to_owned())));
    assert_eq!(with("/v1/completions", &prompts(2, 2)), (400, Some("n".to_owned())));
    for _ in 0..2 {
        assert_eq!(with(CHAT, &answers(3)).0, 200, "what has ended counts no more");
        assert_eq!(with("/v1/completions", &prompts(1, 3)).0, 200);
    }
    script.steps.store(0, Ordering::SeqCst);
    let body = prompts(2, 1).to_string();
    let length = body.len().to_string();
    let mut running = server.connect();
    let head = server.head("POST", "/v1/completions", &[("Content-Length", &length), ("x-api-key", "k")]);
    running.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let metrics = || server.get_with("/metrics", &[("x-api-key", "k")]).text();
    let busy = || metrics().contains("basert_requests_waiting 2\n");
    wait_until("two answers are being made", busy);
    assert_eq!(with(CHAT, &answers(2)).0, 429);
    script.steps.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(Reply::read(running).status, 200);
    wait_until("both have ended", || with(CHAT, &answers(3)).0 == 200);
}

/// `nc -N`, say: its end looks like that of a client that has vanished, whose work has to end within one step.
#[test]
fn a_client_that_closes_its_sending_side_counts_as_gone() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    script.steps.store(0, Ordering::SeqCst);
    let server = Server::scripted(&script, Config::default());
    for stream in [false, true] {
        let mut request = hi();
        request["stream"] = stream.into();
        let mut client = begin(&server, CHAT, &request);
        wait_until("the request is in", || server.busy() == 1);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        server.wait_until_idle();
        let mut rest = String::new();
        client.read_to_string(&mut rest).unwrap();
        assert!(!rest.contains("[DONE]"), "{rest}");
    }
}

#[test]
fn pages_of_a_site_may_read_answers_if_the_server_was_told_so() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    let cors_origins = vec!["https://chat.example:8443".to_owned()];
    let config = Config { cors_origins, api_keys: vec!["k".into()], ..Config::default() };
    let server = Server::scripted(&script, config);
    let ours = ("Origin", "https://chat.example:8443");
    let asks = ("Access-Control-Request-Method", "POST");
    let preflight = |headers: &[(&str, &str)]| server.send(&server.head("OPTIONS", CHAT, headers), b"");
    let reply = preflight(&[ours, asks, ("Access-Control-Request-Headers", "authorization,content-type")]);
    assert_eq!(reply.status, 204, "{}", reply.text());
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://chat.example:8443"));
    assert_eq!(reply.header("access-control-allow-headers"), Some("authorization,content-type"));
    assert!(reply.header("access-control-allow-methods").unwrap().contains("POST"));
    // A refusal can be read too, an answer needs the key all the same.
    let ask = |headers: &[(&str, &str)]| server.post_with(CHAT, hi().to_string().as_bytes(), headers);
    for (headers, status) in [(&[ours][..], 401), (&[ours, ("x-api-key", "k")], 200)] {
        let reply = ask(headers);
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (status, Some(ours.1)));
        assert_eq!(reply.header("vary"), Some("Origin"));
    }
    for other in ["https://chat.example", "http://chat.example:8443", "https://evil.example", "null"] {
        let reply = ask(&[("Origin", other), ("x-api-key", "k")]);
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (403, None), "{other}");
        assert_eq!(preflight(&[("Origin", other), asks]).status, 403, "{other}");
    }
    let anyone = Config { cors_origins: vec!["*".to_owned()], ..Config::default() };
    let server = Server::scripted(&script, anyone);
    let reply = server.post_with(CHAT, hi().to_string().as_bytes(), &[("Origin", "https://evil.example")]);
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://evil.example"));
    // Without the option there is no such header.
    let server = Server::scripted(&script, Config::default());
    let reply = server.post_with(CHAT, hi().to_string().as_bytes(), &[("Origin", "http://localhost:3000")]);
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, None));
}

#[test]
fn a_full_queue_is_a_503_and_nothing_is_lost() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    script.steps.store(0, Ordering::SeqCst);
    let server = Server::scripted(&script, Config { queue: 1, ..Config::default() });
    let waiting: Vec<TcpStream> = (0..5).map(|_| begin(&server, CHAT, &hi())).collect();
    wait_until("five requests are in", || server.busy() == 5);
    let reply = server.post(CHAT, &hi());
    assert_eq!(reply.error().0, 503);
    assert!(reply.header("retry-after").is_some());
    script.steps.store(usize::MAX, Ordering::SeqCst);
    for stream in waiting {
        assert_eq!(Reply::read(stream).status, 200);
    }
    server.wait_until_idle();
    assert_eq!(server.post(CHAT, &hi()).status, 200);
}

#[test]
fn a_key_that_fills_the_queue_leaves_places_for_other_keys() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    script.steps.store(0, Ordering::SeqCst);
    let api_keys = ["greedy", "modest"].map(ApiKey::from).to_vec();
    let server = Server::scripted(&script, Config { api_keys, queue: 4, ..Config::default() });
    let mut request = hi();
    request["stream"] = true.into();
    let body = request.to_string();
    let begin = |key: &str| {
        let length = body.len().to_string();
        let mut stream = server.connect();
        let head = server.head("POST", CHAT, &[("Content-Length", &length), ("x-api-key", key)]);
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        // It has its place.
        read_until(&mut stream, "\"role\":\"assistant\"");
        stream
    };
    let mut waiting: Vec<TcpStream> = (0..7).map(|_| begin("greedy")).collect();
    let refused = server.post_with(CHAT, body.as_bytes(), &[("x-api-key", "greedy")]);
    assert_eq!(refused.error().0, 503, "{}", refused.text());
    waiting.push(begin("modest"));
    script.steps.store(usize::MAX, Ordering::SeqCst);
    for mut stream in waiting {
        read_until(&mut stream, "[DONE]");
    }
}

#[test]
fn a_long_prefill_has_signs_of_life() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    script.steps.store(0, Ordering::SeqCst);
    let config = Config { heartbeat: Duration::from_millis(50), ..Config::default() };
    let server = Server::scripted(&script, config);
    let mut request = hi();
    request["stream"] = true.into();
    let mut stream = begin(&server, CHAT, &request);
    let head = read_until(&mut stream, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
    read_until(&mut stream, "\"role\":\"assistant\"");
    read_until(&mut stream, ": alive\n\n");
    read_until(&mut stream, ": alive\n\n");
    script.steps.store(1, Ordering::SeqCst);
    let seen = read_until(&mut stream, ": prefill ");
    assert!(!seen.contains("content"), "{seen}");
    let progress = read_until(&mut stream, "\n\n");
    let (done, total) = progress.trim().split_once('/').unwrap();
    let (done, total): (usize, usize) = (done.parse().unwrap(), total.parse().unwrap());
    assert!(done == total / 2 && done > 0, "{progress}");
    script.steps.store(usize::MAX, Ordering::SeqCst);
    read_until(&mut stream, "data: [DONE]");
}

#[test]
fn time_that_is_over_ends_a_request() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    script.steps.store(2, Ordering::SeqCst);
    let config = Config { request_timeout: Some(Duration::from_millis(200)), ..Config::default() };
    let server = Server::scripted(&script, config);
    let mut request = hi();
    request["stream"] = true.into();
    let mut stream = begin(&server, CHAT, &request);
    let seen = read_until(&mut stream, "timeout_error");
    assert!(seen.contains("event: error"), "{seen}");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("[DONE]"));
    script.steps.store(0, Ordering::SeqCst);
    assert_eq!(server.post(CHAT, &hi()).error().0, 504);
    server.wait_until_idle();
}

#[test]
fn a_client_that_leaves_frees_the_engine_wherever_it_was() {
    let server = Server::toy(2, 1024, Config::default());
    let request = |stream: bool| json!({"prompt": vec![7; 300], "max_tokens": 500, "stream": stream, "ignore_eos": true});
    let path = "/v1/completions";
    for round in 0..3 {
        for stream in [false, true] {
            // Two run, two wait.
            let mut clients: Vec<TcpStream> =
                (0..4).map(|_| begin(&server, path, &request(stream))).collect();
            match round {
                0 => {}
                1 => wait_until("requests are in", || server.busy() == 4),
                _ if stream => drop(read_until(&mut clients[0], "\"text\"")),
                _ => wait_until("tokens come", || {
                    let slots = server.get("/slots").json();
                    slots[0]["n_decoded"].as_u64().is_some_and(|n| n > 0)
                }),
            }
            drop(clients);
            server.wait_until_idle();
        }
    }
    let found = server.post(path, &json!({"prompt": "x", "max_tokens": 2, "ignore_eos": true})).json();
    assert_eq!(found["usage"]["completion_tokens"], 2);
}

#[test]
fn a_draining_server_ends_what_runs_and_takes_nothing_new() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    script.steps.store(0, Ordering::SeqCst);
    let server = Server::scripted(&script, Config::default());
    let running = begin(&server, CHAT, &hi());
    // Two connections that are there before.
    let mut late = server.connect();
    let mut ready = server.connect();
    wait_until("the request is in", || server.busy() == 1);
    // They are read from, so that they are not idle when the drain begins.
    let body = hi().to_string();
    let head = server.head("POST", CHAT, &[("Content-Length", &body.len().to_string())]);
    late.write_all(&head.as_bytes()[..20]).unwrap();
    let ask = server.head("GET", "/ready", &[]);
    ready.write_all(&ask.as_bytes()[..10]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    server.app.drain();
    late.write_all(&head.as_bytes()[20..]).unwrap();
    late.write_all(body.as_bytes()).unwrap();
    ready.write_all(&ask.as_bytes()[10..]).unwrap();
    for stream in [late, ready] {
        let mut reply = String::new();
        // A connection without a request may also just be closed.
        let _ = { stream }.read_to_string(&mut reply);
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 503"), "{reply}");
    }
    script.steps.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(Reply::read(running).status, 200);
    wait_until("the port is closed", || TcpStream::connect(server.address).is_err());
}

#[test]
fn an_answer_that_the_end_of_the_server_cuts_off_is_told_so() {
    let (mut whole, mut streamed) = (hi(), hi());
    (whole["stream"], streamed["stream"]) = (false.into(), true.into());
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    script.steps.store(0, Ordering::SeqCst);
    let server = Server::scripted(&script, Config::default());
    let whole = begin(&server, CHAT, &whole);
    let mut streamed = begin(&server, CHAT, &streamed);
    wait_until("the requests are in", || server.busy() == 2);
    server.app.drain();
    server.app.stop();
    let reply = Reply::read(whole);
    assert!(reply.error().0 == 503 && reply.text().contains("shut down"), "{}", reply.text());
    let seen = read_until(&mut streamed, "event: error");
    assert!(!seen.contains("[DONE]"));
    read_until(&mut streamed, "shut down");
}

#[test]
fn an_idle_model_gives_its_memory_back_and_comes_again() {
    let config = Config { idle_timeout: Some(Duration::from_millis(100)), ..Config::default() };
    let server = Server::toy(2, 128, config);
    let status = || server.get("/v1/models/toy").json()["status"].as_str().unwrap().to_owned();
    let request = json!({"prompt": "x", "max_tokens": 3, "temperature": 0, "ignore_eos": true});
    let first = server.post("/v1/completions", &request).json();
    wait_until("the model is unloaded", || status() == "unloaded");
    let second = server.post("/v1/completions", &request).json();
    assert_eq!(first["choices"], second["choices"]);
    assert_eq!(server.post("/v1/models/unload", &json!({"model": "toy"})).json()["status"], "unloaded");
    assert_eq!(server.post("/v1/models/load", &json!({})).json()["status"], "loaded");
}

#[test]
fn requests_have_names() {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    let server = Server::scripted(&script, Config::default());
    let named = server.post_with(CHAT, hi().to_string().as_bytes(), &[("X-Request-Id", "my-name")]);
    assert_eq!(named.header("x-request-id"), Some("my-name"));
    let bad = server.post_with(CHAT, hi().to_string().as_bytes(), &[("X-Request-Id", "my name")]);
    assert!(bad.header("x-request-id").unwrap().starts_with("req_"));
    assert!(server.get("/v1/nothing").header("x-request-id").is_some());
}

#[test]
fn the_log_has_json_lines_without_texts_and_can_be_moved_away() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let script = Script::new();
    script.say(&["a secret answer"], Finish::Stop);
    let server = Server::scripted(&script, Config { log_file: Some(log.clone()), ..Config::default() });
    let request = json!({"messages": [{"role": "user", "content": "a secret question"}]});
    assert_eq!(server.post(CHAT, &request).status, 200);
    wait_until("the log is written", || std::fs::read_to_string(&log).unwrap().contains("\"answer\""));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("secret"), "{text}");
    let answer = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let answer = answer.rev().find(|line| line["event"] == "answer").unwrap();
    assert_eq!((answer["outcome"].as_str(), answer["finish"][0].as_str()), (Some("complete"), Some("stop")));
}

#[test]
fn facts_are_shown_where_they_are_looked_for() {
    let server = Server::toy(3, 128, Config::default());
    let models = server.get("/v1/models").json();
    let item = &models["data"][0];
    for key in ["id", "object", "created", "owned_by"] {
        assert!(!item[key].is_null(), "{key}");
    }
    assert_eq!(item["capabilities"]["context"], 128);
    let props = server.get("/props").json();
    assert_eq!((props["total_slots"].as_u64(), props["k_type"].as_str()), (Some(3), Some("f16")));
    assert_eq!(props["default_generation_settings"]["n_ctx"], 128);
    let slots = server.get("/slots").json();
    assert_eq!((slots.as_array().unwrap().len(), slots[0]["is_processing"].as_bool()), (3, Some(false)));
    assert!(server.get("/v1/engine").json()["models"][0]["engine"]["k_type"].is_string());
    server.post("/v1/completions", &json!({"prompt": "abc", "max_tokens": 4, "ignore_eos": true}));
    let metrics = server.get("/metrics").text();
    for line in
        ["basert_generated_tokens_total 4", "basert_time_to_first_token_seconds_count 1", "basert_kv_bytes{"]
    {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}
