//! Changes of user and groups. The C library makes them in all threads that it knows, and it does not know the helper.
//! So the helper ends before, and the next one has the new rights.
//!
//! `libneap.so` has functions of these names (`rights.rs` of `neap-preload`). `libneap.a` has none: a static program has
//! its C library's functions under these names only, so neap could not call them. There the helper notices the change
//! by itself, as it does if the program makes the system call itself (`crates/sys/src/helper/rights.rs`).

use crate::older;
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use neap_sys::{errno, program};

/// The function behind neap that has the name of one of neap's.
#[derive(Debug)]
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// The function of this name, which is looked up when it is first called.
    pub const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    /// The function of a library behind neap that redirects or records such calls, or the C library's; null for none.
    /// Takes no lock but the dynamic linker's, which its thread may take again.
    fn find(&self) -> *mut c_void {
        // Relaxed: the function was there before.
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            found = older::function_in_order(self.name, false);
            if found.is_null() {
                // neap was opened late, and is behind the C library.
                found = older::function_of_libc(self.name);
            }
            self.found.store(found, Ordering::Relaxed);
        }
        found
    }
}

/// Makes a change by the next function, which `call` calls, while there is no helper. Returns its result.
#[cold]
#[inline(never)]
pub fn change(next: &Next, call: &dyn Fn(*mut c_void) -> c_int) -> c_int {
    let found = next.find();
    if found.is_null() {
        errno::set(libc::ENOSYS);
        return -1;
    }
    program::without_helper(|| call(found))
}
