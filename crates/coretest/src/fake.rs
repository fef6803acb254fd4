//! A fake system with real memory. It checks every call against the preconditions of [`Os`], counts it, and makes it
//! fail on request. OS pages may be larger than the machine's, and features may be missing. The test controls clock,
//! memory limit and swap.
//!
//! Each [`Fake`] is a separate system: a process may have many at the same time, and each unmaps its memory when it is
//! dropped.

mod config;
mod controls;
mod faults;
mod huge;
mod kernel;
mod log;
pub mod model;
mod pagemap;
mod pages;
mod swap;
mod threads;
mod within;

pub use config::Config;
pub use faults::{CALLS, Call, Faults};
use huge::Huge;
use kernel::{READ_WRITE, mmap, mmap_aligned};
use log::{ALLOW_HUGE, Log, PAUSE, PUBLISH};
use model::{Access, Model};
use pagemap::{HOST_PAGE, Pagemap};
pub use pages::{Page, Usage};
use swap::Swap;
pub use within::Moment;
use within::Within;

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use neap_core::Os;
use neap_core::figures::Figures;
use neap_core::helper::Helper;
use neap_core::os::{Memory, Moved, Onward, Run, Thread, Touched};
use neap_core::pages::layout::HUGE_PAGE;
use neap_core::sync::AtomicU32;
use std::ops::Range;
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

/// Initial value of [`Os::clock`], as if the system had run for a while.
const CLOCK: u64 = 1_000_000;

/// The fake system.
#[derive(Debug)]
pub struct Fake {
    config: Config,
    /// Which calls fail.
    pub faults: Faults,
    random: AtomicU64,
    /// Number of reservations at a chosen address.
    reservations: AtomicU64,
    /// Limit on address space; `usize::MAX`: none.
    address_limit: AtomicUsize,
    /// Result of [`Os::data_limit`]; `usize::MAX`: none. It is not enforced, as if it were raised right afterwards.
    data_limit: AtomicUsize,
    clock: AtomicU64,
    /// Result of [`Os::run_time`].
    ran: AtomicU64,
    /// Microseconds of all calls of [`Os::pause`].
    paused: AtomicU64,
    /// Number of calls of [`Os::publish`].
    published: AtomicU64,
    memory: Mutex<Option<Memory>>,
    model: Mutex<Model>,
    pagemap: Pagemap,
    helper: Helper,
    process: AtomicU32,
    /// The swap device, set at its first use. `None`: the system has none.
    swap: OnceLock<Option<Swap>>,
    /// Ranges that were purged lazily and that [`Fake::reclaim`] has not taken back yet; some may be in use again.
    lazy: Mutex<Vec<(usize, usize)>>,
    huge: Mutex<Huge>,
    /// Result of [`Os::onward`].
    onward: Mutex<Onward>,
    /// Whether the system says when memory is short, and how often it does so next.
    watches: AtomicBool,
    reports: AtomicU64,
    within: Within,
    /// The calls up to now.
    log: Mutex<Log>,
    /// Number of calls for which [`Os::has_ended`] still returns false.
    living: AtomicU64,
}

impl Fake {
    /// A system like `config`.
    pub fn new(config: Config) -> Self {
        assert!(config.page_size.is_power_of_two() && (HOST_PAGE..=65536).contains(&config.page_size));
        assert_ne!(config.touched_runs, Some(0), "`touched` must get on");
        Fake {
            faults: Faults::new(config.seed),
            random: AtomicU64::new(config.seed),
            reservations: AtomicU64::new(0),
            address_limit: AtomicUsize::new(config.address_limit.unwrap_or(usize::MAX)),
            data_limit: AtomicUsize::new(usize::MAX),
            clock: AtomicU64::new(CLOCK),
            ran: AtomicU64::new(0),
            paused: AtomicU64::new(0),
            published: AtomicU64::new(0),
            memory: Mutex::new(config.memory),
            model: Mutex::new(Model::default()),
            pagemap: Pagemap::open(),
            helper: Helper::new(),
            process: AtomicU32::new(1),
            swap: OnceLock::new(),
            lazy: Mutex::new(Vec::new()),
            huge: Mutex::new(Huge::new(config.pool.map_or(0, |(pages, _)| pages))),
            onward: Mutex::new(Onward::Go),
            watches: AtomicBool::new(false),
            reports: AtomicU64::new(0),
            within: Within::default(),
            log: Mutex::default(),
            living: AtomicU64::new(u64::MAX),
            config,
        }
    }

