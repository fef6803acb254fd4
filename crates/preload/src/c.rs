//! The C functions. Each does what the standard or glibc says, by the calls of `neap_sys::global`.
//!
//! On failure they return NULL with errno ENOMEM, unless stated. free and related functions keep errno.
//!
//! A program, or a library in front of this one, may define some of the exported names itself, and call others in them:
//! its memalign may call posix_memalign, its realloc `__libc_realloc`. If a function here called through such a name,
//! the call would come back here, without end. So an exported function (`exports!`) only calls the Rust function of the
//! same name, and no function in this file calls an exported one.
//!
//! There is one exception, as in glibc: reallocarray calls the realloc of the program's own allocator, if there is one.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use neap_core::misuse::Call;
use neap_surface::{foreign, front};
use neap_sys::{call, errno, global, musl};

/// Every block of neap's of at least 16 bytes is aligned to this.
const ALIGN: usize = 16;

/// NULL, with `code` in errno.
fn failed(code: c_int) -> *mut c_void {
    errno::set(code);
    null_mut()
}

/// C: a block of at least `size` bytes. For 0 too, each block has its own address.
#[inline(always)]
fn malloc(size: usize) -> *mut c_void {
    global::malloc(size).cast()
}

/// C: frees a block; NULL is ignored.
///
/// # Safety
/// `p` must be NULL or a live block.
#[inline(always)]
unsafe fn free(p: *mut c_void) {
    // SAFETY: free's contract; `foreign::free` takes what is not neap's.
    unsafe { global::free(p.cast(), foreign::free) }
}

/// C: a zeroed block for `count` objects of `size` bytes.
#[inline(always)]
fn calloc(count: usize, size: usize) -> *mut c_void {
    global::calloc(count, size).cast()
}

/// C: a block of at least `size` bytes with the contents of `p`, whose life ends. As in glibc, a `size` of 0 frees
/// `p` and returns NULL; with musl it stands for 1, as there.
///
/// # Safety
/// `p` must be NULL or a live block.
#[inline(always)]
unsafe fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    if p.is_null() {
        return malloc(size);
    }
    // SAFETY: realloc's contract: `p` is a live block, of neap or of another allocator.
    unsafe {
        if size == 0 {
            if musl::is_here() {
                return realloc(p, 1);
            }
            free(p);
            return null_mut();
        }
        if let Some(new) = global::realloc_small(p.cast(), size, foreign::free) {
            return new.cast();
        }
        match global::usable_size(p.cast(), Call::Realloc) {
            Some(old) => global::realloc(p.cast(), old, size).cast(),
            None => foreign::realloc(p.cast(), size).cast(),
        }
    }
}

/// glibc: realloc for `count` objects of `size` bytes, with the product checked. An allocator in front of neap may not
/// have this function, as jemalloc and most programs' own do not. Then the blocks are that allocator's.
///
/// # Safety
/// As [`realloc`].
unsafe fn reallocarray(p: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return failed(libc::ENOMEM) };
    // SAFETY: realloc's contract, whichever allocator has the block.
    unsafe {
        match front::realloc() {
            Some(in_front) => in_front(p, bytes),
            None => realloc(p, bytes),
        }
    }
}

/// glibc: a block aligned to `align`, which is rounded up to a power of two.
fn memalign(align: usize, size: usize) -> *mut c_void {
    if align > 1 << (usize::BITS - 1) {
        return failed(libc::EINVAL);
    }
    let align = align.max(1).next_power_of_two();
    if align <= ALIGN {
        return malloc(size);
    }
    global::malloc_aligned(size, align, false).cast()
}

/// POSIX: a block aligned to `align`, a power of two and a multiple of the size of a pointer. Returns 0, EINVAL or
/// ENOMEM. ENOMEM is in errno as well, as with other allocators, because some programs look there. `out` is written on
/// success only.
///
/// # Safety
/// `out` must be valid for writes.
unsafe fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let p = memalign(align, size);
    if p.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: posix_memalign's contract: `out` is valid for writes.
    unsafe { out.write(p) };
    0
}

/// glibc: a block aligned to the OS page.
fn valloc(size: usize) -> *mut c_void {
    memalign(call::page_size(), size)
}

/// glibc: a block of whole OS pages.
fn pvalloc(size: usize) -> *mut c_void {
    let whole = size.max(1).checked_next_multiple_of(call::page_size());
    whole.map_or_else(|| failed(libc::ENOMEM), valloc)
}

/// glibc: the bytes of the block that may be used, constant for its life; 0 for NULL.
///
/// # Safety
/// `p` must be NULL or a live block.
#[inline(always)]
unsafe fn malloc_usable_size(p: *mut c_void) -> usize {
    #[cold]
    #[inline(never)]
    unsafe fn of_another(p: *mut u8) -> usize {
        if p.is_null() {
            return 0;
        }
        // SAFETY: as below.
        unsafe { global::usable_size(p, Call::UsableSize).unwrap_or_else(|| foreign::usable_size(p)) }
    }
    // SAFETY: malloc_usable_size's contract: `p` is a live block, of neap or of another allocator.
    unsafe { global::quick_size(p.cast()).unwrap_or_else(|| of_another(p.cast())) }
}

/// Exports C functions: their names and parameters, and the call of a function of this file that each makes.
macro_rules! exports {
    ($([$($name:ident),+] $parameters:tt -> $result:ty = $function:ident $arguments:tt;)*) => {
        pub mod exports {
            use core::ffi::{c_int, c_void};
            $($( exports!(@ $name $parameters -> $result = super::$function $arguments); )+)*
        }
    };
    (@ $name:ident($($parameter:ident: $type:ty),*) -> $result:ty = $call:expr) => {
        /// The C function of this name.
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, clippy::unused_unit, reason = "some functions are safe, some return nothing")]
        pub unsafe extern "C" fn $name($($parameter: $type),*) -> $result {
            // SAFETY: the C function's contract, which is that of the function called.
            unsafe { $call }
        }
    };
}

exports! {
    [malloc, __libc_malloc](size: usize) -> *mut c_void = malloc(size);
    [free, cfree, __libc_free, __libc_cfree](p: *mut c_void) -> () = free(p);
    [calloc, __libc_calloc](count: usize, size: usize) -> *mut c_void = calloc(count, size);
    [realloc, __libc_realloc](p: *mut c_void, size: usize) -> *mut c_void = realloc(p, size);
    [reallocarray, __libc_reallocarray](p: *mut c_void, count: usize, size: usize) -> *mut c_void
        = reallocarray(p, count, size);
    [memalign, __libc_memalign](align: usize, size: usize) -> *mut c_void = memalign(align, size);
    // C. As in glibc before 2.38, an alignment that is no power of two is rounded up.
    [aligned_alloc](align: usize, size: usize) -> *mut c_void = memalign(align, size);
    [posix_memalign, __posix_memalign](out: *mut *mut c_void, align: usize, size: usize) -> c_int
        = posix_memalign(out, align, size);
    [valloc, __libc_valloc](size: usize) -> *mut c_void = valloc(size);
    [pvalloc, __libc_pvalloc](size: usize) -> *mut c_void = pvalloc(size);
    [malloc_usable_size](p: *mut c_void) -> usize = malloc_usable_size(p);
    // C23: free of a block from malloc, calloc or realloc of that size.
    [free_sized](p: *mut c_void, _size: usize) -> () = free(p);
    // C23: free of a block from aligned_alloc of that alignment and size.
    [free_aligned_sized](p: *mut c_void, _align: usize, _size: usize) -> () = free(p);
}
