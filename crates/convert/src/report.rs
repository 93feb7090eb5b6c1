//! What a conversion did, for people (`Display`) and programs (`serde`).

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// A number of tensors and their bytes in the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Tensors.
    pub tensors: usize,
    /// Bytes of their payloads.
    pub bytes: u64,
}

impl Count {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.tensors += 1;
        self.bytes += bytes;
    }
}

/// A tensor that could not be stored as the target asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fallback {
    /// Canonical name.
    pub tensor: String,
    /// Elements of a row.
    pub row: usize,
    /// What the target asks for, e.g. `base_q4 group 64`.
    pub wanted: String,
    /// What was stored, e.g. `base_q4 group 32` or `bf16`.
    pub used: String,
    /// The tensor is not quantised at all.
    pub unquantised: bool,
    /// Bytes of its payload.
    pub bytes: u64,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fallback { tensor, row, wanted, used, .. } = self;
        write!(f, "{tensor}: rows of {row} do not divide into {wanted}, stored as {used}")
    }
}

/// What a conversion did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Architecture of the output.
    pub arch: String,
    /// Kind of source: `gguf` or `hf_safetensors`.
    pub source: String,
    /// Bytes of the source's tensors.
    pub source_bytes: u64,
    /// The target, e.g. `base-q4`.
    pub target: String,
    /// Everything written.
    pub written: Count,
    /// The same by dtype.
    pub dtypes: BTreeMap<&'static str, Count>,
    /// Tensors that could not be stored as the target asks.
    pub fallbacks: Vec<Fallback>,
    /// Draft (multi-token prediction) tensors, kept under `mtp.`; part of `written`.
    pub draft: Count,
    /// Vision tensors, kept in `mmproj`; part of `written`.
    pub vision: Count,
    /// Source tensors that carry nothing and were left out.
    pub ignored: Vec<String>,
    /// Anything else worth knowing.
    pub notes: Vec<String>,
    /// Wall time in seconds.
    pub seconds: f64,
}

impl Report {
    /// Fallbacks that left a tensor unquantised.
    pub fn unquantised(&self) -> Count {
        let mut count = Count::default();
        self.fallbacks.iter().filter(|fallback| fallback.unquantised).for_each(|f| count.add(f.bytes));
        count
    }
}

impl fmt::Display for Report {
    /// Several lines, the last without a line feed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fallback in &self.fallbacks {
            writeln!(f, "note: {fallback}")?;
        }
        let plain = self.unquantised();
        if plain.tensors > 0 {
            writeln!(
                f,
                "note: {} ({}) left unquantised because of their row length",
                tensors(plain.tensors),
                bytes(plain.bytes)
            )?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for name in &self.ignored {
            writeln!(f, "ignored: {name}")?;
        }
        if self.draft.tensors > 0 {
            writeln!(
                f,
                "draft: {} ({}) kept under mtp.",
                tensors(self.draft.tensors),
                bytes(self.draft.bytes)
            )?;
        }
        if self.vision.tensors > 0 {
            writeln!(
                f,
                "vision: {} ({}) kept in mmproj",
                tensors(self.vision.tensors),
                bytes(self.vision.bytes)
            )?;
        }
        for (dtype, count) in &self.dtypes {
            writeln!(f, "{dtype:>8}  {:>5} tensors  {}", count.tensors, bytes(count.bytes))?;
        }
        write!(
            f,
            "{} {} -> {}: {}, {} from {} in {:.1} s",
            self.source,
            self.arch,
            self.target,
            tensors(self.written.tensors),
            bytes(self.written.bytes),
            bytes(self.source_bytes),
            self.seconds
        )
    }
}

fn tensors(count: usize) -> String {
    if count == 1 { "1 tensor".to_owned() } else { format!("{count} tensors") }
}

/// Bytes in the largest binary unit that leaves a number of at least 1.
fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}
