//! The simulated system: real memory at addresses that depend only on the seed. Each call checks the preconditions of
//! [`Os`]. It may be late (other threads run before it, between its parts, and after it), be done in part if the trait
//! allows that, and be refused in each way that the trait documents.

use crate::config::{habits, lacks};
use crate::memory::{READ_WRITE, is_zero, map};
use crate::sched::{FOREVER, is_running, sched};
use crate::system::{HOST, MAPPINGS, System};
use crate::{finding, trace};
use neap_core::Os;
use neap_core::figures::Figures;
use neap_core::helper::Helper;
use neap_core::os::{Memory, Moved, Onward, Run, Thread, Touched};
use neap_core::sync::AtomicU32;
use neap_core::sync::Threads;
use neap_coretest::fake::model::Access;

impl Threads for System {
    fn futex_wake_all(&self, word: *const AtomicU32) {
        let key = word.addr();
        self.late();
        sched().wake(key, true);
    }

    fn process(&self) -> Option<u32> {
        self.process.number()
    }

    fn undisturbed<R>(&self, f: impl FnOnce() -> R) -> R {
        sched().block_handlers(true);
        let result = f();
        sched().block_handlers(false);
        result
    }

    fn start_helper(&self) -> bool {
        self.late();
        let started = !self.refuses(lacks::HELPER) && !self.process.is_forbidden() && self.process.start_helper();
        self.late();
        started
    }

    fn futex_wait(&self, word: &AtomicU32, value: u32) {
        if sched().quiet != 0 {
            finding("a lock is held, or a heap is parked, although no call is in progress");
        }
        self.late();
        // The kernel compares the word and falls asleep in one step.
        // SAFETY: the caller's word.
        if unsafe { word.as_ptr().read() } != value {
            return;
        }
        let interrupted = self.config.interrupts && !self.state().kind && self.below(8) == 0;
        let until = if interrupted { sched().clock + self.below(3) as u64 } else { FOREVER };
        sched().wait(word.as_ptr().addr(), until);
    }

    fn futex_wait_for(&self, word: &AtomicU32, value: u32, milliseconds: u32) {
        self.late();
        // SAFETY: the caller's word.
        if unsafe { word.as_ptr().read() } == value {
            sched().wait(word.as_ptr().addr(), sched().clock + u64::from(milliseconds));
        }
    }

    fn rest(&self, word: &AtomicU32, value: u32, milliseconds: u32) -> bool {
        // A report comes at any time before the end, also when there is nothing to give back.
        let reports = self.watches_pressure() && self.below(4) == 0;
        let most = if reports { self.below(milliseconds as usize + 1) as u32 } else { milliseconds };
        self.futex_wait_for(word, value, most);
        reports
    }

    fn watches_pressure(&self) -> bool {
        self.process.has(habits::PRESSURE)
    }

    fn futex_wake(&self, word: *const AtomicU32) {
        let key = word.addr();
        self.late();
        sched().wake(key, false);
    }
}

// SAFETY: memory comes from fresh mappings, which the model knows; each call does what the trait says.
unsafe impl Os for System {
    fn page_size(&self) -> usize {
        self.config.page as usize
    }

    fn reserve(&self, at: usize, len: usize) -> Option<*mut u8> {
        self.whole_pages("reserve", at, len);
        self.late();
        let s = self.state();
        let used_up = self.config.reservations != 0 && s.reservations >= self.config.reservations;
        // Where the simulation itself lies.
        let taken = at + len > MAPPINGS;
        if self.refuses(0) || used_up || taken || !self.fits(len) {
            return None;
        }
        let p = map(at, len, libc::PROT_NONE, false)?;
        s.reservations += 1;
        s.model.add(at, len, Access::Reserved);
        Some(p)
    }

    unsafe fn unreserve(&self, p: *mut u8, len: usize) -> bool {
        self.late();
        self.require("unreserve", p, len, &[Access::Reserved, Access::Zeros, Access::Committed]);
        if self.refuses(0) {
            return false;
        }
        // SAFETY: a range of a reservation of this system that the caller gives up.
        let done = unsafe { libc::munmap(p.cast(), len) };
        assert_eq!(done, 0, "munmap");
        self.state().model.remove(p.addr(), len);
        self.late();
        true
    }

