//! How a file comes to its name, and what is left when it does not.

use std::fs;
use std::path::Path;

use crate::common::{F32, header, planned};
use basert_format::{BaseFile, BaseWriter, Output, PlannedTensor, SlotFlags, SlotKind};
use tempfile::tempdir;

fn plan() -> Vec<PlannedTensor> {
    vec![planned("a", &[2], F32), planned("none", &[0], F32), planned("b", &[300], F32)]
}

fn payload(tensor: usize) -> Vec<u8> {
    (0..[8, 0, 1200][tensor]).map(|at| (at * 7 + tensor) as u8).collect()
}

fn writer(output: &Output) -> BaseWriter {
    BaseWriter::create_at(output, header(), plan()).expect("planned")
}

/// Writes tensors from `first` on and finishes.
fn complete(mut writer: BaseWriter, first: usize) -> Result<(), basert_format::FormatError> {
    for tensor in first..3 {
        writer.write_tensor(&payload(tensor)).expect("written");
    }
    writer.write_slot(SlotKind::Custom, SlotFlags::default(), b"slot").expect("written");
    writer.finish(|_| {})
}

fn entries(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).expect("listed");
    let mut names: Vec<_> =
        names.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The bytes of the finished file.
fn reference(dir: &Path) -> Vec<u8> {
    let path = dir.join("reference");
    complete(writer(&Output::new(&path)), 0).expect("finished");
    let bytes = fs::read(&path).expect("read");
    fs::remove_file(path).expect("removed");
    bytes
}

#[test]
fn a_payload_in_parts_is_the_payload_in_one() {
    let dir = tempdir().expect("temporary directory");
    let expected = reference(dir.path());
    let file = dir.path().join("m.base");
    for part in [1, 7, 1199, 1200] {
        let mut writer = writer(&Output::new(&file));
        let mut checksums = Vec::new();
        for tensor in 0..3 {
            if tensor == 1 {
                checksums.extend(writer.write_part(b"").expect("written"));
            }
            for part in payload(tensor).chunks(part) {
                checksums.extend(writer.write_part(part).expect("written"));
            }
        }
        assert_eq!(checksums.len(), 3);
        complete(writer, 3).expect("finished");
        assert!(fs::read(&file).expect("read") == expected, "parts of {part}");
        let file = BaseFile::open(&file).expect("valid");
        let stored: Vec<u64> = file.tensors().map(|tensor| tensor.entry.checksum_xxh64).collect();
        assert_eq!(stored, checksums);
    }
    let mut writer = writer(&Output::new(&file));
    writer.write_part(&[0; 5]).expect("written");
    for part in [&[0u8; 4][..], &[0; 9]] {
        assert!(
            writer.write_part(part).expect_err("too long").to_string().contains("`a` should have 8 bytes")
        );
    }
    assert!(writer.write_tensor(&[0; 8]).is_err(), "a whole tensor in the middle of one");
    assert!(writer.finish(|_| {}).expect_err("incomplete").to_string().contains("only 0 of 3"));
}

#[test]
fn an_older_file_is_replaced_or_survives_as_asked() {
    let dir = tempdir().expect("temporary directory");
    let expected = reference(dir.path());
    let path = dir.path().join("m.base");
    for keep in [false, true] {
        fs::write(&path, "older").expect("written");
        let refused = complete(writer(&Output::new(&path).replace(false).keep(keep)), 0);
        assert!(refused.expect_err("refused").to_string().contains("m.base: the file exists already"));
        assert_eq!(fs::read(&path).expect("read"), b"older");
        complete(writer(&Output::new(&path).replace(true).keep(keep)), 0).expect("finished");
        assert!(fs::read(&path).expect("read") == expected);
        assert_eq!(entries(dir.path()), ["m.base"], "keep {keep}");
    }
}

