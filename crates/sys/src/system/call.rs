//! System calls that any module may make. None of them touches errno.

use crate::arch;
use crate::system::errno;
use core::ffi::{c_ulong, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use rustix::fd::{AsFd, BorrowedFd, RawFd};
use rustix::io::retry_on_intr;
use rustix::mm::{self, MapFlags, ProtFlags};

/// An entry of the auxiliary vector; 0 where there is none. Keeps errno, which the C library sets for that.
pub fn auxiliary(kind: c_ulong) -> usize {
    // SAFETY: getauxval only reads.
    errno::kept(|| unsafe { libc::getauxval(kind) as usize })
}

/// Bytes of an OS page. Kept, because a library in front of the C library may replace getauxval by one that the helper
/// thread cannot call.
pub fn page_size() -> usize {
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: the number stands for itself.
    let mut size = KEPT.load(Ordering::Relaxed);
    if size == 0 {
        size = auxiliary(libc::AT_PAGESZ);
        KEPT.store(size, Ordering::Relaxed);
    }
    size
}

/// The number of the calling process.
pub fn process() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// The system's number of the calling thread.
pub fn thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// System calls that take no address, so they read and write no memory of this process.
#[derive(Clone, Copy, Debug)]
#[repr(i64)]
#[expect(missing_docs, reason = "named as in the manual")]
pub enum Plain {
    CloseRange = libc::SYS_close_range,
    ExitGroup = libc::SYS_exit_group,
    Getpriority = libc::SYS_getpriority,
    Gettid = libc::SYS_gettid,
    Membarrier = libc::SYS_membarrier,
    PidfdGetfd = libc::SYS_pidfd_getfd,
    PidfdOpen = libc::SYS_pidfd_open,
    SchedGetscheduler = libc::SYS_sched_getscheduler,
    Setpriority = libc::SYS_setpriority,
    Tgkill = libc::SYS_tgkill,
}

/// Makes such a call; returns its result, or the negated error.
pub fn plain<const N: usize>(call: Plain, arguments: [usize; N]) -> isize {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: none of these calls is given an address.
    unsafe { arch::syscall(call as usize, all) }
}

/// The type of a limit's name, which differs between C libraries.
#[cfg(target_env = "gnu")]
pub type Resource = libc::__rlimit_resource_t;
/// As above.
#[cfg(not(target_env = "gnu"))]
pub type Resource = core::ffi::c_int;

/// A limit of a process (0: this one) that is in force; `None` if the system does not answer: a filter may refuse the
/// call, an error that the function of rustix cannot return.
pub fn limit_of(process: u32, resource: Resource) -> Option<u64> {
    let mut limit = [libc::RLIM_INFINITY; 2];
    let at = (&raw mut limit).expose_provenance();
    let arguments = [process as usize, resource as usize, 0, at, 0, 0];
    // SAFETY: no limit is set; the kernel writes two words.
    (unsafe { arch::syscall(libc::SYS_prlimit64 as usize, arguments) } == 0).then_some(limit[0])
}

/// A limit of this process that is in force (RLIMIT_AS, ...). `None` where there is none, or the system does not
/// answer.
pub fn limit(resource: Resource) -> Option<u64> {
    limit_of(0, resource).filter(|&limit| limit != libc::RLIM_INFINITY)
}

/// Whether writing a file of `bytes` would raise SIGXFSZ.
pub fn is_too_long(bytes: usize) -> bool {
    limit(libc::RLIMIT_FSIZE).is_some_and(|most| most < bytes as u64)
}

/// Sets the mask of blocked signals; returns the old mask, or `None` if the system refuses.
fn set_mask(mask: u64) -> Option<u64> {
    let (new, mut old) = (mask, 0u64);
    let (new, old_at) = ((&raw const new).expose_provenance(), (&raw mut old).expose_provenance());
    let arguments = [libc::SIG_SETMASK as usize, new, old_at, 8, 0, 0];
    // SAFETY: both masks are eight bytes, as the kernel's are.
    let done = unsafe { arch::syscall(libc::SYS_rt_sigprocmask as usize, arguments) };
    (done == 0).then_some(old)
}

/// Runs `f` with all signals blocked.
pub fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    let before = set_mask(u64::MAX);
    let result = f();
    if let Some(before) = before {
        set_mask(before);
    }
    result
}

/// SIGPIPE and SIGXFSZ, as a mask.
const OF_WRITES: u64 = 1 << (libc::SIGPIPE - 1) | 1 << (libc::SIGXFSZ - 1);

/// Runs `f`, in which writes fail instead of raising SIGPIPE or SIGXFSZ.
pub fn without_signals_of_writes<R>(f: impl FnOnce() -> R) -> R {
    let Some(before) = set_mask(u64::MAX) else { return f() };
    let waiting = pending();
    set_mask(before | OF_WRITES);
    let result = f();
    set_mask(u64::MAX);
    let new = pending() & OF_WRITES & !waiting;
    if new != 0 {
        take_pending(new);
    }
    set_mask(before);
    result
}

/// The signals that are pending for the calling thread or the process.
fn pending() -> u64 {
    let mut waiting = 0u64;
    let arguments = [(&raw mut waiting).expose_provenance(), 8, 0, 0, 0, 0];
    // SAFETY: a mask has eight bytes.
    unsafe { arch::syscall(libc::SYS_rt_sigpending as usize, arguments) };
    waiting
}

