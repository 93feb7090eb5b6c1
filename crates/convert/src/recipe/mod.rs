//! Recipes: which rows of which source tensors, in which form, make a canonical tensor.
//!
//! Every difference between a source's conventions and the canonical ones is one of the few operations here:
//! a row order, a column order, or an element-wise operation. [`hf`] and [`gguf`] say which apply where.

mod experts;
pub(crate) mod gguf;
pub(crate) mod hf;
mod inventory;
mod module;
mod tensor;

pub(crate) use inventory::Inventory;
pub(crate) use module::{Declared, Mode, Module};
pub(crate) use tensor::{Data, RegionsMut, SourceTensor};

use basert_model::{GatedDelta, Mixer, ModelSpec, Role, TensorSpec};

/// How to make one canonical tensor.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    /// Canonical name.
    pub name: String,
    /// Canonical shape.
    pub shape: Vec<usize>,
    /// What the tensor does; `None` for towers, which are kept as they are.
    pub role: Option<Role>,
    /// Elements of one row: the last dimension, or 1 if single elements of a vector are reordered.
    pub width: usize,
    /// Source rows, in output order.
    pub parts: Vec<Part>,
    /// Reordering of the elements inside every row.
    pub columns: Option<Untile>,
    /// Done to every element, in f32.
    pub op: Op,
}

/// Consecutive output rows that come from one source tensor.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Index into the inventory.
    pub tensor: usize,
    /// First source row of the range the order refers to.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Which source row each output row is.
    pub order: RowOrder,
}

/// Order of rows inside a [`Part`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As they are.
    Straight,
    /// Rotary halves of every head become neighbours: output `h·D + 2j + k` is source `h·D + k·D/2 + j`.
    Interleave {
        /// Rows per head, D.
        head_dim: usize,
    },
    /// llama.cpp's value-head order undone from row `from` on.
    Untile {
        /// Rows before stay in place.
        from: usize,
        /// Which heads go where.
        heads: Untile,
    },
}

impl RowOrder {
    /// Source row of output row `row`.
    pub fn source(self, row: usize) -> usize {
        match self {
            RowOrder::Straight => row,
            RowOrder::Interleave { head_dim } => {
                let (head, inside) = (row / head_dim, row % head_dim);
                head * head_dim + inside % 2 * (head_dim / 2) + inside / 2
            }
            RowOrder::Untile { from, .. } if row < from => row,
            RowOrder::Untile { from, heads } => from + heads.source(row - from),
        }
    }

    /// Output rows from `row` on, at most `limit`, whose source rows follow one another.
    pub fn run(self, row: usize, limit: usize) -> usize {
        match self {
            RowOrder::Straight => limit,
            RowOrder::Interleave { .. } => 1,
            RowOrder::Untile { from, .. } if row < from => limit.min(from - row),
            RowOrder::Untile { from, heads } => limit.min(heads.unit - (row - from) % heads.unit),
        }
    }
}

/// The inverse of llama.cpp's value-head order. It stores value head `k·r + j` (k-th key head, r value heads
/// per key head) at place `j·key_heads + k`, so that heads can be broadcast by repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Untile {
    /// Key heads.
    pub key_heads: usize,
    /// Value heads per key head, r.
    pub per_key: usize,
    /// Rows, columns or elements per value head.
    pub unit: usize,
}

impl Untile {
    /// The reordering for `delta` in units of `unit`; `None` where the two orders agree.
    pub fn of(delta: &GatedDelta, unit: usize) -> Option<Untile> {
        let per_key = delta.value_heads / delta.key_heads.max(1);
        (per_key > 1 && delta.key_heads > 1).then_some(Untile { key_heads: delta.key_heads, per_key, unit })
    }

    /// The reordering that undoes this one.
    pub fn inverse(self) -> Untile {
        Untile { key_heads: self.per_key, per_key: self.key_heads, unit: self.unit }
    }

    /// Moves units of one row of a region: `row` holds a whole number of bytes for every unit.
    pub fn apply_to_bytes(self, row: &mut [u8], scratch: &mut Vec<u8>) {
        let units = self.key_heads * self.per_key;
        let bytes = row.len() / units.max(1);
        if bytes == 0 {
            return;
        }
        scratch.clear();
        scratch.extend_from_slice(row);
        let by_unit = Untile { unit: 1, ..self };
        for (index, unit) in row.chunks_exact_mut(bytes).enumerate() {
            let source = by_unit.source(index) * bytes;
            unit.copy_from_slice(&scratch[source..source + bytes]);
        }
    }

    /// Source index of output index `index`.
    pub fn source(self, index: usize) -> usize {
        let (head, inside) = (index / self.unit, index % self.unit);
        (head % self.per_key * self.key_heads + head / self.per_key) * self.unit + inside
    }
}

