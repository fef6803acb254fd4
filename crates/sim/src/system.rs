//! The simulated system itself: its memory, what it lacks and refuses, and its delays. `os.rs` has its calls.

use crate::config::Config;
use crate::finding;
use crate::life::Life;
use crate::memory::{READ_WRITE, protect};
use crate::process::Process;
use crate::random::Random;
use crate::sched::late;
use core::cell::UnsafeCell;
use neap_core::helper::Helper;
use neap_coretest::fake::model::{Access, Model};
use std::collections::BTreeSet;

/// Bytes of the machine's OS page.
pub(crate) const HOST: usize = 4096;
/// The address for mappings of huge blocks and the page map.
pub(crate) const MAPPINGS: usize = 0x3000_0000_0000;
const END_OF_MAPPINGS: usize = 0x4000_0000_0000;

pub(crate) struct State {
    pub(crate) model: Model,
    pub(crate) random: Random,
    pub(crate) reservations: u64,
    /// Whether nothing is refused any longer.
    pub(crate) kind: bool,
    /// Number of refused calls.
    pub(crate) refused: u64,
    /// OS pages that are inaccessible guards.
    pub(crate) guards: BTreeSet<usize>,
}

/// The simulated system.
pub struct System {
    pub(crate) config: Config,
    pub(crate) helper: Helper,
    /// What the system says of the process.
    pub process: Process,
    state: UnsafeCell<State>,
    lives: UnsafeCell<Vec<Life>>,
}

// SAFETY: there is one real thread.
unsafe impl Sync for System {}

impl System {
    /// A system like `config`.
    pub fn new(config: Config) -> Self {
        let random = Random::new(config.seed, 2);
        let state = State {
            model: Model::default(),
            random,
            reservations: 0,
            kind: false,
            refused: 0,
            guards: BTreeSet::new(),
        };
        System {
            process: Process::new(config.clone()),
            config,
            helper: Helper::new(),
            state: UnsafeCell::new(state),
            lives: UnsafeCell::default(),
        }
    }

    #[expect(clippy::mut_from_ref, reason = "one real thread; no reference lives over a point")]
    pub(crate) fn state(&self) -> &mut State {
        // SAFETY: as said.
        unsafe { &mut *self.state.get() }
    }

    /// The storage of each thread.
    #[expect(clippy::mut_from_ref, reason = "one real thread; no reference lives over a point")]
    pub fn lives(&self) -> &mut Vec<Life> {
        // SAFETY: as said.
        unsafe { &mut *self.lives.get() }
    }

    /// Makes all stores of all threads visible.
    pub fn flush_all(&self) {
        self.lives().iter_mut().for_each(Life::flush);
    }

    /// From now on refuses only what the system lacks.
    pub fn be_kind(&self) {
        self.state().kind = true;
        self.process.be_kind();
    }

    /// Number of calls refused so far.
    pub fn refused(&self) -> u64 {
        self.state().refused
    }

    /// Number of OS pages that are guards.
    pub fn guards(&self) -> usize {
        self.state().guards.len()
    }

    pub(crate) fn lacks(&self, what: u64) -> bool {
        self.config.missing & what != 0
    }

    /// Whether a call is refused by chance, or because the system lacks it.
    pub(crate) fn refuses(&self, what: u64) -> bool {
        let s = self.state();
        let by_chance = !s.kind && s.random.below(1000) < self.config.fault as usize;
        let refuses = self.lacks(what) || by_chance || self.process.is_refusing();
        s.refused += u64::from(refuses);
        refuses
    }

    pub(crate) fn late(&self) {
        late(self.config.late);
    }

    /// Delays a purge: the moment between a decision and its effect matters most.
    pub(crate) fn very_late(&self) {
        late(self.config.purges);
    }

    pub(crate) fn below(&self, n: usize) -> usize {
        if n == 0 { 0 } else { self.state().random.below(n) }
    }

    pub(crate) fn fits(&self, more: usize) -> bool {
        self.config.address_limit == 0
            || !self.process.is_limited()
            || self.state().model.taken() + more <= self.config.address_limit as usize
    }

