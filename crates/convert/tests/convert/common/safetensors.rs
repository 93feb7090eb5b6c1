//! A safetensors writer for tests.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use serde_json::{Map, json};

use super::{Tensor, Tensors};

/// Dtype, shape and payload by name.
pub type RawTensors = BTreeMap<String, (&'static str, Vec<usize>, Vec<u8>)>;

/// Writes `tensors` with `format` as metadata.
pub fn write(path: &Path, tensors: &Tensors, format: &str) {
    write_raw(path, &raw(tensors), format);
}

/// The payloads of `tensors`.
pub fn raw(tensors: &Tensors) -> RawTensors {
    let one = |(name, tensor): (&String, &Tensor)| {
        (name.clone(), (tensor.dtype, tensor.shape.clone(), bytes(tensor)))
    };
    tensors.iter().map(one).collect()
}

/// Writes payloads with `format` as metadata.
pub fn write_raw(path: &Path, tensors: &RawTensors, format: &str) {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": format}));
    let mut data: Vec<u8> = Vec::new();
    for (name, (dtype, shape, bytes)) in tensors {
        let start = data.len();
        data.extend(bytes);
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    std::fs::write(path, file).unwrap();
}

/// Writes `tensors` as `shards` files and an index, dealt out by position.
pub fn write_sharded(dir: &Path, tensors: &Tensors, shards: usize) {
    write_raw_sharded(dir, &raw(tensors), shards, "pt");
}

/// Writes payloads as `shards` files and an index, dealt out by position.
pub fn write_raw_sharded(dir: &Path, tensors: &RawTensors, shards: usize, format: &str) {
    let mut weight_map = Map::new();
    for shard in 0..shards {
        let name = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
        let part: RawTensors = tensors
            .iter()
            .enumerate()
            .filter(|(index, _)| index % shards == shard)
            .map(|(_, (name, tensor))| (name.clone(), tensor.clone()))
            .collect();
        write_raw(&dir.join(&name), &part, format);
        part.keys().for_each(|tensor| {
            weight_map.insert(tensor.clone(), json!(name));
        });
    }
    let index = json!({"metadata": {"total_size": 0}, "weight_map": weight_map});
    std::fs::write(dir.join("model.safetensors.index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    let values = tensor.values.iter();
    match tensor.dtype {
        "F32" => values.flat_map(|v| v.to_le_bytes()).collect(),
        "BF16" => values.flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        "F16" => values.flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        "I64" => values.flat_map(|v| (*v as i64).to_le_bytes()).collect(),
        "U32" => values.flat_map(|v| (*v as u32).to_le_bytes()).collect(),
        other => panic!("no writer for {other}"),
    }
}
