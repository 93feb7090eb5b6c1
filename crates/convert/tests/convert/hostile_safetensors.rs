//! Safetensors files and indexes from strangers: each is refused with a sentence that names the file and the tensor.

use std::fs;
use std::path::Path;

use basert_convert::safetensors::{Checkpoint, Dtype, SafetensorsFault, SafetensorsFile, parse};
use proptest::prelude::*;
use tempfile::TempDir;

/// A file with this header and `data` bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    raw(header.len() as u64, header.as_bytes(), data)
}

fn raw(prefix: u64, header: &[u8], data: usize) -> Vec<u8> {
    let mut bytes = prefix.to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

fn refusal(bytes: &[u8]) -> String {
    parse(bytes).unwrap_err().to_string()
}

/// Two tensors, one of them empty, a scalar, metadata, and positions that differ from the header's order.
fn valid() -> Vec<u8> {
    file(
        r#"{"b":{"dtype":"F32","shape":[],"data_offsets":[12,16]},
            "a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},
            "none":{"dtype":"U32","shape":[4,0],"data_offsets":[16,16]},
            "__metadata__":{"format":"pt"}}"#,
        16,
    )
}

#[test]
fn a_valid_file_gives_its_tensors_in_the_order_of_their_data() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("model.safetensors");
    fs::write(&path, valid()).unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    let names: Vec<&str> = file.tensors().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["a", "b", "none"]);
    let a = file.get("a").unwrap();
    assert_eq!(
        (a.dtype, a.shape, a.data),
        (Dtype::Bf16, &[2, 3][..], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11][..])
    );
    let b = file.get("b").unwrap();
    assert_eq!((b.dtype, b.shape, b.data), (Dtype::F32, &[][..], &[12, 13, 14, 15][..]));
    assert!(file.get("none").unwrap().data.is_empty());
    assert_eq!(file.get("absent"), None);
    assert_eq!(file.metadata().get("format").map(String::as_str), Some("pt"));
}

#[test]
fn a_header_without_tensors_is_a_file_without_tensors() {
    assert!(parse(&file("{}", 0)).unwrap().tensors.is_empty());
    assert!(parse(&file("{}      ", 0)).unwrap().tensors.is_empty(), "padding with spaces is usual");
}

#[test]
fn lying_length_prefixes() {
    let spaces = vec![b' '; 100_000_000];
    let mut late = vec![b' '; 1000];
    late.extend_from_slice(b"{}");
    let table: [(&str, Vec<u8>, &str); 9] = [
        ("empty file", Vec::new(), "is 0 bytes long, too short for a safetensors file"),
        ("seven bytes", vec![0; 7], "is 7 bytes long, too short for a safetensors file"),
        (
            "2^64 - 1",
            raw(u64::MAX, b"{}", 0),
            "claims a header of 18446744073709551615 bytes, but only 2 follow",
        ),
        ("2^63", raw(1 << 63, b"{}", 0), "claims a header of 9223372036854775808 bytes, but only 2 follow"),
        ("one too many", raw(3, b"{}", 0), "claims a header of 3 bytes, but only 2 follow"),
        ("zero", raw(0, b"", 0), "the header does not start with `{`, so this is not a safetensors file"),
        (
            "100 MB of spaces",
            raw(spaces.len() as u64, &spaces, 0),
            "the header does not start with `{`, so this is not a safetensors file",
        ),
        (
            "a brace after spaces",
            raw(late.len() as u64, &late, 0),
            "the header does not start with `{`, so this is not a safetensors file",
        ),
        (
            "longer than the limit",
            raw(spaces.len() as u64 + 1, &spaces, 1),
            "claims a header of 100000001 bytes; at most 100000000 are allowed",
        ),
    ];
    for (attack, bytes, expected) in table {
        assert_eq!(refusal(&bytes), expected, "{attack}");
    }
}

#[test]
fn headers_that_are_not_the_json_they_should_be() {
    for (attack, header) in [
        ("cut short", r#"{"a":{"dtype":"F32""#),
        ("two documents", "{}{}"),
        ("trailing comma", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},}"#),
        ("NUL padding", "{}\0\0\0"),
        ("deep nesting", &format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000))),
    ] {
        let message = refusal(&file(header, 4));
        assert!(
            message.starts_with("the header is not valid: ") || message.starts_with("tensor `a`: "),
            "{attack}: {message}"
        );
    }
    let message = refusal(&raw(5, b"{\"\xff\"}", 0));
    assert_eq!(message, "the header is not UTF-8 (byte 2)");
}

