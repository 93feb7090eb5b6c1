//! Every weight of a model by its canonical `.base` name, with shape and role.

use crate::{Arch, Attention, Ffn, GatedDelta, LayerSpec, Mixer, ModelError, ModelSpec, Moe};

/// What a tensor does; it decides how the tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Token embedding table.
    Embed,
    /// Output projection to the vocabulary.
    Head,
    /// RMS norm gain, the whole factor (an offset of the source is already added).
    Norm,
    /// Matrix of a linear layer.
    Linear,
    /// Matrices of all routed experts, stacked.
    Experts,
    /// Expert router.
    Router,
    /// Gate of the shared expert.
    SharedGate,
    /// Projections to the decay and update rates of Gated DeltaNet.
    DeltaGate,
    /// Depthwise convolution.
    Conv,
    /// `A_log` of Gated DeltaNet; the decay rate is `-exp(A_log)`.
    DecayLog,
    /// `dt_bias` of Gated DeltaNet.
    DtBias,
    /// Bias of a linear layer.
    Bias,
    /// Divisors of the rotary frequencies.
    RopeFreqs,
}

/// How a tensor of some role is stored by the converter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Always f32.
    F32,
    /// The source's float type; f32 if the source is quantised.
    SourceFloat,
    /// Whatever the conversion targets.
    Target,
}

impl Role {
    /// How the converter stores tensors of this role. Small tensors that steer the model (norms, decay,
    /// routing) keep their precision: they are a fraction of a percent of the bytes and most of the damage.
    pub fn storage(self) -> Storage {
        match self {
            Role::Norm | Role::Conv | Role::DecayLog | Role::DtBias | Role::Bias | Role::RopeFreqs => {
                Storage::F32
            }
            Role::Router | Role::SharedGate | Role::DeltaGate => Storage::SourceFloat,
            Role::Embed | Role::Head | Role::Linear | Role::Experts => Storage::Target,
        }
    }
}

/// One weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Canonical name, e.g. `layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Row-major, a matrix as `[out, in]`, an expert stack as `[experts, out, in]`.
    pub shape: Vec<usize>,
    /// What it does.
    pub role: Role,
    /// The model is complete without it.
    pub optional: bool,
}

impl ModelSpec {
    /// Every tensor the forward pass reads, in order of use.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let mut list = List::default();
        list.add("embed_tokens.weight", &[self.vocab, self.hidden], Role::Embed);
        for (index, layer) in self.layers.iter().enumerate() {
            list.layer(&format!("layers.{index}."), layer, self.hidden);
        }
        list.add("final_norm.weight", &[self.hidden], Role::Norm);
        if !self.tied_head {
            list.add("lm_head.weight", &[self.vocab, self.hidden], Role::Head);
        }
        if self.arch == Arch::Llama
            && let Some(dims) =
                self.layers.first().and_then(|layer| layer.mixer.attention()).map(|a| a.rope.dims)
        {
            list.add("rope_freqs.weight", &[dims / 2], Role::RopeFreqs);
            list.last_is_optional();
        }
        list.0
    }

    /// Tensors of `count` draft (multi-token prediction) layers, which are attention layers of the trunk's
    /// geometry.
    ///
    /// # Errors
    /// [`ModelError::Inconsistent`] if the trunk has no attention layer to take the geometry from.
    pub fn draft_tensors(&self, count: usize) -> Result<Vec<TensorSpec>, ModelError> {
        let Some(layer) = self.layers.iter().find(|layer| layer.mixer.attention().is_some()) else {
            return Err(ModelError::Inconsistent(
                "draft layers in a model without attention layers".to_owned(),
            ));
        };
        let h = self.hidden;
        let mut list = List::default();
        list.add("mtp.fc.weight", &[h, 2 * h], Role::Linear);
        list.add("mtp.pre_fc_norm_embedding.weight", &[h], Role::Norm);
        list.add("mtp.pre_fc_norm_hidden.weight", &[h], Role::Norm);
        for index in 0..count {
            list.layer(&format!("mtp.layers.{index}."), layer, h);
        }
        list.add("mtp.norm.weight", &[h], Role::Norm);
        list.add("mtp.embed_tokens.weight", &[self.vocab, h], Role::Embed);
        list.last_is_optional();
        list.add("mtp.lm_head.weight", &[self.vocab, h], Role::Head);
        list.last_is_optional();
        Ok(list.0)
    }
}

