//! Growth: predicts from the memory that the program took last how it will use the next, for `huge_area.rs`.
//!
//! Memory is taken *in small pages* where it does not come from a huge area. The *question* is whether the memory that
//! was last taken so is dense ([`Os::is_dense`](crate::Os::is_dense)).

use crate::CHUNK;
use crate::pages::chunk::Record;
use crate::pages::layout::HUGE_PAGE;
use crate::system::time::passed;

/// Length of an area in bytes, and in chunks.
pub(crate) const BYTES: usize = if cfg!(neap_sim) { 4 * CHUNK } else { HUGE_PAGE };
pub(crate) const AREA: usize = BYTES / CHUNK;

/// What the memory that the program took last says about the next. Used under the lock of the ranges.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Number of chunks to be taken in small pages before the next question.
    pub(crate) wait: usize,
    /// The last chunk that was taken in small pages.
    pub(crate) last: Option<Record>,
    /// Clock of the last question.
    pub(crate) asked: u64,
    /// Number of areas that may be filled before the next question.
    pub(crate) areas: usize,
}

impl Growth {
    pub(crate) const fn new() -> Self {
        Growth { wait: AREA, last: None, asked: 0, areas: 0 }
    }

    /// Notes that `len` chunks from `first` on were taken in small pages.
    #[inline]
    pub(crate) fn note_small(&mut self, first: Record, len: usize) {
        if len <= AREA / 2 {
            self.wait = self.wait.saturating_sub(len);
            self.last = Some(first);
        }
    }

    /// Notes that a question is asked `now`; returns the time since the last one.
    pub(crate) fn ask(&mut self, now: u64) -> u64 {
        let asked = core::mem::replace(&mut self.asked, now);
        self.wait = AREA;
        passed(now, asked)
    }

    /// Whether an area may be filled, or a question is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.areas > 0 || self.wait == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a clock that goes back and ends the process, or that counts as a question just before.
    #[test]
    fn clocks_may_go_back() {
        let mut growth = Growth::new();
        assert_eq!([1000, 1200, 100, 150].map(|now| growth.ask(now)), [1000, 200, u64::MAX, 50]);
    }
}
