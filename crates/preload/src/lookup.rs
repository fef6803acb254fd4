//! Looks up symbols of other objects, by the C library's dlsym: neap exports a dlsym of its own, and a library in front
//! of neap may have another.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The objects that are searched: a handle, which must stay open.
#[derive(Clone, Copy)]
pub struct Scope(pub *mut c_void);

impl Scope {
    /// All objects, in symbol order.
    pub const ALL: Scope = Scope(libc::RTLD_DEFAULT);
    /// Those behind this library.
    pub const BEHIND: Scope = Scope(libc::RTLD_NEXT);
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The function at an address that a look-up returned; `None` for null.
///
/// # Safety
/// `F` must be a type of function pointer, that of the function which has the name.
pub unsafe fn function<F: Copy>(address: *mut c_void) -> Option<F> {
    const { assert!(size_of::<Option<F>>() == size_of::<*mut c_void>(), "a function pointer, of which none is null") };
    // SAFETY: a function pointer has the bits of its address, and `None` those of null; as the caller promises.
    unsafe { core::mem::transmute_copy(&address) }
}

/// The address that the C library's dlsym finds; null if it finds none.
pub fn symbol(scope: Scope, name: &CStr) -> *mut c_void {
    // SAFETY: `dlsym` returns a function of this type. It takes a handle that is open or stands for a scope, and a
    // string.
    unsafe { function::<Dlsym>(dlsym()).map_or(core::ptr::null_mut(), |dlsym| dlsym(scope.0, name.as_ptr())) }
}

/// [`symbol`] for a name with the version of one of the C library's first interfaces.
pub fn symbol_of_libc(scope: Scope, name: &CStr) -> *mut c_void {
    // The first version on x86-64, the first on arm64, and the one since which dlsym is in libc.so.
    for version in [c"GLIBC_2.2.5", c"GLIBC_2.17", c"GLIBC_2.34"] {
        // SAFETY: dlvsym takes a handle that is open or stands for a scope, and two strings.
        let found = unsafe { libc::dlvsym(scope.0, name.as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            return found;
        }
    }
    core::ptr::null_mut()
}

/// The C library's dlsym.
pub extern "C" fn dlsym() -> *mut c_void {
    static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    // Relaxed: the function was there before.
    let mut dlsym = DLSYM.load(Ordering::Relaxed);
    if dlsym.is_null() {
        dlsym = symbol_of_libc(Scope::BEHIND, c"dlsym");
        if dlsym.is_null() {
            dlsym = nothing as *mut c_void;
        }
        DLSYM.store(dlsym, Ordering::Relaxed);
    }
    dlsym
}

/// Finds nothing; for programs without another dlsym, as static ones.
extern "C" fn nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
    core::ptr::null_mut()
}
