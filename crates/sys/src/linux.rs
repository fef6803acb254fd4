//! The trait [`Os`] on Linux. Every call is a bare system call, which does not touch errno.

use crate::helper::thread::{self, Entry};
use crate::helper::{pressure, rights};
use crate::observe::page;
use crate::observe::prefault::Prefaulted;
use crate::observe::trace;
use crate::system::call::READ_WRITE;
use crate::system::filter::{self, Asking};
use crate::system::map::{self, map};
use crate::system::space::{self, count};
use crate::system::touched::Question;
use crate::system::{
    alive, barrier, call, cgroup, clock, huge, lines, locked, moves, pool, probe, purge, random, touched, wait,
};
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::AtomicU32;
use neap_core::Os;
use neap_core::figures::Figures;
use neap_core::helper::Helper;
use neap_core::os::{Memory, Moved, Onward, Run, Thread, Touched};
use neap_core::policy::{HugePages, Policy};
use neap_core::sync::Threads;
use neap_counters::{Counters, Syscall};
use rustix::mm::{self, MprotectFlags, MremapFlags, ProtFlags};

/// Linux, and the functions of the allocator that it calls.
#[derive(Debug)]
pub struct Linux {
    /// What the helper thread runs.
    pub(crate) helper: Entry,
    /// Does what another process has requested.
    pub(crate) requested: fn(bool) -> bool,
    /// The options, for the counters page.
    pub(crate) policy: fn() -> &'static Policy,
}

impl Linux {
    /// The counters page, if this process counts. The child of a fork, however it was made, does not count before it
    /// has a page of its own.
    #[inline]
    pub fn counters(&self) -> Option<&'static Counters> {
        space::here().page.counts()
    }

    /// From now on this process counts in `page`, or not at all.
    pub fn set_counters(&self, page: Option<&'static Counters>) {
        space::settle().page.set_counts(page);
    }

    /// Notes what option `prefault` did.
    pub fn note_prefaulted(&self, done: Prefaulted) {
        space::settle().prefaulted.note(done);
    }
}

impl Threads for Linux {
    fn futex_wake_all(&self, word: *const AtomicU32) {
        count(Syscall::Futex);
        wait::wake(word, i32::MAX);
    }

    fn process(&self) -> Option<u32> {
        filter::known_process()
    }

    fn undisturbed<R>(&self, f: impl FnOnce() -> R) -> R {
        // A filter that came between blocking and unblocking could leave all signals blocked.
        let _asking = Asking::begin();
        if filter::is_forbidden() { f() } else { call::without_signals(f) }
    }

    fn start_helper(&self) -> bool {
        let _asking = Asking::begin();
        thread::start(&space::here().helper.thread, self.helper)
    }

    fn futex_wait(&self, word: &AtomicU32, value: u32) {
        count(Syscall::Futex);
        wait::wait(word, value);
    }

    fn futex_wait_for(&self, word: &AtomicU32, value: u32, milliseconds: u32) {
        count(Syscall::Futex);
        wait::wait_for(word, value, u64::from(milliseconds) * 1_000_000);
    }

    fn futex_wake(&self, word: *const AtomicU32) {
        count(Syscall::Futex);
        wait::wake(word, 1);
    }

    fn rest(&self, word: &AtomicU32, value: u32, milliseconds: u32) -> bool {
        if !pressure::is_watched() {
            self.futex_wait_for(word, value, milliseconds);
            return false;
        }
        count(Syscall::Other);
        pressure::rest(word, value, milliseconds)
    }

    fn rouse(&self, word: &AtomicU32) {
        self.futex_wake(word);
        pressure::end_rest(&space::here().helper.thread);
    }

    fn watches_pressure(&self) -> bool {
        pressure::is_watched()
    }
}

// SAFETY: each method does what the trait says, with fresh mappings or on the range it was given.
unsafe impl Os for Linux {
    fn page_size(&self) -> usize {
        call::page_size()
    }

    /// Behind the program, because some tools take the first line of /proc/PID/maps for the program's, with 1 TiB
    /// between for its heap (`brk`). The end lies below other mappings, which the kernel puts from 0x7fff_ffff_f000
    /// downwards. That gives 600 places (9 random bits) where the kernel has 28 bits for a program's address, and 300
    /// (8 bits) where it has 32.
    fn places(&self) -> Range<usize> {
        const PROGRAMS: Range<usize> = 0x5555_5555_4000..0x6800_0000_0000;
        const TIB: usize = 1 << 40;
        // The headers lie in the program's first mapping.
        let program = call::auxiliary(libc::AT_PHDR);
        // A program of fixed address lies below these places anyway. One that was loaded as a library is not found
        // here.
        let low = if PROGRAMS.contains(&program) { program + TIB } else { PROGRAMS.start + TIB };
        low..0x7E00_0000_0000
    }

    fn reserve(&self, at: usize, len: usize) -> Option<*mut u8> {
        let p = locked::reserve(at, len, ProtFlags::empty())?;
        // SAFETY: the mapping is new.
        unsafe { huge::forbid_larger(p, len) };
        Some(p)
    }

