//! The header: the JSON object at the front of every `.base` file. Fields are declared in the order they are
//! written in; optional ones are left out when they hold their default, never written as `null`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::json::unique_keys;
use crate::{
    ComputeRegion, Fault, HeaderFlags, LayerKind, QuantScheme, SourceFormat, TargetBackend, TensorEntry,
};

/// The `metadata` key that holds the version of this program. [`crate::BaseWriter`] always sets it, so its
/// absence marks a file of another writer.
pub const VERSION_KEY: &str = "basert.version";

/// The header of a `.base` file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Header {
    /// Schema of this object; 1.
    pub schema: u32,
    /// Architecture family, e.g. `qwen35`.
    pub arch: String,
    /// What the file was converted to. Informational.
    pub quant_scheme: QuantScheme,
    /// Smallest machine meant; existing files say `apple_m1`.
    pub min_hw: String,
    /// Time of conversion: Unix seconds as a decimal string.
    pub created: String,
    /// Version of the program that wrote the file.
    #[serde(rename = "baserT_version")]
    pub basert_version: String,
    /// Where the weights came from.
    pub source: Source,
    /// The tokenizer block: `tokenizer_type`, `tokenizer.json`, `tokenizer_config.json`,
    /// `tokenizer.chat_template`, or the `tokenizer.*` keys of a GGUF. Values are kept as JSON text, so that
    /// a large `tokenizer.json` is not taken apart until somebody needs it, and then only once. Make them
    /// with [`serde_json::value::to_raw_value`], which writes compact JSON.
    #[serde(deserialize_with = "unique_keys")]
    pub tokenizer: BTreeMap<String, Box<RawValue>>,
    /// Hyperparameters.
    #[serde(deserialize_with = "unique_keys")]
    pub config: BTreeMap<String, Value>,
    /// Further flat keys, e.g. `basert.*` and `lora.*`.
    #[serde(default, deserialize_with = "unique_keys", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Value>,
    /// Machine the file was arranged for. Informational.
    #[serde(default)]
    pub target_backend: TargetBackend,
    /// Name of the quantisation profile; empty if none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub quant_profile: String,
    /// Alignment of tensors in the blob, per compute region.
    #[serde(default)]
    pub alignment: Alignment,
    /// Flags of the file.
    #[serde(default, skip_serializing_if = "HeaderFlags::is_empty")]
    pub flags: HeaderFlags,
    /// One entry per layer. Existing files repeat one constant, so nothing is read from it.
    #[serde(default)]
    pub layers: Vec<LayerDescriptor>,
    /// The main tensors.
    pub tensors: Vec<TensorEntry>,
    /// Vision and audio towers, in the same blob after the main tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mmproj: Option<MmProj>,
    /// How calibration was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
    /// Signature. Carried, not checked here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sig: Option<Signature>,
}

impl Header {
    /// A header with no tensors, empty maps and the values that every file of ours has.
    ///
    /// `created` is Unix seconds as a decimal string; the caller chooses it, so that output can be
    /// reproducible.
    pub fn new(arch: &str, quant_scheme: QuantScheme, source: Source, created: &str) -> Header {
        Header {
            schema: 1,
            arch: arch.to_owned(),
            quant_scheme,
            min_hw: "apple_m1".to_owned(),
            created: created.to_owned(),
            basert_version: env!("CARGO_PKG_VERSION").to_owned(),
            source,
            tokenizer: BTreeMap::new(),
            config: BTreeMap::new(),
            metadata: BTreeMap::from([(VERSION_KEY.to_owned(), env!("CARGO_PKG_VERSION").into())]),
            target_backend: TargetBackend::Metal,
            quant_profile: String::new(),
            alignment: Alignment::default(),
            flags: HeaderFlags::default(),
            layers: Vec::new(),
            tensors: Vec::new(),
            mmproj: None,
            calibration: None,
            sig: None,
        }
    }

    /// Whether the original converter made this file from a GGUF. Such files carry `shape` in ggml order,
    /// innermost dimension first, over the same bytes.
    pub fn is_upstream_gguf(&self) -> bool {
        self.source.format == SourceFormat::Gguf && !self.metadata.contains_key(VERSION_KEY)
    }
}

