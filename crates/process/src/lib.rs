//! A process as seen from outside: what `/proc` says about it, in whatever state it is.
//!
//! | file | answers |
//! |---|---|
//! | `lib.rs` | by which number its memory and files can be read; its command, threads and numbers |
//! | `maps.rs` | its mappings: the only parser of `maps` and `smaps` |
//! | `pagemap.rs` | which of its pages are resident, swapped out, or guards |
//! | `file.rs` | the files that it has mapped, opened without harm, wherever their paths lead now |
//! | `identity.rs` | is it still the same process and program |
//! | `perf_map.rs` | names of code that it compiled itself |
//!
//! A process has more shapes than one: its first thread may have ended (then `/proc/PID/maps`, `root` and `exe` are
//! empty or missing, and only those of another thread answer); it may see other files under its paths (chroot, mount
//! namespaces), have another number for itself (pid namespaces), or execute another program meanwhile. Each is handled
//! here, once. May depend on the C library and std.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod file;
pub mod identity;
pub mod maps;
pub mod pagemap;
pub mod perf_map;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The contents of a file in `/proc` or `/sys`. The standard library goes by the size of a file, which is 0 there, and so
/// begins with reads of 32 bytes: eight reads for a file of 1 KiB, for each of which the kernel makes its text anew.
pub fn kernel_file(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    const ROOM: usize = 16 << 10;
    let mut bytes = Vec::with_capacity(ROOM);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a file of the kernel. Names in it may be other bytes than UTF-8.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    kernel_file(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The number by which memory, mappings and files of process `pid` can be read: that of another thread if the first
/// one has ended; `pid` itself where it makes no difference.
pub fn living(pid: u32) -> u32 {
    let status = |tid: u32| kernel_file(format!("/proc/{tid}/status")).unwrap_or_default();
    let has = |status: &[u8], line: &str| status.split(|&byte| byte == b'\n').any(|l| l.starts_with(line.as_bytes()));
    let own = status(pid);
    if has(&own, "VmRSS:") || !has(&own, "State:\tZ") {
        return pid;
    }
    threads(pid).unwrap_or_default().into_iter().find(|&tid| has(&status(tid), "VmRSS:")).unwrap_or(pid)
}

/// The mappings of a process as the kernel prints them, also if its first thread has ended.
pub fn maps(pid: u32) -> io::Result<Vec<u8>> {
    let maps = kernel_file(format!("/proc/{pid}/maps"))?;
    // Empty also for threads of the kernel.
    if maps.is_empty() { kernel_file(format!("/proc/{}/maps", living(pid))) } else { Ok(maps) }
}

/// The ids of its threads.
pub fn threads(pid: u32) -> io::Result<BTreeSet<u32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// The program and its arguments; without any, its name.
pub fn command(pid: u32) -> Vec<String> {
    let bytes = kernel_file(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    if words.is_empty() { vec![name(pid)] } else { words }
}

/// Its name, or that of a thread.
pub fn name(pid: u32) -> String {
    text(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The numbers that a process has, the outermost pid namespace that neap sees first; its own for itself last.
pub fn numbers(pid: u32) -> Vec<u32> {
    let numbers = text(format!("/proc/{pid}/status")).map(|status| numbers_in(&status)).unwrap_or_default();
    if numbers.is_empty() { vec![pid] } else { numbers }
}

fn numbers_in(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or("");
    line.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// A value in `/proc/PID/status`, `/proc/meminfo` or a similar file; in bytes if the file has kB.
pub fn value(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let mut words = line.split_ascii_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    Some(if words.next() == Some("kB") { number.saturating_mul(1024) } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches numbers of inner namespaces that are not known, and values without their unit.
    #[test]
    fn status_is_read() {
        let status = "Name:\tx\nPid:\t4711\nNSpid:\t4711\t7\t1\nVmRSS:\t     12 kB\nThreads:\t3\n";
        assert_eq!((numbers_in(status), numbers_in("Name:\tx\n")), (vec![4711, 7, 1], vec![]));
        assert_eq!((value(status, "VmRSS"), value(status, "Threads")), (Some(12 << 10), Some(3)));
        assert_eq!((value(status, "Vm"), value(status, "Absent"), value("A", "A")), (None, None, None));
    }

    /// Catches a process that is not found under its own number.
    #[test]
    fn this_process() {
        let pid = std::process::id();
        assert_eq!((living(pid), numbers(pid)[0]), (pid, pid));
        assert!(threads(pid).expect("threads").contains(&pid) && !command(pid).is_empty());
        assert!(!maps(pid).expect("maps").is_empty());
    }
}