    fn limit(&self) -> Option<usize> {
        Some(self.address_limit.load(Ordering::Relaxed)).filter(|&limit| limit != usize::MAX)
    }

    /// Locks the model. Works after a panic in another thread too, so that a failing test reports the first failure.
    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The calls up to now.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn huge_pages(&self) -> MutexGuard<'_, Huge> {
        self.huge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a part of a range has pages of the pool: the system refuses to purge, move or protect these.
    fn is_pool(&self, p: *mut u8, len: usize) -> bool {
        self.huge_pages().has(p.addr(), len)
    }

    /// Whether a call succeeds: the test does not make it fail, and the system has it.
    fn granted(&self, call: Call) -> bool {
        let missing = self.config.missing.contains(&call);
        let granted = self.faults.pass(call, missing);
        self.log().note(call as u64, 0, granted.into());
        granted
    }

    /// Panics unless address and length are whole OS pages of this system.
    fn whole_pages(&self, call: Call, address: usize, len: usize) {
        self.log().note(call as u64, address, len);
        let page = self.config.page_size;
        assert!(
            len > 0 && address.is_multiple_of(page) && len.is_multiple_of(page),
            "{call:?}({address:#x}, {len:#x}): not whole OS pages of {page:#x} bytes"
        );
    }

    fn fits(&self, model: &Model, more: usize) -> bool {
        self.limit().is_none_or(|limit| model.taken() + more <= limit)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.swap.take());
        let model = self.model.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (from, to) in model.all() {
            // SAFETY: the fake mapped this range, and nothing uses it after the fake.
            unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(from), to - from) };
        }
    }
}

/// Writes to each page of a range, without changing what it reads as.
///
/// # Safety
/// The range must be committed, and no other thread may use it.
unsafe fn touch(p: *mut u8, len: usize) {
    for at in (0..len).step_by(HOST_PAGE) {
        // SAFETY: as the caller promises.
        unsafe {
            let word = p.add(at).cast::<u64>();
            word.write_volatile(word.read_volatile());
        }
    }
}

// SAFETY: memory comes from fresh mappings, which the model records; each call does what the trait says.
unsafe impl Os for Fake {
    fn page_size(&self) -> usize {
        self.config.page_size
    }

    /// Under ThreadSanitizer a process may use only three address ranges: arenas lie in the one for programs.
    fn places(&self) -> Range<usize> {
        if let Some(places) = &self.config.places {
            return places.clone();
        }
        static SANITIZED: LazyLock<bool> =
            LazyLock::new(|| std::env::var_os("NEAP_TEST_SANITIZER").is_some_and(|name| name == "thread"));
        if *SANITIZED { 0x5500_0000_0000..0x5a00_0000_0000 } else { 1 << 40..0x5400_0000_0000 }
    }

    fn reserve(&self, at: usize, len: usize) -> Option<*mut u8> {
        self.whole_pages(Call::Reserve, at, len);
        let mut model = self.model();
        if !self.granted(Call::Reserve) || !self.fits(&model, len) {
            return None;
        }
        let used_up = self.config.reservations.is_some_and(|n| self.reservations.load(Ordering::Relaxed) >= n);
        if used_up {
            return None;
        }
        let p = mmap(at, len, libc::PROT_NONE, libc::MAP_FIXED_NOREPLACE)?;
        self.reservations.fetch_add(1, Ordering::Relaxed);
        self.log().hand_out(at, len);
        assert_eq!(p.addr(), at, "the tests need a kernel with MAP_FIXED_NOREPLACE");
        model.add(p.expose_provenance(), len, Access::Reserved);
        Some(p)
    }

