//! What the writer writes and the reader reads back.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{F32, assemble, foreign_header, header, open, planned, write};
use basert_format::{
    BaseFile, BaseWriter, ComputeRegion, HeaderFlags, Layout, MmProj, PlannedTensor, Residency, SlotFlags,
    SlotKind, SourceFormat, TensorFlags,
};
use basert_quant::{Dtype, Encoding, FloatDtype, Fp4, GgmlType, ScaleDtype};
use serde_json::json;
use serde_json::value::to_raw_value;
use tempfile::tempdir;

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("hex")).collect()
}

fn affine(bits: u32, group: usize, scale: ScaleDtype, symmetric: bool) -> Encoding {
    Encoding::Affine { bits, group, scale, symmetric }
}

/// The format's packing vectors, each with a scale (and bias) that makes the codes visible in the values.
fn vectors() -> Vec<(&'static str, Encoding, &'static str, Vec<f32>)> {
    let codes = |codes: &[i32], value: fn(f32) -> f32| codes.iter().map(|code| value(*code as f32)).collect();
    let fp4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    let doubled: Vec<f32> = fp4.iter().map(|value| value * 2.0).collect();
    vec![
        (
            "q2, bf16 scale 1 and bias -1",
            affine(2, 16, ScaleDtype::Bf16, false),
            "e4 1b a5 0f  80 3f  80 bf",
            codes(&[0, 1, 2, 3, 3, 2, 1, 0, 1, 1, 2, 2, 3, 3, 0, 0], |code| code - 1.0),
        ),
        (
            "q3, f16 scale 0.5 and bias 0",
            affine(3, 8, ScaleDtype::F16, false),
            "88 c6 fa  00 38  00 00",
            codes(&[0, 1, 2, 3, 4, 5, 6, 7], |code| code * 0.5),
        ),
        (
            "q4, negative f16 scale -1 and bias 15",
            affine(4, 8, ScaleDtype::F16, false),
            "ba dc fe 21  00 bc  80 4b",
            codes(&[10, 11, 12, 13, 14, 15, 1, 2], |code| 15.0 - code),
        ),
        (
            "q5, symmetric, bf16 scale 2",
            affine(5, 8, ScaleDtype::Bf16, true),
            "20 88 c1 bb ff  00 40",
            codes(&[0, 1, 2, 3, 28, 29, 30, 31], |code| (code - 16.0) * 2.0),
        ),
        (
            "q6, symmetric, e8m0 scale 2",
            affine(6, 8, ScaleDtype::E8m0, true),
            "81 30 fc 81 30 fc  80",
            codes(&[1, 2, 3, 63, 1, 2, 3, 63], |code| (code - 32.0) * 2.0),
        ),
        (
            "q8, e4m3 scale 1 and bias -2",
            affine(8, 8, ScaleDtype::E4m3, false),
            "00 01 fe ff 00 01 fe ff  38  c0",
            codes(&[0, 1, 254, 255, 0, 1, 254, 255], |code| code - 2.0),
        ),
        (
            "mxfp4, scale 2",
            Encoding::Fp4(Fp4::Mx),
            "10 32 54 76 98 ba dc fe 10 32 54 76 98 ba dc fe  80",
            [&doubled[..], &doubled[..]].concat(),
        ),
        ("nvfp4, scale 2", Encoding::Fp4(Fp4::Nv), "10 32 54 76 98 ba dc fe  40", doubled),
        ("f32", F32, "00 00 80 3f 00 00 00 c0", vec![1.0, -2.0]),
        ("f16", Encoding::Float(FloatDtype::F16), "00 3c 00 c0", vec![1.0, -2.0]),
        ("bf16", Encoding::Float(FloatDtype::Bf16), "80 3f 00 c0", vec![1.0, -2.0]),
    ]
}

