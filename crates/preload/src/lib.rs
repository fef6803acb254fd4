//! libneap.so: the malloc surface of C and C++ on the neap allocator.
//!
//! | file | answers |
//! |---|---|
//! | `c.rs` | which C functions are exported: malloc and its kin, glibc's aliases |
//! | `cxx.rs` | which C++ operators are exported, and what they do when memory runs out |
//! | `glibc.rs` | which of glibc's controls are exported |
//! | `api.rs` | what neap's own functions return |
//! | `ranges.rs` | the same for ranges in pages of a chosen size |
//! | `calls.rs` | which system calls of the program neap must handle |
//! | `dlsym.rs` | for which names dlsym finds neap's functions |
//! | `deepbind.rs` | which malloc a library has that is opened with RTLD_DEEPBIND |
//! | `start.rs` | what happens when the library is loaded |
//! | `counting.rs` | which file a process counts in (option `counters`) |
//! | `exit_stats.rs` | what a process reports when it ends (option `stats`) |
//! | `foreign.rs` | what happens to a block of another allocator |
//! | `prefault.rs` | what is made resident when the program starts |
//! | `signal.rs` | at which signal a profile is written |
//! | `usage.rs` | what the kernel counted for the process |
//! | `line.rs` | how messages are written |
//! | `lookup.rs` | how functions of other objects are found |
//! | `once.rs` | how threads agree on who does something first |
//! | `older.rs` | which functions older C libraries have elsewhere, or lack |
//!
//! Exported symbols are in the first eight files. A call from C or C++ goes to `neap_sys::global`, `neap_control` or
//! `neap_ranges`. May depend on `neap-core`, `neap-sys`, `neap-control`, `neap-ranges`, `neap-options`, `neap-counters`
//! and the C library.
#![cfg_attr(not(test), no_std)]

mod api;
mod c;
mod calls;
mod counting;
mod cxx;
mod deepbind;
mod dlsym;
mod exit_stats;
mod foreign;
mod glibc;
mod line;
mod lookup;
mod older;
mod once;
mod prefault;
mod ranges;
mod signal;
mod start;
mod usage;

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    use neap_core::Os;
    neap_sys::global::NEAP.os.die(b"neap: internal error: a check of the allocator itself failed\n", core::ptr::null())
}

// Precompiled parts of `core` name this symbol in their unwind tables. Nothing here unwinds, so it is never called.
#[cfg(not(test))]
core::arch::global_asm!(".hidden rust_eh_personality", ".globl rust_eh_personality", ".set rust_eh_personality, 0",);
