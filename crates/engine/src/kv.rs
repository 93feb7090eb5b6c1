//! The KV cache's element types, what they cost, and which heads they hold.

use std::fmt;
use std::path::Path;

use basert_kernels::KvDtype;
use basert_model::plan::ElementSize;
use basert_model::{Attention, ModelSpec};

use crate::EngineError;

/// Element types of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvTypes {
    /// Keys.
    pub k: KvDtype,
    /// Values.
    pub v: KvDtype,
}

impl Default for KvTypes {
    fn default() -> Self {
        KvTypes { k: KvDtype::F16, v: KvDtype::F16 }
    }
}

impl KvTypes {
    /// What is narrower than f16, widest first: `--kv-bits 8`, `84` and `4`.
    pub const NARROWER: [KvTypes; 3] = [
        KvTypes { k: KvDtype::Q8, v: KvDtype::Q8 },
        KvTypes { k: KvDtype::Q8, v: KvDtype::Q4 },
        KvTypes { k: KvDtype::Q4, v: KvDtype::Q4 },
    ];

    /// Whether the model's heads are whole blocks of both.
    pub fn fit(self, spec: &ModelSpec) -> bool {
        let mut attention = spec.layers.iter().filter_map(|layer| layer.mixer.attention());
        attention.all(|a| self.k.fits(a.head_dim) && self.v.fits(a.head_dim))
    }

    /// Cache bytes of one token in all attention layers of a model.
    pub fn bytes_per_token(self, spec: &ModelSpec) -> u64 {
        spec.kv_bytes_per_token(element_size(self.k), element_size(self.v))
    }

    /// Cache bytes of one token in one layer, for K and for V.
    pub(crate) fn layer_bytes(self, attention: &Attention) -> (u64, u64) {
        let head = attention.head_dim as u64;
        let side = |dtype| (attention.kv_heads as u64).saturating_mul(element_size(dtype).of(head));
        (side(self.k), side(self.v))
    }

    /// Refuses types whose blocks the heads of the model at `path` are not made of, as loading it does.
    ///
    /// # Errors
    /// [`EngineError::KvBlocks`], with the first such side.
    pub fn check(self, spec: &ModelSpec, path: &Path) -> Result<(), EngineError> {
        for attention in spec.layers.iter().filter_map(|layer| layer.mixer.attention()) {
            for (side, dtype) in [("K", self.k), ("V", self.v)] {
                let head_dim = attention.head_dim;
                if !dtype.fits(head_dim) {
                    return Err(EngineError::KvBlocks { path: path.to_path_buf(), side, dtype, head_dim });
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for KvTypes {
    /// As `--kv-type` takes it: `f16`, or `k=q8,v=q4` where the sides differ.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KvTypes { k, v } = self;
        if k == v { k.fmt(f) } else { f.pad(&format!("k={k},v={v}")) }
    }
}

/// The KV cache as it was allocated, read from its pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPools {
    /// Attention layers, each with a pool for K and one for V.
    pub layers: usize,
    /// Pages of a pool.
    pub pages: usize,
    /// Bytes of all pools.
    pub bytes: u64,
    /// Bytes of one token in all layers.
    pub bytes_per_token: u64,
}

/// The plan's size of a cache dtype.
fn element_size(dtype: KvDtype) -> ElementSize {
    ElementSize { bytes: dtype.block_bytes() as u64, per: dtype.block_elements() as u64 }
}
