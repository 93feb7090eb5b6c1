//! Prefixes and sessions in files: what comes back is what was there, and nothing else is ever taken in.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::{Converted, KV_F16, converted, fixture, load_with};
use basert_engine::{
    Engine, GenerateParams, Options, PrefixFile, SamplingParams, Session, generate, session_caller,
};
use basert_kernels::KvDtype;
use serde_json::json;

const MODELS: [&str; 3] = ["toy-hybrid", "toy-moe", "llama-tiny"];

fn options() -> Options {
    Options { kv: KV_F16, page_tokens: Some(32), prefix_cache: 32 << 20, ..Options::default() }
}

fn engine(model: &Converted) -> Engine {
    load_with(&model.path, options())
}

fn words(tag: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (tag * 37 + i * 11 + i * i % 7 + 1) % 250).collect()
}

fn params(max_tokens: usize) -> GenerateParams {
    GenerateParams { sampling: SamplingParams::default(), max_tokens, eos: Vec::new(), prefill_chunk: None }
}

fn ask(engine: &mut Engine, prompt: &[u32]) -> (Vec<u32>, usize) {
    let found = generate(engine, prompt, &params(6), &mut |_| ControlFlow::Continue(())).unwrap();
    (found.ids, found.kept_tokens)
}

/// A folder that is gone at the end.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A file of two prompts' prefixes.
fn saved(model: &Converted, path: &Path) -> PrefixFile {
    let mut engine = engine(model);
    ask(&mut engine, &words(1, 100));
    ask(&mut engine, &[&words(1, 64)[..], &words(2, 70)].concat());
    engine.save_prefixes(path).unwrap()
}

#[test]
fn the_first_request_after_a_restart_hits() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let folder = folder();
        let path = folder.path().join("org name").join("ünï");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let written = saved(&file, &path);
        assert!(
            written.pages == 5 && written.bytes == path.metadata().unwrap().len(),
            "{model}: {written:?}"
        );
        let mut engine = engine(&file);
        let read = engine.load_prefixes(&path).unwrap();
        assert_eq!(read, written, "{model}");
        engine.check_integrity().unwrap();
        for prompt in [words(1, 100), [&words(1, 64)[..], &words(2, 70)].concat()] {
            let (answer, kept) = ask(&mut engine, &prompt);
            assert_eq!(kept, (prompt.len() - 1) / 32 * 32, "{model}");
            let mut cold = load_with(&file.path, Options { prefix_cache: 0, ..options() });
            assert_eq!(answer, ask(&mut cold, &prompt).0, "{model}");
        }
        // What was taken in can be saved again.
        let again = folder.path().join("again");
        assert!(engine.save_prefixes(&again).unwrap().pages >= written.pages);
    }
}

#[test]
fn nothing_is_written_where_nothing_is_kept() {
    let file = converted(&fixture("llama-tiny"), "base-q4");
    let path = folder().path().join("prefixes");
    assert_eq!(engine(&file).save_prefixes(&path).unwrap(), PrefixFile::default());
    assert!(!path.exists());
}

#[test]
fn with_less_room_the_prefixes_that_were_used_last_come_first() {
    for model in MODELS {
        let file = converted(&fixture(model), "base-q4");
        let folder = folder();
        let path = folder.path().join("prefixes");
        let written = saved(&file, &path);
        let whole = engine(&file);
        let page = 32 * whole.selected().pools.bytes_per_token;
        let state = whole.selected().state_bytes;
        let prefix_cache = if state == 0 { 4 * page } else { 2 * (4 * page).max(state) };
        let mut small = load_with(&file.path, Options { prefix_cache, ..options() });
        let read = small.load_prefixes(&path).unwrap();
        small.check_integrity().unwrap();
        assert_eq!(read.pages + read.left_out, written.pages, "{model}");
        assert!(read.pages > 0, "{model}: {read:?}");
        let last = [&words(1, 64)[..], &words(2, 70)].concat();
        assert!(ask(&mut small, &last).1 >= 64, "{model}");
    }
}

/// Everything that must not be taken in, by what is said about it.
fn refused(path: &Path, folder: &Path) -> Vec<(String, PathBuf, Options)> {
    let bytes = std::fs::read(path).unwrap();
    let mut cases = Vec::new();
    let mut case = |words: &str, bytes: Vec<u8>| {
        let path = folder.join(format!("case {}", cases.len()));
        std::fs::write(&path, bytes).unwrap();
        cases.push((words.to_owned(), path, options()));
    };
    for at in [20, bytes.len() / 2, bytes.len() - 9, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        case("damaged", damaged);
    }
    case("cut off", bytes[..20].to_vec());
    case("damaged", bytes[..bytes.len() - 1000].to_vec());
    case("damaged", [&bytes[..], &[0; 8]].concat());
    case("no such file", b"something else that is long enough to be read".to_vec());
    case("no such file", Vec::new());
    case("version 1, this program reads 2", [&bytes[..8], &[1, 0, 0, 0], &bytes[12..]].concat());
    case("version 9", [&bytes[..8], &[9, 0, 0, 0], &bytes[12..]].concat());
    case("cut off", [&bytes[..12], &[0xff; 4], &bytes[16..]].concat());
    let mut other = |words: &str, options: Options| cases.push((words.to_owned(), path.to_owned(), options));
    let bf16 = basert_engine::KvTypes { k: KvDtype::Bf16, v: KvDtype::F16 };
    other("made with K f16 and V f16, this cache has K bf16 and V f16", Options { kv: bf16, ..options() });
    other("decoded differently", Options { dequantize: true, ..options() });
    cases
}

