//! Limits on reading a process. Its memory may be arranged so that a reader would follow it for ever. So each look has
//! a limit on time and on bytes, by the size of the process, and every reader checks it first.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time for any process, to which time for each resident or swapped-out byte is added: a debug build on a busy
/// machine takes less.
const TIME: Duration = Duration::from_secs(10);
const NANOSECONDS: u64 = 8;
const BYTES: u64 = 256 << 20;
const TIMES: u64 = 32;
/// Reads between two checks of whether the caller wants to stop.
const READS: u64 = 64;

/// What is left for a look.
#[derive(Debug)]
pub struct Fuel {
    until: Instant,
    bytes: AtomicU64,
    reads: AtomicU64,
    over: AtomicBool,
    stop: fn() -> bool,
}

impl Fuel {
    /// For a look at process `pid`, which also ends when `stop` returns true.
    pub fn of(pid: u32, stop: fn() -> bool) -> Fuel {
        let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let field = |name: &str| -> u64 {
            let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
            value.trim().trim_end_matches(" kB").parse().unwrap_or(0)
        };
        let size = (field("VmRSS:") + field("VmSwap:")) << 10;
        let time = TIME.saturating_add(Duration::from_nanos(size.saturating_mul(NANOSECONDS)));
        Fuel { stop, ..Fuel::new(time, size.saturating_mul(TIMES).saturating_add(BYTES)) }
    }

    /// With this much time from now on, and this number of bytes.
    pub fn new(time: Duration, bytes: u64) -> Fuel {
        let now = Instant::now();
        let until = now.checked_add(time).unwrap_or(now);
        let (bytes, reads, over) = (bytes.into(), 0.into(), false.into());
        Fuel { until, bytes, reads, over, stop: || false }
    }

    /// Takes the cost of a read of this many bytes; false if that is not left, or a read was refused before.
    pub fn take(&self, bytes: u64) -> bool {
        // Relaxed: only numbers are shared.
        if self.is_over() {
            return false;
        }
        let left = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        let is_over = left.is_err() || Instant::now() >= self.until || reads.is_multiple_of(READS) && (self.stop)();
        if is_over {
            self.over.store(true, Ordering::Relaxed);
        }
        !is_over
    }

    /// Whether a read was refused: the look was cut short.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches looks that go on beyond their time or bytes, or after a request to stop.
    #[test]
    fn it_ends() {
        let fuel = Fuel::new(Duration::from_secs(1000), 100);
        assert!(fuel.take(60) && fuel.take(40) && fuel.take(0) && !fuel.is_over());
        assert!(!fuel.take(1) && fuel.is_over() && !fuel.take(0));
        let fuel = Fuel::new(Duration::ZERO, 100);
        assert!(!fuel.take(1) && fuel.is_over());
        let fuel = Fuel::of(std::process::id(), || true);
        assert!((0..=READS).any(|_| !fuel.take(1)));
        let fuel = Fuel::of(std::process::id(), || false);
        assert!((0..=READS).all(|_| fuel.take(1)));
    }
}
