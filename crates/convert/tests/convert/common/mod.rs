//! Checkpoints made by the tests themselves, and a look into what becomes of them.
//!
//! Every value is a multiple of 1/128 below 1 in magnitude: exact in f32, bf16 and f16, so that expectations
//! can be compared with `==`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use basert_convert::{ConvertError, Options, Report, Silent, Target, convert};
use basert_format::BaseFile;
use serde_json::{Value, json};

pub mod gguf;
pub mod mlx;
pub mod safetensors;

/// Values with their row-major shape and safetensors dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

pub type Tensors = BTreeMap<String, Tensor>;

/// The smallest tokenizer that can be run: byte pairs without merges.
pub const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [],
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}"#;

/// A small checkpoint in Hugging Face form.
#[derive(Clone, Debug)]
pub struct Toy {
    pub config: Value,
    pub tensors: Tensors,
}

/// Repeatable values for a tensor of `shape`; `seed` tells tensors apart.
pub fn noise(seed: &str, shape: &[usize]) -> Tensor {
    let mut state = seed.bytes().fold(0x9e37_79b9_7f4a_7c15u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (((state >> 33) % 255) as f32 - 127.0) / 128.0
    };
    let values = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor { dtype: "F32", shape: shape.to_vec(), values }
}

impl Toy {
    fn add(&mut self, name: impl Into<String>, shape: &[usize]) {
        let name = name.into();
        let tensor = noise(&name, shape);
        self.tensors.insert(name, tensor);
    }

    /// Qwen3.5 with 4 layers (the last one attention), 2 key heads and `value_heads` value heads.
    pub fn hybrid(value_heads: usize, moe: bool) -> Toy {
        let config = json!({
            "model_type": if moe { "qwen3_5_moe_text" } else { "qwen3_5_text" },
            "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 32, "vocab_size": 96, "rms_norm_eps": 1e-6, "full_attention_interval": 4,
            "linear_num_key_heads": 2, "linear_num_value_heads": value_heads, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "tie_word_embeddings": false,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                                "mrope_section": [2, 1, 1], "mrope_interleaved": true}
        });
        let mut toy = Toy { config, tensors: Tensors::new() };
        toy.add("model.embed_tokens.weight", &[96, 64]);
        toy.add("model.norm.weight", &[64]);
        toy.add("lm_head.weight", &[96, 64]);
        if moe {
            let settings = [("num_experts", 4), ("num_experts_per_tok", 2), ("moe_intermediate_size", 32)];
            settings.iter().for_each(|(key, value)| toy.config[key] = json!(value));
            toy.config["shared_expert_intermediate_size"] = json!(64);
        } else {
            toy.config["intermediate_size"] = json!(128);
        }
        for layer in 0..4 {
            toy.hybrid_layer(&format!("model.layers.{layer}."), layer == 3, value_heads, moe);
        }
        toy
    }

    fn hybrid_layer(&mut self, p: &str, full: bool, nv: usize, moe: bool) {
        self.add(format!("{p}input_layernorm.weight"), &[64]);
        self.add(format!("{p}post_attention_layernorm.weight"), &[64]);
        if full {
            self.add(format!("{p}self_attn.q_proj.weight"), &[256, 64]);
            self.add(format!("{p}self_attn.k_proj.weight"), &[64, 64]);
            self.add(format!("{p}self_attn.v_proj.weight"), &[64, 64]);
            self.add(format!("{p}self_attn.o_proj.weight"), &[64, 128]);
            self.add(format!("{p}self_attn.q_norm.weight"), &[32]);
            self.add(format!("{p}self_attn.k_norm.weight"), &[32]);
        } else {
            let channels = 2 * 2 * 16 + nv * 16;
            self.add(format!("{p}linear_attn.in_proj_qkv.weight"), &[channels, 64]);
            self.add(format!("{p}linear_attn.in_proj_z.weight"), &[nv * 16, 64]);
            self.add(format!("{p}linear_attn.in_proj_a.weight"), &[nv, 64]);
            self.add(format!("{p}linear_attn.in_proj_b.weight"), &[nv, 64]);
            self.add(format!("{p}linear_attn.conv1d.weight"), &[channels, 1, 4]);
            self.add(format!("{p}linear_attn.A_log"), &[nv]);
            self.add(format!("{p}linear_attn.dt_bias"), &[nv]);
            self.add(format!("{p}linear_attn.norm.weight"), &[16]);
            self.add(format!("{p}linear_attn.out_proj.weight"), &[64, nv * 16]);
        }
        if moe {
            self.add(format!("{p}mlp.gate.weight"), &[4, 64]);
            self.add(format!("{p}mlp.experts.gate_up_proj"), &[4, 64, 64]);
            self.add(format!("{p}mlp.experts.down_proj"), &[4, 64, 32]);
            self.add(format!("{p}mlp.shared_expert.gate_proj.weight"), &[64, 64]);
            self.add(format!("{p}mlp.shared_expert.up_proj.weight"), &[64, 64]);
            self.add(format!("{p}mlp.shared_expert.down_proj.weight"), &[64, 64]);
            self.add(format!("{p}mlp.shared_expert_gate.weight"), &[1, 64]);
        } else {
            self.dense_mlp(p);
        }
    }

    fn dense_mlp(&mut self, p: &str) {
        self.add(format!("{p}mlp.gate_proj.weight"), &[128, 64]);
        self.add(format!("{p}mlp.up_proj.weight"), &[128, 64]);
        self.add(format!("{p}mlp.down_proj.weight"), &[64, 128]);
    }

    /// Llama with one layer, 4 heads of 16 and 2 KV heads.
    pub fn llama() -> Toy {
        let config = json!({
            "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 96, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": true
        });
        let mut toy = Toy { config, tensors: Tensors::new() };
        toy.add("model.embed_tokens.weight", &[96, 64]);
        toy.add("model.norm.weight", &[64]);
        let p = "model.layers.0.";
        toy.add(format!("{p}input_layernorm.weight"), &[64]);
        toy.add(format!("{p}post_attention_layernorm.weight"), &[64]);
        toy.add(format!("{p}self_attn.q_proj.weight"), &[64, 64]);
        toy.add(format!("{p}self_attn.k_proj.weight"), &[32, 64]);
        toy.add(format!("{p}self_attn.v_proj.weight"), &[32, 64]);
        toy.add(format!("{p}self_attn.o_proj.weight"), &[64, 64]);
        toy.dense_mlp(p);
        toy
    }

    /// Adds the draft layer of [`Toy::hybrid`].
    pub fn with_draft(mut self, moe: bool) -> Toy {
        self.add("mtp.fc.weight", &[64, 128]);
        self.add("mtp.norm.weight", &[64]);
        self.add("mtp.pre_fc_norm_embedding.weight", &[64]);
        self.add("mtp.pre_fc_norm_hidden.weight", &[64]);
        self.hybrid_layer("mtp.layers.0.", true, 0, moe);
        self
    }

    /// The values of a tensor.
    pub fn values(&self, name: &str) -> Vec<f32> {
        self.tensors[name].values.clone()
    }

    /// Writes config, tokenizer and one safetensors file into a new directory.
    pub fn write(&self, parent: &Path, name: &str) -> PathBuf {
        let dir = parent.join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("config.json"), serde_json::to_vec_pretty(&self.config).unwrap()).unwrap();
        std::fs::write(dir.join("tokenizer.json"), TOKENIZER).unwrap();
        safetensors::write(&dir.join("model.safetensors"), &self.tensors, "pt");
        dir
    }
}

