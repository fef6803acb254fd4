//! errno: how calls here set it, and how those keep it that must.

use core::ffi::c_int;

fn place() -> *mut c_int {
    // SAFETY: the C library's function for it: any thread may call it, at any time.
    unsafe { libc::__errno_location() }
}

/// Sets errno of the calling thread.
pub fn set(code: c_int) {
    // SAFETY: `__errno_location` returns the thread's own word, which lives as long as the thread.
    unsafe { place().write(code) }
}

/// Runs `f`; errno is the same afterwards.
pub fn kept<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: as in `set`.
    let before = unsafe { place().read() };
    let result = f();
    set(before);
    result
}
