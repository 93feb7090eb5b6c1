//! A model's weights, bound once to the tensors of a `.base` file or of a source.
//!
//! Matrices stay in the memory map, or are streamed; vectors (norms, biases, decay) are decoded to f32. A matrix
//! whose groups straddle rows is decoded to f32 at load and noted.

use basert_model::{Attention, Ffn, GatedDelta, LayerSpec, Mixer, ModelSpec, Moe};

use crate::EngineError;
use crate::tensor::{Decoding, Rows, Tensors, Weight};

/// Weights of a softmax attention mixer.
pub(crate) struct AttentionWeights {
    pub q: Weight,
    pub k: Weight,
    pub v: Weight,
    pub o: Weight,
    /// Biases of q, k and v.
    pub bias: Option<[Vec<f32>; 3]>,
    /// Norm gains of q and k `[head_dim]`.
    pub qk_norm: Option<[Vec<f32>; 2]>,
}

/// Weights of a Gated DeltaNet mixer.
pub(crate) struct DeltaWeights {
    pub qkv: Weight,
    pub z: Weight,
    pub a: Weight,
    pub b: Weight,
    pub out: Weight,
    /// `[channels, kernel]`.
    pub conv: Vec<f32>,
    /// `-exp(A_log)` `[value heads]`.
    pub neg_a: Vec<f32>,
    pub dt_bias: Vec<f32>,
    /// `[value dim]`.
    pub norm: Vec<f32>,
}

pub(crate) enum MixerWeights {
    Attention(AttentionWeights),
    GatedDelta(DeltaWeights),
}

/// SwiGLU weights.
pub(crate) struct DenseWeights {
    pub gate: Weight,
    pub up: Weight,
    pub down: Weight,
}

/// Routed experts and the optional shared one.
pub(crate) struct MoeWeights {
    pub router: Weight,
    gate_up: GateUp,
    down: Weight,
    pub shared: Option<(DenseWeights, Weight)>,
}

/// Expert stacks `[experts · rows, hidden]`.
enum GateUp {
    Split(Weight, Weight),
    /// Per expert all gate rows, then all up rows.
    Fused(Weight),
}

impl MoeWeights {
    /// Gate, up and down of one expert.
    pub fn expert(&self, moe: &Moe, expert: usize) -> [Rows<'_>; 3] {
        let width = moe.intermediate;
        let (gate, up) = match &self.gate_up {
            GateUp::Split(gate, up) => {
                let rows = expert * width..(expert + 1) * width;
                (gate.rows(rows.clone()), up.rows(rows))
            }
            GateUp::Fused(both) => {
                let start = 2 * expert * width;
                (both.rows(start..start + width), both.rows(start + width..start + 2 * width))
            }
        };
        let hidden = self.down.row_count() / moe.experts;
        [gate, up, self.down.rows(expert * hidden..(expert + 1) * hidden)]
    }
}

pub(crate) enum FfnWeights {
    Dense(Box<DenseWeights>),
    Moe(Box<MoeWeights>),
}

pub(crate) struct LayerWeights {
    pub input_norm: Vec<f32>,
    pub mixer: MixerWeights,
    pub post_norm: Vec<f32>,
    pub ffn: FfnWeights,
}

/// All weights of the text model.
pub(crate) struct Weights {
    pub embed: Weight,
    pub layers: Vec<LayerWeights>,
    pub final_norm: Vec<f32>,
    /// `None` when tied to the embedding.
    pub head: Option<Weight>,
    /// Divisors of the rotary frequencies, if the file carries them.
    pub rope_divisors: Option<Vec<f32>>,
    /// The multi-token prediction head, if the model is to have one.
    pub draft: Option<Box<DraftWeights>>,
}

/// Weights of the multi-token prediction head.
pub(crate) struct DraftWeights {
    pub norm_embedding: Vec<f32>,
    pub norm_hidden: Vec<f32>,
    /// `[hidden, 2 · hidden]`: embedding, then the trunk's output.
    pub fc: Weight,
    pub layer: LayerWeights,
    pub norm: Vec<f32>,
    /// `None` where the trunk's table serves.
    pub embed: Option<Weight>,
    /// `None` where the trunk's output layer serves.
    pub head: Option<Weight>,
}

/// What binding did besides mapping.
#[derive(Default)]
pub(crate) struct BindNotes {
    /// One line per matrix that is run as decoded f32.
    pub notes: Vec<String>,
    /// Bytes of all decoded matrices.
    pub decoded_bytes: usize,
}