    pub(crate) fn whole_pages(&self, what: &str, address: usize, len: usize) {
        let page = self.config.page as usize;
        if len == 0 || !address.is_multiple_of(page) || !len.is_multiple_of(page) {
            finding(&format!("{what}({address:#x}, {len:#x}): not whole OS pages"));
        }
    }

    pub(crate) fn require(&self, what: &str, p: *mut u8, len: usize, allowed: &[Access]) {
        self.whole_pages(what, p.addr(), len);
        self.state().model.require(what, p.addr(), len, allowed);
    }

    /// Calls `f` with a few parts of the range, in order, with points in between.
    pub(crate) fn in_parts(&self, p: *mut u8, len: usize, mut f: impl FnMut(*mut u8, usize)) {
        let page = self.config.page as usize;
        let mut from = 0;
        while from < len {
            let left = (len - from) / page;
            let part = if self.below(2) == 0 { left } else { 1 + self.below(left) } * page;
            f(p.wrapping_add(from), part);
            from += part;
            self.late();
        }
    }

    /// Address space for a mapping: the first gap that is long enough, because kernels reuse addresses at once.
    pub(crate) fn gap(&self, len: usize, align: usize) -> usize {
        let mut at = MAPPINGS;
        for (from, to) in self.state().model.all().filter(|&(from, _)| from >= MAPPINGS) {
            if from >= at + len {
                break;
            }
            at = to.next_multiple_of(align);
        }
        if at + len > END_OF_MAPPINGS {
            finding("the simulation has no address space left");
        }
        at
    }

    pub(crate) fn set(&self, p: *mut u8, len: usize, protection: i32, access: Access) {
        protect(p, len, protection);
        self.state().model.set(p.addr(), len, access);
    }

    pub(crate) unsafe fn drop_pages(&self, p: *mut u8, len: usize) {
        // SAFETY: as the caller promises.
        let done = unsafe { libc::madvise(p.cast(), len, libc::MADV_DONTNEED) };
        assert_eq!(done, 0, "madvise");
    }

    /// Does a commit, or a part of one.
    pub(crate) fn commit_parts(&self, p: *mut u8, len: usize, unguards: bool) {
        self.in_parts(p, len, |p, len| {
            self.set(p, len, READ_WRITE, Access::Committed);
            let guards = &mut self.state().guards;
            let lost = guards.range(p.addr()..p.addr() + len).next().copied();
            if let Some(guard) = lost.filter(|_| !unguards) {
                finding(&format!("a commit of more than an OS page makes the guard at {guard:#x} accessible"));
            }
            guards.remove(&p.addr());
        });
    }

    /// Resizes a mapping in place; false if there is no room.
    pub(crate) unsafe fn resize_here(&self, p: *mut u8, old: usize, new: usize) -> bool {
        let model = &mut self.state().model;
        let (from, end) = (p.addr(), p.addr() + old);
        if new < old {
            // SAFETY: the tail of a mapping of this system that the caller gives up.
            let done = unsafe { libc::munmap(p.wrapping_add(new).cast(), old - new) };
            assert_eq!(done, 0, "munmap");
            model.remove(from + new, old - new);
            return true;
        }
        let next = model.all().map(|(from, _)| from).find(|&from| from >= end).unwrap_or(END_OF_MAPPINGS);
        if new == old || next < from + new {
            return new == old;
        }
        // One mapping, because it may be moved later. SAFETY: a mapping of this system, behind which nothing lies.
        let grown = unsafe { libc::mremap(p.cast(), old, new, 0) };
        assert_eq!(grown.addr(), from, "mremap");
        model.remove(from, old);
        model.add(from, new, Access::Mapped);
        true
    }

    /// Purges a range in parts.
    pub(crate) unsafe fn purge_parts(&self, what: &str, p: *mut u8, len: usize) {
        self.in_parts(p, len, |p, len| {
            self.require(what, p, len, &[Access::Committed, Access::Mapped]);
            // SAFETY: as the caller promises.
            unsafe { self.drop_pages(p, len) };
        });
    }
}

impl Drop for System {
    fn drop(&mut self) {
        for (from, to) in self.state().model.all() {
            // SAFETY: the system mapped this range, and its users are gone.
            unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(from), to - from) };
        }
    }
}
