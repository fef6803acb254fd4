//! How musl differs from glibc, and how neap handles that. `libneap.so` and `libneap.a` are the same for both: at run
//! time neap recognises the C library by functions that only one of them has ([`is_here`]).
//!
//! | glibc | musl | here |
//! |---|---|---|
//! | `__register_atfork` | `pthread_atfork`, which is in libc.so | [`register_fork_handlers`] |
//! | passes the arguments of main to constructors | passes none | [`environment`] |
//! | gives the lowest key of thread storage that is free, of which the first 32 need no memory | gives any, and none needs memory | `key` in `thread/heap.rs` |
//! | SIGRTMIN is 34 | 35: it uses three signals itself | [`first_real_time_signal`] |
//! | mprotect refuses addresses within an OS page | rounds them | [`start_of_page`], [`to_end_of_page`] |
//! | `__clone` sets errno | returns the negated error, in static programs; libc.so has `clone` alone | [`result_of_clone`] |
//! | `realloc(p, 0)` frees and returns NULL | returns a block | `c.rs` of crates/preload asks [`is_here`] |
//! | blocks have a header before them, by which neap knows those that it did not make | they have none | `foreign.rs` of crates/surface |
//! | RTLD_DEEPBIND | is ignored | `deepbind.rs` of crates/surface |
//! | is libc.so.6, and other objects up to 2.33 | is the dynamic linker | [`is_name`] |
//! | gives each thread a list of robust locks | gives a list to threads with such locks | `system/alive.rs` |
//! | `_dl_find_object` | has none, so callers are found by frame pointers | `observe/stack.rs` |
//! | honours `-z initfirst`; loads initial-exec storage late, where there is room | does neither: neap is preloaded or linked | |
//!
//! musl has its own allocator for what it allocates under its locks (`__libc_malloc`, which programs cannot see). All
//! blocks that programs get and free come from malloc, which is neap's.
//!
//! Before it removes a mapping, musl's munmap waits for threads that are about to wake others (`__vm_wait`), for robust
//! locks in memory of several processes. neap's replacements of munmap do not.

use crate::arch;
use crate::system::{call, errno};
use core::ffi::{c_char, c_int, c_void};

/// Whether the C library is musl.
#[inline]
pub fn is_here() -> bool {
    // The first is of musl's dynamic linker. On musl, a layer for programs made for glibc (gcompat) has the second too.
    // Static programs on glibc that do not fork lack the second, and have the third.
    !arch::weak!("__dls3").is_null()
        || (arch::weak!("__register_atfork").is_null() && arch::weak!("__libc_setup_tls").is_null())
}

type Handler = Option<unsafe extern "C" fn()>;

/// pthread_atfork: registers fork handlers; returns 0, or an error. glibc's pthread_atfork is not used, because it is
/// linked into each program, far from the code that runs at its start.
///
/// # Safety
/// The handlers must stay.
pub unsafe fn register_fork_handlers(before: Handler, parent: Handler, child: Handler) -> c_int {
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *const u8) -> c_int;
    unsafe extern "C" {
        // Its address stands for the object that the handlers are part of.
        static __dso_handle: u8;
    }
    let register = arch::weak!("__register_atfork");
    // SAFETY: glibc's function of this name has this type, and null stands for none; as the caller promises.
    unsafe {
        match core::mem::transmute::<*mut c_void, Option<Register>>(register) {
            Some(register) => register(before, parent, child, &raw const __dso_handle),
            None => pthread_atfork(before, parent, child),
        }
    }
}

/// musl's pthread_atfork. The reference is weak where the C library is not known when neap is built: a strong one would
/// link in a part of glibc that musl cannot load. The linker option `-u pthread_atfork` brings the function into static
/// programs.
///
/// # Safety
/// The handlers must stay.
unsafe fn pthread_atfork(before: Handler, parent: Handler, child: Handler) -> c_int {
    type Register = unsafe extern "C" fn(Handler, Handler, Handler) -> c_int;
    #[cfg(target_env = "gnu")]
    let register = arch::weak!("pthread_atfork");
    #[cfg(not(target_env = "gnu"))]
    let register = libc::pthread_atfork as *mut c_void;
    // SAFETY: the function of this name has this type, and null stands for none; as the caller promises.
    unsafe {
        let register = core::mem::transmute::<*mut c_void, Option<Register>>(register);
        register.map_or(libc::ENOSYS, |register| register(before, parent, child))
    }
}

/// The environment that a constructor of neap's finds. `passed`: its third argument.
pub fn environment(passed: *const *const c_char) -> *const *const c_char {
    if !is_here() {
        return passed;
    }
    let place = arch::weak!("__environ").cast::<*const *const c_char>();
    // SAFETY: the C library's variable, which it sets before it calls constructors.
    if place.is_null() { core::ptr::null() } else { unsafe { place.read() } }
}

/// The first real-time signal that the C library leaves to programs: its SIGRTMIN.
pub fn first_real_time_signal() -> c_int {
    if is_here() { 35 } else { 34 }
}

/// The address from which mprotect changes OS pages.
pub fn start_of_page(address: usize) -> usize {
    if is_here() { address & !(call::page_size() - 1) } else { address }
}

/// The number of bytes that mprotect changes from there.
pub fn to_end_of_page(address: usize, len: usize) -> usize {
    if !is_here() {
        return len;
    }
    let past = address.wrapping_add(len).wrapping_add(call::page_size() - 1);
    (past & !(call::page_size() - 1)).wrapping_sub(start_of_page(address))
}

/// What clone returns, after `__clone` returned `result`.
pub fn result_of_clone(result: c_int) -> c_int {
    if result < 0 && is_here() {
        errno::set(-result);
        return -1;
    }
    result
}

/// Whether an object of this file name is musl.
pub fn is_name(name: &[u8]) -> bool {
    name == b"libc.so" || name.starts_with(b"ld-musl-") || name.starts_with(b"libc.musl-")
}
