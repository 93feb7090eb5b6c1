//! A model as data: layers, mixers and feed-forward blocks with their sizes. No weights live here.
//!
//! One `forward` in the engine walks a [`ModelSpec`]; a new architecture that is made of known blocks
//! needs only a new function from configuration to `ModelSpec`.

/// How the two members of a rotary pair are found inside the rotated part of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// Element `i` pairs with `i + rotary/2` ("rotate-half", NeoX).
    Half,
    /// Element `2i` pairs with `2i + 1` (llama rows as `.base` and GGUF store them).
    Interleaved,
}

/// Scaling of the rotary frequencies for long contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as they are.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Context extension factor.
        factor: f64,
    },
    /// Llama 3.1's wavelength-dependent scaling.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are fully scaled.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length that the unscaled model was trained for, in tokens.
        original_context: f64,
    },
}

impl RopeScaling {
    /// One inverse frequency, in radians per position, under the scaling. `Llama3` is the rule published with
    /// Llama 3.1: wavelengths beyond the trained window are stretched, short ones kept, the rest blended.
    pub fn apply(&self, frequency: f64) -> f64 {
        let f = frequency;
        match *self {
            RopeScaling::None => f,
            RopeScaling::Linear { factor } => f / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let wavelength = std::f64::consts::TAU / f;
                if wavelength < original_context / high_freq_factor {
                    f
                } else if wavelength > original_context / low_freq_factor {
                    f / factor
                } else {
                    let smooth = (original_context / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * f / factor + smooth * f
                }
            }
        }
    }
}

/// Rotary position embedding of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Rotated dimensions per head, the first ones; even, at most `head_dim`.
    pub dims: usize,
    /// Base of the geometric frequency sequence: `inv_freq[i] = theta^(-2i/dims)`.
    pub theta: f64,
    /// Pairing of elements.
    pub pairing: RopePairing,
    /// Long-context scaling.
    pub scaling: RopeScaling,
}

/// Grouped-query softmax attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements per head of q, k and v.
    pub head_dim: usize,
    /// Rotary embedding.
    pub rope: Rope,
    /// RMS norm of every q and k head before the rotation.
    pub qk_norm: bool,
    /// `q_proj` carries a gate per head (`[query; gate]`), applied as `sigmoid(gate)` before `o_proj`.
    pub output_gate: bool,
    /// q, k and v projections add a bias.
    pub qkv_bias: bool,
}

/// Gated DeltaNet (arXiv 2412.06464), recurrent form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedDelta {
    /// Query/key heads.
    pub key_heads: usize,
    /// Value heads; value head `h` reads key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Elements of a key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Taps of the causal depthwise convolution over q, k and v.
    pub conv_kernel: usize,
}

impl GatedDelta {
    /// Channels of the convolution: all of q, k and v.
    pub fn conv_channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Elements of the value (and `z`) projection.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }
}

/// The token mixer of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention over the KV cache.
    Attention(Attention),
    /// Recurrent linear attention with a fixed-size state.
    GatedDelta(GatedDelta),
}

/// The feed-forward part of a layer, always SwiGLU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ffn {
    /// One block for every token.
    Dense {
        /// Width of gate and up.
        intermediate: usize,
    },
    /// Routed experts.
    Moe(Moe),
}

/// Sparse mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moe {
    /// Number of routed experts.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Width of an expert's gate and up.
    pub intermediate: usize,
    /// Width of the shared expert, scaled by `sigmoid(shared_expert_gate(x))`, if there is one.
    pub shared_intermediate: Option<usize>,
    /// The selected probabilities are divided by their sum.
    pub renormalise: bool,
}

/// One decoder layer: `h = x + mixer(norm(x)); y = h + ffn(norm(h))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// Token mixer.
    pub mixer: Mixer,
    /// Feed-forward block.
    pub ffn: Ffn,
}

/// A decoder-only language model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Architecture family.
    pub arch: crate::Arch,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding table and of the head (may exceed the tokenizer's ids).
    pub vocab: usize,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Layers in order.
    pub layers: Vec<LayerSpec>,
    /// The layer of the multi-token prediction head, if the model has one: from the trunk's normed output at a token and the
    /// embedding of the next one, it predicts the token after that. [`ModelSpec::draft_tensors`] has its weights.
    pub draft: Option<LayerSpec>,
    /// The head reads the embedding table: there is no `lm_head.weight`.
    pub tied_head: bool,
    /// Longest context the model declares, in tokens, if it does.
    pub max_context: Option<usize>,
}
