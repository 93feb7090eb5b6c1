//! Conversions that are killed, run out of disk or are resumed: an output is complete or not there.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Said, basert, checkpoint, fixture, names, send, with_hole};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Layers of the large checkpoint: enough tensors that a kill finds some written and some not.
const LAYERS: u64 = 192;

/// A llama of about 40 MB in two shards, with the fixture's tokenizer.
fn large() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let tiny = fixture("llama-tiny");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(tiny.join(name), dir.path().join(name)).unwrap();
    }
    let mut config: Value = serde_json::from_slice(&fs::read(tiny.join("config.json")).unwrap()).unwrap();
    config["num_hidden_layers"] = json!(LAYERS);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let bytes = fs::read(tiny.join("model.safetensors")).unwrap();
    let (header, data) = bytes[8..].split_at(u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let mut shards = [("a.safetensors", Vec::new(), json!({})), ("b.safetensors", Vec::new(), json!({}))];
    let mut weight_map = json!({});
    for (name, tensor) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        let copies = match name.strip_prefix("model.layers.0.") {
            Some(leaf) => (0..LAYERS).map(|layer| format!("model.layers.{layer}.{leaf}")).collect(),
            None if name.starts_with("model.layers.") => Vec::new(),
            None => vec![name.clone()],
        };
        let offset = |index: usize| tensor["data_offsets"][index].as_u64().unwrap() as usize;
        for (number, copy) in copies.into_iter().enumerate() {
            let (file, bytes, entries) = &mut shards[number % 2];
            let start = bytes.len();
            bytes.extend(&data[offset(0)..offset(1)]);
            // Layers differ, so that one in the place of another is noticed.
            bytes[start] ^= number as u8;
            entries[&copy] = json!({"dtype": tensor["dtype"], "shape": tensor["shape"], "data_offsets": [start, bytes.len()]});
            weight_map[&copy] = json!(file);
        }
    }
    for (file, bytes, entries) in shards {
        let header = entries.to_string();
        let length = (header.len() as u64).to_le_bytes();
        fs::write(dir.path().join(file), [&length, header.as_bytes(), &bytes].concat()).unwrap();
    }
    let index = json!({"weight_map": weight_map}).to_string();
    fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    dir
}

fn convert(source: &Path, out: &Path, more: &[&str]) -> Command {
    let mut command = basert();
    command
        .args(["convert", "--no-check"])
        .arg(source)
        .arg("-o")
        .arg(out)
        .args(["--target", "q4"])
        .args(more);
    command.env("BASERT_THREADS", "1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The bytes of an uninterrupted conversion, and how long it took.
fn reference(source: &Path) -> (Vec<u8>, Duration) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.base");
    let started = Instant::now();
    said(convert(source, &out, &[]).output().unwrap()).ok();
    (fs::read(out).unwrap(), started.elapsed())
}

fn said(output: Output) -> Said {
    Said::from(output)
}

/// Points of time in a conversion that takes `whole`: spread over it, repeatable, and a little beyond the end.
fn moments(whole: Duration) -> impl Iterator<Item = Duration> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    (0..20).map(move |point| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let place = (f64::from(point) + (state >> 11) as f64 / (1u64 << 53) as f64) / 19.0;
        whole.mul_f64(place)
    })
}

/// Kills the conversion after `moment`, unless it has ended.
fn kill_after(mut child: Child, moment: Duration) {
    std::thread::sleep(moment);
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let ended = output.status.signal() == Some(9) || output.status.success();
    assert!(ended, "{:?}", said(output));
}

/// The law of all tests here: nothing, or everything.
#[track_caller]
fn complete_or_absent(out: &Path, expected: &[u8]) -> bool {
    let there = out.exists();
    assert!(!there || fs::read(out).unwrap() == expected, "{} is there and not complete", out.display());
    there
}

