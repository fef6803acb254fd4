//! libneap.a: `libneap.so` for static programs, and for libraries that bring their own malloc. The files are those of
//! `neap-preload`, but for the functions that change user and groups: a static program has them in its C library only.
//! May depend on what `neap-preload` may depend on.
// The development build unwinds and takes the panic handler of `std`.
#![cfg_attr(panic = "abort", no_std)]
#[cfg(not(any(panic = "abort", debug_assertions)))]
compile_error!("a release build needs panic = \"abort\", as in the workspace's profile");

#[path = "../../preload/src/c.rs"]
mod c;
#[path = "../../preload/src/cxx.rs"]
mod cxx;
#[path = "../../preload/src/load.rs"]
mod load;
