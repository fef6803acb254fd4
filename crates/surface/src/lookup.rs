//! Looks up symbols of other objects, by the C library's dlsym and dlopen: neap exports its own, and a library in
//! front of neap may have others.

use crate::older;
pub use crate::older::function;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use neap_sys::arch;

/// The objects that are searched: a handle, which must stay open.
#[derive(Clone, Copy)]
pub struct Scope(pub *mut c_void);

impl Scope {
    /// All objects, in symbol order.
    pub const ALL: Scope = Scope(libc::RTLD_DEFAULT);
    /// Those behind this library.
    pub const BEHIND: Scope = Scope(libc::RTLD_NEXT);
}

type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The address that the C library's dlsym finds; null if it finds none.
pub fn symbol(scope: Scope, name: &CStr) -> *mut c_void {
    let dlsym = dlsym();
    if dlsym == nothing as *mut c_void {
        return match scope.0 {
            libc::RTLD_DEFAULT => older::function_in_order(name, true),
            libc::RTLD_NEXT => older::function_in_order(name, false),
            _ => core::ptr::null_mut(),
        };
    }
    // SAFETY: `dlsym` returns a function of this type. It takes a handle that is open or stands for a scope, and a
    // string.
    unsafe { function::<Dlsym>(dlsym).map_or(core::ptr::null_mut(), |dlsym| dlsym(scope.0, name.as_ptr())) }
}

/// [`symbol`] for the oldest version of a name in the C library.
pub fn symbol_of_libc(scope: Scope, name: &CStr) -> *mut c_void {
    // The first version on x86-64, the first on arm64, and the first in which dlsym is in libc.so.
    for version in [c"GLIBC_2.2.5", c"GLIBC_2.17", c"GLIBC_2.34"] {
        // SAFETY: the function of this name has this type; static programs on musl have none. It takes a handle that is
        // open or stands for a scope, and two strings.
        let found = unsafe {
            function::<Dlvsym>(arch::weak!("dlvsym"))
                .map_or(core::ptr::null_mut(), |dlvsym| dlvsym(scope.0, name.as_ptr(), version.as_ptr()))
        };
        if !found.is_null() {
            return found;
        }
    }
    core::ptr::null_mut()
}

/// The function of this name behind neap, where neap exports one too: that of another library or the C library; `none`
/// if there is none.
fn behind(name: &CStr, cell: &AtomicPtr<c_void>, none: *mut c_void) -> *mut c_void {
    // Relaxed: the function was there before.
    let mut function = cell.load(Ordering::Relaxed);
    if function.is_null() {
        function = symbol_of_libc(Scope::BEHIND, name);
        if function.is_null() {
            // Up to glibc 2.33, it may be in a part of the C library that came with a plug-in.
            function = older::function_of_libc(name);
        }
        if function.is_null() {
            // It may be loaded later.
            return none;
        }
        cell.store(function, Ordering::Relaxed);
    }
    function
}

/// The C library's dlsym.
pub extern "C" fn dlsym() -> *mut c_void {
    static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    behind(c"dlsym", &DLSYM, nothing as *mut c_void)
}

/// The C library's dlopen.
pub extern "C" fn dlopen() -> *mut c_void {
    static DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    behind(c"dlopen", &DLOPEN, nothing_opened as *mut c_void)
}

/// A handle of the object at this path, if it is loaded already; else null.
pub fn opened(path: &CStr) -> *mut c_void {
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: `dlopen` returns a function of this type. RTLD_NOLOAD: it only returns what is loaded.
    unsafe {
        function::<Dlopen>(dlopen())
            .map_or(core::ptr::null_mut(), |dlopen| dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD))
    }
}

/// A handle of the C library, which is never closed; null in a static program.
pub fn libc() -> *mut c_void {
    opened(c"libc.so.6")
}

/// Finds nothing: for programs without another dlsym, such as static ones.
extern "C" fn nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
    core::ptr::null_mut()
}

/// Opens nothing: for the same programs.
extern "C" fn nothing_opened(_: *const c_char, _: c_int) -> *mut c_void {
    core::ptr::null_mut()
}
