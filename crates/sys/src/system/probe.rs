//! Which features the kernel has, and what neap does without them.
//!
//! | feature | since | how it is found out | without it |
//! |---|---|---|---|
//! | [`DISCARD`]: MADV_DONTNEED that clears OS pages | always; not in all emulators | the first OS page that goes back is checked | memory counts as dirty |
//! | [`LOCKED`]: MADV_DONTNEED_LOCKED | 5.18 | a call without a range, then as DISCARD | locked memory stays |
//! | [`POPULATE`]: MADV_POPULATE_WRITE | 5.14 | the first call's error | the faults come one by one |
//! | [`MOVE`]: MREMAP_DONTUNMAP | 5.7; not in qemu's user mode | a page is moved, and its old place given back | realloc copies |
//! | [`BARRIER`]: membarrier, private and expedited | 4.14 | the process is registered | there are no handshakes; a fork pauses |
//! | [`SCAN`]: PAGEMAP_SCAN | 6.7 | the first call's error | entries of /proc/self/pagemap are read, if it shows this process |
//! | [`HUGE`]: huge pages by madvise | 2.6.38 | /sys/kernel/mm/transparent_hugepage, when option `huge` is set | small pages |
//! | [`GUARD`]: MADV_GUARD_INSTALL | 6.13 | a page with a guard is read, when option `guards` is set | guards are made by mprotect |
//! | PR_THP_DISABLE_EXCEPT_ADVISED | 6.18 | at the call | `huge=advised` is as `adaptive` |
//! | MADV_COLLAPSE | 6.1 | each call's error | an area that has a page table gets small pages |
//! | MADV_WIPEONFORK | 4.14 | at each page that needs it | `space::COMMON`; no counters page |
//! | MAP_FIXED_NOREPLACE | 4.17 | the address that comes back | the address is a hint |
//! | files in memory, MFD_NOEXEC_SEAL | 3.17, 6.3 | at each page that needs one | a mapping without a name |
//! | CLOSE_RANGE_UNSHARE | 5.9 | when the helper starts | the helper opens no file |
//! | pidfd_open, pidfd_getfd | 5.6 | when the helper ends the process | its own standard error |
//! | getrandom | 3.17 | at each key | a key from the time and AT_RANDOM |
//! | the vDSO's clock | always; not under valgrind | at the first use | a system call |
//! | /proc, cgroups, seccomp | | at each read | "not known", see `lines`, `cgroup`, `filter` |
//!
//! A result is kept once it is known. A filter may come later, so [`Feature::is_usable`] checks that too.

use crate::system::filter::{self, Filter};
use core::sync::atomic::{AtomicU8, Ordering};

/// How common a call is among programs, and so how likely a filter allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rarity {
    /// All programs.
    Usual,
    /// Most programs: a filter that the program was started with allows it or refuses it ([`filter::hostile`]).
    Common,
}

/// What is known of a feature.
#[derive(Debug)]
pub struct Feature {
    state: AtomicU8,
    rarity: Rarity,
}

const UNKNOWN: u8 = 0;
const WORKS: u8 = 1;
const FAILS: u8 = 2;

/// See the table.
pub static DISCARD: Feature = Feature::new(Rarity::Usual);
/// See the table.
pub static LOCKED: Feature = Feature::new(Rarity::Common);
/// See the table.
pub static POPULATE: Feature = Feature::new(Rarity::Common);
/// See the table.
pub static MOVE: Feature = Feature::new(Rarity::Usual);
/// See the table.
pub static BARRIER: Feature = Feature::new(Rarity::Common);
/// See the table.
pub static HUGE: Feature = Feature::new(Rarity::Common);
/// See the table.
pub static SCAN: Feature = Feature::new(Rarity::Common);
/// See the table.
pub static GUARD: Feature = Feature::new(Rarity::Common);

impl Feature {
    /// A feature that was not tried yet.
    pub const fn new(rarity: Rarity) -> Feature {
        Feature { state: AtomicU8::new(UNKNOWN), rarity }
    }

    /// Whether the kernel has it; `None` before it was tried.
    #[inline]
    pub fn known(&self) -> Option<bool> {
        // Relaxed: all threads find the same.
        match self.state.load(Ordering::Relaxed) {
            UNKNOWN => None,
            state => Some(state == WORKS),
        }
    }

    /// Notes whether the kernel has it.
    pub fn note(&self, works: bool) {
        self.state.store(if works { WORKS } else { FAILS }, Ordering::Relaxed);
    }

    /// Whether it is known to work, and may be used now.
    #[inline]
    pub fn works(&self) -> bool {
        self.known() == Some(true) && (self.rarity == Rarity::Usual || !filter::is_forbidden())
    }

    /// Whether it may be tried now, also if it failed before.
    pub fn is_allowed(&self) -> bool {
        self.rarity == Rarity::Usual || filter::hostile() == Filter::No
    }

    /// Whether it may be used or tried now. A filter that may end the process for it is noted as a failure.
    pub fn is_usable(&self) -> bool {
        if self.known().is_some() {
            return self.works();
        }
        let filter = match self.rarity {
            Rarity::Usual => Filter::No,
            Rarity::Common => filter::hostile(),
        };
        if filter == Filter::Yes {
            self.note(false);
        }
        filter == Filter::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a feature that is used before it was tried, or tried again after it failed.
    #[test]
    fn what_is_found_out_stays() {
        for rarity in [Rarity::Usual, Rarity::Common] {
            let feature = Feature::new(rarity);
            assert!(feature.known().is_none() && !feature.works());
            feature.note(true);
            assert!(feature.works() && feature.is_usable());
            feature.note(false);
            assert!(feature.known() == Some(false) && !feature.works() && !feature.is_usable());
        }
    }
}
