//! dlsym: a program that looks up one of glibc's controls in the C library itself gets neap's function.
//!
//! A program may load the C library by name (`ctypes.CDLL("libc.so.6").malloc_trim(0)` in Python, as Dask does).
//! Without this function it would control an allocator that is not in use. The C library does all other look-ups, with
//! the caller's return address, on which the meaning of RTLD_NEXT depends. If the result will be a function of the C
//! library's own malloc, neap initialises that malloc first.

use crate::lookup::{self, Scope};
use crate::{foreign, glibc};
use core::ffi::{CStr, c_char, c_void};
use neap_sys::arch;

/// Whether this may be the name of a function that allocates blocks; other functions may have such a name too.
fn allocates(name: &[u8]) -> bool {
    name.ends_with(b"alloc") || name.ends_with(b"memalign") || name == b"reallocarray"
}

/// neap's function of this name where `handle` is that of the C library, or null.
///
/// # Safety
/// As dlsym: `name` is a string. Here it may be NULL.
unsafe extern "C" fn find(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let null = core::ptr::null_mut();
    if name.is_null() || handle == libc::RTLD_NEXT || handle == libc::RTLD_DEFAULT {
        return null;
    }
    // SAFETY: dlsym's contract: a string.
    let text = unsafe { CStr::from_ptr(name) };
    let ours = match text.to_bytes() {
        b"mallopt" => glibc::mallopt as *mut c_void,
        b"malloc_trim" => glibc::malloc_trim as *mut c_void,
        b"mallinfo" => glibc::mallinfo as *mut c_void,
        b"mallinfo2" => glibc::mallinfo2 as *mut c_void,
        b"malloc_info" => glibc::malloc_info as *mut c_void,
        b"malloc_stats" => glibc::malloc_stats as *mut c_void,
        name if allocates(name) && !foreign::malloc_is_started() => {
            // By the handle of a library that needs the C library, dlsym also finds the C library's functions.
            let found = lookup::symbol(Scope(handle), text);
            if !found.is_null() && found == lookup::symbol(Scope(lookup::libc()), text) {
                foreign::start_malloc();
            }
            return null;
        }
        _ => return null,
    };
    if handle == lookup::libc() { ours } else { null }
}

arch::forward! {
    /// POSIX: the address of a symbol.
    ///
    /// # Safety
    /// As the call itself.
    pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void, find, lookup::dlsym
}