#[test]
fn a_conversion_killed_at_any_moment_leaves_nothing_or_the_whole_file() {
    let source = large();
    let (expected, whole) = reference(source.path());
    for moment in moments(whole) {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("m.base");
        kill_after(convert(source.path(), &out, &[]).spawn().unwrap(), moment);
        let there = complete_or_absent(&out, &expected);
        // Where files need no name while they are written, there is not even rubbish.
        if names_are_not_needed(dir.path()) {
            assert_eq!(names(dir.path()), if there { vec!["m.base"] } else { vec![] }, "after {moment:?}");
        }
    }
}

/// Whether the file system has files without a name.
fn names_are_not_needed(folder: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    const O_TMPFILE: i32 = 0o20_200_000;
    cfg!(target_os = "linux")
        && fs::OpenOptions::new().write(true).custom_flags(O_TMPFILE).open(folder).is_ok()
}

#[test]
fn a_forced_conversion_that_is_killed_leaves_the_old_file_or_the_new_one() {
    let source = large();
    let (expected, whole) = reference(source.path());
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.base");
    for moment in moments(whole).step_by(4) {
        fs::write(&out, "old").unwrap();
        kill_after(convert(source.path(), &out, &["--force"]).spawn().unwrap(), moment);
        let found = fs::read(&out).unwrap();
        assert!(found == b"old" || found == expected, "neither old nor new after {moment:?}");
    }
}

#[test]
fn a_conversion_killed_again_and_again_is_resumed_to_the_same_bytes() {
    let source = large();
    let (expected, whole) = reference(source.path());
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.base");
    let resume = || convert(source.path(), &out, &["--resume"]);
    for moment in moments(whole) {
        kill_after(resume().spawn().unwrap(), moment);
        let there = complete_or_absent(&out, &expected);
        if there {
            // Complete: the next kill finds a new beginning.
            fs::remove_file(&out).unwrap();
        }
    }
    let said = said(resume().output().unwrap()).ok();
    assert!(fs::read(&out).unwrap() == expected, "{said:?}");
    assert_eq!(names(dir.path()), ["m.base"]);
}

/// Stops a conversion with --resume by a limit on the size of its file; returns what it said.
fn stopped(source: &Path, out: &Path, more: &[&str]) -> Said {
    let inner = convert(source, out, &[&["--resume"], more].concat());
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 8000; exec \"$@\"", "sh"]).arg(inner.get_program()).args(inner.get_args());
    shell.env("BASERT_THREADS", "1");
    said(shell.output().unwrap()).fails_with(&["m.base", "File too large"])
}

/// A conversion that stopped half way, in `dir`.
fn half(source: &Path, dir: &Path) -> PathBuf {
    let out = dir.join("m.base");
    let said = stopped(source, &out, &[]);
    assert!(said.err.contains("m.base.partial; --resume continues it"), "{said:?}");
    assert_eq!(names(dir), ["m.base.partial", "m.base.partial.journal"]);
    out
}

#[test]
fn a_full_disk_is_a_clear_error_and_leaves_what_was_asked_for() {
    let source = large();
    let (expected, _) = reference(source.path());
    let dir = tempfile::tempdir().unwrap();
    let out = half(source.path(), dir.path());
    let journal = fs::read_to_string(dir.path().join("m.base.partial.journal")).unwrap();
    let done = journal.lines().count() - 1;
    assert!(done > 10, "only {done} tensors are on record");

    // The report of the whole conversion, tensors of the first half included.
    let report = said(convert(source.path(), &out, &["--resume", "--json"]).output().unwrap()).ok().json();
    let all = report["tensors"].as_array().unwrap();
    assert!(all.len() > done && all.iter().all(|tensor| tensor["max_error"].is_number()));
    let note = format!("resumed: {done} of {} tensors were complete and intact", all.len());
    assert!(report["notes"].as_array().unwrap().contains(&json!(note)), "{note}: {}", report["notes"]);
    assert!(fs::read(&out).unwrap() == expected);
    assert_eq!(names(dir.path()), ["m.base"]);
}

