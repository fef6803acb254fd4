//! libneap.so: malloc and related functions on the neap allocator, for C and C++.
//!
//! | file | answers |
//! |---|---|
//! | `c.rs` | which C functions are exported: malloc and related functions, glibc's aliases |
//! | `cxx.rs` | which C++ operators are exported, and what they do when memory runs out |
//!
//! A call from C or C++ goes to `neap_sys::global`. `neap-surface` has all else that the library exports, and what it
//! does when it is loaded. May depend on `neap-core`, `neap-sys`, `neap-surface` and the C library.
// The development build unwinds and takes the panic handler of `std`.
#![cfg_attr(panic = "abort", no_std)]
#[cfg(not(any(panic = "abort", debug_assertions)))]
compile_error!("a release build needs panic = \"abort\", as in the workspace's profile");

mod c;
mod cxx;

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
