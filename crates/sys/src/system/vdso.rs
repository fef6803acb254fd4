//! Finds the kernel's own clock_gettime, in the code that it maps into each process (vDSO).
//!
//! The C library has a function that calls it. A program or a library in front of the C library may replace that
//! function by one that pretends another time, or counts calls. The replacement may take locks, allocate, and use
//! thread storage that the helper thread does not have. So neap finds the kernel's function itself. Where none is
//! mapped (under valgrind, say), the system call is used.
//!
//! The code is an ELF object. Its dynamic section says where the symbols (about ten) and the strings are.

use crate::arch;
use crate::system::call;
use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

/// clock_gettime, but with 0 or a negated error number as result; errno stays as it is.
type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// The address of the function; 0 before the first search, [`NONE`] if there is none.
static FOUND: AtomicUsize = AtomicUsize::new(0);
/// Stands for no function; no function has this address.
const NONE: usize = 1;

/// The kernel's clock_gettime. The first call reads the auxiliary vector through the C library.
pub fn clock_gettime() -> Option<ClockGettime> {
    // Relaxed: the code was there before the process; two threads find the same.
    let mut found = FOUND.load(Ordering::Relaxed);
    if found == 0 {
        found = look();
        FOUND.store(found, Ordering::Relaxed);
    }
    if found == NONE {
        return None;
    }
    // SAFETY: the function of this name has this type (vdso(7)), and the mapping stays for the life of the process.
    Some(unsafe { core::mem::transmute::<*const u8, ClockGettime>(ptr::with_exposed_provenance(found)) })
}

#[cold]
fn look() -> usize {
    let base = call::auxiliary(libc::AT_SYSINFO_EHDR);
    // SAFETY: the kernel has mapped its object there.
    let found = if base == 0 { None } else { unsafe { function(base, arch::VDSO_CLOCK) } };
    found.unwrap_or(NONE)
}

/// An entry of a dynamic section.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: i64,
    value: u64,
}

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_STRSZ: i64 = 10;

/// Reads a value of the object.
///
/// # Safety
/// A `T` must lie at `address`, which need not be aligned.
unsafe fn read<T: Copy>(address: usize) -> T {
    // SAFETY: as the caller promises.
    unsafe { ptr::with_exposed_provenance::<T>(address).read_unaligned() }
}

/// The address of the function `name` in an object. The kernel's object has its symbols directly before its strings. In
/// another object, what lies between the two has no name in the strings.
///
/// # Safety
/// A whole ELF object of this word size must be mapped at `base`, and stay.
unsafe fn function(base: usize, name: &CStr) -> Option<usize> {
    // SAFETY: an object begins with its header.
    let header: libc::Elf64_Ehdr = unsafe { read(base) };
    if !header.e_ident.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let headers = base + header.e_phoff as usize;
    let segment = |kind| {
        let places = (0..usize::from(header.e_phnum)).map(|i| headers + i * usize::from(header.e_phentsize));
        // SAFETY: there are `e_phnum` program headers.
        places.map(|at| unsafe { read::<libc::Elf64_Phdr>(at) }).find(|header| header.p_type == kind)
    };
    let loaded = segment(libc::PT_LOAD)?;
    let bias = base.wrapping_add(loaded.p_offset as usize).wrapping_sub(loaded.p_vaddr as usize);
    let dynamic = base + segment(libc::PT_DYNAMIC)?.p_offset as usize;
    let value = |tag| {
        let places = (dynamic..).step_by(size_of::<Dynamic>());
        // SAFETY: the section goes on up to DT_NULL.
        let mut entries = places.map(|at| unsafe { read::<Dynamic>(at) }).take_while(|entry| entry.tag != DT_NULL);
        entries.find(|entry| entry.tag == tag).map(|entry| entry.value as usize)
    };
    // The kernel leaves addresses as they are in its file.
    let (symbols, strings) = (bias.wrapping_add(value(DT_SYMTAB)?), bias.wrapping_add(value(DT_STRTAB)?));
    let strings = strings..strings + value(DT_STRSZ)?;
    for at in (symbols..strings.start).step_by(size_of::<libc::Elf64_Sym>()) {
        // SAFETY: there are symbols up to the strings.
        let symbol: libc::Elf64_Sym = unsafe { read(at) };
        let its = strings.start + symbol.st_name as usize;
        // SAFETY: names end with a null byte.
        let is_it = || unsafe { CStr::from_ptr(ptr::with_exposed_provenance(its)) == name };
        if symbol.st_shndx != 0 && strings.contains(&its) && is_it() {
            return Some(bias.wrapping_add(symbol.st_value as usize));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a function that is not found, or another one under its name.
    #[test]
    fn the_kernels_clock_is_that_of_the_c_library() {
        let Some(clock) = clock_gettime() else { return eprintln!("SKIPPED: the kernel maps no code here") };
        let nanoseconds = |read: ClockGettime| {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: writes to `time`.
            assert_eq!(unsafe { read(libc::CLOCK_MONOTONIC, &raw mut time) }, 0);
            time.tv_sec * 1_000_000_000 + time.tv_nsec
        };
        let (before, kernels, after) =
            (nanoseconds(libc::clock_gettime), nanoseconds(clock), nanoseconds(libc::clock_gettime));
        assert!(before <= kernels && kernels <= after, "{before} {kernels} {after}");
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes to `time`.
        assert_eq!(unsafe { clock(12345, &raw mut time) }, -libc::EINVAL);
    }
}