impl Weights {
    /// Binds every tensor that the model needs.
    pub fn bind(
        tensors: Tensors<'_>,
        spec: &ModelSpec,
        decoding: Decoding,
    ) -> Result<(Weights, BindNotes), EngineError> {
        let mut binder = Binder { tensors, decoding, notes: BindNotes::default() };
        let layers = spec.layers.iter().enumerate();
        let layers = layers.map(|(i, layer)| binder.layer(&format!("layers.{i}."), layer, spec.hidden));
        let layers = layers.collect::<Result<_, _>>()?;
        let weights = Weights {
            embed: binder.matrix("embed_tokens.weight", &[spec.vocab, spec.hidden])?,
            layers,
            final_norm: binder.vector("final_norm.weight", &[spec.hidden])?,
            head: match spec.tied_head {
                true => None,
                false => Some(binder.matrix("lm_head.weight", &[spec.vocab, spec.hidden])?),
            },
            rope_divisors: binder.rope_divisors(spec)?,
            draft: spec.draft.as_ref().map(|layer| binder.draft(layer, spec)).transpose()?.map(Box::new),
        };
        Ok((weights, binder.notes))
    }

    /// The matrix of the output head.
    pub fn output(&self) -> &Weight {
        self.head.as_ref().unwrap_or(&self.embed)
    }
}

/// Binds tensors by canonical name and notes how.
struct Binder<'a> {
    tensors: Tensors<'a>,
    decoding: Decoding,
    notes: BindNotes,
}

