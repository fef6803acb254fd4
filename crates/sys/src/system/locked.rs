//! Memory that the program locks (mlockall), and what of neap's memory is in core dumps.
//!
//! neap reserves 66 GiB of addresses. The kernel would count all of them as locked, and a debugger would write all of
//! them to a core dump. So a reservation is not locked and is kept out of dumps ([`reserve`]); what comes into use is
//! put into dumps, and locked if the process locks what it maps from now on ([`begin_use`]), as the kernel would do for
//! a new mapping. Whether the process does so is found out by a new mapping ([`future`]): the program may have set it
//! in any way.

use crate::arch;
use crate::system::call::{READ_WRITE, fresh, page_size};
use crate::system::filter::{self, Asking, Filter};
use crate::system::space::count;
use crate::system::{map, pool};
use core::sync::atomic::{AtomicBool, Ordering};
use neap_core::os::Run;
use neap_counters::Syscall;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// How memory is locked: when it is mapped, or each OS page when it is first touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    AtOnce,
    OnFault,
}

/// True from a reservation that was found not to be locked up to the first use of memory, which follows at once.
static IS_FREE: AtomicBool = AtomicBool::new(false);

/// A system call on a range that changes no contents.
///
/// # Safety
/// The call must be one of those, and the range mapped by this caller; MADV_DONTNEED: it holds nothing.
unsafe fn on_range(call: libc::c_long, p: *mut u8, len: usize, flags: usize) -> Result<(), Errno> {
    count(if call == libc::SYS_madvise { Syscall::Madvise } else { Syscall::Other });
    // SAFETY: as the caller promises.
    let result = unsafe { arch::syscall(call as usize, [p.expose_provenance(), len, flags, 0, 0, 0]) };
    if arch::is_error(result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(()) }
}

/// Whether an OS page, which holds nothing, is locked: the kernel refuses to take locked memory back.
///
/// # Safety
/// As [`on_range`].
unsafe fn is_locked(p: *mut u8) -> bool {
    // SAFETY: as the caller promises.
    unsafe { on_range(libc::SYS_madvise, p, page_size(), libc::MADV_DONTNEED as usize) == Err(Errno::INVAL) }
}

