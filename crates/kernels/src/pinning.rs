//! Binding threads to CPUs, for those who ask for it: one thread to each, and cores that share nothing first.

use std::io;

use crate::KernelError;
use crate::threads::allowed;

/// CPUs for so many threads, none twice.
///
/// # Errors
/// If the process may not use so many, or this is not Linux.
pub(crate) fn cpus(threads: usize) -> Result<Vec<usize>, KernelError> {
    let mut cpus = spread(allowed().ok_or(KernelError::NoPinning)?, siblings);
    if cpus.len() < threads {
        return Err(KernelError::FewCpus { threads, cpus: cpus.len() });
    }
    cpus.truncate(threads);
    Ok(cpus)
}

/// The first CPU of every core, then the second ones. What does not say with whom it shares a core has one of its own.
fn spread(cpus: &[usize], siblings: impl Fn(usize) -> Option<String>) -> Vec<usize> {
    let place = |cpu: usize| {
        let shared = siblings(cpu).map(|text| listed(&text)).unwrap_or_default();
        shared.iter().filter(|&&other| other < cpu && cpus.contains(&other)).count()
    };
    let mut ordered: Vec<(usize, usize)> = cpus.iter().map(|&cpu| (place(cpu), cpu)).collect();
    ordered.sort_unstable();
    ordered.into_iter().map(|(_, cpu)| cpu).collect()
}

/// The CPUs of a list as Linux writes it: `0-1,64`.
fn listed(text: &str) -> Vec<usize> {
    let ranges = text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// The CPUs that share a core with this one, itself included.
fn siblings(cpu: usize) -> Option<String> {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    std::fs::read_to_string(file).ok()
}

/// Binds a living thread to a CPU.
#[cfg(target_os = "linux")]
pub(crate) fn bind(thread: libc::pthread_t, cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero CPU set is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number comes from a set of this size.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the caller's thread lives, and the pointer is to a set of the given size.
    match unsafe { libc::pthread_setaffinity_np(thread, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Never reached: [`cpus`] has refused.
#[cfg(not(target_os = "linux"))]
pub(crate) fn bind(_thread: libc::pthread_t, _cpu: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The calling thread.
pub(crate) fn this_thread() -> libc::pthread_t {
    // SAFETY: has no conditions.
    unsafe { libc::pthread_self() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_get_cores_of_their_own_before_they_share_any() {
        let neighbours = |cpu: usize| Some(format!("{}-{}\n", cpu / 2 * 2, cpu / 2 * 2 + 1));
        assert_eq!(spread(&[0, 1, 2, 3], neighbours), [0, 2, 1, 3]);
        let halves = |cpu: usize| Some(format!("{},{}\n", cpu % 2, cpu % 2 + 2));
        assert_eq!(spread(&[0, 1, 2, 3], halves), [0, 1, 2, 3]);
        // Who may not use the first CPU of a core has its second for the first.
        assert_eq!(spread(&[1, 2, 3], neighbours), [1, 2, 3]);
        assert_eq!(spread(&[4, 7], |_| None), [4, 7]);
        assert_eq!(spread(&[4, 7], |_| Some("what?".to_owned())), [4, 7]);
    }

    #[test]
    fn more_threads_than_cpus_are_refused_with_both_numbers() {
        match cpus(100_000).unwrap_err() {
            KernelError::FewCpus { threads: 100_000, cpus } => assert!(cpus > 0),
            other => assert!(matches!(other, KernelError::NoPinning), "{other}"),
        }
    }
}
