//! The catalog of geometries against what is known about the models.

use basert_model::catalog::Catalog;
use basert_model::{Arch, LayerType, ModelSpec};

#[test]
fn published_sizes_follow_from_the_geometries() {
    // Billions of weights, from the models' names.
    let cases = [
        ("qwen3-0.6b", Arch::Qwen, 0.596),
        ("qwen3-30b-a3b", Arch::Qwen3Moe, 30.5),
        ("qwen3.5-0.8b", Arch::Qwen35, 0.75),
        ("qwen3.5-4b", Arch::Qwen35, 4.2),
        ("qwen3.5-27b", Arch::Qwen35, 26.9),
        ("qwen3.5-35b-a3b", Arch::Qwen35Moe, 34.7),
        ("llama-3.1-8b", Arch::Llama, 8.03),
    ];
    let catalog = Catalog::load().unwrap();
    for (id, arch, billions) in cases {
        let settled = catalog.get(id).unwrap().config().unwrap();
        assert_eq!(settled.arch, arch);
        let spec = ModelSpec::new(settled.arch, &settled.config).unwrap();
        let weights = spec.tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum::<usize>() as f64;
        assert!((weights / 1e9 / billions - 1.0).abs() < 0.01, "{id}: {weights}");
    }
}

#[test]
fn what_is_not_verified_is_named_and_not_guessed() {
    let catalog = Catalog::load().unwrap();
    assert_eq!(catalog.iter().count(), 89);
    let why = |id: &str| catalog.get(id).and_then(|geometry| geometry.config()).unwrap_err().to_string();
    for (id, words) in [
        ("qwen3-coder-30b-a3b", "`moe.moe_intermediate_size` is not verified"),
        ("smollm2-135m", "`rope.rope_theta` is not verified"),
        ("gemma-3-4b", "architecture `gemma3_text` is not supported"),
        ("qwen3-next-80b-a3b", "interleaved per key head unlike Qwen3.5's, is not supported"),
        ("no-such-model", "usable are qwen3.5-27b"),
    ] {
        assert!(why(id).contains(words), "{id}: {}", why(id));
    }
    let settled = catalog.get("qwen3.5-2b").unwrap().config().unwrap();
    assert!(settled.config.tie_word_embeddings);
    assert!(
        settled
            .assumptions
            .iter()
            .any(|a| a.contains("tie_word_embeddings is taken as true, that of qwen3.5-4b"))
    );
}

#[test]
fn a_cut_keeps_the_first_layers() {
    let catalog = Catalog::load().unwrap();
    let mut settled = catalog.get("qwen3.5-35b-a3b").unwrap().config().unwrap();
    settled.cut(4).unwrap();
    let hybrid = settled.config.hybrid.as_ref().unwrap();
    assert_eq!(
        hybrid.layer_types,
        [LayerType::Linear, LayerType::Linear, LayerType::Linear, LayerType::Full]
    );
    assert_eq!(ModelSpec::new(settled.arch, &settled.config).unwrap().layers.len(), 4);
    for layers in [0, 5, 41] {
        assert!(settled.cut(layers).unwrap_err().to_string().contains("expected 1 to 4"));
    }
}