impl Mixer {
    /// The attention block, if it is one.
    pub fn attention(&self) -> Option<&Attention> {
        match self {
            Mixer::Attention(attention) => Some(attention),
            Mixer::GatedDelta(_) => None,
        }
    }
}

#[derive(Default)]
struct List(Vec<TensorSpec>);

impl List {
    fn add(&mut self, name: impl Into<String>, shape: &[usize], role: Role) {
        self.0.push(TensorSpec { name: name.into(), shape: shape.to_vec(), role, optional: false });
    }

    fn last_is_optional(&mut self) {
        if let Some(last) = self.0.last_mut() {
            last.optional = true;
        }
    }

    fn layer(&mut self, p: &str, layer: &LayerSpec, h: usize) {
        self.add(format!("{p}input_norm.weight"), &[h], Role::Norm);
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(&format!("{p}self_attn."), attention, h),
            Mixer::GatedDelta(delta) => self.delta(&format!("{p}linear_attn."), delta, h),
        }
        self.add(format!("{p}post_attn_norm.weight"), &[h], Role::Norm);
        match &layer.ffn {
            Ffn::Dense { intermediate } => self.swiglu(&format!("{p}mlp."), *intermediate, h),
            Ffn::Moe(moe) => self.moe(p, moe, h),
        }
    }

    fn attention(&mut self, p: &str, attention: &Attention, h: usize) {
        let q = attention.heads * attention.head_dim;
        let kv = attention.kv_heads * attention.head_dim;
        let q_rows = if attention.output_gate { 2 * q } else { q };
        self.add(format!("{p}q_proj.weight"), &[q_rows, h], Role::Linear);
        self.add(format!("{p}k_proj.weight"), &[kv, h], Role::Linear);
        self.add(format!("{p}v_proj.weight"), &[kv, h], Role::Linear);
        if attention.qkv_bias {
            self.add(format!("{p}q_proj.bias"), &[q_rows], Role::Bias);
            self.add(format!("{p}k_proj.bias"), &[kv], Role::Bias);
            self.add(format!("{p}v_proj.bias"), &[kv], Role::Bias);
        }
        if attention.qk_norm {
            self.add(format!("{p}q_norm.weight"), &[attention.head_dim], Role::Norm);
            self.add(format!("{p}k_norm.weight"), &[attention.head_dim], Role::Norm);
        }
        self.add(format!("{p}o_proj.weight"), &[h, q], Role::Linear);
    }

    fn delta(&mut self, p: &str, delta: &GatedDelta, h: usize) {
        let (channels, values, heads) = (delta.conv_channels(), delta.value_width(), delta.value_heads);
        self.add(format!("{p}in_proj_qkv.weight"), &[channels, h], Role::Linear);
        self.add(format!("{p}in_proj_z.weight"), &[values, h], Role::Linear);
        self.add(format!("{p}in_proj_a.weight"), &[heads, h], Role::DeltaGate);
        self.add(format!("{p}in_proj_b.weight"), &[heads, h], Role::DeltaGate);
        self.add(format!("{p}conv1d.weight"), &[channels, 1, delta.conv_kernel], Role::Conv);
        self.add(format!("{p}A_log"), &[heads], Role::DecayLog);
        self.add(format!("{p}dt_bias"), &[heads], Role::DtBias);
        self.add(format!("{p}norm.weight"), &[delta.value_dim], Role::Norm);
        self.add(format!("{p}out_proj.weight"), &[h, values], Role::Linear);
    }

    fn swiglu(&mut self, p: &str, width: usize, h: usize) {
        self.add(format!("{p}gate_proj.weight"), &[width, h], Role::Linear);
        self.add(format!("{p}up_proj.weight"), &[width, h], Role::Linear);
        self.add(format!("{p}down_proj.weight"), &[h, width], Role::Linear);
    }

    fn moe(&mut self, p: &str, moe: &Moe, h: usize) {
        let (experts, width) = (moe.experts, moe.intermediate);
        self.add(format!("{p}mlp.gate.weight"), &[experts, h], Role::Router);
        self.add(format!("{p}ffn_gate_exps.weight"), &[experts, width, h], Role::Experts);
        self.add(format!("{p}ffn_up_exps.weight"), &[experts, width, h], Role::Experts);
        self.add(format!("{p}ffn_down_exps.weight"), &[experts, h, width], Role::Experts);
        if let Some(shared) = moe.shared_intermediate {
            self.swiglu(&format!("{p}mlp.shared_expert."), shared, h);
            self.add(format!("{p}mlp.shared_expert_gate.weight"), &[1, h], Role::SharedGate);
        }
    }
}
