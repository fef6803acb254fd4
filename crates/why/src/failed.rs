//! Why a process cannot be read: each cause in a line, with its remedy.

use neap_account::parse;
use neap_launch::error::{Error, system_message};
use std::fs;
use std::io::{self, ErrorKind};

/// The system's words.
pub fn words(error: &io::Error) -> String {
    system_message(error)
}

/// The error for a file of `/proc/PID` that cannot be read.
pub fn unreadable(pid: u32, error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => gone(pid),
        // It ended while it was read, or has no memory.
        _ if error.raw_os_error() == Some(libc::ESRCH) => no_memory(pid),
        ErrorKind::PermissionDenied => denied(pid),
        _ => Error::failed(format!("cannot read process {pid}: {}", words(error))),
    }
}

fn gone(pid: u32) -> Error {
    Error::failed(format!("there is no process {pid}"))
        .remedy("ps -e lists processes; those of a container have other numbers outside of it")
}

fn denied(pid: u32) -> Error {
    use std::os::unix::fs::MetadataExt;
    let owner = fs::metadata(format!("/proc/{pid}")).map_or(0, |metadata| metadata.uid());
    let error = Error::failed(format!("no permission to read process {pid}, which belongs to user {owner}"));
    error.remedy("run neap as that user, or as root: sudo neap why; in a container with --cap-add SYS_PTRACE")
}

/// The error for a process that has no memory: it has ended, or is a part of the kernel.
pub fn no_memory(pid: u32) -> Error {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return gone(pid) };
    let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("").trim();
    if state.starts_with('Z') || state.starts_with('X') {
        let parent = parse::value(&status, "PPid").unwrap_or(0);
        return Error::failed(format!("process {pid} has ended (a zombie): it has no memory"))
            .remedy(format!("its parent, process {parent}, has to wait for it"));
    }
    let kernel = parse::value(&status, "Kthread") == Some(1) || fs::read_link(format!("/proc/{pid}/exe")).is_err();
    match kernel {
        true => Error::failed(format!("process {pid} is a thread of the kernel: it has no memory of its own"))
            .remedy("neap why --cgroup PATH shows what the kernel charges to a container"),
        false => Error::failed(format!("process {pid} has no memory: it has just ended, or just begins"))
            .remedy("is it still running?"),
    }
}

/// The note where lists can be read and memory cannot.
pub fn not_readable(pid: u32) -> String {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let remedy = match scope.trim() {
        "1" | "2" | "3" => "kernel.yama.ptrace_scope forbids it: run neap as root, or set it to 0",
        _ => "run neap as root, or in a container with --cap-add SYS_PTRACE",
    };
    format!("the memory of process {pid} may not be read, so its heaps are not split: {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches errors without a remedy, and causes that are taken for each other.
    #[test]
    fn errors_have_remedies() {
        let gone = unreadable(u32::MAX, &ErrorKind::NotFound.into()).to_string();
        assert!(gone.contains("there is no process") && gone.contains("hint:"), "{gone}");
        let denied = unreadable(1, &ErrorKind::PermissionDenied.into()).to_string();
        assert!(denied.contains("belongs to user 0") && denied.contains("root"), "{denied}");
    }
}