    unsafe fn unreserve(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises.
        unsafe { map::unmap(p, len) }
    }

    fn reserve_zeros(&self, len: usize) -> Option<*mut u8> {
        locked::reserve(0, len, ProtFlags::READ)
    }

    unsafe fn commit(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises.
        unsafe { map::commit(p, len) }
    }

    unsafe fn begin_use(&self, parts: &[Run], map: Run) -> bool {
        // SAFETY: as the caller promises.
        unsafe { locked::begin_use(parts, map) }
    }

    unsafe fn guard(&self, p: *mut u8, len: usize) -> bool {
        if pool::has(p, len) {
            return false;
        }
        count(Syscall::Mprotect);
        // SAFETY: as the caller promises.
        unsafe { mm::mprotect(p.cast(), len, MprotectFlags::empty()) }.is_ok()
    }

    unsafe fn uncommit(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises.
        !pool::has(p, len) && unsafe { map::uncommit(p, len) }
    }

    fn map(&self, len: usize, align: usize) -> Option<*mut u8> {
        let extra = if align > call::page_size() { align } else { 0 };
        let p = map(0, len.checked_add(extra)?, READ_WRITE)?;
        if extra == 0 {
            return Some(p);
        }
        let before = p.align_offset(align);
        // SAFETY: the parts before and behind the aligned block lie in the fresh mapping and are not used.
        unsafe {
            if before > 0 {
                self.unmap(p, before);
            }
            if extra > before {
                self.unmap(p.add(before + len), extra - before);
            }
            Some(p.add(before))
        }
    }

    unsafe fn unmap(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises.
        let done = unsafe { map::unmap(p, len) };
        if !done {
            purge::count_call();
            // Not by `purge`, which may write to memory: the program may have made this inaccessible.
            // SAFETY: as the caller promises: the range is not used afterwards.
            let _ = unsafe { mm::madvise(p.cast(), len, mm::Advice::LinuxDontNeed) };
        }
        done
    }

