//! How many threads this process may use: CPU affinity and the cgroup's CPU quota.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where the cgroup file systems are mounted on every current distribution.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// The default thread count: the CPUs that this process may run on, capped by the CPU quota of its cgroup (v1 or v2),
/// rounded up; at least 1.
///
/// The standard library's `available_parallelism` rounds a quota down, which turns 1.5 CPUs into one thread.
pub fn default_threads() -> usize {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let quota = quota(Path::new(CGROUP_ROOT), &membership).unwrap_or(usize::MAX);
    affinity().min(quota).max(1)
}

/// CPUs that this process may use.
fn affinity() -> usize {
    // Without a list: more CPUs than the fixed-size set can name, or another system.
    allowed().map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), <[usize]>::len)
}

/// The CPUs in the affinity mask that the process had when this was first asked, before any thread was bound.
pub(crate) fn allowed() -> Option<&'static [usize]> {
    static ALLOWED: OnceLock<Option<Vec<usize>>> = OnceLock::new();
    ALLOWED.get_or_init(mask).as_deref()
}

#[cfg(target_os = "linux")]
fn mask() -> Option<Vec<usize>> {
    // SAFETY: an all-zero CPU set is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a set of the given size; 0 is the calling thread.
    let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    // SAFETY: `set` is initialised, and the numbers are below its size.
    let in_set = |&cpu: &usize| unsafe { libc::CPU_ISSET(cpu, &set) };
    (status == 0).then(|| (0..libc::CPU_SETSIZE as usize).filter(in_set).collect())
}

#[cfg(not(target_os = "linux"))]
fn mask() -> Option<Vec<usize>> {
    None
}

/// The smallest quota, in whole CPUs rounded up, among the process's cgroups and their ancestors.
///
/// `membership` is the text of `/proc/self/cgroup`: lines `id:controllers:path`, with empty controllers for v2.
fn quota(root: &Path, membership: &str) -> Option<usize> {
    let quotas = membership.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        if controllers.is_empty() {
            return smallest(root, path, quota_v2);
        }
        let cpu = controllers.split(',').any(|controller| controller == "cpu");
        cpu.then(|| smallest(&v1_mount(root, controllers), path, quota_v1)).flatten()
    });
    quotas.min()
}

/// The directory of a v1 hierarchy: named after its controllers, or just `cpu`.
fn v1_mount(root: &Path, controllers: &str) -> PathBuf {
    let named = root.join(controllers);
    if named.is_dir() { named } else { root.join("cpu") }
}

/// The smallest quota from `path` up to the mount point. Inside a container the path may name directories that only
/// the host sees; then the mount point itself is the container's group.
fn smallest(mount: &Path, path: &str, read: fn(&Path) -> Option<usize>) -> Option<usize> {
    let group = mount.join(path.trim_start_matches('/'));
    group.ancestors().take_while(|directory| directory.starts_with(mount)).filter_map(read).min()
}

/// `cpu.max` of cgroup v2: `<quota or max> <period>` in microseconds.
fn quota_v2(group: &Path) -> Option<usize> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    cpus(quota, period)
}

/// `cpu.cfs_quota_us` (-1 is none) and `cpu.cfs_period_us` of cgroup v1.
fn quota_v1(group: &Path) -> Option<usize> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    cpus(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
}

/// Whole CPUs of a quota, rounded up; `None` for no quota.
fn cpus(quota: &str, period: &str) -> Option<usize> {
    let quota: u64 = quota.trim().parse().ok()?;
    let period: u64 = period.trim().parse().ok().filter(|&period| period > 0)?;
    usize::try_from(quota.div_ceil(period)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory tree of one test, removed at its end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("basert-threads-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn there_is_always_a_thread() {
        assert!((1..=affinity()).contains(&default_threads()));
    }

    #[test]
    fn a_quota_of_one_and_a_half_cpus_means_two_threads() {
        let tree = Tree::new("v2", &[("a/b/cpu.max", "150000 100000\n"), ("a/cpu.max", "max 100000\n")]);
        assert_eq!(quota(&tree.0, "0::/a/b\n"), Some(2));
    }

    #[test]
    fn an_ancestors_smaller_quota_wins() {
        let tree = Tree::new("up", &[("a/b/cpu.max", "800000 100000\n"), ("a/cpu.max", "300000 100000\n")]);
        assert_eq!(quota(&tree.0, "0::/a/b\n"), Some(3));
    }

    #[test]
    fn in_a_container_the_mount_point_is_the_group() {
        let tree = Tree::new("container", &[("cpu.max", "50000 100000\n")]);
        assert_eq!(quota(&tree.0, "0::/docker/0123abcd\n"), Some(1));
        assert_eq!(quota(&tree.0, "0::/../../elsewhere\n"), Some(1));
    }

    #[test]
    fn cgroup_v1_quotas_are_read_from_the_cpu_hierarchy() {
        let files = [
            ("cpu,cpuacct/x/cpu.cfs_quota_us", "250000\n"),
            ("cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"),
            ("cpuset/x/cpu.cfs_quota_us", "100000\n"),
            ("cpuset/x/cpu.cfs_period_us", "100000\n"),
        ];
        let tree = Tree::new("v1", &files);
        assert_eq!(quota(&tree.0, "9:cpuset:/x\n4:cpu,cpuacct:/x\n1:name=systemd:/x\n"), Some(3));
        let tree =
            Tree::new("v1-none", &[("cpu/cpu.cfs_quota_us", "-1"), ("cpu/cpu.cfs_period_us", "100000")]);
        assert_eq!(quota(&tree.0, "4:cpu,cpuacct:/\n"), None);
    }

    #[test]
    fn no_or_broken_quotas_do_not_limit() {
        for text in ["max 100000", "", "100000", "1 0", "x y"] {
            let tree = Tree::new("broken", &[("cpu.max", text)]);
            assert_eq!(quota(&tree.0, "0::/\n"), None, "{text:?}");
        }
        assert_eq!(quota(Path::new("/nonexistent"), "garbage\n::\n0:"), None);
    }
}
