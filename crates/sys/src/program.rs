//! What must neap do when the program asks the system for something that its helper or its memory would be in the way of?
//! The preload library has the functions by which programs ask.
//!
//! - `unshare` and `setns`, which refuse processes of several threads, run while there is no helper ([`without_helper`]).
//! - Before the process gives itself a seccomp filter, the helper is stopped for good ([`around_filter`]).
//! - A child that is made without the C library's fork handlers has no helper, but may find its locks taken. So the helper is
//!   ended for that too ([`around_fork`]).
//! - A limit on address space (RLIMIT_AS) that is set while the program runs: what neap has reserved would count, so that the
//!   kernel refused every mapping from then on. It is given back at once ([`address_limit_set`]).

use crate::allocator::NEAP;
use crate::system::filter::{self, Asking};
use crate::system::{alive, call, lines, space};
use crate::{arch, thread};
use core::sync::atomic::Ordering;
use neap_core::sync::Threads;

/// Milliseconds that are waited for the kernel to forget a thread, which has to get a processor for that.
const GONE_MS: u32 = 5000;

/// Runs `f` while there is no helper: it is ended first, and none is started meanwhile.
pub fn without_helper<R>(f: impl FnOnce() -> R) -> R {
    NEAP.without_helper(wait_until_forgotten, f)
}

/// Runs `fork`, a call that makes a child without the C library's handlers, while there is no helper. Safe in a handler of
/// a signal that came in the middle of a call of neap's.
pub fn around_fork(fork: impl FnOnce() -> isize) -> isize {
    let entered = arch::enter();
    let reentrant = entered.is_none();
    if let Some(entered) = entered {
        // It was only to ask.
        entered.leave();
    }
    NEAP.around_fork(reentrant, fork)
}

/// The first thread of the process is about to end, without an exit of the process: ends the helper, if it would be all
/// that the process still has. Else the process would live until the helper sees that, see `end_process`.
#[cold]
pub fn before_end() {
    // Two are this one and the helper.
    let is_last = |_asking| lines::threads().is_none_or(|count| count <= 2);
    if Asking::if_allowed().is_some_and(is_last) {
        NEAP.end_helper(wait_until_forgotten);
    }
}

/// Runs `call`, by which the process gives itself a filter of system calls. Before that the helper ends, much memory that
/// waits goes, and from then on neap makes only calls that no filter can do without, unless the call is refused. Behind it
/// neap makes none at all: the strict mode allows not even those.
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

/// Waits until the kernel has forgotten the last helper, which has done its last step: a moment later it has left the
/// process.
fn wait_until_forgotten() {
    if space::here().is_guest() {
        // The helper is the owner's, and stays.
        return;
    }
    let last = &space::here().helper.thread;
    let tid = last.load(Ordering::SeqCst);
    let mut patience = GONE_MS;
    // The C library's threads have a list of robust locks: one of those has the helper's number by now.
    while tid != 0 && patience > 0 && alive::is_thread(tid) && !alive::has_locks(tid) {
        NEAP.os.futex_wait_for(last, tid, 1);
        patience -= 1;
    }
    // Relaxed for failure: another caller was first.
    let _ = last.compare_exchange(tid, 0, Ordering::SeqCst, Ordering::Relaxed);
}

/// Whether prlimit means the calling process by this number.
pub fn is_own(number: libc::pid_t) -> bool {
    number == 0 || NEAP.os.process() == Some(number.cast_unsigned())
}

/// The process has set itself a limit on address space. Nothing in a reentrant call: what is reserved goes back when more
/// is needed.
#[cold]
pub fn address_limit_set() {
    // The child of a vfork has limits of its own, but its parent's memory.
    if filter::is_forbidden() || !space::is_owner(call::process()) {
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
