//! dlsym: who asks the C library itself for one of glibc's controls gets neap's.
//!
//! Programs that load the C library by name (`ctypes.CDLL("libc.so.6").malloc_trim(0)` in Python, as Dask has it) would
//! reach an allocator that nobody uses. All other look-ups are the C library's: with the address of the caller, on which
//! the meaning of RTLD_NEXT depends.

use crate::glibc;
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use neap_sys::arch;

/// The functions that are found here.
fn ours(name: &[u8]) -> Option<*mut c_void> {
    let found = match name {
        b"mallopt" => glibc::mallopt as *mut c_void,
        b"malloc_trim" => glibc::malloc_trim as *mut c_void,
        b"mallinfo" => glibc::mallinfo as *mut c_void,
        b"mallinfo2" => glibc::mallinfo2 as *mut c_void,
        b"malloc_info" => glibc::malloc_info as *mut c_void,
        b"malloc_stats" => glibc::malloc_stats as *mut c_void,
        _ => return None,
    };
    Some(found)
}

/// The function of this name where `handle` is that of the C library, or null.
///
/// # Safety
/// `name` must be NULL or a string.
unsafe extern "C" fn find(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let null = core::ptr::null_mut();
    if name.is_null() || handle == libc::RTLD_NEXT || handle == libc::RTLD_DEFAULT {
        return null;
    }
    // SAFETY: as the caller promises.
    let Some(found) = ours(unsafe { CStr::from_ptr(name) }.to_bytes()) else { return null };
    // SAFETY: only asks for what is loaded already; the handle is never closed.
    let libc = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle == libc { found } else { null }
}

/// The C library's dlsym.
extern "C" fn next() -> *mut c_void {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let mut next = NEXT.load(Ordering::Relaxed);
    if next.is_null() {
        for version in [c"GLIBC_2.2.5", c"GLIBC_2.17", c"GLIBC_2.34"] {
            // SAFETY: a look-up by name and version.
            next = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            if !next.is_null() {
                break;
            }
        }
        if next.is_null() {
            next = nothing as *mut c_void;
        }
        NEXT.store(next, Ordering::Relaxed);
    }
    next
}

/// Where there is no other dlsym, as in a static program: nothing is found.
extern "C" fn nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
    core::ptr::null_mut()
}

/// What the C library's dlsym finds, asked from here: neap's own dlsym is exported, so a library in front of neap may
/// have another.
///
/// # Safety
/// As dlsym.
pub unsafe fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: `next` returns a function of this type; as the caller promises.
    unsafe {
        let dlsym =
            core::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void, *const c_char) -> *mut c_void>(next());
        dlsym(handle, name.as_ptr())
    }
}

/// As [`symbol`], for names that have the version of the C library's first interface.
///
/// # Safety
/// As dlvsym.
pub unsafe fn symbol_of_libc(handle: *mut c_void, name: &CStr) -> *mut c_void {
    for version in [c"GLIBC_2.2.5", c"GLIBC_2.17"] {
        // SAFETY: a look-up by name and version.
        let found = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            return found;
        }
    }
    core::ptr::null_mut()
}

arch::forward! {
    /// POSIX: the address of a symbol.
    ///
    /// # Safety
    /// As the call itself.
    pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void, find, next
}
