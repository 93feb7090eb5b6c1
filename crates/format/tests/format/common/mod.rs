//! Small files for the tests: some written by the crate, some put together by hand as a stranger would.

use std::path::{Path, PathBuf};

use basert_format::{
    BaseFile, BaseWriter, ComputeRegion, FormatError, Header, PlannedTensor, QuantScheme, Residency, Source,
    SourceFormat, TensorFlags,
};
use basert_quant::{Encoding, FloatDtype};
use tempfile::TempDir;

pub const F32: Encoding = Encoding::Float(FloatDtype::F32);

pub fn header() -> Header {
    let source =
        Source { format: SourceFormat::HfSafetensors, sha256: String::new(), filename: "tiny".into() };
    Header::new("qwen35", QuantScheme::BaseQ4, source, "1700000000")
}

pub fn planned(name: &str, shape: &[u64], encoding: Encoding) -> PlannedTensor {
    PlannedTensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        encoding,
        region: ComputeRegion::Accelerator,
        residency: Residency::Warm,
        flags: TensorFlags::default(),
        mmproj: false,
    }
}

/// Writes one file of the given tensors and payloads.
pub fn write(path: &Path, header: Header, tensors: Vec<(PlannedTensor, Vec<u8>)>) -> Result<(), FormatError> {
    let (plan, payloads): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
    let mut writer = BaseWriter::create(path, header, plan)?;
    for payload in payloads {
        writer.write_tensor(&payload)?;
    }
    writer.finish(|_| {})
}

/// A header as the original converter writes it, around the given tensor entries.
pub fn foreign_header(tensors: &str) -> String {
    format!(
        r#"{{"schema":1,"arch":"qwen35","quant_scheme":"bf16","min_hw":"apple_m1","created":"0","baserT_version":"0.2.3","source":{{"format":"hf_safetensors","sha256":"","filename":"m"}},"tokenizer":{{}},"config":{{}},"tensors":[{tensors}]}}"#
    )
}

/// The bytes of a file with this header and blob.
pub fn assemble(header: &str, blob: &[u8]) -> Vec<u8> {
    let mut file = b"BASE\x01\0\0\0".to_vec();
    file.extend((header.len() as u64).to_le_bytes());
    file.extend(header.as_bytes());
    file.resize(file.len().next_multiple_of(65536), 0);
    file.extend(blob);
    file
}

/// A directory with one file in it, which is deleted with the directory.
pub struct OnDisk {
    _dir: TempDir,
    pub path: PathBuf,
}

pub fn on_disk(bytes: &[u8]) -> OnDisk {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("model.base");
    std::fs::write(&path, bytes).expect("written");
    OnDisk { _dir: dir, path }
}

/// Opens the bytes as a file.
pub fn open(bytes: &[u8]) -> Result<BaseFile, FormatError> {
    BaseFile::open(&on_disk(bytes).path)
}

/// The sentence with which the bytes are refused.
#[track_caller]
pub fn refusal(bytes: &[u8]) -> String {
    let message = open(bytes).expect_err("must be refused").to_string();
    assert!(message.contains("model.base: "), "names no file: {message}");
    message
}

/// Asserts that the bytes are refused with a sentence that has all of `parts`.
#[track_caller]
pub fn assert_refused(bytes: &[u8], parts: &[&str]) {
    let message = refusal(bytes);
    for part in parts {
        assert!(message.contains(part), "expected `{part}` in: {message}");
    }
}
