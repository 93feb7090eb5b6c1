//! A model's weights, bound once to the tensors of a `.base` file.
//!
//! Matrices stay in the memory map; vectors (norms, biases, decay) are decoded to f32. A matrix whose
//! groups straddle rows, or that is stored as GGUF superblocks, is decoded to f32 at load and noted.

use basert_format::{BaseFile, TensorView};
use basert_kernels::Matrix;
use basert_model::{Attention, Ffn, GatedDelta, LayerSpec, Mixer, ModelSpec, Moe};
use basert_quant::{Encoding, FloatDtype};

use crate::EngineError;

/// One weight matrix `[rows, cols]`.
pub(crate) struct Weight {
    rows: usize,
    cols: usize,
    encoding: Encoding,
    storage: Storage,
}

enum Storage {
    /// Index of the tensor in the file.
    Mapped(usize),
    /// Decoded to f32, little-endian.
    Decoded(Vec<u8>),
}

impl Weight {
    /// The matrix for the kernels.
    pub fn matrix<'a>(&'a self, file: &'a BaseFile) -> Result<Matrix<'a>, EngineError> {
        let payload = match &self.storage {
            Storage::Mapped(index) => file.tensor_at(*index).map_or(&[][..], |view| view.data),
            Storage::Decoded(bytes) => bytes,
        };
        Ok(Matrix::new(self.encoding, self.rows, self.cols, payload)?)
    }

    fn decoded_bytes(&self) -> usize {
        match &self.storage {
            Storage::Mapped(_) => 0,
            Storage::Decoded(bytes) => bytes.len(),
        }
    }
}

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
    pub fn expert<'a>(
        &'a self,
        file: &'a BaseFile,
        moe: &Moe,
        expert: usize,
    ) -> Result<[Matrix<'a>; 3], EngineError> {
        let width = moe.intermediate;
        let (gate, up) = match &self.gate_up {
            GateUp::Split(gate, up) => {
                let rows = expert * width..(expert + 1) * width;
                (gate.matrix(file)?.slice_rows(rows.clone()), up.matrix(file)?.slice_rows(rows))
            }
            GateUp::Fused(both) => {
                let both = both.matrix(file)?;
                let start = 2 * expert * width;
                (both.slice_rows(start..start + width), both.slice_rows(start + width..start + 2 * width))
            }
        };
        let hidden = self.down.rows / moe.experts;
        Ok([gate, up, self.down.matrix(file)?.slice_rows(expert * hidden..(expert + 1) * hidden)])
    }
}

pub(crate) enum FfnWeights {
    Dense(DenseWeights),
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
    /// Binds every tensor that the model needs. With `dequantize`, quantised matrices are decoded to f32.
    pub fn bind(
        file: &BaseFile,
        spec: &ModelSpec,
        dequantize: bool,
    ) -> Result<(Weights, BindNotes), EngineError> {
        let mut binder = Binder { file, dequantize, notes: BindNotes::default() };
        let layers = spec.layers.iter().enumerate().map(|(i, layer)| binder.layer(i, layer, spec.hidden));
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
        };
        Ok((weights, binder.notes))
    }
}

/// Looks tensors up by canonical name, checks shapes and decides how each is held.
struct Binder<'a> {
    file: &'a BaseFile,
    dequantize: bool,
    notes: BindNotes,
}

impl<'a> Binder<'a> {
    fn view(&self, name: &str, shape: &[usize]) -> Result<(usize, TensorView<'a>), EngineError> {
        let found = self.file.tensor_index(name).and_then(|index| Some((index, self.file.tensor_at(index)?)));
        let (index, view) = found.ok_or_else(|| EngineError::MissingTensor {
            path: self.file.path().to_path_buf(),
            name: name.to_owned(),
        })?;
        if !view.shape.iter().map(|&d| d as usize).eq(shape.iter().copied()) {
            return Err(EngineError::Shape {
                path: self.file.path().to_path_buf(),
                name: name.to_owned(),
                found: view.shape.to_vec(),
                expected: shape.to_vec(),
            });
        }
        Ok((index, view))
    }

    /// A vector or small tensor as f32.
    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EngineError> {
        let (_, view) = self.view(name, shape)?;
        self.decode(name, &view, shape.iter().product())
    }

    fn decode(&self, name: &str, view: &TensorView<'_>, elements: usize) -> Result<Vec<f32>, EngineError> {
        let mut values = vec![0.0; elements];
        view.encoding
            .decode(view.data, elements, 0, &mut values)
            .map_err(|e| self.bad(name, e.to_string()))?;
        Ok(values)
    }

    fn bad(&self, name: &str, reason: String) -> EngineError {
        EngineError::Tensor { path: self.file.path().to_path_buf(), name: name.to_owned(), reason }
    }

    /// A matrix; leading dimensions of a stack are folded into the rows.
    fn matrix(&mut self, name: &str, shape: &[usize]) -> Result<Weight, EngineError> {
        let (index, view) = self.view(name, shape)?;
        let cols = shape.last().copied().unwrap_or(1);
        let rows = shape[..shape.len() - 1].iter().product();
        let reason = match view.encoding {
            Encoding::Float(_) => None,
            _ if self.dequantize => Some("as asked"),
            Encoding::Affine { group, .. } if cols % group != 0 => Some("its groups straddle rows"),
            Encoding::Super(_) => Some("GGUF superblocks have no integer kernel yet"),
            _ => None,
        };
        let Some(reason) = reason else {
            let weight = Weight { rows, cols, encoding: view.encoding, storage: Storage::Mapped(index) };
            weight.matrix(self.file).map_err(|e| self.bad(name, e.to_string()))?;
            return Ok(weight);
        };
        let values = self.decode(name, &view, rows * cols)?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.notes.notes.push(format!("'{name}' is decoded to f32: {reason}"));
        let encoding = Encoding::Float(FloatDtype::F32);
        let weight = Weight { rows, cols, encoding, storage: Storage::Decoded(bytes) };
        self.notes.decoded_bytes += weight.decoded_bytes();
        Ok(weight)
    }

    fn layer(&mut self, i: usize, layer: &LayerSpec, hidden: usize) -> Result<LayerWeights, EngineError> {
        let prefix = format!("layers.{i}.");
        Ok(LayerWeights {
            input_norm: self.vector(&format!("{prefix}input_norm.weight"), &[hidden])?,
            mixer: match &layer.mixer {
                Mixer::Attention(a) => MixerWeights::Attention(self.attention(&prefix, a, hidden)?),
                Mixer::GatedDelta(d) => MixerWeights::GatedDelta(self.gated_delta(&prefix, d, hidden)?),
            },
            post_norm: self.vector(&format!("{prefix}post_attn_norm.weight"), &[hidden])?,
            ffn: match &layer.ffn {
                Ffn::Dense { intermediate } => {
                    FfnWeights::Dense(self.dense(&format!("{prefix}mlp."), *intermediate, hidden)?)
                }
                Ffn::Moe(moe) => FfnWeights::Moe(Box::new(self.moe(&prefix, moe, hidden)?)),
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
        let gate_up = if self.file.tensor_index(&fused).is_some() {
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
        match (self.file.tensor_index(NAME), pairs) {
            (Some(_), Some(pairs)) => self.vector(NAME, &[pairs]).map(Some),
            _ => Ok(None),
        }
    }
}
