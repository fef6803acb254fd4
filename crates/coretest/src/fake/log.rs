//! What the allocator asks of the system, in order, as one number: the same in each run of the same history.

use super::faults::mix;

/// All calls so far. The kernel chooses where mappings lie, so an address counts as a place in what was handed out.
#[derive(Debug, Default)]
pub struct Log {
    handed_out: Vec<(usize, usize)>,
    calls: u64,
    hash: u64,
}

impl Log {
    /// The system handed out this range.
    pub fn hand_out(&mut self, from: usize, len: usize) {
        self.handed_out.push((from, len));
    }

    /// A call, or what it returned.
    pub fn note(&mut self, what: u64, address: usize, len: usize) {
        self.calls += 1;
        let (range, offset) = self.place(address);
        for word in [what, range, offset, len as u64] {
            self.hash = mix(self.hash ^ word);
        }
    }

    /// Which range that was handed out `address` lies in, and where; the newest, as the kernel uses addresses again.
    pub fn place(&self, address: usize) -> (u64, u64) {
        let found = self.handed_out.iter().rposition(|&(from, len)| address.wrapping_sub(from) < len);
        found.map_or((u64::MAX, 0), |i| (i as u64, (address - self.handed_out[i].0) as u64))
    }

    /// How many calls there were, and the number that stands for them.
    pub fn sum(&self) -> (u64, u64) {
        (self.calls, self.hash)
    }
}
