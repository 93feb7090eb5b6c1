//! Bytes of the caches that a sequence needs, from the model's geometry alone.
//!
//! Attention layers keep every position's keys and values; Gated-DeltaNet layers keep a state of constant
//! size: one f32 matrix `[key_dim, value_dim]` per value head and the last `conv_kernel - 1` inputs of the
//! convolution.

use crate::{Attention, GatedDelta, Mixer, ModelSpec};

/// Size of cached elements: `bytes` for every `per` neighbouring elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementSize {
    /// Bytes of one block.
    pub bytes: u64,
    /// Elements of one block.
    pub per: u64,
}

impl ElementSize {
    /// 32-bit floats.
    pub const F32: ElementSize = ElementSize { bytes: 4, per: 1 };
    /// 16-bit floats.
    pub const F16: ElementSize = ElementSize { bytes: 2, per: 1 };
    /// 8-bit codes in blocks of 32 with an f16 scale.
    pub const Q8: ElementSize = ElementSize { bytes: 34, per: 32 };
    /// 4-bit codes in blocks of 32 with an f16 scale.
    pub const Q4: ElementSize = ElementSize { bytes: 18, per: 32 };

    /// Bytes of `elements` elements; a started block counts whole.
    pub fn of(self, elements: u64) -> u64 {
        elements.div_ceil(self.per) * self.bytes
    }
}

/// KV cache bytes of one token in one attention layer.
pub fn kv_bytes_per_token(attention: &Attention, k: ElementSize, v: ElementSize) -> u64 {
    let head = attention.head_dim as u64;
    attention.kv_heads as u64 * (k.of(head) + v.of(head))
}

/// Recurrent state of one Gated-DeltaNet layer, for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateBytes {
    /// Delta-rule state, f32.
    pub delta: u64,
    /// Last inputs of the convolution, f32.
    pub conv: u64,
}

impl StateBytes {
    /// State of one layer.
    pub fn of(delta: &GatedDelta) -> StateBytes {
        let matrix = (delta.key_dim * delta.value_dim) as u64;
        let tail = delta.conv_kernel.saturating_sub(1) as u64;
        StateBytes {
            delta: delta.value_heads as u64 * matrix * 4,
            conv: delta.conv_channels() as u64 * tail * 4,
        }
    }

    /// Both parts.
    pub fn total(self) -> u64 {
        self.delta + self.conv
    }
}

impl ModelSpec {
    /// KV cache bytes of one token in all attention layers.
    pub fn kv_bytes_per_token(&self, k: ElementSize, v: ElementSize) -> u64 {
        let layers = self.layers.iter().filter_map(|layer| layer.mixer.attention());
        layers.map(|attention| kv_bytes_per_token(attention, k, v)).sum()
    }

    /// Recurrent state bytes of one sequence in all Gated-DeltaNet layers.
    pub fn state_bytes_per_sequence(&self) -> u64 {
        let bytes = |mixer: &Mixer| match mixer {
            Mixer::GatedDelta(delta) => StateBytes::of(delta).total(),
            Mixer::Attention(_) => 0,
        };
        self.layers.iter().map(|layer| bytes(&layer.mixer)).sum()
    }
}
