//! The plan is a contract: what a running process really takes is what was planned, and its buffers are so to the byte.
//!
//! Every case runs in a process of its own, which this test starts from its own executable: resident memory is a
//! process's, and another engine's would be counted with it.

use std::path::Path;
use std::process::Command;

use crate::common::{self, KV_F16, fixture};
use basert_convert::{Options as ConvertOptions, Silent, Synthetic, synthesize};
use basert_engine::{Engine, KvTypes, Options, TokenRun, WantLogits};
use basert_format::Output;
use basert_kernels::KvDtype;
use basert_model::Config;

/// Names the file and the case to a child.
const CASE: &str = "BASERT_TEST_RESIDENT_CASE";
const TEST: &str = "resident::resident_memory_is_the_plan";

const SEQUENCES: usize = 8;
const VOCAB: usize = 400_000;
const CONTEXT: usize = 128;
/// Contiguous, and paged.
const PAGES: [Option<usize>; 2] = [None, Some(64)];
const TYPES: [KvTypes; 4] = [
    KV_F16,
    KvTypes { k: KvDtype::Q8, v: KvDtype::Q8 },
    KvTypes { k: KvDtype::Q8, v: KvDtype::Q4 },
    KvTypes { k: KvDtype::Q4, v: KvDtype::Q4 },
];

/// A hybrid with 256 KiB of f16 cache for a token and much less else than cache and weights.
fn wide_hybrid(path: &Path) {
    let config = std::fs::read(fixture("qwen35-dense-tiny").join("config.json")).unwrap();
    let (arch, mut config) = Config::from_hf(&serde_json::from_slice(&config).unwrap(), None).unwrap();
    config.mtp_num_hidden_layers = 0;
    (config.num_attention_heads, config.num_key_value_heads, config.head_dim) = (128, 128, 256);
    config.hidden_size = 64;
    config.vocab_size = VOCAB;
    let hybrid = config.hybrid.as_mut().unwrap();
    hybrid.linear_num_value_heads = 10;
    let model = Synthetic { name: "wide".to_owned(), arch, config, assumptions: Vec::new() };
    let options = ConvertOptions { target: "base-q4".parse().unwrap(), ..ConvertOptions::default() };
    drop(synthesize(&model, &Output::new(path), &options, &mut Silent).unwrap());
}

/// Bytes of this process in memory; `None` where the system does not say.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().unwrap() * 1024)
}

/// Loads the model, fills every sequence to the end of its context, and compares.
fn fill(path: &Path, kv: KvTypes, page_tokens: Option<usize>) {
    let Some(before) = resident() else { return };
    let options = Options {
        kv,
        page_tokens,
        sequences: SEQUENCES,
        context: Some(CONTEXT),
        step_tokens: 64,
        logit_rows: 4,
        threads: Some(2),
        ..Options::default()
    };
    let mut engine = Engine::open(path, &options).unwrap();
    let plan = engine.selected().memory;
    assert!(plan.kv > 70 << 20 && plan.weights_mapped > 20 << 20, "{plan:?}");
    let tokens: Vec<u32> = (0..CONTEXT as u32).map(|i| i * 1009 % VOCAB as u32).collect();
    for _ in 0..SEQUENCES {
        let sequence = engine.new_sequence().unwrap();
        for (tokens, logits) in [
            (&tokens[..64], WantLogits::None),
            (&tokens[64..124], WantLogits::None),
            (&tokens[124..], WantLogits::All),
        ] {
            engine.step(&[TokenRun { sequence, tokens, logits }]).unwrap();
        }
    }
    let grown = resident().unwrap() - before;
    assert_eq!(engine.held_memory(), plan, "the engine's own account");
    let allowed = plan.total() / 50 + (16 << 20);
    let difference = grown.abs_diff(plan.total());
    println!("{kv} {page_tokens:?}: planned {}, taken {grown}, {difference} apart", plan.total());
    assert!(difference <= allowed, "{kv} {page_tokens:?}: {grown} bytes taken, {plan:?}");
}

#[test]
fn resident_memory_is_the_plan() {
    if let Ok(case) = std::env::var(CASE) {
        let (index, path) = case.split_once(' ').unwrap();
        let index: usize = index.parse().unwrap();
        return fill(Path::new(path), TYPES[index / 2], PAGES[index % 2]);
    }
    let model = common::Converted::with(wide_hybrid);
    for index in 0..TYPES.len() * PAGES.len() {
        let case = format!("{index} {}", model.path.display());
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(CASE, case)
            .status();
        assert!(child.unwrap().success(), "case {index}");
    }
}
