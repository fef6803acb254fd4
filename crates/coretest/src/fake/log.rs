//! A hash of all calls of the system, in order: it is the same in each run of the same history.

use super::faults::mix;

/// Numbers of calls that cannot fail, beside those of [`Call`](super::Call).
pub(super) const ALLOW_HUGE: u64 = 100;
pub(super) const PAUSE: u64 = 101;
pub(super) const PUBLISH: u64 = 102;

/// The calls up to now. The kernel chooses the addresses of mappings, so the hash uses the place of an address in the
/// ranges that were handed out.
#[derive(Debug, Default)]
pub struct Log {
    handed_out: Vec<(usize, usize)>,
    calls: u64,
    hash: u64,
}

impl Log {
    /// Records a range that the system handed out.
    pub fn hand_out(&mut self, from: usize, len: usize) {
        self.handed_out.push((from, len));
    }

    /// Records a call, or its result.
    pub fn note(&mut self, what: u64, address: usize, len: usize) {
        self.calls += 1;
        let (range, offset) = self.place(address);
        for word in [what, range, offset, len as u64] {
            self.hash = mix(self.hash ^ word);
        }
    }

    /// The number of the range in which `address` lies, and the offset. Of several ranges the newest, because the
    /// kernel reuses addresses.
    pub fn place(&self, address: usize) -> (u64, u64) {
        let found = self.handed_out.iter().rposition(|&(from, len)| address.wrapping_sub(from) < len);
        found.map_or((u64::MAX, 0), |i| (i as u64, (address - self.handed_out[i].0) as u64))
    }

    /// The number of calls, and their hash.
    pub fn sum(&self) -> (u64, u64) {
        (self.calls, self.hash)
    }
}
