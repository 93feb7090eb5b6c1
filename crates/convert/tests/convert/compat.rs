//! `--compat basert` against files that the original converter made of the same checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::{self, Toy, converted, decoded, fixture, options, payloads, refused, shared_fixtures};
use basert_convert::safetensors::{Checkpoint, Dtype};
use basert_convert::{Compat, Method, Options};
use basert_format::BaseFile;
use serde_json::{Value, json};

fn compat(target: &str) -> Options {
    Options { compat: Some(Compat::Basert), ..options(target) }
}

/// As the original converter quantises, which does not search.
fn nearest(target: &str) -> Options {
    let quantised = target.starts_with("base");
    Options { method: quantised.then_some(Method::Rtn), ..options(target) }
}

/// Layers 2 and 3 of a golden model, as the original converter got them.
fn two_layers(source: &Path, template: &Path, parent: &Path, name: &str) -> PathBuf {
    let directory = parent.join(name);
    std::fs::create_dir(&directory).unwrap();
    for file in ["generation_config.json", "tokenizer.json"] {
        std::fs::copy(source.join(file), directory.join(file)).unwrap();
    }
    let read =
        |file: &str| -> Value { serde_json::from_slice(&std::fs::read(source.join(file)).unwrap()).unwrap() };
    let mut tokenizer = read("tokenizer_config.json");
    let template = std::fs::read_to_string(template).unwrap();
    // Where it stood in theirs, after `bos_token`.
    tokenizer.as_object_mut().unwrap().shift_insert(4, "chat_template".to_owned(), template.into());
    std::fs::write(directory.join("tokenizer_config.json"), tokenizer.to_string()).unwrap();
    let mut config = read("config.json");
    let text = &mut config["text_config"];
    text["num_hidden_layers"] = json!(2);
    text["layer_types"] = json!(["linear_attention", "full_attention"]);
    text["full_attention_interval"] = json!(2);
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(source).unwrap();
    let mut tensors: BTreeMap<String, (Dtype, Vec<usize>, &[u8])> = BTreeMap::new();
    for tensor in checkpoint.shards.iter().flat_map(|shard| shard.tensors()) {
        let name = match tensor.name.split_once("layers.") {
            Some((prefix, rest)) if !prefix.starts_with("mtp") => match rest.split_once('.') {
                Some(("2", leaf)) => format!("{prefix}layers.0.{leaf}"),
                Some(("3", leaf)) => format!("{prefix}layers.1.{leaf}"),
                _ => continue,
            },
            _ => tensor.name.to_owned(),
        };
        tensors.insert(name, (tensor.dtype, tensor.shape.to_vec(), tensor.data));
    }
    write_safetensors(&directory.join("model.safetensors"), &tensors);
    directory
}

fn write_safetensors(path: &Path, tensors: &BTreeMap<String, (Dtype, Vec<usize>, &[u8])>) {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, (dtype, shape, bytes)) in tensors {
        let range = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({"dtype": dtype.name(), "shape": shape, "data_offsets": range}));
        data.extend_from_slice(bytes);
    }
    let header = Value::from(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(path, file).unwrap();
}

/// The header as it stands in the file, without what must differ: when, by what and from which folder the file was made.
fn header(path: &Path) -> (Value, Vec<u8>) {
    let file = std::fs::read(path).unwrap();
    let len = u64::from_le_bytes(file[8..16].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&file[16..16 + len]).unwrap();
    let blob = (16 + len).next_multiple_of(65536);
    assert!(
        file[16 + len..blob].iter().all(|&byte| byte == 0),
        "{} is not padded with zeros",
        path.display()
    );
    let object = header.as_object_mut().unwrap();
    for key in ["created", "baserT_version", "metadata"] {
        object.shift_remove(key);
    }
    object["source"].as_object_mut().unwrap().shift_remove("sha256");
    (header, file[blob..].to_vec())
}

/// Everything but the documented differences: order, names, dtypes, shapes, offsets, checksums, configuration, flags,
/// tokenizer, and every byte of the weights.
#[test]
fn files_equal_those_of_the_original_converter() {
    let Some(shared) = shared_fixtures() else { return };
    let dir = tempfile::tempdir().unwrap();
    let template = shared.join("tokenizer/chat_template.jinja");
    for (model, targets) in
        [("qwen35-dense", &["base-q4", "base-q8", "bf16"][..]), ("qwen35-moe", &["base-q4"][..])]
    {
        let name = format!("{model}-2l");
        let source = two_layers(&shared.join(format!("{model}-tiny")), &template, dir.path(), &name);
        for target in targets {
            let file = format!("{name}-{target}");
            converted(&source, dir.path(), &file, &compat(target));
            let (ours, our_blob) = header(&dir.path().join(format!("{file}.base")));
            let (theirs, their_blob) = header(&shared.join(format!("base/{file}.base")));
            for (key, value) in theirs.as_object().unwrap() {
                assert_eq!(ours[key].to_string(), value.to_string(), "{file}: {key}");
            }
            assert_eq!(ours.as_object().unwrap().len(), theirs.as_object().unwrap().len(), "{file}");
            assert!(our_blob == their_blob, "{file}");
        }
    }
}

