//! The forward pass: one walk over the layers for every architecture, every batch and every phase.
//!
//! All runs of a step go through the linear layers together; attention and the recurrent layers go
//! run by run, because they read that sequence's cache. Nothing here depends on how many tokens or runs
//! there are, so a token's result does not either.

mod draft;

use std::ops::Range;

use basert_kernels::{Cpu, DeltaScratch, DeltaShape, KvGeometry, LinearJob, Pairing, Scratch, route};
use basert_model::{Attention, Ffn, GatedDelta, LayerSpec, Mixer, ModelSpec, Moe, RopePairing};

use crate::EngineError;
use crate::cache::{Caches, LayerCache, SequenceId};
use crate::rope::Frequencies;
use crate::tensor::{Rows, Tensors, Weight};
use crate::trace::{Needs, Operation, Trace, attention_needs};
use crate::weights::{
    AttentionWeights, DeltaWeights, DenseWeights, FfnWeights, LayerWeights, MixerWeights, MoeWeights, Weights,
};
use crate::workspace::{Route, Workspace};

/// A run's rows in the step and its place in its sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub sequence: SequenceId,
    /// Rows `start .. start + len` of the step.
    pub start: usize,
    pub len: usize,
    /// Position of the first row in the sequence.
    pub position: usize,
    /// The last rows that are guesses: recurrent states do not keep them.
    pub drafts: usize,
}

impl Span {
    /// The span's rows of a buffer whose rows are `width` wide.
    fn of(&self, width: usize) -> std::ops::Range<usize> {
        self.start * width..(self.start + self.len) * width
    }
}

/// What the forward pass reads and does not change.
pub(crate) struct Context<'a> {
    pub cpu: &'a Cpu,
    pub tensors: Tensors<'a>,
    pub spec: &'a ModelSpec,
    pub weights: &'a Weights,
    pub rope: Option<&'a Frequencies>,
    /// Give mapped pages back after every block of rows.
    pub lean: bool,
    /// Sees the input of every linear layer.
    pub watch: Option<&'a Watch<'a>>,
    /// Times every operation.
    pub trace: Option<&'a Trace>,
}

/// Called with the input of every linear layer before it runs.
pub type Watch<'a> = dyn Fn(&LinearInput<'_>) + 'a;

/// What a linear layer is about to read.
#[derive(Clone, Debug)]
pub struct LinearInput<'a> {
    /// Canonical name of the weight.
    pub weight: &'a str,
    /// Rows of the weight that take part: all of them, or one expert's of a stack.
    pub rows: Range<usize>,
    /// Activations `[tokens, cols]`.
    pub x: &'a [f32],
    /// Inputs of the layer.
    pub cols: usize,
}

/// A linear layer: `out = x·wᵀ`, `out` `[tokens, rows of w]`.
struct Job<'a> {
    w: Rows<'a>,
    out: &'a mut [f32],
}

/// One SwiGLU block's matrices: gate, up, down.
type Swiglu<'a> = [Rows<'a>; 3];

