//! The twenty C++ operators new and delete.
//!
//! Symbol names are the Itanium C++ ABI's, for a 64-bit `size_t`. When memory runs out, the program's new handler is
//! called until there is memory, it throws, or there is no handler; then `std::bad_alloc` is thrown, or NULL returned
//! by the nothrow forms. Both come from the C++ library that the program has loaded, or has inside: a static program whose
//! C++ library throws nothing else has no function that throws bad_alloc, and ends instead (with the linker's option
//! `-u _ZSt17__throw_bad_allocv` it has), and its nothrow forms do not call the new handler.

use crate::{foreign, lookup};
use core::ffi::{CStr, c_char, c_int, c_void};
use neap_sys::{arch, global};

/// `std::align_val_t`, and the size where it is passed to delete.
type Word = usize;
/// `const std::nothrow_t&`.
type Nothrow = *const c_void;

/// A function of the C++ library: the one that is `linked`, else one that all see.
fn lookup(linked: *mut c_void, name: &CStr) -> *mut c_void {
    if !linked.is_null() {
        return linked;
    }
    // SAFETY: a look-up by name.
    unsafe { lookup::symbol(libc::RTLD_DEFAULT, name) }
}

/// The C++ library's operator of this name, or null. `own` is ours, which is another.
#[cold]
fn theirs(name: &CStr, own: *mut c_void) -> *mut c_void {
    // SAFETY: a look-up by name, past this library.
    let next = unsafe { lookup::symbol(libc::RTLD_NEXT, name) };
    if next.is_null() { lookup_in_objects(name, own) } else { next }
}

/// Longest path of an object that is looked into: the stack may be short.
const LONGEST_PATH: usize = 1024;

/// An object that the program has loaded, by its number.
struct Object {
    /// How many come before it.
    left: usize,
    path: [c_char; LONGEST_PATH],
}

/// Counts an object; ends with 1 at the one that is wanted, or with -1 if that has a path that is too long.
unsafe extern "C" fn count_object(info: *mut libc::dl_phdr_info, _: usize, wanted: *mut c_void) -> c_int {
    // SAFETY: both are valid, and the path is a string, as dl_iterate_phdr promises.
    let (wanted, path) = unsafe { (&mut *wanted.cast::<Object>(), CStr::from_ptr((*info).dlpi_name)) };
    if wanted.left > 0 {
        wanted.left -= 1;
        return 0;
    }
    let path = path.to_bytes_with_nul();
    if path.len() > wanted.path.len() {
        return -1;
    }
    for (to, &byte) in wanted.path.iter_mut().zip(path) {
        *to = byte.cast_signed();
    }
    1
}

/// The function of this name in any object that is loaded, but for `own`: the C++ library may have come with a plug-in
/// that was opened with RTLD_LOCAL, as Python does, or be a part of it. Memory has run out, so this needs none but its
/// stack.
#[cold]
fn lookup_in_objects(name: &CStr, own: *mut c_void) -> *mut c_void {
    for n in 0.. {
        let mut object = Object { left: n, path: [0; LONGEST_PATH] };
        // SAFETY: the function is given what it wants. What it opens is open already, and is closed again.
        unsafe {
            match libc::dl_iterate_phdr(Some(count_object), (&raw mut object).cast()) {
                0 => break,
                1 => {}
                _ => continue,
            }
            let handle = libc::dlopen(object.path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() {
                continue;
            }
            let found = lookup::symbol(handle, name);
            libc::dlclose(handle);
            if !found.is_null() && found != own {
                return found;
            }
        }
    }
    core::ptr::null_mut()
}

/// The program's new handler, or null.
fn new_handler() -> *mut c_void {
    let get = lookup(arch::weak!("_ZSt15get_new_handlerv"), c"_ZSt15get_new_handlerv");
    if get.is_null() {
        return get;
    }
    // SAFETY: std::get_new_handler has this type.
    unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(get)() }
}

