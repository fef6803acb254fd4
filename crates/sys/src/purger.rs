//! The helper thread that gives free memory back while the program does something else, or nothing.
//!
//! It is started when enough free memory waits (`neap_core::purge`), and ends when nothing does. The C library does not
//! know it: it may be started from within any call (also under the C library's own locks, where pthread_create would
//! wait for ever), does not count as a thread of the program (the process ends when the last of those does, and stdio
//! stays as cheap as with one thread), and touches no thread storage. All signals are blocked in it.
//!
//! The kernel does count it. So
//! - `unshare` and `setns`, which refuse processes of several threads, run while there is none ([`without_helper`]; the
//!   preload library has the two functions);
//! - before the process gives itself a seccomp filter, the helper is stopped for good ([`before_filter`], likewise);
//! - when the process changes its user, its groups or its capabilities, the helper gives back what waits and ends within
//!   `LOOK` milliseconds; the next one is started by a thread that has the new ones.
//!
//! A child that is made without the C library's fork handlers has no helper, but may find its locks taken. So the
//! helper is stopped for that too ([`around_fork`]); the child finds out that it has none by `space.rs`.
//!
//! `TID` says who is there: 0 nobody, `STARTING` a thread that starts the helper, else the helper. A helper is started
//! by: `TID` from 0 to `STARTING`, then a look at `STOPS`; it is kept away by: `STOPS`, then a look at `TID`. So one of
//! the two sees the other.

use crate::global::NEAP;
use crate::space::space;
use crate::{arch, status};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::thread::futex;

/// Bytes of the helper's stack. It touches three OS pages of it.
const STACK: usize = 64 * 1024;

/// The helper's stack, from its first use on.
static STACK_END: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The helper's thread number, 0 or [`STARTING`]; the kernel sets it to 0 when the helper has ended.
static TID: AtomicU32 = AtomicU32::new(0);
/// The helper is being started. No thread has this number: the kernel's are below 2^22.
const STARTING: u32 = u32::MAX;
/// The number of the last helper until the kernel has forgotten it.
static LAST: AtomicU32 = AtomicU32::new(0);
/// Changes when the helper shall look before its time.
static WAKE: AtomicU32 = AtomicU32::new(0);
/// How many callers want no helper now, see [`Stop`].
static STOPS: AtomicU32 = AtomicU32::new(0);
/// The last start failed because of them.
static KEPT_AWAY: AtomicBool = AtomicBool::new(false);
/// Bits of [`STOPS`] that are the number. Those above count the forks on the way here.
const STOP_BITS: u32 = 20;
/// Milliseconds that the kernel may need to forget a thread; another one may have got its number.
const GONE_MS: u32 = 100;
/// Milliseconds that a fork waits for the helper, about.
const PATIENCE: u32 = 50;
/// Milliseconds from one look at the process's user to the next, at most.
const LOOK: u32 = 100;

/// Starts the helper; false if there can be none. One thread at a time, and only when there is none that has not
/// resigned.
#[cold]
pub fn start() -> bool {
    // A signal's handler that changed the user or called `unshare` here would wait for its own thread.
    let before = block_signals(u64::MAX);
    let started = start_unsignalled();
    block_signals(before);
    started
}

fn start_unsignalled() -> bool {
    let Some(stack) = stack() else { return false };
    // One that has just resigned is about to end; its stack is not free before.
    // SeqCst, here and at each use of STOPS: see the top of this file.
    while TID.compare_exchange(0, STARTING, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        wait_for_end();
    }
    let space = space(NEAP.page_size());
    let stopped = is_unwanted();
    KEPT_AWAY.store(stopped, Ordering::SeqCst);
    if !stopped && !status::is_hostile() {
        if let Some(space) = space {
            space.helper.store(1, Ordering::Relaxed);
        }
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM
            | libc::CLONE_PARENT_SETTID
            | libc::CLONE_CHILD_CLEARTID;
        // SAFETY: the stack is nobody's else while TID was 0; the entry uses neither thread storage nor the C library.
        if unsafe { arch::neap_clone(flags as usize, stack, TID.as_ptr(), helper) } > 0 {
            return true;
        }
    }
    TID.store(0, Ordering::SeqCst);
    wake_waiters();
    false
}

/// Whether the last start failed because of callers who want no helper, and there are none any more. Where there are, the
/// last of them has yet to call `resume_purging`. SeqCst pairs with their SeqCst: who is asked has said before that there
/// is no helper, and they look at that after they have counted `STOPS` down.
pub fn may_start() -> bool {
    KEPT_AWAY.load(Ordering::SeqCst) && !is_unwanted()
}