    /// Unmaps the range; no later call may use it.
    unsafe fn unreserve(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::Unreserve, p.addr(), len);
        let mut model = self.model();
        model.require("unreserve", p.addr(), len, &[Access::Reserved, Access::Zeros, Access::Committed]);
        if !self.granted(Call::Unreserve) {
            return false;
        }
        self.forget_swapped(p.addr(), len);
        // SAFETY: the range is a reservation of this fake that the caller gives up.
        let done = unsafe { libc::munmap(p.cast(), len) } == 0;
        if done {
            model.remove(p.addr(), len);
        }
        done
    }

    fn reserve_zeros(&self, len: usize) -> Option<*mut u8> {
        self.whole_pages(Call::ReserveZeros, 0, len);
        let mut model = self.model();
        if !self.granted(Call::ReserveZeros) || !self.fits(&model, len) {
            return None;
        }
        let p = mmap_aligned(len, self.config.page_size, libc::PROT_READ)?;
        model.add(p.expose_provenance(), len, Access::Zeros);
        self.log().hand_out(p.addr(), len);
        Some(p)
    }

    unsafe fn commit(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::Commit, p.addr(), len);
        let mut model = self.model();
        model.require("commit", p.addr(), len, &[Access::Reserved, Access::Zeros, Access::Committed]);
        if !self.granted(Call::Commit) {
            return false;
        }
        // SAFETY: the range lies in a reservation of this fake, as the model has just confirmed.
        let done = unsafe { libc::mprotect(p.cast(), len, READ_WRITE) } == 0;
        if done {
            model.set(p.addr(), len, Access::Committed);
        }
        done
    }

    unsafe fn begin_use(&self, parts: &[Run], map: Run) -> bool {
        let model = self.model();
        for part in parts.iter().chain([&map]).filter(|part| part.len > 0) {
            self.whole_pages(Call::BeginUse, part.start.addr(), part.len);
            model.require("begin_use", part.start.addr(), part.len, &[Access::Committed]);
        }
        self.granted(Call::BeginUse)
    }

    unsafe fn guard(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::Guard, p.addr(), len);
        let mut model = self.model();
        model.require("guard", p.addr(), len, &[Access::Committed]);
        if !self.granted(Call::Guard) || self.is_pool(p, len) {
            return false;
        }
        // SAFETY: the range lies in a reservation of this fake, as the model has just confirmed.
        let done = unsafe { libc::mprotect(p.cast(), len, libc::PROT_NONE) } == 0;
        if done {
            model.set(p.addr(), len, Access::Reserved);
        }
        done
    }

    fn map(&self, len: usize, align: usize) -> Option<*mut u8> {
        self.whole_pages(Call::Map, align, len);
        assert!(align.is_power_of_two(), "map: alignment {align:#x}");
        let mut model = self.model();
        if !self.granted(Call::Map) || !self.fits(&model, len) {
            return None;
        }
        let p = mmap_aligned(len, align, READ_WRITE)?;
        model.add(p.expose_provenance(), len, Access::Mapped);
        self.log().hand_out(p.addr(), len);
        Some(p)
    }

    unsafe fn unmap(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::Unmap, p.addr(), len);
        let mut model = self.model();
        model.require_mapping("unmap", p.addr(), len);
        if !self.granted(Call::Unmap) {
            return false;
        }
        self.forget_swapped(p.addr(), len);
        // SAFETY: the range is (the tail of) a mapping of this fake that the caller gives up.
        let done = unsafe { libc::munmap(p.cast(), len) } == 0;
        if done {
            model.remove(p.addr(), len);
        }
        done
    }

    unsafe fn remap(&self, p: *mut u8, old: usize, new: usize) -> Option<*mut u8> {
        self.whole_pages(Call::Remap, p.addr(), old);
        self.whole_pages(Call::Remap, 0, new);
        let mut model = self.model();
        model.require_whole_mapping("remap", p.addr(), old);
        if !self.granted(Call::Remap) || !self.fits(&model, new.saturating_sub(old)) {
            return None;
        }
        // mremap requires a single mapping.
        self.swap_in(p.addr(), old);
        let moved = if new <= old {
            // SAFETY: the range is a mapping of this fake, which the caller gives up.
            unsafe { libc::mremap(p.cast(), old, new, 0) }
        } else {
            // Always at another address, so that a caller cannot rely on the old one; aligned to simulated OS pages.
            let to = mmap_aligned(new, self.config.page_size, libc::PROT_NONE)?;
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: as above; the target has just been mapped for it.
            unsafe { libc::mremap(p.cast(), old, new, flags, to) }
        };
        assert_ne!(moved, libc::MAP_FAILED, "mremap of a mapping of the fake");
        model.remove(p.addr(), old);
        model.add(moved.expose_provenance(), new, Access::Mapped);
        self.log().hand_out(moved.addr(), new);
        Some(moved.cast())
    }

    /// A call that is made to fail leaves the contents of `to`, or clears them, or unmaps `to`.
    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, len: usize) -> Moved {
        self.whole_pages(Call::MovePages, from.addr(), len);
        self.whole_pages(Call::MovePages, to.addr(), len);
        assert!(from.addr().abs_diff(to.addr()) >= len, "move_pages: {from:p} and {to:p} overlap");
        let mut model = self.model();
        model.require("move_pages from", from.addr(), len, &[Access::Committed]);
        model.require("move_pages to", to.addr(), len, &[Access::Committed]);
        if self.is_pool(from, len) || self.is_pool(to, len) {
            return Moved::Not;
        }
        if !self.granted(Call::MovePages) {
            let half_way = if self.config.missing.contains(&Call::MovePages) { 0 } else { self.faults.below(3) };
            if half_way == 0 {
                return Moved::Not;
            }
            self.forget_swapped(to.addr(), len);
            let access = if half_way == 1 { READ_WRITE } else { libc::PROT_NONE };
            mmap(to.addr(), len, access, libc::MAP_FIXED).expect("address space that was there");
            if half_way == 1 {
                return Moved::Not;
            }
            model.set(to.addr(), len, Access::Lost);
            return Moved::Lost;
        }
        self.swap_in(from.addr(), len);
        self.forget_swapped(to.addr(), len);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: both ranges are committed; the contents of `to` are not needed.
        let moved = unsafe { libc::mremap(from.cast(), len, len, flags, to) };
        assert_ne!(moved, libc::MAP_FAILED, "mremap of memory of the fake");
        Moved::Done
    }

    /// A call that is made to fail leaves the range unchanged, or unmaps it.
    unsafe fn renew(&self, p: *mut u8, len: usize) -> Moved {
        self.whole_pages(Call::Renew, p.addr(), len);
        let mut model = self.model();
        model.require("renew", p.addr(), len, &[Access::Committed]);
        if self.is_pool(p, len) {
            return Moved::Not;
        }
        if !self.granted(Call::Renew) {
            if self.config.missing.contains(&Call::Renew) || self.faults.below(2) == 0 {
                return Moved::Not;
            }
            self.forget_swapped(p.addr(), len);
            mmap(p.addr(), len, libc::PROT_NONE, libc::MAP_FIXED).expect("address space that was there");
            model.set(p.addr(), len, Access::Lost);
            return Moved::Lost;
        }
        self.forget_swapped(p.addr(), len);
        mmap(p.addr(), len, READ_WRITE, libc::MAP_FIXED).expect("address space that was there");
        Moved::Done
    }

    unsafe fn purge(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::Purge, p.addr(), len);
        let model = self.model();
        model.require("purge", p.addr(), len, &[Access::Committed, Access::Mapped]);
        // SAFETY: the range is writable and holds nothing that is needed.
        self.granted(Call::Purge) && !self.is_pool(p, len) && unsafe { self.drop_pages(p, len) }
    }

    /// A call that is made to fail purges some of the runs, from the first on.
    unsafe fn purge_runs(&self, runs: &[Run]) -> usize {
        self.within.reach(Moment::PurgeRuns);
        let model = self.model();
        for run in runs {
            self.whole_pages(Call::PurgeRuns, run.start.addr(), run.len);
            model.require("purge_runs", run.start.addr(), run.len, &[Access::Committed]);
        }
        self.huge_pages().note_purge(runs);
        let most = if self.granted(Call::PurgeRuns) {
            runs.len()
        } else if self.config.missing.contains(&Call::PurgeRuns) {
            0
        } else {
            self.faults.below(runs.len())
        };
        // SAFETY: as for `purge`, for each run.
        let purge = |run: &&Run| !self.is_pool(run.start, run.len) && unsafe { self.drop_pages(run.start, run.len) };
        runs[..most].iter().take_while(purge).count()
    }

    /// Uses the kernel's MADV_FREE; [`Fake::reclaim`] makes the kernel take the pages. Pages that were swapped out are
    /// dropped at once.
    unsafe fn purge_lazily(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::PurgeLazily, p.addr(), len);
        let model = self.model();
        model.require("purge_lazily", p.addr(), len, &[Access::Committed]);
        // SAFETY: the range is committed and holds nothing that is needed.
        self.granted(Call::PurgeLazily) && !self.is_pool(p, len) && unsafe { self.free_pages(p, len) }
    }

    /// Only checks and records the range: huge pages do not change the contents of memory.
    unsafe fn allow_huge(&self, p: *mut u8, len: usize) -> bool {
        self.model().require("allow_huge", p.addr(), len, &[Access::Committed]);
        self.log().note(ALLOW_HUGE, p.addr(), len);
        self.huge_pages().allowed.push((p.addr(), len));
        true
    }

    /// Dense: at least three quarters of the pages hold memory.
    unsafe fn is_dense(&self, p: *mut u8, len: usize) -> bool {
        assert!(len == HUGE_PAGE);
        self.model().require("is_dense", p.addr(), len, &[Access::Committed, Access::Lost]);
        let mut held = 0;
        self.pagemap.held(p.addr(), p.addr() + len, |from, to| {
            held += to - from;
            true
        });
        self.has_huge_pages(true) && held >= len - len / 4
    }

    /// Takes a millisecond.
    unsafe fn promote(&self, p: *mut u8, len: usize) -> Option<u32> {
        self.whole_pages(Call::Promote, p.addr(), len);
        assert!(p.addr().is_multiple_of(HUGE_PAGE) && len == HUGE_PAGE);
        self.model().require("promote", p.addr(), len, &[Access::Committed]);
        self.huge_pages().promoted.push(p.addr());
        self.granted(Call::Promote).then_some(1000)
    }

    fn pool_page(&self) -> Option<usize> {
        let (_, only) = self.config.pool?;
        (only || self.huge_pages().left() > 0).then_some(HUGE_PAGE)
    }

    /// Has the pages of the host. A call that is made to fail loses the range.
    unsafe fn take_from_pool(&self, p: *mut u8, len: usize) -> Moved {
        assert!(p.addr().is_multiple_of(HUGE_PAGE) && len.is_multiple_of(HUGE_PAGE), "whole pages of the pool");
        let mut model = self.model();
        model.require("take_from_pool", p.addr(), len, &[Access::Committed]);
        if !self.granted(Call::TakeFromPool) {
            mmap(p.addr(), len, libc::PROT_NONE, libc::MAP_FIXED).expect("address space that was there");
            model.set(p.addr(), len, Access::Lost);
            return Moved::Lost;
        }
        match self.huge_pages().take(p.addr(), len) {
            true => Moved::Done,
            false => Moved::Not,
        }
    }

    fn has_huge_pages(&self, asked: bool) -> bool {
        self.config.huge && !(asked && self.config.unasked_huge)
    }

    /// Only checks and records the range.
    unsafe fn set_huge(&self, p: *mut u8, len: usize, allow: bool) {
        assert!(p.addr().is_multiple_of(HOST_PAGE) && len.is_multiple_of(HOST_PAGE));
        let huge = &mut *self.huge_pages();
        if allow { &mut huge.allowed } else { &mut huge.forbidden }.push((p.addr(), len));
    }

    /// Writes to each page, or only to the first where the call is made to fail.
    unsafe fn populate_huge(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::PopulateHuge, p.addr(), len);
        assert!(len == HUGE_PAGE && p.addr().is_multiple_of(len), "a whole huge page");
        self.model().require("populate_huge", p.addr(), len, &[Access::Committed]);
        // SAFETY: the range is committed and the caller's.
        assert_eq!(unsafe { self.first_nonzero(p, len) }, None, "it reads as zero");
        let granted = self.granted(Call::PopulateHuge);
        let most = if granted { len } else { HOST_PAGE };
        // SAFETY: the range is committed and the caller's.
        unsafe { touch(p, most) };
        granted
    }

    /// Writes to each page, because the machine's kernel may lack the call. A call that is made to fail populates a
    /// part.
    unsafe fn populate(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::Populate, p.addr(), len);
        let model = self.model();
        model.require("populate", p.addr(), len, &[Access::Committed]);
        let granted = self.granted(Call::Populate);
        let most = match granted {
            true => len,
            false if self.config.missing.contains(&Call::Populate) => 0,
            false => self.faults.below(len / self.config.page_size) * self.config.page_size,
        };
        // SAFETY: the range is committed and the caller's.
        unsafe { touch(p, most) };
        granted || most > 0
    }

    unsafe fn touched(&self, p: *mut u8, len: usize, runs: &mut [Run]) -> Option<Touched> {
        self.whole_pages(Call::Touched, p.addr(), len);
        assert!(!runs.is_empty(), "touched({p:p}, {len:#x}): no room for a single run");
        let model = self.model();
        // Figures of resident memory ask for whole arenas, in which parts may be lost.
        let any = [Access::Committed, Access::Reserved, Access::Zeros, Access::Mapped, Access::Lost];
        model.require("touched", p.addr(), len, &any);
        self.granted(Call::Touched).then(|| self.find_touched(p, len, runs))
    }

    /// True: [`Os::barrier`] is a real one.
    fn prepare_barrier(&self) -> bool {
        true
    }

    fn barrier(&self) -> bool {
        self.granted(Call::Barrier) && kernel::membarrier()
    }

    /// Advances only by [`Fake::advance`].
    fn clock(&self) -> u64 {
        self.within.reach(Moment::Clock);
        self.clock.load(Ordering::Relaxed)
    }

    /// Advances only by [`Fake::run_for`].
    fn run_time(&self) -> Option<u64> {
        self.granted(Call::RunTime).then(|| self.ran.load(Ordering::Relaxed))
    }

    fn memory(&self) -> Option<Memory> {
        let memory = *self.memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        memory.filter(|_| self.granted(Call::Memory))
    }

    fn publish(&self, _: &Figures) {
        self.log().note(PUBLISH, 0, 0);
        self.published.fetch_add(1, Ordering::Relaxed);
        self.within.reach(Moment::Publish);
    }

    fn onward(&self) -> Onward {
        *self.onward.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn helper(&self) -> &Helper {
        &self.helper
    }

    fn address_limit(&self) -> Option<usize> {
        self.limit().map(|limit| limit.saturating_sub(self.taken()))
    }

    fn data_limit(&self) -> Option<usize> {
        Some(self.data_limit.load(Ordering::Relaxed)).filter(|&limit| limit != usize::MAX)
    }

    fn random(&self) -> u64 {
        faults::mix(self.random.fetch_add(faults::STEP, Ordering::Relaxed))
    }

    fn thread_id(&self) -> u32 {
        // SAFETY: gettid has no preconditions.
        unsafe { libc::gettid() as u32 }
    }

    fn thread_to_ask_for(&self) -> Option<Thread> {
        Some(Thread { number: 1, place: 1 })
    }

    fn has_ended(&self, _: Thread) -> bool {
        self.within.reach(Moment::Question);
        self.living.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }

    fn pause(&self, microseconds: u32) {
        self.paused.fetch_add(microseconds.into(), Ordering::Relaxed);
        self.log().note(PAUSE, 0, microseconds as usize);
        self.within.reach(Moment::Pause);
    }

    /// Panics with the line as its message, so that a test can catch it.
    fn die(&self, line: &[u8], _block: *const u8) -> ! {
        panic!("{}", String::from_utf8_lossy(line).trim_end())
    }
}
