//! What an export did.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::error::shown;
use crate::report::{Count, Dropped};

/// One tensor of the output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exported {
    /// Name in the `.base` file.
    pub name: String,
    /// Name in the GGUF.
    pub gguf_name: String,
    /// How the `.base` file stores it, e.g. `base_q4 group 64`.
    pub source: String,
    /// Its ggml type.
    pub stored: &'static str,
    /// Whether it decodes to the same values; proved by decoding both.
    pub exact: bool,
    /// Largest difference of a value.
    pub max_error: f32,
    /// Bytes of the payload.
    pub bytes: u64,
}

/// What an export did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExportReport {
    /// `general.architecture` of the output.
    pub arch: &'static str,
    /// Every tensor, in output order.
    pub tensors: Vec<Exported>,
    /// Tensors of the `.base` file that were left out.
    pub dropped: Vec<Dropped>,
    /// Anything else worth knowing.
    pub notes: Vec<String>,
    /// Wall time in seconds.
    pub seconds: f64,
}

impl ExportReport {
    pub(super) fn new(arch: &'static str) -> ExportReport {
        ExportReport { arch, tensors: Vec::new(), dropped: Vec::new(), notes: Vec::new(), seconds: 0.0 }
    }

    /// Tensors that decode to the same values, or those that do not.
    pub fn count(&self, exact: bool) -> Count {
        let mut count = Count::default();
        self.tensors.iter().filter(|tensor| tensor.exact == exact).for_each(|t| count.add(t.bytes));
        count
    }
}

impl fmt::Display for ExportReport {
    /// Several lines, the last without a line feed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        self.dropped.iter().for_each(|dropped| *reasons.entry(dropped.why).or_default() += 1);
        for (why, count) in reasons {
            writeln!(f, "dropped: {count} tensors: {why}")?;
        }
        let mut types: BTreeMap<(&str, &str), Count> = BTreeMap::new();
        for tensor in &self.tensors {
            types.entry((&tensor.source, tensor.stored)).or_default().add(tensor.bytes);
        }
        for ((source, stored), Count { tensors, bytes }) in types {
            writeln!(f, "{tensors:>5} tensors  {source} -> {stored}  {bytes} bytes")?;
        }
        let rounded = self.tensors.iter().filter(|tensor| !tensor.exact);
        if let Some(worst) = rounded.max_by(|a, b| a.max_error.total_cmp(&b.max_error)) {
            let name = shown(&worst.name);
            writeln!(f, "largest error {:.2e} in {name}", worst.max_error)?;
        }
        let (exact, rounded) = (self.count(true), self.count(false));
        write!(
            f,
            "{}: {} tensors exact, {} rounded, {} bytes in {:.1} s",
            self.arch,
            exact.tensors,
            rounded.tensors,
            exact.bytes + rounded.bytes,
            self.seconds
        )
    }
}