/// Where a file's weights came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Kind of checkpoint.
    pub format: SourceFormat,
    /// Lower-case hex SHA-256 of a GGUF source, empty for directories.
    pub sha256: String,
    /// Last path component of the input.
    pub filename: String,
}

/// Alignment exponents of the three compute regions: a tensor starts at a multiple of 2^n bytes from blob
/// start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alignment {
    /// Region `accelerator`.
    pub accel_align_log2: u32,
    /// Region `gpu`.
    pub gpu_page_log2: u32,
    /// Region `cpu`.
    pub cpu_align_log2: u32,
}

impl Alignment {
    /// Checks that the exponents are not absurd. Real ones are 6 and 14; 30 is 1 GiB.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let fields = [
            ("alignment.accel_align_log2", self.accel_align_log2),
            ("alignment.gpu_page_log2", self.gpu_page_log2),
            ("alignment.cpu_align_log2", self.cpu_align_log2),
        ];
        match fields.into_iter().find(|(_, log2)| *log2 > 30) {
            Some((field, log2)) => {
                Err(Fault::HeaderField { field, found: u64::from(log2), expected: "at most 30" })
            }
            None => Ok(()),
        }
    }

    /// Alignment in bytes of tensors in `region`, once checked.
    pub(crate) fn bytes(&self, region: ComputeRegion) -> u64 {
        1 << match region {
            ComputeRegion::Accelerator => self.accel_align_log2,
            ComputeRegion::Gpu => self.gpu_page_log2,
            ComputeRegion::Cpu => self.cpu_align_log2,
        }
    }
}

impl Default for Alignment {
    fn default() -> Alignment {
        Alignment { accel_align_log2: 6, gpu_page_log2: 14, cpu_align_log2: 6 }
    }
}

/// One element of `layers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerDescriptor {
    /// Kind of layer.
    pub kind: LayerKind,
    /// Number of experts, 0 if dense.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub moe_n_experts: u16,
    /// Experts per token, 0 if dense.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub moe_n_active: u16,
    /// The layer whose attention weights this one shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_attn_layer: Option<u32>,
    /// Where the layer is meant to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_hint: Option<ComputeRegion>,
    /// Precision wishes.
    #[serde(default, skip_serializing_if = "LayerPrecision::is_default")]
    pub precision: LayerPrecision,
}

/// Precision wishes of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LayerPrecision {
    /// Attention in f32.
    #[serde(default, skip_serializing_if = "is_false")]
    pub force_fp32_attn: bool,
    /// State-space arithmetic in f32.
    #[serde(default, skip_serializing_if = "is_false")]
    pub force_fp32_ssm: bool,
    /// Weights were kept in float.
    #[serde(default, skip_serializing_if = "is_false")]
    pub no_quantize: bool,
}

impl LayerPrecision {
    fn is_default(&self) -> bool {
        *self == LayerPrecision::default()
    }
}

/// Vision and audio towers with their projectors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MmProj {
    /// Architecture, `<arch>_mm`.
    pub arch: String,
    /// Their configuration.
    #[serde(default, deserialize_with = "unique_keys", skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, Value>,
    /// Their tensors; offsets count from the same blob start as the main ones.
    pub tensors: Vec<TensorEntry>,
}

/// How a file was calibrated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Method.
    pub mode: String,
    /// Tokens used.
    pub calib_tokens: u64,
    /// Per-layer parameters.
    #[serde(default, deserialize_with = "unique_keys", skip_serializing_if = "BTreeMap::is_empty")]
    pub per_layer_alpha: BTreeMap<String, Value>,
}

/// A detached signature over header and main tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// Algorithm, `ed25519`.
    pub alg: String,
    /// Name of the key.
    pub key_id: String,
    /// Standard base64 with padding.
    pub signature: String,
}

fn is_zero(value: &u16) -> bool {
    *value == 0
}

fn is_false(value: &bool) -> bool {
    !value
}