#[test]
fn packing_vectors_survive_the_container() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("vectors.base");
    let tensors = vectors().into_iter().map(|(name, encoding, payload, values)| {
        (planned(name, &[1, values.len() as u64], encoding), hex(payload))
    });
    write(&path, header(), tensors.collect()).expect("written");
    let file = BaseFile::open(&path).expect("valid");
    assert_eq!(file.tensors().count(), vectors().len());
    for (name, encoding, payload, values) in vectors() {
        let tensor = file.tensor(name).expect(name);
        assert_eq!((tensor.encoding, tensor.data), (encoding, &hex(payload)[..]), "{name}");
        let mut decoded = vec![0.0; values.len()];
        tensor.encoding.decode(tensor.data, values.len(), 0, &mut decoded).expect(name);
        assert_eq!(decoded, values, "{name}");
    }
    file.verify_checksums(&mut |_, _| {}).expect("intact");
}

#[test]
fn gguf_superblocks_are_carried_byte_for_byte() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("super.base");
    for (block, dtype, bytes) in [
        (GgmlType::Q4K, Dtype::BaseQ4, 144),
        (GgmlType::Q5K, Dtype::BaseQ5, 176),
        (GgmlType::Q6K, Dtype::BaseQ6, 210),
    ] {
        let payload: Vec<u8> = (0..2 * bytes).map(|at| (at * 7) as u8).collect();
        let tensor = planned("k", &[2, 256], Encoding::Super(block));
        write(&path, header(), vec![(tensor, payload.clone())]).expect("written");
        let file = BaseFile::open(&path).expect("valid");
        let view = file.tensor("k").expect("present");
        assert_eq!(
            (view.encoding, view.data, view.entry.dtype()),
            (Encoding::Super(block), &payload[..], dtype)
        );
        assert_eq!(
            (view.entry.layout, view.entry.source_ggml_type),
            (Some(Layout::GgufSuper), Some(block.id()))
        );
        assert_eq!((view.entry.group_size, view.entry.scale_offset), (Some(256), None));
    }
}

/// A small file with everything optional in its header.
fn write_sample(path: &Path) {
    let mut header = header();
    header.created = "0".into();
    header.basert_version = "0.1.0".into();
    header.flags = HeaderFlags::QUANTIZED | HeaderFlags::TIED_EMBEDDINGS;
    header.tokenizer.insert("tokenizer_type".into(), to_raw_value("hf").expect("JSON"));
    let json = json!({"zebra": [1, {"b": null, "a": "é/\n\u{1}"}], "apple": 1.5});
    header.tokenizer.insert("tokenizer.json".into(), to_raw_value(&json).expect("JSON"));
    header.config.insert("vocab_size".into(), 16.into());
    header.config.insert("rms_norm_eps".into(), f64::from(1e-6f32).into());
    header.config.insert("rope_theta".into(), 1e7.into());
    header.metadata.insert("basert.version".into(), "0.1.0".into());
    header.mmproj = Some(MmProj { arch: "qwen35_mm".into(), config: BTreeMap::new(), tensors: vec![] });
    let a_log = PlannedTensor {
        region: ComputeRegion::Cpu,
        residency: Residency::Hot,
        flags: TensorFlags::SSM_A_MATRIX,
        ..planned("a_log", &[1], F32)
    };
    let codes = planned("codes", &[2, 8], affine(4, 16, ScaleDtype::F16, false));
    let symmetric = planned("symmetric", &[8], affine(2, 8, ScaleDtype::Bf16, true));
    let norm = PlannedTensor { region: ComputeRegion::Gpu, ..planned("norm", &[2], F32) };
    let tower = PlannedTensor { mmproj: true, residency: Residency::Cold, ..planned("visual", &[3], F32) };
    let plan = vec![a_log, codes, symmetric, norm, tower];
    let mut writer = BaseWriter::create(path, header, plan).expect("planned");
    for len in [4, 12, 4, 8, 12] {
        writer.write_tensor(&(0..len).collect::<Vec<u8>>()).expect("written");
    }
    writer.write_slot(SlotKind::CalibrationData, SlotFlags::default(), b"{}").expect("written");
    writer.write_slot(SlotKind::Custom, SlotFlags::REQUIRED, b"12345678").expect("written");
    let check = |header: &mut basert_format::Header| {
        header.metadata.insert("basert.selfcheck".into(), "ok".into());
    };
    writer.finish(check).expect("finished");
}