#[test]
fn kept_work_is_taken_over_up_to_the_first_torn_tensor() {
    let dir = tempdir().expect("temporary directory");
    let expected = reference(dir.path());
    let output = Output::new(dir.path().join("m.base")).keep(true);
    let partial = output.partial().expect("kept");
    let interrupted = || {
        let mut writer = writer(&output);
        let parts = [payload(0), payload(1), payload(2)];
        let checksums: Vec<u64> =
            parts.iter().filter_map(|part| writer.write_part(part).expect("written")).collect();
        // Left at the very end, slot and all.
        writer
            .write_slot(SlotKind::Custom, SlotFlags::default(), b"a slot of another length")
            .expect("written");
        checksums
    };
    let blob = 65536;
    let flip = |at: usize| {
        let mut bytes = fs::read(&partial).expect("read");
        bytes[at] ^= 1;
        fs::write(&partial, bytes).expect("written");
    };
    let truncate = |length: u64| {
        fs::OpenOptions::new()
            .write(true)
            .open(&partial)
            .expect("opened")
            .set_len(length)
            .expect("truncated");
    };
    let damages: [(usize, &dyn Fn()); 5] = [
        (3, &|| {}),
        (0, &|| flip(blob + 3)),
        (2, &|| flip(fs::metadata(&partial).expect("there").len() as usize - 100)),
        (0, &|| truncate(blob as u64 + 7)),
        (0, &|| truncate(0)),
    ];
    for (number, (taken, damage)) in damages.into_iter().enumerate() {
        let checksums = interrupted();
        assert_eq!(entries(dir.path()), ["m.base.partial"]);
        damage();
        let mut writer = writer(&output);
        assert_eq!(writer.take_over(&checksums, &mut |_| {}).expect("read"), taken, "damage {number}");
        complete(writer, taken).expect("finished");
        assert!(fs::read(output.path()).expect("read") == expected, "damage {number}");
        assert_eq!(entries(dir.path()), ["m.base"]);
        fs::remove_file(output.path()).expect("removed");
    }
}

#[test]
#[cfg(unix)]
fn kept_work_is_not_written_through_a_link() {
    let dir = tempdir().expect("temporary directory");
    let output = Output::new(dir.path().join("m.base")).keep(true);
    fs::write(dir.path().join("precious"), "precious").expect("written");
    std::os::unix::fs::symlink("precious", output.partial().expect("kept")).expect("linked");
    let refused = BaseWriter::create_at(&output, header(), plan()).expect_err("refused").to_string();
    assert!(refused.contains("not a regular file"), "{refused}");
    assert_eq!(fs::read(dir.path().join("precious")).expect("read"), b"precious");
}

#[test]
fn the_unfinished_file_can_be_opened_before_it_has_its_name() {
    let dir = tempdir().expect("temporary directory");
    let expected = reference(dir.path());
    for keep in [false, true] {
        let output = Output::new(dir.path().join("m.base")).keep(keep);
        let mut writer = writer(&output);
        assert!(writer.preview().is_err(), "nothing is written yet");
        (0..3).for_each(|tensor| writer.write_tensor(&payload(tensor)).expect("written"));
        let preview = writer.preview().expect("complete");
        preview.verify_checksums(&mut |_, _| {}).expect("intact");
        assert_eq!(preview.tensor("b").expect("there").data, payload(2));
        assert!(!output.path().exists());
        if let Some(partial) = output.partial() {
            let refused = BaseFile::open(&partial).expect_err("it is not finished").to_string();
            assert!(refused.contains("magic") || refused.contains("not a .base"), "{refused}");
        }
        complete(writer, 3).expect("finished");
        assert!(fs::read(output.path()).expect("read") == expected);
        fs::remove_file(output.path()).expect("removed");
    }
}

#[test]
fn work_that_is_given_up_is_removed_even_if_it_would_be_kept() {
    let dir = tempdir().expect("temporary directory");
    for keep in [false, true] {
        let mut writer = writer(&Output::new(dir.path().join("m.base")).keep(keep));
        writer.write_tensor(&payload(0)).expect("written");
        writer.discard().expect("removed");
        assert_eq!(entries(dir.path()), [""; 0]);
    }
    // Not even an empty file is left where there is no space.
    let output = Output::new(dir.path().join("m.base")).keep(true);
    BaseWriter::create_at(&output, header(), vec![planned("huge", &[1 << 50], F32)]).expect_err("4 PiB");
    assert_eq!(entries(dir.path()), [""; 0]);
}

#[test]
fn nothing_appears_after_the_output_was_abandoned() {
    let dir = tempdir().expect("temporary directory");
    let output = Output::new(dir.path().join("m.base"));
    let unfinished = writer(&output);
    output.abandon();
    assert_eq!(entries(dir.path()), [""; 0]);
    assert!(complete(unfinished, 0).is_err());
    assert!(BaseWriter::create_at(&output, header(), plan()).is_err());
    assert_eq!(entries(dir.path()), [""; 0]);
}

#[test]
fn a_file_that_no_disk_can_hold_is_refused_before_anything_is_written() {
    let dir = tempdir().expect("temporary directory");
    let huge = vec![planned("huge", &[1 << 50], F32)];
    let refused =
        BaseWriter::create(&dir.path().join("m.base"), header(), huge).expect_err("4 PiB").to_string();
    assert!(refused.contains("m.base: cannot reserve space for it"), "{refused}");
    assert_eq!(entries(dir.path()), [""; 0]);
}
