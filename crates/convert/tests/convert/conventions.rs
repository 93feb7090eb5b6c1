//! What each source stores differently comes out alike, value for value.

use crate::common::{self, Tensors, Toy, converted, decoded, noise, options, payloads, refused};
use basert_convert::{ConvertError, Options, Profile};
use serde_json::json;

#[test]
fn zero_centred_norms_get_their_one_and_the_gated_norm_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let toy = Toy::hybrid(6, false);
    let (file, _) = converted(&toy.write(dir.path(), "src"), dir.path(), "out", &options("base-q4"));
    let plus_one = |name: &str| toy.values(name).iter().map(|w| w + 1.0).collect::<Vec<_>>();
    for (canonical, source) in [
        ("layers.0.input_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("layers.2.post_attn_norm.weight", "model.layers.2.post_attention_layernorm.weight"),
        ("layers.3.self_attn.q_norm.weight", "model.layers.3.self_attn.q_norm.weight"),
        ("layers.3.self_attn.k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
        ("final_norm.weight", "model.norm.weight"),
    ] {
        assert_eq!(decoded(&file, canonical), plus_one(source), "{canonical}");
    }
    let gated = "layers.0.linear_attn.norm.weight";
    assert_eq!(decoded(&file, gated), toy.values(&format!("model.{gated}")));
    assert_eq!(file.tensor(gated).unwrap().entry.dtype().name(), "f32");
}

#[test]
fn llama_rotary_rows_become_neighbours_in_q_and_k_only() {
    let dir = tempfile::tempdir().unwrap();
    let toy = Toy::llama();
    let (file, _) = converted(&toy.write(dir.path(), "src"), dir.path(), "out", &options("f32"));
    for (name, rows) in [("q", 64), ("k", 32)] {
        let name = format!("layers.0.self_attn.{name}_proj.weight");
        let (source, out) = (toy.values(&format!("model.{name}")), decoded(&file, &name));
        for head in 0..rows / 16 {
            for j in 0..8 {
                for k in 0..2 {
                    let (to, from) = (head * 16 + 2 * j + k, head * 16 + k * 8 + j);
                    assert_eq!(out[to * 64..(to + 1) * 64], source[from * 64..(from + 1) * 64]);
                }
            }
        }
    }
    for name in
        ["layers.0.self_attn.v_proj.weight", "layers.0.self_attn.o_proj.weight", "embed_tokens.weight"]
    {
        assert_eq!(decoded(&file, name), toy.values(&format!("model.{name}")));
    }
    let norm = decoded(&file, "layers.0.input_norm.weight");
    assert_eq!(norm, toy.values("model.layers.0.input_layernorm.weight"));
}

/// Field case: llama.cpp's value-head order, decay form, draft block and rotary metadata, at ratios 1, 2 and
/// 3.
#[test]
fn gguf_and_hugging_face_forms_of_a_hybrid_are_the_same_file() {
    for (value_heads, moe) in [(2, false), (4, true), (6, false), (6, true)] {
        let dir = tempfile::tempdir().unwrap();
        let toy = Toy::hybrid(value_heads, moe).with_draft(moe);
        let hf = toy.write(dir.path(), "src");
        let gguf = common::gguf::write_hybrid(&toy, dir.path(), "src.gguf");
        let mut options = options("f32");
        options.allow_missing_tokenizer = true;
        let (hf, hf_report) = converted(&hf, dir.path(), "hf", &options);
        let (gguf, report) = converted(&gguf, dir.path(), "gguf", &options);

        let (mut from_hf, mut from_gguf) = (payloads(&hf), payloads(&gguf));
        for layer in 0..3 {
            // The way through -exp() and ln() costs a last bit.
            let name = format!("layers.{layer}.linear_attn.A_log");
            let (a, b) = (decoded(&hf, &name), decoded(&gguf, &name));
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} {b:?}");
            from_hf.remove(&name);
            from_gguf.remove(&name);
        }
        assert_eq!(from_hf.keys().collect::<Vec<_>>(), from_gguf.keys().collect::<Vec<_>>());
        for (name, payload) in &from_hf {
            assert!(*payload == from_gguf[name], "{name} differs at {value_heads} value heads");
        }
        assert_eq!(report.draft, hf_report.draft);
        assert!(report.draft.tensors > 0);

        let config = &gguf.header().config;
        assert_eq!(config["num_hidden_layers"], json!(4));
        assert_eq!(config["mtp_num_hidden_layers"], json!(1));
        assert_eq!(config["partial_rotary_factor"], json!(0.25));
        assert_eq!(config["layer_types"], hf.header().config["layer_types"]);
        assert_eq!(gguf.header().arch, hf.header().arch);
    }
}