/// Key order, omitted defaults, strings for flags, f64 digits, compactness, and checksums beyond 2^53.
const SAMPLE_HEADER: &str = concat!(
    r#"{"schema":1,"arch":"qwen35","quant_scheme":"base_q4","min_hw":"apple_m1","created":"0","baserT_version":"0.1.0","#,
    r#""source":{"format":"hf_safetensors","sha256":"","filename":"tiny"},"#,
    r#""tokenizer":{"tokenizer.json":{"zebra":[1,{"b":null,"a":"é/\n\u0001"}],"apple":1.5},"tokenizer_type":"hf"},"#,
    r#""config":{"rms_norm_eps":9.999999974752427e-7,"rope_theta":10000000.0,"vocab_size":16},"#,
    r#""metadata":{"basert.selfcheck":"ok","basert.version":"0.1.0"},"target_backend":"metal","#,
    r#""alignment":{"accel_align_log2":6,"gpu_page_log2":14,"cpu_align_log2":6},"flags":"0x00000401","layers":[],"#,
    r#""tensors":[{"name":"a_log","dtype":"f32","shape":[1],"offset":0,"length":4,"residency":"hot","#,
    r#""compute_region":"cpu","flags":"0x00000008","checksum_xxh64":18432908232848821278},"#,
    r#"{"name":"codes","dtype":"base_q4","shape":[2,8],"offset":64,"length":12,"scale_offset":8,"scale_length":2,"#,
    r#""bias_offset":10,"bias_length":2,"group_size":16,"scale_dtype":"f16","residency":"warm","#,
    r#""compute_region":"accelerator","checksum_xxh64":4776896707697368229},"#,
    r#"{"name":"symmetric","dtype":"base_q2","shape":[8],"offset":128,"length":4,"scale_offset":2,"scale_length":2,"#,
    r#""group_size":8,"scale_dtype":"bf16","symmetric":true,"residency":"warm","#,
    r#""compute_region":"accelerator","checksum_xxh64":18432908232848821278},"#,
    r#"{"name":"norm","dtype":"f32","shape":[2],"offset":16384,"length":8,"residency":"warm","#,
    r#""checksum_xxh64":9820687458478070669}],"#,
    r#""mmproj":{"arch":"qwen35_mm","tensors":[{"name":"visual","dtype":"f32","shape":[3],"offset":16448,"length":12,"#,
    r#""residency":"cold","compute_region":"accelerator","checksum_xxh64":4776896707697368229}]}}"#,
);

#[test]
fn a_small_file_byte_for_byte() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("sample.base");
    write_sample(&path);
    let bytes = fs::read(&path).expect("read");

    // The header is padded with spaces up to the blob, and `header_len` counts them.
    assert_eq!(&bytes[..16], b"BASE\x01\0\0\0\xf0\xff\0\0\0\0\0\0");
    let header = std::str::from_utf8(&bytes[16..65536]).expect("UTF-8");
    assert_eq!(header.trim_end_matches(' '), SAMPLE_HEADER);

    let blob = &bytes[65536..];
    let mut expected = vec![0; 16460];
    for (offset, len) in [(0, 4), (64, 12), (128, 4), (16384, 8), (16448, 12)] {
        (0..len).for_each(|at| expected[offset + at] = at as u8);
    }
    assert_eq!(&blob[..16460], expected);
    let slots = [
        &[0, 0, 0, 0][..], // up to a multiple of 8
        &[2, 0, 0, 0],
        &[6, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
        &0x2e1472b57af294d1_u64.to_le_bytes(),
        b"{}\0\0\0\0\0\0",
        &[0xff, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0],
        &0xd2d02f08cf7cfd4a_u64.to_le_bytes(),
        b"12345678",
    ];
    assert_eq!(&blob[16460..], slots.concat());
}

