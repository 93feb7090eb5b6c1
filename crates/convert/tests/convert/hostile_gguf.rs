//! GGUF files from strangers: every number in them may lie.

use std::fs;
use std::path::{Path, PathBuf};

use basert_convert::gguf::{GgufFile, parse};
use basert_quant::{GgmlType, ggml};
use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

const U8: u32 = 0;
const U32: u32 = 4;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;

/// A file under construction; every field can be made to lie.
#[derive(Clone)]
struct Gguf {
    magic: [u8; 4],
    version: u32,
    tensor_count: Option<u64>,
    key_count: Option<u64>,
    /// Key, type, value bytes.
    keys: Vec<(Vec<u8>, u32, Vec<u8>)>,
    tensors: Vec<Tensor>,
    alignment: usize,
    data: usize,
}

#[derive(Clone)]
struct Tensor {
    name: &'static str,
    n_dims: Option<u32>,
    /// Innermost first, as in the file.
    ne: Vec<u64>,
    ty: u32,
    offset: u64,
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

fn key(name: &str, ty: u32, value: impl AsRef<[u8]>) -> (Vec<u8>, u32, Vec<u8>) {
    (name.as_bytes().to_vec(), ty, value.as_ref().to_vec())
}

fn array(ty: u32, count: u64, items: &[u8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &count.to_le_bytes(), items].concat()
}

fn tensor(name: &'static str, ne: &[u64], ty: GgmlType, offset: u64) -> Tensor {
    Tensor { name, n_dims: None, ne: ne.to_vec(), ty: ty.id(), offset }
}

impl Gguf {
    /// Two tensors: f32 [2, 3] and Q4_0 [2, 32].
    fn valid() -> Gguf {
        Gguf {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            key_count: None,
            keys: vec![
                key("general.architecture", STRING, text(b"llama")),
                key("llama.rope.freq_base", F32, 1e4f32.to_le_bytes()),
                key("flag", BOOL, [1]),
                key("big", U64, u64::MAX.to_le_bytes()),
                key("names", ARRAY, array(STRING, 2, &[text(b"a"), text(b"")].concat())),
            ],
            tensors: vec![tensor("a", &[3, 2], GgmlType::F32, 0), tensor("b", &[32, 2], GgmlType::Q4_0, 32)],
            alignment: 32,
            data: 68,
        }
    }

    fn with_key(name: &str, ty: u32, value: impl AsRef<[u8]>) -> Gguf {
        let mut file = Gguf::valid();
        file.keys.push(key(name, ty, value));
        file
    }

