//! What a model takes, to be set against what it is worth.

use basert_engine::Engine;
use serde::Serialize;

/// Bytes of weights and caches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Footprint {
    /// Elements of all main tensors but those of draft layers.
    pub parameters: u64,
    /// Bytes of the same tensors in the file, scales included.
    pub weight_bytes: u64,
    /// `8 · weight_bytes / parameters`.
    pub bits_per_weight: f64,
    /// Cache bytes of a token in all attention layers.
    pub kv_bytes_per_token: u64,
    /// Recurrent state of a sequence.
    pub state_bytes: u64,
}

impl Footprint {
    /// Of a loaded model.
    pub fn of(engine: &Engine) -> Footprint {
        let tensors = engine.file().header().tensors.iter().filter(|t| !t.name.starts_with("mtp."));
        let (parameters, weight_bytes) = tensors.fold((0, 0), |(elements, bytes), t| {
            (elements + t.shape.iter().product::<u64>(), bytes + t.length)
        });
        Footprint {
            parameters,
            weight_bytes,
            bits_per_weight: 8.0 * weight_bytes as f64 / parameters as f64,
            kv_bytes_per_token: engine.selected().kv.bytes_per_token(engine.spec()),
            state_bytes: engine.spec().state_bytes_per_sequence(),
        }
    }
}
