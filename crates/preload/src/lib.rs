//! libneap.so: the malloc surface of C and C++ on the neap allocator.
//!
//! Every exported symbol is in `c.rs` (the C functions and glibc's aliases), `cxx.rs` (the C++ operators), `glibc.rs`
//! (glibc's controls), `api.rs` (neap's own functions), `lookup.rs` (dlsym)
//! or `calls.rs` (system calls of the program that neap has to know of).
//! May depend on `neap-core`, `neap-sys`, `neap-control`, `neap-options`, `neap-counters` and the C library.
#![cfg_attr(not(test), no_std)]

mod api;
mod c;
mod calls;
mod counting;
mod cxx;
mod foreign;
mod glibc;
mod lookup;
mod start;

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    use neap_core::Os;
    neap_sys::global::NEAP.os.die(b"neap: internal error: a check of the allocator itself failed\n")
}

// Precompiled parts of `core` name this symbol in their unwind tables. Nothing here unwinds, so it is never called.
#[cfg(not(test))]
core::arch::global_asm!(".hidden rust_eh_personality", ".globl rust_eh_personality", ".set rust_eh_personality, 0",);
