//! What a sequence leaves in caches, for every kind of token mixer that published models have: softmax attention over
//! all positions or a window, latent attention, and recurrent states. Sizes only: most of these mixers are not run here.
//!
//! Formulas, per layer: attention keeps `kv_heads · (k_dim + v_dim)` elements of a token, latent attention (MLA) one row of
//! `kv_lora_rank + qk_rope_head_dim` for both sides; a layer that reads another's keys and values keeps nothing; a
//! window keeps its last tokens only. States are of constant size, in f32: the matrices of the recurrence and the last
//! `kernel - 1` inputs of the convolution.

use crate::catalog::Geometry;
use crate::plan::ElementSize;
use crate::{GatedDelta, Mixer, ModelError, ModelSpec};

/// Layers of one shape that keep keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValues {
    /// Layers.
    pub layers: u64,
    /// Key/value heads of a layer; 1 for latent attention.
    pub heads: u64,
    /// Elements of a head's key, or of a latent row.
    pub k_dim: u64,
    /// Elements of a head's value; 0 for latent attention, which keeps one row for both.
    pub v_dim: u64,
}

impl KeyValues {
    /// Bytes of one token in all these layers.
    pub fn bytes(&self, k: ElementSize, v: ElementSize) -> u64 {
        self.layers * self.heads * (k.of(self.k_dim) + v.of(self.v_dim))
    }
}

/// Layers that keep the last tokens only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Their shape.
    pub kv: KeyValues,
    /// Tokens that they keep.
    pub tokens: u64,
}

/// Recurrent state of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is none.
    None,
    /// There is some, of a size that is not verified.
    Unverified,
    /// Elements of one layer.
    Known {
        /// Layers.
        layers: u64,
        /// Matrices of the recurrence.
        recurrent: u64,
        /// Last inputs of the convolution; `None` where their number is not verified.
        conv: Option<u64>,
    },
}

impl State {
    /// Bytes of all layers in f32, without a part that is not verified.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            State::None => Some(0),
            State::Unverified => None,
            State::Known { layers, recurrent, conv } => Some(4 * layers * (recurrent + conv.unwrap_or(0))),
        }
    }

    fn of(delta: &GatedDelta, layers: u64) -> State {
        let bytes = crate::plan::StateBytes::of(delta);
        State::Known { layers, recurrent: bytes.delta / 4, conv: Some(bytes.conv / 4) }
    }
}

/// What a sequence of a model caches. Draft layers are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Layers that keep every token.
    pub full: KeyValues,
    /// Layers that keep a window.
    pub window: Option<Window>,
    /// Recurrent layers.
    pub state: State,
    /// Layers of the shape of [`full`](Self::full) if every mixer kept every token, those that share or recur included.
    pub mixing_layers: u64,
    /// Layers of the shape of [`window`](Self::window) in the same case.
    pub windowed_layers: u64,
}

impl Footprint {
    /// Of a model that is run here.
    pub fn of(spec: &ModelSpec) -> Footprint {
        let mut attention = spec.layers.iter().filter_map(|layer| layer.mixer.attention());
        let first = attention.next();
        let layers = first.map_or(0, |_| 1 + attention.count() as u64);
        let recurrent = spec.layers.iter().find_map(|layer| match &layer.mixer {
            Mixer::GatedDelta(delta) => Some(State::of(delta, spec.layers.len() as u64 - layers)),
            Mixer::Attention(_) => None,
        });
        let (heads, dim) = first.map_or((0, 0), |a| (a.kv_heads as u64, a.head_dim as u64));
        Footprint {
            full: KeyValues { layers, heads, k_dim: dim, v_dim: dim },
            window: None,
            state: recurrent.unwrap_or(State::None),
            mixing_layers: spec.layers.len() as u64,
            windowed_layers: 0,
        }
    }

    /// Whether keys and values are one latent row, so that there is only one type.
    pub fn is_latent(&self) -> bool {
        self.full.v_dim == 0
    }

    /// Bytes by which the cache grows with every token, beyond any window.
    pub fn bytes_per_token(&self, k: ElementSize, v: ElementSize) -> u64 {
        self.full.bytes(k, v)
    }

