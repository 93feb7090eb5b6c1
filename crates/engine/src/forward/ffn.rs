//! Feed-forward blocks: dense, and mixtures of experts.

use basert_kernels::{Scratch, route};
use basert_model::{Ffn, LayerSpec, Moe};

use super::{Context, Job};
use crate::EngineError;
use crate::tensor::Rows;
use crate::trace::Operation;
use crate::weights::{DenseWeights, FfnWeights, LayerWeights, MoeWeights};
use crate::workspace::{Route, Workspace};

/// One SwiGLU block's matrices: gate, up, down.
type Swiglu<'a> = [Rows<'a>; 3];

impl Context<'_> {
    pub(super) fn ffn(
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

fn dense(w: &DenseWeights) -> Swiglu<'_> {
    [w.gate.all(), w.up.all(), w.down.all()]
}