#[test]
fn a_small_file_reads_back() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("sample.base");
    write_sample(&path);
    let file = BaseFile::open(&path).expect("valid");
    assert_eq!(file.path(), path);
    assert_eq!(file.header().flags.to_string(), "QUANTIZED | TIED_EMBEDDINGS");
    assert_eq!(file.header().tokenizer["tokenizer_type"].get(), "\"hf\"");
    let main: Vec<&str> = file.tensors().map(|tensor| tensor.entry.name.as_str()).collect();
    assert_eq!(main, ["a_log", "codes", "symmetric", "norm"]);
    assert!(file.tensor("visual").is_none(), "mmproj tensors are a list of their own");
    let tower = file.mmproj_tensors().next().expect("one");
    assert_eq!((tower.shape, tower.data), (&[3][..], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11][..]));
    let slots: Vec<_> = file.slots().iter().map(|slot| (slot.kind, slot.flags, slot.payload_len())).collect();
    let optional = (SlotKind::CalibrationData, SlotFlags::default(), 2);
    assert_eq!(slots, [optional, (SlotKind::Custom, SlotFlags::REQUIRED, 8)]);
    assert_eq!(file.slot_payload(1).expect("plain"), b"12345678");
    let totals: Vec<_> =
        file.dtype_totals().iter().map(|total| (total.dtype, total.tensors, total.bytes)).collect();
    assert_eq!(totals, [(Dtype::BaseQ2, 1, 4), (Dtype::BaseQ4, 1, 12), (Dtype::F32, 2, 12)]);
    let mut calls = Vec::new();
    file.verify_checksums(&mut |done, total| calls.push((done, total))).expect("intact");
    assert_eq!((calls.first(), calls.last()), (Some(&(0, 50)), Some(&(50, 50))));
}

#[test]
fn a_flipped_bit_in_any_payload_is_found_and_named() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("sample.base");
    write_sample(&path);
    let bytes = fs::read(&path).expect("read");
    for (at, what) in [
        (65536 + 3, "tensor `a_log`"),
        (65536 + 64 + 11, "tensor `codes`"),
        (65536 + 16384, "tensor `norm`"),
        (65536 + 16448, "tensor `visual`"),
        (65536 + 16460 + 8 + 20, "slot 0 (CalibrationData)"),
        (bytes.len() - 1, "slot 1 (Custom)"),
    ] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let message =
            open(&damaged).expect("opens").verify_checksums(&mut |_, _| {}).expect_err("damaged").to_string();
        assert!(message.contains(what) && message.contains("damaged"), "{message}");
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let dir = tempdir().expect("temporary directory");
    let (first, second) = (dir.path().join("1.base"), dir.path().join("2.base"));
    write_sample(&first);
    write_sample(&second);
    assert!(fs::read(first).expect("read") == fs::read(second).expect("read"));
}

fn entries(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).expect("listed");
    names.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_writer_that_is_dropped_leaves_nothing() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("model.base");
    let plan = || vec![planned("a", &[2], F32), planned("b", &[2], F32)];
    let mut writer = BaseWriter::create(&path, header(), plan()).expect("planned");
    writer.write_tensor(&[0; 8]).expect("written");
    // Without a name there is nothing to be left even when the process is killed.
    assert_eq!(entries(dir.path()).len(), usize::from(!cfg!(target_os = "linux")));
    drop(writer);
    assert_eq!(entries(dir.path()), [""; 0]);

    // A failed finish is no different, and an older file of that name survives it.
    fs::write(&path, b"old").expect("written");
    let writer = BaseWriter::create(&path, header(), plan()).expect("planned");
    let message = writer.finish(|_| {}).expect_err("incomplete").to_string();
    assert!(message.contains("model.base: only 0 of 2 planned tensors"), "{message}");
    assert_eq!(entries(dir.path()), ["model.base"]);
    assert_eq!(fs::read(&path).expect("read"), b"old");
}

#[test]
fn the_file_has_the_permissions_of_any_new_file() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("model.base");
    write(&path, header(), vec![]).expect("written");
    File::create(dir.path().join("other")).expect("created");
    let mode = |name| fs::metadata(dir.path().join(name)).expect("metadata").permissions().mode();
    assert_eq!(mode("model.base"), mode("other"));
}

