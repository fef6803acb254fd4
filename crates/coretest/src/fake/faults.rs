//! Which calls of a fake system fail.

use core::sync::atomic::{AtomicU64, Ordering};

/// The calls that can fail, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Call {
    /// `Os::reserve`
    Reserve,
    /// `Os::reserve_zeros`
    ReserveZeros,
    /// `Os::commit`
    Commit,
    /// `Os::guard`
    Guard,
    /// `Os::map`
    Map,
    /// `Os::unmap`
    Unmap,
    /// `Os::remap`
    Remap,
    /// `Os::move_pages`
    MovePages,
    /// `Os::renew`
    Renew,
    /// `Os::purge`
    Purge,
    /// `Os::purge_runs`
    PurgeRuns,
    /// `Os::purge_lazily`
    PurgeLazily,
    /// `Os::populate`
    Populate,
    /// `Os::touched`
    Touched,
    /// `Os::barrier`
    Barrier,
    /// `Os::run_time`
    RunTime,
    /// `Os::memory`
    Memory,
    /// `Os::start_helper`
    StartPurger,
    /// `Os::unreserve`
    Unreserve,
}

/// Every kind, in the order of its number.
pub const CALLS: [Call; 19] = [
    Call::Reserve,
    Call::ReserveZeros,
    Call::Commit,
    Call::Guard,
    Call::Map,
    Call::Unmap,
    Call::Remap,
    Call::MovePages,
    Call::Renew,
    Call::Purge,
    Call::PurgeRuns,
    Call::PurgeLazily,
    Call::Populate,
    Call::Touched,
    Call::Barrier,
    Call::RunTime,
    Call::Memory,
    Call::StartPurger,
    Call::Unreserve,
];

/// The plan: one call of each kind by number, and calls by chance. Counts as it goes.
#[derive(Debug)]
pub struct Faults {
    count: [AtomicU64; CALLS.len()],
    /// For each kind the number of the call that fails, from 1; 0: none.
    nth: [AtomicU64; CALLS.len()],
    /// Chance of any call to fail, in 2^-32.
    chance: AtomicU64,
    random: AtomicU64,
    failed: AtomicU64,
}

impl Faults {
    /// No call fails.
    pub fn new(seed: u64) -> Self {
        Faults {
            count: [const { AtomicU64::new(0) }; CALLS.len()],
            nth: [const { AtomicU64::new(0) }; CALLS.len()],
            chance: AtomicU64::new(0),
            random: AtomicU64::new(!seed),
            failed: AtomicU64::new(0),
        }
    }

    /// The `n`-th call of this kind, counted from the fake's start at 1, will fail.
    pub fn fail_nth(&self, call: Call, n: u64) {
        self.nth[call as usize].store(n, Ordering::Relaxed);
    }

    /// From now on each call fails with this probability.
    pub fn fail_by_chance(&self, probability: f64) {
        self.chance.store((probability * 4_294_967_296.0) as u64, Ordering::Relaxed);
    }

    /// No call fails any more.
    pub fn clear(&self) {
        self.nth.iter().for_each(|n| n.store(0, Ordering::Relaxed));
        self.chance.store(0, Ordering::Relaxed);
    }

    /// Calls of this kind up to now, failed ones included.
    pub fn count(&self, call: Call) -> u64 {
        self.count[call as usize].load(Ordering::Relaxed)
    }

    /// Calls that were made to fail up to now, those that the system lacks included.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// A number below `n`: how much of a call goes through that fails half-way.
    pub(super) fn below(&self, n: usize) -> usize {
        mix(self.random.fetch_add(STEP, Ordering::Relaxed)) as usize % n.max(1)
    }

    /// Counts a call; false if it must fail, or does so always.
    pub(super) fn pass(&self, call: Call, always: bool) -> bool {
        let n = self.count[call as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let chance = self.chance.load(Ordering::Relaxed);
        let fails = always
            || n == self.nth[call as usize].load(Ordering::Relaxed)
            || (chance != 0 && mix(self.random.fetch_add(STEP, Ordering::Relaxed)) >> 32 < chance);
        if fails {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        !fails
    }
}

/// Step between the states of [`mix`]: splitmix64.
pub(crate) const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number that belongs to a state of splitmix64.
pub(crate) fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
