//! Files from strangers. Each test is named after the attack; each must end in one sentence that names the
//! file, the tensor and the field.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use crate::common::{assemble, assert_refused, foreign_header, on_disk, open};
use basert_format::{BaseFile, SlotFlags, SlotKind};
use proptest::prelude::*;

const F32_4: &str =
    r#"{"name":"a","dtype":"f32","shape":[4],"offset":0,"length":16,"residency":"hot","checksum_xxh64":1}"#;
const Q4_64: &str = r#"{"name":"q","dtype":"base_q4","shape":[1,64],"offset":0,"length":36,"scale_offset":32,"scale_length":2,"bias_offset":34,"bias_length":2,"group_size":64,"scale_dtype":"f16","residency":"warm","checksum_xxh64":1}"#;

/// A file with one entry, `from` replaced by `to`, and 1 KiB of blob.
#[track_caller]
fn edited(entry: &str, from: &str, to: &str) -> Vec<u8> {
    assert!(entry.contains(from), "{from} is not in the entry");
    assemble(&foreign_header(&entry.replace(from, to)), &[0; 1024])
}

/// A file whose header has `from` replaced by `to`.
#[track_caller]
fn edited_header(from: &str, to: &str) -> Vec<u8> {
    let header = foreign_header(F32_4);
    assert!(header.contains(from), "{from} is not in the header");
    assemble(&header.replace(from, to), &[0; 16])
}

/// A file with the given bytes where the slot section starts.
fn with_slots(section: &[u8]) -> Vec<u8> {
    let mut file = assemble(&foreign_header(F32_4), &[0; 16]);
    file.extend(section);
    file
}

fn slot(kind: u16, flags: u16, len: u64, payload: &[u8]) -> Vec<u8> {
    let mut record = kind.to_le_bytes().to_vec();
    record.extend(flags.to_le_bytes());
    record.extend(len.to_le_bytes());
    record.extend(0u64.to_le_bytes());
    record.extend(payload);
    record
}

#[test]
fn the_unedited_files_are_accepted() {
    for entry in [F32_4, Q4_64] {
        let len = if entry == F32_4 { 16 } else { 36 };
        open(&assemble(&foreign_header(entry), &vec![0; len])).expect("valid");
    }
}

#[test]
fn zero_length_file() {
    assert_refused(b"", &["the file is empty"]);
}

#[test]
fn wrong_magic() {
    assert_refused(b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0", &["not a .base file", "47, 47, 55, 46"]);
    assert_refused(b"PK", &["not a .base file"]);
}

#[test]
fn version_2() {
    let mut file = assemble(&foreign_header(F32_4), &[0; 16]);
    file[4] = 2;
    assert_refused(&file, &["version 2 is not supported"]);
}

#[test]
fn truncated_inside_the_preamble() {
    for len in 1..16 {
        assert_refused(&b"BASE\x01\0\0\0\x09\0\0\0\0\0\0\0"[..len], &["truncated"]);
    }
}

#[test]
fn truncated_at_every_sixteenth() {
    let entry = F32_4.replace("[4]", "[16384]").replace("\"length\":16", "\"length\":65536");
    let bytes = assemble(&foreign_header(&entry), &vec![7; 65536]);
    open(&bytes).expect("whole");
    for part in 0..16 {
        assert!(open(&bytes[..bytes.len() * part / 16]).is_err(), "{part}/16 of the file was accepted");
    }
}

#[test]
fn a_directory_or_a_missing_file() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let message = BaseFile::open(dir.path()).expect_err("directory").to_string();
    assert!(message.contains("not a regular file"), "{message}");
    let message = BaseFile::open(&dir.path().join("none.base")).expect_err("missing").to_string();
    assert!(message.contains("none.base: cannot open it"), "{message}");
}

#[test]
fn header_len_longer_than_the_file() {
    let mut file = assemble(&foreign_header(F32_4), &[0; 16]);
    let beyond = file.len() as u64 - 15;
    file[8..16].copy_from_slice(&beyond.to_le_bytes());
    assert_refused(&file, &["`header_len`", "truncated"]);
}

#[test]
fn header_len_of_2_to_the_63_and_of_all_ones() {
    let mut file = assemble(&foreign_header(F32_4), &[0; 16]);
    for len in [1u64 << 63, u64::MAX, u64::MAX - 65536] {
        file[8..16].copy_from_slice(&len.to_le_bytes());
        assert_refused(&file, &["`header_len`", "limit"]);
    }
}