/// The C++ library's function that throws bad_alloc, or null.
fn thrower() -> *mut c_void {
    lookup(arch::weak!("_ZSt17__throw_bad_allocv"), c"_ZSt17__throw_bad_allocv")
}

/// What a throwing operator does next: the new handler, or a function that throws bad_alloc.
extern "C" fn next_throwing() -> *mut c_void {
    let handler = new_handler();
    if !handler.is_null() {
        return handler;
    }
    throw_or_abort()
}

extern "C" fn throw_or_abort() -> *mut c_void {
    let throw = thrower();
    if throw.is_null() { libc::abort as *mut c_void } else { throw }
}

/// Stands for an alignment that is no power of two; 0 is that of the forms without one.
const BAD: Word = 3;

/// The alignment that an operator got, or [`BAD`].
fn checked(align: Word) -> Word {
    if align.is_power_of_two() { align } else { BAD }
}

extern "C" fn retry(size: usize, align: usize) -> *mut u8 {
    match align {
        0 => global::malloc(size),
        BAD => core::ptr::null_mut(),
        align => global::malloc_aligned(size, align, false),
    }
}

/// The throwing forms after memory ran out. Where nobody sees the C++ library but the object that needs it, the work goes
/// to its own operator of the same name.
#[cold]
#[inline(never)]
unsafe extern "C-unwind" fn failed(symbol: *const c_char, own: *mut c_void, size: usize, align: usize) -> *mut c_void {
    if thrower().is_null() {
        // SAFETY: the name of a symbol.
        let theirs = theirs(unsafe { CStr::from_ptr(symbol) }, own);
        if !theirs.is_null() {
            type Operator = unsafe extern "C-unwind" fn(usize, Word) -> *mut c_void;
            // SAFETY: the symbol names a function of this type, or of one without the second argument.
            return unsafe { core::mem::transmute::<*mut c_void, Operator>(theirs)(size, align) };
        }
    }
    // There is no memory to be had for a bad alignment, so no handler is asked.
    let next = if align == BAD { throw_or_abort } else { next_throwing };
    // SAFETY: both functions have the types that the loop wants.
    unsafe { arch::neap_new_loop(size, align, retry, next).cast() }
}

/// The nothrow forms after memory ran out. A new handler may throw, and then the answer is NULL: to catch that takes
/// C++, so the work goes to the C++ library's own operator of the same name, which calls our throwing one in a `try`.
/// Without that library there is no handler either, unless it is linked in statically.
#[cold]
#[inline(never)]
fn failed_nothrow(symbol: &CStr, own: *mut c_void, size: usize, align: usize, nothrow: Nothrow) -> *mut c_void {
    let theirs = theirs(symbol, own);
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

/// The name of a function as a C string.
macro_rules! symbol {
    ($symbol:ident) => {{
        const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a symbol has no zero byte"),
        };
        NAME
    }};
}

macro_rules! new {
    ($($symbol:ident ($($align:ident: Word)?) $what:literal;)*) => {$(
        #[doc = $what]
        ///
        /// # Safety
        /// As every C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $symbol(size: usize $(, $align: Word)?) -> *mut c_void {
            let align = 0 $(+ checked($align))?;
            let p = retry(size, align);
            if p.is_null() {
                // SAFETY: the last thing this function does.
                return unsafe { failed(symbol!($symbol).as_ptr(), $symbol as *mut c_void, size, align) };
            }
            p.cast()
        }
    )*};
}

macro_rules! new_nothrow {
    ($($symbol:ident ($($align:ident: Word)?) $what:literal;)*) => {$(
        #[doc = $what]
        ///
        /// # Safety
        /// As every C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol(size: usize $(, $align: Word)?, nothrow: Nothrow) -> *mut c_void {
            let align = 0 $(+ checked($align))?;
            let p = retry(size, align);
            if p.is_null() {
                return failed_nothrow(symbol!($symbol), $symbol as *mut c_void, size, align, nothrow);
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
