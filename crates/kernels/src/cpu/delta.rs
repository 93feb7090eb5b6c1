//! The gated delta rule over a run of tokens.

use super::Cpu;
use crate::needs::ScratchNeeds;
use crate::reference::delta::{DeltaColumns, DeltaShape, NormalizeKeys, gates};
use crate::scratch::{grown, reserve, with_local};
use crate::shared::SharedMut;

/// Value columns of one task: their state, 32 columns of a head, stays in the first-level cache while all tokens pass.
const COLUMNS: usize = 32;

/// Normalised keys and gates of a run, reused from call to call. Grows to the longest run and stays.
#[derive(Debug, Default)]
pub struct DeltaScratch {
    keys: Vec<f32>,  // [tokens, q and k heads, key_dim]
    decay: Vec<f32>, // [tokens, value_heads]
    beta: Vec<f32>,  // [tokens, value_heads]
}

impl DeltaScratch {
    /// Makes room, so that no run up to these sizes allocates.
    pub fn reserve(&mut self, needs: &ScratchNeeds) {
        let [key_width, value_heads] = needs.delta;
        reserve(&mut self.keys, needs.tokens * 2 * key_width);
        reserve(&mut self.decay, needs.tokens * value_heads);
        reserve(&mut self.beta, needs.tokens * value_heads);
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> u64 {
        let floats = self.keys.capacity() + self.decay.capacity() + self.beta.capacity();
        (floats * size_of::<f32>()) as u64
    }
}

/// Fills a token's decays and betas.
type Gates<'a> = dyn Fn(usize, &mut [f32], &mut [f32]) + Sync + 'a;

impl Cpu {
    /// The gated delta rule of one sequence's run, token after token; `state` is read and updated.
    ///
    /// Per token and value head: q and k are L2-normalised (eps 1e-6 on the sum), q then scaled by `1/sqrt(key_dim)`;
    /// `decay = e^(neg_a·softplus(a + dt_bias))`, `beta = sigmoid(b)`; `S = S·decay`, `d = (v - Sᵀk)·beta`,
    /// `S = S + k⊗d`, `out = Sᵀq`.
    ///
    /// `qkv` is `[tokens, q heads | k heads | v heads]` after convolution and SiLU, `a` and `b` are
    /// `[tokens, value_heads]`, `neg_a` (which is -e^A_log) and `dt_bias` are `[value_heads]`, `state` is
    /// `[value_heads, key_dim, value_dim]`, `out` is `[tokens, value_heads, value_dim]`.
    pub fn gated_delta(
        &self,
        shape: &DeltaShape,
        scratch: &mut DeltaScratch,
        qkv: &[f32],
        a: &[f32],
        b: &[f32],
        neg_a: &[f32],
        dt_bias: &[f32],
        state: &mut [f32],
        out: &mut [f32],
    ) {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim } = *shape;
        assert!(key_heads > 0 && value_heads.is_multiple_of(key_heads), "value heads do not share key heads");
        let tokens = a.len().checked_div(value_heads).unwrap_or(0);
        assert_eq!(qkv.len(), tokens * shape.qkv_width(), "qkv is not [tokens, q | k | v]");
        assert!(a.len() == b.len() && a.len() == tokens * value_heads, "gates are not [tokens, value_heads]");
        assert!(neg_a.len() == value_heads && dt_bias.len() == value_heads, "one decay per value head");
        assert_eq!(
            state.len(),
            value_heads * key_dim * value_dim,
            "state is not [value_heads, key_dim, value_dim]"
        );
        assert_eq!(out.len(), tokens * shape.value_width(), "output is not [tokens, value_heads, value_dim]");

        let keys = grown(&mut scratch.keys, tokens * 2 * shape.key_width(), 0.0);
        let decay = grown(&mut scratch.decay, a.len(), 0.0);
        let beta = grown(&mut scratch.beta, a.len(), 0.0);
        self.keys_and_gates(shape, qkv, keys, [decay, beta], &|token, decay, beta| {
            for (head, (decay, beta)) in decay.iter_mut().zip(beta).enumerate() {
                let i = token * value_heads + head;
                (*decay, *beta) = gates(a[i], b[i], neg_a[head], dt_bias[head]);
            }
        });

        let (keys, decay, beta) = (&*keys, &*decay, &*beta);
        let state = SharedMut::new(state, value_dim);
        let out = SharedMut::new(out, shape.value_width());
        let blocks = value_dim.div_ceil(COLUMNS);
        self.pool.run(value_heads * blocks, &|task| {
            let (head, first) = (task / blocks, task % blocks * COLUMNS);
            let columns = first..value_dim.min(first + COLUMNS);
            let start = head * value_dim;
            // SAFETY: every task has its own head and columns.
            let (state, out) = unsafe {
                (
                    state.block(head * key_dim..(head + 1) * key_dim, columns.clone()),
                    out.block(0..tokens, start + columns.start..start + columns.end),
                )
            };
            with_local(|local| {
                self.level.run(DeltaColumns {
                    shape,
                    head,
                    first,
                    keys,
                    qkv,
                    decay,
                    beta,
                    state,
                    out,
                    local,
                });
            });
        });
    }

    /// Normalises the keys of all tokens and calls `gates` for each with its decays and betas to fill.
    fn keys_and_gates(
        &self,
        shape: &DeltaShape,
        qkv: &[f32],
        keys: &mut [f32],
        gate: [&mut [f32]; 2],
        gates: &Gates<'_>,
    ) {
        let (width, qkv_width, heads) = (2 * shape.key_width(), shape.qkv_width(), shape.value_heads);
        let tokens = keys.len().checked_div(width).unwrap_or(0);
        let (keys, [decay, beta]) =
            (SharedMut::new(keys, width), gate.map(|gate| SharedMut::new(gate, heads)));
        self.split(tokens, 1, 4, &|range| {
            // SAFETY: ranges are disjoint.
            let (keys, mut decay, mut beta) = unsafe {
                (
                    keys.block(range.clone(), 0..width),
                    decay.block(range.clone(), 0..heads),
                    beta.block(range.clone(), 0..heads),
                )
            };
            let qkv = &qkv[range.start * qkv_width..range.end * qkv_width];
            self.level.run(NormalizeKeys { shape, qkv, keys });
            for (row, token) in range.enumerate() {
                gates(token, decay.row_mut(row), beta.row_mut(row));
            }
        });
    }
}