/// Sets the mask of blocked signals; returns the one before.
fn block_signals(mask: u64) -> u64 {
    let (new, mut old) = (mask, 0u64);
    let (new, old_at) = ((&raw const new).expose_provenance(), (&raw mut old).expose_provenance());
    // SAFETY: both masks are eight bytes, as the kernel's are.
    unsafe { arch::syscall(libc::SYS_rt_sigprocmask as usize, [libc::SIG_SETMASK as usize, new, old_at, 8, 0, 0]) };
    old
}

/// The end of the helper's stack, which is mapped once.
fn stack() -> Option<*mut u8> {
    let mut end = STACK_END.load(Ordering::Relaxed);
    if end.is_null() {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
        // SAFETY: a fresh mapping.
        let p = unsafe { mm::mmap_anonymous(core::ptr::null_mut(), STACK, access, flags) }.ok()?;
        // A little below the end, which is not mapped any more: some tools look where the stack pointer points.
        end = p.cast::<u8>().wrapping_add(STACK - 64);
        STACK_END.store(end, Ordering::Relaxed);
    }
    Some(end)
}

/// Wakes the helper before its time.
pub fn wake() {
    if is_lost() {
        forget();
        return NEAP.leave_purging();
    }
    WAKE.fetch_add(1, Ordering::Release);
    let _ = futex::wake(&WAKE, futex::Flags::PRIVATE, 1);
}

/// Wakes those who wait for the end of the helper.
fn wake_waiters() {
    let _ = futex::wake(&TID, futex::Flags::empty(), i32::MAX as u32);
}

/// Waits until the helper has ended.
fn wait_for_end() {
    let mut waited = false;
    loop {
        let tid = TID.load(Ordering::SeqCst);
        if tid == 0 {
            if waited {
                // The kernel wakes one only.
                wake_waiters();
            }
            return;
        }
        if is_lost() {
            return forget();
        }
        // The kernel's wake when a thread ends is for shared futexes. One who waits while a helper is being started
        // looks again soon: nobody tells when TID becomes a number.
        let soon = futex::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let _ = futex::wait(&TID, futex::Flags::empty(), tid, (tid == STARTING).then_some(&soon));
        waited = true;
    }
}

/// One caller who wants no helper, counted in [`STOPS`]. A handler that interrupts it may fork, and return in the child,
/// where nobody is counted any more: so the end counts only where the count is still that of the beginning.
struct Stop {
    fork: u32,
}

impl Stop {
    fn begin() -> Stop {
        Stop { fork: STOPS.fetch_add(1, Ordering::SeqCst) >> STOP_BITS }
    }

    fn end(self) {
        let less = |stops: u32| (stops >> STOP_BITS == self.fork).then(|| stops - 1);
        // Relaxed for failure: then it is a child's, where nothing is to do.
        let _ = STOPS.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
    }

    /// In the child of a fork: nobody is counted.
    fn forget_all() {
        let next = |stops: u32| Some(((stops >> STOP_BITS) + 1) << STOP_BITS);
        // Never fails, as `next` returns a value each time.
        let _ = STOPS.fetch_update(Ordering::SeqCst, Ordering::Relaxed, next);
    }
}

/// Whether somebody wants no helper now.
fn is_unwanted() -> bool {
    STOPS.load(Ordering::SeqCst) & ((1 << STOP_BITS) - 1) != 0
}

/// Runs `f` while there is no helper: it is stopped first, and none is started meanwhile.
pub fn without_helper<R>(f: impl FnOnce() -> R) -> R {
    let stop = stop();
    let result = f();
    stop.end();
    // In a nested call, whoever frees memory next asks for a helper.
    crate::thread::in_call(|_| NEAP.resume_purging());
    result
}

/// Ends the helper, and lets none start before the end of the [`Stop`].
fn stop() -> Stop {
    if TID.load(Ordering::SeqCst) != 0 && is_lost() {
        forget();
        NEAP.leave_purging();
    }
    let stop = Stop::begin();
    if TID.load(Ordering::SeqCst) != 0 {
        wake();
        wait_for_end();
    }
    // The kernel clears TID when the helper has left the memory; a moment later it has left the process.
    let last = LAST.load(Ordering::SeqCst);
    let mut patience = GONE_MS;
    while last != 0 && patience > 0 && is_thread(last) {
        sleep(1, WAKE.load(Ordering::Acquire));
        patience -= 1;
    }
    // Relaxed for failure: another caller was first.
    let _ = LAST.compare_exchange(last, 0, Ordering::SeqCst, Ordering::Relaxed);
    stop
}

