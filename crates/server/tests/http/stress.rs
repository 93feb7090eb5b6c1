//! Many clients who come and go as they like: those who stay get the answer that they would get alone, and nothing is left
//! behind.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use basert_server::Config;
use serde_json::{Value, json};

use crate::common::{Reply, Server};

const CLIENTS: u64 = 64;

fn request(kind: u64) -> Value {
    let prompt: Vec<u64> = (0..3 + 9 * kind).map(|j| (17 * kind + 29 * j + 1) % 250).collect();
    json!({"prompt": prompt, "max_tokens": 2 + kind, "seed": kind, "temperature": kind % 2, "ignore_eos": true,
        "stream": kind.is_multiple_of(3)})
}

fn text(reply: &Reply, kind: u64) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text());
    if kind.is_multiple_of(3) {
        let pieces = reply.events().into_iter();
        pieces.map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned()).collect()
    } else {
        reply.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    }
}

fn storm(time: Duration, least: usize) {
    let config = Config { queue: 4 * CLIENTS as usize, ..Config::default() };
    let server = Server::toy(4, 512, config);
    let alone: Vec<String> =
        (0..8).map(|kind| text(&server.post("/v1/completions", &request(kind)), kind)).collect();
    let threads = thread_count();
    let (complete, left) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, alone, complete, left) = (&server, &alone, &complete, &left);
            scope.spawn(move || {
                let mut dice = client.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                while start.elapsed() < time || complete.load(Ordering::SeqCst) < least {
                    // xorshift
                    dice ^= dice << 13;
                    dice ^= dice >> 7;
                    dice ^= dice << 17;
                    let kind = dice % 8;
                    let body = request(kind).to_string();
                    let head = server.head(
                        "POST",
                        "/v1/completions",
                        &[("Content-Length", &body.len().to_string())],
                    );
                    let mut stream = server.connect();
                    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
                    if dice >> 8 & 1 == 0 {
                        assert_eq!(text(&Reply::read(stream), kind), alone[kind as usize], "kind {kind}");
                        complete.fetch_add(1, Ordering::SeqCst);
                    } else {
                        thread::sleep(Duration::from_millis(dice >> 16 & 63));
                        let mut some = [0; 100];
                        if dice >> 24 & 1 == 0 {
                            let _ = stream.read(&mut some);
                        }
                        left.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    server.wait_until_idle();
    assert!(complete.load(Ordering::SeqCst) >= least, "{complete:?}");
    assert!(left.load(Ordering::SeqCst) > 0);
    let slots = server.get("/slots").json();
    assert!(slots.as_array().unwrap().iter().all(|slot| slot["is_processing"] == false));
    if let (Some(before), Some(after)) = (threads, thread_count()) {
        assert!(after <= before + 2, "{before} threads before, {after} after");
    }
    // All sequences are there: as many long answers as fit run at a time.
    for kind in 0..8 {
        assert_eq!(text(&server.post("/v1/completions", &request(kind)), kind), alone[kind as usize]);
    }
}

/// Threads of this process; other tests may run beside this one, so it is a bound for leaks and no more.
fn thread_count() -> Option<usize> {
    std::env::var_os("BASERT_STRESS")?;
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

#[test]
fn sixty_four_clients_come_and_go() {
    // `BASERT_STRESS=60 cargo test -p basert-server --test http sixty_four -- --nocapture` goes on for a minute.
    let seconds = std::env::var("BASERT_STRESS").ok().and_then(|seconds| seconds.parse().ok());
    storm(Duration::from_secs(seconds.unwrap_or(0)), 64);
}
