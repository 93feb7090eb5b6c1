//! Where the time of steps goes, operation by operation.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::forward::Span;

/// What a step is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Rows of the embedding table.
    Embed,
    /// Norms over the hidden size, and of queries and keys.
    Norm,
    /// Linear layers that read the same activations, with the quantisation of these.
    Linear,
    /// The output layer.
    Head,
    /// Rotary embedding, and the rotation of heads for narrow caches.
    Rotate,
    /// K and V into the cache.
    StoreKv,
    /// Attention over the cache.
    Attention,
    /// Short convolution of Gated DeltaNet.
    Convolution,
    /// Delta rule with its gates.
    DeltaRule,
    /// Gates: `silu(gate) · up`, output gates, gated norms.
    Gate,
    /// The choice of experts, and rows moved to them and back.
    Route,
    /// Sums with the residual stream.
    Add,
}

impl Operation {
    /// As tables and JSON have it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Embed => "embed",
            Operation::Norm => "norm",
            Operation::Linear => "linear",
            Operation::Head => "head",
            Operation::Rotate => "rotate",
            Operation::StoreKv => "store kv",
            Operation::Attention => "attention",
            Operation::Convolution => "convolution",
            Operation::DeltaRule => "delta rule",
            Operation::Gate => "gate",
            Operation::Route => "route",
            Operation::Add => "add",
        }
    }
}

/// What an operation cannot do without.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Needs {
    /// Bytes of weights, cache and state that are read or written; activations are not counted.
    pub bytes: f64,
    /// Multiply-adds.
    pub multiply_adds: f64,
}

/// All calls of one operation at one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// The layer; `None` before and after the layers.
    pub layer: Option<usize>,
    /// What was done.
    pub operation: Operation,
    /// Of linear layers the weights' names without the layer's prefix, else empty.
    pub weights: String,
    /// How often.
    pub calls: usize,
    /// Time of all calls.
    pub time: Duration,
    /// Needs of all calls.
    pub needs: Needs,
}

/// Adds up what is traced. Steps that are traced do the same arithmetic; reading the clock around every operation costs
/// them some time, which is in none of the sums.
#[derive(Debug, Default)]
pub struct Trace {
    layer: Cell<Option<usize>>,
    costs: RefCell<BTreeMap<Place, (usize, Duration, Needs)>>,
}

type Place = (Option<usize>, Operation, String);

impl Trace {
    /// An empty one.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.costs.get_mut().clear();
    }

    /// What was traced, by layer and operation.
    pub fn costs(&self) -> Vec<Cost> {
        let costs = self.costs.borrow();
        let cost = |((layer, operation, weights), &(calls, time, needs)): (&Place, &_)| Cost {
            layer: *layer,
            operation: *operation,
            weights: weights.clone(),
            calls,
            time,
            needs,
        };
        costs.iter().map(cost).collect()
    }

    pub(crate) fn enter(&self, layer: Option<usize>) {
        self.layer.set(layer);
    }

    pub(crate) fn is_in_layer(&self) -> bool {
        self.layer.get().is_some()
    }

    pub(crate) fn time<T>(
        &self,
        operation: Operation,
        weights: String,
        needs: Needs,
        work: impl FnOnce() -> T,
    ) -> T {
        let start = Instant::now();
        let done = work();
        let time = start.elapsed();
        let mut costs = self.costs.borrow_mut();
        let sums = costs.entry((self.layer.get(), operation, weights)).or_default();
        sums.0 += 1;
        sums.1 += time;
        sums.2.bytes += needs.bytes;
        sums.2.multiply_adds += needs.multiply_adds;
        done
    }
}

/// Needs of attention: every query of `span` sees all positions up to its own, and their K and V (`bytes` a position) are read
/// once.
pub(crate) fn attention_needs(span: &Span, heads: usize, head_dim: usize, bytes: u64) -> Needs {
    let (tokens, before) = (span.len as f64, span.position as f64);
    let seen = tokens * before + tokens * (tokens + 1.0) / 2.0;
    Needs { bytes: bytes as f64 * (before + tokens), multiply_adds: 2.0 * (heads * head_dim) as f64 * seen }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_at_the_same_place_add_up() {
        let trace = Trace::new();
        let needs = Needs { bytes: 3.0, multiply_adds: 4.0 };
        trace.enter(Some(1));
        for _ in 0..2 {
            assert_eq!(trace.time(Operation::Linear, "q".to_owned(), needs, || 7), 7);
        }
        trace.enter(None);
        trace.time(Operation::Head, String::new(), Needs::default(), || ());
        let costs = trace.costs();
        assert_eq!(costs.len(), 2);
        assert_eq!((costs[0].layer, costs[0].operation, costs[0].calls), (None, Operation::Head, 1));
        assert_eq!((costs[1].layer, costs[1].calls, costs[1].needs.bytes), (Some(1), 2, 6.0));
    }
}
