//! The neap allocator for Rust programs: a [`GlobalAlloc`], and the page level below it.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: neap::Neap = neap::Neap;
//!
//! let table: Vec<u64> = (0..1 << 20).collect();
//! // The allocator may give more than was requested.
//! // SAFETY: the vector's buffer is a live block of neap's.
//! let bytes = unsafe { neap::usable_size(table.as_ptr().cast()) };
//! assert!(bytes >= 8 << 20);
//!
//! drop(table);
//! // Freed memory waits to be used again; a program that will be idle gives it back.
//! let returned = neap::purge();
//! assert!(returned >= 8 << 20);
//! assert_eq!(neap::free_bytes().dirty, 0);
//! ```
//!
//! # What it changes
//!
//! All Rust code of the program allocates from neap; C code in the same process keeps its malloc. To replace that too,
//! use `libneap.so` or `libneap.a`. They need no change to Rust code, because Rust's default allocator is malloc.
//! Linking this crate and `libneap.a` into the same program is not supported.
//!
//! The crate reads no option from the environment: only the library reads `NEAP_*` variables. [`set_option`] sets
//! options.
//!
//! # Heap errors
//!
//! At a double free, or a free of a pointer into the middle of a block or of another allocator's block, the process
//! ends with one line on standard error and SIGABRT. Safe code cannot make these errors.
//!
//! # Where it runs
//!
//! On x86-64 and 64-bit Arm, on Linux with glibc or musl, in programs with threads and fork. The crate is `no_std` and
//! may depend only on `neap-core`, `neap-sys`, `neap-control`, `neap-ranges` and `neap-options`.
#![no_std]

mod control;
pub mod profile;
pub mod ranges;

use core::alloc::{GlobalAlloc, Layout};
use neap_core::class::{MAX_SMALL, MIN_BLOCK};
use neap_core::misuse::{self, Call};
use neap_sys::global::{self, NEAP};

pub use control::{
    OptionError, Origin, Sample, SampleEvent, Stats, Trimmed, Value, held_bytes, on_sample, option, set_option, stats,
    stop_sampling, thread_idle, trim,
};

/// The allocator. It has no state: every `Neap` is the one allocator of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neap;

/// Every block is aligned to this.
const ALIGN: usize = 16;

const _: () = assert!(MIN_BLOCK == ALIGN, "blocks of the smallest class must be aligned as all are: see class::SIZE");

// SAFETY: neap hands out blocks of at least the layout's size and alignment that are not in use, keeps the contents
// when it resizes them, and does not unwind.
unsafe impl GlobalAlloc for Neap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGN {
            return global::malloc(layout.size());
        }
        global::malloc_aligned(layout.size(), layout.align(), false)
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGN {
            return global::calloc(1, layout.size());
        }
        global::malloc_aligned(layout.size(), layout.align(), true)
    }

    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, _: Layout) {
        // SAFETY: the caller promises a live block of this allocator.
        unsafe { global::free(p, foreign) }
    }

    #[inline]
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises a live block of this allocator with this layout, here and below.
        let Some(old) = (unsafe { global::usable_size(p, Call::Realloc) }) else {
            misuse::foreign(&NEAP, Call::Realloc, p)
        };
        if layout.align() <= ALIGN || keeps_alignment(layout.align(), old, size) {
            // SAFETY: `old` is what the allocator just said.
            return unsafe { global::realloc(p, old, size) };
        }
        // SAFETY: as above: the block has this layout, and `old` usable bytes.
        unsafe { realloc_aligned(p, old, layout, size) }
    }
}

/// Whether [`global::realloc`] returns a block aligned to `align`: blocks of whole OS pages stay so.
#[inline]
fn keeps_alignment(align: usize, old: usize, size: usize) -> bool {
    old > MAX_SMALL && size > MAX_SMALL && align <= NEAP.page_size()
}

/// realloc for an alignment larger than that of all blocks: in place, or by copying.
///
/// # Safety
/// `p` must be a live block with this layout and `old` usable bytes.
#[cold]
unsafe fn realloc_aligned(p: *mut u8, old: usize, layout: Layout, size: usize) -> *mut u8 {
    // As the other realloc does: stay where less than half of the block is wasted.
    if size <= old && size >= old / 2 {
        return p;
    }
    let new = global::malloc_aligned(size, layout.align(), false);
    if !new.is_null() {
        // SAFETY: the new block is another one, and both have as many bytes. The old one's life ends here.
        unsafe {
            new.copy_from_nonoverlapping(p, layout.size().min(size));
            global::free(p, foreign);
        }
    }
    new
}

/// Ends the process: the freed pointer is not a block of neap.
///
/// # Safety
/// None; the type is that of [`global::ForeignFree`].
unsafe fn foreign(p: *mut u8) {
    misuse::foreign(&NEAP, Call::Free, p)
}

/// Gives free memory back to the system. Returns the number of bytes of address space that were given back, including
/// OS pages that were never touched.
///
/// Like [`trim`] without a limit, this gives back the caches of all threads, free ranges, and the free OS pages among
/// small blocks. A later block that needs the memory again pays for a page fault in each OS page.
pub fn purge() -> usize {
    global::purge()
}

/// Bytes of the block at `p` that may be used: at least the requested size, and the same for the block's whole life.
///
/// If neap does not know the block, the process ends.
///
/// # Safety
/// `p` must be the start of a live block that this allocator made.
pub unsafe fn usable_size(p: *const u8) -> usize {
    let p = p.cast_mut();
    // SAFETY: a live block, as the caller promises; it is not written.
    let bytes = unsafe { global::quick_size(p).or_else(|| global::usable_size(p, Call::UsableSize)) };
    match bytes {
        Some(bytes) => bytes,
        None => misuse::foreign(&NEAP, Call::UsableSize, p),
    }
}

/// Free memory outside of the threads' heaps; see [`free_bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreeBytes {
    /// Bytes that may hold memory: [`purge`] gives them back.
    pub dirty: usize,
    /// Bytes known to read as zero, which cost address space only.
    pub clean: usize,
}

/// How much free memory waits to be used again, without what threads keep for their next blocks.
pub fn free_bytes() -> FreeBytes {
    let (dirty, clean) = global::free_bytes();
    FreeBytes { dirty, clean }
}
