//! Published cache sizes follow from the geometries, for every kind of mixer.

use basert_model::ModelSpec;
use basert_model::catalog::{Catalog, Grade};
use basert_model::footprint::{Footprint, State};
use basert_model::plan::ElementSize;
use basert_model::record::{Format, Subject, kv_record};
use serde_json::Value;

const F16: ElementSize = ElementSize::F16;
const Q8: ElementSize = ElementSize::Q8;
const Q4: ElementSize = ElementSize::Q4;
const GIB: f64 = (1u64 << 30) as f64;

fn footprint(id: &str) -> Footprint {
    Catalog::load().unwrap().get(id).unwrap().footprint().unwrap()
}

/// The sizes that were computed elsewhere and are kept beside the facts.
fn computed() -> Vec<(String, Value)> {
    let text = include_str!("../../data/geometry.json");
    let data: Value = serde_json::from_str(text).unwrap();
    let models = data["models"].as_array().unwrap().iter();
    models.map(|m| (m["id"].as_str().unwrap().to_owned(), m["computed"].clone())).collect()
}

#[test]
fn all_geometries_give_the_sizes_that_others_computed() {
    let models = computed();
    assert_eq!(models.len(), 89);
    for (id, computed) in models {
        let found = footprint(&id);
        assert_eq!(found.bytes_per_token(F16, F16), computed["kv_bytes_per_token_bf16"], "{id}");
        let full_stack = found.full_stack_bytes_per_token(F16, F16);
        assert_eq!(full_stack, computed["full_stack_bytes_per_token_bf16"], "{id}");
        assert_eq!(found.state.bytes().filter(|b| *b > 0), computed["state_bytes_f32"].as_u64(), "{id}");
        for (name, k, v) in [("f16", F16, F16), ("q8", Q8, Q8), ("q4", Q4, Q4), ("k8v4", Q8, Q4)] {
            let Some(bytes) = computed["bytes_per_token"][name].as_f64() else {
                assert!(found.is_latent() && name == "k8v4", "{id} {name}");
                continue;
            };
            assert_eq!(found.bytes_per_token(k, v) as f64, bytes, "{id} {name}");
            for (tokens, gib) in computed["kv_gib"].as_object().unwrap() {
                let bytes = found.kv_bytes(tokens.parse().unwrap(), k, v) as f64;
                let expected = gib[name].as_f64().unwrap();
                assert!((bytes / GIB - expected).abs() <= 5.1e-5, "{id} {name} {tokens}: {}", bytes / GIB);
            }
        }
    }
}

#[test]
fn published_numbers_of_the_hybrid_and_its_neighbours() {
    let hybrid = footprint("qwen3.5-35b-a3b");
    assert_eq!(hybrid.bytes_per_token(F16, F16), 20_480);
    assert_eq!(hybrid.full_stack_bytes_per_token(F16, F16), 81_920);
    assert_eq!(hybrid.reduction(), 4.0);
    assert_eq!(hybrid.kv_bytes(131_072, F16, F16) as f64 / GIB, 2.5);
    assert_eq!(hybrid.kv_bytes(262_144, F16, F16) as f64 / GIB, 5.0);
    assert_eq!(hybrid.kv_bytes(262_144, Q8, Q4) as f64 / GIB, 2.03125);
    // Codes alone, without the scales of the blocks: 8 and 4 bits an element.
    let bits = |bytes| ElementSize { bytes, per: 2 };
    assert_eq!(hybrid.kv_bytes(262_144, bits(2), bits(1)) as f64 / GIB, 1.875);
    assert_eq!(hybrid.state.bytes(), Some(65_863_680));
    assert_eq!(footprint("qwen3-30b-a3b").bytes_per_token(F16, F16), 98_304);
}

