//! Quantisation methods seen from the model: factors that are folded in leave its function alone, and what is searched or
//! scaled comes closer to f32 than what is rounded.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{KV_F32, fixture, load_with, logits, shared_fixture};
use basert_convert::{Importance, Method, Options as ConvertOptions, Silent, convert, with_source};
use basert_engine::Options;
use basert_format::BaseFile;

/// Importance in which columns differ by factors up to 2^24, in each expert's `down` in another way.
fn uneven(source: &Path) -> Importance {
    let square = |i: usize| 4f32.powi((i * 7 % 13) as i32 - 6);
    with_source(source, &ConvertOptions::default(), |model| {
        let weights = model.spec.tensors().into_iter().filter_map(|tensor| {
            let squares: Vec<f32> = match tensor.shape[..] {
                [_, cols] if !tensor.name.starts_with("embed") => (0..cols).map(square).collect(),
                [experts, _, cols] if tensor.name.contains("down_exps") => {
                    (0..experts * cols).map(square).collect()
                }
                [experts, _, cols] if tensor.name.contains("_exps") => {
                    (0..experts * cols).map(|i| square(i % cols) * (1 + i / cols) as f32).collect()
                }
                _ => return None,
            };
            Some((tensor.name, squares))
        });
        Importance::new(&model.spec, 1, weights.collect::<BTreeMap<_, _>>()).unwrap()
    })
    .unwrap()
}

/// A tensor of the converted file, decoded.
fn values(path: &Path, name: &str) -> Vec<f32> {
    let file = BaseFile::open(path).unwrap();
    let tensor = file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    let mut values = vec![0.0; tensor.shape.iter().product::<u64>() as usize];
    tensor.encoding.decode(tensor.data, values.len(), 0, &mut values).unwrap();
    values
}

/// Largest factor between two vectors' elements.
fn spread(before: &[f32], after: &[f32]) -> f32 {
    let factor = |(before, after): (&f32, &f32)| (before / after).abs().max((after / before).abs());
    before.iter().zip(after).filter(|(b, a)| **b != 0.0 && **a != 0.0).map(factor).fold(1.0, f32::max)
}

/// Root mean squared difference, relative to the root mean square of the reference about its mean.
fn distance(reference: &[f32], other: &[f32]) -> f64 {
    let mean = reference.iter().map(|&v| f64::from(v)).sum::<f64>() / reference.len() as f64;
    let squares: f64 = reference.iter().zip(other).map(|(r, o)| f64::from(r - o).powi(2)).sum();
    let energy: f64 = reference.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum();
    (squares / energy).sqrt()
}

/// Every consumer of a scaled activation must be scaled, float routers and gates too, heads in GQA order and experts one by
/// one: a single one forgotten changes the logits out of recognition, since they differ by factors of several.
#[test]
fn factors_that_are_folded_in_leave_the_function_alone() {
    let mut sources: Vec<_> =
        ["llama-tiny", "qwen3-dense-tiny", "qwen3-moe-tiny", "qwen35-dense-tiny", "toy-gate"]
            .map(fixture)
            .to_vec();
    sources.extend(shared_fixture("qwen35-moe-tiny"));
    let ids: Vec<u32> = (0..60).map(|i| i * 37 % 256).collect();
    for source in sources {
        let name = source.display();
        let folder = tempfile::tempdir().unwrap();
        let run = |file: &str, options: ConvertOptions| {
            let path = folder.path().join(file);
            let report =
                convert(&source, &path, &options, &mut Silent).unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut engine = load_with(&path, Options { kv: KV_F32, dequantize: true, ..Options::default() });
            (report, logits(&mut engine, &ids, &[64]), path)
        };
        let q8 = |method, importance| ConvertOptions {
            target: "base-q8".parse().unwrap(),
            group: Some(32),
            method: Some(method),
            importance,
            ..ConvertOptions::default()
        };
        let f32 = ConvertOptions { target: "f32".parse().unwrap(), ..ConvertOptions::default() };
        let (_, exact, before) = run("f32", f32);
        let (_, rounded, _) = run("rtn", q8(Method::Rtn, None));
        let (report, scaled, after) = run("awq", q8(Method::Awq, Some(uneven(&source))));
        let norm = |path: &Path| values(path, "layers.0.post_attn_norm.weight");
        let factor = spread(&norm(&before), &norm(&after));
        assert!(factor > 1.5, "{name}: the largest factor is {factor}");
        assert_eq!(values(&before, "final_norm.weight"), values(&after, "final_norm.weight"), "{name}");
        for tensor in &report.tensors {
            let trunk = tensor.name.starts_with("layers.");
            let fixed =
                ["q_norm", "k_norm", "conv1d", "A_log", "dt_bias"].iter().any(|n| tensor.name.contains(n));
            assert_eq!(tensor.scaled, trunk && !fixed, "{name}: {}", tensor.name);
        }
        let (rounded, scaled) = (distance(&exact, &rounded), distance(&exact, &scaled));
        // Made-up importance makes quantisation worse than it need be, though nothing like a wrong function.
        assert!(scaled < 4.2 * rounded && scaled < 0.15, "{name}: {scaled:.4} against {rounded:.4}");
    }
}

#[test]
fn scaled_conversions_do_not_depend_on_threads() {
    let source = fixture("qwen3-moe-tiny");
    let importance = uneven(&source);
    let folder = tempfile::tempdir().unwrap();
    let file = |threads: usize| {
        let path = folder.path().join(threads.to_string());
        let options = ConvertOptions {
            method: Some(Method::Awq),
            importance: Some(importance.clone()),
            threads: Some(threads),
            created: Some(0),
            ..ConvertOptions::default()
        };
        convert(&source, &path, &options, &mut Silent).unwrap();
        std::fs::read(path).unwrap()
    };
    let one = file(1);
    assert!(one == file(3));
}