#[test]
fn an_empty_tensor_list_and_empty_tensors_are_legal() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("model.base");
    write(&path, header(), vec![]).expect("written");
    assert_eq!(BaseFile::open(&path).expect("valid").tensors().count(), 0);

    let empty = || planned("empty", &[0, 64], affine(4, 64, ScaleDtype::F16, false));
    let tensors = vec![(planned("a", &[1], F32), vec![1; 4]), (empty(), vec![])];
    write(&path, header(), tensors).expect("written");
    let file = BaseFile::open(&path).expect("valid");
    assert_eq!(file.tensor("empty").expect("present").data, b"");
    assert_eq!(file.tensor("a").expect("present").data, [1; 4]);

    // The header alone is enough of a file when there is nothing behind it.
    let bare = assemble(&foreign_header(""), b"");
    let end = bare.iter().rposition(|byte| *byte == b'}').expect("header") + 1;
    open(&bare[..end]).expect("valid");
}

#[test]
fn payloads_other_than_planned_are_refused() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("model.base");
    let mut writer = BaseWriter::create(&path, header(), vec![planned("a", &[2], F32)]).expect("planned");
    let message = |result: Result<(), basert_format::FormatError>| result.expect_err("refused").to_string();
    for wrong in [&[0u8; 7][..], &[0; 9]] {
        assert!(message(writer.write_tensor(wrong)).contains("`a` should have 8 bytes"));
    }
    let early = writer.write_slot(SlotKind::Custom, SlotFlags::default(), b"");
    assert!(message(early).contains("only 0 of 1 planned tensors"));
    writer.write_tensor(&[0; 8]).expect("written");
    assert!(message(writer.write_tensor(&[0; 8])).contains("all 1 planned tensors"));
    let compressed = writer.write_slot(SlotKind::Custom, SlotFlags::COMPRESSED_ZSTD, b"");
    assert!(message(compressed).contains("compressed"));
    writer.finish(|_| {}).expect("finished");
    BaseFile::open(&path).expect("valid");
}

#[test]
fn plans_that_contradict_themselves_are_refused() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("model.base");
    let q4 = |shape: &[u64], group| planned("q", shape, affine(4, group, ScaleDtype::F16, false));
    let tower = || PlannedTensor { mmproj: true, ..planned("visual", &[1], F32) };
    let huge = || planned("huge", &[1 << 61], F32);
    let mut with_tower = header();
    with_tower.mmproj = Some(MmProj { arch: "x_mm".into(), config: BTreeMap::new(), tensors: vec![] });
    let mut absurd = header();
    absurd.alignment.gpu_page_log2 = 99;
    for (header, plan, part) in [
        (header(), vec![planned("a", &[1], F32), planned("a", &[1], F32)], "tensor `a` occurs twice"),
        (header(), vec![q4(&[4, 48], 128)], "tensor `q`: `shape`"),
        (header(), vec![q4(&[0], 1 << 40)], "tensor `q`"),
        (header(), vec![planned("k", &[256], Encoding::Super(GgmlType::Q8_0))], "tensor `k`: `dtype`"),
        (header(), vec![tower()], "`mmproj` in the header"),
        (with_tower, vec![tower(), planned("a", &[1], F32)], "main tensors must come before"),
        (header(), vec![huge(), PlannedTensor { name: "b".into(), ..huge() }], "more bytes"),
        (absurd, vec![], "alignment.gpu_page_log2"),
    ] {
        let message = BaseWriter::create(&path, header, plan).expect_err(part).to_string();
        assert!(message.contains(part) && message.contains("model.base"), "expected `{part}` in: {message}");
    }
    let elsewhere = BaseWriter::create(&dir.path().join("no/such.base"), self::header(), vec![]);
    assert!(elsewhere.expect_err("no directory").to_string().contains("such.base: cannot create"));
    assert_eq!(entries(dir.path()), [""; 0]);
}

#[test]
fn what_is_known_at_the_end_fits_or_is_refused() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("model.base");
    let finish = |note: usize| {
        let writer = BaseWriter::create(&path, header(), vec![]).expect("planned");
        writer.finish(|header| {
            header.metadata.insert("basert.note".into(), "x".repeat(note).into());
        })
    };
    finish(4000).expect("4 KiB are always free");
    let file = BaseFile::open(&path).expect("valid");
    assert_eq!(file.header().metadata["basert.note"].as_str().map(str::len), Some(4000));
    let message = finish(70_000).expect_err("too long").to_string();
    assert!(message.contains("65520 are reserved"), "{message}");
    let writer = BaseWriter::create(&path, header(), vec![]).expect("planned");
    let message = writer.finish(|header| header.schema = 2).expect_err("invalid").to_string();
    assert!(message.contains("`schema` is 2"), "{message}");
}

