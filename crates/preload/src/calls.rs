//! System calls of the program that the helper thread would be in the way of, or that neap has to know of. Each is the
//! kernel's, with errno as the C library sets it.
//!
//! - `unshare` and `setns` refuse processes of several threads: they run while the helper is stopped.
//! - A child made by `clone` or `syscall`, so without fork handlers, is made while the helper is stopped.
//! - A filter of system calls may end the process for a call that neap alone makes: before it comes, neap gives those
//!   up, unless it is refused. Programs ask for it by `prctl`, or by `syscall`, as the C library has no `seccomp`.
//! - A limit on address space counts what neap has reserved: that is given back (`program.rs` of the port).
//! - What changes how a large block is mapped must not reach its next owner (`apart.rs` of the core).

use crate::lookup;
use core::ffi::{c_int, c_long, c_uint, c_void};
use neap_sys::global::NEAP;
use neap_sys::{arch, may_read, program};

/// The result of a call as the C library returns it.
fn result(result: isize) -> c_long {
    if arch::is_error(result) {
        crate::c::set_errno(-result as c_int);
        return -1;
    }
    result as c_long
}

/// Whether the program's calls of the functions by which it gives itself a filter come here. Not where it has opened neap by
/// itself, aside or behind the C library, or where another library stands in front, which may not pass them on.
pub fn sees_filters() -> bool {
    let own = [(c"prctl", prctl as *mut c_void), (c"syscall", syscall as *mut c_void)];
    own.into_iter().all(|(name, own)| {
        // SAFETY: a look-up by name.
        let first = unsafe { lookup::symbol(libc::RTLD_DEFAULT, name) };
        // A static program has no look-up, and no other function.
        first.is_null() || first == own
    })
}

/// Linux: takes the process out of some of the namespaces and tables that it shares.
#[unsafe(no_mangle)]
pub extern "C" fn unshare(flags: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    let call = || unsafe { arch::syscall(libc::SYS_unshare as usize, [flags as usize, 0, 0, 0, 0, 0]) };
    result(program::without_helper(call)) as c_int
}

/// Linux: moves the process into the namespaces behind a file.
#[unsafe(no_mangle)]
pub extern "C" fn setns(file: c_int, kind: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    let call = || unsafe { arch::syscall(libc::SYS_setns as usize, [file as usize, kind as usize, 0, 0, 0, 0]) };
    result(program::without_helper(call)) as c_int
}

/// Whether prctl(PR_SET_SECCOMP) with these arguments may put a filter in force. One without a filter is a question: what
/// the kernel answers tells whether it has filters.
fn sets_filter_by_prctl(mode: usize, filter: usize) -> bool {
    mode as u32 == libc::SECCOMP_MODE_STRICT || filter != 0
}

/// The same for seccomp. The strict mode takes neither flags nor a pointer; the operations behind these two only ask.
fn sets_filter(operation: usize, flags: usize, filter: usize) -> bool {
    match operation as u32 {
        libc::SECCOMP_SET_MODE_STRICT => flags as u32 == 0 && filter == 0,
        libc::SECCOMP_SET_MODE_FILTER => filter != 0,
        _ => false,
    }
}

/// Linux: settings of a process and its threads.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    // SAFETY: as the caller promises.
    let call = || unsafe { arch::syscall(libc::SYS_prctl as usize, [option as usize, a, b, c, d, 0]) };
    let is_filter = option == libc::PR_SET_SECCOMP && sets_filter_by_prctl(a, b);
    result(if is_filter { program::around_filter(call) } else { call() }) as c_int
}

/// Limits of a process (0: this one), by prlimit64, which the C library's other functions use too.
unsafe fn limit(process: libc::pid_t, resource: c_int, new: *const c_void, old: *mut c_void) -> c_int {
    let arguments = [process as usize, resource as usize, new.expose_provenance(), old.expose_provenance(), 0, 0];
    // SAFETY: as the callers promise.
    let done = result(unsafe { arch::syscall(libc::SYS_prlimit64 as usize, arguments) }) as c_int;
    if done == 0 && is_address_limit(resource as usize, new.addr()) && program::is_own(process) {
        program::address_limit_set();
    }
    done
}

/// Whether this sets a limit on address space.
fn is_address_limit(resource: usize, new: usize) -> bool {
    resource as c_int == libc::RLIMIT_AS as c_int && new != 0
}

/// POSIX: sets a limit of the process.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_int, new: *const c_void) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { limit(0, resource, new, core::ptr::null_mut()) }
}

/// The same: on 64-bit Linux the two structures are one.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_int, new: *const c_void) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { limit(0, resource, new, core::ptr::null_mut()) }
}

/// Linux: sets or asks for a limit of a process.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(process: libc::pid_t, resource: c_int, new: *const c_void, old: *mut c_void) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { limit(process, resource, new, old) }
}

/// The same, as [`setrlimit64`].
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    process: libc::pid_t,
    resource: c_int,
    new: *const c_void,
    old: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { limit(process, resource, new, old) }
}

/// Guards without mappings of their own (Linux 6.13); libc has no name for it yet.
const MADV_GUARD_INSTALL: c_int = 102;

/// Notes what the program changes of the OS page at `p`, which stays when it frees the block there. Before the change, as
/// it may be made in part where it fails.
fn note_change(number: c_long, p: usize, third: usize) {
    let stays = match number {
        libc::SYS_mprotect => third as c_int != libc::PROT_READ | libc::PROT_WRITE,
        libc::SYS_madvise => {
            matches!(third as c_int, libc::MADV_DONTFORK | libc::MADV_WIPEONFORK | MADV_GUARD_INSTALL)
        }
        _ => true,
    };
    if stays {
        NEAP.note_changed(core::ptr::without_provenance(p));
    }
}