/// Without `--compat`, names and dtypes of small tensors differ, but quantised matrices have the same bytes.
#[test]
fn quantised_matrices_of_our_own_layout_are_those_of_the_original_converter() {
    let Some(shared) = shared_fixtures() else { return };
    let dir = tempfile::tempdir().unwrap();
    let template = shared.join("tokenizer/chat_template.jinja");
    for (model, target) in
        [("qwen35-dense", "base-q4"), ("qwen35-dense", "base-q8"), ("qwen35-moe", "base-q4")]
    {
        let name = format!("{model}-2l");
        let folder = dir.path().join(target);
        std::fs::create_dir_all(&folder).unwrap();
        let source = two_layers(&shared.join(format!("{model}-tiny")), &template, &folder, &name);
        let theirs = BaseFile::open(&shared.join(format!("base/{name}-{target}.base"))).unwrap();
        let (ours, _) = converted(&source, &folder, &name, &nearest(target));
        let mut same = 0;
        for tensor in ours.tensors().filter(|tensor| tensor.entry.dtype().is_affine()) {
            let name = &tensor.entry.name;
            let Some(original) = theirs.tensor(name) else { continue };
            assert!(
                tensor.data == original.data && tensor.encoding == original.encoding,
                "{name} at {target}"
            );
            same += 1;
        }
        assert!(same >= 12, "{same} at {target}");
        for layer in 0..2 {
            let fused = format!("layers.{layer}.ffn_gate_up_exps.weight");
            let Some(original) = theirs.tensor(&fused) else { continue };
            let half = original.shape[1] as usize / 2 * original.shape[2] as usize;
            let [gate, up] =
                ["gate", "up"].map(|part| decoded(&ours, &format!("layers.{layer}.ffn_{part}_exps.weight")));
            for (expert, values) in decoded(&theirs, &fused).chunks_exact(2 * half).enumerate() {
                let at = expert * half..(expert + 1) * half;
                assert!(values[..half] == gate[at.clone()] && values[half..] == up[at], "{fused}");
            }
        }
    }
}

/// The point of it all: an MLX checkpoint becomes a bundle whose norms have 1 added once, in the original's layout.
#[test]
fn mlx_checkpoints_come_out_with_their_norms_as_they_are() {
    let Some(shared) = shared_fixtures() else { return };
    let dir = tempfile::tempdir().unwrap();
    for (name, target) in [("dense-2l-bf16", "bf16"), ("dense-tiny-4bit", "auto"), ("moe-2l-4bit", "auto")] {
        let source = shared.join(format!("mlx/qwen35-{name}"));
        let (file, report) = converted(&source, dir.path(), name, &compat(target));
        let (own, _) = converted(&source, dir.path(), &format!("{name}-own"), &options(target));
        let mut sum = (0.0, 0);
        for tensor in file.tensors() {
            let name = &tensor.entry.name;
            let dtype = tensor.entry.dtype().name();
            assert!(
                ["base_q4", "base_q8", "f16", "bf16"].contains(&dtype)
                    || tensor.entry.compute_region.name() == "cpu",
                "{name} is {dtype}"
            );
            if name.ends_with(".input_norm.weight") {
                assert_eq!(dtype, "f16");
                let values = decoded(&file, name);
                assert!(values == decoded(&own, name), "{name}");
                sum = (sum.0 + values.iter().sum::<f32>(), sum.1 + values.len());
            }
            if tensor.entry.dtype().is_affine()
                && own.tensor(name).is_some_and(|own| own.entry.dtype().is_affine())
            {
                assert!(tensor.data == own.tensor(name).unwrap().data, "{name}");
            }
        }
        let mean = sum.0 / sum.1 as f32;
        assert!((0.9..1.1).contains(&mean), "{}: norms average {mean}", report.source);
    }
}

#[test]
fn experts_stay_fused_only_where_the_checkpoint_fuses_them() {
    let dir = tempfile::tempdir().unwrap();
    let (file, report) = converted(&fixture("qwen3-moe-tiny"), dir.path(), "single", &compat("base-q4"));
    let names: Vec<&str> = file.tensors().map(|tensor| tensor.entry.name.as_str()).collect();
    // Stacks of single experts come last.
    assert!(names[names.len() - 6..].iter().all(|name| name.contains("_exps.")), "{names:?}");
    assert_eq!(names[0], "lm_head.weight");
    assert!(report.dropped.is_empty());

    let source = Toy::hybrid(6, true).with_draft(true).write(dir.path(), "fused");
    let (file, report) =
        converted(&source, dir.path(), "fused-out", &Options { group: Some(32), ..compat("base-q4") });
    assert_eq!(file.tensor("layers.0.ffn_gate_up_exps.weight").unwrap().shape, [4, 64, 64]);
    assert!(file.tensor("layers.0.ffn_gate_exps.weight").is_none() && file.tensor("mtp.fc.weight").is_none());
    assert_eq!(report.dropped.len(), 4 + 8 + 7);
    assert!(payloads(&file).keys().all(|name| !name.starts_with("mtp.")));
}

#[test]
fn what_the_layout_cannot_hold_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let toy = Toy::hybrid(4, true).write(dir.path(), "toy");
    // Experts of 32: groups of 64 would run on into the next row.
    let error = refused(&toy, &compat("base-q4")).to_string();
    let words = "groups of 64 do not divide its rows of 32; choose a smaller --group";
    assert!(error.contains(words), "{error}");
    let error = refused(&toy, &compat("f32")).to_string();
    assert!(error.contains("no f32 target"), "{error}");
    let gguf = common::gguf::write_hybrid(&Toy::hybrid(6, false), dir.path(), "toy.gguf");
    let error = refused(&gguf, &Options { allow_missing_tokenizer: true, ..compat("bf16") }).to_string();
    assert!(error.contains("bundles from GGUF files"), "{error}");
}
