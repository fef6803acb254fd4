//! The kernel's text about a cgroup. `neap-process` parses that about a process.

pub use neap_process::maps::{rollup, smaps};
pub use neap_process::value;

/// The number after a name in a file with a pair on each line, such as `memory.stat` of a cgroup.
pub fn pair(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a name that is taken for a longer one.
    #[test]
    fn values_are_found() {
        assert_eq!((pair("file 12\nfile_dirty 3\n", "file"), pair("file_dirty 3\n", "file")), (Some(12), None));
    }
}
