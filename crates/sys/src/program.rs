//! System calls of the program that neap's helper thread or neap's memory would disturb, and what neap does around
//! them. The preload library has the functions by which programs make them.
//!
//! - `unshare` and `setns` refuse processes of several threads. They run while there is no helper ([`without_helper`]).
//!   So do the functions that change user and groups: the C library changes those of its own threads only.
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
use crate::system::locked::{self, Lock};
use crate::system::{alive, call, clock, lines, pool, space};
use crate::thread;
use core::ops::Range;
use core::sync::atomic::Ordering;
use neap_core::sync::Threads;

/// Longest wait, in milliseconds, until the kernel has removed a thread that ends: the thread must run once more for
/// that.
const GONE_MS: u32 = 5000;

/// Runs `f` while there is no helper: it is ended first, and none is started meanwhile. Safe in a handler of a signal
/// that came in the middle of a call of neap's; but a helper that waits for that call stays until the handler returns.
pub fn without_helper<R>(f: impl FnOnce() -> R) -> R {
    NEAP.without_helper(is_reentrant(), wait_until_forgotten, f)
}

/// Whether the calling thread is in a handler that interrupted a call of neap's.
fn is_reentrant() -> bool {
    arch::enter().map(Entered::leave).is_none()
}

/// Runs `fork`, a call that makes a child without the C library's handlers, while there is no helper. Safe in a handler
/// of a signal that came in the middle of a call of neap's.
pub fn around_fork(fork: impl FnOnce() -> isize) -> isize {
    NEAP.around_fork(is_reentrant(), fork)
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
        let is_guest = space::here().is_guest();
        thread::in_call(|_| NEAP.before_inline());
        if !is_guest {
            // Under a filter, memory that comes into use cannot be put into core dumps, so all of it is put there now.
            // SAFETY: neap's reservations.
            each_unused(&mut |part, _| unsafe { locked::set_dumped(start_of(&part), part.len(), true) });
        }
        filter::forbid(is_guest)
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

/// `each_unused` of the core. Returns false, and does nothing, in a reentrant call.
#[cold]
#[inline(never)]
fn each_unused(visit: &mut dyn FnMut(Range<usize>, bool)) -> bool {
    thread::in_call(|_| NEAP.each_unused(visit)).is_some()
}

fn start_of(part: &Range<usize>) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(part.start)
}

/// mlockall of the program's with these flags, which `call` makes. What neap has reserved and not used is neither
/// locked nor counted.
#[cold]
pub fn lock_all(flags: usize, call: impl FnOnce() -> isize) -> isize {
    let mut result = call();
    let Some(_asking) = Asking::if_allowed().filter(|_| owns_memory()) else { return result };
    if flags & libc::MCL_FUTURE as usize != 0 {
        thread::in_call(|_| NEAP.begin_use_again());
    }
    if flags & libc::MCL_CURRENT as usize == 0 {
        return result;
    }
    if result == -(libc::ENOMEM as isize) && may_lock_all() {
        result = lock_each(flags);
    } else if result == 0 {
        each_unused(&mut |part, stays| {
            let (p, len) = (start_of(&part), part.len());
            // SAFETY: neap's reservations; what stays unused holds nothing.
            unsafe { if stays { locked::unlock_unused(p, len) } else { locked::unlock(p, len) } }
        });
    }
    result
}

/// Whether the process may lock all its mappings except what neap has reserved and not used.
fn may_lock_all() -> bool {
    let mut unused = 0;
    let found = each_unused(&mut |part, _| unused += part.len());
    let (limit, mapped) = (call::limit(libc::RLIMIT_MEMLOCK), lines::mapped_pages());
    let page = call::page_size();
    let fits = |limit: u64, mapped: usize| (mapped - (unused / page).min(mapped)) as u64 <= limit / page as u64;
    found && limit.zip(mapped).is_some_and(|(limit, mapped)| fits(limit, mapped))
}

/// Does what mlockall does, but for what neap has reserved and not used. As there, a mapping that cannot be locked is
/// skipped.
fn lock_each(flags: usize) -> isize {
    let (current, future) = (libc::MCL_CURRENT as usize, libc::MCL_FUTURE as usize);
    // Without MCL_FUTURE, later mappings are not locked; of the calls that set that, this is the only one left.
    let number = if flags & future != 0 { libc::SYS_mlockall } else { libc::SYS_munlockall };
    // SAFETY: neither call changes contents.
    let result = unsafe { arch::syscall(number as usize, [flags & !current, 0, 0, 0, 0, 0]) };
    if result != 0 {
        return result;
    }
    let how = if flags & libc::MCL_ONFAULT as usize != 0 { Lock::OnFault } else { Lock::AtOnce };
    let read = lines::each_mapping(|start, end| {
        let mut is_unused = false;
        each_unused(&mut |part, _| is_unused |= part.contains(&start));
        if !is_unused {
            // SAFETY: no contents change.
            unsafe { locked::lock(core::ptr::with_exposed_provenance_mut(start), end - start, how) };
        }
    });
    if read.is_ok() { 0 } else { -(libc::ENOMEM as isize) }
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

/// Whether what neap reserved and committed may follow a limit that was just set: the child of a vfork has limits of its
/// own, but its parent's memory.
fn may_follow_limits() -> bool {
    !filter::is_forbidden() && owns_memory()
}

/// To be called when the process has set itself a limit on writable memory: gives back what is committed and not used,
/// which counts. Does nothing in a reentrant call: then neap learns of the limit when it commits more.
#[cold]
pub fn data_limit_set() {
    if may_follow_limits() {
        thread::in_call(|_| NEAP.data_limit_set());
    }
}

/// To be called when the process has set itself a limit on address space: gives reserved addresses back. Does nothing
/// in a reentrant call: they go back when more memory is needed.
#[cold]
pub fn address_limit_set() {
    if !may_follow_limits() || thread::in_call(|_| NEAP.give_reservations_back()) != Some(true) {
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
