//! What a case cannot do without: bytes from memory, and multiply-adds.

use basert_engine::Engine;
use basert_kernels::Product;
use basert_model::{Ffn, LayerSpec, Mixer, ModelSpec, Role, TensorSpec};
use basert_quant::Encoding;

use crate::Footprint;
use crate::bench::{Case, Test};

/// Counts of one model, from its geometry and the sizes in its file. Norms, convolutions and the activations' own traffic
/// are left out of the multiply-adds and the bytes: what is left is a lower bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Bytes of weights that every step reads, whatever its tokens.
    shared_bytes: f64,
    /// Stacks of routed experts.
    experts: Vec<Stack>,
    /// Of linear layers, per token.
    linear: Products,
    /// Of the head, per row of logits.
    head: Products,
    /// Of attention, per token and position that it sees.
    attention: f64,
    kv_bytes_per_token: f64,
    state_bytes: f64,
}

/// Matrices of all experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stack {
    bytes: f64,
    /// Share of the experts that a token is routed to.
    active: f64,
}

/// Multiply-adds by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Products {
    /// Of integer bytes.
    pub bytes: f64,
    /// Of floats.
    pub floats: f64,
}

impl Products {
    fn add(&mut self, product: Product, count: f64) {
        match product {
            Product::Bytes => self.bytes += count,
            Product::Floats => self.floats += count,
        }
    }

    fn times(self, factor: f64) -> Products {
        Products { bytes: self.bytes * factor, floats: self.floats * factor }
    }
}

impl Work {
    /// Of a loaded model; `None` if some of its matrices were decoded at load, so that the sizes in the file are not
    /// what a step reads.
    pub fn of(engine: &Engine) -> Option<Work> {
        if engine.selected().memory.weights_decoded > 0 {
            return None;
        }
        let footprint = Footprint::of(engine);
        let spec = engine.spec();
        let mut work = Work {
            shared_bytes: 0.0,
            experts: Vec::new(),
            linear: Products { bytes: 0.0, floats: delta_products(spec) },
            head: Products::default(),
            attention: attention_products(spec),
            kv_bytes_per_token: footprint.kv_bytes_per_token as f64,
            state_bytes: footprint.state_bytes as f64,
        };
        for tensor in spec.tensors() {
            if let Some(view) = engine.file().tensor(&tensor.name) {
                work.count(spec, &tensor, view.encoding, view.data.len() as f64);
            }
        }
        Some(work)
    }

    fn count(&mut self, spec: &ModelSpec, tensor: &TensorSpec, encoding: Encoding, bytes: f64) {
        let elements: f64 = tensor.shape.iter().map(|&dim| dim as f64).product();
        let product = match encoding {
            Encoding::Float(_) => Product::Floats,
            _ => Product::Bytes,
        };
        match tensor.role {
            // One row per token, unless the table is the head as well.
            Role::Embed if !spec.tied_head => return,
            Role::Embed | Role::Head => self.head.add(product, elements),
            Role::Experts => {
                let active = active_share(spec, &tensor.name);
                self.linear.add(product, elements * active);
                self.experts.push(Stack { bytes, active });
                return;
            }
            Role::Linear | Role::Router | Role::SharedGate | Role::DeltaGate => {
                self.linear.add(product, elements);
            }
            Role::Norm | Role::Conv | Role::DecayLog | Role::DtBias | Role::Bias | Role::RopeFreqs => {}
        }
        self.shared_bytes += bytes;
    }

    /// Bytes of weights that a step of one token for each of `sequences` reads. Which experts are routed to is taken as
    /// independent and uniform: of a layer's experts, `1 - (1 - k/E)^sequences` are active.
    pub fn weight_bytes_per_step(&self, sequences: usize) -> f64 {
        let touched = |stack: &Stack| stack.bytes * (1.0 - (1.0 - stack.active).powf(sequences as f64));
        self.shared_bytes + self.experts.iter().map(touched).sum::<f64>()
    }

