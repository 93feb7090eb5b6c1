//! The quantiser against the original converter: the same weights in bf16, q4 and q8 files.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use basert_quant::{Encoding, FloatDtype, ScaleDtype, float};
use serde_json::Value;

/// Header and weights of a `.base` file, believed blindly.
fn load(path: &Path) -> (Value, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    let header = serde_json::from_slice(&bytes[16..16 + length]).unwrap();
    (header, bytes[(16 + length).next_multiple_of(65536)..].to_vec())
}

fn payload<'a>(tensor: &Value, blob: &'a [u8]) -> &'a [u8] {
    let field = |name: &str| tensor[name].as_u64().unwrap() as usize;
    &blob[field("offset")..][..field("length")]
}

#[test]
fn quantised_payloads_are_byte_equal() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/base");
    if !dir.is_dir() {
        assert!(std::env::var_os("BASERT_REQUIRE_FIXTURES").is_none(), "{} is missing", dir.display());
        println!("skipped: {} is missing", dir.display());
        return;
    }
    let (header, floats) = load(&dir.join("qwen35-dense-2l-bf16.base"));
    let sources: HashMap<&str, &Value> =
        header["tensors"].as_array().unwrap().iter().map(|t| (t["name"].as_str().unwrap(), t)).collect();
    for (bits, group, dtype) in [(4, 64, "base_q4"), (8, 128, "base_q8")] {
        let (header, codes) = load(&dir.join(format!("qwen35-dense-2l-{}.base", dtype.replace('_', "-"))));
        let encoding = Encoding::Affine { bits, group, scale: ScaleDtype::F16, symmetric: false };
        let mut compared = 0;
        for tensor in header["tensors"].as_array().unwrap().iter().filter(|t| t["dtype"] == dtype) {
            let name = tensor["name"].as_str().unwrap();
            let source = payload(sources[name], &floats);
            let mut values = vec![0.0; source.len() / 2];
            float::decode(FloatDtype::Bf16, source, &mut values).unwrap();
            let mut encoded = Vec::new();
            encoding.encode(&values, &mut encoded).unwrap();
            assert!(encoded == payload(tensor, &codes), "{name} as {dtype}");
            compared += 1;
        }
        assert_eq!(compared, 14, "{dtype}");
    }
}
