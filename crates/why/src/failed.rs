//! Why a process cannot be read: one line for each cause, with its remedy.

use neap_account::parse;
use neap_launch::error::{Error, system_message};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// The system's message.
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
        _ => {
            let made = Error::failed(format!("cannot read process {pid}: {}", words(error)));
            made.remedy(remedy(error).unwrap_or("try again; is /proc that of this kernel?"))
        }
    }
}

/// Fails if `/proc` is missing, or belongs to another pid namespace.
pub fn check_proc() -> Result<(), Error> {
    let own = fs::read_link("/proc/self").ok();
    check_own(own.as_deref().and_then(Path::to_str), std::process::id())
}

fn check_own(own: Option<&str>, pid: u32) -> Result<(), Error> {
    match own {
        None => Err(Error::failed("there is no /proc, which has all figures").remedy("mount -t proc proc /proc")),
        Some(own) if own != pid.to_string() => {
            Err(Error::failed("/proc is that of another pid namespace, with other process numbers")
                .remedy("mount -t proc proc /proc; with unshare: --mount-proc"))
        }
        Some(_) => Ok(()),
    }
}

/// The remedy for an error that does not depend on the process.
pub fn remedy(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EMFILE => Some("raise the limit of open files: ulimit -n 1024"),
        libc::ENFILE | libc::ENOMEM => Some("the system is short of memory for it: end other programs"),
        libc::ENOSPC | libc::EDQUOT => Some("make room, or name a file elsewhere"),
        _ => None,
    }
}

/// Whether a process has ended and is only waited for by its parent.
pub fn is_zombie(pid: u32) -> bool {
    let status = neap_process::text(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| status.lines().any(|line| line.starts_with("State:\tZ") || line.starts_with("State:\tX")))
}

fn gone(pid: u32) -> Error {
    Error::failed(format!("there is no process {pid}"))
        .remedy("ps -e lists processes; those of a container have other numbers outside of it")
}

fn denied(pid: u32) -> Error {
    use std::os::unix::fs::MetadataExt;
    let owner = fs::metadata(format!("/proc/{pid}")).map_or(0, |metadata| metadata.uid());
    denied_by(pid, owner, neap_launch::sys::Identity::current().euid)
}

fn denied_by(pid: u32, owner: u32, own: u32) -> Error {
    if owner == own && own != 0 {
        return Error::failed(format!(
            "process {pid} may not be read by its own user: it has capabilities that neap lacks, or forbids it \
             (PR_SET_DUMPABLE)"
        ))
        .remedy("run neap as root: sudo neap why");
    }
    let error = Error::failed(format!("no permission to read process {pid}, which belongs to user {owner}"));
    error.remedy("run neap as that user, or as root: sudo neap why; in a container with --cap-add SYS_PTRACE")
}

/// Whether a process has memory now.
pub fn has_memory(pid: u32) -> bool {
    neap_process::text(format!("/proc/{pid}/status")).is_ok_and(|status| parse::value(&status, "VmSize").is_some())
}

/// The error for a process without memory: it has ended, or is a kernel thread.
pub fn no_memory(pid: u32) -> Error {
    let Ok(status) = neap_process::text(format!("/proc/{pid}/status")) else { return gone(pid) };
    no_memory_by(pid, &status)
}

fn no_memory_by(pid: u32, status: &str) -> Error {
    let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("").trim();
    if state.starts_with('Z') || state.starts_with('X') {
        let parent = parse::value(status, "PPid").unwrap_or(0);
        return Error::failed(format!("process {pid} has ended (a zombie): it has no memory"))
            .remedy(format!("its parent, process {parent}, has to wait for it"));
    }
    // Linux 6.8 has the field; in older versions an ending process looks the same.
    let is_kernel = match parse::value(status, "Kthread") {
        Some(answer) => answer == 1,
        None => fs::read_link(format!("/proc/{pid}/exe")).is_err(),
    };
    match is_kernel {
        true => Error::failed(format!("process {pid} is a thread of the kernel: it has no memory of its own"))
            .remedy("neap why --cgroup PATH shows what the kernel charges to a container"),
        false => Error::failed(format!("process {pid} has no memory: it has just ended, or is just starting"))
            .remedy("is it still running?"),
    }
}

/// The note if the kernel's lists can be read but the memory cannot.
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

    /// Catches errors without a remedy, and causes that are confused.
    #[test]
    fn errors_have_remedies() {
        let gone = unreadable(u32::MAX, &ErrorKind::NotFound.into()).to_string();
        assert!(gone.contains("there is no process") && gone.contains("hint:"), "{gone}");
        let denied = unreadable(1, &ErrorKind::PermissionDenied.into()).to_string();
        assert!(denied.contains("belongs to user 0") && denied.contains("root"), "{denied}");
        let own = denied_by(7, 1000, 1000).to_string();
        assert!(own.contains("PR_SET_DUMPABLE") && !own.contains("as that user"), "{own}");
        assert!(denied_by(7, 1000, 1001).to_string().contains("as that user"));
        assert!(check_proc().is_ok() && check_own(Some("7"), 7).is_ok());
        assert!(check_own(None, 7).is_err_and(|error| error.to_string().contains("mount -t proc")));
        assert!(check_own(Some("4711"), 1).is_err_and(|error| error.to_string().contains("namespace")));
        let by = |status: &str| no_memory_by(u32::MAX, status).to_string();
        assert!(by("State:\tR (running)\nKthread:\t0\n").contains("just ended"));
        assert!(by("State:\tI (idle)\nKthread:\t1\n").contains("thread of the kernel"));
        assert!(by("State:\tZ (zombie)\nPPid:\t7\nKthread:\t0\n").contains("process 7"));
        let few = unreadable(1, &io::Error::from_raw_os_error(libc::EMFILE)).to_string();
        assert!(few.contains("ulimit -n"), "{few}");
    }
}
