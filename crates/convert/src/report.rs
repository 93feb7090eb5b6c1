//! What a conversion did, for people (`Display`) and programs (`serde`).

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::Estimate;
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

/// What became of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The source's bytes.
    ByteCopy,
    /// The source's codes and scales, or floats, in another arrangement.
    ExactRelayout,
    /// Floats that hold the source's values (after an offset of its convention) exactly.
    KeptInFloat,
    /// Floats, rounded to a narrower type.
    Rounded,
    /// Floats, quantised.
    Quantized,
    /// Quantised again, or rounded, from the exact values of a quantised source.
    Requantized,
}

impl Verdict {
    /// In the order of loss.
    const ALL: [Verdict; 6] = [
        Verdict::ByteCopy,
        Verdict::ExactRelayout,
        Verdict::KeptInFloat,
        Verdict::Rounded,
        Verdict::Quantized,
        Verdict::Requantized,
    ];

    /// Whether the output decodes to the source's values.
    pub fn is_exact(self) -> bool {
        matches!(self, Verdict::ByteCopy | Verdict::ExactRelayout | Verdict::KeptInFloat)
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::ByteCopy => "byte copy",
            Verdict::ExactRelayout => "exact re-layout",
            Verdict::KeptInFloat => "kept in float",
            Verdict::Rounded => "rounded",
            Verdict::Quantized => "quantized",
            Verdict::Requantized => "re-quantized",
        }
    }
}

/// What became of one tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorReport {
    /// Canonical name.
    pub name: String,
    /// What the source's elements are, e.g. `Q4_0` or `mlx 4-bit group 64 bf16`.
    pub source: String,
    /// What was stored, e.g. `base_q4 group 32`.
    pub stored: String,
    /// What became of the values. Exactness was proved by decoding both sides.
    pub verdict: Verdict,
    /// Largest difference of a value; `None` in a plan.
    pub max_error: Option<f32>,
    /// Root of the mean squared difference; `None` in a plan.
    pub rms_error: Option<f64>,
    /// The values were multiplied by activation-aware factors first; verdict and errors are about the scaled values.
    pub scaled: bool,
    /// Bytes of the payload.
    pub bytes: u64,
}

/// A source tensor that is not in the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// Name in the source.
    pub name: String,
    /// Why nothing is lost by it.
    pub why: &'static str,
}

/// What a conversion did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Architecture of the output.
    pub arch: String,
    /// Kind of source: `gguf`, `hf_safetensors` or `mlx_safetensors`.
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
    /// What became of every tensor, in output order.
    pub tensors: Vec<TensorReport>,
    /// Source tensors that were left out.
    pub dropped: Vec<Dropped>,
    /// Whose conventions the weights follow (`hf`, `mlx`), where that makes a difference.
    pub convention: Option<&'static str>,
    /// Most memory that the conversion has in use at a time, in bytes: its buffers, the pages of the source that it is
    /// at, and about what the program takes by itself.
    pub peak_memory_bytes: u64,
    /// How long the conversion may take; in a plan only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// Anything else worth knowing.
    pub notes: Vec<String>,
    /// What the self-check found, by metadata key; empty without one.
    pub quality: BTreeMap<String, Value>,
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

    /// Tensors with this verdict.
    pub fn with(&self, verdict: Verdict) -> Count {
        let mut count = Count::default();
        self.tensors.iter().filter(|tensor| tensor.verdict == verdict).for_each(|t| count.add(t.bytes));
        count
    }

    /// The verdict on every tensor, one line for those of a kind, in order of first appearance.
    pub fn table(&self) -> String {
        let mut kinds: Vec<(String, &TensorReport, Count)> = Vec::new();
        for tensor in &self.tensors {
            let name = without_layer(&tensor.name);
            let same = |(kind, first, _): &&mut (String, &TensorReport, Count)| {
                (kind.as_str(), &first.source, &first.stored, first.verdict, first.scaled)
                    == (name.as_str(), &tensor.source, &tensor.stored, tensor.verdict, tensor.scaled)
            };
            match kinds.iter_mut().find(same) {
                Some((_, _, count)) => count.add(tensor.bytes),
                None => {
                    let mut count = Count::default();
                    count.add(tensor.bytes);
                    kinds.push((name, tensor, count));
                }
            }
        }
        let mut text = String::new();
        for (name, TensorReport { source, stored, verdict, scaled, .. }, count) in kinds {
            let scaled = if *scaled { "scaled " } else { "" };
            let line = format!(
                "{:>4}  {:>10}  {:<16} {source} -> {scaled}{stored}  {name}\n",
                count.tensors,
                bytes(count.bytes),
                verdict.name()
            );
            text.push_str(&line);
        }
        for Dropped { name, why } in &self.dropped {
            text.push_str(&format!("   1  {:>10}  {:<16} {name}: {why}\n", "-", "dropped"));
        }
        text
    }

    /// One line per verdict, with the largest errors.
    fn write_verdicts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for verdict in Verdict::ALL {
            let count = self.with(verdict);
            if count.tensors == 0 {
                continue;
            }
            let of = self.tensors.iter().filter(|tensor| tensor.verdict == verdict);
            write!(f, "{:>16}  {:>5} tensors  {}", verdict.name(), count.tensors, bytes(count.bytes))?;
            let worst = of.filter(|_| !verdict.is_exact()).max_by(|a, b| {
                let error = |tensor: &TensorReport| tensor.rms_error.unwrap_or(0.0);
                error(a).total_cmp(&error(b))
            });
            if let Some(TensorReport { name, max_error: Some(max), rms_error: Some(rms), .. }) = worst {
                write!(f, "  largest rms error {rms:.2e} (max {max:.2e}) in {name}")?;
            }
            writeln!(f)?;
        }
        Ok(())
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
        for Dropped { name, why } in &self.dropped {
            writeln!(f, "dropped: {}: {why}", shown(name))?;
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
        self.write_verdicts(f)?;
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
pub(crate) fn without_layer(name: &str) -> String {
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