/// A system call that [`note_change`] has to know of.
unsafe fn change(number: c_long, p: *const c_void, arguments: [usize; 3]) -> c_int {
    note_change(number, p.addr(), arguments[1]);
    let [len, a, b] = arguments;
    // SAFETY: as the callers promise.
    result(unsafe { arch::syscall(number as usize, [p.expose_provenance(), len, a, b, 0, 0]) }) as c_int
}

/// POSIX: what may be done with OS pages.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(p: *mut c_void, len: usize, protection: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { change(libc::SYS_mprotect, p, [len, protection as usize, 0]) }
}

/// Linux: the same, and a key.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(p: *mut c_void, len: usize, protection: c_int, key: c_int) -> c_int {
    // As the C library does: kernels without keys have no such call.
    if key == -1 {
        // SAFETY: as the caller promises.
        return unsafe { mprotect(p, len, protection) };
    }
    // SAFETY: as above.
    unsafe { change(libc::SYS_pkey_mprotect, p, [len, protection as usize, key as usize]) }
}

/// Linux: advice on OS pages.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(p: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { change(libc::SYS_madvise, p, [len, advice as usize, 0]) }
}

/// POSIX: keeps OS pages in memory.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(p: *const c_void, len: usize) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { change(libc::SYS_mlock, p, [len, 0, 0]) }
}

/// Linux: the same, with flags.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(p: *const c_void, len: usize, flags: c_uint) -> c_int {
    if flags == 0 {
        // As the C library does: kernels before 4.4 have no mlock2.
        // SAFETY: as the caller promises.
        return unsafe { mlock(p, len) };
    }
    // SAFETY: as above.
    unsafe { change(libc::SYS_mlock2, p, [len, flags as usize, 0]) }
}

/// Whether a child made with these flags is on its parent's memory.
fn shares_memory(flags: usize) -> bool {
    flags & libc::CLONE_VM as usize != 0
}

/// The function of `clone` and its argument.
struct Start {
    f: extern "C" fn(*mut c_void) -> c_int,
    arg: *mut c_void,
}

/// Runs in a child that has its own memory, and so a copy of `Start`. When it returns the C library ends the thread, not
/// the process: a helper would keep the process, and its status would be the helper's.
extern "C" fn run_in_child(start: *mut c_void) -> c_int {
    // SAFETY: `clone` passes a `Start`, which the child has a copy of.
    let Start { f, arg } = unsafe { start.cast::<Start>().read() };
    let status = f(arg);
    program::before_end();
    status
}

unsafe extern "C" {
    /// The C library's `clone`, under its other name.
    fn __clone(
        f: Option<extern "C" fn(*mut c_void) -> c_int>,
        stack: *mut c_void,
        flags: c_int,
        arg: *mut c_void,
        parent: *mut c_void,
        tls: *mut c_void,
        child: *mut c_void,
    ) -> c_int;
}

/// Linux: a child that runs `f(arg)` on `stack`. The last three arguments count where `flags` say so.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    f: Option<extern "C" fn(*mut c_void) -> c_int>,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent: *mut c_void,
    tls: *mut c_void,
    child: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises, here and below.
    let call = |f, arg| unsafe { __clone(f, stack, flags, arg, parent, tls, child) };
    // The parent alone comes back.
    match f {
        Some(f) if !shares_memory(flags as usize) => {
            let mut start = Start { f, arg };
            program::around_fork(|| call(Some(run_in_child), (&raw mut start).cast()) as isize) as c_int
        }
        _ => call(f, arg),
    }
}

/// Linux: any system call.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    // SAFETY: as the caller promises.
    let call = || unsafe { arch::syscall(number as usize, [a, b, c, d, e, f]) };
    result(match number {
        libc::SYS_seccomp if sets_filter(a, b, c) => program::around_filter(call),
        libc::SYS_prctl if a as c_int == libc::PR_SET_SECCOMP && sets_filter_by_prctl(b, c) => {
            program::around_filter(call)
        }
        libc::SYS_unshare | libc::SYS_setns => program::without_helper(call),
        // The address may be a wrong one, for which the kernel has an answer.
        libc::SYS_clone3 if b >= size_of::<u64>() && may_read(a as u64) => {
            // SAFETY: a `struct clone_args`, whose first member are the flags; they can be read.
            let flags = unsafe { core::ptr::with_exposed_provenance::<u64>(a).read_unaligned() };
            if shares_memory(flags as usize) { call() } else { program::around_fork(call) }
        }
        libc::SYS_clone if !shares_memory(a) => program::around_fork(call),
        libc::SYS_fork => program::around_fork(call),
        libc::SYS_prlimit64 | libc::SYS_setrlimit => {
            let done = call();
            let (process, resource, new) = if number == libc::SYS_setrlimit { (0, a, b) } else { (a, b, c) };
            if done == 0 && is_address_limit(resource, new) && program::is_own(process as libc::pid_t) {
                program::address_limit_set();
            }
            done
        }
        libc::SYS_mprotect | libc::SYS_pkey_mprotect | libc::SYS_madvise | libc::SYS_mlock | libc::SYS_mlock2 => {
            note_change(number, a, c);
            call()
        }
        _ => call(),
    })
}
