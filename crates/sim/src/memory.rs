//! Memory of the simulated system: the calls of the real one.

use crate::finding;
use neap_core::CHUNK;

/// Access for reading and writing.
pub const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// A mapping at an address; with `over` it replaces what is there, otherwise `None` if something is.
pub fn map(at: usize, len: usize, protection: i32, over: bool) -> Option<*mut u8> {
    let fixed = if over { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: a fresh mapping, or one over a range of this system.
    let p = unsafe { libc::mmap(core::ptr::with_exposed_provenance_mut(at), len, protection, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return None;
    }
    assert_eq!(p.addr(), at, "the simulation needs MAP_FIXED_NOREPLACE (Linux 4.17)");
    let _ = p.expose_provenance();
    Some(p.cast())
}

/// Changes the access to a range of the simulated system.
pub fn protect(p: *mut u8, len: usize, protection: i32) {
    // SAFETY: a range of this system.
    let done = unsafe { libc::mprotect(p.cast(), len, protection) };
    assert_eq!(done, 0, "mprotect");
}

/// Whether bytes are zero.
///
/// # Safety
/// `p` must be valid for reads of `len` bytes.
pub unsafe fn is_zero(p: *const u8, len: usize) -> bool {
    // SAFETY: as the caller promises.
    let bytes = unsafe { core::slice::from_raw_parts(p, len) };
    // SAFETY: any bytes are words.
    let (head, words, tail) = unsafe { bytes.align_to::<u64>() };
    head.iter().chain(tail).all(|&b| b == 0) && words.iter().all(|&w| w == 0)
}

/// Checks that a new block, which may be null, is zero: short ones completely, long ones here and there.
///
/// # Safety
/// `p` must be null or valid for reads of `size` bytes.
pub unsafe fn check_zero(p: *mut u8, size: usize) {
    const STEP: usize = 512;
    // SAFETY: as the caller promises.
    let zero = p.is_null()
        || unsafe {
            if size <= CHUNK {
                is_zero(p, size)
            } else {
                is_zero(p, 4096)
                    && is_zero(p.add(size - 4096), 4096)
                    && (0..size - 8).step_by(STEP).all(|at| p.add(at).cast::<u64>().read_unaligned() == 0)
            }
        };
    if !zero {
        finding(&format!("a zeroed block of {size} bytes is not zero"));
    }
}