#[test]
fn hybrids_estimated_as_full_attention() {
    // What is not verified is said and not taken for nothing.
    assert_eq!(footprint("granite-4.0-h-1b").state, State::Unverified);
    let State::Known { conv, .. } = footprint("falcon-h1-7b").state else { panic!() };
    assert_eq!(conv, None);
    // A model that is run here has the footprint of its geometry.
    let catalog = Catalog::load().unwrap();
    for id in catalog.usable() {
        let geometry = catalog.get(id).unwrap();
        let settled = geometry.config().unwrap();
        let spec = ModelSpec::new(settled.arch, &settled.config).unwrap();
        assert_eq!(Footprint::of(&spec), geometry.footprint().unwrap(), "{id}");
        assert_eq!(spec.kv_bytes_per_token(Q8, Q4), Footprint::of(&spec).bytes_per_token(Q8, Q4), "{id}");
        assert_eq!(Some(spec.state_bytes_per_sequence()), Footprint::of(&spec).state.bytes(), "{id}");
    }
}

#[test]
fn grades_follow_from_what_was_read() {
    let catalog = Catalog::load().unwrap();
    for (id, grade) in [
        ("qwen3.5-35b-a3b", Grade::A),
        ("minimax-m2.5", Grade::A),
        ("qwen3.5-2b", Grade::B),
        ("kimi-linear-48b-a3b", Grade::B),
        ("llama-3.2-1b", Grade::C),
        ("lfm2-1.2b", Grade::C),
    ] {
        assert_eq!(catalog.get(id).unwrap().grade(), grade, "{id}");
    }
    assert!(catalog.iter().all(|geometry| !geometry.sources().is_empty()));
}

#[test]
fn a_record_carries_its_derivation_and_no_measurement() {
    let (f16, q8, q4) =
        (Format { name: "f16", size: F16 }, Format { name: "q8", size: Q8 }, Format { name: "q4", size: Q4 });
    let subject = Subject {
        id: "qwen3.5-35b-a3b".to_owned(),
        name: "Qwen/Qwen3.5-35B-A3B".to_owned(),
        sources: vec!["a copy".to_owned()],
        verification: "A".to_owned(),
        draft_layers: Some(1),
    };
    let record = kv_record(&subject, &footprint("qwen3.5-35b-a3b"), (f16, f16), 131_072, None);
    assert_eq!(record["id"], "kv-efficiency/qwen3-5-35b-a3b-hybrid-kv-128k");
    let basis = record["kv_bytes_basis"].as_str().unwrap();
    assert!(basis.starts_with(
        "10 layers x 2 KV heads x (K 256 elements x 2 bytes f16 + V 256 elements x 2 bytes f16) = 20480 bytes per token; \
         and once per sequence 30 recurrent layers x (524288 + 24576) elements x 4 bytes = 65863680"
    ), "{basis}");
    assert_eq!((&record["kv_gib"], &record["full_stack_gib"]), (&2.5.into(), &10.0.into()));
    assert_eq!(record["mtp_kv_bytes_per_token"], 2048);
    assert!(record["measured_memory_gb"].is_null() && record["measured_decode_tok_s"].is_null());
    let narrow = kv_record(&subject, &footprint("qwen3.5-35b-a3b"), (q8, q4), 262_144, None);
    assert_eq!(narrow["id"], "kv-efficiency/qwen3-5-35b-a3b-hybrid-kv-q8-q4-256k");
    assert_eq!(narrow["kv_gib"], 2.03125);
    assert_eq!(narrow["v_format"]["block_bytes"], 18);
    let window = kv_record(&subject, &footprint("gemma-3-27b"), (f16, f16), 32_768, None);
    assert!(window["kv_bytes_basis"].as_str().unwrap().contains("for the last 1024 tokens only, 52 layers"));
    assert_eq!(window["sliding_cap_bytes"], 52u64 * 16 * 256 * 2 * 1024);
    let latent = kv_record(&subject, &footprint("deepseek-v3"), (q8, q8), 32_768, None);
    assert!(latent["v_format"].is_null());
}