/// Element-wise operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// None.
    Keep,
    /// `1 + w`: zero-centred norm gains.
    AddOne,
    /// `ln(-w)`: a decay rate back to `A_log`.
    LogOfNegative,
}

impl Recipe {
    /// A tensor that is one source tensor of `shape`, unchanged but for what the caller sets afterwards.
    pub fn whole(spec: &TensorSpec, tensor: usize) -> Recipe {
        let width = spec.shape.last().copied().unwrap_or(1);
        let rows = rows(&spec.shape);
        Recipe {
            name: spec.name.clone(),
            shape: spec.shape.clone(),
            role: Some(spec.role),
            width,
            parts: vec![Part { tensor, first_row: 0, rows, order: RowOrder::Straight }],
            columns: None,
            op: Op::Keep,
        }
    }

    /// A tensor that is kept as it is, under `name`.
    pub fn kept(name: String, shape: Vec<usize>, tensor: usize) -> Recipe {
        let spec = TensorSpec { name, shape, role: Role::Linear, optional: false };
        Recipe { role: None, ..Recipe::whole(&spec, tensor) }
    }

    /// A tensor made of row ranges `(tensor, first_row, rows)`.
    fn stacked(spec: &TensorSpec, ranges: impl IntoIterator<Item = (usize, usize, usize)>) -> Recipe {
        let part = |(tensor, first_row, rows)| Part { tensor, first_row, rows, order: RowOrder::Straight };
        Recipe { parts: ranges.into_iter().map(part).collect(), ..Recipe::whole(spec, 0) }
    }

    /// Sets the row order of every part.
    fn ordered(mut self, order: RowOrder) -> Recipe {
        self.parts.iter_mut().for_each(|part| part.order = order);
        self
    }

    /// Reorders the elements of a vector instead of the rows of a matrix.
    fn by_element(mut self) -> Recipe {
        let elements = self.elements();
        self.width = 1;
        self.parts.iter_mut().for_each(|part| part.rows = elements);
        self
    }

    /// Whether source elements come out in another order, by rows or by columns.
    pub fn is_reordered(&self) -> bool {
        self.columns.is_some() || self.parts.iter().any(|part| part.order != RowOrder::Straight)
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of rows of `width` elements.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }
}

/// Product of all dimensions but the last.
fn rows(shape: &[usize]) -> usize {
    shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
}

/// `(layer index, rest)` of a canonical name `layers.N.rest`.
fn layer_of(name: &str) -> Option<(usize, &str)> {
    let (index, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    Some((index.parse().ok()?, rest))
}

/// The Gated-DeltaNet geometry of layer `index`, if it has one.
fn delta_of(spec: &ModelSpec, index: usize) -> Option<&GatedDelta> {
    match &spec.layers.get(index)?.mixer {
        Mixer::GatedDelta(delta) => Some(delta),
        Mixer::Attention(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key heads, value heads per key head, and rows per head, ratio 3 included: ratio 1 hides every mistake.
    const HEADS: [(usize, usize, usize); 4] = [(2, 3, 2), (3, 2, 1), (4, 1, 2), (1, 4, 3)];

    #[test]
    fn untiling_inverts_the_order_of_llama_cpp() {
        for (key_heads, per_key, unit) in HEADS {
            let untile = Untile { key_heads, per_key, unit };
            for k in 0..key_heads {
                for j in 0..per_key {
                    for row in 0..unit {
                        let canonical = (k * per_key + j) * unit + row;
                        let tiled = (j * key_heads + k) * unit + row;
                        assert_eq!(untile.source(canonical), tiled, "{key_heads} {per_key} {unit}");
                        assert_eq!(untile.inverse().source(tiled), canonical);
                    }
                }
            }
        }
    }

    #[test]
    fn interleaving_pairs_the_halves_of_every_head() {
        let order = RowOrder::Interleave { head_dim: 6 };
        let sources: Vec<usize> = (0..12).map(|row| order.source(row)).collect();
        assert_eq!(sources, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    }

    #[test]
    fn runs_cover_consecutive_source_rows_only() {
        let orders = [
            RowOrder::Straight,
            RowOrder::Interleave { head_dim: 4 },
            RowOrder::Untile { from: 5, heads: Untile { key_heads: 2, per_key: 3, unit: 3 } },
        ];
        for order in orders {
            let mut row = 0;
            while row < 23 {
                let run = order.run(row, 23 - row);
                assert!(run >= 1 && row + run <= 23);
                for step in 0..run {
                    assert_eq!(order.source(row + step), order.source(row) + step, "{order:?} {row}");
                }
                row += run;
            }
        }
    }
}