/// The same experts as `Toy::hybrid(_, true)` in another spelling.
fn respelled(toy: &Toy, suffix: &str, spell: impl Fn(&mut Tensors, &str, &[f32], &[f32], &[f32])) -> Toy {
    let mut toy = toy.clone();
    for layer in 0..4 {
        let p = format!("model.layers.{layer}.mlp.");
        let fused = toy.tensors.remove(&format!("{p}experts.gate_up_proj")).unwrap().values;
        let down = toy.tensors.remove(&format!("{p}experts.down_proj")).unwrap().values;
        let half = |skip: usize| {
            (0..4)
                .flat_map(|e| fused[(e * 64 + skip) * 64..(e * 64 + skip + 32) * 64].to_vec())
                .collect::<Vec<_>>()
        };
        spell(&mut toy.tensors, &p, &half(0), &half(32), &down);
        if suffix == ".weight" {
            let names: Vec<String> = toy
                .tensors
                .keys()
                .filter(|name| name.starts_with(&format!("{p}experts.")))
                .cloned()
                .collect();
            for name in names.into_iter().filter(|name| !name.ends_with(".weight")) {
                let tensor = toy.tensors.remove(&name).unwrap();
                toy.tensors.insert(format!("{name}.weight"), tensor);
            }
        }
    }
    toy
}

fn insert(tensors: &mut Tensors, name: String, shape: &[usize], values: &[f32]) {
    let mut tensor = noise("", shape);
    tensor.values.copy_from_slice(values);
    tensors.insert(name, tensor);
}

/// Field case: fused, stacked and per-expert layouts, with and without `.weight`. The fused matrix is square,
/// so that a transposed or wrongly split one passes every shape check.
#[test]
fn every_spelling_of_the_experts_gives_the_same_payloads() {
    let dir = tempfile::tempdir().unwrap();
    let toy = Toy::hybrid(6, true);
    let per_expert = |tensors: &mut Tensors, p: &str, gate: &[f32], up: &[f32], down: &[f32]| {
        for e in 0..4 {
            let part = |all: &[f32]| all[e * 2048..(e + 1) * 2048].to_vec();
            insert(tensors, format!("{p}experts.{e}.gate_proj.weight"), &[32, 64], &part(gate));
            insert(tensors, format!("{p}experts.{e}.up_proj.weight"), &[32, 64], &part(up));
            insert(tensors, format!("{p}experts.{e}.down_proj.weight"), &[64, 32], &part(down));
        }
    };
    let stacked = |tensors: &mut Tensors, p: &str, gate: &[f32], up: &[f32], down: &[f32]| {
        insert(tensors, format!("{p}experts.gate_proj"), &[4, 32, 64], gate);
        insert(tensors, format!("{p}experts.up_proj"), &[4, 32, 64], up);
        insert(tensors, format!("{p}experts.down_proj"), &[4, 64, 32], down);
    };
    let fused = |tensors: &mut Tensors, p: &str, gate: &[f32], up: &[f32], down: &[f32]| {
        let mut both = Vec::new();
        for e in 0..4 {
            both.extend_from_slice(&gate[e * 2048..(e + 1) * 2048]);
            both.extend_from_slice(&up[e * 2048..(e + 1) * 2048]);
        }
        insert(tensors, format!("{p}experts.gate_up_proj"), &[4, 64, 64], &both);
        insert(tensors, format!("{p}experts.down_proj"), &[4, 64, 32], down);
    };
    let spellings = [
        ("fused", toy.clone()),
        ("fused_suffixed", respelled(&toy, ".weight", fused)),
        ("per_expert", respelled(&toy, "", per_expert)),
        ("stacked", respelled(&toy, "", stacked)),
    ];
    let sources: Vec<_> = spellings
        .iter()
        .map(|(name, toy)| (*name, toy.write(dir.path(), name)))
        .chain([("switch_mlp", common::mlx::export(&toy).write(dir.path(), "mlx"))])
        .collect();
    // Rules of a profile are matched against canonical names, so they hold in every spelling as well.
    let rules = r#"{"name": "p", "arch": "a", "rules": [
        {"pattern": "**.ffn_{gate,up}_exps.weight", "dtype": "base_q3"},
        {"pattern": "**.ffn_down_exps.weight", "dtype": "base_q5", "group_size": 32},
        {"pattern": "**", "dtype": "base_q8"}]}"#;
    let by_name = Options { profile: Some(Profile::parse(rules, "p").unwrap()), ..options("auto") };
    for (kind, options, experts) in [
        // Down has rows of 32, so the group of 64 that was asked for cannot be.
        ("q4", options("base-q4"), ["base_q4"; 3]),
        ("profile", by_name, ["base_q3", "base_q3", "base_q5"]),
    ] {
        let mut first = None;
        for (name, source) in &sources {
            let (file, _) = converted(source, dir.path(), &format!("{name}-{kind}"), &options);
            let payloads = payloads(&file);
            assert_eq!(payloads["layers.0.ffn_gate_exps.weight"].1, [4, 32, 64]);
            assert_eq!(payloads["layers.0.ffn_down_exps.weight"].1, [4, 64, 32]);
            let found =
                ["gate", "up", "down"].map(|m| payloads[&format!("layers.0.ffn_{m}_exps.weight")].0.as_str());
            assert_eq!(found, experts, "{name}");
            let first = first.get_or_insert(payloads.clone());
            assert!(*first == payloads, "{name} differs");
        }
    }
}

