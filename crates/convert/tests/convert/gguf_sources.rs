//! Quantised GGUF files come out exactly, value heads in order; split files are one model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::gguf::{Blocks, Meta, blocks, hybrid, write_blocks};
use crate::common::{self, Toy, converted, decoded, noise, options, payloads, refused, shared_fixtures};
use basert_convert::{ConvertError, Options, Verdict};
use basert_quant::GgmlType;

fn any_tokenizer(target: &str) -> Options {
    Options { allow_missing_tokenizer: true, ..options(target) }
}

/// Turns a tensor into blocks of `ty` with random codes and small scales.
fn quantise(tensors: &mut Blocks, name: &str, ty: GgmlType) {
    let (number, shape, bytes) = tensors.get_mut(name).unwrap();
    let count = shape.iter().product::<usize>() / ty.block_size();
    let random = noise(name, &[count * ty.block_bytes()]).values;
    *bytes = random.iter().map(|value| ((value + 1.0) * 127.0) as u8).collect();
    for block in bytes.chunks_mut(ty.block_bytes()) {
        match ty {
            GgmlType::MxFp4 => block[0] = 120 + block[0] % 8,
            // The high byte of d, and of m where there is one: magnitudes below 2^-3, either sign.
            GgmlType::Q4_1 | GgmlType::Q5_1 => [1, 3].into_iter().for_each(|at| block[at] &= 0xaf),
            _ => block[1] &= 0xaf,
        }
    }
    *number = ty.id();
}

/// Field case: value heads stand in another order, in rows, in columns and inside blocks.
#[test]
fn quantised_tensors_are_rearranged_exactly_or_kept_in_float() {
    let dir = tempfile::tempdir().unwrap();
    let (metadata, tensors) = hybrid(&Toy::hybrid(6, false));
    let mut tensors = blocks(&tensors);
    let cases = [
        ("attn_qkv", "linear_attn.in_proj_qkv", GgmlType::Q4_0, "base_q4", Verdict::ExactRelayout),
        ("attn_gate", "linear_attn.in_proj_z", GgmlType::Q5_1, "base_q5", Verdict::ExactRelayout),
        // Heads of 16 columns cut through blocks of 32.
        ("ssm_out", "linear_attn.out_proj", GgmlType::Q8_0, "f32", Verdict::KeptInFloat),
        ("ffn_gate", "mlp.gate_proj", GgmlType::Q4_1, "base_q4", Verdict::ExactRelayout),
        ("ffn_up", "mlp.up_proj", GgmlType::MxFp4, "mxfp4", Verdict::ExactRelayout),
        ("ffn_down", "mlp.down_proj", GgmlType::Q5_0, "base_q5", Verdict::ExactRelayout),
        ("ssm_alpha", "linear_attn.in_proj_a", GgmlType::Iq4Nl, "f32", Verdict::KeptInFloat),
    ];
    for (name, _, ty, ..) in cases {
        quantise(&mut tensors, &format!("blk.1.{name}.weight"), ty);
    }
    let source = dir.path().join("m.gguf");
    write_blocks(&source, &metadata, &tensors);
    let (exact, _) = converted(&source, dir.path(), "f32", &any_tokenizer("f32"));
    let (file, report) = converted(&source, dir.path(), "auto", &any_tokenizer("auto"));
    for (_, name, ty, dtype, verdict) in cases {
        let name = format!("layers.1.{name}.weight");
        assert_eq!(file.tensor(&name).unwrap().entry.dtype().name(), dtype, "{name}");
        let line = report.tensors.iter().find(|tensor| tensor.name == name).unwrap();
        assert_eq!((line.verdict, line.source.as_str()), (verdict, ty.name()), "{name}");
        assert!(decoded(&exact, &name) == decoded(&file, &name), "{name}");
    }
    let note = "layers.*.linear_attn.out_proj.weight: value heads of 16 columns cut through Q8_0 blocks of 32, so \
                its values went through floats";
    assert_eq!(report.notes.iter().filter(|found| *found == note).count(), 1, "{:?}", report.notes);
    let error = refused(&source, &any_tokenizer("base-q4"));
    assert!(matches!(error, ConvertError::WouldLose { .. }), "{error}");
}

