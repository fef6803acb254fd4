//! System calls of the program that neap's helper thread would disturb, or that neap must handle. [`perform`] makes
//! each of them, and sets errno as the C library does.
//!
//! - `unshare` and `setns` refuse processes of several threads, so they run while the helper is stopped.
//! - A child that is made by `clone` or `syscall`, so without fork handlers, is made while the helper is stopped.
//! - A seccomp filter may end the process for a call that only neap makes. So neap stops making such calls before the
//!   filter takes effect. Programs set filters by `prctl`, or by `syscall`, because the C library has no `seccomp`.
//! - The strict mode of seccomp, and prctl(PR_SET_TSC), forbid the processor's counter, which most clocks need.
//! - The kernel does not discard the contents of a part of a huge page of its pool, although it may report success.
//! - A limit on address space counts what neap has reserved, and one on writable memory what neap has committed, so
//!   neap gives back what is not used (`program.rs` of the port).
//! - mlockall counts and locks what neap has reserved and not used (`program.rs` of the port).
//! - A change of how a large block is mapped must not reach the block's next owner (`apart.rs` of the core).
//!
//! A library behind neap may have such functions as well, to redirect or record calls (torsocks, uid_wrapper). Then
//! neap makes the call by that library's function, which the program would have called without neap ([`find_next`]).

