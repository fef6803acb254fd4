//! The twenty C++ operators new and delete, and what they do when memory runs out.
//!
//! Symbol names are the Itanium C++ ABI's, for a 64-bit `size_t`. When memory runs out, the program's new handler is
//! called until there is memory, or it throws. Where there is no handler, the throwing forms throw `std::bad_alloc`,
//! and the nothrow forms return NULL. Handler and exception come from the C++ library that the program has loaded, or
//! is linked with. A static program that throws no other exception of the C++ library lacks the function that throws
//! bad_alloc. It ends instead, unless it is linked with `-u _ZSt17__throw_bad_allocv`, and its nothrow forms do not
//! call the new handler.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use neap_surface::lookup::{self, Scope};
use neap_surface::{foreign, older};
use neap_sys::{arch, global};

/// `std::align_val_t`, and the size where it is passed to delete.
type Word = usize;
/// `const std::nothrow_t&`.
type Nothrow = *const c_void;

/// A name as a C string.
macro_rules! string {
    ($($name:tt)+) => {
        const {
            match CStr::from_bytes_with_nul(concat!($($name)+, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a symbol has no zero byte"),
            }
        }
    };
}

/// A function of the C++ library: the one that neap is linked with, else the first in symbol order.
macro_rules! library {
    ($name:literal) => {{
        let linked = arch::weak!($name);
        if linked.is_null() { lookup::symbol(Scope::ALL, string!($name)) } else { linked }
    }};
}

/// The C++ library's operator of this name, or null. `own` is neap's operator, which is never the result.
#[cold]
fn theirs(name: &CStr, own: *mut c_void) -> *mut c_void {
    let next = lookup::symbol(Scope::BEHIND, name);
    if next.is_null() { lookup_in_objects(name, own) } else { next }
}

/// Longest path of an object that is searched. The stack may be short.
const LONGEST_PATH: usize = 1024;

/// An object that the program has loaded, found by its number in the list.
struct Object {
    /// Number of objects that still come before it.
    left: usize,
    path: [c_char; LONGEST_PATH],
}

/// Counts an object. Ends the walk with 1 at the wanted one, or with -1 if its path is too long.
unsafe extern "C" fn count_object(info: *mut libc::dl_phdr_info, _: usize, wanted: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr's contract: `info` is valid and has a path; `wanted` is the `Object` that it was given.
    let (wanted, path) = unsafe { (&mut *wanted.cast::<Object>(), CStr::from_ptr((*info).dlpi_name)) };
    if wanted.left > 0 {
        wanted.left -= 1;
        return 0;
    }
    let path = path.to_bytes_with_nul();
    if path.len() > wanted.path.len() {
        return -1;
    }
    wanted.path.iter_mut().zip(path).for_each(|(to, byte)| *to = c_char::from_ne_bytes([*byte]));
    1
}

/// The function of this name in any object that is loaded, except `own`. The C++ library may have come with a plug-in
/// that was opened with RTLD_LOCAL, as Python does, or be a part of it. Memory has run out, so this uses its stack
/// alone.
#[cold]
fn lookup_in_objects(name: &CStr, own: *mut c_void) -> *mut c_void {
    for n in 0.. {
        let mut object = Object { left: n, path: [0; LONGEST_PATH] };
        // SAFETY: dl_iterate_phdr calls the function with the `Object`, and the path is a string. The handle is open
        // while it is used.
        unsafe {
            match older::iterate()(Some(count_object), (&raw mut object).cast()) {
                0 => break,
                1 => {}
                _ => continue,
            }
            let handle = lookup::opened(CStr::from_ptr(object.path.as_ptr()));
            if handle.is_null() {
                continue;
            }
            let found = lookup::symbol(Scope(handle), name);
            libc::dlclose(handle);
            if !found.is_null() && found != own {
                return found;
            }
        }
    }
    null_mut()
}

/// The C++ library's function that throws bad_alloc, or null.
fn thrower() -> *mut c_void {
    library!("_ZSt17__throw_bad_allocv")
}

/// The function that a throwing operator calls next: the program's new handler, or one that throws bad_alloc.
extern "C" fn next_throwing() -> *mut c_void {
    // SAFETY: std::get_new_handler has this type; it may be called at any time.
    let get = unsafe { lookup::function::<extern "C" fn() -> *mut c_void>(library!("_ZSt15get_new_handlerv")) };
    let handler = get.map_or(null_mut(), |get| get());
    if handler.is_null() { throw_or_abort() } else { handler }
}

extern "C" fn throw_or_abort() -> *mut c_void {
    let throw = thrower();
    if throw.is_null() { libc::abort as *mut c_void } else { throw }
}

/// Stands for an alignment that is no power of two. 0 stands for the forms without an alignment.
const BAD: Word = 3;

/// The alignment that an operator was called with, or [`BAD`].
fn checked(align: Word) -> Word {
    if align.is_power_of_two() { align } else { BAD }
}

extern "C" fn retry(size: usize, align: usize) -> *mut u8 {
    match align {
        0 => global::malloc(size),
        BAD => null_mut(),
        align => global::malloc_aligned(size, align, false),
    }
}

/// An operator new after memory ran out. `symbol` is its name, `own` the operator itself, `nothrow` the argument of the
/// nothrow forms, which do not throw.
///
/// - A throwing form calls the new handler and tries again. Where the C++ library is visible only to the object that
///   needs it, the library's own operator of the same name does that.
/// - A nothrow form returns NULL if the new handler throws. Only C++ can catch that. So the C++ library's own operator
///   of the same name is called, which calls neap's throwing one in a `try`. Without that library in the process there
///   is no handler, unless the library is linked in statically.
#[cold]
#[inline(never)]
unsafe extern "C-unwind" fn failed(
    symbol: *const c_char,
    own: *mut c_void,
    size: usize,
    align: Word,
    throws: bool,
    nothrow: Nothrow,
) -> *mut c_void {
    type Throwing = unsafe extern "C-unwind" fn(usize, Word) -> *mut c_void;
    type Plain = unsafe extern "C" fn(usize, Nothrow) -> *mut c_void;
    type Aligned = unsafe extern "C" fn(usize, Word, Nothrow) -> *mut c_void;
    // SAFETY: `symbol` is a string: the name of an operator, whose type follows from its arguments; the throwing ones
    // may get an argument more than they take. The functions have the types that `new_loop` takes.
    unsafe {
        let symbol = CStr::from_ptr(symbol);
        if throws {
            if thrower().is_null()
                && let Some(theirs) = lookup::function::<Throwing>(theirs(symbol, own))
            {
                return theirs(size, align);
            }
            // More memory does not help a bad alignment, so no handler is called.
            let next = if align == BAD { throw_or_abort } else { next_throwing };
            return arch::new_loop(size, align, retry, next).cast();
        }
        let p = match align {
            0 => lookup::function::<Plain>(theirs(symbol, own)).map(|theirs| theirs(size, nothrow)),
            _ => lookup::function::<Aligned>(theirs(symbol, own)).map(|theirs| theirs(size, align, nothrow)),
        };
        p.unwrap_or(null_mut())
    }
}

macro_rules! new {
    ($($abi:literal $symbol:ident($($align:ident: Word)?; $($nothrow:ident)?) $what:literal;)*) => {$(
        #[doc = $what]
        ///
        /// # Safety
        /// As every C function.
        #[unsafe(no_mangle)]
        pub unsafe extern $abi fn $symbol(
            size: usize $(, $align: Word)? $(, $nothrow: Nothrow)?
        ) -> *mut c_void {
            let align = 0 $(+ checked($align))?;
            let p = retry(size, align);
            if p.is_null() {
                let nothrow = [core::ptr::null() $(, $nothrow)?];
                let (symbol, own) = (string!(stringify!($symbol)).as_ptr(), $symbol as *mut c_void);
                // SAFETY: its contract: the name and the address of this operator.
                return unsafe { failed(symbol, own, size, align, nothrow.len() == 1, nothrow[nothrow.len() - 1]) };
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
            // SAFETY: delete's contract; `foreign::free` takes what is not neap's.
            unsafe { global::free(p.cast(), foreign::free) }
        }
    )*};
}

new! {
    "C-unwind" _Znwm(;) "`operator new(size)`";
    "C-unwind" _Znam(;) "`operator new[](size)`";
    "C-unwind" _ZnwmSt11align_val_t(align: Word;) "`operator new(size, align)`";
    "C-unwind" _ZnamSt11align_val_t(align: Word;) "`operator new[](size, align)`";
    "C" _ZnwmRKSt9nothrow_t(; nothrow) "`operator new(size, nothrow)`";
    "C" _ZnamRKSt9nothrow_t(; nothrow) "`operator new[](size, nothrow)`";
    "C" _ZnwmSt11align_val_tRKSt9nothrow_t(align: Word; nothrow) "`operator new(size, align, nothrow)`";
    "C" _ZnamSt11align_val_tRKSt9nothrow_t(align: Word; nothrow) "`operator new[](size, align, nothrow)`";
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
