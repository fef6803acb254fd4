//! The page that shows observers how much memory is where (layout: crates/counters).
//!
//! It is made at the first publication, so never in programs that stay small: a memory file, mapped shared and closed at
//! once, whose name observers find in /proc/PID/maps. Under a seccomp filter, which might end the process for an unusual
//! call, and where there are no memory files, it is a shared mapping without a name.
//!
//! **Fork.** The child must not write into its parent's page, however it was forked. So the kernel does not copy the
//! mapping (MADV_DONTFORK), and the pointer to it lies in memory that it wipes: the child finds no page and makes its own
//! when it has something to tell. The lock of publication lies there as well, so it is free in the child. What remains is
//! a child that is forked by a signal handler which interrupted a publication, and that returns from the handler: it would
//! fault. A handler that forks and returns inside of malloc has broken other rules before.
//!
//! A process that counts each call (option `counters`) has its page in a file, and the gauges are there as well.

use crate::global::NEAP;
use crate::space::{Space, is_guest, space};
use crate::status::{self, Filter};
use crate::{limits, purger};
use core::sync::atomic::Ordering;
use neap_core::Os;
use neap_core::figures::Figures;
use neap_core::policy::Limit;
use neap_counters::{Counters, FILE_BYTES, Gauges, MAGIC, NAME, VERSION};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{self, MapFlags, ProtFlags};

const _: () = assert!(size_of::<Counters>() <= FILE_BYTES, "the page is as long as its file");

/// Shows the figures. Where two threads want to at a time, one does.
#[cold]
pub fn publish(figures: &Figures, purge_calls: u64) {
    let page_size = NEAP.os.page_size();
    let Some(wiped) = space() else { return };
    // A child on its parent's memory may be killed in the middle: the parent would publish nothing any more.
    if is_guest(wiped) {
        return;
    }
    // Acquire pairs with the Release below: updates come one after the other.
    if wiped.publishing.swap(true, Ordering::Acquire) {
        return;
    }
    if let Some(page) = NEAP.os.counters().or_else(|| own(wiped, page_size)) {
        page.set_gauges(&gauges(figures, purge_calls));
    }
    wiped.publishing.store(false, Ordering::Release);
}

/// The process's own page, made where there is none yet.
fn own(wiped: &Space, page_size: usize) -> Option<&'static Counters> {
    let mut page = wiped.page.load(Ordering::Relaxed);
    if page.is_null() {
        if wiped.pageless.load(Ordering::Relaxed) {
            return None;
        }
        let filter = status::filter();
        if filter == Filter::Unknown {
            // Another publication makes it.
            return None;
        }
        let Some(new) = new(page_size, filter == Filter::Yes) else {
            wiped.pageless.store(true, Ordering::Relaxed);
            return None;
        };
        page = core::ptr::from_ref(new).cast_mut();
        wiped.page.store(page, Ordering::Relaxed);
    }
    // SAFETY: the page is never unmapped, and all its fields are atomic.
    unsafe { page.as_ref() }
}

fn new(page_size: usize, filtered: bool) -> Option<&'static Counters> {
    let p = if filtered { None } else { file(page_size).and_then(|f| map(Some(f), page_size)) };
    let p = p.or_else(|| map(None, page_size))?;
    // SAFETY: zeroed, shared, as long as a page and never unmapped; all fields are atomic.
    let page = unsafe { &*p.cast::<Counters>() };
    // Under a filter not even getpid is sure.
    let pid = if filtered { 0 } else { status::process() };
    set_up(page, pid, false);
    Some(page)
}

/// Makes a zeroed page one that readers know.
pub fn set_up(page: &Counters, pid: u32, exact: bool) {
    page.version.store(VERSION, Ordering::Relaxed);
    page.pid.store(pid, Ordering::Relaxed);
    page.size.store(size_of::<Counters>() as u32, Ordering::Relaxed);
    page.exact.store(exact.into(), Ordering::Relaxed);
    // Release: whoever sees the magic sees the rest.
    page.magic.store(MAGIC, Ordering::Release);
}

/// A memory file of one OS page, or `None`.
fn file(len: usize) -> Option<OwnedFd> {
    if limits::is_too_long(len) {
        return None;
    }
    // Since 6.3 kernels want to be told that nobody will execute it.
    let file = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC))
        .ok()?;
    // Not ftruncate: where memory is short this fails, instead of the first write to the mapping with SIGBUS.
    // Without signals: one would end it (EINTR), and the page would have no name.
    purger::without_signals(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64)).ok()?;
    Some(file)
}

/// A shared mapping of the file, or without one, that is not there in the child of a fork.
fn map(file: Option<OwnedFd>, len: usize) -> Option<*mut u8> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping, which goes if it would be copied.
    unsafe {
        let p = match &file {
            Some(file) => mm::mmap(core::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0),
            None => mm::mmap_anonymous(core::ptr::null_mut(), len, access, MapFlags::SHARED),
        };
        let p = p.ok()?;
        if mm::madvise(p, len, mm::Advice::LinuxDontFork).is_err() {
            let _ = mm::munmap(p, len);
            return None;
        }
        Some(p.cast())
    }
}

fn gauges(f: &Figures, purge_calls: u64) -> Gauges {
    let policy = &NEAP.policy;
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
        page_size: NEAP.os.page_size() as u64,
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
    }
}
