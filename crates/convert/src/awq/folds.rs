//! Where factors can go: pairs of what reads an activation and what makes it.
//!
//! Multiplying a column of every weight that reads an activation, and dividing by the same factor where the activation is
//! made, leaves the model's function as it is:
//!
//! | made by | read by |
//! |---|---|
//! | `input_norm` | q, k, v; of Gated DeltaNet qkv, z, a, b |
//! | `post_attn_norm` | gate, up; router, experts' and shared expert's gate and up, the shared expert's own gate |
//! | rows of `v_proj` and its bias | `o_proj`: one factor per KV channel, shared by the query heads that read it |
//! | `linear_attn.norm`, shared by all heads | `out_proj` |
//! | rows of `up_proj`, also per expert | `down_proj` |
//!
//! The output gate of attention, and the gates of SwiGLU and of the gated norm, multiply element by element, so a factor
//! passes through. `final_norm` is left alone: tied embeddings and draft layers read what it makes.

use basert_model::{Attention, Ffn, GatedDelta, Mixer, ModelSpec, Moe};

/// One set of factors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fold {
    /// Tensors that are divided.
    pub makers: Vec<Maker>,
    /// Weights whose columns are multiplied. The first one sees every token.
    pub readers: Vec<String>,
    /// Columns of every reader, of all experts together where each has factors of its own.
    pub columns: usize,
    /// Blocks of columns that are scaled independently: experts, else 1.
    pub blocks: usize,
    /// Which factor a column has.
    pub share: Share,
}

/// A tensor that is divided by the factors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    /// A vector, element by element.
    Elements(String),
    /// A matrix or stack, row by row.
    Rows(String),
}

/// Which factor a column has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Its own.
    Each,
    /// That of its KV head's channel.
    Heads {
        /// Query heads per KV head.
        queries: usize,
        /// Columns of a head.
        head_dim: usize,
    },
    /// That of its place in its head.
    Period(usize),
}

impl Share {
    /// The factor of column `column`.
    pub fn factor(self, column: usize) -> usize {
        match self {
            Share::Each => column,
            Share::Heads { queries, head_dim } => {
                column / (queries * head_dim).max(1) * head_dim + column % head_dim.max(1)
            }
            Share::Period(period) => column % period.max(1),
        }
    }
}

/// Every fold of a model's layers.
pub(crate) fn folds(spec: &ModelSpec) -> Vec<Fold> {
    let mut folds = Vec::new();
    for (index, layer) in spec.layers.iter().enumerate() {
        let p = format!("layers.{index}.");
        match &layer.mixer {
            Mixer::Attention(attention) => folds.extend(attention_folds(&p, attention, spec.hidden)),
            Mixer::GatedDelta(delta) => folds.extend(delta_folds(&p, delta, spec.hidden)),
        }
        match &layer.ffn {
            Ffn::Dense { intermediate } => {
                let m = format!("{p}mlp.");
                let readers = named(&m, &["gate_proj", "up_proj"]);
                folds.push(norm(format!("{p}post_attn_norm.weight"), readers, spec.hidden));
                folds.push(up_to_down(&m, *intermediate));
            }
            Ffn::Moe(moe) => folds.extend(moe_folds(&p, moe, spec.hidden)),
        }
    }
    folds
}

fn attention_folds(p: &str, attention: &Attention, hidden: usize) -> [Fold; 2] {
    let a = format!("{p}self_attn.");
    let readers = named(&a, &["q_proj", "k_proj", "v_proj"]);
    let mut makers = vec![Maker::Rows(format!("{a}v_proj.weight"))];
    if attention.qkv_bias {
        makers.push(Maker::Elements(format!("{a}v_proj.bias")));
    }
    let queries = attention.heads / attention.kv_heads.max(1);
    let values = Fold {
        makers,
        readers: named(&a, &["o_proj"]),
        columns: attention.heads * attention.head_dim,
        blocks: 1,
        share: Share::Heads { queries, head_dim: attention.head_dim },
    };
    [norm(format!("{p}input_norm.weight"), readers, hidden), values]
}

fn delta_folds(p: &str, delta: &GatedDelta, hidden: usize) -> [Fold; 2] {
    let d = format!("{p}linear_attn.");
    let readers = named(&d, &["in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"]);
    let out = Fold {
        makers: vec![Maker::Elements(format!("{d}norm.weight"))],
        readers: named(&d, &["out_proj"]),
        columns: delta.value_width(),
        blocks: 1,
        share: Share::Period(delta.value_dim),
    };
    [norm(format!("{p}input_norm.weight"), readers, hidden), out]
}

fn moe_folds(p: &str, moe: &Moe, hidden: usize) -> Vec<Fold> {
    let m = format!("{p}mlp.");
    let shared = format!("{m}shared_expert.");
    let mut readers = named(&m, &["gate"]);
    readers.extend(named(p, &["ffn_gate_exps", "ffn_up_exps"]));
    let mut folds = vec![Fold {
        makers: vec![Maker::Rows(format!("{p}ffn_up_exps.weight"))],
        readers: named(p, &["ffn_down_exps"]),
        columns: moe.experts * moe.intermediate,
        blocks: moe.experts,
        share: Share::Each,
    }];
    if let Some(intermediate) = moe.shared_intermediate {
        readers.extend(named(&m, &["shared_expert_gate"]));
        readers.extend(named(&shared, &["gate_proj", "up_proj"]));
        folds.push(up_to_down(&shared, intermediate));
    }
    folds.push(norm(format!("{p}post_attn_norm.weight"), readers, hidden));
    folds
}

fn norm(name: String, readers: Vec<String>, hidden: usize) -> Fold {
    Fold { makers: vec![Maker::Elements(name)], readers, columns: hidden, blocks: 1, share: Share::Each }
}

fn up_to_down(p: &str, intermediate: usize) -> Fold {
    Fold {
        makers: vec![Maker::Rows(format!("{p}up_proj.weight"))],
        readers: named(p, &["down_proj"]),
        columns: intermediate,
        blocks: 1,
        share: Share::Each,
    }
}

fn named(prefix: &str, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("{prefix}{name}.weight")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_share_factors_as_heads_share_what_they_read() {
        let heads = Share::Heads { queries: 2, head_dim: 3 };
        let factors: Vec<usize> = (0..12).map(|column| heads.factor(column)).collect();
        assert_eq!(factors, [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
        let period: Vec<usize> = (0..6).map(|column| Share::Period(2).factor(column)).collect();
        assert_eq!(period, [0, 1, 0, 1, 0, 1]);
        assert_eq!(Share::Each.factor(7), 7);
    }
}
