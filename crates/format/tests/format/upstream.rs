//! Files of the original converter, version 0.2.3, open and give what its own `inspect` says.

use std::fs;
use std::path::PathBuf;

use crate::common::open;
use basert_format::{BaseFile, LayerKind, SourceFormat};

/// The original's files lie beside the repository where its licence lets them; elsewhere there is nothing to
/// test.
fn fixtures() -> Option<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/base");
    if dir.is_dir() {
        return Some(dir);
    }
    assert!(
        std::env::var_os("BASERT_REQUIRE_FIXTURES").is_none_or(|value| value != "1"),
        "no {}",
        dir.display()
    );
    println!("skipped: no {}", dir.display());
    None
}

const MODELS: [&str; 4] =
    ["qwen35-dense-2l-base-q4", "qwen35-dense-2l-base-q8", "qwen35-dense-2l-bf16", "qwen35-moe-2l-base-q4"];

#[test]
fn numbers_are_those_of_the_originals_inspect() {
    let Some(dir) = fixtures() else { return };
    for model in MODELS {
        let file = BaseFile::open(&dir.join(format!("{model}.base"))).expect("valid");
        let header = file.header();
        let inspect = fs::read_to_string(dir.join(format!("{model}.inspect.txt"))).expect("inspect output");
        let mut ours = vec![
            format!("arch: {}", header.arch),
            format!("quant_scheme: {:?}", header.quant_scheme),
            format!("min_hw: {}", header.min_hw),
            format!("base_rt: {}", header.basert_version),
            format!("created: {}", header.created),
            format!("flags: HeaderFlags({})", header.flags),
            format!("n_layers: {}", header.layers.len()),
            format!("n_tensors: {}", header.tensors.len()),
            format!("signed: {}", header.sig.is_some()),
            format!("weights bytes: {}", file.dtype_totals().iter().map(|total| total.bytes).sum::<u64>()),
            "dtypes:".to_owned(),
        ];
        let totals = file.dtype_totals();
        ours.extend(totals.iter().map(|t| format!("{:?} {} tensors {} bytes", t.dtype, t.tensors, t.bytes)));
        ours.push(format!("n_slots: {}", file.slots().len()));
        let theirs: Vec<String> =
            inspect.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(ours, theirs[..ours.len()], "{model}");
        file.verify_checksums(&mut |_, _| {}).expect("intact");
    }
}

#[test]
fn the_header_is_written_again_byte_for_byte() {
    let Some(dir) = fixtures() else { return };
    for model in MODELS {
        let path = dir.join(format!("{model}.base"));
        let bytes = fs::read(&path).expect("read");
        let len = u64::from_le_bytes(*bytes[8..].first_chunk().expect("preamble")) as usize;
        let file = BaseFile::open(&path).expect("valid");
        let again = serde_json::to_string(file.header()).expect("JSON");
        assert!(again.as_bytes() == &bytes[16..16 + len], "{model}: the header differs");
    }
}

#[test]
fn fields_are_where_they_belong() {
    let Some(dir) = fixtures() else { return };
    let file = BaseFile::open(&dir.join("qwen35-dense-2l-base-q4.base")).expect("valid");
    let header = file.header();
    assert_eq!(header.source.format, SourceFormat::HfSafetensors);
    assert_eq!(header.config["rms_norm_eps"].as_f64(), Some(f64::from(1e-6f32)));
    assert_eq!(header.config["rope_theta"].as_f64(), Some(1e7));
    assert_eq!(header.layers[1].kind, LayerKind::AttentionGqa);
    assert_eq!(header.tokenizer["tokenizer_type"].get(), "\"hf\"");
    assert!(header.tokenizer["tokenizer.json"].get().starts_with('{'));
    let embed = file.tensor("embed_tokens.weight").expect("present");
    assert_eq!((embed.shape, embed.data.len()), (&[2048, 128][..], 147_456));
    assert_eq!(embed.entry.checksum_xxh64, 11_121_120_603_405_313_122);
    let a_log = file.tensor("layers.0.linear_attn.A_log").expect("present");
    assert_eq!(a_log.entry.flags.to_string(), "SSM_A_MATRIX");
    assert!(file.tensor("lm_head.weight").is_none());
}

#[test]
fn truncated_at_every_sixteenth() {
    let Some(dir) = fixtures() else { return };
    let bytes = fs::read(dir.join("qwen35-moe-2l-base-q4.base")).expect("read");
    for part in 0..16 {
        assert!(open(&bytes[..bytes.len() * part / 16]).is_err(), "{part}/16 of the file was accepted");
    }
}
