//! What scratch memory the steps of a model take: computed from shapes, so that it can be planned, reserved before the
//! first step, and never grows.

use basert_quant::Encoding;
use basert_quant::ggml::super_group;

use crate::reference::attention::{SEGMENT, STATE_HEADER, TILE};
use crate::reference::delta::DeltaShape;
use crate::scratch::{Line, LocalSizes};
use crate::simd::affine::{BLOCK, party};
use crate::simd::rows;
use crate::simd::tile::UNITS;
use crate::vector::LANES;

/// Query rows that walk the cache together, so that a tile of it is read from memory once for all of them.
pub(crate) const ROWS: usize = 16;

/// Query rows, of one KV head and segment each, whose states are held at a time for every thread.
pub(crate) const HELD_ROWS: usize = 4 * ROWS;

/// Tiles of sixteen rows that are computed side by side, at most.
pub(crate) const TILES: usize = 2;

/// Vectors of value columns of the delta rule that are computed side by side, at most.
pub(crate) const VECTORS: usize = 2;

/// Value columns of one task of the delta rule: their state, 32 columns of a head, stays in the first-level cache while all
/// tokens pass.
pub(crate) const COLUMNS: usize = 32;

/// What a model's matrices ask for, whatever their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatrixNeeds {
    /// Widest inputs of quantised matrices, by the width of their activation blocks: 16, 32, 64.
    pub(crate) inputs: [usize; 3],
    /// Most groups of a quantised row.
    groups: usize,
    /// Longest quantised row.
    row: usize,
}

impl MatrixNeeds {
    /// Adds a matrix with rows of `cols` elements. Floats need nothing.
    pub fn add(&mut self, encoding: Encoding, cols: usize) {
        let group = match encoding {
            Encoding::Float(_) => return,
            Encoding::Super(ty) => super_group(ty).unwrap_or_else(|| encoding.group()),
            _ => encoding.group(),
        };
        let input = &mut self.inputs[set_index(group.min(BLOCK))];
        *input = (*input).max(cols);
        self.groups = self.groups.max(cols / group.max(1));
        self.row = self.row.max(cols);
    }
}

/// Place of a block width in [`MatrixNeeds::inputs`].
pub(crate) fn set_index(block: usize) -> usize {
    match block {
        16 => 0,
        32 => 1,
        _ => 2,
    }
}

/// Widths of the activation blocks.
pub(crate) const BLOCKS: [usize; 3] = [16, 32, 64];

/// The attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// What the steps of a model ask of scratch memory. All parts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScratchNeeds {
    /// Its matrices.
    pub matrices: MatrixNeeds,
    /// Most tokens of a step.
    pub(crate) tokens: usize,
    /// Most positions of a sequence.
    context: usize,
    /// Elements of the state of one query row of one KV head.
    row_state: usize,
    /// Vectors of a decoded tile of K and of V.
    decoded: usize,
    /// `key_width` and `value_heads` of the delta rule.
    pub(crate) delta: [usize; 2],
    /// Rows of the delta rule's state.
    key_dim: usize,
    /// Experts to choose among.
    experts: usize,
}

impl ScratchNeeds {
    /// Of steps of up to `tokens` tokens, over sequences of up to `context`.
    pub fn new(matrices: MatrixNeeds, tokens: usize, context: usize) -> ScratchNeeds {
        ScratchNeeds { matrices, tokens, context, ..ScratchNeeds::default() }
    }

    /// Adds an attention layer.
    pub fn attention(&mut self, shape: AttentionShape) {
        let group = shape.heads / shape.kv_heads.max(1);
        self.row_state = self.row_state.max(group * (STATE_HEADER + shape.head_dim));
        self.decoded = self.decoded.max(decoded_vectors(shape.head_dim));
    }

    /// Adds a layer of the gated delta rule.
    pub fn delta(&mut self, shape: &DeltaShape) {
        self.delta[0] = self.delta[0].max(shape.key_width());
        self.delta[1] = self.delta[1].max(shape.value_heads);
        self.key_dim = self.key_dim.max(shape.key_dim);
    }