use crate::lookup::{self, Scope};
use crate::older::{self, Child, Clone};
use core::ffi::{c_int, c_long, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use neap_sys::global::NEAP;
use neap_sys::{arch, errno, guards, may_read, musl, program};

/// Whether the functions by which the program gives itself a filter are those of this file. They are not if the program
/// has opened neap itself, so that neap comes behind the C library, or if another library is in front, which may not
/// pass the calls on.
pub fn sees_filters() -> bool {
    let own = [(c"prctl", prctl as *mut c_void), (c"syscall", syscall as *mut c_void)];
    own.into_iter().all(|(name, own)| {
        let first = lookup::symbol(Scope::ALL, name);
        // In a static program the look-up finds nothing, and neap's function is the only one.
        first.is_null() || first == own
    })
}

/// Looks for functions of these names behind neap and in front of the C library. Called by the constructor, so mostly
/// before the process has threads.
pub fn find_next() {
    older::each_in_front_of_libc(|object| {
        for (name, next) in NAMES.as_bytes().split(|&byte| byte == 0).zip(&NEXT) {
            // Relaxed, here and below: the function was there before.
            if next.load(Ordering::Relaxed).is_null() {
                next.store(object.symbol(name), Ordering::Relaxed);
            }
        }
    });
}

/// Makes a system call by the next function of this name, or directly. Returns its result, or the negated error.
///
/// # Safety
/// As the system call.
#[inline(never)]
unsafe fn call_next(name: Name, number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;
    // SAFETY: null, or a function that takes so many words or fewer, and returns a word or an int.
    let next = unsafe { lookup::function::<Function>(NEXT[name as usize].load(Ordering::Relaxed)) };
    let Some(next) = next else {
        // SAFETY: as the caller promises.
        return unsafe { arch::syscall(number as usize, [a, b, c, d, e, f]) };
    };
    // SAFETY: as the caller promises.
    let result = unsafe {
        match name {
            Name::syscall => next(number as usize, a, b, c, d, e, f),
            // The system call's first word is the process.
            Name::setrlimit | Name::setrlimit64 => next(b, c, 0, 0, 0, 0, 0),
            _ => next(a, b, c, d, e, f, 0),
        }
    };
    let is_word = matches!(name, Name::syscall | Name::mmap | Name::mmap64 | Name::mremap);
    let result = if is_word { result } else { result as c_int as isize };
    if result == -1 { -(errno::get() as isize) } else { result }
}

/// Makes a system call that the program requests through the function `name`, and does what neap must do before and
/// after it. Returns what the C library's functions return.
///
/// # Safety
/// As the system call.
unsafe fn perform(number: c_long, arguments: [usize; 6], name: Name) -> c_long {
    let [a, b, c, ..] = arguments;
    // SAFETY: the caller's contract is the system call's.
    let call = || unsafe { call_next(name, number, arguments) };
    let result = match number {
        libc::SYS_seccomp if sets_filter(a, b, c) => match a as u32 {
            libc::SECCOMP_SET_MODE_STRICT => program::around_filter(|| program::without_counter(call)),
            _ => program::around_filter(call),
        },
        libc::SYS_prctl if a as c_int == libc::PR_SET_SECCOMP && sets_filter_by_prctl(b, c) => match b as u32 {
            libc::SECCOMP_MODE_STRICT => program::around_filter(|| program::without_counter(call)),
            _ => program::around_filter(call),
        },
        libc::SYS_prctl if a as c_int == libc::PR_SET_TSC && b as c_int == libc::PR_TSC_SIGSEGV => {
            program::without_counter(call)
        }
        libc::SYS_madvise if c as c_int == libc::MADV_DONTNEED => {
            // SAFETY: the caller's contract is the system call's, which each part of the range meets.
            unsafe { program::forget(a, b, |p, len| call_next(name, number, [p, len, c, 0, 0, 0])) }
        }
        libc::SYS_mlockall => program::lock_all(a, call),
        libc::SYS_unshare | libc::SYS_setns => program::without_helper(call),
        // The address may be invalid; then the kernel refuses the call.
        libc::SYS_clone3 if b >= size_of::<u64>() && may_read(a as u64) => {
            // SAFETY: `may_read` found 8 bytes. They are the flags, with which `struct clone_args` begins.
            let flags = unsafe { core::ptr::with_exposed_provenance::<u64>(a).read_unaligned() };
            if shares_memory(flags as usize) { call() } else { program::around_fork(call) }
        }
        libc::SYS_clone if !shares_memory(a) => program::around_fork(call),
        // fork and vfork are calls of their own on x86-64 alone.
        number if Some(number) == arch::FORK => program::around_fork(call),
        libc::SYS_prlimit64 | libc::SYS_setrlimit => {
            let result = call();
            let (process, resource, new) = if number == libc::SYS_setrlimit { (0, a, b) } else { (a, b, c) };
            if result == 0 && new != 0 && program::is_own(process as libc::pid_t) {
                match resource as u32 {
                    libc::RLIMIT_AS => program::address_limit_set(),
                    libc::RLIMIT_DATA => program::data_limit_set(),
                    _ => {}
                }
            }
            result
        }
        _ => {
            // Noted before the change, because a call that fails may have made a part of it.
            for changed in changed_mappings(number, arguments).into_iter().flatten() {
                let changed = core::ptr::without_provenance(changed);
                NEAP.note_changed(changed);
                guards::note_changed(changed);
            }
            call()
        }
    };
    if arch::is_error(result) {
        errno::set(-result as c_int);
        return -1;
    }
    result as c_long
}

/// Whether prctl(PR_SET_SECCOMP) with these arguments may put a filter in force. Programs call it without a filter to
/// find out whether the kernel has filters.
fn sets_filter_by_prctl(mode: usize, filter: usize) -> bool {
    mode as u32 == libc::SECCOMP_MODE_STRICT || filter != 0
}

/// The same for seccomp. The strict mode takes neither flags nor a pointer. All other operations only query.
fn sets_filter(operation: usize, flags: usize, filter: usize) -> bool {
    match operation as u32 {
        libc::SECCOMP_SET_MODE_STRICT => flags as u32 == 0 && filter == 0,
        libc::SECCOMP_SET_MODE_FILTER => filter != 0,
        _ => false,
    }
}

/// Flags of mremap with which it has a last argument.
const TO_AN_ADDRESS: c_int = libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;

/// Guards without mappings of their own (Linux 6.13); libc has no name for it yet.
const MADV_GUARD_INSTALL: c_int = 102;

/// A request of userfaultfd to handle the faults of a range, whose address is the first word of its argument.
const UFFDIO_REGISTER: u32 = 0xC020_AA00;

/// The address of the range, if an ioctl is such a request.
fn registered_range(request: usize, argument: usize) -> Option<usize> {
    if request as u32 != UFFDIO_REGISTER || !may_read(argument as u64) {
        return None;
    }
    // SAFETY: `may_read` found 8 bytes. The kernel has its own copy: another value here marks another block, at worst.
    Some(unsafe { core::ptr::with_exposed_provenance::<u64>(argument).read_unaligned() } as usize)
}

/// Addresses at which a system call with these arguments changes OS pages in a way that must not reach the next owner
/// of the block there.
fn changed_mappings(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> [Option<usize>; 2] {
    let first = match number {
        libc::SYS_ioctl => return [registered_range(b, c), None],
        libc::SYS_mprotect => c as c_int != libc::PROT_READ | libc::PROT_WRITE,
        libc::SYS_madvise => matches!(
            c as c_int,
            libc::MADV_DONTFORK
                | libc::MADV_WIPEONFORK
                | libc::MADV_DONTDUMP
                | libc::MADV_MERGEABLE
                | MADV_GUARD_INSTALL
        ),
        libc::SYS_pkey_mprotect
        | libc::SYS_mbind
        | libc::SYS_mlock
        | libc::SYS_mlock2
        | libc::SYS_munmap
        | libc::SYS_mremap => true,
        libc::SYS_mmap => d as c_int & libc::MAP_FIXED != 0,
        _ => false,
    };
    let target = number == libc::SYS_mremap && d as c_int & libc::MREMAP_FIXED != 0;
    [first.then_some(a), target.then_some(e)]
}

/// Whether a child made with these flags uses its parent's memory.
fn shares_memory(flags: usize) -> bool {
    flags & libc::CLONE_VM as usize != 0
}

/// Exports C functions that are one system call: name and parameters, type of the result, number, arguments.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($parameter:ident: $type:ty),*) -> $result:ty
        = $number:expr, [$($argument:expr),*];)*) => {
        /// The functions of this file.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        enum Name { $($name,)* syscall, clone }
        /// Their names, as one string: the dynamic linker would write the address of each at each start.
        const NAMES: &str = concat!($(stringify!($name), "\0",)* "syscall\0clone");
        /// The functions of these names that come next; null for none.
        static NEXT: [AtomicPtr<c_void>; Name::clone as usize + 1] =
            [const { AtomicPtr::new(null_mut()) }; Name::clone as usize + 1];
        $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the system call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($parameter: $type),*) -> $result {
            let mut arguments = [0; 6];
            // Signed numbers are sign-extended. Pointers are exposed, because the kernel turns them into pointers
            // again.
            arguments.iter_mut().zip([$($argument as usize),*]).for_each(|(to, word)| *to = word);
            // SAFETY: the function's contract is the system call's, and these are its arguments.
            unsafe { perform($number, arguments, Name::$name) as $result }
        }
    )*};
}