#[test]
fn torn_and_garbled_leftovers_are_not_believed() {
    let source = large();
    let (expected, _) = reference(source.path());
    let dir = tempfile::tempdir().unwrap();
    let (partial, journal) = (dir.path().join("m.base.partial"), dir.path().join("m.base.partial.journal"));
    let flip = |at: usize| {
        let mut bytes = fs::read(&partial).unwrap();
        bytes[at] ^= 0x10;
        fs::write(&partial, bytes).unwrap();
    };
    let cut = |path: &Path, length: u64| {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
    };
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    let append = |text: &str| {
        let mut bytes = fs::read(&journal).unwrap();
        bytes.extend(text.as_bytes());
        fs::write(&journal, bytes).unwrap();
    };
    let damages: [(&str, &dyn Fn()); 7] = [
        ("a flipped bit in a tensor", &|| flip(size(&partial) as usize / 2)),
        ("zeros at the end", &|| {
            let length = size(&partial);
            cut(&partial, length - 300_000);
            cut(&partial, length);
        }),
        ("an end that is missing", &|| cut(&partial, size(&partial) / 3)),
        ("nothing but a name", &|| cut(&partial, 0)),
        ("half a line in the journal", &|| cut(&journal, size(&journal) - 7)),
        ("a line of rubbish in the journal", &|| append("{\"xxh64\": -1}\n")),
        ("a tensor that was never written", &|| {
            append("{\"xxh64\":1,\"measured\":{\"largest\":1.0,\"max_error\":0.0,\"squares\":0.0}}\n");
        }),
    ];
    for (what, damage) in damages {
        let out = half(source.path(), dir.path());
        damage();
        said(convert(source.path(), &out, &["--resume"]).output().unwrap()).ok();
        assert!(fs::read(&out).unwrap() == expected, "{what}");
        assert_eq!(names(dir.path()), ["m.base"], "{what}");
        fs::remove_file(out).unwrap();
    }
}

#[test]
fn work_that_was_begun_from_something_else_is_not_continued() {
    let source = large();
    let dir = tempfile::tempdir().unwrap();
    let out = half(source.path(), dir.path());
    let before = fs::read(dir.path().join("m.base.partial")).unwrap();
    let refused = |more: &[&str], words: &[&str]| {
        let said = said(convert(source.path(), &out, &[&["--resume"], more].concat()).output().unwrap());
        let said = said.fails_with(&["m.base.partial", "cannot be resumed", "remove the partial file"]);
        words.iter().for_each(|word| assert!(said.err.contains(word), "no '{word}' in {said:?}"));
        assert!(fs::read(dir.path().join("m.base.partial")).unwrap() == before);
        assert_eq!(names(dir.path()), ["m.base.partial", "m.base.partial.journal"]);
    };
    refused(&["--group", "32"], &["group of the target, and now it is 32"]);
    refused(&["--scales", "bf16"], &["scales f16, and now it is bf16"]);

    // Written again at the same size; then at another; then a file more.
    let config = source.path().join("config.json");
    let (text, modified) = (fs::read(&config).unwrap(), fs::metadata(&config).unwrap().modified().unwrap());
    let write = |text: &[u8], seconds: u64| {
        fs::write(&config, text).unwrap();
        let file = fs::File::options().write(true).open(&config).unwrap();
        file.set_modified(modified + Duration::from_secs(seconds)).unwrap();
    };
    write(&text, 1);
    refused(&[], &["config.json", "another modification time"]);
    write(&[&text[..], b" "].concat(), 0);
    refused(&[], &["config.json", "bytes, and now"]);
    write(&text, 0);
    fs::write(source.path().join("generation_config.json"), "{}").unwrap();
    refused(&[], &["generation_config.json", "no such file"]);
    fs::remove_file(source.path().join("generation_config.json")).unwrap();

    // Another fine-tune: same names, sizes and times, other weights.
    let shard = source.path().join("b.safetensors");
    let (weights, time) = (fs::read(&shard).unwrap(), fs::metadata(&shard).unwrap().modified().unwrap());
    let rewrite = |bytes: &[u8]| {
        fs::write(&shard, bytes).unwrap();
        fs::File::options().write(true).open(&shard).unwrap().set_modified(time).unwrap();
    };
    let mut other = weights.clone();
    *other.last_mut().unwrap() ^= 1;
    rewrite(&other);
    refused(&[], &["other weights in files of the same names and sizes"]);
    rewrite(&weights);
    let other =
        String::from_utf8(text.clone()).unwrap().replace("transformers_version", "transformers_versioN");
    assert_ne!(other.as_bytes(), text);
    write(other.as_bytes(), 0);
    refused(&[], &["config.json", "other content"]);
    write(&text, 0);

    // A foreign file of that name is not touched.
    fs::remove_file(dir.path().join("m.base.partial.journal")).unwrap();
    let said = said(convert(source.path(), &out, &["--resume"]).output().unwrap());
    said.fails_with(&["m.base.partial", "there is no journal beside it"]);
    assert!(fs::read(dir.path().join("m.base.partial")).unwrap() == before);
}

