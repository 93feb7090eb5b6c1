//! A model's layers in words.

use basert_model::{Ffn, LayerSpec, Moe};

/// Token mixers: `10 full-attention + 30 linear`.
pub fn mixers(layers: &[LayerSpec]) -> String {
    let attention = layers.iter().filter(|l| l.mixer.attention().is_some()).count();
    in_words(&[(attention, "full-attention"), (layers.len() - attention, "linear")])
}

/// Feed-forward blocks: `28 dense`, `40 mixture-of-experts (8 of 256 experts per token, and a shared one)`.
pub fn feed_forward(layers: &[LayerSpec]) -> String {
    let moe: Vec<&Moe> = layers.iter().filter_map(moe).collect();
    let words = in_words(&[(layers.len() - moe.len(), "dense"), (moe.len(), "mixture-of-experts")]);
    match moe.first() {
        None => words,
        Some(moe) => {
            let shared = if moe.shared_intermediate.is_some() { ", and a shared one" } else { "" };
            format!("{words} ({} of {} experts per token{shared})", moe.top_k, moe.experts)
        }
    }
}

fn moe(layer: &LayerSpec) -> Option<&Moe> {
    match &layer.ffn {
        Ffn::Moe(moe) => Some(moe),
        Ffn::Dense { .. } => None,
    }
}

/// Parts that occur, joined by ` + `.
pub fn in_words(parts: &[(usize, &str)]) -> String {
    let words: Vec<String> =
        parts.iter().filter(|p| p.0 > 0).map(|(n, what)| format!("{n} {what}")).collect();
    words.join(" + ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use basert_model::{Attention, GatedDelta, Mixer, Rope, RopePairing, RopeScaling};

    const DELTA: Mixer = Mixer::GatedDelta(GatedDelta {
        key_heads: 1,
        value_heads: 1,
        key_dim: 1,
        value_dim: 1,
        conv_kernel: 4,
    });
    const ATTENTION: Mixer = Mixer::Attention(Attention {
        heads: 1,
        kv_heads: 1,
        head_dim: 2,
        rope: Rope { dims: 2, theta: 1e4, pairing: RopePairing::Half, scaling: RopeScaling::None },
        qk_norm: false,
        output_gate: false,
        qkv_bias: false,
    });

    #[test]
    fn layers_in_words() {
        let dense = Ffn::Dense { intermediate: 1 };
        let moe = |shared_intermediate| {
            Ffn::Moe(Moe { experts: 256, top_k: 8, intermediate: 1, shared_intermediate, renormalise: true })
        };
        let layer = |mixer, ffn| LayerSpec { mixer, ffn };
        let cases = [
            (vec![layer(ATTENTION, dense); 28], "28 full-attention", "28 dense"),
            (
                vec![layer(DELTA, moe(Some(1))), layer(ATTENTION, moe(Some(1)))],
                "1 full-attention + 1 linear",
                "2 mixture-of-experts (8 of 256 experts per token, and a shared one)",
            ),
            (
                vec![layer(ATTENTION, dense), layer(ATTENTION, moe(None))],
                "2 full-attention",
                "1 dense + 1 mixture-of-experts (8 of 256 experts per token)",
            ),
        ];
        for (layers, mixers_expected, ffn_expected) in cases {
            assert_eq!(
                (mixers(&layers), feed_forward(&layers)),
                (mixers_expected.into(), ffn_expected.into())
            );
        }
    }
}