calls! {
    /// Linux: gives the process namespaces and tables of its own, in place of some that it shares.
    unshare(flags: c_int) -> c_int = libc::SYS_unshare, [flags];
    /// Linux: moves the process into the namespaces behind a file.
    setns(file: c_int, kind: c_int) -> c_int = libc::SYS_setns, [file, kind];
    /// Linux: settings of a process and its threads.
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int = libc::SYS_prctl, [option, a, b, c, d];
    /// POSIX: sets a limit of the process.
    setrlimit(resource: c_int, new: *const c_void) -> c_int = libc::SYS_prlimit64, [0, resource, new];
    /// The same: on 64-bit Linux the two structures are one.
    setrlimit64(resource: c_int, new: *const c_void) -> c_int = libc::SYS_prlimit64, [0, resource, new];
    /// Linux: sets or reads a limit of a process (0: this one).
    prlimit(process: libc::pid_t, resource: c_int, new: *const c_void, old: *mut c_void) -> c_int
        = libc::SYS_prlimit64, [process, resource, new, old];
    /// The same, as [`setrlimit64`].
    prlimit64(process: libc::pid_t, resource: c_int, new: *const c_void, old: *mut c_void) -> c_int
        = libc::SYS_prlimit64, [process, resource, new, old];
    /// POSIX: sets the protection of OS pages.
    mprotect(p: *mut c_void, len: usize, protection: c_int) -> c_int = libc::SYS_mprotect,
        [musl::start_of_page(p.expose_provenance()), musl::to_end_of_page(p.addr(), len), protection];
    /// Linux: the same, and a key. As in the C library: kernels without keys have no such call.
    pkey_mprotect(p: *mut c_void, len: usize, protection: c_int, key: c_int) -> c_int
        = if key == -1 { libc::SYS_mprotect } else { libc::SYS_pkey_mprotect }, [p, len, protection, key];
    /// Linux: advice on OS pages.
    madvise(p: *mut c_void, len: usize, advice: c_int) -> c_int = libc::SYS_madvise, [p, len, advice];
    /// POSIX: keeps OS pages in memory.
    mlock(p: *const c_void, len: usize) -> c_int = libc::SYS_mlock, [p, len];
    /// Linux: the same, with flags. As in the C library: kernels before 4.4 have no mlock2.
    mlock2(p: *const c_void, len: usize, flags: c_uint) -> c_int
        = if flags == 0 { libc::SYS_mlock } else { libc::SYS_mlock2 }, [p, len, flags];
    /// POSIX: keeps all OS pages in memory.
    mlockall(flags: c_int) -> c_int = libc::SYS_mlockall, [flags];
    /// Unix: a request to a device. The last argument is a number or an address, and may be left out.
    ioctl(file: c_int, request: usize, argument: usize) -> c_int = libc::SYS_ioctl, [file, request, argument];
    /// POSIX: maps a file or fresh memory. The address is returned as a number.
    mmap(p: *mut c_void, len: usize, protection: c_int, flags: c_int, file: c_int, from: i64) -> c_long
        = libc::SYS_mmap, [p, len, protection, flags, file, from];
    /// The same: on 64-bit Linux all offsets have 64 bits.
    mmap64(p: *mut c_void, len: usize, protection: c_int, flags: c_int, file: c_int, from: i64) -> c_long
        = libc::SYS_mmap, [p, len, protection, flags, file, from];
    /// POSIX: removes mappings.
    munmap(p: *mut c_void, len: usize) -> c_int = libc::SYS_munmap, [p, len];
    /// Linux: moves or resizes a mapping. The last argument is passed if `flags` say so, else callers leave it out.
    mremap(p: *mut c_void, old: usize, new: usize, flags: c_int, to: *mut c_void) -> c_long
        = libc::SYS_mremap, [p, old, new, flags, if flags & TO_AN_ADDRESS == 0 { 0 } else { to as usize }];
}

