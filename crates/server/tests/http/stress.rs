//! Many clients who come and go as they like: those who stay get the answer that they would get alone, and nothing is left
//! behind.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use basert_server::Config;
use serde_json::{Value, json};

use crate::common::{Reply, Server, wait_until};

const CLIENTS: u64 = 64;
const SLOTS: usize = 4;
const CONTEXT: usize = 512;

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

/// What a process has; of nothing of it may there be more after the storm.
#[derive(Debug)]
struct Held {
    threads: usize,
    files: usize,
    /// Bytes in memory.
    resident: usize,
}

impl Held {
    /// `None` if other tests may run beside this one, or where the system does not tell.
    fn now() -> Option<Held> {
        seconds()?;
        let count = |path| Some(std::fs::read_dir(path).ok()?.count());
        let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
        let resident = pages.split(' ').nth(1)?.parse::<usize>().ok()? * 4096;
        Some(Held { threads: count("/proc/self/task")?, files: count("/proc/self/fd")?, resident })
    }
}

fn seconds() -> Option<u64> {
    std::env::var("BASERT_STRESS").ok().and_then(|seconds| seconds.parse().ok())
}

/// One client: asks, and waits or leaves, until `goes_on` says no.
fn client(server: &Server, number: u64, alone: &[String], counts: &Counts, goes_on: &dyn Fn() -> bool) {
    let mut dice = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    while goes_on() {
        // xorshift
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let kind = dice % 8;
        let body = request(kind).to_string();
        let head = server.head("POST", "/v1/completions", &[("Content-Length", &body.len().to_string())]);
        let mut stream = server.connect();
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        if dice >> 8 & 1 == 0 {
            assert_eq!(text(&Reply::read(stream), kind), alone[kind as usize], "kind {kind}");
            counts.complete.fetch_add(1, Ordering::SeqCst);
        } else {
            thread::sleep(Duration::from_millis(dice >> 16 & 63));
            let mut some = [0; 100];
            if dice >> 24 & 1 == 0 {
                let _ = stream.read(&mut some);
            }
            counts.left.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    complete: AtomicUsize,
    left: AtomicUsize,
}

impl Counts {
    fn complete(&self) -> usize {
        self.complete.load(Ordering::SeqCst)
    }
}

/// All clients at a time, for so long, and until so many answers are complete.
fn storm(server: &Server, alone: &[String], time: Duration, least: usize) -> Counts {
    let counts = Counts::default();
    let start = Instant::now();
    let goes_on = || start.elapsed() < time || counts.complete() < least;
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (counts, goes_on) = (&counts, &goes_on);
            scope.spawn(move || client(server, number, alone, counts, goes_on));
        }
    });
    server.wait_until_idle();
    counts
}

/// Requests that need every sequence, and every page of it, at a time.
fn fill(server: &Server) {
    let prompt: Vec<u64> = (0..CONTEXT as u64 - 4).map(|j| j % 250).collect();
    let body = json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true, "temperature": 0});
    thread::scope(|scope| {
        let asked: Vec<_> =
            (0..SLOTS).map(|_| scope.spawn(|| server.post("/v1/completions", &body).json())).collect();
        for answer in asked {
            let answer = answer.join().unwrap();
            assert_eq!(answer["usage"]["completion_tokens"], 4, "{answer}");
        }
    });
}

#[test]
fn sixty_four_clients_come_and_go() {
    // `BASERT_STRESS=60 cargo test --workspace --test http sixty_four` goes on for a minute, and looks at threads, files and
    // memory, which needs the process for itself.
    let config = Config { queue: 4 * CLIENTS as usize, ..Config::default() };
    let server = Server::toy(SLOTS, CONTEXT, config);
    let ask = |kind: u64| text(&server.post("/v1/completions", &request(kind)), kind);
    let alone: Vec<String> = (0..8).map(ask).collect();
    let time = Duration::from_secs(seconds().unwrap_or(0));
    // What grows once only has grown after the first clients: the allocator's arenas take some thousand requests.
    storm(&server, &alone, time / 4, CLIENTS as usize);
    fill(&server);
    let before = Held::now();
    let counts = storm(&server, &alone, time, CLIENTS as usize);
    assert!(counts.left.load(Ordering::SeqCst) > 0, "{counts:?}");
    let slots = server.get("/slots").json();
    assert!(slots.as_array().unwrap().iter().all(|slot| slot["is_processing"] == false));
    fill(&server);
    assert_eq!((0..8).map(ask).collect::<Vec<_>>(), alone);
    let Some(before) = before else { return };
    // Threads that helped out go when they have been idle for ten seconds.
    let is_calm = || Held::now().is_some_and(|now| now.threads <= before.threads);
    wait_until("threads that helped out have gone", is_calm);
    let after = Held::now().unwrap();
    println!("{counts:?}; {before:?} before, {after:?} after");
    assert!(after.files <= before.files + 4);
    assert!(after.resident <= before.resident + (16 << 20));
}
