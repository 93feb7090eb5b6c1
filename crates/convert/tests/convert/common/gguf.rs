//! A GGUF writer for tests, and llama.cpp's conversion of the toy models, written down from its description.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Tensor, Tensors, Toy};

/// A metadata value.
#[derive(Clone, Debug)]
pub enum Meta {
    U32(u32),
    F32(f32),
    Text(&'static str),
    U32s(Vec<u32>),
}

/// Metadata in order.
pub type Metadata = Vec<(String, Meta)>;

/// Type number, row-major shape and payload by name.
pub type Blocks = BTreeMap<String, (u32, Vec<usize>, Vec<u8>)>;

/// Writes a version 3 file of f32 tensors.
pub fn write(path: &Path, metadata: &Metadata, tensors: &Tensors) {
    write_blocks(path, metadata, &blocks(tensors));
}

/// The payloads of f32 tensors.
pub fn blocks(tensors: &Tensors) -> Blocks {
    let bytes = |tensor: &Tensor| tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensors.iter().map(|(name, tensor)| (name.clone(), (0, tensor.shape.clone(), bytes(tensor)))).collect()
}

/// Writes a version 3 file.
pub fn write_blocks(path: &Path, metadata: &Metadata, tensors: &Blocks) {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut file, key);
        meta(&mut file, value);
    }
    let mut offset = 0u64;
    for (name, (ty, shape, bytes)) in tensors {
        text(&mut file, name);
        file.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|&dim| file.extend((dim as u64).to_le_bytes()));
        file.extend(ty.to_le_bytes());
        file.extend(offset.to_le_bytes());
        offset += (bytes.len() as u64).next_multiple_of(32);
    }
    for (_, _, bytes) in tensors.values() {
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(bytes);
    }
    // The reader may expect the last tensor to be padded as well.
    file.resize(file.len().next_multiple_of(32), 0);
    std::fs::write(path, file).unwrap();
}

fn text(file: &mut Vec<u8>, text: &str) {
    file.extend((text.len() as u64).to_le_bytes());
    file.extend(text.as_bytes());
}

fn meta(file: &mut Vec<u8>, value: &Meta) {
    match value {
        Meta::U32(value) => {
            file.extend(4u32.to_le_bytes());
            file.extend(value.to_le_bytes());
        }
        Meta::F32(value) => {
            file.extend(6u32.to_le_bytes());
            file.extend(value.to_le_bytes());
        }
        Meta::Text(value) => {
            file.extend(8u32.to_le_bytes());
            text(file, value);
        }
        Meta::U32s(values) => {
            file.extend(9u32.to_le_bytes());
            file.extend(4u32.to_le_bytes());
            file.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| file.extend(value.to_le_bytes()));
        }
    }
}

/// Writes [`hybrid`].
pub fn write_hybrid(toy: &Toy, parent: &Path, name: &str) -> PathBuf {
    let (metadata, tensors) = hybrid(toy);
    let path = parent.join(name);
    write(&path, &metadata, &tensors);
    path
}

/// [`Toy::hybrid`] (with or without draft layer) as llama.cpp converts it. `[3, 3, 2, 0]` sections and a rotated
/// width of 8 invite the mistakes that are easy to make with them.
pub fn hybrid(toy: &Toy) -> (Metadata, Tensors) {
    let number = |key: &str| toy.config[key].as_u64().unwrap_or(0) as u32;
    let moe = number("num_experts") > 0;
    let arch = if moe { "qwen35moe" } else { "qwen35" };
    let draft = u32::from(toy.tensors.contains_key("mtp.fc.weight"));
    let values = number("linear_num_value_heads");
    let mut metadata: Metadata = vec![("general.architecture".to_owned(), Meta::Text(arch))];
    let mut put = |key: &str, value: Meta| metadata.push((format!("{arch}.{key}"), value));
    put("block_count", Meta::U32(4 + draft));
    put("nextn_predict_layers", Meta::U32(draft));
    put("embedding_length", Meta::U32(64));
    put("vocab_size", Meta::U32(96));
    put("attention.head_count", Meta::U32(4));
    put("attention.head_count_kv", Meta::U32(2));
    put("attention.key_length", Meta::U32(32));
    put("attention.value_length", Meta::U32(32));
    put("attention.layer_norm_rms_epsilon", Meta::F32(1e-6));
    put("rope.freq_base", Meta::F32(1e7));
    put("rope.dimension_count", Meta::U32(8));
    put("rope.dimension_sections", Meta::U32s(vec![3, 3, 2, 0]));
    put("ssm.conv_kernel", Meta::U32(4));
    put("ssm.state_size", Meta::U32(16));
    put("ssm.group_count", Meta::U32(2));
    put("ssm.time_step_rank", Meta::U32(values));
    put("ssm.inner_size", Meta::U32(values * 16));
    put("full_attention_interval", Meta::U32(4));
    if moe {
        put("expert_count", Meta::U32(4));
        put("expert_used_count", Meta::U32(2));
        put("expert_feed_forward_length", Meta::U32(32));
        put("expert_shared_feed_forward_length", Meta::U32(64));
    } else {
        put("feed_forward_length", Meta::U32(128));
    }
    let mut tensors = Tensors::new();
    for (name, tensor) in &toy.tensors {
        hybrid_tensor(name, tensor, values as usize, &mut tensors);
    }
    (metadata, tensors)
}

