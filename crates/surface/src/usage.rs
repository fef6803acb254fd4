//! What the kernel counted for the process or for a thread.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use neap_ranges::kernel;

/// The counts of `RUSAGE_SELF` or `RUSAGE_THREAD`; zeros where the kernel refuses.
pub fn of(who: c_int) -> libc::rusage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let to = usage.as_mut_ptr().expose_provenance();
    // SAFETY: the buffer has room for the structure, of which zero is a value.
    unsafe {
        let _ = kernel::syscall(libc::SYS_getrusage, [who as usize, to, 0, 0, 0, 0]);
        usage.assume_init()
    }
}
