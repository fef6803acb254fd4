//! errno of the calling thread: how it is set, and kept by the calls that must not change it.

use core::ffi::c_int;

/// The address of errno.
fn place() -> *mut c_int {
    // SAFETY: any thread may call the C library's function, at any time.
    unsafe { libc::__errno_location() }
}

/// The value of errno.
pub fn get() -> c_int {
    // SAFETY: the thread's own word, which lives as long as the thread.
    unsafe { place().read() }
}

/// Sets errno.
pub fn set(code: c_int) {
    // SAFETY: as in `get`.
    unsafe { place().write(code) }
}

/// Runs `f`; errno is the same afterwards.
pub fn kept<R>(f: impl FnOnce() -> R) -> R {
    let before = get();
    let result = f();
    set(before);
    result
}
