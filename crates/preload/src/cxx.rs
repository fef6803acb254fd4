//! The twenty C++ operators new and delete.
//!
//! Symbol names are the Itanium C++ ABI's, for a 64-bit `size_t`. When memory runs out, the program's new handler is
//! called until there is memory, it throws, or there is no handler; then `std::bad_alloc` is thrown, or NULL returned
//! by the nothrow forms. Both come from the C++ library that the program has loaded.

use crate::foreign;
use core::ffi::c_void;
use neap_sys::{arch, global};

/// `std::align_val_t`, and the size where it is passed to delete.
type Word = usize;
/// `const std::nothrow_t&`.
type Nothrow = *const c_void;

fn lookup(name: &core::ffi::CStr) -> *mut c_void {
    // SAFETY: a look-up by name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// The program's new handler, or null.
fn new_handler() -> *mut c_void {
    let get = lookup(c"_ZSt15get_new_handlerv");
    if get.is_null() {
        return get;
    }
    // SAFETY: std::get_new_handler has this type.
    unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(get)() }
}

/// What a throwing operator does next: the new handler, or a function that throws bad_alloc.
extern "C" fn next_throwing() -> *mut c_void {
    let handler = new_handler();
    if !handler.is_null() {
        return handler;
    }
    let throw = lookup(c"_ZSt17__throw_bad_allocv");
    if throw.is_null() { libc::abort as *mut c_void } else { throw }
}

extern "C" fn retry(size: usize, align: usize) -> *mut u8 {
    if align == 0 { global::malloc(size) } else { global::malloc_aligned(size, align, false) }
}

#[cold]
#[inline(never)]
unsafe extern "C-unwind" fn failed(size: usize, align: usize) -> *mut c_void {
    // SAFETY: both functions have the types that the loop wants.
    unsafe { arch::neap_new_loop(size, align, retry, next_throwing).cast() }
}

/// The nothrow forms after memory ran out. A new handler may throw, and then the answer is NULL: to catch that takes
/// C++, so the work goes to the C++ library's own operator of the same name, which calls our throwing one in a `try`.
/// Without that library there is no handler either.
#[cold]
#[inline(never)]
fn failed_nothrow(symbol: &core::ffi::CStr, size: usize, align: usize, nothrow: Nothrow) -> *mut c_void {
    // SAFETY: a look-up by name, past this library.
    let theirs = unsafe { libc::dlsym(libc::RTLD_NEXT, symbol.as_ptr()) };
    if theirs.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the symbol names a function of one of these two types.
    unsafe {
        if align == 0 {
            type Plain = unsafe extern "C" fn(usize, Nothrow) -> *mut c_void;
            core::mem::transmute::<*mut c_void, Plain>(theirs)(size, nothrow)
        } else {
            type Aligned = unsafe extern "C" fn(usize, Word, Nothrow) -> *mut c_void;
            core::mem::transmute::<*mut c_void, Aligned>(theirs)(size, align, nothrow)
        }
    }
}

macro_rules! new {
    ($($symbol:ident ($($align:ident: Word)?) $what:literal;)*) => {$(
        #[doc = $what]
        ///
        /// # Safety
        /// As every C function; the alignment must be a power of two.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $symbol(size: usize $(, $align: Word)?) -> *mut c_void {
            let align = 0 $(+ $align)?;
            let p = new!(@try size $(, $align)?);
            if p.is_null() {
                // SAFETY: the last thing this function does.
                return unsafe { failed(size, align) };
            }
            p.cast()
        }
    )*};
    (@try $size:ident) => { global::malloc($size) };
    (@try $size:ident, $align:ident) => { global::malloc_aligned($size, $align, false) };
}

macro_rules! new_nothrow {
    ($($symbol:ident ($($align:ident: Word)?) $what:literal;)*) => {$(
        #[doc = $what]
        ///
        /// # Safety
        /// As every C function; the alignment must be a power of two.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol(size: usize $(, $align: Word)?, nothrow: Nothrow) -> *mut c_void {
            let align = 0 $(+ $align)?;
            let p = new!(@try size $(, $align)?);
            if p.is_null() {
                const NAME: &core::ffi::CStr =
                    match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a symbol has no zero byte"),
                    };
                return failed_nothrow(NAME, size, align, nothrow);
            }
            p.cast()
        }
    )*};
}

macro_rules! delete {
    ($($symbol:ident ($($type:ty),*) $what:literal;)*) => {$(
        #[doc = $what]
        ///
        /// # Safety
        /// `p` must be null or a live block.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol(p: *mut c_void $(, _: $type)*) {
            // SAFETY: as the caller promises.
            unsafe { global::free(p.cast(), foreign::free) }
        }
    )*};
}

new! {
    _Znwm() "`operator new(size)`";
    _Znam() "`operator new[](size)`";
    _ZnwmSt11align_val_t(align: Word) "`operator new(size, align)`";
    _ZnamSt11align_val_t(align: Word) "`operator new[](size, align)`";
}

new_nothrow! {
    _ZnwmRKSt9nothrow_t() "`operator new(size, nothrow)`";
    _ZnamRKSt9nothrow_t() "`operator new[](size, nothrow)`";
    _ZnwmSt11align_val_tRKSt9nothrow_t(align: Word) "`operator new(size, align, nothrow)`";
    _ZnamSt11align_val_tRKSt9nothrow_t(align: Word) "`operator new[](size, align, nothrow)`";
}

delete! {
    _ZdlPv() "`operator delete(p)`";
    _ZdaPv() "`operator delete[](p)`";
    _ZdlPvm(Word) "`operator delete(p, size)`";
    _ZdaPvm(Word) "`operator delete[](p, size)`";
    _ZdlPvRKSt9nothrow_t(Nothrow) "`operator delete(p, nothrow)`";
    _ZdaPvRKSt9nothrow_t(Nothrow) "`operator delete[](p, nothrow)`";
    _ZdlPvSt11align_val_t(Word) "`operator delete(p, align)`";
    _ZdaPvSt11align_val_t(Word) "`operator delete[](p, align)`";
    _ZdlPvmSt11align_val_t(Word, Word) "`operator delete(p, size, align)`";
    _ZdaPvmSt11align_val_t(Word, Word) "`operator delete[](p, size, align)`";
    _ZdlPvSt11align_val_tRKSt9nothrow_t(Word, Nothrow) "`operator delete(p, align, nothrow)`";
    _ZdaPvSt11align_val_tRKSt9nothrow_t(Word, Nothrow) "`operator delete[](p, align, nothrow)`";
}