#[test]
fn golden_files_decode_to_the_same_values_packed_and_widened() {
    let Some(shared) = shared_fixtures() else { return };
    let dir = tempfile::tempdir().unwrap();
    // Value heads of 64 and 32 columns move as whole blocks of 32, never as blocks of 256.
    let cases: [(&str, &[(&str, &str)]); 6] = [
        ("qwen3-dense-tiny-Q4_0", &[("layers.0.mlp.up_proj.weight", "base_q4")]),
        ("qwen3-dense-tiny-Q4_1", &[("layers.0.mlp.up_proj.weight", "base_q4")]),
        (
            "qwen3-dense-tiny-Q5_K_M",
            &[
                ("layers.0.mlp.down_proj.weight", "Q5_K blocks"),
                ("layers.1.mlp.down_proj.weight", "Q6_K blocks"),
            ],
        ),
        ("qwen35-dense-2l-Q8_0", &[("layers.0.linear_attn.out_proj.weight", "base_q8")]),
        ("qwen35-dense-2l-Q4_K_M", &[("layers.0.linear_attn.out_proj.weight", "f32")]),
        ("qwen35-moe-2l-Q4_K_M", &[("layers.0.linear_attn.out_proj.weight", "base_q5")]),
    ];
    for (name, stored) in cases {
        let source = shared.join(format!("gguf/{name}.gguf"));
        let (exact, _) = converted(&source, dir.path(), &format!("{name}-f32"), &options("f32"));
        let (file, report) = converted(&source, dir.path(), name, &options("auto"));
        for tensor in exact.tensors() {
            let tensor = &tensor.entry.name;
            assert!(decoded(&exact, tensor) == decoded(&file, tensor), "{tensor} of {name}");
        }
        assert!(report.tensors.iter().all(|tensor| tensor.verdict.is_exact()), "{name}");
        for (tensor, expected) in stored {
            let line = report.tensors.iter().find(|line| line.name == *tensor).unwrap();
            assert!(line.stored.starts_with(expected), "{tensor} of {name}: {line:?}");
        }
    }
}

/// Deals the toy's tensors out to three parts, the first one without any.
fn write_parts(dir: &Path, change: impl Fn(usize, &mut common::gguf::Metadata)) -> Vec<PathBuf> {
    let (metadata, tensors) = hybrid(&Toy::hybrid(6, false));
    let all = blocks(&tensors);
    let mut paths = Vec::new();
    for part in 0..3 {
        let mut keys = if part == 0 { metadata.clone() } else { Vec::new() };
        keys.push(("split.no".to_owned(), Meta::U32(part as u32)));
        keys.push(("split.count".to_owned(), Meta::U32(3)));
        keys.push(("split.tensors.count".to_owned(), Meta::U32(all.len() as u32)));
        change(part, &mut keys);
        let dealt = all.iter().enumerate().filter(|(i, _)| part > 0 && i % 2 == part - 1);
        let tensors: BTreeMap<_, _> =
            dealt.map(|(_, (name, tensor))| (name.clone(), tensor.clone())).collect();
        paths.push(dir.join(format!("m-{:05}-of-00003.gguf", part + 1)));
        write_blocks(&paths[part], &keys, &tensors);
    }
    paths
}

#[test]
fn parts_are_one_model_whichever_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let parts = write_parts(dir.path(), |_, _| {});
    let whole = common::gguf::write_hybrid(&Toy::hybrid(6, false), dir.path(), "whole.gguf");
    let (whole, _) = converted(&whole, dir.path(), "whole", &any_tokenizer("f32"));
    let mut bytes = Vec::new();
    for part in &parts {
        let (file, _) = converted(part, dir.path(), "split", &any_tokenizer("f32"));
        assert!(payloads(&file) == payloads(&whole));
        assert_eq!(file.header().source.filename, "m-00001-of-00003.gguf");
        bytes.push(std::fs::read(dir.path().join("split.base")).unwrap());
    }
    assert!(bytes[0] == bytes[1] && bytes[1] == bytes[2]);
}

#[test]
fn parts_that_do_not_belong_together_are_named() {
    let set = |key: &'static str, part: usize, value: u32| {
        move |at: usize, keys: &mut common::gguf::Metadata| {
            let entry = keys.iter_mut().find(|(name, _)| name == key).unwrap();
            if at == part {
                entry.1 = Meta::U32(value);
            }
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let refuse = |parts: &[PathBuf]| refused(&parts[0], &any_tokenizer("f32")).to_string();
    let error = refuse(&write_parts(dir.path(), set("split.no", 1, 2)));
    assert!(error.contains("m-00002-of-00003.gguf: is not part 2 of 3, as its name says"), "{error}");
    let error = refuse(&write_parts(dir.path(), set("split.count", 2, 4)));
    assert!(error.contains("m-00003-of-00003.gguf: is not part 3 of 3"), "{error}");
    let error = refuse(&write_parts(dir.path(), set("split.tensors.count", 1, 7)));
    assert!(error.contains("m-00002-of-00003.gguf: says that all parts have 7 tensors together"), "{error}");
    let error = refuse(&write_parts(dir.path(), set("split.count", 0, u32::MAX)));
    assert!(error.contains("is one of 4294967295 parts, but not called"), "{error}");
    let parts = write_parts(dir.path(), |_, _| {});
    let other = dir.path().join("renamed.gguf");
    std::fs::copy(&parts[1], &other).unwrap();
    assert!(refuse(&[other]).contains("renamed.gguf: is one of 3 parts, but not called"));
    std::fs::remove_file(&parts[2]).unwrap();
    let error = refuse(&parts);
    assert!(error.contains("m-00003-of-00003.gguf: is missing; the model has 3 parts"), "{error}");
}