    /// Bytes of keys and values after `tokens` tokens.
    pub fn kv_bytes(&self, tokens: u64, k: ElementSize, v: ElementSize) -> u64 {
        let window = self.window.map_or(0, |window| window.kv.bytes(k, v) * tokens.min(window.tokens));
        self.full.bytes(k, v) * tokens + window
    }

    /// Bytes of a token if every layer that mixes tokens kept all of them.
    pub fn full_stack_bytes_per_token(&self, k: ElementSize, v: ElementSize) -> u64 {
        let full = KeyValues { layers: self.mixing_layers, ..self.full }.bytes(k, v);
        let windowed = |w: Window| KeyValues { layers: self.windowed_layers, ..w.kv }.bytes(k, v);
        full + self.window.map_or(0, windowed)
    }

    /// How many times smaller the cache grows than that of the full stack.
    pub fn reduction(&self) -> f64 {
        let f16 = ElementSize::F16;
        self.full_stack_bytes_per_token(f16, f16) as f64 / self.bytes_per_token(f16, f16).max(1) as f64
    }
}

impl Geometry<'_> {
    /// What a sequence of this model caches, whether or not the model can be run here.
    ///
    /// # Errors
    /// A field that is not verified.
    pub fn footprint(&self) -> Result<Footprint, ModelError> {
        let size = |path: &str| self.count(path).map(|n| n as u64);
        let layers = size("attention.cache_layers")?;
        let full = match self.text("attention.kind") {
            Some("mla") => {
                let row = size("attention.kv_lora_rank")? + size("attention.qk_rope_head_dim")?;
                KeyValues { layers, heads: 1, k_dim: row, v_dim: 0 }
            }
            _ => self.key_values("attention", layers)?,
        };
        let window = match self.find("sliding") {
            None => None,
            Some(_) => Some(Window {
                kv: self.key_values("sliding", size("sliding.cache_layers")?)?,
                tokens: size("sliding.window")?,
            }),
        };
        let (mixing_layers, windowed_layers) = self.mixing_layers();
        Ok(Footprint { full, window, state: self.state(), mixing_layers, windowed_layers })
    }

    fn key_values(&self, group: &str, layers: u64) -> Result<KeyValues, ModelError> {
        let size = |field: &str| self.count(&format!("{group}.{field}")).map(|n| n as u64);
        Ok(KeyValues {
            layers,
            heads: size("kv_heads")?,
            k_dim: size("k_head_dim")?,
            v_dim: size("v_head_dim")?,
        })
    }

    /// Layers that mix tokens, and among them those with a window. Blocks of feed-forward layers alone do not count.
    fn mixing_layers(&self) -> (u64, u64) {
        let mut layers = (0, 0);
        for (kind, count) in self.kinds() {
            match kind.as_str() {
                "moe" | "mlp" => {}
                "sliding_attention" => layers.1 += count,
                _ => layers.0 += count,
            }
        }
        layers
    }

    fn state(&self) -> State {
        if self.find("linear").is_none() {
            return State::None;
        }
        let size = |field: &str| self.count(&format!("linear.{field}")).ok().map(|n| n as u64);
        let known = || -> Option<State> {
            let layers = size("layers")?;
            let tail = size("conv_kernel").map(|kernel| kernel.saturating_sub(1));
            let (recurrent, channels) = match self.text("linear.kind")? {
                "gated_deltanet" => {
                    let values = size("value_heads")? * size("value_dim")?;
                    let channels = 2 * size("key_heads")? * size("key_dim")? + values;
                    (values * size("key_dim")?, Some(channels))
                }
                "mamba2" => {
                    let (inner, state) = (size("heads")? * size("head_dim")?, size("state_dim")?);
                    (inner * state, size("groups").map(|groups| inner + 2 * groups * state))
                }
                "kda" => {
                    let keys = size("heads")? * size("key_dim")?;
                    (keys * size("value_dim")?, Some(3 * keys))
                }
                "lightning" => (size("heads")? * size("key_dim")? * size("value_dim")?, Some(0)),
                "short_conv" => (0, Some(size("width")?)),
                _ => return None,
            };
            Some(State::Known { layers, recurrent, conv: channels.zip(tail).map(|(c, t)| c * t) })
        };
        known().unwrap_or(State::Unverified)
    }
}