#[test]
fn descriptions_that_are_not_descriptions_name_the_tensor() {
    for (attack, description) in [
        ("no dtype", r#"{"shape":[1],"data_offsets":[0,4]}"#),
        ("no shape", r#"{"dtype":"F32","data_offsets":[0,4]}"#),
        ("no offsets", r#"{"dtype":"F32","shape":[1]}"#),
        ("one offset", r#"{"dtype":"F32","shape":[1],"data_offsets":[0]}"#),
        ("three offsets", r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}"#),
        ("negative offset", r#"{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}"#),
        ("fractional dimension", r#"{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}"#),
        ("negative dimension", r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#),
        ("dimension of 2^64", r#"{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}"#),
        ("dtype number", r#"{"dtype":32,"shape":[1],"data_offsets":[0,4]}"#),
        ("repeated member", r#"{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}"#),
        ("extra member", r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]}"#),
        ("a list", r#"["F32"]"#),
        ("null", "null"),
    ] {
        let message = refusal(&file(&format!(r#"{{"w.x":{description}}}"#), 4));
        assert!(message.starts_with("tensor `w.x`: "), "{attack}: {message}");
    }
    for metadata in [r#"{"n":1}"#, r#"{"n":null}"#, "[]"] {
        let message = refusal(&file(&format!(r#"{{"__metadata__":{metadata}}}"#), 0));
        assert!(message.starts_with("tensor `__metadata__`: "), "{metadata}: {message}");
    }
}

#[test]
fn contradictions() {
    let table = [
        (
            "duplicate key",
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            8,
            "the header names `a` twice",
        ),
        ("duplicate metadata", r#"{"__metadata__":{"k":"1","k":"2"}}"#, 0, "the header names `k` twice"),
        (
            "unknown dtype",
            r#"{"a":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}}"#,
            16,
            "tensor `a` has the unknown dtype `F128`",
        ),
        (
            "begin after end",
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
            4,
            "tensor `a` begins at 4, after its end at 0",
        ),
        (
            "past the end",
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#,
            7,
            "tensor `a` ends at byte 8 of the data, of which there are 7",
        ),
        (
            "end of 2^64 - 1",
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}}"#,
            8,
            "tensor `a` ends at byte 18446744073709551615 of the data, of which there are 8",
        ),
        (
            "shape larger than the range",
            r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#,
            8,
            "tensor `a` takes 8 bytes, but its shape and dtype need 12",
        ),
        (
            "shape smaller than the range",
            r#"{"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,8]}}"#,
            8,
            "tensor `a` takes 8 bytes, but its shape and dtype need 6",
        ),
        (
            "product overflows to the right size",
            r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,1],"data_offsets":[0,0]}}"#,
            0,
            "tensor `a`: the shape's size overflows",
        ),
        (
            "bits overflow where elements do not",
            r#"{"a":{"dtype":"F64","shape":[288230376151711745],"data_offsets":[0,8]}}"#,
            8,
            "tensor `a`: the shape's size overflows",
        ),
        (
            "half a byte",
            r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#,
            1,
            "tensor `a` takes 1 bytes, but its shape and dtype need 2",
        ),
        (
            "same range",
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            4,
            "tensors `a` and `b` overlap",
        ),
        (
            "partial overlap",
            r#"{"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},
                "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#,
            12,
            "tensors `a` and `b` overlap",
        ),
        (
            "an empty tensor inside another",
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                "b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}"#,
            8,
            "tensors `a` and `b` overlap",
        ),
        (
            "hole at the start",
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            8,
            "there are 4 unused bytes before tensor `a`",
        ),
        (
            "hole between",
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "b":{"dtype":"F32","shape":[1],"data_offsets":[5,9]}}"#,
            9,
            "there are 1 unused bytes before tensor `b`",
        ),
        (
            "trailing bytes",
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            5,
            "there are 1 bytes after the last tensor",
        ),
        ("data without tensors", "{}", 1, "there are 1 bytes after the last tensor"),
    ];
    for (attack, header, data, expected) in table {
        assert_eq!(refusal(&file(header, data)), expected, "{attack}");
    }
}

#[test]
fn names_cannot_write_to_the_terminal_or_flood_it() {
    let header =
        format!(r#"{{"\u001b[2J{}":{{"dtype":"X","shape":[],"data_offsets":[0,0]}}}}"#, "n".repeat(1000));
    let message = refusal(&file(&header, 0));
    assert!(message.starts_with(r"tensor `\u{1b}[2Jnnn"), "{message}");
    assert!(message.len() < 300, "{} characters", message.len());
}

#[test]
fn open_names_the_file() {
    let dir = TempDir::new().unwrap();
    let missing = dir.path().join("absent.safetensors");
    let message = SafetensorsFile::open(&missing).unwrap_err().to_string();
    assert!(message.starts_with(&format!("{}: cannot be read: ", missing.display())), "{message}");
    let empty = dir.path().join("empty.safetensors");
    fs::write(&empty, []).unwrap();
    let message = SafetensorsFile::open(&empty).unwrap_err().to_string();
    assert_eq!(message, format!("{}: is 0 bytes long, too short for a safetensors file", empty.display()));
    let message = SafetensorsFile::open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("cannot be read"), "{message}");
}

// ---- shards ----

/// A file with f32 scalars of these names.
fn scalars(names: &[&str]) -> Vec<u8> {
    let entries: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            format!(r#""{name}":{{"dtype":"F32","shape":[],"data_offsets":[{},{}]}}"#, 4 * i, 4 * i + 4)
        })
        .collect();
    file(&format!("{{{}}}", entries.join(",")), 4 * names.len())
}

const ONE: &str = "model-00001-of-00002.safetensors";
const TWO: &str = "model-00002-of-00002.safetensors";

/// A directory with shard one (a, b), shard two (c) and this index.
fn sharded(index: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join(ONE), scalars(&["a", "b"])).unwrap();
    fs::write(dir.path().join(TWO), scalars(&["c"])).unwrap();
    fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    dir
}

fn index(entries: &[(&str, &str)]) -> String {
    let entries: Vec<String> =
        entries.iter().map(|(tensor, shard)| format!(r#""{tensor}":"{shard}""#)).collect();
    format!(r#"{{"metadata":{{"total_size":12}},"weight_map":{{{}}}}}"#, entries.join(","))
}

fn open_refusal(dir: &Path) -> String {
    let message = Checkpoint::open(dir).unwrap_err().to_string();
    message.strip_prefix(&dir.display().to_string()).unwrap().trim_start_matches('/').to_owned()
}

#[test]
fn an_index_and_its_shards_open() {
    let dir = sharded(&index(&[("a", ONE), ("b", ONE), ("c", TWO)]));
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.index, Some(dir.path().join("model.safetensors.index.json")));
    let names: Vec<&str> =
        checkpoint.shards.iter().flat_map(SafetensorsFile::tensors).map(|t| t.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn a_single_file_opens_with_or_without_an_index_of_it() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("model.safetensors"), scalars(&["a"])).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().index, None);
    // mlx-lm writes an index also for one file.
    fs::write(dir.path().join("model.safetensors.index.json"), index(&[("a", "model.safetensors")])).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().shards.len(), 1);
}

#[test]
fn disagreements_between_index_and_shards() {
    let table = [
        (
            "missing shard",
            index(&[("a", ONE), ("b", ONE), ("c", TWO), ("d", "model-00003-of-00003.safetensors")]),
            "model-00003-of-00003.safetensors: the shard is missing, though the index lists tensor `d` in it",
        ),
        (
            "listed but absent",
            index(&[("a", ONE), ("b", ONE), ("c", TWO), ("d", TWO)]),
            "model-00002-of-00002.safetensors: tensor `d` is missing, though the index lists it in this shard",
        ),
        (
            "present but not listed",
            index(&[("a", ONE), ("c", TWO)]),
            "model-00001-of-00002.safetensors: tensor `b` is not listed in the index",
        ),
        (
            "listed in another shard",
            index(&[("a", ONE), ("b", TWO), ("c", TWO)]),
            "model-00001-of-00002.safetensors: tensor `b` is here, but the index lists it in \
             `model-00002-of-00002.safetensors`",
        ),
        (
            "listed twice",
            index(&[("a", ONE), ("a", TWO), ("b", ONE), ("c", TWO)]),
            "model.safetensors.index.json: the header names `a` twice",
        ),
        ("nothing listed", index(&[]), "model.safetensors.index.json: the index lists no tensors"),
    ];
    for (attack, index, expected) in table {
        assert_eq!(open_refusal(sharded(&index).path()), expected, "{attack}");
    }
}

#[test]
fn a_tensor_in_two_shards_is_not_taken_from_either() {
    let dir = sharded(&index(&[("a", ONE), ("b", ONE), ("c", TWO)]));
    fs::write(dir.path().join(TWO), scalars(&["c", "a"])).unwrap();
    assert_eq!(
        open_refusal(dir.path()),
        format!("{TWO}: tensor `a` is here, but the index lists it in `{ONE}`")
    );
}

#[test]
fn shard_names_cannot_leave_the_directory_or_name_the_index() {
    for shard in [
        "../x",
        "../x.safetensors",
        "/etc/x.safetensors",
        "sub/x.safetensors",
        r"..\\x.safetensors",
        "C:x.safetensors",
        "",
        ".",
        "..",
        ".safetensors",
        "model.safetensors.index.json",
        "x.bin",
        r"x\u0000.safetensors",
    ] {
        let message = open_refusal(sharded(&index(&[("a", ONE), ("b", shard)])).path());
        assert!(
            message.starts_with("model.safetensors.index.json: tensor `b` is said to be in `")
                && message.ends_with("`, which is not the name of a .safetensors file beside the index"),
            "{shard}: {message}"
        );
    }
}

#[cfg(unix)]
#[test]
fn a_shard_that_links_to_itself_is_refused() {
    let dir = sharded(&index(&[("a", ONE), ("b", ONE), ("c", TWO)]));
    fs::remove_file(dir.path().join(TWO)).unwrap();
    std::os::unix::fs::symlink(TWO, dir.path().join(TWO)).unwrap();
    let message = open_refusal(dir.path());
    assert!(message.starts_with(&format!("{TWO}: cannot be read: ")), "{message}");
}

#[test]
fn a_broken_shard_is_named() {
    let dir = sharded(&index(&[("a", ONE), ("b", ONE), ("c", TWO)]));
    fs::write(dir.path().join(TWO), &scalars(&["c"])[..20]).unwrap();
    let message = open_refusal(dir.path());
    assert!(message.starts_with(&format!("{TWO}: claims a header of ")), "{message}");
}

#[test]
fn indexes_that_are_not_indexes() {
    for text in ["", "{", "[]", r#"{"metadata":{}}"#, r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#] {
        let message = open_refusal(sharded(text).path());
        assert!(
            message.starts_with("model.safetensors.index.json: the index is not valid: "),
            "{text}: {message}"
        );
    }
}

#[test]
fn a_directory_without_weights_and_one_with_two_sets() {
    let empty = TempDir::new().unwrap();
    assert!(matches!(Checkpoint::open(empty.path()).unwrap_err().fault, SafetensorsFault::NoCheckpoint));
    let both = sharded(&index(&[("a", ONE), ("b", ONE), ("c", TWO)]));
    fs::write(both.path().join("model.safetensors"), scalars(&["a"])).unwrap();
    assert!(matches!(Checkpoint::open(both.path()).unwrap_err().fault, SafetensorsFault::TwoCheckpoints));
}

// ---- fuzz ----

/// Whatever is accepted must hold what the reader promises.
fn check_promises(bytes: &[u8]) {
    let Ok(header) = parse(bytes) else { return };
    let mut at = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for tensor in &header.tensors {
        assert_eq!(tensor.start, at);
        let elements = tensor.shape.iter().map(|&dim| dim as u128).product::<u128>();
        assert_eq!((tensor.end - tensor.start) as u128 * 8, elements * u128::from(tensor.dtype.bits()));
        at = tensor.end;
    }
    assert_eq!(at, bytes.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutations_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = valid();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(length.index(bytes.len()));
        }
        check_promises(&bytes);
    }

    /// Edits that keep the JSON well formed reach the checks behind the parser.
    #[test]
    fn other_numbers_never_panic(
        numbers in prop::collection::vec(prop_oneof![0u64..20, any::<u64>(), Just(u64::MAX), Just(1 << 32)], 7),
        dtype in prop::sample::select(Dtype::ALL.to_vec()),
    ) {
        let [a, b, c, d, e, f, g] = numbers[..] else { unreachable!() };
        check_promises(&file(
            &format!(
                r#"{{"x":{{"dtype":"{dtype}","shape":[{a},{b}],"data_offsets":[{c},{d}]}},
                     "y":{{"dtype":"F32","shape":[{e}],"data_offsets":[{f},{g}]}}}}"#
            ),
            16,
        ));
    }
}
