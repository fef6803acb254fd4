//! Limits on reading a process. Its memory may be arranged so that a reader would follow it for ever. So each look has
//! a limit on time and on bytes, by the size of the process, and every reader checks it first.

use std::fs::File;
use std::io::Read;
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

/// A look that rests works for this long at a time, and then sleeps for this long.
const WORK: Duration = Duration::from_micros(500);
const SLEEP: Duration = Duration::from_micros(500);

/// What is left for a look.
#[derive(Debug)]
pub struct Fuel {
    until: Instant,
    bytes: AtomicU64,
    reads: AtomicU64,
    over: AtomicBool,
    stop: fn() -> bool,
    rests: Option<Rests>,
}

/// Rests between reads. While the kernel reads memory of a process for another one, it holds the lock of the process's
/// mappings. If the reader's time on the processor is over meanwhile, the process waits until the reader gets the next
/// one. A reader that sleeps before its time is over seldom loses the processor within a read.
#[derive(Debug)]
struct Rests {
    began: Instant,
    /// The end of the last one, in nanoseconds from then.
    last: AtomicU64,
}

impl Rests {
    fn rest(&self) {
        let now = || self.began.elapsed().as_nanos() as u64;
        // Relaxed: another thread that rests too does no harm.
        if now().saturating_sub(self.last.load(Ordering::Relaxed)) >= WORK.as_nanos() as u64 {
            std::thread::sleep(SLEEP);
            self.last.store(now(), Ordering::Relaxed);
        }
    }
}

impl Fuel {
    /// For a look at process `pid`, which also ends when `stop` returns true.
    pub fn of(pid: u32, stop: fn() -> bool) -> Fuel {
        // With room, because the file's size is said to be 0, by which std begins with reads of 32 bytes.
        let mut status = Vec::with_capacity(4096);
        let _ = File::open(format!("/proc/{pid}/status")).and_then(|mut file| file.read_to_end(&mut status));
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
        Fuel { until, bytes, reads, over, stop: || false, rests: None }
    }

    /// The same with rests, so that the process has to wait less; in twice the time.
    pub fn with_rests(self) -> Fuel {
        let began = Instant::now();
        let until = began.checked_add(2 * self.until.saturating_duration_since(began)).unwrap_or(self.until);
        Fuel { until, rests: Some(Rests { began, last: 0.into() }), ..self }
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
        } else if let Some(rests) = &self.rests {
            rests.rest();
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
        let (rested, began) = (Fuel::new(Duration::from_secs(1000), 100).with_rests(), Instant::now());
        while began.elapsed() < 10 * WORK {
            assert!(rested.take(0));
        }
        assert!(rested.rests.is_some_and(|rests| rests.last.into_inner() > 0));
        let fuel = Fuel::of(std::process::id(), || true);
        assert!((0..=READS).any(|_| !fuel.take(1)));
        let fuel = Fuel::of(std::process::id(), || false);
        assert!((0..=READS).all(|_| fuel.take(1)));
    }
}
