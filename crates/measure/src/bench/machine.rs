//! What a result has to name to be worth something later: the machine, and the weights.

use basert_format::BaseFile;
use basert_kernels::default_threads;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh64::xxh64;

/// Where numbers come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name for itself, or its architecture where it has none.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
}

impl Machine {
    /// This one.
    pub fn this() -> Machine {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Machine { cpu: cpu(&text), cpus: default_threads() }
    }
}

fn cpu(cpuinfo: &str) -> String {
    let named = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    named.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Most memory that this process has held so far, in bytes (`VmHWM`: file pages in the map count); `None` where the
/// system does not say.
pub fn peak_memory() -> Option<u64> {
    kilobytes(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Memory that this process holds now, in bytes; `None` where the system does not say.
pub(super) fn resident_memory() -> Option<u64> {
    kilobytes(&std::fs::read_to_string("/proc/self/smaps_rollup").ok()?, "Rss:")
}

fn kilobytes(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A name for what a file computes: xxHash64, in hex, of its architecture, configuration and tensor list, which has a
/// checksum of every tensor. No payload is read; whether the checksums are right is for `BaseFile::verify_checksums`.
///
/// # Errors
/// None that a header which was read can cause.
pub fn identity(file: &BaseFile) -> Result<String, serde_json::Error> {
    let header = file.header();
    let text = serde_json::to_vec(&(&header.arch, &header.config, &header.tensors))?;
    Ok(format!("{:016x}", xxh64(&text, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_words_are_found() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nprocessor\t: 1\n";
        assert_eq!(cpu(cpuinfo), "AMD EPYC");
        assert_eq!(cpu(""), std::env::consts::ARCH);
        assert_eq!(
            kilobytes("VmPeak:\t 9 kB\nVmHWM:\t    1536 kB\nVmRSS:\t 1 kB\n", "VmHWM:"),
            Some(1536 * 1024)
        );
        assert_eq!(kilobytes("VmRSS:\t 1 kB\n", "VmHWM:"), None);
    }
}
