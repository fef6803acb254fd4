//! Blocks of another allocator that the program passes to neap's free: they are passed on or refused.
//!
//! This happens, say, when a library looks malloc up in the C library itself, and its caller frees the block by neap's
//! free. The C library's blocks have a header. If it is plausible, the C library gets the block. Everything else is an
//! error of the program, which ends with one line.

use crate::lookup::{self, Scope};
use crate::once::Once;
use core::ffi::{CStr, c_void};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use neap_core::misuse::{self, Call};
use neap_sys::global::NEAP;
use neap_sys::{call, errno, musl};

/// The lowest address of blocks in the C library's main heap: the end of the program in memory, behind which the kernel
/// puts the break. Where the kernel did not load the program itself (`ld.so PROGRAM`), the break lies elsewhere: then
/// the break when neap started, if that is lower. (The break alone would be too high where a program opens neap late,
/// and has a heap by then.)
static FIRST_BREAK: AtomicUsize = AtomicUsize::new(0);

/// Flags in the size word of a glibc block (malloc/malloc.c, "chunk" layout).
const PREVIOUS_IN_USE: usize = 1;
const IS_MMAPPED: usize = 2;
const NON_MAIN_ARENA: usize = 4;
const FLAGS: usize = 7;
/// Smallest glibc block with its header.
const MIN_SIZE: usize = 32;
/// Alignment and greatest size of a glibc heap of a further arena (HEAP_MAX_SIZE).
const HEAP_BYTES: usize = 64 << 20;

/// Finds the functions that take such blocks.
pub fn find() {
    FREE.find(FREE_NAME);
    REALLOC.find(REALLOC_NAME);
    USABLE_SIZE.find(USABLE_SIZE_NAME);
}

/// Notes where the C library's heap starts.
pub fn start() {
    let end = program_end();
    // AT_BASE: where the kernel loaded the dynamic linker beside the program.
    let behind = call::auxiliary(libc::AT_BASE) != 0 && end != usize::MAX;
    FIRST_BREAK.store(if behind { end } else { end.min(program_break()) }, Ordering::Relaxed);
}

static MALLOC: Once = Once::new();

/// Whether [`start_malloc`] has nothing to do.
pub fn malloc_is_started() -> bool {
    MALLOC.is_done() || musl::is_here()
}

/// Initialises the C library's malloc before the program may call it. glibc relies on the first call being made while
/// the process has one thread, which is so without neap. The call takes no lock for the initialisation: if two threads
/// make it at the same time, both count as one user of the main heap, and an assertion of glibc's fails when the second
/// of them ends.
pub fn start_malloc() {
    if malloc_is_started() {
        return;
    }
    // Looked up before other threads may wait in `Once::run`, because a look-up takes locks of the dynamic linker.
    let theirs = Scope(lookup::libc());
    let malloc = lookup::symbol(theirs, c"malloc");
    // `deepbind` puts neap's functions into the C library's table one after the other: free may still be the C
    // library's.
    if malloc == libc::malloc as *mut c_void {
        return;
    }
    // SAFETY: the C library's functions of these names have these types.
    let functions = unsafe {
        let malloc = lookup::function::<unsafe extern "C" fn(usize) -> *mut u8>(malloc);
        malloc.zip(lookup::function::<unsafe extern "C" fn(*mut u8)>(lookup::symbol(theirs, FREE_NAME)))
    };
    if let Some((malloc, free)) = functions {
        // SAFETY: free's contract: null, or a block of the same allocator, or one that neap's free passes on to it.
        errno::kept(|| MALLOC.run(&mut || unsafe { free(malloc(1)) }));
    }
}

/// The end of the program in memory; the greatest address if its headers do not say.
fn program_end() -> usize {
    let (at, count) = (call::auxiliary(libc::AT_PHDR), call::auxiliary(libc::AT_PHNUM));
    let at = core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(at);
    if at.is_null() || count == 0 {
        return usize::MAX;
    }
    // SAFETY: AT_PHDR and AT_PHNUM: the program headers, mapped as long as the program runs.
    let headers = unsafe { core::slice::from_raw_parts(at, count) };
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
    let bias = own.map_or(0, |header| at.addr().wrapping_sub(header.p_vaddr as usize));
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let end = loaded.map(|header| bias.wrapping_add((header.p_vaddr + header.p_memsz) as usize)).max();
    end.unwrap_or(usize::MAX)
}

fn program_break() -> usize {
    // SAFETY: sbrk(0) only reads.
    unsafe { libc::sbrk(0) }.addr()
}

