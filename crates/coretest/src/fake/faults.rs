//! Decides which calls of a fake system fail.

use core::sync::atomic::{AtomicU64, Ordering};

/// The kinds of calls that can fail.
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
    /// `Os::populate_huge`
    PopulateHuge,
    /// `Os::take_from_pool`
    TakeFromPool,
    /// `Os::promote`
    Promote,
    /// `Os::begin_use`
    BeginUse,
}

/// Every kind, at the index of its number.
pub const CALLS: [Call; 23] = [
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
    Call::PopulateHuge,
    Call::TakeFromPool,
    Call::Promote,
    Call::BeginUse,
];

/// Counts calls, and makes some fail: one call of each kind by its number, and calls at random.
#[derive(Debug)]
pub struct Faults {
    /// Number of calls of each kind.
    count: [AtomicU64; CALLS.len()],
    /// For each kind the number of the call that fails, from 1; 0: none.
    nth: [AtomicU64; CALLS.len()],
    /// Probability that any call fails, in units of 2^-32.
    chance: AtomicU64,
    random: AtomicU64,
    /// Number of calls that failed.
    failed: AtomicU64,
}

impl Faults {
    /// A plan in which no call fails.
    pub fn new(seed: u64) -> Self {
        Faults {
            count: [const { AtomicU64::new(0) }; CALLS.len()],
            nth: [const { AtomicU64::new(0) }; CALLS.len()],
            chance: AtomicU64::new(0),
            random: AtomicU64::new(!seed),
            failed: AtomicU64::new(0),
        }
    }

    /// Makes the `n`-th call of this kind fail, counted from 1 since the fake was made.
    pub fn fail_nth(&self, call: Call, n: u64) {
        self.nth[call as usize].store(n, Ordering::Relaxed);
    }

    /// Makes each call fail with this probability.
    pub fn fail_by_chance(&self, probability: f64) {
        self.chance.store((probability * 4_294_967_296.0) as u64, Ordering::Relaxed);
    }

    /// Lets all calls succeed again.
    pub fn clear(&self) {
        self.nth.iter().for_each(|n| n.store(0, Ordering::Relaxed));
        self.chance.store(0, Ordering::Relaxed);
    }

    /// Number of calls of this kind, including failed ones.
    pub fn count(&self, call: Call) -> u64 {
        self.count[call as usize].load(Ordering::Relaxed)
    }

    /// Number of calls that were made to fail, including those that the system lacks.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// A random number below `n`: how much of a call is done before it fails.
    pub(super) fn below(&self, n: usize) -> usize {
        mix(self.random.fetch_add(STEP, Ordering::Relaxed)) as usize % n.max(1)
    }

    /// Counts a call; false if it must fail. `always`: it fails each time.
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

/// Difference between successive states of [`mix`]: splitmix64.
pub(crate) const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The output of splitmix64 for a state.
pub(crate) fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