    unsafe fn remap(&self, p: *mut u8, old: usize, new: usize) -> Option<*mut u8> {
        count(Syscall::Mremap);
        // SAFETY: as the caller promises.
        let p = unsafe { mm::mremap(p.cast(), old, new, MremapFlags::MAYMOVE) };
        p.ok().map(<*mut c_void>::cast)
    }

    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, len: usize) -> Moved {
        if pool::has(from, len) || pool::has(to, len) {
            return Moved::Not;
        }
        // SAFETY: as the caller promises.
        unsafe { moves::move_pages(from, to, len) }
    }

    unsafe fn renew(&self, p: *mut u8, len: usize) -> Moved {
        // SAFETY: as the caller promises.
        unsafe { if pool::has(p, len) { pool::renew(p, len) } else { moves::renew(p, len) } }
    }

    unsafe fn purge(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises.
        !pool::has(p, len) && unsafe { purge::purge(p, len) }
    }

    unsafe fn purge_runs(&self, runs: &[Run]) -> usize {
        let ours = runs.iter().take_while(|run| !pool::has(run.start, run.len)).count();
        // SAFETY: as the caller promises.
        unsafe { purge::purge_runs(&runs[..ours]) }
    }

    unsafe fn purge_lazily(&self, p: *mut u8, len: usize) -> bool {
        if pool::has(p, len) {
            return false;
        }
        purge::count_call();
        // SAFETY: as the caller promises.
        unsafe { mm::madvise(p.cast(), len, mm::Advice::LinuxFree) }.is_ok()
    }

    unsafe fn allow_huge(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises.
        !pool::has(p, len) && unsafe { huge::allow(p, len) }
    }

    fn has_huge_pages(&self, asked: bool) -> bool {
        huge::may_exist(asked)
    }

    unsafe fn populate_huge(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises.
        !pool::has(p, len) && unsafe { huge::populate(p, len) }
    }

    unsafe fn is_dense(&self, p: *mut u8, len: usize) -> bool {
        !pool::has(p, len) && huge::is_dense(p, len, in_small_pages)
    }

    unsafe fn promote(&self, p: *mut u8, len: usize) -> Option<u32> {
        let ask = |runs: &mut [Run]| in_small_pages(p, len, runs);
        // SAFETY: as the caller promises.
        if pool::has(p, len) { Some(0) } else { unsafe { huge::promote(p, len, ask) } }
    }

    fn promotion_time(&self) -> u32 {
        huge::promotion_time()
    }

    unsafe fn set_huge(&self, p: *mut u8, len: usize, allow: bool) {
        // SAFETY: as the caller promises.
        unsafe { huge::set(p, len, allow) }
    }

    fn pool_page(&self) -> Option<usize> {
        pool::page((self.policy)())
    }

    unsafe fn take_from_pool(&self, p: *mut u8, len: usize) -> Moved {
        // SAFETY: as the caller promises.
        unsafe { pool::take(p, len, (self.policy)()) }
    }

    unsafe fn populate(&self, p: *mut u8, len: usize) -> bool {
        // Pages of the pool are populated already.
        pool::has(p, len) || purge::populate(p, len)
    }

    unsafe fn touched(&self, p: *mut u8, len: usize, runs: &mut [Run]) -> Option<Touched> {
        if let Some(run) = runs.first_mut()
            && pool::has(p, len)
        {
            *run = Run { start: p, len };
            return Some(Touched { runs: 1, looked: len });
        }
        count(Syscall::Other);
        let _asking = Asking::begin();
        let space = space::space()?;
        touched::touched(&space.pagemap, || space.is_guest(), p, len, call::page_size(), runs)
    }

    fn prepare_barrier(&self) -> bool {
        count(Syscall::Other);
        let _asking = Asking::begin();
        barrier::prepare()
    }

    fn barrier(&self) -> bool {
        count(Syscall::Other);
        let _asking = Asking::begin();
        barrier::all_threads()
    }

    fn has_barrier(&self) -> bool {
        probe::BARRIER.works()
    }

    fn pause(&self, microseconds: u32) {
        if microseconds > wait::SPIN_MOST {
            count(Syscall::Futex);
        }
        wait::pause(microseconds);
    }

    fn clock(&self) -> u64 {
        clock::coarse_milliseconds()
    }

    fn run_time(&self) -> Option<u64> {
        let _asking = Asking::if_allowed()?;
        clock::other_threads_microseconds()
    }

    fn memory(&self) -> Option<Memory> {
        let _asking = Asking::if_allowed()?;
        // A guest may be killed while it reads files. The helper must open no file in the program's table of files.
        if space::settle().is_guest() || (thread::is_helper() && !rights::has_own_files()) {
            return cgroup::last();
        }
        if (self.policy)().huge() != HugePages::Off {
            huge::look_once();
        }
        cgroup::memory(self.clock())
    }

    fn helper(&self) -> &Helper {
        &space::here().helper
    }

    fn settle_helper(&self) -> &Helper {
        &space::settle().helper
    }

    /// Counts begin anew, and what belongs to the parent is forgotten.
    fn forked(&self) {
        purge::forked();
        huge::forked();
        random::RANDOM.forked();
        filter::forked();
        touched::forked();
        space::forked();
    }

    fn onward(&self) -> Onward {
        thread::onward()
    }

    fn publish(&self, figures: &Figures) {
        let _asking = Asking::begin();
        // A guest may be killed in the middle; then the owner could never publish again.
        let Some(space) = space::space().filter(|space| !space.is_guest()) else { return };
        let prefaulted = space.prefaulted.noted();
        space.page.publish(|| page::gauges(figures, (self.policy)(), purge::calls(), prefaulted));
    }

    fn requested(&self, request: bool) -> bool {
        (self.requested)(request)
    }

    fn address_limit(&self) -> Option<usize> {
        let _asking = Asking::if_allowed()?;
        let limit = call::limit(libc::RLIMIT_AS)? as usize;
        let taken = lines::mapped_pages().unwrap_or(0).saturating_mul(call::page_size());
        Some(limit.saturating_sub(taken))
    }

    fn data_limit(&self) -> Option<usize> {
        let _asking = Asking::if_allowed()?;
        call::limit(libc::RLIMIT_DATA).map(|limit| limit as usize)
    }

    /// False in programs that may give themselves a filter without notice to neap.
    fn looks_for_limits(&self) -> bool {
        filter::is_watched()
    }

    fn random(&self) -> u64 {
        random::RANDOM.next()
    }

    fn thread_id(&self) -> u32 {
        call::thread()
    }

    /// `None` unless neap gets notice of filters, or has checked for one before, because this must open no file.
    fn thread_to_ask_for(&self) -> Option<Thread> {
        let _asking = Asking::if_allowed()?;
        if filter::is_watched() || probe::BARRIER.works() { alive::calling_thread() } else { None }
    }

    fn has_ended(&self, thread: Thread) -> bool {
        let Some(_asking) = Asking::if_allowed() else { return false };
        count(Syscall::Other);
        alive::has_ended(thread)
    }

    fn die(&self, line: &[u8], block: *const u8) -> ! {
        if !line.is_empty() {
            let file = thread::standard_error();
            call::write(file, line);
            // The helper's own stack says nothing of the program.
            if !thread::is_helper() {
                trace::present(file);
                space::here().profile.with_stack_of(block, |frames| {
                    trace::line(file, format_args!("allocated by:"));
                    trace::kept(file, frames);
                });
            }
        }
        call::abort()
    }
}

/// Finds the OS pages of a range that are resident, and not in huge pages.
fn in_small_pages(p: *mut u8, len: usize, runs: &mut [Run]) -> Option<Touched> {
    let space = space::space()?;
    count(Syscall::Other);
    let question = Question::InSmallPages;
    touched::ask(&space.pagemap, || space.is_guest(), p, len, call::page_size(), runs, question)
}
