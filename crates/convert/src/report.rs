//! What a conversion did, for people (`Display`) and programs (`serde`).

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::error::shown;

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

impl Report {
    /// One line per kind of fallback. Layers are written as `*`: large models have hundreds of tensors of one
    /// kind.
    fn write_fallbacks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: Vec<(&Fallback, Count, Vec<String>)> = Vec::new();
        for fallback in &self.fallbacks {
            let same = |other: &Fallback| (other.row, &other.used) == (fallback.row, &fallback.used);
            let kind = match kinds.iter().position(|(first, ..)| same(first)) {
                Some(kind) => kind,
                None => {
                    kinds.push((fallback, Count::default(), Vec::new()));
                    kinds.len() - 1
                }
            };
            let (_, count, names) = &mut kinds[kind];
            count.add(fallback.bytes);
            let name = without_layer(&fallback.tensor);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        for (Fallback { row, wanted, used, .. }, count, names) in kinds {
            let (tensors, names) = (tensors(count.tensors), names.join(", "));
            writeln!(
                f,
                "note: rows of {row} do not divide into {wanted}; {tensors} stored as {used}: {names}"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    /// Several lines, the last without a line feed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_fallbacks(f)?;
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
            writeln!(f, "ignored: {}", shown(name))?;
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

/// A name with its layer number as `*`.
fn without_layer(name: &str) -> String {
    let part = |part: &str| if part.parse::<usize>().is_ok() { "*".to_owned() } else { part.to_owned() };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
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
