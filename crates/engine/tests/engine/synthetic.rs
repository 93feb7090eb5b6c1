//! Random bundles run: finite logits that depend on the tokens, the same bytes on any number of threads.

use std::path::Path;

use crate::common::{KV_F32, fixture, load, logits};
use basert_convert::{Options as ConvertOptions, Silent, Synthetic, synthesize};
use basert_format::Output;
use basert_model::Config;

/// The geometry of a golden model.
fn geometry(name: &str) -> Synthetic {
    let config = std::fs::read(fixture(name).join("config.json")).unwrap();
    let (arch, mut config) = Config::from_hf(&serde_json::from_slice(&config).unwrap(), None).unwrap();
    config.mtp_num_hidden_layers = 0;
    Synthetic { name: name.to_owned(), arch, config, assumptions: Vec::new() }
}

fn options(target: &str, threads: usize) -> ConvertOptions {
    ConvertOptions { target: target.parse().unwrap(), threads: Some(threads), ..ConvertOptions::default() }
}

fn write(model: &Synthetic, path: &Path, target: &str, threads: usize) {
    synthesize(model, &Output::new(path), &options(target, threads), &mut Silent).unwrap();
}

#[test]
fn every_family_and_target_gives_finite_spread_logits() {
    let folder = tempfile::tempdir().unwrap();
    let models = ["llama-tiny", "qwen3-dense-tiny", "qwen3-moe-tiny", "qwen35-dense-tiny", "toy-moe"];
    let targets = ["auto", "base-q2", "base-q3", "base-q5", "base-q6", "base-q8", "bf16", "f16", "f32"];
    for name in models {
        let model = geometry(name);
        for target in targets {
            let path = folder.path().join(format!("{name}-{target}.base"));
            write(&model, &path, target, 2);
            let ids: Vec<u32> = (0..200).map(|i| i * 37 % model.config.vocab_size as u32).collect();
            let logits = logits(&mut load(&path, KV_F32), &ids, &[64]);
            let rows: Vec<&[f32]> = logits.chunks_exact(model.config.vocab_size).collect();
            for row in &rows {
                let mean = row.iter().sum::<f32>() / row.len() as f32;
                let deviation =
                    (row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / row.len() as f32).sqrt();
                assert!((0.2..5.0).contains(&deviation), "{name} {target}: logits deviate by {deviation}");
            }
            let top = |row: &&[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
            let different: std::collections::HashSet<_> = rows.iter().map(top).collect();
            assert!(different.len() > 20, "{name} {target}: {} different tokens", different.len());
        }
    }
}

#[test]
fn the_same_geometry_gives_the_same_bytes_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    // 3 MiB of embeddings are several chunks.
    let mut model = geometry("toy-moe");
    model.config.vocab_size = 100_000;
    let mut files = [1, 2, 3, 5].map(|threads| {
        let path = folder.path().join(format!("{threads}.base"));
        write(&model, &path, "auto", threads);
        std::fs::read(&path).unwrap()
    });
    assert!(files.iter_mut().all(|file| std::mem::take(file) == {
        let path = folder.path().join("again.base");
        write(&model, &path, "auto", 2);
        std::fs::read(&path).unwrap()
    }));
}