#[test]
fn header_that_is_no_json_or_no_utf8() {
    assert_refused(&assemble("not json", b""), &["the header: expected ident"]);
    assert_refused(&assemble("", b""), &["the header: EOF"]);
    assert_refused(&assemble("[]", b""), &["the header"]);
    let trailing = foreign_header(F32_4) + "x";
    assert_refused(&assemble(&trailing, &[0; 16]), &["the header: trailing characters"]);
    let mut file = assemble(&foreign_header(F32_4), &[0; 16]);
    file[40] = 0xff;
    assert_refused(&file, &["not UTF-8", "24"]);
}

#[test]
fn header_nested_a_million_deep() {
    let deep = "[".repeat(1 << 20);
    let header = foreign_header(F32_4).replace(r#""config":{}"#, &format!(r#""config":{{"a":{deep}"#));
    assert_refused(&assemble(&header, &[0; 16]), &["config.a", "recursion limit"]);
}

#[test]
fn header_without_a_required_key() {
    for key in ["schema", "arch", "source", "tokenizer", "config", "tensors"] {
        let file = edited_header(&format!("\"{key}\""), &format!("\"_{key}\""));
        assert_refused(&file, &["missing field", key]);
    }
    assert_refused(&edited(F32_4, "\"length\"", "\"size\""), &["missing field `length`", "tensor `a`"]);
}

#[test]
fn schema_2() {
    assert_refused(&edited_header(r#""schema":1"#, r#""schema":2"#), &["`schema` is 2"]);
}

#[test]
fn duplicate_json_keys() {
    assert_refused(&edited_header(r#""arch":"#, r#""arch":"llama","arch":"#), &["duplicate field `arch`"]);
    assert_refused(
        &edited_header(r#""config":{}"#, r#""config":{"a":1,"a":2}"#),
        &["config", "duplicate key \"a\""],
    );
    assert_refused(
        &edited_header(r#""tokenizer":{}"#, r#""tokenizer":{"x":{},"x":{}}"#),
        &["duplicate key \"x\""],
    );
    assert_refused(
        &edited(F32_4, r#""offset":0"#, r#""offset":0,"offset":0"#),
        &["duplicate field `offset`"],
    );
}

#[test]
fn wrong_enum_strings() {
    let entry = |from, to| edited(Q4_64, from, to);
    for (file, parts) in [
        (entry("base_q4", "fp7"), ["tensors[0].dtype", "tensor `q`", "fp7"]),
        (entry("f16", "f12"), ["tensors[0].scale_dtype", "tensor `q`", "f12"]),
        (entry("warm", "tepid"), ["tensors[0].residency", "tensor `q`", "tepid"]),
        (
            entry("\"warm\"", "\"hot\",\"layout\":\"tile_8x8_mlx\""),
            ["tensors[0].layout", "tensor `q`", "tile_8x8_mlx"],
        ),
        (
            entry("\"warm\"", "\"hot\",\"compute_region\":\"npu\""),
            ["tensors[0].compute_region", "tensor `q`", "npu"],
        ),
        (edited_header("bf16", "q4_k_m"), ["quant_scheme", "q4_k_m", "base_q4"]),
        (edited_header("hf_safetensors", "pickle"), ["source.format", "pickle", "gguf"]),
        (
            edited_header("\"config\"", "\"target_backend\":\"cuda\",\"config\""),
            ["target_backend", "cuda", "metal"],
        ),
    ] {
        assert_refused(&file, &parts);
    }
}

#[test]
fn flags_that_are_no_strings() {
    for flags in ["8", "\"0xg\"", "\"\"", "\"+8\"", "\"0x+8\"", "\"-1\"", "\"0x100000000\""] {
        let file = edited(F32_4, "\"hot\"", &format!("\"hot\",\"flags\":{flags}"));
        assert_refused(&file, &["tensors[0].flags", "tensor `a`"]);
    }
}

#[test]
fn sizes_that_are_no_integers() {
    for (from, to) in
        [("\"offset\":0", "\"offset\":-1"), ("\"length\":16", "\"length\":1.6e1"), ("[4]", "[4.0]")]
    {
        assert_refused(&edited(F32_4, from, to), &["tensor `a`", "invalid"]);
    }
}

#[test]
fn duplicate_names() {
    let second = F32_4.replace("\"offset\":0", "\"offset\":64");
    let file = assemble(&foreign_header(&format!("{F32_4},{second}")), &[0; 128]);
    assert_refused(&file, &["tensor `a` occurs twice in `tensors`"]);
}

#[test]
fn names_that_cannot_be_shown() {
    let long = "n".repeat(1025);
    for name in ["", "a\\n[x]", "\\u001b[2J", long.as_str()] {
        let file = edited(F32_4, "\"a\"", &format!("\"{name}\""));
        assert_refused(&file, &["`tensors[0].name`", "control characters"]);
    }
}

#[test]
fn overlapping_tensors() {
    let second = F32_4.replace("\"a\"", "\"b\"").replace("\"offset\":0", "\"offset\":15");
    let file = assemble(&foreign_header(&format!("{second},{F32_4}")), &[0; 128]);
    assert_refused(&file, &["`a` and `b` overlap", "15"]);
}

#[test]
fn overlap_of_main_and_mmproj() {
    let tower = F32_4.replace("\"a\"", "\"visual\"").replace("\"offset\":0", "\"offset\":8");
    let header = foreign_header(F32_4).replace(
        r#""tensors":["#,
        &format!(r#""mmproj":{{"arch":"qwen35_mm","tensors":[{tower}]}},"tensors":["#),
    );
    assert_refused(&assemble(&header, &[0; 64]), &["`a` and `visual` overlap"]);
}

#[test]
fn offset_past_the_end() {
    assert_refused(
        &edited(F32_4, "\"offset\":0", "\"offset\":1009"),
        &["tensor `a`", "`offset` 1009", "past the end"],
    );
    open(&edited(F32_4, "\"offset\":0", "\"offset\":1008"))
        .expect("the last place that fits, unaligned as it is");
}

#[test]
fn offset_plus_length_overflows() {
    let file = edited(F32_4, "\"offset\":0", "\"offset\":18446744073709551615");
    assert_refused(&file, &["tensor `a`", "`offset` 18446744073709551615", "past the end"]);
}

#[test]
fn absurd_shape_products() {
    let whole = "[4294967296,4294967296,2]";
    assert_refused(&edited(F32_4, "[4]", whole), &["tensor `a`", "`shape`", "64 bits"]);
    assert_refused(&edited(F32_4, "[4]", "[9223372036854775808]"), &["tensor `a`", "`shape`", "more bytes"]);
    assert_refused(&edited(Q4_64, "[1,64]", "[18446744073709551552]"), &["tensor `q`", "`scale_offset`"]);
}

#[test]
fn shape_and_length_disagree() {
    assert_refused(&edited(F32_4, "[4]", "[5]"), &["tensor `a`", "`length` is 16", "20"]);
    assert_refused(&edited(Q4_64, "\"length\":36", "\"length\":40"), &["tensor `q`", "`length` is 40", "36"]);
    assert_refused(&edited(F32_4, "[4]", "[0]"), &["tensor `a`", "`length` is 16", "0"]);
}

#[test]
fn shape_that_the_group_does_not_divide() {
    assert_refused(&edited(Q4_64, "[1,64]", "[1,65]"), &["tensor `q`", "`shape`", "65 elements"]);
    assert_refused(&edited(Q4_64, "\"group_size\":64", "\"group_size\":0"), &["tensor `q`", "group size 0"]);
}

#[test]
fn scale_and_bias_offsets_that_point_elsewhere() {
    for (from, to, field) in [
        ("\"scale_offset\":32", "\"scale_offset\":31", "`scale_offset` is 31"),
        ("\"scale_length\":2", "\"scale_length\":4", "`scale_length` is 4"),
        (
            "\"bias_offset\":34",
            "\"bias_offset\":18446744073709551615",
            "`bias_offset` is 18446744073709551615",
        ),
        ("\"bias_length\":2", "\"bias_length\":1", "`bias_length` is 1"),
        ("\"scale_length\":2,", "", "`scale_length` is missing"),
        ("\"bias_length\":2,", "", "`bias_length` is missing"),
        ("\"bias_offset\":34,", "", "`bias_length` is given"),
        ("\"group_size\":64,", "", "`group_size` is missing"),
        ("\"scale_dtype\":\"f16\",", "", "`scale_dtype` is missing"),
        ("\"scale_dtype\":\"f16\"", "\"scale_dtype\":\"f16\",\"symmetric\":true", "`bias_offset` is given"),
        ("\"bias_length\":2", "\"bias_length\":2,\"awq_scale_offset\":0", "AWQ"),
    ] {
        assert_refused(&edited(Q4_64, from, to), &["tensor `q`", field]);
    }
    assert_refused(
        &edited(F32_4, "\"length\":16", "\"length\":16,\"scale_offset\":16"),
        &["`scale_offset` is given"],
    );
}

#[test]
fn layouts_nobody_published() {
    for layout in ["cuda_tc_m16n8k16", "cuda_dp4a", "rocm_mfma"] {
        let file = edited(Q4_64, "\"warm\"", &format!("\"warm\",\"layout\":\"{layout}\""));
        assert_refused(&file, &["tensor `q`", "`layout`", layout]);
    }
}

#[test]
fn gguf_super_that_contradicts_itself() {
    let good = r#"{"name":"k","dtype":"base_q4","shape":[256],"offset":0,"length":144,"group_size":256,"layout":"gguf_super","residency":"warm","checksum_xxh64":1,"source_ggml_type":12}"#;
    open(&assemble(&foreign_header(good), &[0; 144])).expect("valid");
    for (from, to, part) in [
        ("\"source_ggml_type\":12", "\"source_ggml_type\":14", "`source_ggml_type` is 14"),
        (",\"source_ggml_type\":12", "", "`source_ggml_type` is missing"),
        ("\"group_size\":256", "\"group_size\":32", "`group_size` is 32"),
        ("base_q4", "base_q8", "base_q8"),
        ("[256]", "[128]", "`shape`"),
        ("\"length\":144", "\"length\":145", "`length` is 145"),
        ("\"length\":144", "\"length\":144,\"scale_offset\":128", "`scale_offset` is given"),
    ] {
        assert_refused(&edited(good, from, to), &["tensor `k`", part]);
    }
}

#[test]
fn fp4_with_the_wrong_scales() {
    let good = r#"{"name":"m","dtype":"mxfp4","shape":[32],"offset":0,"length":17,"scale_offset":16,"scale_length":1,"group_size":32,"scale_dtype":"e8m0","residency":"warm","checksum_xxh64":1}"#;
    open(&assemble(&foreign_header(good), &[0; 17])).expect("valid");
    assert_refused(&edited(good, "e8m0", "e4m3"), &["tensor `m`", "`scale_dtype` is e4m3", "e8m0"]);
    assert_refused(
        &edited(good, "\"group_size\":32", "\"group_size\":16"),
        &["tensor `m`", "`group_size` is 16"],
    );
    let biased = "\"scale_length\":1,\"bias_offset\":17,\"bias_length\":1";
    assert_refused(&edited(good, "\"scale_length\":1", biased), &["tensor `m`", "`bias_offset` is given"]);
}

#[test]
fn ssm_a_matrix_of_another_dtype_or_region() {
    let flags = |region: &str| format!("\"hot\",{region}\"flags\":\"0x00000008\"");
    assert_refused(&edited(F32_4, "\"hot\"", &flags("")), &["tensor `a`", "SSM_A_MATRIX", "gpu"]);
    let good = F32_4.replace("\"hot\"", &flags("\"compute_region\":\"cpu\","));
    open(&assemble(&foreign_header(&good), &[0; 16])).expect("f32 and cpu");
}

#[test]
fn transposed_tensor() {
    assert_refused(&edited(F32_4, "\"hot\"", "\"hot\",\"flags\":\"1\""), &["tensor `a`", "TRANSPOSED"]);
}

#[test]
fn absurd_alignment() {
    let alignment = r#""alignment":{"accel_align_log2":6,"gpu_page_log2":64,"cpu_align_log2":6},"tensors""#;
    assert_refused(&edited_header("\"tensors\"", alignment), &["alignment.gpu_page_log2", "64"]);
}

#[test]
fn slot_count_of_2_to_the_32_minus_1() {
    assert_refused(&with_slots(&[0xff; 4]), &["slot section", "4294967295"]);
}

#[test]
fn slot_payload_len_of_2_to_the_63() {
    let section = [1u32.to_le_bytes().to_vec(), slot(0xff, 0, 1 << 63, &[0; 8])].concat();
    assert_refused(&with_slots(&section), &["slot 0", "9223372036854775808", "8 bytes are left"]);
}

#[test]
fn slot_section_cut_or_continued() {
    let whole =
        [2u32.to_le_bytes().to_vec(), slot(6, 0, 8, b"{\"a\":12}"), slot(0xff, 0, 3, b"abc")].concat();
    let file = open(&with_slots(&whole)).expect("the last payload's padding may be missing");
    assert_eq!(file.slots().iter().map(|slot| slot.payload_len()).collect::<Vec<_>>(), [8, 3]);
    for len in 1..whole.len() {
        assert_refused(&with_slots(&whole[..len]), &["slot section"]);
    }
    assert_refused(&with_slots(&[&whole[..], &[0; 6]].concat()), &["1 bytes are left over after 2 slots"]);
}

#[test]
fn required_slot_of_unknown_kind() {
    let section = |flags| with_slots(&[1u32.to_le_bytes().to_vec(), slot(0x77, flags, 0, b"")].concat());
    assert_refused(&section(1), &["slot 0", "0x77", "required"]);
    let file = open(&section(0)).expect("optional");
    assert_eq!(file.slots()[0].kind, SlotKind::Unknown(0x77));
}

#[test]
fn compressed_slot_is_listed_but_not_handed_out() {
    let section = [1u32.to_le_bytes().to_vec(), slot(6, 2, 8, &[9; 8])].concat();
    let file = open(&with_slots(&section)).expect("listed");
    assert_eq!(file.slots()[0].flags, SlotFlags::COMPRESSED_ZSTD);
    let message = file.slot_payload(0).expect_err("compressed").to_string();
    assert!(message.contains("slot 0 is compressed"), "{message}");
    let message = file.slot_payload(1).expect_err("absent").to_string();
    assert!(message.contains("no slot 1"), "{message}");
}

/// Looks at everything an opened file offers.
fn walk(file: &BaseFile) {
    for tensor in file.tensors().chain(file.mmproj_tensors()) {
        let elements = tensor.entry.elements().expect("checked on opening");
        assert_eq!(tensor.encoding.payload_len(elements), Ok(tensor.data.len() as u64));
    }
    for index in 0..file.slots().len() {
        file.slot_payload(index).map(<[u8]>::len).ok();
    }
    file.verify_checksums(&mut |_, _| {}).ok();
}

fn sample() -> (Vec<u8>, usize) {
    let second = Q4_64.replace("\"offset\":0", "\"offset\":64");
    let header = foreign_header(&format!("{F32_4},{second}"));
    let front = 16 + header.len();
    let slots = [1u32.to_le_bytes().to_vec(), slot(6, 0, 8, &[1; 8])].concat();
    (assemble(&header, &[vec![0; 104], slots].concat()), front)
}

#[test]
fn every_single_bit_flip_in_front_of_the_weights() {
    let (bytes, front) = sample();
    let disk = on_disk(&bytes);
    let file = OpenOptions::new().write(true).open(&disk.path).expect("opened");
    let mut refused = 0;
    for at in 0..front {
        for bit in 0..8 {
            file.write_all_at(&[bytes[at] ^ 1 << bit], at as u64).expect("written");
            match BaseFile::open(&disk.path) {
                Ok(file) => walk(&file),
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("model.base"), "{error}");
                }
            }
        }
        file.write_all_at(&bytes[at..=at], at as u64).expect("restored");
    }
    walk(&BaseFile::open(&disk.path).expect("restored"));
    // Flips inside names and free text stay valid; most of a header is structure.
    assert!(refused > front * 8 / 2, "only {refused} of {} flips were noticed", front * 8);
}

const JSON_PIECES: &[&str] =
    &["18446744073709551615", "-1", "1e400", "null", "{}", "[]", "\"x\"", ",", "}", "]"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn random_bytes_spliced_into_the_file(
        at in 0usize..2000,
        remove in 0usize..40,
        insert in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..20),
            prop::sample::select(JSON_PIECES).prop_map(|text| text.as_bytes().to_vec()),
        ],
    ) {
        let (mut bytes, front) = sample();
        let at = at % front;
        let end = (at + remove).min(front);
        bytes.splice(at..end, insert);
        if let Ok(file) = open(&bytes) {
            walk(&file);
        }
    }
}