    /// Adds a choice among experts.
    pub fn experts(&mut self, experts: usize) {
        self.experts = self.experts.max(experts);
    }

    /// Bytes of all scratch on `threads` threads, the caller's included.
    pub fn bytes(&self, threads: usize) -> u64 {
        let activations: usize = BLOCKS.map(|block| self.activation_bytes(block)).iter().sum();
        let floats = self.delta_floats() + self.segment_floats(threads);
        let shared = activations + floats * size_of::<f32>();
        (shared as u64).saturating_add((self.local().bytes() as u64).saturating_mul(threads as u64))
    }

    /// Bytes of quantised activations in blocks of `block`.
    fn activation_bytes(&self, block: usize) -> usize {
        let cols = self.matrices.inputs[set_index(block)];
        let numbers = size_of::<i32>() + 2 * size_of::<f32>();
        let packed = nibble_registers(cols, block) + plain_registers(cols);
        let codes = code_lines(self.tokens, cols) * size_of::<Line<[i8; 64]>>();
        let numbers = with_parties(self.tokens) * (cols / block) * numbers;
        codes + numbers + self.packed_tokens() * packed * size_of::<[i8; 64]>()
    }

    /// Most tokens whose activations are arranged for the row kernels.
    pub(crate) fn packed_tokens(&self) -> usize {
        self.tokens.min(rows::TOKENS)
    }

    /// Elements of normalised keys, decays and betas.
    fn delta_floats(&self) -> usize {
        self.tokens * 2 * (self.delta[0] + self.delta[1])
    }

    /// Elements of the states of segments.
    pub(crate) fn segment_floats(&self, threads: usize) -> usize {
        if self.context > SEGMENT { HELD_ROWS * threads * self.row_state } else { 0 }
    }

    /// What every thread needs.
    pub(crate) fn local(&self) -> LocalSizes {
        let MatrixNeeds { groups, row, .. } = self.matrices;
        let rows = ROWS.min(self.tokens);
        let vectors = if self.key_dim > 0 { VECTORS * self.key_dim } else { 0 };
        LocalSizes {
            bytes: row,
            floats: (2 * rows * self.row_state).max(self.experts).max(COLUMNS * self.key_dim),
            lines: (TILES * groups).max(vectors).max(self.decoded),
            biases: TILES * groups,
            sums: if row > 0 { TILES * self.tokens } else { 0 },
            tile: if row > 0 { TILES * UNITS } else { 0 },
        }
    }
}

/// Vectors of a tile of K and of V that are decoded for several query rows.
pub(crate) fn decoded_vectors(head_dim: usize) -> usize {
    2 * TILE * head_dim.div_ceil(LANES)
}

/// Lines of the codes of so many tokens.
pub(crate) fn code_lines(tokens: usize, cols: usize) -> usize {
    (with_parties(tokens) * cols).div_ceil(BLOCK)
}

/// Room for the activations of up to so many tokens, with those that are missing from the last party of any instruction
/// set.
pub(crate) fn with_parties(tokens: usize) -> usize {
    let sets = [(false, false), (true, false), (true, true)];
    let room = sets.map(|(roomy, matrix_unit)| tokens.next_multiple_of(party(tokens, roomy, matrix_unit)));
    room.into_iter().max().unwrap_or(tokens)
}

/// Registers of one token's codes in the order for 4-bit weights.
pub(crate) fn nibble_registers(cols: usize, block: usize) -> usize {
    passes(block) * 2 * cols.div_ceil(2 * BLOCK)
}

/// Passes of that order.
pub(crate) fn passes(block: usize) -> usize {
    if block == 16 { 2 } else { 1 }
}

/// Registers of one token's codes in order of columns.
pub(crate) fn plain_registers(cols: usize) -> usize {
    cols.div_ceil(BLOCK)
}
