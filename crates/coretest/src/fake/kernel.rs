//! Calls of the machine's kernel: mappings and the barrier.

use std::sync::OnceLock;

/// Protection of committed memory.
pub(super) const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Makes a new mapping; `None` if the kernel refuses.
pub(super) fn mmap(at: usize, len: usize, prot: i32, flags: i32) -> Option<*mut u8> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: only MAP_FIXED replaces a mapping; `move_pages` and `renew` pass it for a range of the fake whose
    // contents are not needed.
    let p = unsafe { libc::mmap(core::ptr::without_provenance_mut(at), len, prot, flags, -1, 0) };
    if p == libc::MAP_FAILED { None } else { Some(p.cast()) }
}

/// Makes a mapping of `len` bytes at a multiple of `align`.
pub(super) fn mmap_aligned(len: usize, align: usize, prot: i32) -> Option<*mut u8> {
    let whole = mmap(0, len.checked_add(align)?, prot, 0)?;
    let before = whole.addr().next_multiple_of(align) - whole.addr();
    // SAFETY: both parts lie in the new mapping and are not used.
    unsafe {
        if before > 0 {
            libc::munmap(whole.cast(), before);
        }
        if align > before {
            libc::munmap(whole.wrapping_add(before + len).cast(), align - before);
        }
    }
    Some(whole.wrapping_add(before))
}

/// Calls membarrier(PRIVATE_EXPEDITED), and registers the process for it once.
pub(super) fn membarrier() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let call = |command: libc::c_int| {
        // SAFETY: membarrier touches no memory.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    };
    *REGISTERED.get_or_init(|| call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
        && call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}
