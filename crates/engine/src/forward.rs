//! The forward pass: one walk over the layers for every architecture, every batch and every phase.
//!
//! All runs of a step go through the linear layers together; attention and the recurrent layers go
//! run by run, because they read that sequence's cache. Nothing here depends on how many tokens or runs
//! there are, so a token's result does not either.

use basert_format::BaseFile;
use basert_kernels::{Cpu, DeltaShape, LinearJob, Matrix, Pairing, route};
use basert_model::{Attention, Ffn, GatedDelta, LayerSpec, Mixer, ModelSpec, Moe, RopePairing};

use crate::EngineError;
use crate::cache::{Caches, LayerCache, SequenceId};
use crate::rope::Frequencies;
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
    pub file: &'a BaseFile,
    pub spec: &'a ModelSpec,
    pub weights: &'a Weights,
    pub rope: Option<&'a Frequencies>,
}

/// One SwiGLU block's matrices.
type Swiglu<'a> = [Matrix<'a>; 3];

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
        self.fill_rope(spans, work);
        self.cpu.embed(self.weights.embed.matrix(self.file)?, tokens, &mut work.x[..n]);
        for (i, (layer, weights)) in self.spec.layers.iter().zip(&self.weights.layers).enumerate() {
            self.norm(&weights.input_norm, tokens.len(), work);
            self.mixer(layer, weights, caches.layers[i], spans, caches, work)?;
            self.cpu.add(&mut work.x[..n], &work.out[..n]);
            self.norm(&weights.post_norm, tokens.len(), work);
            self.ffn(layer, weights, tokens.len(), work)?;
            self.cpu.add(&mut work.x[..n], &work.out[..n]);
        }
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
        self.cpu.rms_norm(&last[..count * hidden], &self.weights.final_norm, self.spec.norm_eps, normed);
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.embed).matrix(self.file)?;
        let out = &mut logits[..count * self.spec.vocab];
        self.cpu.linear(scratch, normed, &mut [LinearJob { w: head, out }]);
        Ok(count)
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
        self.cpu.rms_norm(&work.x[..n], gain, self.spec.norm_eps, &mut work.h[..n]);
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
        let Workspace { h, projected, inner: q, gate, k, v, mixed, out, cos, sin, scratch, .. } = work;
        let q = &mut q[..tokens * inner];
        let k = &mut k[..tokens * kv_width];
        let v = &mut v[..tokens * kv_width];
        let gate = if a.output_gate { &mut gate[..tokens * inner] } else { &mut [] };
        let h = &h[..tokens * self.spec.hidden];

        let q_out = if a.output_gate { &mut projected[..2 * tokens * inner] } else { &mut *q };
        let jobs = &mut [
            LinearJob { w: w.q.matrix(self.file)?, out: &mut *q_out },
            LinearJob { w: w.k.matrix(self.file)?, out: k },
            LinearJob { w: w.v.matrix(self.file)?, out: v },
        ];
        self.cpu.linear(scratch, h, jobs);
        if let Some(bias) = &w.bias {
            add_bias(q_out, &bias[0]);
            add_bias(k, &bias[1]);
            add_bias(v, &bias[2]);
        }
        if a.output_gate {
            split_gate(&projected[..2 * tokens * inner], a.head_dim, q, gate);
        }
        if let Some([q_gain, k_gain]) = &w.qk_norm {
            self.cpu.rms_norm_inplace(q, q_gain, self.spec.norm_eps);
            self.cpu.rms_norm_inplace(k, k_gain, self.spec.norm_eps);
        }
        let pairs = tokens * (a.rope.dims / 2);
        let pairing = match a.rope.pairing {
            RopePairing::Half => Pairing::Half,
            RopePairing::Interleaved => Pairing::Interleaved,
        };
        self.cpu.rope(q, a.heads, a.head_dim, &cos[..pairs], &sin[..pairs], pairing);
        self.cpu.rope(k, a.kv_heads, a.head_dim, &cos[..pairs], &sin[..pairs], pairing);

        let mixed = &mut mixed[..tokens * inner];
        let scale = 1.0 / (a.head_dim as f32).sqrt();
        for span in spans {
            let (sequence, layers) = caches.parts(span.sequence)?;
            let layer = &mut layers[kv];
            let (rows, kv_rows) = (span.of(inner), span.of(kv_width));
            let geometry = &layer.geometry;
            self.cpu.store_kv(
                geometry,
                &mut layer.k,
                &mut layer.v,
                &sequence.pages,
                span.position,
                &k[kv_rows.clone()],
                &v[kv_rows],
            );
            self.cpu.attention(
                geometry,
                &layer.k,
                &layer.v,
                &sequence.pages,
                span.position,
                &q[rows.clone()],
                a.heads,
                scale,
                &mut mixed[rows],
            );
        }
        if a.output_gate {
            self.cpu.sigmoid_mul(mixed, gate);
        }
        let out = &mut out[..tokens * self.spec.hidden];
        self.cpu.linear(scratch, mixed, &mut [LinearJob { w: w.o.matrix(self.file)?, out }]);
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
        let jobs = &mut [
            LinearJob { w: w.qkv.matrix(self.file)?, out: &mut *qkv },
            LinearJob { w: w.z.matrix(self.file)?, out: &mut *z },
            LinearJob { w: w.a.matrix(self.file)?, out: &mut *alpha },
            LinearJob { w: w.b.matrix(self.file)?, out: &mut *beta },
        ];
        self.cpu.linear(scratch, &h[..tokens * self.spec.hidden], jobs);

        let shape = DeltaShape {
            key_heads: d.key_heads,
            value_heads: d.value_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
        };
        let mixed = &mut mixed[..tokens * width];
        for span in spans {
            let LayerCache::State(slot) = slot else { continue };
            let (sequence, _) = caches.parts(span.sequence)?;
            let (state, tail) = slot.split(&mut sequence.state);
            let convolved = &mut inner[span.of(channels)];
            self.cpu.conv1d_silu(&qkv[span.of(channels)], &w.conv, tail, convolved);
            let heads = span.of(d.value_heads);
            self.cpu.gated_delta(
                &shape,
                delta,
                convolved,
                &alpha[heads.clone()],
                &beta[heads],
                &w.neg_a,
                &w.dt_bias,
                state,
                &mut mixed[span.of(width)],
            );
        }
        self.cpu.gated_rms_norm(mixed, &w.norm, z, self.spec.norm_eps);
        let out = &mut out[..tokens * self.spec.hidden];
        self.cpu.linear(scratch, mixed, &mut [LinearJob { w: w.out.matrix(self.file)?, out }]);
        Ok(())
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
                let block = self.dense(w)?;
                let Workspace { h, ffn_gate, ffn_up, out, scratch, .. } = work;
                self.swiglu(block, &h[..n], ffn_gate, ffn_up, scratch, &mut out[..n]);
                Ok(())
            }
            (Ffn::Moe(moe), FfnWeights::Moe(w)) => self.moe(moe, w, tokens, work),
            _ => unreachable!("weights are built from the same layer list"),
        }
    }

    fn dense<'a>(&'a self, w: &'a DenseWeights) -> Result<Swiglu<'a>, EngineError> {
        Ok([w.gate.matrix(self.file)?, w.up.matrix(self.file)?, w.down.matrix(self.file)?])
    }

    /// `down(silu(gate(x)) · up(x))`, `x` and `out` `[tokens, hidden]`.
    fn swiglu(
        &self,
        [gate_w, up_w, down_w]: Swiglu<'_>,
        x: &[f32],
        gate: &mut [f32],
        up: &mut [f32],
        scratch: &mut basert_kernels::Scratch,
        out: &mut [f32],
    ) {
        let width = x.len() / gate_w.cols * gate_w.rows;
        let (gate, up) = (&mut gate[..width], &mut up[..width]);
        let jobs = &mut [LinearJob { w: gate_w, out: &mut *gate }, LinearJob { w: up_w, out: &mut *up }];
        self.cpu.linear(scratch, x, jobs);
        self.cpu.silu_mul_inplace(gate, up);
        self.cpu.linear(scratch, gate, &mut [LinearJob { w: down_w, out }]);
    }

    /// Routed experts in ascending order, then the shared expert.
    fn moe(&self, moe: &Moe, w: &MoeWeights, tokens: usize, work: &mut Workspace) -> Result<(), EngineError> {
        let hidden = self.spec.hidden;
        self.select_experts(moe, w, tokens, work)?;
        let Workspace { h, ffn_gate, ffn_up, out, routes, gathered, expert_out, router, scratch, .. } = work;
        let out = &mut out[..tokens * hidden];
        out.fill(0.0);
        for group in routes.chunk_by(|a, b| a.expert == b.expert) {
            for (row, r) in gathered.chunks_exact_mut(hidden).zip(group) {
                row.copy_from_slice(&h[r.token as usize * hidden..][..hidden]);
            }
            let block = w.expert(self.file, moe, group[0].expert as usize)?;
            let result = &mut expert_out[..group.len() * hidden];
            self.swiglu(block, &gathered[..group.len() * hidden], ffn_gate, ffn_up, scratch, result);
            for (row, r) in result.chunks_exact(hidden).zip(group) {
                self.cpu.add_scaled(&mut out[r.token as usize * hidden..][..hidden], r.weight, row);
            }
        }
        if let Some((shared, shared_gate)) = &w.shared {
            let h = &h[..tokens * hidden];
            let result = &mut expert_out[..tokens * hidden];
            self.swiglu(self.dense(shared)?, h, ffn_gate, ffn_up, scratch, result);
            let gate = &mut router[..tokens];
            let job = LinearJob { w: shared_gate.matrix(self.file)?, out: &mut *gate };
            self.cpu.linear(scratch, h, &mut [job]);
            self.cpu.sigmoid_scale_rows(result, gate);
            self.cpu.add(out, result);
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
        let job = LinearJob { w: w.router.matrix(self.file)?, out: &mut *logits };
        self.cpu.linear(scratch, &h[..tokens * self.spec.hidden], &mut [job]);
        routes.clear();
        let selected = &mut selected[..moe.top_k];
        for (token, logits) in logits.chunks_exact(moe.experts).enumerate() {
            route(logits, moe.top_k, moe.renormalise, selected);
            let token = token as u32;
            routes.extend(selected.iter().map(|&(expert, weight)| Route { expert, token, weight }));
        }
        routes.sort_unstable_by_key(|r| (r.expert, r.token));
        Ok(())
    }
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
