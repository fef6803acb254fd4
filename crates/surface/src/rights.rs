//! Changes of user and groups. The C library makes them in all threads that it knows, and it does not know the helper.
//! So the helper ends before, and the next one has the new rights.
//!
//! `libneap.so` has functions of these names (`rights.rs` of `neap-preload`). `libneap.a` has none: a static program has
//! its C library's functions under these names only, so neap could not call them. There the helper notices the change
//! by itself, as it does if the program makes the system call itself (`crates/sys/src/helper/rights.rs`).

use crate::lookup::function;
use crate::older;
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use neap_sys::{errno, program};

/// Lists the functions.
macro_rules! names {
    ($($name:ident),*) => {
        /// The functions that change user and groups of all threads.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        pub enum Name { $(#[doc = "The function of this name."] $name,)* }
        /// Their names, as one string: the dynamic linker would write the address of each at each start.
        const NAMES: &str = concat!($(stringify!($name), "\0",)*);
        /// The functions of these names behind neap, once they were called.
        static NEXT: [AtomicPtr<c_void>; [$(Name::$name),*].len()] =
            [const { AtomicPtr::new(null_mut()) }; [$(Name::$name),*].len()];
    };
}

names!(setuid, setgid, seteuid, setegid, setreuid, setregid, setresuid, setresgid, setgroups, initgroups);

impl Name {
    /// The function of a library behind neap that redirects or records such calls, or the C library's; null for none.
    /// Takes no lock but the dynamic linker's, which its thread may take again.
    fn next(self) -> *mut c_void {
        let cell = &NEXT[self as usize];
        // Relaxed: the function was there before.
        let mut found = cell.load(Ordering::Relaxed);
        if found.is_null() {
            let name = NAMES.split_inclusive('\0').nth(self as usize).map(str::as_bytes);
            let Some(name) = name.and_then(|name| CStr::from_bytes_with_nul(name).ok()) else { return null_mut() };
            found = older::function_in_order(name, false);
            if found.is_null() {
                // neap was opened late, and is behind the C library.
                found = older::function_of_libc(name);
            }
            cell.store(found, Ordering::Relaxed);
        }
        found
    }
}

/// Makes a change by the next function of this name, while there is no helper. Returns its result.
///
/// # Safety
/// As the C library's function with these arguments, the first ones of which it takes.
#[cold]
#[inline(never)]
pub unsafe fn change(name: Name, [a, b, c]: [usize; 3]) -> c_int {
    type Function = unsafe extern "C" fn(usize, usize, usize) -> c_int;
    // SAFETY: null, or a function that takes so many words or fewer.
    let Some(next) = (unsafe { function::<Function>(name.next()) }) else {
        errno::set(libc::ENOSYS);
        return -1;
    };
    // SAFETY: as the caller promises.
    program::without_helper(|| unsafe { next(a, b, c) })
}
