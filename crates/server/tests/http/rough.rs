//! Clients that are hostile, broken, or only naive.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use basert_engine::Finish;
use basert_server::Config;
use serde_json::{Value, json};

use crate::common::{Reply, Script, Server, wait_until};
use crate::operations::begin;

const CHAT: &str = "/v1/chat/completions";

fn hi() -> Value {
    json!({"messages": [{"role": "user", "content": "hi"}]})
}

fn scripted(config: Config) -> (Script, Server) {
    let script = Script::new();
    script.say(&["ok"], Finish::Stop);
    let server = Server::scripted(&script, config);
    (script, server)
}

#[test]
fn a_body_with_a_byte_order_mark_is_json() {
    let (_, server) = scripted(Config::default());
    assert_eq!(server.post_with(CHAT, format!("\u{feff}{}", hi()).as_bytes(), &[]).status, 200);
    assert_eq!(server.post_with(CHAT, format!("\u{feff}\u{feff}{}", hi()).as_bytes(), &[]).error().0, 400);
}

#[test]
fn a_compressed_body_is_told_so() {
    let (_, server) = scripted(Config::default());
    let ask = |coding| server.post_with(CHAT, hi().to_string().as_bytes(), &[("Content-Encoding", coding)]);
    assert_eq!(ask("gzip").error(), (415, None));
    assert_eq!(ask("identity").status, 200);
}

#[test]
fn the_largest_number_that_a_client_knows_is_no_limit() {
    let (_, server) = scripted(Config::default());
    for most in [i64::MAX as u64, u64::MAX] {
        for field in ["max_tokens", "max_completion_tokens", "top_k", "thinking_budget"] {
            let found = server.chat(json!({field: most}));
            assert_eq!(found["choices"][0]["message"]["content"], "ok", "{field} {found}");
        }
    }
}

#[test]
fn a_health_check_of_http_1_0_names_no_host_and_others_name_one() {
    let (_, server) = scripted(Config::default());
    for (version, hosts, status) in [
        ("1.0", "", 200),
        ("1.1", "", 400),
        ("1.1", "Host: localhost\r\nHost: evil.example\r\n", 400),
        ("1.0", "Host: evil.example\r\n", 403),
        ("1.0", "Origin: https://evil.example\r\n", 403),
    ] {
        let head = format!("GET /health HTTP/{version}\r\nConnection: close\r\n{hosts}\r\n");
        assert_eq!(server.send(&head, b"").status, status, "{head}");
    }
}

#[test]
fn a_path_that_is_no_text_leads_nowhere() {
    let (_, server) = scripted(Config::default());
    assert_eq!(server.get("/v1/models/%ff").error().0, 404);
    let without_v1 = server.get("/models");
    assert!(without_v1.error().0 == 404 && without_v1.text().contains("/v1"), "{}", without_v1.text());
}

#[test]
fn a_body_that_comes_byte_by_byte_is_not_waited_for() {
    let (_, server) = scripted(Config { read_timeout: Duration::from_millis(300), ..Config::default() });
    for kind in [("Content-Length", "1000000"), ("Transfer-Encoding", "chunked")] {
        let mut stream = server.connect();
        stream.write_all(server.head("POST", CHAT, &[kind]).as_bytes()).unwrap();
        let mut reader = stream.try_clone().unwrap();
        let answered = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut reply = [0; 12];
                reader.read_exact(&mut reply).unwrap();
                answered.store(true, Ordering::SeqCst);
                assert_eq!(&reply, b"HTTP/1.1 408");
            });
            // Sooner or later the connection is gone.
            while !answered.load(Ordering::SeqCst) && stream.write_all(b"1\r\n \r\n").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
    }
}