    /// Bytes that decoding moves per token: its share of the weights, the K and V of all positions that it sees and of
    /// itself, the recurrent state read and written.
    pub fn bytes_per_token(&self, depth: usize, tokens: usize, sequences: usize) -> f64 {
        let seen = depth as f64 + (tokens as f64 + 1.0) / 2.0;
        self.weight_bytes_per_step(sequences) / sequences as f64
            + self.kv_bytes_per_token * (seen + 1.0)
            + 2.0 * self.state_bytes
    }

    /// Multiply-adds of a whole case.
    pub fn multiply_adds(&self, case: &Case) -> Products {
        let (tokens, sequences, rows) = match case.test {
            Test::Prefill { tokens } => (tokens as f64, 1.0, 1.0),
            Test::Decode { .. } | Test::Verify { .. } => {
                let sequences = case.sequences() as f64;
                let tokens = case.timed_tokens() as f64 / sequences;
                (tokens, sequences, tokens)
            }
        };
        let linear = self.linear.times(tokens * sequences);
        let head = self.head.times(rows * sequences);
        let positions = tokens * case.depth as f64 + tokens * (tokens + 1.0) / 2.0;
        Products {
            bytes: linear.bytes + head.bytes,
            floats: linear.floats + head.floats + self.attention * positions * sequences,
        }
    }
}

/// Share of the routed experts that a token reads in the layer of tensor `name`.
fn active_share(spec: &ModelSpec, name: &str) -> f64 {
    let index = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    match index.and_then(|index| spec.layers.get(index)).map(|layer| layer.ffn) {
        Some(Ffn::Moe(moe)) => moe.top_k as f64 / moe.experts.max(1) as f64,
        _ => 1.0,
    }
}

/// Queries with keys, and weights with values.
fn attention_products(spec: &ModelSpec) -> f64 {
    let layers = spec.layers.iter().filter_map(|layer| layer.mixer.attention());
    layers.map(|a| 2.0 * (a.heads * a.head_dim) as f64).sum()
}

/// The delta rule reads its state with the key, updates it, and reads it with the query.
fn delta_products(spec: &ModelSpec) -> f64 {
    let products = |layer: &LayerSpec| match layer.mixer {
        Mixer::GatedDelta(d) => 3.0 * (d.value_heads * d.key_dim * d.value_dim) as f64,
        Mixer::Attention(_) => 0.0,
    };
    spec.layers.iter().map(products).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() -> Work {
        Work {
            shared_bytes: 1000.0,
            experts: vec![Stack { bytes: 800.0, active: 0.25 }],
            linear: Products { bytes: 10.0, floats: 1.0 },
            head: Products { bytes: 0.0, floats: 100.0 },
            attention: 2.0,
            kv_bytes_per_token: 8.0,
            state_bytes: 50.0,
        }
    }

    #[test]
    fn a_batch_shares_weights_and_wakes_more_experts() {
        assert_eq!(work().weight_bytes_per_step(1), 1200.0);
        assert_eq!(work().weight_bytes_per_step(2), 1000.0 + 800.0 * (1.0 - 0.75 * 0.75));
        // Two tokens see 101 and 102 positions and write one.
        assert_eq!(work().bytes_per_token(100, 2, 1), 1200.0 + 8.0 * 102.5 + 100.0);
        assert!(work().bytes_per_token(0, 1, 64) < work().bytes_per_token(0, 1, 1) / 3.0);
    }

    #[test]
    fn a_prefill_has_one_row_of_logits_and_decoding_one_for_each_token() {
        let prefill = work().multiply_adds(&Case { test: Test::Prefill { tokens: 4 }, depth: 10 });
        assert_eq!(prefill, Products { bytes: 40.0, floats: 4.0 + 100.0 + 2.0 * (40.0 + 10.0) });
        let decode = Case { test: Test::Decode { tokens: 4, sequences: 3 }, depth: 10 };
        let expected = Products { bytes: 120.0, floats: 12.0 + 1200.0 + 2.0 * 50.0 * 3.0 };
        assert_eq!(work().multiply_adds(&decode), expected);
    }
}
