//! System calls. Only the C library's `syscall` makes them: it is not a cancellation point, and programs do not replace
//! it, as they may replace `open` or `clock_gettime`.

use core::ffi::{c_int, c_long, c_void};
use core::ptr;

/// A saved errno of the thread.
pub struct Errno(c_int);

impl Errno {
    /// Saves errno.
    pub fn keep() -> Self {
        // SAFETY: the address is that of the thread's own errno.
        Self(unsafe { *libc::__errno_location() })
    }

    /// Restores errno.
    pub fn restore(self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Makes a system call. The error is errno.
pub fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> Result<usize, c_int> {
    let argument = |place: usize| arguments.get(place).copied().unwrap_or(0);
    let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(argument);
    // SAFETY: the callers pass what the calls take.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, 0usize) };
    if result < 0 { Err(Errno::keep().0) } else { Ok(result as usize) }
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = call(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, (&raw mut time).expose_provenance()]);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The process number.
pub fn process() -> u32 {
    call(libc::SYS_getpid, []).map_or(0, |pid| pid as u32)
}

/// A new mapping, at an address that the kernel chooses.
pub fn map(size: usize, kind: c_int, file: usize) -> Result<*mut c_void, c_int> {
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    call(libc::SYS_mmap, [0, size, access, kind as usize, file]).map(ptr::with_exposed_provenance_mut)
}