#[test]
fn gate_and_up_are_not_swapped() {
    let dir = tempfile::tempdir().unwrap();
    let toy = Toy::hybrid(2, true);
    let (file, _) = converted(&toy.write(dir.path(), "src"), dir.path(), "out", &options("f32"));
    let fused = toy.values("model.layers.1.mlp.experts.gate_up_proj");
    let expert = 2 * 64 * 64;
    assert_eq!(
        decoded(&file, "layers.1.ffn_gate_exps.weight")[2 * 2048..3 * 2048],
        fused[expert..expert + 2048]
    );
    assert_eq!(
        decoded(&file, "layers.1.ffn_up_exps.weight")[2 * 2048..3 * 2048],
        fused[expert + 2048..expert + 4096]
    );
}

/// Field case: head counts taken from class defaults. The file's counts hold, and tensors must agree with
/// them.
#[test]
fn head_counts_of_the_file_are_checked_against_the_tensors() {
    let dir = tempfile::tempdir().unwrap();
    for value_heads in [2, 4, 6] {
        let toy = Toy::hybrid(value_heads, false);
        let name = format!("heads{value_heads}");
        let (file, _) = converted(&toy.write(dir.path(), &name), dir.path(), &name, &options("base-q4"));
        let a = file.tensor("layers.0.linear_attn.in_proj_a.weight").unwrap();
        assert_eq!(a.shape, [value_heads as u64, 64]);
    }
    let mut toy = Toy::hybrid(4, false);
    toy.config["linear_num_value_heads"] = json!(6);
    let error = refused(&toy.write(dir.path(), "wrong"), &options("base-q4"));
    assert!(matches!(error, ConvertError::Shape { .. }), "{error}");

    // 256 rows where an ungated projection would have 128: only the gated layout is Qwen3.5.
    let mut toy = Toy::hybrid(4, false);
    toy.tensors.insert("model.layers.3.self_attn.q_proj.weight".to_owned(), noise("q", &[128, 64]));
    let error = refused(&toy.write(dir.path(), "ungated"), &options("base-q4")).to_string();
    assert!(
        error.contains("q_proj.weight` has shape [128, 64], but the configuration implies [256, 64]"),
        "{error}"
    );
}

#[test]
fn nesting_and_prefixes_do_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let toy = Toy::hybrid(6, false);
    let (plain, _) = converted(&toy.write(dir.path(), "plain"), dir.path(), "plain", &options("base-q4"));
    let mut wrapped = toy.clone();
    wrapped.config = json!({"model_type": "qwen3_5", "text_config": {"text_config": toy.config}});
    let rename = |name: &String| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.clone(),
    };
    wrapped.tensors = toy.tensors.iter().map(|(name, tensor)| (rename(name), tensor.clone())).collect();
    let (wrapped, _) =
        converted(&wrapped.write(dir.path(), "wrapped"), dir.path(), "wrapped", &options("base-q4"));
    assert!(payloads(&plain) == payloads(&wrapped));
    assert_eq!(plain.header().config, wrapped.header().config);
}