    fn reserve_zeros(&self, len: usize) -> Option<*mut u8> {
        self.whole_pages("reserve_zeros", 0, len);
        if self.refuses(lacks::ZEROS) || !self.fits(len) {
            return None;
        }
        let at = self.gap(len, HOST.max(self.page_size()));
        let p = map(at, len, libc::PROT_READ, false)?;
        self.state().model.add(at, len, Access::Zeros);
        self.late();
        Some(p)
    }

    unsafe fn commit(&self, p: *mut u8, len: usize) -> bool {
        self.late();
        let any = [Access::Reserved, Access::Zeros, Access::Committed];
        self.require("commit", p, len, &any);
        let unguards = len == self.page_size();
        if self.refuses(0) {
            // As on Linux when the process has the maximum number of mappings.
            if self.process.does_parts() && !unguards {
                let part = self.below(len / self.page_size()) * self.page_size();
                self.commit_parts(p, part, false);
            }
            return false;
        }
        self.commit_parts(p, len, unguards);
        true
    }

    unsafe fn begin_use(&self, parts: &[Run], map: Run) -> bool {
        self.late();
        for part in parts.iter().chain([&map]).filter(|part| part.len > 0) {
            self.require("begin_use", part.start, part.len, &[Access::Committed]);
        }
        !self.refuses(0)
    }

    unsafe fn guard(&self, p: *mut u8, len: usize) -> bool {
        self.late();
        self.require("guard", p, len, &[Access::Committed]);
        if self.refuses(0) {
            return false;
        }
        self.set(p, len, libc::PROT_NONE, Access::Reserved);
        self.state().guards.insert(p.addr());
        self.late();
        true
    }

    unsafe fn uncommit(&self, p: *mut u8, len: usize) -> bool {
        self.late();
        self.require("uncommit", p, len, &[Access::Committed]);
        if self.refuses(0) {
            return false;
        }
        self.set(p, len, libc::PROT_NONE, Access::Reserved);
        self.late();
        true
    }

    fn map(&self, len: usize, align: usize) -> Option<*mut u8> {
        self.whole_pages("map", align, len);
        self.late();
        if self.refuses(0) || !self.fits(len) {
            return None;
        }
        let at = self.gap(len, align);
        let p = map(at, len, READ_WRITE, false)?;
        self.state().model.add(at, len, Access::Mapped);
        self.late();
        Some(p)
    }

    unsafe fn unmap(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages("unmap", p.addr(), len);
        self.late();
        self.state().model.require_mapping("unmap", p.addr(), len);
        if self.refuses(0) {
            return false;
        }
        // SAFETY: the range is (the tail of) a mapping of this system that the caller gives up.
        let done = unsafe { libc::munmap(p.cast(), len) };
        assert_eq!(done, 0, "munmap");
        self.state().model.remove(p.addr(), len);
        self.late();
        true
    }

