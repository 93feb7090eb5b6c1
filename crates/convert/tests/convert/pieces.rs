//! Tensors that are converted in pieces, side by side, come out as if they had been converted whole.

use crate::common::{Toy, converted, noise, options};
use basert_convert::{Options, Report};
use basert_quant::Encoding;
use serde_json::json;

/// A llama whose embedding table is cut into several pieces, the last of them short.
fn large() -> Toy {
    let mut toy = Toy::llama();
    let rows = 3 * (1 << 19) / 64 + 5;
    toy.config["vocab_size"] = json!(rows);
    toy.tensors.insert("model.embed_tokens.weight".to_owned(), noise("large", &[rows, 64]));
    toy
}

#[test]
fn a_payload_does_not_depend_on_how_it_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let toy = large();
    let source = toy.write(dir.path(), "src");
    for target in ["base-q2", "base-q3", "base-q4", "base-q8", "f16", "bf16"] {
        let (file, _) = converted(&source, dir.path(), target, &options(target));
        let tensor =
            file.tensor("embed.weight").or_else(|| file.tensors().max_by_key(|t| t.data.len())).unwrap();
        let mut whole = Vec::new();
        let values = toy.values("model.embed_tokens.weight");
        // Few bits are searched.
        match tensor.encoding {
            Encoding::Affine { bits: ..=4, .. } => tensor.encoding.encode_searched(&values, None, &mut whole),
            encoding => encoding.encode(&values, &mut whole),
        }
        .unwrap();
        assert!(tensor.data == whole, "{target}");
        assert_eq!(matches!(tensor.encoding, Encoding::Affine { .. }), target.starts_with("base"));
    }
}

#[test]
fn bytes_and_measured_errors_are_the_same_with_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let source = large().write(dir.path(), "src");
    let run = |threads: usize| -> (Vec<u8>, Report) {
        let options = Options { threads: Some(threads), ..options("base-q3") };
        let (_, report) = converted(&source, dir.path(), "out", &options);
        (std::fs::read(dir.path().join("out.base")).unwrap(), report)
    };
    let (bytes, report) = run(1);
    for threads in [2, 3, 16] {
        let (other, same) = run(threads);
        assert!(other == bytes, "{threads}");
        assert_eq!(same.tensors, report.tensors, "{threads}");
    }
}
