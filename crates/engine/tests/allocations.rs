//! A step allocates nothing, not even the first: caches, activations and the kernels' scratch are taken at load.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)]

#[path = "engine/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use basert_engine::{Engine, KvTypes, Options, SequenceId, TokenRun, WantLogits};
use basert_kernels::KvDtype;
use common::{KV_F16, converted, fixture};

/// Counts what is asked of the system, by any thread.
struct Counting;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.fetch_add(1, Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PROMPT: usize = 37;

fn run(sequence: SequenceId, tokens: &[u32], logits: WantLogits) -> TokenRun<'_> {
    TokenRun { sequence, tokens, logits }
}

/// A prompt of one sequence, then tokens of two at once. Returns the number of allocations.
fn work(engine: &mut Engine) -> usize {
    let prompt: Vec<u32> = (0..PROMPT as u32).collect();
    let [a, b] = [(); 2].map(|()| engine.new_sequence().unwrap());
    let before = TAKEN.load(Relaxed);
    engine.step(&[run(a, &prompt, WantLogits::Last)]).unwrap();
    engine.step(&[run(b, &prompt[..5], WantLogits::None)]).unwrap();
    for token in 0..4 {
        engine.step(&[run(a, &[token], WantLogits::Last), run(b, &[token + 1], WantLogits::Last)]).unwrap();
    }
    let taken = TAKEN.load(Relaxed) - before;
    [a, b].into_iter().for_each(|sequence| engine.release(sequence));
    taken
}

/// One test, for the counter is the process's.
#[test]
fn no_step_allocates() {
    let narrow = KvTypes { k: KvDtype::Q8, v: KvDtype::Q4 };
    for model in ["toy-hybrid", "toy-moe", "llama-tiny"] {
        for (target, kv) in [("base-q4", KV_F16), ("base-q8", narrow), ("bf16", KV_F16)] {
            let bundle = converted(&fixture(model), target);
            let options = Options {
                kv,
                sequences: 2,
                context: Some(128),
                page_tokens: Some(32),
                logit_rows: 2,
                threads: Some(1),
                ..Options::default()
            };
            let mut engine = Engine::open(&bundle.path, &options).unwrap();
            assert_eq!(work(&mut engine), 0, "allocations in {model} as {target}");
        }
    }
}