impl Context<'_> {
    /// Runs `tokens` through all layers; leaves the residual stream in `work.x` `[tokens, hidden]`.
    pub fn layers(
        &self,
        tokens: &[u32],
        spans: &[Span],
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        let n = tokens.len() * self.spec.hidden;
        self.enter(None);
        self.timed(Operation::Rotate, || self.fill_rope(spans, work));
        self.timed(Operation::Embed, || self.embed(&self.weights.embed, tokens, &mut work.x[..n]))?;
        for (i, (layer, weights)) in self.spec.layers.iter().zip(&self.weights.layers).enumerate() {
            self.enter(Some(i));
            self.norm(&weights.input_norm, tokens.len(), work);
            self.mixer(layer, weights, caches.layers[i], spans, caches, work)?;
            self.timed(Operation::Add, || self.cpu.add(&mut work.x[..n], &work.out[..n]));
            self.norm(&weights.post_norm, tokens.len(), work);
            self.ffn(layer, weights, tokens.len(), work)?;
            self.timed(Operation::Add, || self.cpu.add(&mut work.x[..n], &work.out[..n]));
        }
        self.enter(None);
        Ok(())
    }

    /// Logits of the given rows of `work.x`, in order, into `work.logits` `[rows, vocab]`.
    pub fn head(
        &self,
        rows: impl Iterator<Item = usize>,
        work: &mut Workspace,
    ) -> Result<usize, EngineError> {
        let hidden = self.spec.hidden;
        let mut count = 0;
        for row in rows {
            let source = &work.x[row * hidden..(row + 1) * hidden];
            work.last[count * hidden..(count + 1) * hidden].copy_from_slice(source);
            count += 1;
        }
        if count == 0 {
            return Ok(0);
        }
        let Workspace { last, last_normed, logits, scratch, .. } = work;
        let normed = &mut last_normed[..count * hidden];
        let (last, gain, eps) = (&last[..count * hidden], &self.weights.final_norm, self.spec.norm_eps);
        self.timed(Operation::Norm, || self.cpu.rms_norm(last, gain, eps, normed));
        let out = &mut logits[..count * self.spec.vocab];
        self.linear(scratch, normed, [Job { w: self.weights.output().all(), out }])?;
        Ok(count)
    }

    /// Shows the input of the head to `watch` without running the head, for the first `tokens` rows of `work.x`.
    pub fn watch_head(&self, watch: &Watch<'_>, tokens: usize, work: &mut Workspace) {
        self.norm(&self.weights.final_norm, tokens, work);
        let (cols, head) = (self.spec.hidden, self.weights.output());
        let x = &work.h[..tokens * cols];
        watch(&LinearInput { weight: head.name(), rows: 0..self.spec.vocab, x, cols });
    }

    fn enter(&self, layer: Option<usize>) {
        if let Some(trace) = self.trace {
            trace.enter(layer);
        }
    }

    /// Does `work`; counts its time if that is asked for.
    fn timed<T>(&self, operation: Operation, work: impl FnOnce() -> T) -> T {
        self.timed_with(operation, Needs::default, work)
    }

    fn timed_with<T>(
        &self,
        operation: Operation,
        needs: impl FnOnce() -> Needs,
        work: impl FnOnce() -> T,
    ) -> T {
        match self.trace {
            Some(trace) => trace.time(operation, String::new(), needs(), work),
            None => work(),
        }
    }

    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut [f32]) -> Result<(), EngineError> {
        if table.is_streamed() {
            return table.stream_rows(self.tensors, tokens, out);
        }
        self.cpu.embed(table.resident(self.tensors), tokens, out);
        Ok(())
    }

    /// Linear layers that read the same `x` `[tokens, cols]`.
    fn linear<const N: usize>(
        &self,
        scratch: &mut Scratch,
        x: &[f32],
        jobs: [Job<'_>; N],
    ) -> Result<(), EngineError> {
        if let Some(watch) = self.watch {
            for Job { w, .. } in &jobs {
                let (rows, cols) = (w.range.clone(), w.weight.cols());
                watch(&LinearInput { weight: w.weight.name(), rows, x, cols });
            }
        }
        if self.lean || jobs.iter().any(|job| job.w.weight.is_streamed()) {
            return jobs.into_iter().try_for_each(|job| self.linear_in_blocks(scratch, x, job));
        }
        let traced = self.trace.map(|trace| (trace, linear_call(trace, x, &jobs)));
        let mut jobs = jobs.map(|Job { w, out }| LinearJob { w: w.resident(self.tensors), out });
        let mut run = || self.cpu.linear(scratch, x, &mut jobs);
        match traced {
            Some((trace, (operation, weights, needs))) => trace.time(operation, weights, needs, run),
            None => run(),
        }
        Ok(())
    }

    /// One linear layer, a block of rows after the other.
    fn linear_in_blocks(&self, scratch: &mut Scratch, x: &[f32], job: Job<'_>) -> Result<(), EngineError> {
        let Job { w, out } = job;
        let (width, tokens) = (w.len(), x.len() / w.weight.cols());
        let mut part = Vec::new();
        w.each_block(self.tensors, self.cpu.threads(), |first, block| {
            part.resize(tokens * block.rows, 0.0);
            self.cpu.linear(scratch, x, &mut [LinearJob { w: block, out: &mut part }]);
            for (out, part) in out.chunks_exact_mut(width).zip(part.chunks_exact(block.rows)) {
                out[first..first + block.rows].copy_from_slice(part);
            }
            if self.lean {
                self.tensors.release_pages();
            }
            Ok(())
        })
    }

    fn fill_rope(&self, spans: &[Span], work: &mut Workspace) {
        if let Some(rope) = self.rope {
            for span in spans {
                let rows = span.of(rope.pairs());
                rope.fill(span.position, &mut work.cos[rows.clone()], &mut work.sin[rows]);
            }
        }
    }

    fn norm(&self, gain: &[f32], tokens: usize, work: &mut Workspace) {
        let n = tokens * self.spec.hidden;
        let Workspace { x, h, .. } = work;
        self.timed(Operation::Norm, || {
            self.cpu.rms_norm(&x[..n], gain, self.spec.norm_eps, &mut h[..n]);
        });
    }

    fn mixer(
        &self,
        layer: &LayerSpec,
        weights: &LayerWeights,
        slot: LayerCache,
        spans: &[Span],
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        match (&layer.mixer, &weights.mixer, slot) {
            (Mixer::Attention(a), MixerWeights::Attention(w), LayerCache::Kv(kv)) => {
                self.attention(a, w, kv, spans, caches, work)
            }
            (Mixer::GatedDelta(d), MixerWeights::GatedDelta(w), LayerCache::State(_)) => {
                self.gated_delta(d, w, slot, spans, caches, work)
            }
            _ => unreachable!("weights and caches are built from the same layer list"),
        }
    }

    /// `o_proj(softmax(q kᵀ / √d) v · sigmoid(gate))`, from `work.h` to `work.out`.
    fn attention(
        &self,
        a: &Attention,
        w: &AttentionWeights,
        kv: usize,
        spans: &[Span],
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        let tokens: usize = spans.iter().map(|s| s.len).sum();
        let (inner, kv_width) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        self.queries_keys_values(a, w, tokens, work)?;
        self.store_keys_values(a, kv, spans, caches, work)?;
        let Workspace { inner: q, gate, mixed, out, scratch, .. } = work;
        let mixed = &mut mixed[..tokens * inner];
        let scale = 1.0 / (a.head_dim as f32).sqrt();
        let KvGeometry { k: k_type, v: v_type, .. } = caches.kv[kv].geometry;
        if k_type.is_rotated() {
            self.timed(Operation::Rotate, || self.cpu.rotate(&mut q[..tokens * inner], a.head_dim));
        }
        let bytes = k_type.row_bytes(kv_width) + v_type.row_bytes(kv_width);
        for span in spans {
            let (sequence, layers) = caches.parts(span.sequence)?;
            let layer = &layers[kv];
            let rows = span.of(inner);
            let (geometry, pages, first) = (&layer.geometry, &sequence.pages, span.position);
            let (q, mixed) = (&q[rows.clone()], &mut mixed[rows]);
            let needs = || attention_needs(span, a.heads, a.head_dim, bytes as u64);
            self.timed_with(Operation::Attention, needs, || {
                self.cpu.attention(geometry, &layer.k, &layer.v, pages, first, q, a.heads, scale, mixed);
            });
        }
        if v_type.is_rotated() {
            self.timed(Operation::Rotate, || self.cpu.rotate(mixed, a.head_dim));
        }
        if a.output_gate {
            self.timed(Operation::Gate, || self.cpu.sigmoid_mul(mixed, &gate[..tokens * inner]));
        }
        let out = &mut out[..tokens * self.spec.hidden];
        self.linear(scratch, mixed, [Job { w: w.o.all(), out }])
    }

    /// Puts the keys and values of `work.k` and `work.v` into the cache.
    fn store_keys_values(
        &self,
        a: &Attention,
        kv: usize,
        spans: &[Span],
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        let kv_width = a.kv_heads * a.head_dim;
        let n = spans.iter().map(|s| s.len).sum::<usize>() * kv_width;
        let (k, v) = (&mut work.k[..n], &mut work.v[..n]);
        let KvGeometry { k: k_type, v: v_type, .. } = caches.kv[kv].geometry;
        self.timed(Operation::Rotate, || {
            if k_type.is_rotated() {
                self.cpu.rotate(k, a.head_dim);
            }
            if v_type.is_rotated() {
                self.cpu.rotate(v, a.head_dim);
            }
        });
        let bytes = k_type.row_bytes(kv_width) + v_type.row_bytes(kv_width);
        for span in spans {
            let (sequence, layers) = caches.parts(span.sequence)?;
            let (layer, rows) = (&mut layers[kv], span.of(kv_width));
            let (k, v, pages) = (&k[rows.clone()], &v[rows], &sequence.pages);
            let stored = || Needs { bytes: (bytes * span.len) as f64, multiply_adds: 0.0 };
            self.timed_with(Operation::StoreKv, stored, || {
                let first = span.position;
                self.cpu.store_kv(&layer.geometry, &mut layer.k, &mut layer.v, pages, first, k, v);
            });
        }
        Ok(())
    }

    /// Queries (and their gate), keys and values of `work.h`: projected, normed, rotated.
    fn queries_keys_values(
        &self,
        a: &Attention,
        w: &AttentionWeights,
        tokens: usize,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        let inner = tokens * a.heads * a.head_dim;
        let Workspace { h, projected, inner: q, gate, k, v, cos, sin, scratch, .. } = work;
        let q = &mut q[..inner];
        let k = &mut k[..tokens * a.kv_heads * a.head_dim];
        let v = &mut v[..tokens * a.kv_heads * a.head_dim];
        let q_out = if a.output_gate { &mut projected[..2 * inner] } else { &mut *q };
        let jobs = [
            Job { w: w.q.all(), out: &mut *q_out },
            Job { w: w.k.all(), out: &mut *k },
            Job { w: w.v.all(), out: &mut *v },
        ];
        self.linear(scratch, &h[..tokens * self.spec.hidden], jobs)?;
        if let Some(bias) = &w.bias {
            add_bias(q_out, &bias[0]);
            add_bias(k, &bias[1]);
            add_bias(v, &bias[2]);
        }
        if a.output_gate {
            self.timed(Operation::Gate, || {
                split_gate(&projected[..2 * inner], a.head_dim, q, &mut gate[..inner]);
            });
        }
        if let Some([q_gain, k_gain]) = &w.qk_norm {
            self.timed(Operation::Norm, || {
                self.cpu.rms_norm_inplace(q, q_gain, self.spec.norm_eps);
                self.cpu.rms_norm_inplace(k, k_gain, self.spec.norm_eps);
            });
        }
        let pairs = tokens * (a.rope.dims / 2);
        let pairing = match a.rope.pairing {
            RopePairing::Half => Pairing::Half,
            RopePairing::Interleaved => Pairing::Interleaved,
        };
        self.timed(Operation::Rotate, || {
            self.cpu.rope(q, a.heads, a.head_dim, &cos[..pairs], &sin[..pairs], pairing);
            self.cpu.rope(k, a.kv_heads, a.head_dim, &cos[..pairs], &sin[..pairs], pairing);
        });
        Ok(())
    }

    /// `out_proj(norm(delta(conv(qkv))) · silu(z))`, from `work.h` to `work.out`.
    fn gated_delta(
        &self,
        d: &GatedDelta,
        w: &DeltaWeights,
        slot: LayerCache,
        spans: &[Span],
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        let tokens: usize = spans.iter().map(|s| s.len).sum();
        let (channels, width) = (d.conv_channels(), d.value_width());
        let Workspace { h, projected, inner, gate: z, mixed, alpha, beta, out, scratch, delta, .. } = work;
        let qkv = &mut projected[..tokens * channels];
        let z = &mut z[..tokens * width];
        let alpha = &mut alpha[..tokens * d.value_heads];
        let beta = &mut beta[..tokens * d.value_heads];
        let jobs = [
            Job { w: w.qkv.all(), out: &mut *qkv },
            Job { w: w.z.all(), out: &mut *z },
            Job { w: w.a.all(), out: &mut *alpha },
            Job { w: w.b.all(), out: &mut *beta },
        ];
        self.linear(scratch, &h[..tokens * self.spec.hidden], jobs)?;

        let mixed = &mut mixed[..tokens * width];
        for span in spans {
            let LayerCache::State(slot) = slot else { continue };
            let (sequence, _) = caches.parts(span.sequence)?;
            let (rows, heads) = (span.of(channels), span.of(d.value_heads));
            let inputs = [&qkv[rows.clone()], &alpha[heads.clone()], &beta[heads]];
            let keep = span.len - span.drafts;
            if span.drafts > 0 {
                let [qkv, alpha, beta] = inputs;
                let (rows, heads) = (keep * channels, keep * d.value_heads);
                sequence.draft.keep_inputs(slot.kept, [&qkv[rows..], &alpha[heads..], &beta[heads..]]);
            }
            let state = slot.split(&mut sequence.state);
            self.recur((d, w), inputs, keep, state, delta, [&mut inner[rows], &mut mixed[span.of(width)]]);
        }
        self.timed(Operation::Gate, || {
            self.cpu.gated_rms_norm(mixed, &w.norm, z, self.spec.norm_eps);
        });
        let out = &mut out[..tokens * self.spec.hidden];
        self.linear(scratch, mixed, [Job { w: w.out.all(), out }])
    }

    /// Convolution and delta rule of one sequence's tokens, whose channels, decay and update rates are `inputs`. `state`, the delta state
    /// and the convolution's last inputs, moves over the first `keep` of them.
    fn recur(
        &self,
        (d, w): (&GatedDelta, &DeltaWeights),
        inputs: [&[f32]; 3],
        keep: usize,
        (state, tail): (&mut [f32], &mut [f32]),
        scratch: &mut DeltaScratch,
        [convolved, out]: [&mut [f32]; 2],
    ) {
        let [qkv, alpha, beta] = inputs;
        let shape = delta_shape(d);
        self.timed(Operation::Convolution, || {
            self.cpu.conv1d_silu(qkv, &w.conv, tail, keep, convolved);
        });
        let needs = || delta_needs(&shape, alpha.len() / d.value_heads);
        let (neg_a, dt_bias) = (&w.neg_a, &w.dt_bias);
        self.timed_with(Operation::DeltaRule, needs, || {
            self.cpu.gated_delta(&shape, scratch, convolved, alpha, beta, neg_a, dt_bias, state, keep, out);
        });
    }

    fn ffn(
        &self,
        layer: &LayerSpec,
        weights: &LayerWeights,
        tokens: usize,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        let n = tokens * self.spec.hidden;
        match (&layer.ffn, &weights.ffn) {
            (Ffn::Dense { .. }, FfnWeights::Dense(w)) => {
                let Workspace { h, ffn_gate, ffn_up, out, scratch, .. } = work;
                self.swiglu(dense(w), &h[..n], ffn_gate, ffn_up, scratch, &mut out[..n])
            }
            (Ffn::Moe(moe), FfnWeights::Moe(w)) => self.moe(moe, w, tokens, work),
            _ => unreachable!("weights are built from the same layer list"),
        }
    }

    /// `down(silu(gate(x)) · up(x))`, `x` and `out` `[tokens, hidden]`.
    fn swiglu(
        &self,
        [gate_w, up_w, down_w]: Swiglu<'_>,
        x: &[f32],
        gate: &mut [f32],
        up: &mut [f32],
        scratch: &mut Scratch,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let width = x.len() / self.spec.hidden * gate_w.len();
        let (gate, up) = (&mut gate[..width], &mut up[..width]);
        let jobs = [Job { w: gate_w, out: &mut *gate }, Job { w: up_w, out: &mut *up }];
        self.linear(scratch, x, jobs)?;
        self.timed(Operation::Gate, || self.cpu.silu_mul_inplace(gate, up));
        self.linear(scratch, gate, [Job { w: down_w, out }])
    }

    /// Routed experts in ascending order, then the shared expert.
    fn moe(&self, moe: &Moe, w: &MoeWeights, tokens: usize, work: &mut Workspace) -> Result<(), EngineError> {
        let hidden = self.spec.hidden;
        self.select_experts(moe, w, tokens, work)?;
        let Workspace { h, ffn_gate, ffn_up, out, routes, gathered, expert_out, router, scratch, .. } = work;
        let out = &mut out[..tokens * hidden];
        out.fill(0.0);
        for group in routes.chunk_by(|a, b| a.expert == b.expert) {
            self.timed(Operation::Route, || {
                for (row, r) in gathered.chunks_exact_mut(hidden).zip(group) {
                    row.copy_from_slice(&h[r.token as usize * hidden..][..hidden]);
                }
            });
            let block = w.expert(moe, group[0].expert as usize);
            let result = &mut expert_out[..group.len() * hidden];
            self.swiglu(block, &gathered[..group.len() * hidden], ffn_gate, ffn_up, scratch, result)?;
            self.timed(Operation::Route, || {
                for (row, r) in result.chunks_exact(hidden).zip(group) {
                    self.cpu.add_scaled(&mut out[r.token as usize * hidden..][..hidden], r.weight, row);
                }
            });
        }
        if let Some((shared, shared_gate)) = &w.shared {
            let h = &h[..tokens * hidden];
            let result = &mut expert_out[..tokens * hidden];
            self.swiglu(dense(shared), h, ffn_gate, ffn_up, scratch, result)?;
            let gate = &mut router[..tokens];
            self.linear(scratch, h, [Job { w: shared_gate.all(), out: &mut *gate }])?;
            self.timed(Operation::Gate, || self.cpu.sigmoid_scale_rows(result, gate));
            self.timed(Operation::Add, || self.cpu.add(out, result));
        }
        Ok(())
    }

    /// Fills `work.routes`, ordered by expert, then token.
    fn select_experts(
        &self,
        moe: &Moe,
        w: &MoeWeights,
        tokens: usize,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        let Workspace { h, router, routes, selected, scratch, .. } = work;
        let logits = &mut router[..tokens * moe.experts];
        let job = Job { w: w.router.all(), out: &mut *logits };
        self.linear(scratch, &h[..tokens * self.spec.hidden], [job])?;
        let selected = &mut selected[..moe.top_k];
        self.timed(Operation::Route, || {
            routes.clear();
            for (token, logits) in logits.chunks_exact(moe.experts).enumerate() {
                route(logits, moe.top_k, moe.renormalise, selected);
                let token = token as u32;
                routes.extend(selected.iter().map(|&(expert, weight)| Route { expert, token, weight }));
            }
            routes.sort_unstable_by_key(|r| (r.expert, r.token));
        });
        Ok(())
    }
}

