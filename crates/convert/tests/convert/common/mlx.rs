//! mlx-lm's conversion of the toy models, written down from its description, and modules with known values.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde_json::json;

use super::safetensors::{RawTensors, raw, write_raw};
use super::{Tensors, Toy, noise};

/// An MLX checkpoint that can still be changed.
pub struct Export {
    pub config: serde_json::Value,
    pub tensors: RawTensors,
    pub format: &'static str,
}

/// A quantised module and the values it means.
pub struct Module {
    pub codes: Vec<u8>,
    pub scales: Vec<u8>,
    pub biases: Vec<u8>,
    pub values: Vec<f32>,
}

/// How mlx-lm exports `toy`, unquantised: prefix, norms with 1 added, moved axis, stacked experts.
pub fn export(toy: &Toy) -> Export {
    let hybrid = toy.config["linear_num_key_heads"].is_u64();
    let mut tensors = Tensors::new();
    for (name, tensor) in &toy.tensors {
        let mut tensor = tensor.clone();
        if name.ends_with("conv1d.weight") {
            tensor.shape.swap(1, 2);
        }
        if hybrid && name.ends_with("norm.weight") && !name.contains("linear_attn") {
            tensor.values.iter_mut().for_each(|value| *value += 1.0);
        }
        let name = if hybrid { format!("language_model.{name}") } else { name.clone() };
        let Some(prefix) = name.strip_suffix("experts.gate_up_proj") else {
            let name = name.replace("experts.down_proj", "switch_mlp.down_proj.weight");
            tensors.insert(name, tensor);
            continue;
        };
        let (experts, rows, width) = (tensor.shape[0], tensor.shape[1] / 2, tensor.shape[2]);
        for (half, projection) in ["gate_proj", "up_proj"].into_iter().enumerate() {
            let mut part = tensor.clone();
            part.shape[1] = rows;
            part.values = (0..experts)
                .flat_map(|e| tensor.values[(2 * e + half) * rows * width..][..rows * width].to_vec())
                .collect();
            tensors.insert(format!("{prefix}switch_mlp.{projection}.weight"), part);
        }
    }
    Export { config: toy.config.clone(), tensors: raw(&tensors), format: "mlx" }
}

impl Export {
    /// Replaces the matrix `path`.weight by a module of `bits` and `group` with scales of type `scale`.
    pub fn quantise(&mut self, path: &str, bits: usize, group: usize, scale: &'static str) -> Module {
        let (_, shape, _) = self.tensors[&format!("{path}.weight")].clone();
        let (width, rows) = shape.split_last().unwrap();
        let module = Module::random(path, shape.iter().product(), bits, group, scale);
        let dims = |last: usize| [rows, &[last]].concat();
        let put = |leaf: &str, dtype, last, bytes: &Vec<u8>| {
            (format!("{path}.{leaf}"), (dtype, dims(last), bytes.clone()))
        };
        self.tensors.extend([
            put("weight", "U32", width * bits / 32, &module.codes),
            put("scales", scale, width / group, &module.scales),
            put("biases", scale, width / group, &module.biases),
        ]);
        module
    }

    /// Sets the quantisation that the configuration declares.
    pub fn declare(&mut self, quantization: serde_json::Value) {
        self.config["quantization"] = quantization.clone();
        self.config["quantization_config"] = quantization;
    }

    /// Declares what [`Export::quantise`] mostly did.
    pub fn declare_global(&mut self, bits: usize, group: usize) {
        self.declare(json!({"bits": bits, "group_size": group, "mode": "affine"}));
    }

    /// Puts `tensors` under another prefix than `language_model.model.`.
    pub fn renamed(mut self, from: &str, to: &str) -> Export {
        let rename =
            |name: String| name.strip_prefix(from).map_or(name.clone(), |rest| format!("{to}{rest}"));
        self.tensors = self.tensors.into_iter().map(|(name, tensor)| (rename(name), tensor)).collect();
        self
    }

    /// Writes a directory.
    pub fn write(&self, parent: &Path, name: &str) -> PathBuf {
        let dir = parent.join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("config.json"), serde_json::to_vec_pretty(&self.config).unwrap()).unwrap();
        std::fs::write(dir.join("tokenizer.json"), super::TOKENIZER).unwrap();
        write_raw(&dir.join("model.safetensors"), &self.tensors, self.format);
        dir
    }
}

impl Module {
    /// Codes of `bits` bits and scales of both signs, exact in every type.
    pub fn random(seed: &str, elements: usize, bits: usize, group: usize, scale: &str) -> Module {
        let noise = noise(seed, &[elements]).values;
        let code = |value: &f32| ((value + 1.0) * 128.0) as u32 & ((1 << bits) - 1);
        let codes: Vec<u32> = noise.iter().map(code).collect();
        let mut packed = vec![0u8; elements * bits / 8];
        for (i, code) in codes.iter().enumerate() {
            for bit in (0..bits).filter(|bit| code >> bit & 1 == 1) {
                packed[(i * bits + bit) / 8] |= 1 << ((i * bits + bit) % 8);
            }
        }
        let scales: Vec<f32> = noise.iter().take(elements / group).map(|v| v / 16.0).collect();
        let biases: Vec<f32> = noise.iter().rev().take(elements / group).copied().collect();
        let value = |(i, code): (usize, &u32)| *code as f32 * scales[i / group] + biases[i / group];
        let values = codes.iter().enumerate().map(value).collect();
        let bytes = |values: &[f32]| values.iter().flat_map(|v| float(*v, scale)).collect::<Vec<u8>>();
        Module { codes: packed, scales: bytes(&scales), biases: bytes(&biases), values }
    }
}

fn float(value: f32, dtype: &str) -> Vec<u8> {
    match dtype {
        "F32" => value.to_le_bytes().to_vec(),
        "F16" => f16::from_f32(value).to_le_bytes().to_vec(),
        _ => bf16::from_f32(value).to_le_bytes().to_vec(),
    }
}