#[test]
fn a_foreign_stale_or_damaged_file_of_prefixes_is_refused_with_a_reason_and_not_in_part() {
    let file = converted(&fixture("toy-hybrid"), "base-q4");
    let folder = folder();
    let path = folder.path().join("prefixes");
    saved(&file, &path);
    let mut cases = refused(&path, folder.path());
    let pages = Options { page_tokens: Some(64), ..options() };
    cases.push(("its pages have 32 tokens, this cache's have 64".to_owned(), path.clone(), pages));
    for (words, path, options) in cases {
        let mut engine = load_with(&file.path, options);
        let error = engine.load_prefixes(&path).unwrap_err().to_string();
        assert!(error.contains(&words) && error.contains(&path.display().to_string()), "{words}: {error}");
        assert_eq!(engine.prefix_stats().unwrap().pages, 0, "{words}");
        engine.check_integrity().unwrap();
    }
    let other = converted(&fixture("toy-hybrid"), "base-q8");
    let error = engine(&other).load_prefixes(&path).unwrap_err().to_string();
    assert!(error.contains("made by another model"), "{error}");
}

#[test]
fn a_session_goes_on_exactly_where_it_was_in_pages_of_any_size() {
    for (model, length) in MODELS.into_iter().flat_map(|model| [(model, 100), (model, 1000)]) {
        let file = converted(&fixture(model), "base-q4");
        let folder = folder();
        let path = folder.path().join("session");
        let go = &mut |_| ControlFlow::Continue(());
        let options = Options { context: Some(1152), ..options() };
        let mut first = load_with(&file.path, options.clone());
        let mut session = Session::default();
        let prompt = words(4, length);
        let begun = session.generate(&mut first, &prompt, &params(9), go).unwrap();
        let bytes = session.save(&first, &path, json!({"said": [1, 2]})).unwrap();
        assert_eq!(bytes, path.metadata().unwrap().len());
        assert_eq!(session_caller(&path).unwrap(), json!({"said": [1, 2]}));
        let next = [&prompt[..], &begun.ids, &words(5, 20)].concat();
        let expected = session.generate(&mut first, &next, &params(9), go).unwrap();
        for (page_tokens, prefix_cache) in [(None, 0), (Some(32), 32 << 20), (Some(96), 0)] {
            let mut other = load_with(&file.path, Options { page_tokens, prefix_cache, ..options.clone() });
            let (mut session, said) = Session::load(&mut other, &path).unwrap();
            assert_eq!((session.tokens().len(), said), (length + 8, json!({"said": [1, 2]})));
            let found = session.generate(&mut other, &next, &params(9), go).unwrap();
            assert_eq!(
                (found.kept_tokens, found.ids),
                (length + 8, expected.ids.clone()),
                "{model} {page_tokens:?}"
            );
            session.clear(&mut other);
            other.check_integrity().unwrap();
        }
    }
}

#[test]
fn a_session_that_does_not_fit_is_refused_and_leaves_nothing() {
    let file = converted(&fixture("toy-hybrid"), "base-q4");
    let folder = folder();
    let path = folder.path().join("session");
    let mut first = engine(&file);
    let mut session = Session::default();
    let go = &mut |_| ControlFlow::Continue(());
    session.generate(&mut first, &words(4, 100), &params(9), go).unwrap();
    session.save(&first, &path, json!(null)).unwrap();
    for (words, path, options) in refused(&path, folder.path()) {
        let mut engine = load_with(&file.path, options);
        let error = Session::load(&mut engine, &path).unwrap_err().to_string();
        assert!(error.contains(&words), "{words}: {error}");
        engine.new_sequence().unwrap();
    }
    let mut short = load_with(&file.path, Options { context: Some(64), ..options() });
    let error = Session::load(&mut short, &path).unwrap_err().to_string();
    assert!(error.contains("108 tokens do not fit the context of 64"), "{error}");
    short.new_sequence().unwrap();
    // An empty session is one, too.
    Session::default().save(&first, &path, json!("nothing")).unwrap();
    assert_eq!(Session::load(&mut first, &path).unwrap().1, json!("nothing"));
}