#[test]
fn an_answer_that_nobody_reads_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let write_timeout = Duration::from_millis(300);
    let (script, server) =
        scripted(Config { write_timeout, log_file: Some(log.clone()), ..Config::default() });
    script.say_bytes(&[b'x'; 4000], Finish::Stop);
    // More than the buffers of a connection hold.
    let request =
        json!({"messages": hi()["messages"], "stream": true, "n": 16, "logprobs": true, "top_logprobs": 20});
    let mut stream = begin(&server, CHAT, &request);
    wait_until("the answer is given up", || {
        std::fs::read_to_string(&log).unwrap().contains("\"outcome\":\"cancelled\"")
    });
    server.wait_until_idle();
    let mut rest = Vec::new();
    // Whether it ends well or badly, it is not whole.
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"));
}

/// A request that does not end before the script takes steps, and an unload that waits for it.
fn unload_behind_a_request(script: &Script, server: &Server) -> [TcpStream; 2] {
    script.steps.store(0, Ordering::SeqCst);
    let running = begin(server, CHAT, &hi());
    wait_until("a request is in", || server.busy() == 1);
    let unload = begin(server, "/v1/models/unload", &json!({}));
    thread::sleep(Duration::from_millis(50));
    [running, unload]
}

#[test]
fn requests_that_come_after_an_unload_wait_for_it() {
    let (script, server) = scripted(Config::default());
    let [running, unload] = unload_behind_a_request(&script, &server);
    let later = begin(&server, CHAT, &hi());
    wait_until("another one is in", || server.busy() == 2);
    script.steps.store(usize::MAX, Ordering::SeqCst);
    for stream in [running, unload, later] {
        assert_eq!(Reply::read(stream).status, 200);
    }
    assert_eq!(script.loads.load(Ordering::SeqCst), 2, "the later one has loaded the model again");
}

#[test]
fn a_load_after_an_unload_has_the_last_word() {
    let (script, server) = scripted(Config::default());
    let [running, unload] = unload_behind_a_request(&script, &server);
    assert_eq!(server.post("/v1/models/load", &json!({})).json()["status"], "loaded");
    assert_eq!(Reply::read(unload).json()["status"], "loaded");
    script.steps.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(Reply::read(running).status, 200);
    assert_eq!(server.get("/v1/models/toy").json()["status"], "loaded");
    assert_eq!(script.loads.load(Ordering::SeqCst), 1);
}

#[test]
fn thousands_of_choices_are_no_grammar_that_is_too_large() {
    let server = Server::toy(2, 512, Config::default());
    let choices: Vec<String> = (0..5000).map(|i| format!("label-{i}")).collect();
    let request = json!({"prompt": "x", "max_tokens": 30, "guided_choice": choices});
    let found = server.post("/v1/completions", &request).json();
    let text = found["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{found}"));
    assert!(choices.iter().any(|choice| choice == text), "{found}");
    for (choices, text) in [(json!(["", "é"]), ["", "é"]), (json!([""]), ["", ""])] {
        let request = json!({"prompt": "x", "max_tokens": 30, "guided_choice": choices});
        let found = server.post("/v1/completions", &request).json();
        assert!(text.contains(&found["choices"][0]["text"].as_str().unwrap()), "{found}");
    }
}

#[test]
fn a_client_that_leaves_several_answers_leaves_none_behind() {
    let server = Server::toy(2, 1024, Config::default());
    let prompt: Vec<u32> = (0..600).map(|i| i % 250).collect();
    for stream in [false, true] {
        for pause in [0, 5, 20] {
            let request =
                json!({"prompt": prompt, "n": 4, "max_tokens": 400, "ignore_eos": true, "stream": stream});
            let client = begin(&server, "/v1/completions", &request);
            wait_until("it is in", || server.busy() > 0);
            thread::sleep(Duration::from_millis(pause));
            drop(client);
            server.wait_until_idle();
        }
    }
    // Answers that had waited for the first one to read their prompt have not come in since.
    thread::sleep(Duration::from_millis(50));
    assert_eq!(server.busy(), 0);
}
