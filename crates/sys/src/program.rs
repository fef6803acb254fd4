//! System calls of the program that neap's helper thread or neap's memory would disturb, and what neap does around
//! them. The preload library has the functions by which programs make them.
//!
//! - `unshare` and `setns` refuse processes of several threads. They run while there is no helper ([`without_helper`]).
//! - Before the process sets a seccomp filter, the helper is stopped for good ([`around_filter`]).
//! - A child that is made without the C library's fork handlers has no helper, but may find locks taken that the helper
//!   held. So the helper is ended before such a child is made ([`around_fork`]).
//! - The program may forbid its threads to read the processor's counter, which most clocks need. Then neap reads other
//!   clocks ([`without_counter`]).
//! - A limit on address space (RLIMIT_AS) that is set while the program runs counts what neap has reserved: the kernel
//!   would refuse every mapping from then on. So the reservation is given back at once ([`address_limit_set`]).

use crate::allocator::NEAP;
use crate::arch::{self, Entered};
use crate::system::filter::{self, Asking};
use crate::system::{alive, call, clock, lines, pool, space};
use crate::thread;
use core::sync::atomic::Ordering;
use neap_core::sync::Threads;

/// Longest wait, in milliseconds, until the kernel has removed a thread that ends: the thread must run once more for
/// that.
const GONE_MS: u32 = 5000;

/// Runs `f` while there is no helper: it is ended first, and none is started meanwhile.
pub fn without_helper<R>(f: impl FnOnce() -> R) -> R {
    NEAP.without_helper(wait_until_forgotten, f)
}

/// Runs `fork`, a call that makes a child without the C library's handlers, while there is no helper. Safe in a handler
/// of a signal that came in the middle of a call of neap's.
pub fn around_fork(fork: impl FnOnce() -> isize) -> isize {
    let reentrant = arch::enter().map(Entered::leave).is_none();
    NEAP.around_fork(reentrant, fork)
}

/// To be called when the first thread of the process is about to end without an exit of the process. Ends the helper if
/// it would be the last thread. Else the process would live until the helper finds that out (`end_process`).
#[cold]
pub fn before_end() {
    // Two are this one and the helper.
    let is_last = |_asking| lines::threads().is_none_or(|count| count <= 2);
    if Asking::if_allowed().is_some_and(is_last) {
        NEAP.end_helper(wait_until_forgotten);
    }
}

/// Runs `call`, by which the process gives itself a filter of system calls. First the helper ends, and memory that
/// waits is given back if it is much. From then on neap makes only the calls that every filter must allow, unless the
/// system refuses the filter. After `call` this function makes no system call, because the strict mode of seccomp
/// allows none of neap's.
#[cold]
pub fn around_filter(call: impl FnOnce() -> isize) -> isize {
    let asked = without_helper(|| {
        thread::in_call(|_| NEAP.before_inline());
        filter::forbid(space::here().is_guest())
    });
    let result = call();
    asked.answered(!arch::is_error(result));
    result
}

/// Runs `call`, by which the program takes the processor's counter away from the calling thread and its children
/// (prctl(PR_SET_TSC), and the strict mode of seccomp). The kernel's code for clocks would crash from then on.
#[cold]
pub fn without_counter(call: impl FnOnce() -> isize) -> isize {
    clock::forgo_counter();
    let result = call();
    if arch::is_error(result) {
        clock::keep_counter();
    }
    result
}

/// MADV_DONTNEED of the program's. `call` makes it for a part of the range.
///
/// # Safety
/// As the system call.
pub unsafe fn forget(p: usize, len: usize, call: impl Fn(usize, usize) -> isize) -> isize {
    let page = call::page_size();
    let whole = len.checked_next_multiple_of(page).filter(|_| p.is_multiple_of(page));
    match whole {
        Some(len) if pool::has(core::ptr::without_provenance_mut(p), len) => {
            // SAFETY: as the caller promises.
            unsafe { pool::forget(p, len, call) }
        }
        _ => call(p, len),
    }
}

/// Waits until the kernel has removed the last helper. The helper has done its last step, so it ends a moment later.
fn wait_until_forgotten() {
    if space::here().is_guest() {
        // The helper belongs to the owner of the memory, and stays.
        return;
    }
    let last = &space::here().helper.thread;
    let tid = last.load(Ordering::SeqCst);
    let mut patience = GONE_MS;
    // The C library's threads have a list of robust locks. A thread with a list is a later one that got the helper's
    // number.
    while tid != 0 && patience > 0 && alive::is_thread(tid) && !alive::has_locks(tid) {
        NEAP.os.futex_wait_for(last, tid, 1);
        patience -= 1;
    }
    // Relaxed for failure: another caller was first.
    let _ = last.compare_exchange(tid, 0, Ordering::SeqCst, Ordering::Relaxed);
}

/// Whether the process is known to own its memory, and its threads the locks in it: it is no guest (`vfork`), and no
/// child that was made without fork handlers, in which locks may be held by threads of its parent.
pub fn owns_memory() -> bool {
    space::is_owner(call::process())
}

/// Whether prlimit takes this number for the calling process.
pub fn is_own(number: libc::pid_t) -> bool {
    number == 0 || NEAP.os.process() == Some(number.cast_unsigned())
}

/// To be called when the process has set itself a limit on address space: gives reserved addresses back. Does nothing
/// in a reentrant call: they go back when more memory is needed.
#[cold]
pub fn address_limit_set() {
    // The child of a vfork has limits of its own, but its parent's memory.
    if filter::is_forbidden() || !owns_memory() {
        return;
    }
    if thread::in_call(|_| NEAP.give_reservations_back()) != Some(true) {
        return;
    }
    without_helper(|| {
        thread::in_call(|_| {
            if lines::threads() == Some(1) {
                // SAFETY: this is the only thread, and it is in no other call.
                unsafe { NEAP.give_map_back() };
            }
        });
    });
}
