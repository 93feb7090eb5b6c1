//! Attention, run by run over the sequences' pages.

use basert_kernels::{KvGeometry, Pairing};
use basert_model::{Attention, RopePairing};

use super::{Context, Job, Span};
use crate::EngineError;
use crate::cache::Caches;
use crate::trace::{Needs, Operation, attention_needs};
use crate::weights::AttentionWeights;
use crate::workspace::Workspace;

impl Context<'_> {
    /// `o_proj(softmax(q kᵀ / √d) v · sigmoid(gate))`, from `work.h` to `work.out`.
    pub(super) fn attention(
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
    pub(super) fn store_keys_values(
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
    pub(super) fn queries_keys_values(
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
