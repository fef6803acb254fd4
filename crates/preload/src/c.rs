//! The C functions. Each is the meaning that the standard or glibc gives it, on the calls of `neap_sys::global`.
//!
//! On failure: NULL with errno ENOMEM, unless stated. free and its kin keep errno.

use crate::foreign;
use core::ffi::{c_int, c_void};
use neap_core::misuse::Call;
use neap_sys::global;

/// Any block of neap is aligned to this, from 16 bytes on.
const ALIGN: usize = 16;

pub fn set_errno(code: c_int) {
    // SAFETY: errno of the calling thread.
    unsafe { *libc::__errno_location() = code }
}

/// C: a block of at least `size` bytes; a unique one for 0.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    global::malloc(size).cast()
}

/// C: ends the life of a block; NULL is ignored.
///
/// # Safety
/// `p` must be NULL or a live block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(p: *mut c_void) {
    // SAFETY: as the caller promises.
    unsafe { global::free(p.cast(), foreign::free) }
}

/// C: a zeroed block for `count` objects of `size` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    global::calloc(count, size).cast()
}

/// C: a block of at least `size` bytes with the contents of `p`, whose life ends. As in glibc, a `size` of 0 frees
/// `p` and returns NULL.
///
/// # Safety
/// `p` must be NULL or a live block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    if p.is_null() {
        return malloc(size);
    }
    // SAFETY: as the caller promises.
    unsafe {
        if size == 0 {
            free(p);
            return core::ptr::null_mut();
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

/// glibc: realloc for `count` objects of `size` bytes, with the product checked.
///
/// # Safety
/// As [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(p: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as the caller promises.
        Some(bytes) => unsafe { realloc(p, bytes) },
        None => {
            set_errno(libc::ENOMEM);
            core::ptr::null_mut()
        }
    }
}

/// glibc: a block aligned to `align`, which is rounded up to a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    if align > 1 << (usize::BITS - 1) {
        set_errno(libc::EINVAL);
        return core::ptr::null_mut();
    }
    let align = align.max(1).next_power_of_two();
    if align <= ALIGN {
        return malloc(size);
    }
    global::malloc_aligned(size, align, false).cast()
}

/// C: a block aligned to `align`. As in glibc before 2.38, an alignment that is no power of two is rounded up.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

/// POSIX: a block aligned to `align`, a power of two and a multiple of the size of a pointer. Returns 0, EINVAL or
/// ENOMEM; errno is kept, and `out` is written on success only.
///
/// # Safety
/// `out` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: errno of the calling thread.
    let errno = unsafe { *libc::__errno_location() };
    let p = memalign(align, size);
    if p.is_null() {
        set_errno(errno);
        return libc::ENOMEM;
    }
    // SAFETY: as the caller promises.
    unsafe { out.write(p) };
    0
}

fn page_size() -> usize {
    // SAFETY: getauxval only reads.
    unsafe { libc::getauxval(libc::AT_PAGESZ) as usize }
}

/// glibc: a block aligned to the OS page.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(page_size(), size)
}

/// glibc: a block of whole OS pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(page_size()) {
        Some(size) => memalign(page_size(), size),
        None => {
            set_errno(libc::ENOMEM);
            core::ptr::null_mut()
        }
    }
}

/// Old glibc: [`free`].
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(p: *mut c_void) {
    // SAFETY: as the caller promises.
    unsafe { free(p) }
}

/// glibc: the bytes of the block that may be used, constant for its life; 0 for NULL.
///
/// # Safety
/// `p` must be NULL or a live block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(p: *mut c_void) -> usize {
    if p.is_null() {
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { global::usable_size(p.cast(), Call::UsableSize).unwrap_or_else(|| foreign::usable_size(p.cast())) }
}

/// C23: [`free`] of a block from malloc, calloc or realloc of that size.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(p: *mut c_void, _size: usize) {
    // SAFETY: as the caller promises.
    unsafe { free(p) }
}

/// C23: [`free`] of a block from aligned_alloc of that alignment and size.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(p: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: as the caller promises.
    unsafe { free(p) }
}

/// glibc's second names of the same functions.
macro_rules! aliases {
    ($($alias:ident = $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[doc = concat!("glibc: [`", stringify!($name), "`] under its internal name.")]
        ///
        /// # Safety
        /// As that function.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some of these functions are safe")]
        pub unsafe extern "C" fn $alias($($arg: $type),*) $(-> $result)? {
            // SAFETY: as the caller promises.
            unsafe { $name($($arg),*) }
        }
    )*};
}

aliases! {
    __libc_malloc = malloc(size: usize) -> *mut c_void;
    __libc_free = free(p: *mut c_void);
    __libc_cfree = cfree(p: *mut c_void);
    __libc_calloc = calloc(count: usize, size: usize) -> *mut c_void;
    __libc_realloc = realloc(p: *mut c_void, size: usize) -> *mut c_void;
    __libc_reallocarray = reallocarray(p: *mut c_void, count: usize, size: usize) -> *mut c_void;
    __libc_memalign = memalign(align: usize, size: usize) -> *mut c_void;
    __libc_valloc = valloc(size: usize) -> *mut c_void;
    __libc_pvalloc = pvalloc(size: usize) -> *mut c_void;
    __posix_memalign = posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int;
}