#[test]
fn files_of_others_in_the_place_of_the_journal_are_left_alone() {
    let source = checkpoint("llama-tiny");
    let dir = tempfile::tempdir().unwrap();
    let (out, precious) = (dir.path().join("m.base"), dir.path().join("precious"));
    let journal = dir.path().join("m.base.partial.journal");
    let refused = || {
        let said = said(convert(source.path(), &out, &["--resume"]).output().unwrap());
        said.fails_with(&["m.base.partial.journal", "left alone", "move that file away"]);
    };
    fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, &journal).unwrap();
    refused();
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    fs::remove_file(&journal).unwrap();
    fs::write(&journal, "my diary\n").unwrap();
    refused();
    assert_eq!(fs::read(&journal).unwrap(), b"my diary\n");
    assert_eq!(names(dir.path()), ["m.base.partial.journal", "precious"]);
}

#[test]
fn work_that_is_worthless_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.base");
    let run = |source: &Path, more: &[&str]| {
        let mut command = basert();
        command.arg("convert").arg(source).arg("-o").arg(&out).arg("--resume").args(more);
        let said = said(command.output().unwrap());
        assert!(!said.err.contains("is kept"), "{said:?}");
        assert_eq!(names(dir.path()), Vec::<String>::new(), "{said:?}");
        said
    };
    // Refused by the self-check.
    run(&fixture("llama-tiny"), &[]).fails_with(&["does not pass its self-check"]);
    // Damaged from the first tensor on.
    let source = checkpoint("llama-tiny");
    let path = source.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[data..].fill(0xff);
    fs::write(&path, bytes).unwrap();
    run(source.path(), &["--no-check"]).fails_with(&["NaN", "the checkpoint is damaged"]);
    // Numbers of threads that can only be a mistake.
    for threads in ["4096", "18446744073709551615"] {
        let said = run(&fixture("llama-tiny"), &["--no-check", "-t", threads]);
        said.fails_with(&["threads", "a smaller number"]);
    }
}

#[test]
fn threads_may_change_between_attempts_and_one_attempt_runs_at_a_time() {
    let source = large();
    let (expected, _) = reference(source.path());
    let dir = tempfile::tempdir().unwrap();
    let out = half(source.path(), dir.path());
    let mut first = convert(source.path(), &out, &["--resume"]).spawn().unwrap();
    wait_until_open(&mut first, &dir.path().join("m.base.partial"));
    send(&first, "STOP");
    // Stopped, it cannot close what is open now.
    if has_open(&first, &dir.path().join("m.base.partial.journal")) {
        let second = said(convert(source.path(), &out, &["--resume"]).output().unwrap());
        let second = second.fails_with(&["another conversion is writing it", "wait until it has ended"]);
        assert!(!second.err.contains("remove the partial file"), "{second:?}");
    }
    first.kill().unwrap();
    first.wait().unwrap();
    if !complete_or_absent(&out, &expected) {
        said(convert(source.path(), &out, &["--resume", "-t", "3"]).output().unwrap()).ok();
    }
    assert!(fs::read(&out).unwrap() == expected);
}