    unsafe fn remap(&self, p: *mut u8, old: usize, new: usize) -> Option<*mut u8> {
        self.whole_pages("remap", p.addr(), old);
        self.whole_pages("remap", 0, new);
        self.late();
        self.state().model.require_whole_mapping("remap", p.addr(), old);
        if self.refuses(0) || !self.fits(new.saturating_sub(old)) {
            return None;
        }
        // SAFETY: a mapping of this system, and the caller uses it by its new length from now on.
        if self.process.stays() && unsafe { self.resize_here(p, old, new) } {
            self.late();
            return Some(p);
        }
        // At another address, so that nothing relies on the old one.
        let at = self.gap(new, self.page_size());
        let to = map(at, new, READ_WRITE, false)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the range is a mapping of this system; the target has just been mapped for it.
        let moved = unsafe { libc::mremap(p.cast(), old, new, flags, to) };
        assert_ne!(moved, libc::MAP_FAILED, "mremap");
        let model = &mut self.state().model;
        model.remove(p.addr(), old);
        model.add(at, new, Access::Mapped);
        self.late();
        Some(to)
    }

    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, len: usize) -> Moved {
        assert!(from.addr().abs_diff(to.addr()) >= len, "move_pages: {from:p} and {to:p} overlap");
        self.late();
        self.require("move_pages from", from, len, &[Access::Committed]);
        self.require("move_pages to", to, len, &[Access::Committed]);
        if self.refuses(lacks::MOVE) {
            let half_way = if self.lacks(lacks::MOVE) { 0 } else { self.below(3) };
            if half_way > 0 {
                let protection = if half_way == 1 { READ_WRITE } else { libc::PROT_NONE };
                map(to.addr(), len, protection, true).expect("address space that was there");
                if half_way == 2 {
                    self.state().model.set(to.addr(), len, Access::Reserved);
                    return Moved::Lost;
                }
            }
            return Moved::Not;
        }
        let mut done = 0;
        self.in_parts(from, len, |p, part| {
            // SAFETY: both ranges are committed; what lies at `to` is not needed.
            unsafe {
                to.add(done).copy_from_nonoverlapping(p, part);
                self.drop_pages(p, part);
            }
            done += part;
        });
        Moved::Done
    }

    unsafe fn renew(&self, p: *mut u8, len: usize) -> Moved {
        self.late();
        self.require("renew", p, len, &[Access::Committed]);
        if self.refuses(lacks::RENEW) {
            let lost = !self.lacks(lacks::RENEW) && self.below(2) == 0;
            if lost {
                self.set(p, len, libc::PROT_NONE, Access::Reserved);
                return Moved::Lost;
            }
            return Moved::Not;
        }
        map(p.addr(), len, READ_WRITE, true).expect("address space that was there");
        self.late();
        Moved::Done
    }

    unsafe fn purge(&self, p: *mut u8, len: usize) -> bool {
        self.require("purge", p, len, &[Access::Committed, Access::Mapped]);
        self.very_late();
        if self.process.is_locked() || self.refuses(lacks::PURGE) {
            return false;
        }
        // SAFETY: as the caller promises.
        unsafe { self.purge_parts("purge", p, len) };
        true
    }

    unsafe fn purge_runs(&self, runs: &[Run]) -> usize {
        for run in runs {
            self.require("purge_runs", run.start, run.len, &[Access::Committed]);
            trace!("purge_runs {:p} {:#x}", run.start, run.len);
        }
        self.very_late();
        if self.lacks(lacks::PURGE_RUNS) || self.process.is_locked() {
            return 0;
        }
        let refused = self.refuses(0);
        let most = if refused { self.below(runs.len()) } else { runs.len() };
        for run in &runs[..most] {
            // SAFETY: as the caller promises.
            unsafe { self.purge_parts("purge_runs", run.start, run.len) };
        }
        if refused && self.below(2) == 0 {
            let part = self.below(runs[most].len / self.page_size()) * self.page_size();
            if part > 0 {
                // SAFETY: as the caller promises: also a run that does not count may have lost its contents.
                unsafe { self.purge_parts("purge_runs", runs[most].start, part) };
            }
        }
        most
    }

    /// Purges some OS pages at once, and leaves the others.
    unsafe fn purge_lazily(&self, p: *mut u8, len: usize) -> bool {
        self.require("purge_lazily", p, len, &[Access::Committed]);
        self.very_late();
        if self.process.is_locked() || self.refuses(lacks::LAZY) {
            return false;
        }
        self.in_parts(p, len, |p, len| {
            if self.below(2) == 0 {
                self.require("purge_lazily", p, len, &[Access::Committed]);
                // SAFETY: as the caller promises.
                unsafe { self.drop_pages(p, len) };
            }
        });
        true
    }

    fn has_huge_pages(&self, _asked: bool) -> bool {
        !self.lacks(lacks::POPULATE)
    }

    unsafe fn is_dense(&self, p: *mut u8, len: usize) -> bool {
        self.late();
        self.require("is_dense", p, len, &[Access::Committed, Access::Lost]);
        self.below(4) != 0
    }

    unsafe fn populate_huge(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.populate(p, len) && self.below(8) != 0 }
    }

    unsafe fn promote(&self, p: *mut u8, len: usize) -> Option<u32> {
        self.late();
        self.require("promote", p, len, &[Access::Committed]);
        (!self.refuses(0)).then(|| self.below(3000) as u32)
    }

    unsafe fn allow_huge(&self, p: *mut u8, len: usize) -> bool {
        self.late();
        self.require("allow_huge", p, len, &[Access::Committed]);
        !self.refuses(0)
    }

    unsafe fn populate(&self, p: *mut u8, len: usize) -> bool {
        self.late();
        self.require("populate", p, len, &[Access::Committed]);
        if self.lacks(lacks::POPULATE) {
            return false;
        }
        let page = self.page_size();
        let refused = self.refuses(0);
        let most = if refused { self.below(len / page) * page } else { len };
        let mut done = 0;
        self.in_parts(p, len, |p, part| {
            for at in (0..part).step_by(HOST).filter(|at| done + at < most) {
                // SAFETY: the range is committed and the caller's.
                unsafe {
                    let word = p.add(at).cast::<u64>();
                    word.write_volatile(word.read_volatile());
                }
            }
            done += part;
        });
        !refused || most > 0
    }

    unsafe fn touched(&self, p: *mut u8, len: usize, runs: &mut [Run]) -> Option<Touched> {
        let any = [Access::Committed, Access::Reserved, Access::Zeros, Access::Mapped];
        self.require("touched", p, len, &any);
        self.late();
        if self.refuses(lacks::TOUCHED) {
            return None;
        }
        let most = runs.len().min(1 + self.below(runs.len() * 2));
        let (page, mut count) = (self.page_size(), 0);
        // Sometimes zero OS pages count as touched.
        let more = self.below(8) == 0;
        for at in (0..len).step_by(page) {
            let start = p.wrapping_add(at);
            let readable = !self.state().model.is(start.addr(), page, Access::Reserved);
            // SAFETY: the OS page can be read.
            let touched = readable && (!unsafe { is_zero(start, page) } || (more && self.below(4) == 0));
            if !touched {
                continue;
            }
            match runs[..count].last_mut() {
                Some(last) if last.start.wrapping_add(last.len) == start => last.len += page,
                _ if count == most => {
                    self.late();
                    return Some(Touched { runs: count, looked: at });
                }
                _ => {
                    runs[count] = Run { start, len: page };
                    count += 1;
                }
            }
        }
        self.late();
        Some(Touched { runs: count, looked: len })
    }

    fn prepare_barrier(&self) -> bool {
        self.late();
        !self.refuses(lacks::BARRIER)
    }

    fn barrier(&self) -> bool {
        self.late();
        if self.refuses(lacks::BARRIER) {
            return false;
        }
        self.flush_all();
        self.late();
        true
    }

    fn pause(&self, microseconds: u32) {
        // The stores of other threads are visible long before this returns.
        self.flush_all();
        if sched().quiet == 0 {
            sched().clock += u64::from(microseconds / 1000);
            sched().pause();
        }
    }

    fn clock(&self) -> u64 {
        self.process.clock()
    }

    /// Observers may take any time, and no thread waits for them.
    fn publish(&self, _: &Figures) {
        self.late();
    }

    fn run_time(&self) -> Option<u64> {
        (!self.refuses(lacks::RUN_TIME)).then(|| self.process.run_time())
    }

    fn memory(&self) -> Option<Memory> {
        if self.refuses(lacks::MEMORY) { None } else { self.process.memory() }
    }

    fn helper(&self) -> &Helper {
        &self.helper
    }

    fn onward(&self) -> Onward {
        self.late();
        self.process.onward()
    }

    fn thread_to_ask_for(&self) -> Option<Thread> {
        let lives = self.lives();
        if is_running() && sched().current < lives.len() { lives[sched().current].thread } else { None }
    }

    fn has_ended(&self, thread: Thread) -> bool {
        self.late();
        self.process.has_ended(thread)
    }

    fn address_limit(&self) -> Option<usize> {
        let limit = self.config.address_limit as usize;
        (limit != 0 && self.process.is_limited()).then(|| limit.saturating_sub(self.state().model.taken()))
    }

    fn looks_for_limits(&self) -> bool {
        !self.process.has(habits::LIMITS) || self.config.seed.is_multiple_of(2)
    }

    fn random(&self) -> u64 {
        self.state().random.next()
    }

    fn thread_id(&self) -> u32 {
        100 + sched().current as u32
    }

    fn die(&self, line: &[u8], _block: *const u8) -> ! {
        finding(String::from_utf8_lossy(line).trim_end())
    }
}
