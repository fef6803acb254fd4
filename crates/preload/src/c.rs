//! The C functions. Each is the meaning that the standard or glibc gives it, on the calls of `neap_sys::global`.
//!
//! On failure: NULL with errno ENOMEM, unless stated. free and its kin keep errno.
//!
//! A program, or a library in front of this one, may define some of the exported names itself, over the others: its
//! memalign calls posix_memalign, its realloc `__libc_realloc`. A call in here that went through such a name would come
//! back to it, without end. So what is exported (`exports!`) only calls the Rust function of the same name, and no
//! function in here calls an exported one.
//!
//! One exception, as in glibc: reallocarray is the realloc of the program's own allocator, where it has one.

use crate::{foreign, lookup};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use neap_core::misuse::Call;
use neap_sys::global;

/// Any block of neap is aligned to this, from 16 bytes on.
const ALIGN: usize = 16;

pub fn set_errno(code: c_int) {
    // SAFETY: errno of the calling thread.
    unsafe { *libc::__errno_location() = code }
}

/// C: a block of at least `size` bytes; a unique one for 0.
#[inline(always)]
fn malloc(size: usize) -> *mut c_void {
    global::malloc(size).cast()
}

/// C: ends the life of a block; NULL is ignored.
///
/// # Safety
/// `p` must be NULL or a live block.
#[inline(always)]
unsafe fn free(p: *mut c_void) {
    // SAFETY: as the caller promises.
    unsafe { global::free(p.cast(), foreign::free) }
}

/// C: a zeroed block for `count` objects of `size` bytes.
#[inline(always)]
fn calloc(count: usize, size: usize) -> *mut c_void {
    global::calloc(count, size).cast()
}

/// C: a block of at least `size` bytes with the contents of `p`, whose life ends. As in glibc, a `size` of 0 frees
/// `p` and returns NULL.
///
/// # Safety
/// `p` must be NULL or a live block.
#[inline(always)]
unsafe fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
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

type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;

/// The realloc that stands in front of ours, where the program or another library has one; null where none does.
static IN_FRONT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Looks for another realloc in front. Before the program has threads, as far as that can be.
pub fn start() {
    // A library for old programs, as glibc's checker of the heap, has the name under the C library's version alone.
    let lookups = [lookup::symbol, lookup::symbol_of_libc];
    for lookup in lookups {
        // SAFETY: look-ups by name.
        let [first, next] = unsafe { [libc::RTLD_DEFAULT, libc::RTLD_NEXT].map(|from| lookup(from, c"realloc")) };
        // What the program sees is what lies behind neap where the program itself has opened neap.
        if !first.is_null() && first != exports::realloc as *mut c_void && first != next {
            // Relaxed: the function was there before.
            return IN_FRONT.store(first, Ordering::Relaxed);
        }
    }
}

/// glibc: realloc for `count` objects of `size` bytes, with the product checked. An allocator in front of neap may lack it,
/// as jemalloc and most programs' own do: then the blocks are that allocator's.
///
/// # Safety
/// As [`realloc`].
unsafe fn reallocarray(p: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else {
        set_errno(libc::ENOMEM);
        return core::ptr::null_mut();
    };
    let in_front = IN_FRONT.load(Ordering::Relaxed);
    // SAFETY: as the caller promises; the symbol `realloc` has this type.
    unsafe {
        if in_front.is_null() {
            return realloc(p, bytes);
        }
        core::mem::transmute::<*mut c_void, Realloc>(in_front)(p, bytes)
    }
}

/// glibc: a block aligned to `align`, which is rounded up to a power of two.
fn memalign(align: usize, size: usize) -> *mut c_void {
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
fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

/// POSIX: a block aligned to `align`, a power of two and a multiple of the size of a pointer. Returns 0, EINVAL, which
/// leaves errno, or ENOMEM, which is in errno as well: programs that look there find it with other allocators. `out` is
/// written on success only.
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
    // SAFETY: as the caller promises.
    unsafe { out.write(p) };
    0
}

fn page_size() -> usize {
    // SAFETY: getauxval only reads.
    unsafe { libc::getauxval(libc::AT_PAGESZ) as usize }
}

/// glibc: a block aligned to the OS page.
fn valloc(size: usize) -> *mut c_void {
    memalign(page_size(), size)
}

/// glibc: a block of whole OS pages.
fn pvalloc(size: usize) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(page_size()) {
        Some(size) => memalign(page_size(), size),
        None => {
            set_errno(libc::ENOMEM);
            core::ptr::null_mut()
        }
    }
}

/// glibc: the bytes of the block that may be used, constant for its life; 0 for NULL.
///
/// # Safety
/// `p` must be NULL or a live block.
unsafe fn malloc_usable_size(p: *mut c_void) -> usize {
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
unsafe fn free_sized(p: *mut c_void, _size: usize) {
    // SAFETY: as the caller promises.
    unsafe { free(p) }
}

/// C23: [`free`] of a block from aligned_alloc of that alignment and size.
///
/// # Safety
/// As [`free`].
unsafe fn free_aligned_sized(p: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: as the caller promises.
    unsafe { free(p) }
}

/// Exports Rust functions, also under glibc's second names.
macro_rules! exports {
    ($($name:ident = $function:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        mod exports {
            use core::ffi::{c_int, c_void};
            $(
                #[doc = concat!("[`super::", stringify!($function), "`] for C.")]
                ///
                /// # Safety
                /// As that function.
                #[unsafe(no_mangle)]
                #[allow(unused_unsafe, reason = "some of these functions are safe")]
                pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? {
                    // SAFETY: as the caller promises.
                    unsafe { super::$function($($arg),*) }
                }
            )*
        }
    };
}

exports! {
    malloc = malloc(size: usize) -> *mut c_void;
    free = free(p: *mut c_void);
    cfree = free(p: *mut c_void);
    calloc = calloc(count: usize, size: usize) -> *mut c_void;
    realloc = realloc(p: *mut c_void, size: usize) -> *mut c_void;
    reallocarray = reallocarray(p: *mut c_void, count: usize, size: usize) -> *mut c_void;
    memalign = memalign(align: usize, size: usize) -> *mut c_void;
    aligned_alloc = aligned_alloc(align: usize, size: usize) -> *mut c_void;
    posix_memalign = posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int;
    valloc = valloc(size: usize) -> *mut c_void;
    pvalloc = pvalloc(size: usize) -> *mut c_void;
    malloc_usable_size = malloc_usable_size(p: *mut c_void) -> usize;
    free_sized = free_sized(p: *mut c_void, size: usize);
    free_aligned_sized = free_aligned_sized(p: *mut c_void, align: usize, size: usize);
    __libc_malloc = malloc(size: usize) -> *mut c_void;
    __libc_free = free(p: *mut c_void);
    __libc_cfree = free(p: *mut c_void);
    __libc_calloc = calloc(count: usize, size: usize) -> *mut c_void;
    __libc_realloc = realloc(p: *mut c_void, size: usize) -> *mut c_void;
    __libc_reallocarray = reallocarray(p: *mut c_void, count: usize, size: usize) -> *mut c_void;
    __libc_memalign = memalign(align: usize, size: usize) -> *mut c_void;
    __libc_valloc = valloc(size: usize) -> *mut c_void;
    __libc_pvalloc = pvalloc(size: usize) -> *mut c_void;
    __posix_memalign = posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int;
}