fn hybrid_tensor(name: &str, tensor: &Tensor, values: usize, out: &mut Tensors) {
    let bare = name.strip_prefix("model.").unwrap_or(name);
    let (block, leaf) = match bare.strip_prefix("mtp.") {
        Some(rest) => ("blk.4.".to_owned(), rest.strip_prefix("layers.0.").unwrap_or(rest)),
        None => match bare.strip_prefix("layers.") {
            Some(rest) => (format!("blk.{}.", &rest[..1]), &rest[2..]),
            None => (String::new(), bare),
        },
    };
    let draft = bare.starts_with("mtp.");
    let mut tensor = tensor.clone();
    if leaf.ends_with("norm.weight") && !leaf.starts_with("linear_attn") || leaf.starts_with("pre_fc_norm") {
        tensor.values.iter_mut().for_each(|value| *value += 1.0);
    }
    let new = match leaf {
        "embed_tokens.weight" => "token_embd.weight",
        "lm_head.weight" => "output.weight",
        "norm.weight" if draft => "nextn.shared_head_norm.weight",
        "norm.weight" => "output_norm.weight",
        "fc.weight" => "nextn.eh_proj.weight",
        "pre_fc_norm_embedding.weight" => "nextn.enorm.weight",
        "pre_fc_norm_hidden.weight" => "nextn.hnorm.weight",
        "input_layernorm.weight" => "attn_norm.weight",
        "post_attention_layernorm.weight" => "post_attention_norm.weight",
        "self_attn.q_proj.weight" => "attn_q.weight",
        "self_attn.k_proj.weight" => "attn_k.weight",
        "self_attn.v_proj.weight" => "attn_v.weight",
        "self_attn.o_proj.weight" => "attn_output.weight",
        "self_attn.q_norm.weight" => "attn_q_norm.weight",
        "self_attn.k_norm.weight" => "attn_k_norm.weight",
        "linear_attn.in_proj_qkv.weight" => tiled(&mut tensor, 64, 16, values, "attn_qkv.weight"),
        "linear_attn.in_proj_z.weight" => tiled(&mut tensor, 0, 16, values, "attn_gate.weight"),
        "linear_attn.in_proj_a.weight" => tiled(&mut tensor, 0, 1, values, "ssm_alpha.weight"),
        "linear_attn.in_proj_b.weight" => tiled(&mut tensor, 0, 1, values, "ssm_beta.weight"),
        "linear_attn.conv1d.weight" => {
            tensor.shape.remove(1);
            tiled(&mut tensor, 64, 16, values, "ssm_conv1d.weight")
        }
        "linear_attn.A_log" => {
            tensor.values.iter_mut().for_each(|value| *value = -value.exp());
            tiled(&mut tensor, 0, 1, values, "ssm_a")
        }
        "linear_attn.dt_bias" => tiled(&mut tensor, 0, 1, values, "ssm_dt.bias"),
        "linear_attn.norm.weight" => "ssm_norm.weight",
        "linear_attn.out_proj.weight" => {
            let mut turned = transposed(&tensor);
            tiled(&mut turned, 0, 16, values, "");
            tensor = transposed(&turned);
            "ssm_out.weight"
        }
        "mlp.gate_proj.weight" => "ffn_gate.weight",
        "mlp.up_proj.weight" => "ffn_up.weight",
        "mlp.down_proj.weight" => "ffn_down.weight",
        "mlp.gate.weight" => "ffn_gate_inp.weight",
        "mlp.experts.gate_up_proj" => "ffn_gate_up_exps.weight",
        "mlp.experts.down_proj" => "ffn_down_exps.weight",
        "mlp.shared_expert.gate_proj.weight" => "ffn_gate_shexp.weight",
        "mlp.shared_expert.up_proj.weight" => "ffn_up_shexp.weight",
        "mlp.shared_expert.down_proj.weight" => "ffn_down_shexp.weight",
        "mlp.shared_expert_gate.weight" => {
            tensor.shape.remove(0);
            "ffn_gate_inp_shexp.weight"
        }
        other => panic!("{other} is not in the toy"),
    };
    out.insert(format!("{block}{new}"), tensor);
}

/// Moves value head `k·r + j` to place `j·2 + k`, in units of `unit` rows after `from` rows.
fn tiled(tensor: &mut Tensor, from: usize, unit: usize, values: usize, name: &'static str) -> &'static str {
    let per_key = values / 2;
    let width = tensor.values.len() / tensor.shape[0];
    let source = tensor.values.clone();
    for k in 0..2 {
        for j in 0..per_key {
            for row in 0..unit {
                let canonical = (from + (k * per_key + j) * unit + row) * width;
                let place = (from + (j * 2 + k) * unit + row) * width;
                tensor.values[place..place + width].copy_from_slice(&source[canonical..canonical + width]);
            }
        }
    }
    name
}

fn transposed(tensor: &Tensor) -> Tensor {
    let (rows, columns) = (tensor.shape[0], tensor.shape[1]);
    let values = (0..columns).flat_map(|c| (0..rows).map(move |r| tensor.values[r * columns + c])).collect();
    Tensor { dtype: tensor.dtype, shape: vec![columns, rows], values }
}
