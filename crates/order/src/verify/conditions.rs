//! The conditions that a comparison depends on: fault-around, readahead, and how much of the files the page cache has.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use neap_launch::units;
use serde::Serialize;

/// The conditions of the runs; `None` where the system does not report them.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Conditions {
    /// Bytes that the kernel maps around a fault of a file.
    pub fault_around: Option<u64>,
    /// For each file, before and after: maximum bytes of one read from disk.
    pub readahead: [Option<u64>; 2],
    /// For each file: its median share in the page cache before the runs.
    pub cached: [Cached; 2],
}

/// Shares of a file, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cached {
    /// Before warm runs.
    pub warm: Option<f64>,
    /// Before cold runs.
    pub cold: Option<f64>,
}

impl Conditions {
    /// As the system reports them; the shares in the page cache must be filled in.
    pub fn of(files: [&Path; 2]) -> Self {
        let fault_around = fs::read_to_string("/sys/kernel/debug/fault_around_bytes").ok();
        Self {
            fault_around: fault_around.and_then(|text| text.trim().parse().ok()),
            readahead: files.map(readahead),
            cached: Default::default(),
        }
    }

    /// Whether the page cache had more of one file than of the other before cold runs, so that these cannot be
    /// compared.
    pub fn is_one_cold(&self) -> bool {
        let [before, after] = self.cached.each_ref().map(|cached| cached.cold);
        before.zip(after).is_some_and(|(before, after)| (before - after).abs() > 0.01)
    }

    /// The conditions as two lines.
    pub fn text(&self) -> String {
        let bytes = |value: Option<u64>| value.map_or_else(|| "unknown".to_owned(), units::bytes);
        let [before, after] = self.readahead.map(bytes);
        let readahead = if before == after { before } else { format!("{before} and {after}") };
        let around = match self.fault_around {
            Some(_) => bytes(self.fault_around),
            None => "unknown, as debugfs cannot be read (64.0 KiB is usual)".to_owned(),
        };
        let share =
            |value: Option<f64>| value.map_or_else(|| "?".to_owned(), |value| format!("{:.0} %", 100.0 * value));
        let cached = |of: fn(&Cached) -> Option<f64>| {
            let [before, after] = self.cached.each_ref().map(|cached| share(of(cached)));
            format!("{before} and {after}")
        };
        format!(
            "readahead: {readahead}; fault-around: {around}\n\
             of the files in the page cache: {} before warm runs, {} before cold ones\n",
            cached(|cached| cached.warm),
            cached(|cached| cached.cold)
        )
    }
}

/// The readahead of the disk that a file is on. A partition has that of its disk.
fn readahead(file: &Path) -> Option<u64> {
    let device = fs::metadata(file).ok()?.dev();
    let name = format!("{}:{}", libc::major(device), libc::minor(device));
    let disk = |above: &str| fs::read_to_string(format!("/sys/dev/block/{name}/{above}queue/read_ahead_kb"));
    let text = disk("").or_else(|_| disk("../")).or_else(|_| {
        // Some file systems have no disk of their own.
        fs::read_to_string(format!("/sys/class/bdi/{name}/read_ahead_kb"))
    });
    text.ok()?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The share of a file that is in the page cache; `None` before Linux 6.5, and for an empty file.
pub fn cached(file: &Path) -> Option<f64> {
    const SYS_CACHESTAT: libc::c_long = 451;
    let file = File::open(file).ok()?;
    let pages = file.metadata().ok()?.len().div_ceil(4096);
    // `struct cachestat_range`: offset and length; 0 is up to the end. `struct cachestat`: five counts.
    let (range, mut counts) = ([0_u64; 2], [0_u64; 5]);
    // SAFETY: both structures are valid for the call, and have the sizes that the kernel's have.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) };
    (result == 0 && pages > 0).then(|| counts[0] as f64 / pages as f64)
}

/// Asks the kernel to drop a file from the page cache: it keeps what others have mapped, and what is not on disk yet.
pub fn evict(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    // SAFETY: posix_fadvise takes numbers.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a condition that is shown as another one, or made up where the system does not report it.
    #[test]
    fn what_is_not_known_is_not_shown() {
        let cached = [(1.0, 0.25), (0.5, 0.0)].map(|(warm, cold)| Cached { warm: Some(warm), cold: Some(cold) });
        let known = Conditions { fault_around: Some(65536), readahead: [Some(131_072), Some(262_144)], cached };
        let text = known.text();
        assert!(text.contains("readahead: 128.0 KiB and 256.0 KiB; fault-around: 64.0 KiB\n"), "{text}");
        assert!(text.contains("100 % and 50 % before warm runs, 25 % and 0 % before cold ones\n"), "{text}");
        let unknown = Conditions::default().text();
        assert!(unknown.starts_with("readahead: unknown; fault-around: unknown, as"), "{unknown}");
        assert!(unknown.contains("? and ? before warm runs"), "{unknown}");
    }

    /// Catches cold runs that are compared although one file was not cold, and ones that are not although both were.
    #[test]
    fn one_cold_file() {
        let is_one_cold = |cold: [Option<f64>; 2]| {
            let cached = cold.map(|cold| Cached { warm: Some(1.0), cold });
            Conditions { cached, ..Conditions::default() }.is_one_cold()
        };
        assert!(is_one_cold([Some(0.0), Some(0.13)]) && is_one_cold([Some(0.5), Some(0.0)]));
        assert!(!is_one_cold([Some(0.0), Some(0.005)]) && !is_one_cold([None, Some(0.5)]));
    }

    /// Catches a share of another file, and a dropped file that counts as cached.
    #[test]
    fn shares_of_a_file() {
        let path = std::env::temp_dir().join(format!("neap-order-cached-{}", std::process::id()));
        fs::write(&path, vec![1; 1 << 20]).expect("writable");
        let (whole, ()) = (cached(&path), evict(&path).expect("a file"));
        let rest = cached(&path);
        let _ = fs::remove_file(&path);
        let Some((whole, rest)) = whole.zip(rest) else {
            return eprintln!("SKIPPED shares_of_a_file: needs Linux 6.5");
        };
        // A file system in memory keeps it.
        assert!(whole == 1.0 && (rest < 0.1 || rest == 1.0), "{whole} {rest}");
    }
}