/// A function of the allocator behind neap in symbol order, of type `F`. Its name is not here, because the dynamic
/// linker would write the name's address at each start.
struct Next<F> {
    found: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

const FREE_NAME: &CStr = c"free";
const REALLOC_NAME: &CStr = c"realloc";
const USABLE_SIZE_NAME: &CStr = c"malloc_usable_size";

static FREE: Next<unsafe extern "C" fn(*mut u8)> = Next::new();
static REALLOC: Next<unsafe extern "C" fn(*mut u8, usize) -> *mut u8> = Next::new();
static USABLE_SIZE: Next<unsafe extern "C" fn(*mut u8) -> usize> = Next::new();

impl<F: Copy> Next<F> {
    const fn new() -> Self {
        Next { found: AtomicPtr::new(core::ptr::null_mut()), function: PhantomData }
    }

    /// The function's address, or null. May allocate, as its callers may.
    fn find(&self, name: &CStr) -> *mut c_void {
        // Relaxed: the function was there before.
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        let found = lookup::symbol(Scope::BEHIND, name);
        // The first result stays: after `deepbind.rs` changed the C library's table, a later one would be neap's own
        // function.
        let before = self.found.compare_exchange(core::ptr::null_mut(), found, Ordering::Relaxed, Ordering::Relaxed);
        before.map_or_else(|before| before, |_| found)
    }

    /// The function, if `p` is plausibly its allocator's block; else the process ends.
    fn to_take(&self, name: &CStr, p: *mut u8, call: Call) -> F {
        if !NEAP.policy.foreign_abort() && !musl::is_here() && is_glibc_block(p) {
            // SAFETY: `F` is the type of the C library's function of this name.
            if let Some(function) = unsafe { lookup::function(self.find(name)) } {
                return function;
            }
        }
        misuse::foreign(&NEAP, call, p)
    }
}

/// Whether `p` has the header of a live block of glibc's malloc.
fn is_glibc_block(p: *mut u8) -> bool {
    let header = p.addr().wrapping_sub(16);
    if !p.addr().is_multiple_of(16) || p.addr() < 4096 || !call::is_readable(header as u64) {
        return false;
    }
    // SAFETY: the header's first word can be read, and its 16 bytes, aligned as `p` is, are on one OS page.
    let (before, word) = unsafe {
        let h = p.sub(16).cast::<usize>();
        (h.read(), h.add(1).read())
    };
    let size = word & !FLAGS;
    if size < MIN_SIZE || !size.is_multiple_of(16) {
        return false;
    }
    let page = NEAP.page_size().max(4096);
    if word & IS_MMAPPED != 0 {
        // The block lies in whole OS pages. From glibc 2.43 on its size does not count a header's length at their end.
        let ends = [size + before, size + before + 16];
        return (header - before.min(header)).is_multiple_of(page) && ends.iter().any(|end| end.is_multiple_of(page));
    }
    if word & NON_MAIN_ARENA != 0 {
        let heap = header & !(HEAP_BYTES - 1);
        return size < HEAP_BYTES && header + size <= heap + HEAP_BYTES && call::is_readable(heap as u64);
    }
    let end = header + size;
    header >= FIRST_BREAK.load(Ordering::Relaxed) && end <= program_break() || is_behind_live_block(end)
}

/// Whether a glibc block has its header here, which says that the block before it is in use. If the break cannot grow,
/// as in qemu's user mode from version 8 on, the main heap lies in mappings.
fn is_behind_live_block(header: usize) -> bool {
    if !call::is_readable(header as u64) {
        return false;
    }
    // SAFETY: the header's first word can be read, and its 16 bytes, aligned, are on one OS page.
    let word = unsafe { core::ptr::with_exposed_provenance::<usize>(header).add(1).read() };
    // 16 is the size of the fenceposts at the end of a mapping.
    word & FLAGS == PREVIOUS_IN_USE && word & !FLAGS >= 16
}

/// free of a block that neap does not know. Keeps errno.
///
/// # Safety
/// `p` must not be a block of neap's.
#[cold]
pub unsafe fn free(p: *mut u8) {
    // SAFETY: free's contract: as far as its header says, a live block of the allocator that is called. So below.
    errno::kept(|| unsafe { FREE.to_take(FREE_NAME, p, Call::Free)(p) });
}

/// realloc of a block that neap does not know.
///
/// # Safety
/// As [`free`].
#[cold]
pub unsafe fn realloc(p: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: realloc's contract, as in `free`.
    unsafe { REALLOC.to_take(REALLOC_NAME, p, Call::Realloc)(p, size) }
}

/// malloc_usable_size of a block that neap does not know.
///
/// # Safety
/// As [`free`].
#[cold]
pub unsafe fn usable_size(p: *mut u8) -> usize {
    // SAFETY: malloc_usable_size's contract, as in `free`.
    unsafe { USABLE_SIZE.to_take(USABLE_SIZE_NAME, p, Call::UsableSize)(p) }
}
