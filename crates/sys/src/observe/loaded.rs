//! Keeps the object that contains neap loaded: a plugin with the Rust crate or `libneap.a` inside is not unloaded by
//! dlclose.
//!
//! The system and the C library call code of neap's at any time: the helper thread, the destructor of the pthread key,
//! the fork handlers, handlers of signals. Blocks outlive dlclose too, for neap does not know who has them. So the
//! first loading is the last one; where a program opens the plugin again, it gets the same object.
//!
//! `libneap.so` is linked with `-z nodelete`. A crate cannot pass this option to the object that it becomes part of, so
//! here a constructor asks the dynamic linker for it. That is the one place where neap may call dlopen: the thread that
//! loads the object holds the linker's lock already, where it takes one. Any call of malloc, also one that first needs
//! a key or a helper, may come from a thread that holds a lock for which a thread under the linker's lock waits.

use crate::arch;
use crate::musl;
use crate::observe::linker::value_of;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::null;

/// Tag of a dynamic section: more flags of the object.
const FLAGS_1: u64 = 0x6fff_fffb;
/// The object is never unloaded.
const NODELETE: usize = 0x8;
/// The object is a program.
const PIE: usize = 0x0800_0000;

/// Makes dlclose leave the object of this code loaded. To be called by a constructor.
pub extern "C" fn stay() {
    // The linker defines this for each object that has one; static programs may have none.
    let section = arch::weak!("_DYNAMIC").cast::<[u64; 2]>().cast_const();
    if section.is_null() {
        return;
    }
    // SAFETY: the section of the object that this code is part of.
    let flags = unsafe { value_of(section, FLAGS_1) }.unwrap_or(0);
    // musl's dlclose unloads nothing.
    if flags & (NODELETE | PIE) != 0 || musl::is_here() {
        return;
    }
    let mut own = Own { section: section.addr(), name: null() };
    // SAFETY: `visit` has the type and takes what is passed here.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut own).cast()) };
    type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    let open = arch::weak!("dlopen");
    // SAFETY: a name is a string of the dynamic linker's for an object that is loaded; a program's is empty. The
    // function of this name has this type. It loads nothing, and finds the object by its name alone.
    unsafe {
        if !own.name.is_null()
            && own.name.read() != 0
            && let Some(open) = core::mem::transmute::<*mut c_void, Option<Open>>(open)
        {
            open(own.name, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

/// The object of this code.
struct Own {
    /// The address of its dynamic section.
    section: usize,
    /// The name by which the dynamic linker knows it; null where it is not found.
    name: *const c_char,
}

/// Called for each object. Ends the walk at the own one.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, own: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr's contract: `info` and the program headers are valid; `own` is what `stay` passed.
    let (info, own) = unsafe { (&*info, &mut *own.cast::<Own>()) };
    // SAFETY: as above.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let start = info.dlpi_addr as usize;
    let is_own = |header: &libc::Elf64_Phdr| {
        header.p_type == libc::PT_DYNAMIC && start.wrapping_add(header.p_vaddr as usize) == own.section
    };
    if !headers.iter().any(is_own) {
        return 0;
    }
    own.name = info.dlpi_name;
    1
}
