//! Activation buffers of a step, sized once from the model and the largest step.

use basert_kernels::{DeltaScratch, Scratch, ScratchNeeds};
use basert_model::{Ffn, Mixer, ModelSpec};

use crate::forward::Span;

/// One expert's share of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Route {
    pub expert: u32,
    pub token: u32,
    pub weight: f32,
}

/// Largest widths over all layers, in f32 elements per token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Widths {
    hidden: usize,
    /// `q_proj` with its gate, or all convolution channels.
    projected: usize,
    /// Queries, or convolved channels.
    inner: usize,
    /// Attention gate, or `z`.
    gate: usize,
    kv: usize,
    mixed: usize,
    value_heads: usize,
    ffn: usize,
    experts: usize,
    top_k: usize,
    rotary_pairs: usize,
    vocab: usize,
    joint: usize,
}

impl Widths {
    /// Rows of a step that the prediction head may run.
    fn guessed(&self, step_tokens: usize) -> usize {
        if self.joint > 0 { step_tokens } else { 0 }
    }

    fn of(spec: &ModelSpec) -> Widths {
        let joint = spec.draft.map_or(0, |_| 2 * spec.hidden);
        let mut w = Widths { hidden: spec.hidden, vocab: spec.vocab, joint, ..Widths::default() };
        for layer in &spec.layers {
            match &layer.mixer {
                Mixer::Attention(a) => {
                    let q = a.heads * a.head_dim;
                    w.projected = w.projected.max(if a.output_gate { 2 * q } else { 0 });
                    w.inner = w.inner.max(q);
                    w.gate = w.gate.max(if a.output_gate { q } else { 0 });
                    w.kv = w.kv.max(a.kv_heads * a.head_dim);
                    w.mixed = w.mixed.max(q);
                    w.rotary_pairs = w.rotary_pairs.max(a.rope.dims / 2);
                }
                Mixer::GatedDelta(d) => {
                    w.projected = w.projected.max(d.conv_channels());
                    w.inner = w.inner.max(d.conv_channels());
                    w.gate = w.gate.max(d.value_width());
                    w.mixed = w.mixed.max(d.value_width());
                    w.value_heads = w.value_heads.max(d.value_heads);
                }
            }
            match &layer.ffn {
                Ffn::Dense { intermediate } => w.ffn = w.ffn.max(*intermediate),
                Ffn::Moe(moe) => {
                    w.ffn = w.ffn.max(moe.intermediate).max(moe.shared_intermediate.unwrap_or(0));
                    w.experts = w.experts.max(moe.experts);
                    w.top_k = w.top_k.max(moe.top_k);
                }
            }
        }
        w
    }
}

/// Buffers of one step. Shapes are `[tokens, width]`; a step uses the first rows of each.
pub(crate) struct Workspace {
    /// Residual stream `[tokens, hidden]`.
    pub x: Vec<f32>,
    /// Normed residual `[tokens, hidden]`.
    pub h: Vec<f32>,
    pub projected: Vec<f32>,
    pub inner: Vec<f32>,
    pub gate: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    /// What attention or the delta rule gives, before the output projection.
    pub mixed: Vec<f32>,
    /// `in_proj_a` and `in_proj_b` `[tokens, value heads]`.
    pub alpha: Vec<f32>,
    pub beta: Vec<f32>,
    pub ffn_gate: Vec<f32>,
    pub ffn_up: Vec<f32>,
    /// What a block adds to the residual stream `[tokens, hidden]`.
    pub out: Vec<f32>,
    /// Router logits `[tokens, experts]`.
    pub router: Vec<f32>,
    pub routes: Vec<Route>,
    /// Selected experts of one token.
    pub selected: Vec<(u32, f32)>,
    /// Rows of `h` that one expert reads, and what it gives `[tokens, hidden]`.
    pub gathered: Vec<f32>,
    pub expert_out: Vec<f32>,
    /// Rotary tables `[tokens, rotary dims / 2]`.
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
    /// Final hidden states of the rows whose logits are wanted, before and after the norm.
    pub last: Vec<f32>,
    pub last_normed: Vec<f32>,
    /// `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// What the prediction head's `fc` reads `[tokens, 2 · hidden]`; empty without one.
    pub joint: Vec<f32>,
    /// Rows that the prediction head runs, and their tokens.
    pub draft_spans: Vec<Span>,
    pub draft_tokens: Vec<u32>,
    pub scratch: Scratch,
    pub delta: DeltaScratch,
}