/// How the process locks what it maps from now on (MCL_FUTURE); `None` if it does not.
fn future() -> Option<Lock> {
    let (page, flags) = (page_size(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    count(Syscall::Mmap);
    let Some(p) = fresh(0, page, READ_WRITE, flags) else {
        // Nothing can be locked any more, or the process may have no more mappings: locking the memory says which.
        return if is_at_limit() { Some(Lock::AtOnce) } else { None };
    };
    // SAFETY: a new mapping.
    unsafe {
        // A filter may end the process for mincore: then all is locked at once.
        let at_once = || filter::filter() != Filter::No || is_resident(p);
        let lock = is_locked(p).then(|| if at_once() { Lock::AtOnce } else { Lock::OnFault });
        map::unmap(p, page);
        lock
    }
}

/// Whether the kernel refuses to map an OS page because too much is locked.
fn is_at_limit() -> bool {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    let file = usize::MAX;
    // SAFETY: a new mapping replaces nothing.
    let result = unsafe { arch::syscall(libc::SYS_mmap as usize, [0, page_size(), 0, flags, file, 0]) };
    if !arch::is_error(result) {
        // SAFETY: the mapping was just made.
        unsafe { map::unmap(core::ptr::with_exposed_provenance_mut(result as usize), page_size()) };
    }
    result == -(libc::EAGAIN as isize)
}

/// Whether an OS page is resident.
fn is_resident(p: *mut u8) -> bool {
    let mut resident = 0u8;
    let arguments = [p.expose_provenance(), 1, (&raw mut resident).expose_provenance(), 0, 0, 0];
    // SAFETY: the call writes one byte for one OS page.
    unsafe { arch::syscall(libc::SYS_mincore as usize, arguments) == 0 && resident & 1 != 0 }
}

/// Locks a range; false if the process may not lock so much.
///
/// # Safety
/// The range must be mapped by this caller.
pub unsafe fn lock(p: *mut u8, len: usize, how: Lock) -> bool {
    let (call, flags) = match how {
        Lock::AtOnce => (libc::SYS_mlock, 0),
        Lock::OnFault => (libc::SYS_mlock2, libc::MLOCK_ONFAULT as usize),
    };
    // SAFETY: as the caller promises. With these errors the range is locked, but is not populated yet.
    matches!(unsafe { on_range(call, p, len, flags) }, Ok(()) | Err(Errno::AGAIN | Errno::INTR))
}

/// Unlocks memory.
///
/// # Safety
/// The range must be mapped by this caller.
pub unsafe fn unlock(p: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    let _ = unsafe { on_range(libc::SYS_munlock, p, len, 0) };
}

/// Unlocks memory that was never in use, and gives back what locking it has populated.
///
/// # Safety
/// The range must be mapped by this caller, hold nothing, and not come into use meanwhile.
pub unsafe fn unlock_unused(p: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        unlock(p, len);
        let _ = on_range(libc::SYS_madvise, p, len, libc::MADV_DONTNEED as usize);
    }
}

/// Puts memory into core dumps, or keeps it out of them.
///
/// # Safety
/// The range must be mapped by this caller.
pub unsafe fn set_dumped(p: *mut u8, len: usize, dumped: bool) {
    let advice = if dumped { libc::MADV_DODUMP } else { libc::MADV_DONTDUMP };
    // SAFETY: as the caller promises.
    let _ = unsafe { on_range(libc::SYS_madvise, p, len, advice as usize) };
}

/// Reserves addresses; `at` as in [`map::map`].
pub fn reserve(at: usize, len: usize, access: ProtFlags) -> Option<*mut u8> {
    let mapped = map::map(at, len, access);
    let Some(_asking) = Asking::if_allowed() else { return mapped };
    let (p, grown) = match mapped {
        Some(p) => (p, false),
        None if future().is_some() => (grow(at, len, access)?, true),
        None => return None,
    };
    // SAFETY: a new mapping.
    unsafe {
        set_dumped(p, len, false);
        // Relaxed, here and below: under the allocator's lock.
        if grown {
            IS_FREE.store(false, Ordering::Relaxed);
        } else if !IS_FREE.load(Ordering::Relaxed) {
            if is_locked(p) {
                unlock_unused(p, len);
            } else {
                IS_FREE.store(true, Ordering::Relaxed);
            }
        }
    }
    Some(p)
}

/// Reserves addresses where the kernel refuses a new mapping, as it would lock more than the process may: an OS page
/// that is not locked may grow.
fn grow(at: usize, len: usize, access: ProtFlags) -> Option<*mut u8> {
    let page = page_size();
    let p = map::map(at, page, access)?;
    let flags = if at == 0 { libc::MREMAP_MAYMOVE as usize } else { 0 };
    // SAFETY: a new mapping.
    unsafe {
        unlock_unused(p, page);
        count(Syscall::Mremap);
        let result = arch::syscall(libc::SYS_mremap as usize, [p.expose_provenance(), page, len, flags, 0, 0]);
        if arch::is_error(result) {
            map::unmap(p, page);
            return None;
        }
        Some(core::ptr::with_exposed_provenance_mut(result as usize))
    }
}

/// See `Os::begin_use`. Where the program has a filter, memory was put into dumps before (`program.rs`).
///
/// # Safety
/// As `Os::begin_use`.
pub unsafe fn begin_use(parts: &[Run], map: Run) -> bool {
    let Some(_asking) = Asking::if_allowed() else { return true };
    let is_usual = |part: &&Run| part.len > 0 && !pool::has(part.start, part.len);
    // SAFETY: as the caller promises.
    parts.iter().filter(is_usual).for_each(|part| unsafe { set_dumped(part.start, part.len, true) });
    let how = if IS_FREE.swap(false, Ordering::Relaxed) { None } else { future() };
    let mut all = parts.iter().chain([&map]).filter(is_usual);
    // SAFETY: as the caller promises.
    how.is_none_or(|how| all.all(|part| unsafe { lock(part.start, part.len, how) }))
}
