//! Gated DeltaNet, run by run over the sequences' states.

use basert_kernels::{DeltaScratch, DeltaShape};
use basert_model::GatedDelta;

use super::{Context, Job, Span};
use crate::EngineError;
use crate::cache::{Caches, LayerCache};
use crate::trace::{Needs, Operation};
use crate::weights::DeltaWeights;
use crate::workspace::Workspace;

impl Context<'_> {
    /// `out_proj(norm(delta(conv(qkv))) · silu(z))`, from `work.h` to `work.out`.
    pub(super) fn gated_delta(
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
    pub(super) fn recur(
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