/// Options for `target` with a fixed time stamp.
pub fn options(target: &str) -> Options {
    let target: Target = target.parse().unwrap();
    Options { target, created: Some(0), threads: Some(2), ..Options::default() }
}

/// Converts into `dir/name.base` and opens the result.
pub fn converted(source: &Path, dir: &Path, name: &str, options: &Options) -> (BaseFile, Report) {
    let out = dir.join(format!("{name}.base"));
    let report = convert(source, &out, options, &mut Silent).unwrap();
    let file = BaseFile::open(&out).unwrap();
    file.verify_checksums(&mut |_, _| {}).unwrap();
    (file, report)
}

/// The error of a conversion, which must leave nothing behind.
pub fn refused(source: &Path, options: &Options) -> ConvertError {
    let dir = tempfile::tempdir().unwrap();
    let error = convert(source, &dir.path().join("out.base"), options, &mut Silent).unwrap_err();
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?} left behind after: {error}");
    error
}

/// Decoded values of a tensor of a `.base` file.
pub fn decoded(file: &BaseFile, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    let elements = tensor.shape.iter().product::<u64>() as usize;
    let mut out = vec![0.0; elements];
    tensor.encoding.decode(tensor.data, elements, 0, &mut out).unwrap();
    out
}

/// Name, dtype, shape and payload of every main tensor, sorted by name.
pub fn payloads(file: &BaseFile) -> BTreeMap<String, (String, Vec<u64>, Vec<u8>)> {
    file.tensors()
        .map(|tensor| {
            let dtype = tensor.entry.dtype().to_string();
            (tensor.entry.name.clone(), (dtype, tensor.shape.to_vec(), tensor.data.to_vec()))
        })
        .collect()
}

/// The golden models that may not be copied into the repository; `None` where they are absent and need not be
/// there.
pub fn shared_fixtures() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    if path.is_dir() {
        return Some(path);
    }
    assert!(std::env::var_os("BASERT_REQUIRE_FIXTURES").is_none(), "{} is missing", path.display());
    println!("skipped: {} is not there", path.display());
    None
}

/// A golden model of the repository.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}
