//! Runs the real binary on the fixture models.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs the command with words and paths as arguments.
macro_rules! run {
    ($($arg:expr),* $(,)?) => {
        $crate::common::Said::from($crate::common::basert()$(.arg($arg))*.output().unwrap())
    };
}

/// The `basert` command, without the caller's environment options.
pub fn basert() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_basert"));
    let variables = [
        "BASERT_THREADS",
        "BASERT_CONTEXT",
        "BASERT_KV_BITS",
        "BASERT_KV_TYPE",
        "BASERT_SPECULATIVE",
        "BASERT_ISA",
        "BASERT_MODELS",
        "BASERT_API_KEY",
    ];
    for variable in variables {
        command.env_remove(variable);
    }
    command
}

/// Runs the command in `folder` with the arguments of both lists.
pub fn run_in(folder: &Path, first: &[&str], more: &[&str]) -> Said {
    Said::from(basert().current_dir(folder).args(first).args(more).output().unwrap())
}

/// What a run said.
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Checks success.
    pub fn ok(self) -> Said {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Checks a well-behaved failure: status 1, one sentence that contains `words`, nothing like a panic.
    #[track_caller]
    pub fn fails_with(self, words: &[&str]) -> Said {
        assert_eq!(self.code, Some(1), "{self:?}");
        let lines: Vec<&str> = self.err.lines().filter(|l| !l.starts_with("note: ")).collect();
        assert!(lines[0].starts_with("error: ") && lines.len() <= 2, "{self:?}");
        assert!(lines.get(1).is_none_or(|l| l.starts_with("hint: ")), "{self:?}");
        assert!(!self.err.contains("panicked") && !self.err.contains("RUST_BACKTRACE"), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "no '{word}' in {self:?}");
        }
        self
    }
}

impl std::fmt::Debug for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "status {:?}\n--- stdout\n{}\n--- stderr\n{}", self.code, self.out, self.err)
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        Said {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A model folder of the repository's fixtures.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// A file that may not be copied into the repository; `None` (said once) where it is absent.
pub fn shared_fixture(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures").join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("BASERT_REQUIRE_FIXTURES").is_none(), "{} is missing", path.display());
    println!("skipped: {} is not there", path.display());
    None
}

/// The one trained model at hand, as its GGUF file; `None` (said) where `tools/smollm2.sh` did not fetch it.
pub fn smollm2() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var_os("BASERT_REQUIRE_FIXTURES").is_some();
    assert!(!required, "{} is missing; tools/smollm2.sh fetches it", path.display());
    println!("skipped: {} is not there; tools/smollm2.sh fetches it", path.display());
    None
}

/// The llama fixture converted to f32, made once per test program.
pub fn llama() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| shared("llama-tiny"))
}

/// The hybrid fixture converted to f32, made once per test program.
pub fn hybrid() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| shared("qwen35-dense-tiny"))
}

/// Statics are never dropped, so shared models live in the build folder.
fn shared(name: &str) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).with_extension("base");
    run!("convert", "--no-check", fixture(name), "-o", &out, "--target", "f32", "--force").ok();
    out
}

/// A fixture model converted to `target` in a folder of its own.
pub fn converted(name: &str, target: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model.base");
    run!("convert", "--no-check", fixture(name), "-o", &out, "--target", target).ok();
    (dir, out)
}

/// A `.base` file whose header was edited as text, at the same length or longer.
pub fn with_header(dir: &Path, edit: impl Fn(&str) -> String) -> PathBuf {
    let bytes = std::fs::read(llama()).unwrap();
    let len = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    let blob = (16 + len).next_multiple_of(65536);
    let header = edit(std::str::from_utf8(&bytes[16..16 + len]).unwrap());
    let mut out = bytes[..8].to_vec();
    out.extend((header.len() as u64).to_le_bytes());
    out.extend(header.as_bytes());
    out.resize(out.len().next_multiple_of(65536), 0);
    out.extend(&bytes[blob..]);
    let path = dir.join("edited.base");
    std::fs::write(&path, out).unwrap();
    path
}

/// A copy of a fixture's checkpoint that can be damaged.
pub fn checkpoint(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in names(&fixture(name)).iter().filter(|n| !n.starts_with("golden")) {
        std::fs::copy(fixture(name).join(file), dir.path().join(file)).unwrap();
    }
    dir
}

/// The golden results of a fixture model.
pub fn golden(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name).join("golden.json")).unwrap()).unwrap()
}

/// The named prompt of a golden file as token ids.
pub fn prompt(golden: &Value, name: &str) -> Vec<u32> {
    let prompts = golden["prompts"].as_array().unwrap();
    ids(&prompts.iter().find(|p| p["name"] == name).unwrap()["ids"])
}

/// A JSON array as token ids.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// `1,2,3`.
pub fn comma_separated(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Sends ^C's signal.
pub fn interrupt(child: &Child) {
    send(child, "INT");
}

/// Sends the signal `SIG<name>`.
pub fn send(child: &Child, name: &str) {
    let kill = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
}

/// Waits until a running command has put something into an empty folder.
#[track_caller]
pub fn wait_for_output(child: &mut Child, folder: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while names(folder).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "the command ended before it wrote anything");
        assert!(Instant::now() < deadline, "the command never starts writing");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a running conversion has opened its unfinished file for `folder`, which has a name there only where the
/// file system wants one.
#[track_caller]
pub fn wait_for_unfinished(child: &mut Child, folder: &Path) {
    let folder = folder.canonicalize().unwrap();
    let descriptors = PathBuf::from(format!("/proc/{}/fd", child.id()));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let open = std::fs::read_dir(&descriptors).into_iter().flatten().filter_map(|entry| {
            let target = std::fs::read_link(entry.ok()?.path()).ok()?;
            target.starts_with(&folder).then_some(target)
        });
        if open.count() > 0 || !names(&folder).is_empty() {
            return;
        }
        assert!(child.try_wait().unwrap().is_none(), "the command ended before it wrote anything");
        assert!(Instant::now() < deadline, "the command never starts writing");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Makes a llama in `dir` whose embedding table is a hole of `bytes` (a power of two) in its file: much to convert, and
/// nothing on the disk.
pub fn with_hole(dir: &Path, bytes: u64) {
    let tiny = fixture("llama-tiny");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tiny.join(name), dir.join(name)).unwrap();
    }
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(tiny.join("config.json")).unwrap()).unwrap();
    let vocab = bytes / 256;
    config["vocab_size"] = json!(vocab);
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();

    let original = std::fs::read(tiny.join("model.safetensors")).unwrap();
    let (header, data) = split_safetensors(&original);
    let mut tensors: Vec<(String, Value)> = header.as_object().unwrap().clone().into_iter().collect();
    let shift = data.len() as u64;
    for (name, tensor) in &mut tensors {
        if name.as_str() == "model.embed_tokens.weight" {
            tensor["shape"][0] = json!(vocab);
            tensor["data_offsets"] = json!([shift, shift + bytes]);
        }
    }
    // The old table's bytes are covered by a tensor that the model ignores: safetensors allows no gaps.
    let old = header["model.embed_tokens.weight"].clone();
    tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), old));
    let header = Value::Object(tensors.into_iter().collect()).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(dir.join("model.safetensors"), &file).unwrap();
    let handle = std::fs::OpenOptions::new().write(true).open(dir.join("model.safetensors")).unwrap();
    handle.set_len(file.len() as u64 + bytes).unwrap();
}

fn split_safetensors(bytes: &[u8]) -> (Value, &[u8]) {
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + len]).unwrap(), &bytes[8 + len..])
}