    fn with_tensor(change: impl FnOnce(&mut Tensor)) -> Gguf {
        let mut file = Gguf::valid();
        change(&mut file.tensors[1]);
        file
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (name, ty, value) in &self.keys {
            out.extend(text(name));
            out.extend(ty.to_le_bytes());
            out.extend(value);
        }
        for tensor in &self.tensors {
            out.extend(text(tensor.name.as_bytes()));
            out.extend(tensor.n_dims.unwrap_or(tensor.ne.len() as u32).to_le_bytes());
            tensor.ne.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend((0..self.data).map(|i| i as u8));
        out
    }

    fn refusal(&self) -> String {
        parse(&self.bytes()).unwrap_err().to_string()
    }
}

#[test]
fn a_valid_file_opens_in_both_versions() {
    for version in [2, 3] {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, Gguf { version, ..Gguf::valid() }.bytes()).unwrap();
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(
            serde_json::Value::Object(file.metadata().clone()),
            json!({
                "general.architecture": "llama",
                "llama.rope.freq_base": 10000.0,
                "flag": true,
                "big": u64::MAX,
                "names": ["a", ""],
            })
        );
        let tensors: Vec<_> =
            file.tensors().map(|t| (t.name, t.ty, t.shape.to_vec(), t.data.len())).collect();
        assert_eq!(tensors, [("a", GgmlType::F32, vec![2, 3], 24), ("b", GgmlType::Q4_0, vec![2, 32], 36)]);
        assert_eq!(file.get("b").unwrap().data[..3], [32, 33, 34]);
        assert_eq!(file.get("c"), None);
    }
}

#[test]
fn every_kind_of_value_becomes_json() {
    let table = [
        (0, vec![200], json!(200)),
        (1, vec![0xFE], json!(-2)),
        (2, 65535u16.to_le_bytes().to_vec(), json!(65535)),
        (3, (-3i16).to_le_bytes().to_vec(), json!(-3)),
        (4, u32::MAX.to_le_bytes().to_vec(), json!(u32::MAX)),
        (5, i32::MIN.to_le_bytes().to_vec(), json!(i32::MIN)),
        (6, 0.1f32.to_le_bytes().to_vec(), json!(f64::from(0.1f32))),
        (7, vec![0], json!(false)),
        (8, text("é".as_bytes()), json!("é")),
        (10, u64::MAX.to_le_bytes().to_vec(), json!(u64::MAX)),
        (11, i64::MIN.to_le_bytes().to_vec(), json!(i64::MIN)),
        (12, 0.1f64.to_le_bytes().to_vec(), json!(0.1)),
    ];
    for (ty, bytes, value) in table {
        let contents = parse(&Gguf::with_key("k", ty, &bytes).bytes()).unwrap();
        assert_eq!(contents.metadata["k"], value, "type {ty}");
        let twice = array(ty, 2, &[&bytes[..], &bytes].concat());
        let contents = parse(&Gguf::with_key("k", ARRAY, twice).bytes()).unwrap();
        assert_eq!(contents.metadata["k"], json!([value, value]), "array of type {ty}");
    }
}

#[test]
fn a_file_without_tensors_may_end_before_the_padding() {
    let file = Gguf { tensors: Vec::new(), alignment: 1, data: 0, ..Gguf::valid() };
    assert!(parse(&file.bytes()).unwrap().tensors.is_empty());
}

#[test]
fn not_a_gguf_this_reader_knows() {
    let version = |version| Gguf { version, ..Gguf::valid() };
    let table = [
        (
            "wrong magic",
            Gguf { magic: *b"GGML", ..Gguf::valid() },
            "does not start with `GGUF`, so this is not a GGUF file",
        ),
        ("version 0", version(0), "is GGUF version 0; only versions 2 and 3 are supported"),
        ("version 1", version(1), "is GGUF version 1; only versions 2 and 3 are supported"),
        ("version 4", version(4), "is GGUF version 4; only versions 2 and 3 are supported"),
        (
            "big-endian 2",
            version(2 << 24),
            "is a big-endian GGUF file; only little-endian ones are supported",
        ),
        (
            "big-endian 3",
            version(3 << 24),
            "is a big-endian GGUF file; only little-endian ones are supported",
        ),
    ];
    for (attack, file, expected) in table {
        assert_eq!(file.refusal(), expected, "{attack}");
    }
}

#[test]
fn counts_that_the_file_cannot_hold() {
    for count in [1 << 63, u64::MAX, 1 << 40, 100] {
        let message = Gguf { tensor_count: Some(count), ..Gguf::valid() }.refusal();
        assert!(message.starts_with(&format!("claims {count} tensors, more than the ")), "{message}");
        let message = Gguf { key_count: Some(count), ..Gguf::valid() }.refusal();
        assert!(message.starts_with(&format!("claims {count} metadata keys, more than the ")), "{message}");
        for ty in [U8, STRING, U64] {
            let message = Gguf::with_key("k", ARRAY, array(ty, count.saturating_mul(10), &[])).refusal();
            assert!(message.starts_with("metadata key `k`: claims "), "{message}");
        }
    }
    // One more than there are: the next field is read as something else and refused, whatever it is.
    assert!(parse(&Gguf { key_count: Some(6), ..Gguf::valid() }.bytes()).is_err());
    assert!(parse(&Gguf { tensor_count: Some(3), ..Gguf::valid() }.bytes()).is_err());
}

#[test]
fn string_lengths_that_the_file_cannot_hold() {
    for length in [1u64 << 63, u64::MAX, 10_000] {
        let message = Gguf::with_key("k", STRING, length.to_le_bytes()).refusal();
        assert!(message.starts_with("metadata key `k`: a value at byte "), "{message}");
        assert!(message.contains(&format!(" needs {length} bytes, but only ")), "{message}");
        let message = Gguf::with_key("k", ARRAY, array(STRING, 1, &length.to_le_bytes())).refusal();
        assert!(message.contains(&format!(" needs {length} bytes, but only ")), "{message}");
    }
    // The first key's own length, at byte 24.
    let mut bytes = Gguf::valid().bytes();
    bytes[24..32].copy_from_slice(&(1u64 << 63).to_le_bytes());
    let message = parse(&bytes).unwrap_err().to_string();
    assert!(
        message.starts_with("a metadata key at byte 32 needs 9223372036854775808 bytes, but only "),
        "{message}"
    );
}

/// A byte of the file can become some thirty bytes of memory, so arrays are bounded together as well.
#[test]
fn arrays_that_would_multiply_in_memory() {
    // The valid file has an array of two already.
    let (half, rest) = (vec![0; 1 << 22], vec![0; (1 << 22) - 2]);
    let mut file = Gguf::with_key("one", ARRAY, array(U8, half.len() as u64, &half));
    file.keys.push(key("two", ARRAY, array(U8, rest.len() as u64, &rest)));
    parse(&file.bytes()).unwrap();
    file.keys.push(key("three", ARRAY, array(U8, 1, &[0])));
    assert_eq!(
        file.refusal(),
        "metadata key `three`: the arrays of the metadata have more than 8388608 elements"
    );
}

#[test]
fn metadata_that_makes_no_sense() {
    let mut nested = Vec::new();
    for _ in 0..1000 {
        nested.extend(array(ARRAY, 1, &[]));
    }
    let empty_key = {
        let mut file = Gguf::valid();
        file.keys.insert(0, key("", U8, [0]));
        file
    };
    let key_not_utf8 = {
        let mut file = Gguf::valid();
        file.keys.insert(0, (b"\xff\xfe".to_vec(), U8, vec![0]));
        file
    };
    let table = [
        ("empty key", empty_key, "a metadata key at byte 24 is empty"),
        ("key that is not UTF-8", key_not_utf8, "a metadata key at byte 32 is not UTF-8"),
        ("duplicate key", Gguf::with_key("flag", U8, [0]), "metadata key `flag` occurs twice"),
        ("unknown type", Gguf::with_key("k", 13, [0; 8]), "metadata key `k`: value type 13 does not exist"),
        (
            "type 2^32 - 1",
            Gguf::with_key("k", u32::MAX, [0; 8]),
            "metadata key `k`: value type 4294967295 does not exist",
        ),
        (
            "array of an unknown type",
            Gguf::with_key("k", ARRAY, array(99, 0, &[])),
            "metadata key `k`: value type 99 does not exist",
        ),
        (
            "1000 nested arrays",
            Gguf::with_key("k", ARRAY, nested),
            "metadata key `k`: arrays of arrays are not allowed",
        ),
        ("bool of 2", Gguf::with_key("k", BOOL, [2]), "metadata key `k`: a bool is 2, neither 0 nor 1"),
        (
            "bool of 255 in an array",
            Gguf::with_key("k", ARRAY, array(BOOL, 2, &[1, 255])),
            "metadata key `k`: a bool is 255, neither 0 nor 1",
        ),
        (
            "NaN",
            Gguf::with_key("k", F32, f32::NAN.to_le_bytes()),
            "metadata key `k`: a number is NaN, which is not finite",
        ),
        (
            "infinity in an array",
            Gguf::with_key("k", ARRAY, array(12, 1, &f64::NEG_INFINITY.to_le_bytes())),
            "metadata key `k`: a number is -inf, which is not finite",
        ),
    ];
    for (attack, file, expected) in table {
        assert_eq!(file.refusal(), expected, "{attack}");
    }
    let message = Gguf::with_key("k", STRING, text(b"\xff")).refusal();
    assert!(
        message.starts_with("metadata key `k`: a value at byte ") && message.ends_with(" is not UTF-8"),
        "{message}"
    );
}

#[test]
fn alignments_that_do_not_align() {
    let alignment = |value: u32| Gguf::with_key("general.alignment", U32, value.to_le_bytes());
    for value in [0, 3, 48, u32::MAX] {
        let expected = format!("general.alignment is {value}, which is not a power of two");
        assert_eq!(alignment(value).refusal(), expected);
    }
    for (ty, bytes) in [(U64, 64u64.to_le_bytes().to_vec()), (STRING, text(b"64")), (BOOL, vec![1])] {
        let message = Gguf::with_key("general.alignment", ty, bytes).refusal();
        assert_eq!(message, "metadata key `general.alignment` is not a u32");
    }
    // Larger than the file: the data would start after its end.
    let message = alignment(1 << 31).refusal();
    assert_eq!(message, "tensor `b`: offset 32 is not a multiple of 2147483648");

    let mut file = alignment(64);
    file.alignment = 64;
    file.tensors[1].offset = 64;
    file.data = 100;
    let contents = parse(&file.bytes()).unwrap();
    assert_eq!(contents.tensors[0].start % 64, 0);
    assert_eq!(contents.tensors[1].start, contents.tensors[0].start + 64);
    let one = Gguf { alignment: 1, ..alignment(1) };
    assert_eq!(parse(&one.bytes()).unwrap().tensors.len(), 2);
}

#[test]
fn tensors_that_cannot_be() {
    let dims = |ne: &[u64]| {
        let ne = ne.to_vec();
        Gguf::with_tensor(|tensor| tensor.ne = ne)
    };
    let n_dims = |n_dims| Gguf::with_tensor(|tensor| tensor.n_dims = Some(n_dims));
    let ty = |ty| Gguf::with_tensor(|tensor| tensor.ty = ty);
    let offset = |offset| Gguf::with_tensor(|tensor| tensor.offset = offset);
    let f32s = |ne: &[u64]| {
        let ne = ne.to_vec();
        Gguf::with_tensor(|tensor| (tensor.ty, tensor.ne) = (0, ne))
    };
    let table = [
        ("no dimensions", n_dims(0), "tensor `b` has 0 dimensions; 1 to 4 are allowed"),
        ("five dimensions", n_dims(5), "tensor `b` has 5 dimensions; 1 to 4 are allowed"),
        ("2^32 - 1 dimensions", n_dims(u32::MAX), "tensor `b` has 4294967295 dimensions; 1 to 4 are allowed"),
        ("zero rows", dims(&[32, 0]), "tensor `b` has a dimension of zero"),
        ("zero columns", dims(&[0, 2]), "tensor `b` has a dimension of zero"),
        ("all zero", dims(&[0]), "tensor `b` has a dimension of zero"),
        (
            "2^42 + 1 elements",
            f32s(&[(1 << 42) + 1]),
            "tensor `b` needs 17592186044420 bytes from offset 32, but there are 68 bytes of data",
        ),
        ("(2^63 - 1) x 2", f32s(&[(1 << 63) - 1, 2]), "tensor `b`: the shape's size overflows"),
        ("product of 2^64", f32s(&[1 << 32, 1 << 32]), "tensor `b`: the shape's size overflows"),
        ("bytes of 2^64", f32s(&[1 << 62]), "tensor `b`: the shape's size overflows"),
        (
            "bytes that wrap with the offset",
            {
                let mut file = f32s(&[4]);
                file.tensors[1].offset = u64::MAX - 31;
                file
            },
            "tensor `b` needs 16 bytes from offset 18446744073709551584, but there are 68 bytes of data",
        ),
        ("half a block", dims(&[48]), "tensor `b`: rows of 48 elements are not whole Q4_0 blocks of 32"),
        (
            "whole blocks, but not whole rows of them",
            dims(&[16, 2]),
            "tensor `b`: rows of 16 elements are not whole Q4_0 blocks of 32",
        ),
        ("unknown type", ty(99), "tensor `b`: ggml type 99 is unknown"),
        ("withdrawn type", ty(4), "tensor `b`: ggml type 4 is the withdrawn Q4_2"),
        ("unaligned", offset(33), "tensor `b`: offset 33 is not a multiple of 32"),
        (
            "past the end",
            offset(64),
            "tensor `b` needs 36 bytes from offset 64, but there are 68 bytes of data",
        ),
        ("inside another", offset(0), "tensors `a` and `b` overlap"),
        ("no name", Gguf::with_tensor(|tensor| tensor.name = ""), "a tensor name at byte 232 is empty"),
        ("twice", Gguf::with_tensor(|tensor| tensor.name = "a"), "tensor `a` occurs twice"),
    ];
    for (attack, file, expected) in table {
        assert_eq!(file.refusal(), expected, "{attack}");
    }
    let larger = Gguf::with_tensor(|tensor| (tensor.name, tensor.ne, tensor.ty) = ("b", vec![256], 16));
    assert!(parse(&Gguf { data: 98, ..larger }.bytes()).is_ok(), "a type without decoder can be listed");
}

#[test]
fn every_truncation_is_refused() {
    let bytes = Gguf::valid().bytes();
    for length in 0..bytes.len() {
        assert!(parse(&bytes[..length]).is_err(), "accepted {length} of {} bytes", bytes.len());
    }
}

#[test]
fn open_names_the_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("x.gguf");
    let message = GgufFile::open(&path).unwrap_err().to_string();
    assert!(message.starts_with(&format!("{}: cannot be read: ", path.display())), "{message}");
    fs::write(&path, []).unwrap();
    let message = GgufFile::open(&path).unwrap_err().to_string();
    assert_eq!(
        message,
        format!("{}: does not start with `GGUF`, so this is not a GGUF file", path.display())
    );
}

