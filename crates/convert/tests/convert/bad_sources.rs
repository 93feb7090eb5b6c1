//! Damaged weights: the error names file and tensor, and no output is left, neither whole nor in part.

use std::path::Path;

use crate::common::gguf::{Blocks, Meta, Metadata, blocks, hybrid, write_blocks};
use crate::common::{Toy, noise, options, refused, safetensors};
use basert_convert::{ConvertError, Options};
use basert_quant::GgmlType;
use serde_json::json;

const DOWN: &str = "blk.1.ffn_down.weight";

/// A hybrid whose down projections have rows of 256, which every block size divides, as llama.cpp writes it.
fn wide_gguf() -> (Metadata, Blocks) {
    let mut toy = Toy::hybrid(4, false);
    toy.config["intermediate_size"] = json!(256);
    for layer in 0..4 {
        for (leaf, shape) in [("gate_proj", [256, 64]), ("up_proj", [256, 64]), ("down_proj", [64, 256])] {
            let name = format!("model.layers.{layer}.mlp.{leaf}.weight");
            toy.tensors.insert(name.clone(), noise(&name, &shape));
        }
    }
    let (mut metadata, tensors) = hybrid(&toy);
    metadata.iter_mut().filter(|(key, _)| key.ends_with(".feed_forward_length")).for_each(|(_, value)| {
        *value = Meta::U32(256);
    });
    (metadata, blocks(&tensors))
}

/// Where the f16 scales of a block are.
fn scales(ty: GgmlType) -> &'static [usize] {
    match ty {
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
        GgmlType::Q2K => &[80, 82],
        GgmlType::Q3K => &[108],
        GgmlType::Q6K => &[208],
        _ => &[0],
    }
}

#[test]
fn scales_of_gguf_blocks_that_are_no_numbers_are_refused_by_every_target() {
    let dir = tempfile::tempdir().unwrap();
    let types = [
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::Q5_0,
        GgmlType::Q5_1,
        GgmlType::Q8_0,
        GgmlType::Q2K,
        GgmlType::Q3K,
        GgmlType::Q4K,
        GgmlType::Q5K,
        GgmlType::Q6K,
        GgmlType::Iq4Nl,
        GgmlType::Iq4Xs,
    ];
    let (metadata, floats) = wide_gguf();
    for ty in types {
        let (size, count) = (ty.block_bytes(), 64 * 256 / ty.block_size());
        for &at in scales(ty) {
            for bad in [0x7e00u16, 0xfe00, 0x7c00, 0xfc00] {
                // Codes and scales of 1 in every bit that matters, and one bad scale in the last block.
                let mut bytes = vec![0x11; size * count];
                bytes.chunks_mut(size).for_each(|block| {
                    scales(ty)
                        .iter()
                        .for_each(|&at| block[at..at + 2].copy_from_slice(&0x2c00u16.to_le_bytes()));
                });
                let last = size * (count - 1) + at;
                bytes[last..last + 2].copy_from_slice(&bad.to_le_bytes());
                let mut tensors = floats.clone();
                tensors.insert(DOWN.to_owned(), (ty.id(), vec![64, 256], bytes));
                let source = dir.path().join("m.gguf");
                write_blocks(&source, &metadata, &tensors);
                for target in ["auto", "f32", "base-q4"] {
                    let options = Options {
                        allow_missing_tokenizer: true,
                        allow_quant_from_quant: true,
                        ..options(target)
                    };
                    let error = refused(&source, &options);
                    let text = error.to_string();
                    assert!(matches!(error, ConvertError::Encode { .. }), "{ty:?} {bad:x} {target}: {text}");
                    for word in ["m.gguf", "`layers.1.mlp.down_proj.weight`"] {
                        assert!(text.contains(word), "{ty:?} {bad:x} {target}: {text}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_shard_that_ends_early_is_named_wherever_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let toy = Toy::llama();
    let source = toy.write(dir.path(), "src");
    std::fs::remove_file(source.join("model.safetensors")).unwrap();
    safetensors::write_sharded(&source, &toy.tensors, 3);
    for shard in 1..=3 {
        let name = format!("model-{shard:05}-of-00003.safetensors");
        let whole = std::fs::read(source.join(&name)).unwrap();
        let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        for length in [0, 7, 8, header / 2, header, header + 1, (header + whole.len()) / 2, whole.len() - 1] {
            std::fs::write(source.join(&name), &whole[..length]).unwrap();
            let error = refused(&source, &options("base-q4")).to_string();
            assert!(error.contains(&name), "{length} of {}: {error}", whole.len());
        }
        std::fs::write(source.join(&name), &whole).unwrap();
    }
}

/// Another shape of as many elements.
type Lie = fn(&[usize]) -> Vec<usize>;

/// The bytes are there, but not in that shape: rows and columns exchanged, and a product that is right by accident.
#[test]
fn shapes_that_lie_about_the_same_bytes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let toy = Toy::hybrid(4, false);
    let lies: [Lie; 3] = [
        |shape| shape.iter().rev().copied().collect(),
        |shape| vec![shape.iter().product()],
        |shape| vec![1, shape.iter().product()],
    ];
    let (metadata, gguf) = hybrid(&toy);
    let (gguf, hf) = (blocks(&gguf), safetensors::raw(&toy.tensors));
    let source = toy.write(dir.path(), "src");
    let mut lied = 0;
    for lie in lies {
        for name in hf.keys().filter(|name| name.contains("layers.3.") || name.contains("layers.0.linear")) {
            let mut tensors = hf.clone();
            let shape = &mut tensors.get_mut(name).unwrap().1;
            if lie(shape) == *shape {
                continue;
            }
            *shape = lie(shape);
            safetensors::write_raw(&source.join("model.safetensors"), &tensors, "pt");
            names_the_tensor(&source, name);
            lied += 1;
        }
        for name in gguf.keys().filter(|name| name.starts_with("blk.3.") || name.starts_with("blk.0.ssm")) {
            let mut tensors = gguf.clone();
            let shape = &mut tensors.get_mut(name).unwrap().1;
            // GGUF writes leave leading dimensions of 1 out, so they mean nothing.
            if lie(shape) == *shape || shape.len() == 1 {
                continue;
            }
            *shape = lie(shape);
            let path = dir.path().join("m.gguf");
            write_blocks(&path, &metadata, &tensors);
            names_the_tensor(&path, name);
            lied += 1;
        }
    }
    assert!(lied > 60, "only {lied} lies");
}

#[track_caller]
fn names_the_tensor(source: &Path, name: &str) {
    let error = refused(source, &Options { allow_missing_tokenizer: true, ..options("base-q4") });
    let text = error.to_string();
    let leaf = name.trim_start_matches("model.");
    assert!(text.contains(leaf), "no {leaf} in: {text}");
}
