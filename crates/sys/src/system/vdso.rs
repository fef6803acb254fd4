//! Where is the kernel's own clock_gettime, in the code that it maps into each process (vDSO)?
//!
//! The C library has a function for it, which a program or a library in front of the C library may replace: one that
//! pretends another time, or counts calls. Such a function takes locks, allocates, and uses thread storage that the helper
//! thread does not have. So neap looks for the kernel's function itself. Kernels and tools that map no such code (valgrind)
//! leave the system call.
//!
//! The code is an ELF object. Its dynamic section says where the symbols (about ten) and the strings are.

use crate::arch;
use crate::system::call;
use core::ffi::CStr;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

/// As clock_gettime, but the result is 0 or a negative error number; errno stays as it is.
type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// The address of the function; 0 before it was looked for, [`NONE`] where there is none.
static FOUND: AtomicUsize = AtomicUsize::new(0);
/// No address of a function.
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
    if base == 0 {
        return NONE;
    }
    // SAFETY: the kernel has mapped its object there.
    let object = unsafe { Object::at(base) };
    // SAFETY: the tables are those of that object.
    object.and_then(|object| unsafe { object.function(arch::VDSO_CLOCK) }).unwrap_or(NONE)
}

/// An entry of a dynamic section.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: i64,
    value: u64,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_STRSZ: i64 = 10;

/// The tables of an ELF object in memory.
struct Object {
    /// What is added to addresses in it.
    bias: usize,
    /// The symbols lie directly before the strings.
    symbols: Range<usize>,
    strings: Range<usize>,
}

/// Reads a value of the object.
///
/// # Safety
/// A `T` must lie at `address`, which need not be aligned.
unsafe fn read<T: Copy>(address: usize) -> T {
    // SAFETY: as the caller promises.
    unsafe { ptr::with_exposed_provenance::<T>(address).read_unaligned() }
}

impl Object {
    /// The object whose file header is at `base`.
    ///
    /// # Safety
    /// A whole ELF object of this word size must be mapped there.
    unsafe fn at(base: usize) -> Option<Object> {
        // SAFETY: an object begins with its header.
        let header: libc::Elf64_Ehdr = unsafe { read(base) };
        if !header.e_ident.starts_with(b"\x7fELF\x02") {
            return None;
        }
        let (mut bias, mut dynamic) = (None, None);
        for i in 0..usize::from(header.e_phnum) {
            let at = base + header.e_phoff as usize + i * usize::from(header.e_phentsize);
            // SAFETY: there are `e_phnum` program headers.
            let part: libc::Elf64_Phdr = unsafe { read(at) };
            match part.p_type {
                PT_LOAD if bias.is_none() => {
                    bias = Some(base.wrapping_add(part.p_offset as usize).wrapping_sub(part.p_vaddr as usize));
                }
                PT_DYNAMIC => dynamic = Some(base + part.p_offset as usize),
                _ => {}
            }
        }
        let (bias, mut dynamic) = (bias?, dynamic?);
        let (mut symbols, mut strings, mut bytes) = (None, None, None);
        loop {
            // SAFETY: the section goes on up to DT_NULL.
            let entry: Dynamic = unsafe { read(dynamic) };
            // The kernel leaves addresses as they are in its file.
            let address = Some(bias.wrapping_add(entry.value as usize));
            match entry.tag {
                DT_NULL => break,
                DT_SYMTAB => symbols = address,
                DT_STRTAB => strings = address,
                DT_STRSZ => bytes = Some(entry.value as usize),
                _ => {}
            }
            dynamic += size_of::<Dynamic>();
        }
        let (strings, bytes) = (strings?, bytes?);
        Some(Object { bias, symbols: symbols?..strings, strings: strings..strings + bytes })
    }

    /// The address of the function `name`. What lies between the symbols and the strings in other objects than the kernel's
    /// is no symbol with a name in the strings.
    ///
    /// # Safety
    /// The tables must be those of a mapped object.
    unsafe fn function(&self, name: &CStr) -> Option<usize> {
        for at in self.symbols.clone().step_by(size_of::<libc::Elf64_Sym>()) {
            // SAFETY: there are symbols up to the strings.
            let symbol: libc::Elf64_Sym = unsafe { read(at) };
            let its = self.strings.start + symbol.st_name as usize;
            // SAFETY: names end with a null byte.
            let is_it = || unsafe { CStr::from_ptr(ptr::with_exposed_provenance(its)) == name };
            if symbol.st_shndx != 0 && self.strings.contains(&its) && is_it() {
                return Some(self.bias.wrapping_add(symbol.st_value as usize));
            }
        }
        None
    }
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
