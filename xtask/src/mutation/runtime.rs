//! `crate::switch` of a core with mutants (see `switch.rs`): which mutant is active, and which sites the program
//! reached.

use core::ffi::{c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The active mutant, or one of these: no mutant; no mutant, but sites are recorded.
static ON: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = u32::MAX - 1;
const NOTED: u32 = u32::MAX;

/// A byte for each site, in a file.
static SITES: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// The active mutant, for `site`.
#[inline]
pub fn at(site: u32) -> u32 {
    let on = ON.load(Ordering::Relaxed);
    if on == NOTED {
        // SAFETY: `begin` mapped a byte for each site before it set this number.
        unsafe { SITES.load(Ordering::Relaxed).add(site as usize).write_volatile(1) };
    }
    on
}

unsafe extern "C" {
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn mmap(at: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: c_long) -> *mut c_void;
}

/// The value of the variable `name` in the environment; `name` ends in `=`.
///
/// `environment` is a list of C strings that ends in a null pointer.
unsafe fn value(mut environment: *const *const c_char, name: &[u8]) -> Option<*const c_char> {
    // SAFETY: as the caller promises; the comparison ends at the end of a string.
    unsafe {
        while !(*environment).is_null() {
            if name.iter().enumerate().all(|(i, &byte)| *(*environment).add(i) as u8 == byte) {
                return Some((*environment).add(name.len()));
            }
            environment = environment.add(1);
        }
    }
    None
}

/// Runs before `main`: `NEAP_MUTANT` is a number, or `NEAP_SITES` a file with a byte for each site.
extern "C" fn begin(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: the C library passes the environment to constructors.
    unsafe {
        if let Some(mut digit) = value(environment, b"NEAP_MUTANT=") {
            let mut on = 0;
            while *digit != 0 {
                on = on * 10 + (*digit as u8 - b'0') as u32;
                digit = digit.add(1);
            }
            ON.store(on, Ordering::Relaxed);
        } else if let Some(path) = value(environment, b"NEAP_SITES=") {
            let (read_write, shared) = (2, 1);
            let sites = mmap(core::ptr::null_mut(), SIZE, 3, shared, open(path, read_write), 0);
            assert!(sites as isize != -1, "no file for sites");
            SITES.store(sites.cast(), Ordering::Relaxed);
            ON.store(NOTED, Ordering::Relaxed);
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = begin;
