//! Many clients who come and go as they like: those who stay get the answer that they would get alone, and nothing is left
//! behind.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use basert_server::Config;
use serde_json::{Value, json};

use crate::common::{Reply, Server, wait_until};
use crate::heap::Heap;

const CLIENTS: u64 = 64;
const SLOTS: usize = 4;
const CONTEXT: usize = 512;
/// Bytes that may be on the heap at one time and not at another, as room of vectors. The thousands of requests of a minute
/// leave more if every one leaves ten.
///
/// What the system counts as the process's memory is no measure: in five minutes it has grown by 8.8 MB, the heap by 118 bytes, for
/// 75,024 requests. It is the allocator's arenas, of which every thread that helps out may get one: in 40 seconds it grows by
/// 12.6 MB, and by 3.8 MB with `MALLOC_ARENA_MAX=1`.
const NOISE: isize = 16 << 10;

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
struct Held {
    threads: usize,
    files: usize,
    heap: Heap,
    /// Pages in memory as the system counts them.
    resident: String,
}

impl Held {
    /// Once threads that helped out have gone, which they do when they have been idle for ten seconds, so that there are no
    /// more than `threads`. `None` if other tests may run beside this one, or where the system does not tell.
    fn calm(threads: usize) -> Option<Held> {
        seconds()?;
        let count = |path| Some(std::fs::read_dir(path).ok()?.count());
        wait_until("threads that helped out have gone", || self::threads().is_none_or(|now| now <= threads));
        let (heap, files) = (Heap::now(), count("/proc/self/fd")?);
        let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
        let resident = pages.split(' ').nth(1)?.to_owned();
        Some(Held { threads: self::threads()?, files, heap, resident })
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Held { threads, files, heap, resident } = self;
        write!(
            f,
            "{threads} threads, {files} files, {} bytes on the heap, {resident} pages in memory",
            heap.bytes
        )
    }
}

fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
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
    let threads = threads().unwrap_or(usize::MAX);
    let ask = |kind: u64| text(&server.post("/v1/completions", &request(kind)), kind);
    let alone: Vec<String> = (0..8).map(ask).collect();
    let time = Duration::from_secs(seconds().unwrap_or(0));
    // What grows once only has grown after the first clients. Kept prefixes are the same before and after.
    storm(&server, &alone, time / 4, CLIENTS as usize);
    fill(&server);
    assert_eq!((0..8).map(ask).collect::<Vec<_>>(), alone);
    let before = Held::calm(threads);
    let counts = storm(&server, &alone, time, CLIENTS as usize);
    assert!(counts.left.load(Ordering::SeqCst) > 0, "{counts:?}");
    let is_idle = |slot: &Value| slot["is_processing"] == false;
    assert!(server.get("/slots").json().as_array().unwrap().iter().all(is_idle));
    fill(&server);
    assert_eq!((0..8).map(ask).collect::<Vec<_>>(), alone);
    let Some((before, after)) = before.zip(Held::calm(threads)) else { return };
    println!("{counts:?}; {before} before, {after} after");
    let more = after.heap.more_than(&before.heap);
    assert!(after.files <= before.files + 4);
    assert!(after.heap.bytes <= before.heap.bytes + NOISE, "more blocks (size, number): {more:?}");
}
