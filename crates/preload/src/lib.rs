//! libneap.so: malloc and related functions on the neap allocator, for C and C++.
//!
//! | file | answers |
//! |---|---|
//! | `c.rs` | which C functions are exported: malloc and related functions, glibc's aliases |
//! | `cxx.rs` | which C++ operators are exported, and what they do when memory runs out |
//! | `rights.rs` | which changes of user and groups neap must notice |
//! | `load.rs` | what runs when the library is loaded, and when the process ends |
//!
//! A call from C or C++ goes to `neap_sys::global`. `neap-surface` has all else that the library exports, and what it
//! does when it is loaded. `neap-archive` makes `libneap.a` of the same files, without `rights.rs`. May depend on
//! `neap-core`, `neap-sys`, `neap-surface` and the C library.
// The development build unwinds and takes the panic handler of `std`.
#![cfg_attr(panic = "abort", no_std)]
#[cfg(not(any(panic = "abort", debug_assertions)))]
compile_error!("a release build needs panic = \"abort\", as in the workspace's profile");

mod c;
mod cxx;
mod load;
mod rights;
