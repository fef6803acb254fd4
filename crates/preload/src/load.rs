//! What the C library calls when the library is loaded and when the process ends, and what a release build needs because
//! it has no std.

use core::ffi::{c_char, c_int};
use neap_surface::start;

/// The C library calls the functions of this section; glibc with the arguments of main.
#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start::start;

/// The C library calls these when the process ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = start::end;

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    use neap_core::Os;
    neap_sys::global::NEAP.os.die(b"neap: internal error: a check of the allocator itself failed\n", core::ptr::null())
}

// Precompiled parts of `core` name this symbol in their unwind tables. Nothing here unwinds, so it is never called.
#[cfg(panic = "abort")]
core::arch::global_asm!(".hidden rust_eh_personality", ".globl rust_eh_personality", ".set rust_eh_personality, 0",);
