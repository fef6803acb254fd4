//! Maps memory, makes it accessible, and unmaps it. The calls are counted.

use crate::system::call::{READ_WRITE, fresh, is_readable, page_size};
use crate::system::filter::Asking;
use crate::system::space::count;
use neap_counters::Syscall;
use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};

/// A fresh private mapping: at any address, or, where `at` is not 0, at `at` and nowhere else. Counted.
pub fn map(at: usize, len: usize, access: ProtFlags) -> Option<*mut u8> {
    map_by(at, len, access, MapFlags::NORESERVE)
}

/// [`map`] of huge pages of the pool, which are reserved.
pub fn map_pool(at: usize, len: usize) -> Option<*mut u8> {
    map_by(at, len, READ_WRITE, MapFlags::HUGETLB | MapFlags::HUGE_2MB)
}

fn map_by(at: usize, len: usize, access: ProtFlags, flags: MapFlags) -> Option<*mut u8> {
    count(Syscall::Mmap);
    let place = if at == 0 { MapFlags::empty() } else { MapFlags::FIXED_NOREPLACE };
    let p = fresh(at, len, access, MapFlags::PRIVATE | flags | place)?;
    if at == 0 || p.addr() == at {
        return Some(p);
    }
    // A kernel before 4.17 takes the address as a hint.
    // SAFETY: this mapping was just made.
    unsafe { unmap(p, len) };
    None
}

/// Unmaps memory; false if the system refuses that, and then all of it is as it was. Counted.
///
/// # Safety
/// The memory must be the caller's, and not be used any more.
pub unsafe fn unmap(p: *mut u8, len: usize) -> bool {
    count(Syscall::Munmap);
    // SAFETY: as the caller promises.
    unsafe { mm::munmap(p.cast(), len) }.is_ok()
}

/// Makes memory readable and writable. Counted.
///
/// # Safety
/// The memory must be the caller's.
pub unsafe fn commit(p: *mut u8, len: usize) -> bool {
    count(Syscall::Mprotect);
    // SAFETY: as the caller promises.
    unsafe { mm::mprotect(p.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE) }.is_ok()
}

/// See `Os::uncommit`. The program may have made several mappings of the range. Then the system may refuse at one of
/// them (`mseal`), after it has changed those before, which are made usable again. If that is refused as well, because
/// other threads have used up what may be writable, the range counts as not committed.
///
/// # Safety
/// As `Os::uncommit`.
pub unsafe fn uncommit(p: *mut u8, len: usize) -> bool {
    count(Syscall::Mprotect);
    // SAFETY: as the caller promises; on failure nothing is changed in the end, or the caller uses none of it.
    unsafe {
        if mm::mprotect(p.cast(), len, MprotectFlags::empty()).is_ok() {
            return true;
        }
        !commit(p, len) && has_inaccessible(p, len)
    }
}

/// Whether an OS page of a range cannot be read. False where the system may not be asked.
fn has_inaccessible(p: *mut u8, len: usize) -> bool {
    let Some(_asking) = Asking::if_allowed() else { return false };
    (0..len).step_by(page_size()).any(|at| !is_readable((p.addr() + at) as u64))
}
