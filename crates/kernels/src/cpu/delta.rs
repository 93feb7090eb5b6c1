//! The gated delta rule over a run of tokens.

use super::Cpu;
use crate::needs::{COLUMNS, ScratchNeeds};
use crate::reference::delta::{DeltaColumns, DeltaShape, NormalizeKeys, gates};
use crate::scratch::{Local, grown, reserve, with_local};
use crate::shared::{ColumnBlock, SharedMut};

/// Tokens of a run that wait for the state more than they compute with it.
const FEW: usize = 4;

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

/// What the tokens of a run bring to all heads.
struct Run<'a> {
    shape: &'a DeltaShape,
    keys: &'a [f32],  // [tokens, 2·key_width]
    qkv: &'a [f32],   // [tokens, qkv_width]
    decay: &'a [f32], // [tokens, value_heads]
    beta: &'a [f32],  // [tokens, value_heads]
}

impl<'a> Run<'a> {
    /// The part of some columns from token `from` on.
    fn columns(
        &self,
        head: usize,
        first: usize,
        from: usize,
        state: ColumnBlock<'a, f32>,
        out: ColumnBlock<'a, f32>,
        local: &'a mut Local,
    ) -> DeltaColumns<'a> {
        let Run { shape, keys, qkv, decay, beta } = *self;
        DeltaColumns {
            shape,
            head,
            first,
            keys: &keys[from * 2 * shape.key_width()..],
            qkv: &qkv[from * shape.qkv_width()..],
            decay: &decay[from * shape.value_heads..],
            beta: &beta[from * shape.value_heads..],
            state,
            out,
            local,
        }
    }
}

/// Lengths of qkv, both gates, both decays, state and output.
fn check_shapes(shape: &DeltaShape, tokens: usize, [qkv, a, b, neg_a, dt_bias, state, out]: [usize; 7]) {
    let DeltaShape { key_heads, value_heads, key_dim, value_dim } = *shape;
    assert!(key_heads > 0 && value_heads.is_multiple_of(key_heads), "value heads do not share key heads");
    assert_eq!(qkv, tokens * shape.qkv_width(), "qkv is not [tokens, q | k | v]");
    assert!(a == b && a == tokens * value_heads, "gates are not [tokens, value_heads]");
    assert!(neg_a == value_heads && dt_bias == value_heads, "one decay per value head");
    assert_eq!(state, value_heads * key_dim * value_dim, "state is not [value_heads, key_dim, value_dim]");
    assert_eq!(out, tokens * shape.value_width(), "output is not [tokens, value_heads, value_dim]");
}

impl Cpu {
    /// The gated delta rule of one sequence's run, token after token; `state` is read, and updated by the first `keep` tokens:
    /// later ones go on from there in a copy that is dropped.
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
        keep: usize,
        out: &mut [f32],
    ) {
        let DeltaShape { value_heads, key_dim, value_dim, .. } = *shape;
        let tokens = a.len().checked_div(value_heads).unwrap_or(0);
        check_shapes(shape, tokens, [qkv, a, b, neg_a, dt_bias, state, out].map(<[f32]>::len));
        assert!(keep <= tokens, "{keep} of {tokens} tokens cannot be kept");

        let keys = grown(&mut scratch.keys, tokens * 2 * shape.key_width(), 0.0);
        let decay = grown(&mut scratch.decay, a.len(), 0.0);
        let beta = grown(&mut scratch.beta, a.len(), 0.0);
        self.keys_and_gates(shape, qkv, keys, [decay, beta], &|token, decay, beta| {
            for (head, (decay, beta)) in decay.iter_mut().zip(beta).enumerate() {
                let i = token * value_heads + head;
                (*decay, *beta) = gates(a[i], b[i], neg_a[head], dt_bias[head]);
            }
        });

        let run = Run { shape, keys, qkv, decay, beta };
        let state = SharedMut::new(state, value_dim);
        let out = SharedMut::new(out, shape.value_width());
        // Few tokens are a matter of memory, which likes whole rows.
        let whole = tokens <= FEW && value_heads >= self.threads();
        let width = if whole { value_dim } else { COLUMNS };
        let blocks = value_dim.div_ceil(width);
        self.pool.run(value_heads * blocks, &|task| {
            let (head, first) = (task / blocks, task % blocks * width);
            let columns = first..value_dim.min(first + width);
            let start = head * value_dim;
            let out_columns = start + columns.start..start + columns.end;
            // SAFETY: every task has its own head and columns.
            let (mut state, kept) = unsafe {
                (
                    state.block(head * key_dim..(head + 1) * key_dim, columns),
                    out.block(0..keep, out_columns.clone()),
                )
            };
            with_local(|local| {
                self.level.run(run.columns(head, first, 0, state.reborrow(), kept, local));
                if keep < tokens {
                    // SAFETY: as above.
                    let later = unsafe { out.block(keep..tokens, out_columns) };
                    self.run_ahead(&run, (head, first), keep, &state, later, local);
                }
            });
        });
    }

    /// Goes on from token `keep` in a copy of `state`, the columns from `first` on of a head.
    fn run_ahead(
        &self,
        run: &Run<'_>,
        (head, first): (usize, usize),
        keep: usize,
        state: &ColumnBlock<'_, f32>,
        out: ColumnBlock<'_, f32>,
        local: &mut Local,
    ) {
        let mut copy = std::mem::take(&mut local.floats);
        let (rows, width) = (run.shape.key_dim, state.width());
        let block = grown(&mut copy, rows * width, 0.0);
        for (i, row) in block.chunks_exact_mut(width).enumerate() {
            row.copy_from_slice(state.row(i));
        }
        let copied = SharedMut::new(block, width);
        // SAFETY: the copy is this task's own.
        let state = unsafe { copied.block(0..rows, 0..width) };
        self.level.run(run.columns(head, first, keep, state, out, local));
        local.floats = copy;
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
