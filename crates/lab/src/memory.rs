//! How much memory programs can get: what the machine has free, and what the cgroups of this process allow.

use std::fs;
use std::path::{Path, PathBuf};

/// MiB that programs can get without swapping.
pub fn available_mib() -> u64 {
    let free = meminfo("MemAvailable:") >> 10;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_files(&groups).iter().filter_map(|file| limit_mib(file)).fold(free, u64::min)
}

/// The KiB behind `key` in /proc/meminfo; 0 if there is no such line.
fn meminfo(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let rest = text.lines().find_map(|line| line.strip_prefix(key));
    rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The files with the limits of the groups in /proc/self/cgroup and of all groups above them. In a container the path
/// is that of the host, and the container's group is mounted at the root: the last one of each list.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|one| one == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let own = Path::new(path.trim_start_matches('/'));
        files.extend(own.ancestors().map(|group| Path::new(root).join(group).join(file)));
    }
    files
}

/// The limit in a file; none without a file or without a limit in it (`max`).
fn limit_mib(file: &Path) -> Option<u64> {
    let bytes: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    Some(bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch the limit of a container that is overlooked.
    #[test]
    fn limits_are_looked_for_up_to_the_root() {
        let files = limit_files("5:memory:/a/b\n4:cpu,cpuacct:/x\n0::/c\n");
        let texts: Vec<_> = files.iter().map(|file| file.to_string_lossy().into_owned()).collect();
        let wanted = [
            "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/c/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        assert_eq!(texts, wanted);
        assert!(available_mib() > 0);
    }
}