#[test]
fn flags_as_hexadecimal_or_decimal_strings_with_unknown_bits_dropped() {
    for (text, expected) in [
        ("0x00000401", "QUANTIZED | TIED_EMBEDDINGS"),
        ("0X3", "QUANTIZED | HAS_MOE"),
        ("13", "QUANTIZED | HAS_SSM | HAS_HYBRID"),
        ("0xffff0000", "none"),
    ] {
        let header = foreign_header("").replace("\"tensors\"", &format!("\"flags\":\"{text}\",\"tensors\""));
        assert_eq!(open(&assemble(&header, b"")).expect(text).header().flags.to_string(), expected);
    }
}

#[test]
fn early_spellings_imply_f16_scales() {
    for (spelling, dtype, bits, length) in [("base4", Dtype::BaseQ4, 4, 36), ("base8", Dtype::BaseQ8, 8, 68)]
    {
        let codes = length - 4;
        let entry = format!(
            r#"{{"name":"q","dtype":"{spelling}","shape":[64],"offset":0,"length":{length},"scale_offset":{codes},"scale_length":2,"bias_offset":{},"bias_length":2,"group_size":64,"residency":"warm","checksum_xxh64":1}}"#,
            codes + 2
        );
        let header = foreign_header(&entry).replace("\"bf16\"", &format!("\"{spelling}\""));
        let file = open(&assemble(&header, &vec![0; length])).expect(spelling);
        let view = file.tensor("q").expect("present");
        assert_eq!(view.encoding, affine(bits, 64, ScaleDtype::F16, false));
        assert_eq!((view.entry.dtype(), file.header().quant_scheme.name()), (dtype, dtype.name()));
    }
}

#[test]
fn a_missing_bias_means_symmetric() {
    let entry = r#"{"name":"q","dtype":"base_q4","shape":[64],"offset":0,"length":34,"scale_offset":32,"scale_length":2,"group_size":64,"scale_dtype":"bf16","layout":"metal_lane_strided","residency":"warm","checksum_xxh64":1}"#;
    let file = open(&assemble(&foreign_header(entry), &[0; 34])).expect("valid");
    assert_eq!(file.tensor("q").expect("present").encoding, affine(4, 64, ScaleDtype::Bf16, true));
}

#[test]
fn shapes_of_foreign_gguf_files_are_turned_round() {
    let entry = r#"{"name":"w","dtype":"f32","shape":[2,3,1],"offset":0,"length":24,"residency":"warm","checksum_xxh64":1}"#;
    let gguf = foreign_header(entry).replace("hf_safetensors", "gguf");
    let ours = gguf.replace("\"tensors\"", "\"metadata\":{\"basert.version\":\"0.1.0\"},\"tensors\"");
    for (header, shape) in [(foreign_header(entry), [2, 3, 1]), (gguf, [1, 3, 2]), (ours, [2, 3, 1])] {
        let file = open(&assemble(&header, &[0; 24])).expect("valid");
        let view = file.tensor("w").expect("present");
        assert_eq!((view.shape, &view.entry.shape[..]), (&shape[..], &[2, 3, 1][..]));
    }
}

#[test]
fn every_file_of_ours_says_so() {
    let dir = tempdir().expect("temporary directory");
    let path = dir.path().join("model.base");
    let mut header = header();
    header.source.format = SourceFormat::Gguf;
    header.metadata.clear();
    let mut writer = BaseWriter::create(&path, header, vec![planned("w", &[2, 3], F32)]).expect("planned");
    writer.write_tensor(&[0; 24]).expect("written");
    writer.finish(|header| header.metadata.clear()).expect("finished");
    let file = BaseFile::open(&path).expect("valid");
    assert!(!file.header().is_upstream_gguf());
    assert_eq!(file.tensor("w").expect("present").shape, [2, 3]);
}