impl Binder<'_> {
    /// A vector or small tensor as f32.
    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EngineError> {
        self.tensors.vector(name, shape)
    }

    /// A matrix; leading dimensions of a stack are folded into the rows.
    fn matrix(&mut self, name: &str, shape: &[usize]) -> Result<Weight, EngineError> {
        let (weight, reason) = self.tensors.matrix(name, shape, self.decoding)?;
        if let Some(reason) = reason {
            let when = if self.decoding.hold { "" } else { " at every use" };
            self.notes.notes.push(format!("'{name}' is decoded to f32{when}: {reason}"));
            self.notes.decoded_bytes += weight.decoded_bytes();
        }
        Ok(weight)
    }

    fn draft(&mut self, layer: &LayerSpec, spec: &ModelSpec) -> Result<DraftWeights, EngineError> {
        let hidden = spec.hidden;
        Ok(DraftWeights {
            norm_embedding: self.vector("mtp.pre_fc_norm_embedding.weight", &[hidden])?,
            norm_hidden: self.vector("mtp.pre_fc_norm_hidden.weight", &[hidden])?,
            fc: self.matrix("mtp.fc.weight", &[hidden, 2 * hidden])?,
            layer: self.layer("mtp.layers.0.", layer, hidden)?,
            norm: self.vector("mtp.norm.weight", &[hidden])?,
            embed: self.own_matrix("mtp.embed_tokens.weight", &[spec.vocab, hidden])?,
            head: self.own_matrix("mtp.lm_head.weight", &[spec.vocab, hidden])?,
        })
    }

    /// A matrix that may be left out.
    fn own_matrix(&mut self, name: &str, shape: &[usize]) -> Result<Option<Weight>, EngineError> {
        if self.tensors.has(name) { self.matrix(name, shape).map(Some) } else { Ok(None) }
    }

    fn layer(&mut self, prefix: &str, layer: &LayerSpec, hidden: usize) -> Result<LayerWeights, EngineError> {
        Ok(LayerWeights {
            input_norm: self.vector(&format!("{prefix}input_norm.weight"), &[hidden])?,
            mixer: match &layer.mixer {
                Mixer::Attention(a) => MixerWeights::Attention(self.attention(prefix, a, hidden)?),
                Mixer::GatedDelta(d) => MixerWeights::GatedDelta(self.gated_delta(prefix, d, hidden)?),
            },
            post_norm: self.vector(&format!("{prefix}post_attn_norm.weight"), &[hidden])?,
            ffn: match &layer.ffn {
                Ffn::Dense { intermediate } => FfnWeights::Dense(Box::new(self.dense(
                    &format!("{prefix}mlp."),
                    *intermediate,
                    hidden,
                )?)),
                Ffn::Moe(moe) => FfnWeights::Moe(Box::new(self.moe(prefix, moe, hidden)?)),
            },
        })
    }

    fn attention(
        &mut self,
        prefix: &str,
        a: &Attention,
        hidden: usize,
    ) -> Result<AttentionWeights, EngineError> {
        let name = |part: &str| format!("{prefix}self_attn.{part}");
        let (inner, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let q_rows = if a.output_gate { 2 * inner } else { inner };
        let bias = match a.qkv_bias {
            false => None,
            true => Some([
                self.vector(&name("q_proj.bias"), &[q_rows])?,
                self.vector(&name("k_proj.bias"), &[kv])?,
                self.vector(&name("v_proj.bias"), &[kv])?,
            ]),
        };
        let qk_norm = match a.qk_norm {
            false => None,
            true => Some([
                self.vector(&name("q_norm.weight"), &[a.head_dim])?,
                self.vector(&name("k_norm.weight"), &[a.head_dim])?,
            ]),
        };
        Ok(AttentionWeights {
            q: self.matrix(&name("q_proj.weight"), &[q_rows, hidden])?,
            k: self.matrix(&name("k_proj.weight"), &[kv, hidden])?,
            v: self.matrix(&name("v_proj.weight"), &[kv, hidden])?,
            o: self.matrix(&name("o_proj.weight"), &[hidden, inner])?,
            bias,
            qk_norm,
        })
    }

    fn gated_delta(
        &mut self,
        prefix: &str,
        d: &GatedDelta,
        hidden: usize,
    ) -> Result<DeltaWeights, EngineError> {
        let name = |part: &str| format!("{prefix}linear_attn.{part}");
        let a_log = self.vector(&name("A_log"), &[d.value_heads])?;
        Ok(DeltaWeights {
            qkv: self.matrix(&name("in_proj_qkv.weight"), &[d.conv_channels(), hidden])?,
            z: self.matrix(&name("in_proj_z.weight"), &[d.value_width(), hidden])?,
            a: self.matrix(&name("in_proj_a.weight"), &[d.value_heads, hidden])?,
            b: self.matrix(&name("in_proj_b.weight"), &[d.value_heads, hidden])?,
            out: self.matrix(&name("out_proj.weight"), &[hidden, d.value_width()])?,
            conv: self.vector(&name("conv1d.weight"), &[d.conv_channels(), 1, d.conv_kernel])?,
            neg_a: a_log.iter().map(|&a| -libm::exp(f64::from(a)) as f32).collect(),
            dt_bias: self.vector(&name("dt_bias"), &[d.value_heads])?,
            norm: self.vector(&name("norm.weight"), &[d.value_dim])?,
        })
    }

    fn dense(&mut self, prefix: &str, width: usize, hidden: usize) -> Result<DenseWeights, EngineError> {
        Ok(DenseWeights {
            gate: self.matrix(&format!("{prefix}gate_proj.weight"), &[width, hidden])?,
            up: self.matrix(&format!("{prefix}up_proj.weight"), &[width, hidden])?,
            down: self.matrix(&format!("{prefix}down_proj.weight"), &[hidden, width])?,
        })
    }

    fn moe(&mut self, prefix: &str, moe: &Moe, hidden: usize) -> Result<MoeWeights, EngineError> {
        let (experts, width) = (moe.experts, moe.intermediate);
        let fused = format!("{prefix}ffn_gate_up_exps.weight");
        let gate_up = if self.tensors.has(&fused) {
            GateUp::Fused(self.matrix(&fused, &[experts, 2 * width, hidden])?)
        } else {
            GateUp::Split(
                self.matrix(&format!("{prefix}ffn_gate_exps.weight"), &[experts, width, hidden])?,
                self.matrix(&format!("{prefix}ffn_up_exps.weight"), &[experts, width, hidden])?,
            )
        };
        let shared = match moe.shared_intermediate {
            None => None,
            Some(width) => Some((
                self.dense(&format!("{prefix}mlp.shared_expert."), width, hidden)?,
                self.matrix(&format!("{prefix}mlp.shared_expert_gate.weight"), &[1, hidden])?,
            )),
        };
        Ok(MoeWeights {
            router: self.matrix(&format!("{prefix}mlp.gate.weight"), &[experts, hidden])?,
            gate_up,
            down: self.matrix(&format!("{prefix}ffn_down_exps.weight"), &[experts, hidden, width])?,
            shared,
        })
    }

    fn rope_divisors(&self, spec: &ModelSpec) -> Result<Option<Vec<f32>>, EngineError> {
        const NAME: &str = "rope_freqs.weight";
        let pairs = spec.layers.iter().find_map(|layer| match &layer.mixer {
            Mixer::Attention(a) => Some(a.rope.dims / 2),
            Mixer::GatedDelta(_) => None,
        });
        match (self.tensors.has(NAME), pairs) {
            (true, Some(pairs)) => self.vector(NAME, &[pairs]).map(Some),
            _ => Ok(None),
        }
    }
}