/// What a call of linear layers is in a trace.
fn linear_call(trace: &Trace, x: &[f32], jobs: &[Job<'_>]) -> (Operation, String, Needs) {
    let (mut names, mut needs) = (Vec::new(), Needs::default());
    for Job { w, .. } in jobs {
        let (elements, cols) = (w.len() * w.weight.cols(), w.weight.cols());
        needs.bytes += w.weight.bytes() as f64 * w.len() as f64 / w.weight.row_count() as f64;
        needs.multiply_adds += (elements * (x.len() / cols)) as f64;
        names.push(short_name(w.weight.name()));
    }
    let operation = if trace.is_in_layer() { Operation::Linear } else { Operation::Head };
    (operation, names.join(" "), needs)
}

/// `q_proj` of `layers.3.attn.q_proj.weight`.
fn short_name(tensor: &str) -> &str {
    let name = tensor.strip_suffix(".weight").unwrap_or(tensor);
    name.rsplit_once('.').map_or(name, |(_, last)| last)
}

/// The kernels' view of a delta layer.
pub(crate) fn delta_shape(d: &GatedDelta) -> DeltaShape {
    DeltaShape {
        key_heads: d.key_heads,
        value_heads: d.value_heads,
        key_dim: d.key_dim,
        value_dim: d.value_dim,
    }
}

/// The state of every value head is read and written once per call, and takes three products per token.
fn delta_needs(shape: &DeltaShape, tokens: usize) -> Needs {
    let state = (shape.value_heads * shape.key_dim * shape.value_dim) as f64;
    Needs { bytes: 2.0 * state * size_of::<f32>() as f64, multiply_adds: 3.0 * state * tokens as f64 }
}

fn dense(w: &DenseWeights) -> Swiglu<'_> {
    [w.gate.all(), w.up.all(), w.down.all()]
}

/// Adds `bias` to every row of `x`.
fn add_bias(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    }
}

/// Takes `[tokens, heads, (query, gate)]` apart.
fn split_gate(both: &[f32], head_dim: usize, query: &mut [f32], gate: &mut [f32]) {
    let heads = query.chunks_exact_mut(head_dim).zip(gate.chunks_exact_mut(head_dim));
    for (pair, (query, gate)) in both.chunks_exact(2 * head_dim).zip(heads) {
        query.copy_from_slice(&pair[..head_dim]);
        gate.copy_from_slice(&pair[head_dim..]);
    }
}

#[cfg(test)]
mod tests {
    use super::split_gate;

    #[test]
    fn gate_is_interleaved_per_head_and_not_in_blocks() {
        let both = [1.0, 2.0, -1.0, -2.0, 3.0, 4.0, -3.0, -4.0];
        let (mut query, mut gate) = ([0.0; 4], [0.0; 4]);
        split_gate(&both, 2, &mut query, &mut gate);
        assert_eq!(query, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(gate, [-1.0, -2.0, -3.0, -4.0]);
    }
}
