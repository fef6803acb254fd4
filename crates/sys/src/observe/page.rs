//! The counters page, which shows observers how much memory is where (layout: crates/counters): how it is made and
//! written.
//!
//! It is made at the first publication, so never in programs that stay small: a memory file, mapped shared and closed
//! at once, whose name observers find in /proc/PID/maps. Under a seccomp filter, which might end the process for an
//! unusual call, and where there are no memory files, it is a shared mapping without a name. A process that counts each
//! call (option `counters`) has its page in a file of a directory, and the gauges are there as well.
//!
//! **Fork.** The child must not write into its parent's page, however it was forked. So the kernel does not copy the
//! mapping (MADV_DONTFORK), and [`Page`] lies in memory that the kernel wipes: the child finds no page, and makes its
//! own at its first publication. The lock of publication is part of `Page`, so it is free in the child. One case is
//! left: a signal handler interrupts a publication, forks, and returns in the child. The child would fault.

use crate::observe::files::{Directory, map, memory_file};
use crate::observe::once::Made;
use crate::observe::prefault::Prefaulted;
use crate::system::call;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use neap_core::figures::Figures;
use neap_core::policy::{Limit, Policy, Setting};
use neap_counters::{Counters, FILE_BYTES, Gauges, MAGIC, NAME, VERSION};
use rustix::io::retry_on_intr;

const _: () = assert!(size_of::<Counters>() <= FILE_BYTES, "the page is as long as its file");

/// The pages of this process; all zero where it has none yet. Pages are never unmapped, and all their fields are
/// atomic.
#[derive(Debug)]
pub struct Page {
    /// The page in which this process counts its calls, if it counts.
    counts: AtomicPtr<Counters>,
    /// The page for gauges alone.
    own: Made<Counters>,
    /// Whether a thread publishes now: the lock of publication.
    publishing: AtomicBool,
}

impl Page {
    /// None yet.
    pub(crate) const fn new() -> Page {
        Page { counts: AtomicPtr::new(core::ptr::null_mut()), own: Made::new(), publishing: AtomicBool::new(false) }
    }

    /// The page in which this process counts, if it counts.
    #[inline]
    pub fn counts(&self) -> Option<&'static Counters> {
        // SAFETY: see above. Acquire pairs with the Release of `set_counts`.
        unsafe { self.counts.load(Ordering::Acquire).as_ref() }
    }

    /// From now on this process counts in `page`, or not at all.
    pub fn set_counts(&self, page: Option<&'static Counters>) {
        let page = page.map_or(core::ptr::null_mut(), |page| core::ptr::from_ref(page).cast_mut());
        self.counts.store(page, Ordering::Release);
    }

    /// Writes the gauges that `gauges` makes to the page. Where two threads publish at a time, only one does.
    #[cold]
    pub fn publish(&self, gauges: impl FnOnce() -> Gauges) {
        // Acquire pairs with the Release below: one update comes after the other.
        if self.publishing.swap(true, Ordering::Acquire) {
            return;
        }
        if let Some(page) = self.counts().or_else(|| self.own.get_or_make(|| true, new)) {
            page.set_gauges(&gauges());
        }
        self.publishing.store(false, Ordering::Release);
    }
}

fn new(filtered: bool) -> Option<&'static Counters> {
    let len = call::page_size();
    let p = if filtered { None } else { memory_file(NAME, len).and_then(|file| map(Some(&file), len, true)) };
    // SAFETY: zeroed, shared, as long as a page and never unmapped; all fields are atomic.
    let page = unsafe { &*p.or_else(|| map(None, len, true))?.cast::<Counters>() };
    // A filter may forbid even getpid.
    set_up(page, if filtered { 0 } else { call::process() }, false);
    Some(page)
}

/// A zeroed page in a new file of a directory. A child that is made without fork handlers does not use it, as its
/// [`Page`] is wiped. A child that is made with them makes its own.
pub fn in_directory(directory: &Directory) -> Option<&'static Counters> {
    /// A part of the page, as zeros take room in the library's file.
    const ZEROS: [u8; 512] = [0; 512];
    const { assert!(FILE_BYTES.is_multiple_of(ZEROS.len()), "the page is a whole number of parts") };
    if call::is_too_long(FILE_BYTES) {
        return None;
    }
    let p = directory.create(|file| {
        // Where the disk is full this write fails; without it the first store to the mapping would raise SIGBUS. Not
        // fallocate, because a filter that the program was started with may end the process for it.
        let write = |_| retry_on_intr(|| rustix::io::write(file, &ZEROS)) == Ok(ZEROS.len());
        let written = (0..FILE_BYTES / ZEROS.len()).all(write);
        if written { map(Some(file), FILE_BYTES, false) } else { None }
    })?;
    // SAFETY: zeroed, shared and never unmapped; all fields are atomic.
    Some(unsafe { &*p.cast::<Counters>() })
}

/// Fills in the header of a zeroed page, by which readers recognise it.
pub fn set_up(page: &Counters, pid: u32, exact: bool) {
    page.version.store(VERSION, Ordering::Relaxed);
    page.pid.store(pid, Ordering::Relaxed);
    page.size.store(size_of::<Counters>() as u32, Ordering::Relaxed);
    page.exact.store(exact.into(), Ordering::Relaxed);
    // Release: a reader that sees the magic sees the rest.
    page.magic.store(MAGIC, Ordering::Release);
}

/// The figures and the options, in the form of the page.
pub fn gauges(f: &Figures, policy: &Policy, purge_calls: u64, prefaulted: Prefaulted) -> Gauges {
    let limit = match policy.limit() {
        Limit::Off => 0,
        Limit::Auto => u64::MAX,
        Limit::Bytes(bytes) => bytes as u64,
    };
    Gauges {
        updated: f.clock,
        ticks: f.ticks,
        purger: u64::from(f.purger),
        policy: policy.purge() as u64,
        purge_delay: u64::from(policy.delay()),
        purge_bytes: policy.bytes().map_or(u64::MAX, |bytes| bytes as u64),
        limit,
        memory_limit: f.memory_limit,
        memory_used: f.memory_used,
        page_size: call::page_size() as u64,
        live_blocks: f.live_blocks,
        live_bytes: f.live,
        cached_blocks: f.cached_blocks,
        cached_bytes: f.cached,
        dirty_bytes: f.dirty,
        lazy_bytes: f.lazy,
        clean_bytes: f.clean,
        slab_bytes: f.slabs,
        slab_free_bytes: f.slab_free,
        large_blocks: f.large_blocks,
        large_bytes: f.large,
        huge_blocks: f.huge_blocks,
        huge_bytes: f.huge,
        heaps: f.heaps,
        purged_bytes: f.totals.purged,
        purge_calls,
        cleared_bytes: f.totals.cleared,
        skipped_bytes: f.totals.skipped,
        zero: policy.zero_always().into(),
        mmap_threshold: if policy.mmap_threshold() == usize::MAX { u64::MAX } else { policy.mmap_threshold() as u64 },
        foreign: policy.foreign_abort().into(),
        origins: policy.origins(),
        peak_bytes: f.peak,
        held_bytes: f.held.min(f.dirty),
        harden: policy.harden().into(),
        huge: policy.huge() as u64,
        hugetlb: policy.word(Setting::PoolOnly) as u64,
        prefault_bytes: prefaulted.bytes,
        prefault_faults: prefaulted.faults,
        prefault_microseconds: prefaulted.microseconds,
    }
}