/// Whether the process has a thread of this number.
fn is_thread(tid: u32) -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the call takes no pointers; signal 0 only asks.
    unsafe { arch::syscall(libc::SYS_tgkill as usize, [pid as usize, tid as usize, 0, 0, 0, 0]) == 0 }
}

/// Runs `fork`, a call that makes a child without the C library's handlers, while there is no helper: it would leave its
/// locks behind in the child, which may count on a process of one thread. Safe in a handler of a signal that came in the
/// middle of a call of neap's: takes no lock, and does not wait for a helper that does.
pub fn around_fork(fork: impl FnOnce() -> isize) -> isize {
    let was = TID.load(Ordering::SeqCst);
    let stop = Stop::begin();
    if was != 0 && !is_lost() {
        let mut patience = PATIENCE;
        loop {
            let tid = TID.load(Ordering::SeqCst);
            if tid == 0 || patience == 0 {
                break;
            }
            wake();
            let step = futex::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let _ = futex::wait(&TID, futex::Flags::empty(), tid, Some(&step));
            patience -= 1;
        }
        wake_waiters();
    }
    let child = fork();
    stop.end();
    if (was != 0 || KEPT_AWAY.load(Ordering::SeqCst)) && child != 0 {
        NEAP.restart_purging();
    }
    child
}

/// The process is about to give itself a filter of system calls. The helper ends, and from now on neap makes only calls
/// that no filter can do without.
#[cold]
pub fn before_filter() {
    status::forbid();
    stop().end();
}

/// Whether this is the child of a fork, made without the C library's handlers, and the helper is its parent's.
fn is_lost() -> bool {
    space(NEAP.page_size()).is_some_and(|space| space.helper.load(Ordering::Relaxed) == 0)
        && TID.load(Ordering::SeqCst) != STARTING
}

/// There is no helper, and nobody who wants none.
fn forget() {
    TID.store(0, Ordering::SeqCst);
    LAST.store(0, Ordering::SeqCst);
    Stop::forget_all();
}

/// In the child of a fork, where the helper is not. Whether it was there, or about to be, in the parent.
#[cold]
pub fn forked() -> bool {
    let was = TID.load(Ordering::SeqCst) != 0;
    forget();
    was
}

/// Sleeps for so many milliseconds, or until woken.
fn sleep(milliseconds: u32, seen: u32) {
    let time =
        futex::Timespec { tv_sec: i64::from(milliseconds / 1000), tv_nsec: i64::from(milliseconds % 1000) * 1_000_000 };
    let _ = futex::wait(&WAKE, futex::Flags::PRIVATE, seen, Some(&time));
}

/// Sleeps between two ticks; false if the helper shall end. `seen` is what WAKE was before the last tick.
fn sleep_between_ticks(mut left: u32, seen: u32, credentials: Option<u64>) -> bool {
    loop {
        if !is_unwanted() {
            sleep(left.min(LOOK), seen);
        }
        if is_unwanted() || status::is_forbidden() {
            return false;
        }
        if status::credentials() != credentials {
            // The program may be idle from now on, and nobody else come to do it. But not under a filter.
            if !status::is_hostile() {
                NEAP.purge();
            }
            return false;
        }
        left = left.saturating_sub(LOOK);
        if left == 0 || WAKE.load(Ordering::Acquire) != seen {
            return true;
        }
    }
}

/// Gives the helper a table of files of its own, an empty one (close_range, Linux 5.9). In the program's table a file of
/// ours would be in the way for some microseconds: another number than expected, or closed by us when the program has put
/// one of its own in its place. And as long as the table is shared, each call on a file is dearer for the program.
fn leave_files() {
    /// CLOSE_RANGE_UNSHARE of include/uapi/linux/close_range.h.
    const UNSHARE: usize = 1 << 1;
    // SAFETY: the call takes no pointers. The table is shared with the thread that started this one, so what is closed
    // is closed in a copy, which the kernel does not even make.
    unsafe { arch::syscall(libc::SYS_close_range as usize, [0, u32::MAX as usize, UNSHARE, 0, 0, 0]) };
}

/// What the helper does all its life.
#[cold]
extern "C" fn helper() {
    LAST.store(TID.load(Ordering::SeqCst), Ordering::SeqCst);
    if !status::is_filtered() {
        leave_files();
    }
    let credentials = status::credentials();
    let mut wait = NEAP.tick_length();
    let mut seen = WAKE.load(Ordering::Acquire);
    NEAP.look_at_limit();
    while sleep_between_ticks(wait, seen, credentials) {
        // Before the tick: a wake while it lasts is for the next one.
        seen = WAKE.load(Ordering::Acquire);
        match NEAP.tick() {
            Some(next) => wait = next,
            None => return,
        }
    }
    NEAP.leave_purging();
}
