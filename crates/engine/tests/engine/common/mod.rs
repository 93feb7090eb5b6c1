//! Golden models: where they are, how they become `.base` files, what the references say.
#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use basert_convert::safetensors::SafetensorsFile;
use basert_convert::{Options as ConvertOptions, Silent, Target, convert};
use basert_engine::{Engine, KvTypes, Options, TokenRun, WantLogits};
use basert_kernels::KvDtype;
use serde::Deserialize;

pub const KV_F32: KvTypes = KvTypes { k: KvDtype::F32, v: KvDtype::F32 };
pub const KV_F16: KvTypes = KvTypes { k: KvDtype::F16, v: KvDtype::F16 };

/// The GGUF models with references among the shared fixtures.
pub const GGUF_FIXTURES: [&str; 8] = [
    "llama-tiny-F16",
    "qwen3-dense-tiny-Q4_0",
    "qwen3-dense-tiny-Q4_1",
    "qwen3-dense-tiny-Q5_K_M",
    "qwen35-dense-2l-BF16",
    "qwen35-dense-2l-Q8_0",
    "qwen35-dense-2l-Q4_K_M",
    "qwen35-moe-2l-Q4_K_M",
];

/// A model of the repository's own fixtures.
pub fn fixture(name: &str) -> PathBuf {
    repository().join("tests/fixtures").join(name)
}

/// A model that may not be copied into the repository; `None` (said on stderr) where it is not at hand.
pub fn shared_fixture(name: &str) -> Option<PathBuf> {
    let path = repository().join("../shared/fixtures").join(name);
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var_os("BASERT_REQUIRE_FIXTURES").is_some_and(|v| v == "1");
    assert!(!required, "{} is required and missing", path.display());
    eprintln!("skipped: {} is not there", path.display());
    None
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Converts `source` into a fresh folder.
pub struct Converted {
    pub path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Converted {
    /// A file that `make` writes.
    pub fn with(make: impl FnOnce(&Path)) -> Converted {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.base");
        make(&path);
        Converted { path, _folder: folder }
    }
}

pub fn converted(source: &Path, target: &str) -> Converted {
    let target: Target = target.parse().unwrap();
    converted_as(source, &ConvertOptions { target, ..ConvertOptions::default() })
}

pub fn converted_as(source: &Path, options: &ConvertOptions) -> Converted {
    let convert = |path: &Path| convert(source, path, options, &mut Silent);
    Converted::with(|path| convert(path).map(drop).unwrap_or_else(|e| panic!("{}: {e}", source.display())))
}

#[derive(Deserialize)]
pub struct Golden {
    pub prompts: Vec<Prompt>,
    #[serde(default)]
    pub greedy: Vec<Greedy>,
}

#[derive(Deserialize)]
pub struct Prompt {
    pub name: String,
    pub ids: Vec<u32>,
    pub positions: Vec<usize>,
    pub argmax: Vec<u32>,
}

#[derive(Deserialize)]
pub struct Greedy {
    pub prompt: String,
    pub ids: Vec<u32>,
    pub margins: Vec<f32>,
}

impl Golden {
    /// `golden.json` beside a folder's files, or `<stem>.golden.json` beside a single file.
    pub fn of(model: &Path) -> Golden {
        serde_json::from_slice(&std::fs::read(golden_path(model, "json")).unwrap()).unwrap()
    }

    pub fn prompt(&self, name: &str) -> &Prompt {
        self.prompts.iter().find(|p| p.name == name).unwrap()
    }
}

/// The reference tensors of a model, by name.
pub fn golden_tensors(model: &Path) -> HashMap<String, Vec<f32>> {
    let file = SafetensorsFile::open(&golden_path(model, "safetensors")).unwrap();
    let decode =
        |bytes: &[u8]| bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
    file.tensors().map(|t| (t.name.to_owned(), decode(t.data))).collect()
}

fn golden_path(model: &Path, extension: &str) -> PathBuf {
    if model.is_dir() {
        return model.join(format!("golden.{extension}"));
    }
    model.with_extension(format!("golden.{extension}"))
}

/// An engine that gives logits for every position of prompts up to 512 tokens.
pub fn load(path: &Path, kv: KvTypes) -> Engine {
    load_with(path, Options { kv, ..Options::default() })
}

pub fn load_with(path: &Path, options: Options) -> Engine {
    let options = Options { context: Some(options.context.unwrap_or(512)), logit_rows: 512, ..options };
    Engine::open(path, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// Logits of every position, the prompt fed in pieces of the given lengths (the last repeats).
pub fn logits(engine: &mut Engine, ids: &[u32], pieces: &[usize]) -> Vec<f32> {
    let sequence = engine.new_sequence().unwrap();
    let mut all = Vec::new();
    let (mut rest, mut pieces) = (ids, pieces.iter().copied().peekable());
    let mut piece = 0;
    while !rest.is_empty() {
        piece = pieces.next().unwrap_or(piece);
        let (tokens, tail) = rest.split_at(piece.clamp(1, rest.len()));
        let run = TokenRun { sequence, tokens, logits: WantLogits::All };
        all.extend_from_slice(engine.step(&[run]).unwrap().data);
        rest = tail;
    }
    engine.release(sequence);
    all
}

/// Largest absolute difference; NaN anywhere counts as infinite.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let difference = |(a, b): (&f32, &f32)| (a - b).abs();
    a.iter().zip(b).map(difference).fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

/// Same bits everywhere, or the first place where not.
pub fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    if let Some(i) = (0..a.len()).find(|&i| a[i].to_bits() != b[i].to_bits()) {
        panic!("{what}: element {i} is {} against {}", a[i], b[i]);
    }
}
