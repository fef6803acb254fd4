//! Which realloc comes before neap's in symbol order: that of the program, or of a library in front of this one.

use crate::lookup::{self, Scope};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;

/// The realloc of the program or another library in front of neap's; null where there is none.
static IN_FRONT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The realloc in front; `None` where there is none.
pub fn realloc() -> Option<Realloc> {
    // SAFETY: the symbol `realloc` has this type.
    unsafe { lookup::function(IN_FRONT.load(Ordering::Relaxed)) }
}

/// Looks for another realloc in front. Called by the constructor, so mostly before the program has threads.
pub fn start() {
    // The linker binds this name to neap's function (-Bsymbolic-functions).
    let own = libc::realloc as *mut c_void;
    // A library for old programs, such as glibc's checker of the heap, defines the name with the C library's version
    // only.
    for lookup in [lookup::symbol, lookup::symbol_of_libc] {
        let [first, next] = [Scope::ALL, Scope::BEHIND].map(|scope| lookup(scope, c"realloc"));
        // A program that has opened neap itself finds the function behind neap, which is not one in front.
        if !first.is_null() && first != own && first != next {
            // Relaxed: the function was there before.
            return IN_FRONT.store(first, Ordering::Relaxed);
        }
    }
}
