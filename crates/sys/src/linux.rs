//! [`Os`] on Linux. Every call is a bare system call: errno is not touched.

use crate::random::Random;
use crate::status::Asking;
use crate::{arch, cgroup, clock, discard, limits, moves, space, status};
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use neap_core::Os;
use neap_core::figures::Figures;
use neap_core::helper::Helper;
use neap_core::os::{Memory, Moved, Onward, Run, Thread, Touched};
use neap_counters::{Counters, Syscall};
use rustix::fd::BorrowedFd;
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{self, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::thread::futex;

/// Microseconds that [`Os::pause`] waits on its processor: less than it takes to sleep and wake.
const SPIN_MOST: u32 = 20;
/// Rounds of the processor's pause that take a microsecond where it is short; where it is long, 40 ns, they take 1.6.
const SPINS: u32 = 40;

/// Linux.
#[derive(Debug)]
pub struct Linux {
    /// Calls that gave memory back, since the process began or its last fork.
    purge_calls: AtomicU64,
    random: Random,
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

/// What the system returns for the number of a thread that is not there.
const NO_THREAD: isize = -(libc::ESRCH as isize);

impl Linux {
    /// The system, not yet asked for anything.
    pub const fn new() -> Self {
        Linux { purge_calls: AtomicU64::new(0), random: Random::new() }
    }

    /// The counters page, if this process counts. Not the child of a fork, however it was made, before it has a page of its
    /// own.
    #[inline]
    pub fn counters(&self) -> Option<&'static Counters> {
        // Acquire pairs with the Release of `set_counters`.
        let counters = space::here().counts.load(Ordering::Acquire);
        // SAFETY: a counters page is never unmapped, and all its fields are atomic.
        unsafe { counters.as_ref() }
    }

    /// From now on this process counts, in `page`.
    pub fn set_counters(&self, page: &'static Counters) {
        space::settle().counts.store(core::ptr::from_ref(page).cast_mut(), Ordering::Release);
    }

    /// In the child of a fork: it does not count. The kernel has done that, where it can (`Space`).
    pub fn forget_counters(&self) {
        // Relaxed: a page that is not there cannot be misread.
        space::settle().counts.store(core::ptr::null_mut(), Ordering::Relaxed);
    }

    /// The address of a thread's list of robust locks; 0: none.
    fn robust_list(&self, thread: u32) -> Result<usize, isize> {
        let (mut list, mut len) = (0usize, 0usize);
        let to = [(&raw mut list).expose_provenance(), (&raw mut len).expose_provenance()];
        // SAFETY: the kernel writes two words.
        let done =
            unsafe { arch::syscall(libc::SYS_get_robust_list as usize, [thread as usize, to[0], to[1], 0, 0, 0]) };
        if done == 0 { Ok(list) } else { Err(done) }
    }

    /// Whether the thread of this number, which the process has or had, surely has no list of robust locks any more: it has
    /// ended, if the C library gives threads one.
    pub fn has_no_locks(&self, thread: u32) -> bool {
        let _asking = Asking::begin();
        if status::is_forbidden() {
            return false;
        }
        self.count(Syscall::Other);
        matches!(self.robust_list(thread), Ok(0) | Err(NO_THREAD))
    }

    /// Whether the thread of this number surely has a list of robust locks.
    pub fn has_locks(&self, thread: u32) -> bool {
        self.robust_list(thread).is_ok_and(|list| list != 0)
    }

    fn count_purges(&self, n: u64) {
        self.purge_calls.fetch_add(n, Ordering::Relaxed);
        self.count_many(Syscall::Madvise, n);
    }

    pub(crate) fn count(&self, call: Syscall) {
        self.count_many(call, 1);
    }

    fn count_many(&self, call: Syscall, n: u64) {
        if let Some(c) = self.counters() {
            c.syscalls[call as usize].fetch_add(n, Ordering::Relaxed);
        }
    }
}

/// Waits while `word` is `value`, for so many nanoseconds at most. Signals do not make it shorter: those who count such
/// waits count time by them.
fn wait_for(word: &AtomicU32, value: u32, nanoseconds: u64) {
    const SECOND: u64 = 1_000_000_000;
    let after = |time: u64| {
        let now = clock::read(libc::CLOCK_MONOTONIC)?;
        let sum = now.tv_nsec.cast_unsigned() + time;
        Some(futex::Timespec {
            tv_sec: now.tv_sec + (sum / SECOND).cast_signed(),
            tv_nsec: (sum % SECOND).cast_signed(),
        })
    };
    let Some(end) = after(nanoseconds) else { return };
    let is_over = || after(0).is_none_or(|now| (now.tv_sec, now.tv_nsec) >= (end.tv_sec, end.tv_nsec));
    let any = core::num::NonZeroU32::MAX;
    while futex::wait_bitset(word, futex::Flags::PRIVATE, value, Some(&end), any) == Err(Errno::INTR) && !is_over() {}
}

/// Wakes so many that wait for `word`.
fn wake(word: *const AtomicU32, count: u32) {
    // SAFETY: the kernel gets the address, and reads nothing there for a futex of this process. The memory may be gone, as
    // `unpark` of the core says; neither this nor rustix reads it.
    let _ = futex::wake(unsafe { &*word }, futex::Flags::PRIVATE, count);
}

fn pointer(p: *mut u8) -> *mut c_void {
    p.cast()
}

// SAFETY: each method does what the trait says, with fresh mappings or on the range it was given.
unsafe impl Os for Linux {
    /// Kept, as a library in front of the C library may replace getauxval by one that the helper thread cannot call.
    fn page_size(&self) -> usize {
        static KEPT: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: the number stands for itself.
        let mut size = KEPT.load(Ordering::Relaxed);
        if size == 0 {
            // SAFETY: getauxval only reads.
            size = unsafe { libc::getauxval(libc::AT_PAGESZ) as usize };
            KEPT.store(size, Ordering::Relaxed);
        }
        size
    }

    /// Behind the program, as some tools take the first line of /proc/PID/maps for it, with 1 TiB for its heap (`brk`);
    /// up to where the kernel puts other mappings, from 0x7fff_ffff_f000 downwards. 600 places, so 9 random bits, where
    /// the kernel has 28 for a program's address; 300 (8 bits) where it has 32.
    fn places(&self) -> Range<usize> {
        const PROGRAMS: Range<usize> = 0x5555_5555_4000..0x6800_0000_0000;
        const TIB: usize = 1 << 40;
        // SAFETY: getauxval only reads. The headers lie in the program's first mapping.
        let program = unsafe { libc::getauxval(libc::AT_PHDR) as usize };
        // Elsewhere: one of fixed address lies first anyway; one that was loaded as a library does not.
        let low = if PROGRAMS.contains(&program) { program + TIB } else { PROGRAMS.start + TIB };
        low..0x7E00_0000_0000
    }

    fn reserve(&self, at: usize, len: usize) -> Option<*mut u8> {
        self.count(Syscall::Mmap);
        let hint = core::ptr::without_provenance_mut::<c_void>(at);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a fresh mapping that replaces nothing.
        let p = unsafe { mm::mmap_anonymous(hint, len, ProtFlags::empty(), flags) }.ok()?;
        if p.addr() == at {
            return Some(p.cast());
        }
        // A kernel before 4.17 takes the address for a wish.
        self.count(Syscall::Munmap);
        // SAFETY: this mapping was just made.
        let _ = unsafe { mm::munmap(p, len) };
        None
    }

    unsafe fn unreserve(&self, p: *mut u8, len: usize) -> bool {
        self.count(Syscall::Munmap);
        // SAFETY: the range is a reservation of ours that is not used any more.
        unsafe { mm::munmap(pointer(p), len) }.is_ok()
    }

    fn reserve_zeros(&self, len: usize) -> Option<*mut u8> {
        self.count(Syscall::Mmap);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping.
        let p = unsafe { mm::mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ, flags) };
        p.ok().map(<*mut c_void>::cast)
    }

    unsafe fn commit(&self, p: *mut u8, len: usize) -> bool {
        self.count(Syscall::Mprotect);
        // SAFETY: the range is a reservation of ours.
        unsafe { mm::mprotect(pointer(p), len, MprotectFlags::READ | MprotectFlags::WRITE) }.is_ok()
    }

    unsafe fn guard(&self, p: *mut u8, len: usize) -> bool {
        self.count(Syscall::Mprotect);
        // SAFETY: the range is committed, ours and unused.
        unsafe { mm::mprotect(pointer(p), len, MprotectFlags::empty()) }.is_ok()
    }

    fn map(&self, len: usize, align: usize) -> Option<*mut u8> {
        let extra = if align > self.page_size() { align } else { 0 };
        let whole = len.checked_add(extra)?;
        self.count(Syscall::Mmap);
        // SAFETY: a fresh mapping.
        let p = unsafe {
            mm::mmap_anonymous(
                core::ptr::null_mut(),
                whole,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let p = p.ok()?.cast::<u8>();
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
        self.count(Syscall::Munmap);
        // SAFETY: as the caller promises.
        unsafe { mm::munmap(pointer(p), len) }.is_ok()
    }

    unsafe fn remap(&self, p: *mut u8, old: usize, new: usize) -> Option<*mut u8> {
        self.count(Syscall::Mremap);
        // SAFETY: as the caller promises.
        let p = unsafe { mm::mremap(pointer(p), old, new, MremapFlags::MAYMOVE) };
        p.ok().map(<*mut c_void>::cast)
    }

    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, len: usize) -> Moved {
        // SAFETY: as the caller promises.
        unsafe { moves::move_pages(self, from, to, len) }
    }

    unsafe fn renew(&self, p: *mut u8, len: usize) -> Moved {
        // SAFETY: as the caller promises.
        unsafe { moves::renew(self, p, len) }
    }

    unsafe fn purge(&self, p: *mut u8, len: usize) -> bool {
        self.count_purges(1);
        // SAFETY: the range is committed memory of ours whose contents are not needed.
        unsafe { discard::discard(p, len) }
    }

    unsafe fn purge_runs(&self, runs: &[Run]) -> usize {
        let _asking = Asking::begin();
        let mut done = 0;
        while let Some(run) = runs.get(done) {
            // SAFETY: as the caller promises.
            unsafe {
                match discard::works() {
                    Some(true) => return done + crate::batch::purge(&runs[done..], |n| self.count_purges(n)),
                    None if self.purge(run.start, run.len) => done += 1,
                    _ => break,
                }
            }
        }
        done
    }

    unsafe fn purge_lazily(&self, p: *mut u8, len: usize) -> bool {
        self.count_purges(1);
        // SAFETY: the range is committed memory of ours whose contents are not needed.
        unsafe { mm::madvise(pointer(p), len, mm::Advice::LinuxFree) }.is_ok()
    }

    unsafe fn allow_huge(&self, p: *mut u8, len: usize) -> bool {
        self.count(Syscall::Madvise);
        // SAFETY: the range is committed memory of ours.
        unsafe { mm::madvise(pointer(p), len, mm::Advice::LinuxHugepage) }.is_ok()
    }

    unsafe fn populate(&self, p: *mut u8, len: usize) -> bool {
        let _asking = Asking::begin();
        // SAFETY: as the caller promises.
        unsafe { crate::populate::populate(p, len, || self.count(Syscall::Madvise)) }
    }

    unsafe fn touched(&self, p: *mut u8, len: usize, runs: &mut [Run]) -> Option<Touched> {
        self.count(Syscall::Other);
        let _asking = Asking::begin();
        // SAFETY: as the caller promises.
        unsafe { crate::pagemap::touched(p, len, self.page_size(), runs) }
    }

    fn prepare_barrier(&self) -> bool {
        self.count(Syscall::Other);
        let _asking = Asking::begin();
        crate::barrier::prepare()
    }

    fn barrier(&self) -> bool {
        self.count(Syscall::Other);
        let _asking = Asking::begin();
        crate::barrier::all_threads()
    }

    fn has_barrier(&self) -> bool {
        crate::barrier::works()
    }

    fn pause(&self, microseconds: u32) {
        if microseconds <= SPIN_MOST {
            return (0..microseconds * SPINS).for_each(|_| core::hint::spin_loop());
        }
        self.count(Syscall::Futex);
        // No other thread knows the word.
        wait_for(&AtomicU32::new(0), 0, u64::from(microseconds) * 1000);
    }

    fn futex_wake_all(&self, word: *const AtomicU32) {
        self.count(Syscall::Futex);
        wake(word, i32::MAX as u32);
    }

    fn clock(&self) -> u64 {
        let milliseconds =
            |now: libc::timespec| now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000;
        clock::read(libc::CLOCK_MONOTONIC_COARSE).map_or(0, milliseconds)
    }

    fn run_time(&self) -> Option<u64> {
        let _asking = Asking::begin();
        if status::is_forbidden() {
            return None;
        }
        let read = |clock| {
            let microseconds =
                |time: libc::timespec| time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_nsec.cast_unsigned() / 1000;
            clock::processor_time(clock).map(microseconds)
        };
        Some(read(libc::CLOCK_PROCESS_CPUTIME_ID)?.saturating_sub(read(libc::CLOCK_THREAD_CPUTIME_ID)?))
    }

    fn memory(&self) -> Option<Memory> {
        let _asking = Asking::begin();
        if status::is_forbidden() {
            return None;
        }
        // In the program's table the helper opens nothing: it takes the last answer of a thread of the program's.
        if crate::purger::is_helper() && !crate::rights::has_own_files() {
            return cgroup::last();
        }
        cgroup::memory(self.clock())
    }

    fn helper(&self) -> &Helper {
        &space::here().helper
    }

    fn settle_helper(&self) -> &Helper {
        &space::settle().helper
    }

    fn process(&self) -> Option<u32> {
        let _asking = Asking::begin();
        (!status::is_process_hidden()).then(status::process)
    }

    /// Its counts begin anew.
    fn forked(&self) {
        self.purge_calls.store(0, Ordering::Relaxed);
        self.random.forked();
        status::forked();
        crate::pagemap::forked();
        space::forked(self.process());
    }

    fn undisturbed<R>(&self, f: impl FnOnce() -> R) -> R {
        // A filter that came between the two calls could leave all signals blocked.
        let _asking = Asking::begin();
        if status::is_forbidden() { f() } else { crate::purger::without_signals(f) }
    }

    fn start_helper(&self) -> bool {
        let _asking = Asking::begin();
        crate::purger::start()
    }

    fn onward(&self) -> Onward {
        crate::purger::onward()
    }

    fn publish(&self, figures: &Figures) {
        let _asking = Asking::begin();
        crate::gauges::publish(figures, self.purge_calls.load(Ordering::Relaxed));
    }

    fn address_limit(&self) -> Option<usize> {
        let _asking = Asking::begin();
        // To ask for limits, and to look at files, is what a filter of the program's own may punish.
        if status::is_forbidden() {
            return None;
        }
        let limit = limits::current(libc::RLIMIT_AS)? as usize;
        let taken = status::mapped_pages().unwrap_or(0).saturating_mul(self.page_size());
        Some(limit.saturating_sub(taken))
    }

    /// Not in programs that may give themselves a filter without our hearing of it.
    fn looks_for_limits(&self) -> bool {
        status::is_watched()
    }

    fn random(&self) -> u64 {
        let _asking = Asking::begin();
        self.random.next()
    }

    fn thread_id(&self) -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    fn thread_to_ask_for(&self) -> Option<Thread> {
        let _asking = Asking::begin();
        if !status::may_ask() {
            return None;
        }
        // SAFETY: the call takes no pointers. A filter may refuse even this.
        let number = unsafe { arch::syscall(libc::SYS_gettid as usize, [0; 6]) };
        let number = u32::try_from(number).ok().filter(|&number| number != 0)?;
        // musl has a list only where a program uses robust locks.
        let place = self.robust_list(number).ok().filter(|&list| list != 0)?;
        Some(Thread { number, place })
    }

    /// By the list of robust locks, which the C library registers for each thread, and which lies in the thread's own record:
    /// the kernel forgets it when the thread ends, just before it tells those who wait for the end, who may then unmap the
    /// thread's storage. The thread's number is there for longer than that, and comes back: then the list lies elsewhere. A
    /// thread that gives the kernel another list by itself counts as one that has ended: its heap is left alone. (If it does
    /// so in the microseconds of a visit, it waits for its heap for ever. The C library does it before the first call.)
    fn has_ended(&self, thread: Thread) -> bool {
        let _asking = Asking::begin();
        if status::is_forbidden() {
            return false;
        }
        self.count(Syscall::Other);
        match self.robust_list(thread.number) {
            Ok(list) if list != thread.place => true,
            Err(NO_THREAD) => true,
            // A thread of another process may have the number by now.
            // SAFETY: the call takes no pointers; signal 0 only asks.
            _ => unsafe {
                let numbers = [status::process() as usize, thread.number as usize, 0, 0, 0, 0];
                arch::syscall(libc::SYS_tgkill as usize, numbers) == NO_THREAD
            },
        }
    }

    fn futex_wait(&self, word: &AtomicU32, value: u32) {
        self.count(Syscall::Futex);
        // An error means that the word has changed or that a signal came: the caller looks again.
        let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
    }

    fn futex_wait_for(&self, word: &AtomicU32, value: u32, milliseconds: u32) {
        self.count(Syscall::Futex);
        wait_for(word, value, u64::from(milliseconds) * 1_000_000);
    }

    fn futex_wake(&self, word: *const AtomicU32) {
        self.count(Syscall::Futex);
        wake(word, 1);
    }

    fn die(&self, line: &[u8]) -> ! {
        // SAFETY: standard error, if it is open.
        let stderr = unsafe { BorrowedFd::borrow_raw(crate::purger::standard_error()) };
        let _ = retry_on_intr(|| rustix::io::write(stderr, line));
        // SAFETY: ends the process with SIGABRT, also where the signal is blocked or handled.
        unsafe { libc::abort() }
    }
}