#[test]
fn an_interrupt_keeps_unfinished_work_only_if_that_was_asked_for() {
    let source = large();
    let (expected, _) = reference(source.path());
    let dir = tempfile::tempdir().unwrap();
    let out = half(source.path(), dir.path());
    // Without the option it is neither used nor removed.
    let plain = said(convert(source.path(), &out, &[]).output().unwrap()).ok();
    assert!(plain.err.contains("m.base.partial is left alone; --resume would continue it"), "{plain:?}");
    assert!(fs::read(&out).unwrap() == expected);
    assert_eq!(names(dir.path()), ["m.base", "m.base.partial", "m.base.partial.journal"]);
    let refused = said(convert(source.path(), &out, &["--resume"]).output().unwrap());
    refused.fails_with(&["exists already", "--force"]);
    said(convert(source.path(), &out, &["--resume", "--force"]).output().unwrap()).ok();
    assert_eq!(names(dir.path()), ["m.base"]);

    let mut child = convert(source.path(), &out, &["--resume", "--force"]).spawn().unwrap();
    wait_until_open(&mut child, &dir.path().join("m.base.partial"));
    send(&child, "INT");
    let said = said(child.wait_with_output().unwrap());
    if said.code != Some(0) {
        assert_eq!(said.code, Some(130), "{said:?}");
        assert!(said.err.contains("unfinished work is kept in"), "{said:?}");
        assert_eq!(names(dir.path()), ["m.base", "m.base.partial", "m.base.partial.journal"]);
    }
}

/// Waits until a running command has a file open, or has ended.
fn wait_until_open(child: &mut Child, file: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !has_open(child, file) && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the command never opens {}", file.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a command has a file open at this moment.
fn has_open(child: &Child, file: &Path) -> bool {
    let file = file.canonicalize().unwrap_or_default();
    let descriptors = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten();
    descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).any(|target| target == file)
}

#[test]
fn a_deterministic_failure_is_the_same_with_any_number_of_threads() {
    let source = checkpoint("llama-tiny");
    let path = source.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    // NaN wherever a bf16 can be one: the error that is reported is the first in the output's order.
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[data..].iter_mut().for_each(|byte| *byte = 0xff);
    fs::write(&path, bytes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let error = |threads: &str| {
        let out = dir.path().join("m.base");
        let said = said(
            basert()
                .arg("convert")
                .arg(source.path())
                .arg("-o")
                .arg(out)
                .args(["-t", threads])
                .output()
                .unwrap(),
        );
        assert_eq!(names(dir.path()), Vec::<String>::new());
        said.fails_with(&["NaN", "the checkpoint is damaged"]).err
    };
    let first = error("1");
    for threads in ["2", "3", "8"] {
        assert_eq!(error(threads), first);
    }
}

/// The source, mapped, and the output would each take more than this at once.
#[test]
#[cfg(target_os = "linux")]
fn memory_does_not_grow_with_the_largest_tensor() {
    const TENSOR: u64 = 1 << 29;
    let (source, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    with_hole(source.path(), TENSOR);
    let mut child = convert(source.path(), &dir.path().join("m.base"), &[]).spawn().unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak = line.map_or(peak, |line| line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10);
        std::thread::sleep(Duration::from_millis(1));
    }
    said(child.wait_with_output().unwrap()).ok();
    assert!(peak > 0 && peak < 80 << 20, "{peak} bytes");
}