/// Linux: any system call.
///
/// # Safety
/// As the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    // SAFETY: the function's contract is the system call's.
    unsafe { perform(number, [a, b, c, d, e, f], Name::syscall) }
}

/// The function of `clone` and its argument.
struct Start {
    f: Child,
    arg: *mut c_void,
}

/// Runs in a child that has its own memory, and so a copy of `Start`. When this returns, the C library ends the thread
/// and not the process. So a helper must end before: it would keep the process alive and set its status.
extern "C" fn run_in_child(start: *mut c_void) -> c_int {
    // SAFETY: `clone` passes a `Start` on its stack, of which the child has a copy.
    let Start { f, arg } = unsafe { start.cast::<Start>().read() };
    let status = f(arg);
    program::before_end();
    status
}

unsafe extern "C" {
    /// The C library's `clone`, under its other name.
    fn __clone(
        f: Option<Child>,
        stack: *mut c_void,
        flags: c_int,
        arg: *mut c_void,
        parent: *mut c_void,
        tls: *mut c_void,
        child: *mut c_void,
    ) -> c_int;
}

/// Linux: a child that runs `f(arg)` on `stack`. The last three arguments are used if `flags` say so.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    f: Option<Child>,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent: *mut c_void,
    tls: *mut c_void,
    child: *mut c_void,
) -> c_int {
    // SAFETY: null, or a function of this type.
    let next = unsafe { lookup::function::<Clone>(NEXT[Name::clone as usize].load(Ordering::Relaxed)) };
    let call = |f, arg| match next {
        // SAFETY: a function with the contract of this one.
        Some(next) => unsafe { next(f, stack, flags, arg, parent, tls, child) },
        // SAFETY: the C library's function under its other name, with the contract of this one.
        None => musl::result_of_clone(unsafe { __clone(f, stack, flags, arg, parent, tls, child) }),
    };
    // Only the parent returns from this call.
    match f {
        Some(f) if !shares_memory(flags as usize) => {
            let mut start = Start { f, arg };
            program::around_fork(|| call(Some(run_in_child), (&raw mut start).cast()) as isize) as c_int
        }
        _ => call(f, arg),
    }
}