/// Consumes the pending signals of a mask, without waiting.
fn take_pending(mask: u64) {
    let no_time = [0u64; 2];
    let (mask, no_time) = ((&raw const mask).expose_provenance(), (&raw const no_time).expose_provenance());
    for _ in 0..OF_WRITES.count_ones() {
        // SAFETY: a mask of eight bytes, and a time of two words.
        unsafe { arch::syscall(libc::SYS_rt_sigtimedwait as usize, [mask, 0, no_time, 8, 0, 0]) };
    }
}

/// Whether the calling thread is known to have no seccomp filter, by a call that few filters allow.
pub fn has_no_filter() -> bool {
    // SAFETY: the call takes no pointers.
    let mode = unsafe { arch::syscall(libc::SYS_prctl as usize, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) };
    // An error proves nothing: it may come from a filter, or from a kernel without seccomp.
    mode == 0
}

/// Whether the 8 bytes at an address can be read.
pub fn is_readable(address: u64) -> bool {
    let (first, last) = (address & !3, address.wrapping_add(7) & !3);
    // Where the address is a multiple of 8, both words are on one OS page.
    is_word_readable(first as usize) && (address.is_multiple_of(8) || is_word_readable(last as usize))
}

/// Whether the four bytes at a multiple of 4 can be read. The kernel compares them for a futex call that wakes and
/// moves no thread, so nothing changes. A filter that lets an allocator work allows futex calls.
fn is_word_readable(address: usize) -> bool {
    let operation = (libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG) as usize;
    let (woken, moved, compared) = (0, 0, 0);
    let arguments = [address, operation, woken, moved, address, compared];
    // SAFETY: the call reads a word, checks the address, and changes nothing.
    let result = unsafe { arch::syscall(libc::SYS_futex as usize, arguments) };
    // The word is 0, or another number.
    result == 0 || result == -(libc::EAGAIN as isize)
}

/// Ends the process with SIGABRT, also where the signal is blocked or handled.
pub fn abort() -> ! {
    // SAFETY: the function has no preconditions.
    unsafe { libc::abort() }
}

/// A number that differs between all files that are open; 0 if the system does not say.
pub fn identity(file: impl AsFd) -> u64 {
    rustix::fs::fstat(file).map_or(0, |s| s.st_ino ^ s.st_dev.rotate_left(32))
}

/// Access to memory that is used.
pub const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A fresh mapping without a file, which replaces no other one. `hint`: the address that it should get, or 0.
pub fn fresh(hint: usize, len: usize, access: ProtFlags, flags: MapFlags) -> Option<*mut u8> {
    let hint = core::ptr::without_provenance_mut::<c_void>(hint);
    // SAFETY: without MAP_FIXED a mapping replaces nothing.
    let p = unsafe { mm::mmap_anonymous(hint, len, access, flags.difference(MapFlags::FIXED)) };
    p.ok().map(<*mut c_void>::cast)
}

/// Makes the OS pages of a range resident. Contents stay, so any range may be given; one that is not mapped is an
/// error.
pub fn populate(p: *mut u8, len: usize) -> rustix::io::Result<()> {
    // SAFETY: as said, no contents change.
    unsafe { mm::madvise(p.cast(), len, mm::Advice::LinuxPopulateWrite) }
}

/// The file of this number, which is not -1. If no file has the number, calls on it fail.
pub fn by_number(file: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the number alone is used, to make calls of the system that check it.
    unsafe { BorrowedFd::borrow_raw(file) }
}

/// Whether a write of some hundred bytes to the file of this number would not wait (ppoll).
pub fn takes_writes(file: RawFd) -> bool {
    let mut asked = [libc::pollfd { fd: file, events: libc::POLLOUT, revents: 0 }];
    wait_for_files(&mut asked, 0);
    asked[0].revents & libc::POLLOUT != 0
}

/// Waits until one of the files is ready, for at most this many milliseconds (ppoll).
pub fn wait_for_files(asked: &mut [libc::pollfd], milliseconds: u32) {
    let mut time =
        libc::timespec { tv_sec: (milliseconds / 1000).into(), tv_nsec: (milliseconds % 1000 * 1_000_000).into() };
    let (files, time) = (asked.as_mut_ptr().expose_provenance(), (&raw mut time).expose_provenance());
    // SAFETY: the kernel reads and writes the structures; no mask of signals is given.
    unsafe { arch::syscall(libc::SYS_ppoll as usize, [files, asked.len(), time, 0, size_of::<u64>(), 0]) };
}

/// Writes all of `text` to the file of this number; false where that fails. A pipe may take a part, and a signal may
/// come.
pub fn write(file: RawFd, text: &[u8]) -> bool {
    write_all(file, text).is_ok()
}

/// [`write()`]; says why it failed.
pub fn write_all(file: RawFd, text: &[u8]) -> rustix::io::Result<()> {
    if file < 0 {
        return Err(rustix::io::Errno::BADF);
    }
    let file = by_number(file);
    let mut left = text;
    while !left.is_empty() {
        match retry_on_intr(|| rustix::io::write(file, left))? {
            0 => return Err(rustix::io::Errno::IO),
            n => left = left.get(n..).unwrap_or(&[]),
        }
    }
    Ok(())
}