/// Whatever is accepted must hold what the reader promises.
fn check_promises(bytes: &[u8]) {
    let Ok(contents) = parse(bytes) else { return };
    let mut ranges = Vec::new();
    for tensor in &contents.tensors {
        let elements = tensor.shape.iter().map(|&dim| dim as u128).product::<u128>();
        let blocks = (tensor.end - tensor.start) as u128 / tensor.ty.block_bytes() as u128;
        assert_eq!(elements, blocks * tensor.ty.block_size() as u128);
        assert!(tensor.end <= bytes.len() && !tensor.name.is_empty());
        ranges.push((tensor.start, tensor.end));
        if tensor.ty.is_supported() {
            let mut values = vec![0.0; elements as usize];
            ggml::decode(tensor.ty, &bytes[tensor.start..tensor.end], &mut values).unwrap();
        }
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutations_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = Gguf::valid().bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(length.index(bytes.len()));
        }
        check_promises(&bytes);
    }

    /// Whole fields replaced, so that the checks behind the first one are reached.
    #[test]
    fn other_numbers_never_panic(
        ne in prop::collection::vec(prop_oneof![0u64..70, any::<u64>(), Just(1 << 32), Just(u64::MAX)], 0..6),
        n_dims in prop::option::weighted(0.2, 0u32..7),
        ty in prop_oneof![0u32..45, any::<u32>()],
        offset in prop_oneof![(0u64..4).prop_map(|n| n * 32), any::<u64>()],
        alignment in prop::option::of(0u32..300),
        value_type in 0u32..14,
        value in prop::collection::vec(any::<u8>(), 0..24),
    ) {
        let mut file = Gguf::with_key("k", value_type, value);
        if let Some(alignment) = alignment {
            file.keys.push(key("general.alignment", U32, alignment.to_le_bytes()));
        }
        file.tensors.push(Tensor { name: "c", n_dims, ne, ty, offset });
        check_promises(&file.bytes());
    }
}

/// llama.cpp's own conversions, which stand beside the project.
#[test]
fn real_files_open() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/gguf");
    if !dir.is_dir() {
        assert!(std::env::var_os("BASERT_REQUIRE_FIXTURES").is_none(), "{} is missing", dir.display());
        println!("skipped: {} is missing", dir.display());
        return;
    }
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "gguf");
    let files: Vec<PathBuf> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(is_gguf).collect();
    assert!(files.len() >= 8, "only {} files", files.len());
    for path in files {
        let file = GgufFile::open(&path).unwrap();
        let vocabulary = file.metadata()["tokenizer.ggml.tokens"].as_array().unwrap().len();
        let embedding = file.get("token_embd.weight").unwrap();
        assert_eq!(embedding.shape[0], vocabulary, "{}", path.display());
        for tensor in file.tensors() {
            let mut values = vec![f32::NAN; tensor.shape.iter().product()];
            ggml::decode(tensor.ty, tensor.data, &mut values).unwrap();
            assert!(values.iter().all(|value| value.is_finite()), "{} in {}", tensor.name, path.display());
        }
    }
}
