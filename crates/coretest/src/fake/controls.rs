//! What a test sets and reads while the system is in use.

use super::Fake;
use super::model::Access;
use super::within::Moment;
use core::sync::atomic::Ordering;
use neap_core::os::{Memory, Onward};
use std::sync::PoisonError;

impl Fake {
    /// Sets the result of `Os::onward`.
    pub fn set_onward(&self, onward: Onward) {
        *self.onward.lock().unwrap_or_else(PoisonError::into_inner) = onward;
    }

    /// Makes `f` run in the middle of the next call of this kind, in the thread that makes the call.
    pub fn set_within(&self, moment: Moment, f: fn()) {
        self.within.set(moment, f);
    }

    /// Makes the system report a shortage of memory at once, in this many of the next calls of `Threads::rest`.
    pub fn report_pressure(&self, times: u64) {
        self.watches.store(true, Ordering::Relaxed);
        self.reports.store(times, Ordering::Relaxed);
    }

    /// Sets the result of `Os::process`; with 0 the system call for it must not be made.
    pub fn set_process(&self, process: u32) {
        self.process.store(process, Ordering::Relaxed);
    }

    /// Makes `Os::has_ended` return false for this many calls, and true after them.
    pub fn end_threads_after(&self, questions: u64) {
        self.living.store(questions, Ordering::Relaxed);
    }

    /// Advances `Os::run_time` by this many microseconds.
    pub fn run_for(&self, microseconds: u64) {
        self.ran.fetch_add(microseconds, Ordering::Relaxed);
    }

    /// Number of calls of `Os::publish`.
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Advances the clock by this many milliseconds.
    pub fn advance(&self, milliseconds: u64) {
        self.clock.fetch_add(milliseconds, Ordering::Relaxed);
    }

    /// Sets the clock back by this many milliseconds, as for a process that is restored from a checkpoint.
    pub fn set_back(&self, milliseconds: u64) {
        self.clock.fetch_sub(milliseconds, Ordering::Relaxed);
    }

    /// Sets the limit on address space, even if more is taken already.
    pub fn set_address_limit(&self, limit: usize) {
        self.address_limit.store(limit, Ordering::Relaxed);
    }

    /// Sets the limit on writable memory that the system reports; `usize::MAX`: none. The system does not enforce it.
    pub fn set_data_limit(&self, limit: usize) {
        self.data_limit.store(limit, Ordering::Relaxed);
    }

    /// Sets the result of `Os::memory`.
    pub fn set_memory(&self, memory: Option<Memory>) {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// Number of bytes of address space that are taken.
    pub fn taken(&self) -> usize {
        self.model().taken()
    }

    /// Number of bytes of reservations that are committed.
    pub fn committed(&self) -> usize {
        self.model().bytes(Access::Committed)
    }

    /// Sum of the microseconds of all calls of `Os::pause`, which return at once here.
    pub fn paused(&self) -> u64 {
        self.paused.load(Ordering::Relaxed)
    }

    /// Start and length of the ranges that may have huge pages, in the order of the calls.
    pub fn huge(&self) -> Vec<(usize, usize)> {
        self.huge_pages().allowed.clone()
    }

    /// Start and length of the ranges for which huge pages were forbidden, in the order of the calls.
    pub fn forbidden(&self) -> Vec<(usize, usize)> {
        self.huge_pages().forbidden.clone()
    }

    /// The addresses that were promoted, in the order of the calls.
    pub fn promoted(&self) -> Vec<usize> {
        self.huge_pages().promoted.clone()
    }

    /// Number of pages that the pool has left.
    pub fn left_in_pool(&self) -> usize {
        self.huge_pages().left()
    }

    /// Number of purged runs longer than a huge page that ended inside one.
    pub fn cut_huge_pages(&self) -> usize {
        self.huge_pages().cut
    }

    /// Maximum number of huge pages of which one call purged a part.
    pub fn cut_at_once(&self) -> usize {
        self.huge_pages().cut_at_once
    }
}