impl Workspace {
    /// Bytes that [`Workspace::new`] allocates for activations and logits.
    pub fn planned_bytes(spec: &ModelSpec, step_tokens: usize, logit_rows: usize) -> usize {
        let w = Widths::of(spec);
        let moe = if w.experts > 0 { 2 * w.hidden + w.experts } else { 0 };
        let per_token = 3 * w.hidden
            + w.projected
            + w.inner
            + w.gate
            + 2 * w.kv
            + w.mixed
            + 2 * w.value_heads
            + 2 * w.ffn
            + 2 * w.rotary_pairs
            + w.joint
            + moe;
        let per_row = 2 * w.hidden + w.vocab;
        let routes = step_tokens * w.top_k * size_of::<Route>() + w.top_k * size_of::<(u32, f32)>();
        let guessed = w.guessed(step_tokens) * (size_of::<Span>() + size_of::<u32>());
        (step_tokens * per_token + logit_rows * per_row) * size_of::<f32>() + routes + guessed
    }

    /// Allocates for steps of up to `step_tokens` tokens and `logit_rows` rows of logits.
    pub fn new(spec: &ModelSpec, step_tokens: usize, logit_rows: usize) -> Workspace {
        let w = Widths::of(spec);
        let tokens = |width: usize| vec![0.0f32; step_tokens * width];
        let moe = |width: usize| vec![0.0f32; if w.experts > 0 { step_tokens * width } else { 0 }];
        Workspace {
            x: tokens(w.hidden),
            h: tokens(w.hidden),
            projected: tokens(w.projected),
            inner: tokens(w.inner),
            gate: tokens(w.gate),
            k: tokens(w.kv),
            v: tokens(w.kv),
            mixed: tokens(w.mixed),
            alpha: tokens(w.value_heads),
            beta: tokens(w.value_heads),
            ffn_gate: tokens(w.ffn),
            ffn_up: tokens(w.ffn),
            out: tokens(w.hidden),
            router: moe(w.experts),
            routes: Vec::with_capacity(step_tokens * w.top_k),
            selected: vec![(0, 0.0); w.top_k],
            gathered: moe(w.hidden),
            expert_out: moe(w.hidden),
            cos: tokens(w.rotary_pairs),
            sin: tokens(w.rotary_pairs),
            last: vec![0.0; logit_rows * w.hidden],
            last_normed: vec![0.0; logit_rows * w.hidden],
            logits: vec![0.0; logit_rows * w.vocab],
            joint: tokens(w.joint),
            draft_spans: Vec::with_capacity(w.guessed(step_tokens)),
            draft_tokens: Vec::with_capacity(w.guessed(step_tokens)),
            scratch: Scratch::default(),
            delta: DeltaScratch::default(),
        }
    }

    /// Makes room in the kernels' scratch.
    pub fn reserve(&mut self, needs: &ScratchNeeds) {
        self.scratch.reserve(needs);
        self.delta.reserve(needs);
    }

    /// Bytes of the kernels' scratch.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch.bytes() + self.delta.bytes()
    }

    /// Bytes that the activation and logit buffers really occupy.
    pub fn allocated_bytes(&self) -> usize {
        let floats = [
            &self.x,
            &self.h,
            &self.projected,
            &self.inner,
            &self.gate,
            &self.k,
            &self.v,
            &self.mixed,
            &self.alpha,
            &self.beta,
            &self.ffn_gate,
            &self.ffn_up,
            &self.out,
            &self.router,
            &self.gathered,
            &self.expert_out,
            &self.cos,
            &self.sin,
            &self.last,
            &self.last_normed,
            &self.logits,
            &self.joint,
        ];
        floats.iter().map(|b| b.capacity() * size_of::<f32>()).sum::<usize>()
            + self.routes.capacity() * size_of::<Route>()
            + self.selected.capacity() * size_of::<(u32, f32)>()
            + self.draft_spans.capacity() * size_of::<Span>()
            + self.draft_tokens.capacity() * size_of::<u32>()
    }
}
