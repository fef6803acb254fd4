//! The helper thread that gives free memory back while the program does something else, or nothing.
//!
//! It is started when enough free memory waits (`neap_core::purge`), and ends when nothing does. The C library does not
//! know it: it may be started from within any call (also under the C library's own locks, where pthread_create would
//! wait for ever), does not count as a thread of the program (the process ends when the last of those does, and stdio
//! stays as cheap as with one thread), and touches no thread storage. All signals are blocked in it.
//!
//! The kernel does count it. So
//! - `unshare` and `setns`, which refuse processes of several threads, stop it first ([`stop`]; the preload library
//!   has the two functions);
//! - when the process changes its user, its groups or its capabilities, or gets a seccomp filter, the helper
//!   ends within a tick, and the next one is started by a thread that has the new ones. It is not started under a filter.

use crate::global::NEAP;
use crate::{arch, status};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::thread::futex;

/// Bytes of the helper's stack. It touches three OS pages of it.
const STACK: usize = 64 * 1024;

/// The helper's stack, from its first use on.
static STACK_END: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The helper's thread number; the kernel sets it to 0 when the helper has ended.
static TID: AtomicU32 = AtomicU32::new(0);
/// Changes when the helper shall look before its time.
static WAKE: AtomicU32 = AtomicU32::new(0);
/// The helper shall end.
static STOP: AtomicBool = AtomicBool::new(false);

/// Starts the helper; false if there can be none. One thread at a time, and only when there is none that has not
/// resigned.
pub fn start() -> bool {
    // One that has just resigned is about to end; its stack is not free before.
    wait_for_end();
    if STOP.load(Ordering::Acquire) || status::is_filtered() {
        return false;
    }
    let Some(stack) = stack() else { return false };
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let before = block_signals(u64::MAX);
    // SAFETY: the stack is nobody's else while TID is 0; the entry uses neither thread storage nor the C library.
    let tid = unsafe { arch::neap_clone(flags as usize, stack, TID.as_ptr(), helper) };
    block_signals(before);
    tid > 0
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
    WAKE.fetch_add(1, Ordering::Release);
    let _ = futex::wake(&WAKE, futex::Flags::PRIVATE, 1);
}

/// Waits until the helper has ended.
fn wait_for_end() {
    loop {
        let tid = TID.load(Ordering::Acquire);
        if tid == 0 {
            return;
        }
        // The kernel's wake when a thread ends is for shared futexes.
        let _ = futex::wait(&TID, futex::Flags::empty(), tid, None);
    }
}

/// Runs `f` while there is no helper: it is stopped first, and none is started meanwhile.
pub fn without_helper<R>(f: impl FnOnce() -> R) -> R {
    STOP.store(true, Ordering::SeqCst);
    if TID.load(Ordering::Acquire) != 0 {
        wake();
        wait_for_end();
    }
    let result = f();
    STOP.store(false, Ordering::SeqCst);
    result
}

/// In the child of a fork, where the helper is not.
pub fn forked() {
    TID.store(0, Ordering::Relaxed);
    STOP.store(false, Ordering::Relaxed);
}

/// Sleeps for so many milliseconds, or until woken.
fn sleep(milliseconds: u32, seen: u32) {
    let time =
        futex::Timespec { tv_sec: i64::from(milliseconds / 1000), tv_nsec: i64::from(milliseconds % 1000) * 1_000_000 };
    let _ = futex::wait(&WAKE, futex::Flags::PRIVATE, seen, Some(&time));
}

/// What the helper does all its life.
extern "C" fn helper() {
    let credentials = status::credentials();
    let mut wait = NEAP.tick_length();
    loop {
        let seen = WAKE.load(Ordering::Acquire);
        if !STOP.load(Ordering::SeqCst) {
            sleep(wait, seen);
        }
        if STOP.load(Ordering::SeqCst) || status::credentials() != credentials {
            return NEAP.leave_purging();
        }
        match NEAP.tick() {
            Some(next) => wait = next,
            None => return,
        }
    }
}
