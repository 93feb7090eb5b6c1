//! The server as a process: it says where it listens, answers, and ends when it is asked to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::common::{Said, basert, hybrid, llama};

/// A server on a port of its own, and its standard error.
pub fn start(model: &Path, args: &[&str]) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let mut command = basert();
    command.arg("serve").arg(model).args(["--port", "0", "-t", "1"]).args(args);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("listening on http://") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the server ended");
    }
    let address = line.trim().trim_start_matches("listening on http://").to_owned();
    (child, said, address)
}

/// The body of a page.
pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Keys in a file have limits; what a line should not say is named.
#[test]
fn a_file_of_keys_may_set_limits() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    for (text, problem) in [
        ("a\nb rate=none", "line 2: `rate` must be a whole number above 0"),
        ("a requests=0", "line 1: `requests` must be"),
        ("a rate=1 rate=2", "line 1: `rate` is there twice"),
        ("a rate=1\nb\na rate=2", "the API key number 3 was given before"),
        ("a color=red", "line 1: `color` is not"),
        ("a b", "line 1: `b` is not NAME=VALUE"),
        ("# a", "has no keys"),
    ] {
        write(text);
        let output = basert().arg("serve").arg(llama()).arg("--api-key-file").arg(&file).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(problem), "{text:?}: {said}");
    }
    write("first rate=1 name=one\nsecond\n");
    let (mut server, _, address) = start(llama(), &["--api-key-file", file.to_str().unwrap()]);
    let ask = |key: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let head = format!(
            "POST /tokenize HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nx-api-key: {key}\r\n"
        );
        let body = "{\"content\": \"a\"}";
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(["first", "first", "second", "second", "third"].map(ask), ["200", "429", "200", "200", "401"]);
    server.kill().unwrap();
    server.wait().unwrap();
}

fn post(address: &str, path: &str, body: &Value) -> (String, Value) {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), serde_json::from_str(body).unwrap())
}

pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn it_answers_as_complete_does_and_drains_on_a_signal() {
    let (mut child, mut said, address) =
        start(llama(), &["--kv-bits", "8", "--continuous-batching", "2", "--paged-kv"]);
    let request = json!({"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0, "ignore_eos": true});
    let (status, found) = post(&address, "/v1/completions", &request);
    assert_eq!(status, "HTTP/1.1 200 OK");
    let args = [
        "--prompt-ids",
        "1,2,3",
        "--max-tokens",
        "5",
        "--temp",
        "0",
        "--ignore-eos",
        "--json",
        "--kv-bits",
        "8",
    ];
    let alone = basert().arg("complete").arg(llama()).args(args).output().unwrap();
    let alone: Value = serde_json::from_slice(&alone.stdout).unwrap();
    assert_eq!(found["choices"][0]["text"], alone["text"]);
    assert_eq!(found["model"], "llama-tiny");
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut log = String::new();
    said.read_to_string(&mut log).unwrap();
    assert!(log.contains("\"how\":\"drained\""), "{log}");
}

#[test]
fn answers_that_take_longer_than_a_drain_are_told_so() {
    let (mut child, _said, address) = start(llama(), &["--max-context", "2048", "--drain-timeout", "0.001"]);
    let body = json!({"prompt": [1], "max_tokens": 2000, "ignore_eos": true, "stream": true}).to_string();
    let mut stream = TcpStream::connect(&address).unwrap();
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut seen = [0; 64];
    stream.read_exact(&mut seen).unwrap();
    signal(&child, "-TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
    // The answer may have been complete before the signal came.
    assert!(rest.contains("shut down") || rest.contains("[DONE]"), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_second_interrupt_ends_it_at_once() {
    ends_at_once_when_told_twice("-INT", 130);
}

/// It went on draining, whoever asked how often.
#[test]
fn a_second_sigterm_ends_it_at_once() {
    ends_at_once_when_told_twice("-TERM", 143);
}

fn ends_at_once_when_told_twice(name: &str, forced: i32) {
    let (mut child, mut said, address) = start(llama(), &["--max-context", "2048"]);
    let request = json!({"prompt": [1], "max_tokens": 2000, "ignore_eos": true});
    let client = std::thread::spawn(move || {
        let body = request.to_string();
        let mut stream = TcpStream::connect(&address).unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    });
    let _stream = client.join().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    signal(&child, name);
    let mut line = String::new();
    while !line.contains("\"drain\"") && !line.contains("\"end\"") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0);
    }
    signal(&child, name);
    // 0 if the answer was complete before the second.
    let code = child.wait().unwrap().code();
    assert!(code == Some(forced) || code == Some(0), "{code:?}");
}

/// As logrotate does it; and SIGUSR1 drains, as SIGTERM does.
#[test]
fn a_log_that_was_moved_away_is_begun_anew_on_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let (log, moved) = (folder.path().join("log"), folder.path().join("log.1"));
    let (mut child, _said, address) = start(llama(), &["--log-file", log.to_str().unwrap()]);
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let ask = || post(&address, "/v1/completions", &json!({"prompt": [1], "max_tokens": 1})).0;
    ask();
    std::fs::rename(&log, &moved).unwrap();
    ask();
    assert!(!log.exists(), "it writes to the file that it has");
    signal(&child, "-HUP");
    // The signal may come later than some requests.
    let mut asked = 0;
    while read(&log).is_empty() && asked < 1000 {
        ask();
        asked += 1;
    }
    let old = read(&moved);
    assert!(old.contains("\"event\":\"start\"") && old.contains("\"event\":\"answer\""), "{old}");
    ask();
    signal(&child, "-USR1");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let new = read(&log);
    assert!(new.contains("\"event\":\"answer\"") && new.contains("\"how\":\"drained\""), "{new}");
    assert!(new.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{new}");
    assert_eq!(read(&moved), old, "nothing more goes to the old one");
}

#[test]
fn what_a_flag_cannot_mean_is_refused_before_a_model_is_loaded() {
    for (flag, value, problem) in [
        ("--host", "nowhere", "invalid IP address"),
        ("--api-key", "", "a key is made of printable ASCII characters"),
        ("--api-key", "two words", "a key is made of printable ASCII characters"),
        ("--allowed-host", "", "must be a name such as chat.example"),
        ("--allowed-host", "https://chat.example", "must be a name such as chat.example"),
        ("--allowed-host", "chat.example:8080", "without a port"),
        ("--cors-origin", "chat.example", "must be http(s)://NAME"),
        ("--max-context", "0", "at least 1"),
        ("--max-tokens", "0", "at least 1"),
        ("--max-batch-size", "0", "at least 1"),
        ("--continuous-batching", "0", "at least 1"),
        ("--prefix-cache", "much", "is not a size such as"),
        ("--prefill-tokens", "0", "must be auto or a whole number above 0"),
        ("--queue", "-1", "unexpected argument"),
        ("--rate-limit", "0", "0 is not in 1.."),
        ("--request-timeout", "0", "must be a number of seconds above 0"),
        ("--idle-timeout", "inf", "must be a number of seconds above 0"),
        ("--drain-timeout", "nan", "must be a number of seconds above 0"),
    ] {
        let output = basert().args(["serve", "no-such-model", flag, value]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(problem), "{flag} {value:?}: {said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/file");
    let missing = missing.to_str().unwrap();
    for flag in ["--api-key-file", "--chat-template", "--log-file", "--prefix-cache-file"] {
        run!("serve", llama(), "--port", "0", flag, missing).fails_with(&["missing"]);
    }
    for second in [["--max-context", "64"], ["--max-batch-size", "2"]] {
        let first = if second[0] == "--max-context" { "--context" } else { "--continuous-batching" };
        let output = basert().args(["serve", "m", first, "32"]).args(second).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{first} and {second:?}");
    }
}

#[test]
fn a_port_that_is_taken_is_an_error_with_the_address() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    run!("serve", llama(), "--port", &port, "-t", "1").fails_with(&["cannot listen on", &port]);
    run!("serve", llama(), llama(), "--port", "0").fails_with(&["two models are called llama-tiny"]);
}

/// Asks for a few tokens; the answer and the number of prompt tokens that were not read again.
fn ask(address: &str, prompt: &[u32]) -> (Value, u64) {
    let body = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": true});
    let (status, mut found) = post(address, "/v1/completions", &body);
    assert_eq!(status, "HTTP/1.1 200 OK", "{found}");
    let cached = found["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (found["choices"][0]["text"].take(), cached)
}

fn end(mut child: Child) {
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn kept_prompts_outlive_a_restart_and_foreign_or_damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kept");
    let path = file.to_str().unwrap();
    let prompt: Vec<u32> = (0..150).map(|i| i * 7 % 250).collect();
    let args = ["-c", "512", "--prefix-cache", "64MiB", "--prefix-cache-file", path];
    let (child, _said, address) = start(hybrid(), &args);
    let (cold, cached) = ask(&address, &prompt);
    assert_eq!(cached, 0);
    end(child);
    let kept = std::fs::read(&file).unwrap();

    let (child, _said, address) = start(hybrid(), &args);
    assert_eq!(ask(&address, &prompt), (cold, 128), "the first request after the restart");
    let props: Value = serde_json::from_str(&get(&address, "/props")).unwrap();
    let counters = &props["prefix_cache"];
    assert_eq!((&counters["hits"], &counters["misses"]), (&1.into(), &0.into()), "{counters}");
    assert_eq!((&counters["tokens_asked"], &counters["tokens_saved"]), (&150.into(), &128.into()));
    let slots: Value = serde_json::from_str(&get(&address, "/slots")).unwrap();
    assert_eq!(&slots[0]["prefix_cache"], counters);
    let metrics = get(&address, "/metrics");
    for line in [
        "hits_total{model=\"qwen35-dense-tiny\"} 1",
        "tokens_saved_total{model=\"qwen35-dense-tiny\"} 128",
        "evicted_snapshots_total{model=\"qwen35-dense-tiny\"} 0",
    ] {
        assert!(metrics.contains(&format!("basert_prefix_cache_{line}")), "{metrics}");
    }
    end(child);

    let refused = |model: &Path, more: &[&str], words: &[&str]| {
        let fixed = ["--port", "0", "-t", "1"];
        let said = basert().arg("serve").arg(model).args(fixed).args(args).args(more).output().unwrap();
        Said::from(said).fails_with(words);
    };
    refused(hybrid(), &["--kv-bits", "8"], &["kept", "K f16"]);
    refused(llama(), &[], &["kept", "model"]);
    let mut damaged = kept;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&file, damaged).unwrap();
    refused(hybrid(), &[], &["kept", "damaged"]);
    run!("serve", hybrid(), llama(), "--prefix-cache-file", &file).fails_with(&["one model"]);
    run!("serve", hybrid(), "--prefix-cache", "0", "--prefix-cache-file", &file).fails_with(&["no room"]);
}

#[test]
fn metrics_say_what_guessing_brought_and_what_it_took() {
    let (child, _said, address) = start(hybrid(), &["-c", "512", "--speculative", "3"]);
    let prompt: Vec<u32> = [1, 2, 3, 4].repeat(10);
    let body = json!({"prompt": prompt, "max_tokens": 100, "temperature": 0, "ignore_eos": true});
    assert_eq!(post(&address, "/v1/completions", &body).0, "HTTP/1.1 200 OK");
    let metrics = get(&address, "/metrics");
    let number = |name: &str| -> f64 {
        let line =
            metrics.lines().find_map(|line| line.strip_prefix(&format!("basert_{name}_total "))).unwrap();
        line.parse().unwrap()
    };
    assert_eq!(number("answer_steps") + number("accepted_tokens"), 99.0, "the prompt's step gave one token");
    assert!(number("drafted_tokens") >= number("accepted_tokens") && number("drafted_tokens") > 0.0);
    assert!(number("drafting_seconds") > 0.0);
    end(child);
}

/// The commands of public reports run as they are written.
#[test]
fn basert_serve_is_another_name() {
    let run = |command: &mut Command, args: &[&str]| {
        let output = command.args(args).env_remove("BASERT_API_KEY").output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let alias = || Command::new(env!("CARGO_BIN_EXE_basert-serve"));
    for args in [&["--help"][..], &[], &["--port", "x", "demo"], &["no such model"]] {
        let found = run(&mut alias(), args);
        assert_eq!(found, run(basert().arg("serve"), args), "{args:?}");
        assert!(!found.2.contains("basert-serve"), "{found:?}");
    }
    let alone = tempfile::tempdir().unwrap();
    let moved = alone.path().join("basert-serve");
    std::fs::copy(env!("CARGO_BIN_EXE_basert-serve"), &moved).unwrap();
    let (status, _, said) = run(&mut Command::new(moved), &["--help"]);
    assert!(status == Some(1) && said.contains("cannot run") && said.contains("hint:"), "{said}");
}
