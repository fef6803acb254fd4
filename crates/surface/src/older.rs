//! The functions of the C library that are in libpthread.so.0 and libdl.so.2 up to glibc 2.33, and in libc.so.6 since;
//! and two that only one of glibc and musl has.
//!
//! A reference to one of them would bind to the version of the C library that neap is linked with, GLIBC_2.34 or newer,
//! and an older one would refuse to load the library. So in `libneap.so` the linker puts the functions below in their
//! place (`build.rs` of `neap-preload`). At the first call, they look the C library's function up in the tables of the
//! loaded objects. Up to glibc 2.33 there may be none: a program without threads has no libpthread.so.0. musl has all
//! except dlvsym. `libneap.a` is linked with the C library that it will run on, and uses that one's functions directly.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{pthread_attr_t, pthread_key_t, pthread_t};
use neap_sys::{errno, musl, symbol_in, symbol_in_list};

/// The function at an address that a look-up returned; `None` for null.
///
/// # Safety
/// `F` must be a type of function pointer, that of the function which has the name.
pub unsafe fn function<F: Copy>(address: *mut c_void) -> Option<F> {
    const { assert!(size_of::<Option<F>>() == size_of::<*mut c_void>(), "a function pointer, of which none is null") };
    // SAFETY: a function pointer has the bits of its address, and `None` those of null; as the caller promises.
    unsafe { core::mem::transmute_copy(&address) }
}

/// The C library's function of this name; null where it is not loaded (yet).
fn find(name: &CStr, cell: &AtomicPtr<c_void>) -> *mut c_void {
    // Relaxed: the function was there before.
    let mut found = cell.load(Ordering::Relaxed);
    if found.is_null() {
        found = function_of_libc(name);
        cell.store(found, Ordering::Relaxed);
    }
    found
}

/// The objects that are the C library. Up to glibc 2.33 the last two have functions of their own.
const OF_LIBC: [&[u8]; 3] = [b"libc.so.6", b"libpthread.so.0", b"libdl.so.2"];

#[inline(never)]
fn is_libc(path: &[u8]) -> bool {
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    OF_LIBC.contains(&file) || musl::is_name(file)
}

/// The function of this name in any loaded object of the C library; null if none has it.
pub fn function_of_libc(name: &CStr) -> *mut c_void {
    first(name, |object| object.is_libc())
}

/// The function of this name in the first object that has it, in the order of loading; null if none has it. Unless
/// `all`, only objects behind this library are searched. For processes without a dlsym.
pub fn function_in_order(name: &CStr, all: bool) -> *mut c_void {
    let mut from_here = all;
    first(name, |object| {
        let is_searched = from_here;
        from_here |= object.is_own();
        is_searched
    })
}

/// The function of this name in the first of the searched objects that has it; else null.
fn first(name: &CStr, mut is_searched: impl FnMut(&Object<'_>) -> bool) -> *mut c_void {
    let mut found = null_mut();
    walk(|object| {
        if is_searched(object) {
            found = object.symbol(name.to_bytes());
        }
        !found.is_null()
    });
    found
}

/// Calls `f` for the objects behind this library and in front of the C library.
pub fn each_in_front_of_libc(mut f: impl FnMut(&Object<'_>)) {
    let mut behind = false;
    walk(|object| {
        let ends = behind && object.is_libc();
        if behind && !ends {
            f(object);
        }
        behind |= object.is_own();
        ends
    });
}

/// A loaded object.
pub struct Object<'a> {
    path: &'a [u8],
    headers: &'a [libc::Elf64_Phdr],
    bias: usize,
}

impl Object<'_> {
    /// The address of a symbol; null where it has none.
    pub fn symbol(&self, name: &[u8]) -> *mut c_void {
        // SAFETY: the object is mapped; the dynamic linker's lock keeps it while it is searched.
        let found = unsafe { symbol_in(self.headers, self.bias, name) };
        found.map_or(null_mut(), <*const c_void>::cast_mut)
    }

    fn is_libc(&self) -> bool {
        is_libc(self.path)
    }

    /// Whether it is this library.
    #[inline(never)]
    fn is_own(&self) -> bool {
        let own = function_of_libc as *const () as usize;
        self.headers.iter().any(|header| {
            let offset = own.wrapping_sub(self.bias.wrapping_add(header.p_vaddr as usize));
            header.p_type == libc::PT_LOAD && offset < header.p_memsz as usize
        })
    }
}

/// Walks the list of objects, in the order of loading, until `visit` returns true. Meanwhile a lock of the dynamic
/// linker's is held. Allocates nothing.
fn walk<F: FnMut(&Object<'_>) -> bool>(mut visit: F) {
    // SAFETY: the function gets what it expects.
    unsafe { iterate()(Some(visit_object::<F>), (&raw mut visit).cast()) };
}

type Callback = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
type Iterate = unsafe extern "C" fn(Option<Callback>, *mut c_void) -> c_int;

/// The C library's dl_iterate_phdr. An object in front of the C library (fakechroot) may have a function of this name
/// that looks up the C library's by dlsym. It would call neap's dlsym, which needs this function for its first call.
#[inline(never)]
pub fn iterate() -> Iterate {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    // Relaxed: the function was there before.
    let mut found = FOUND.load(Ordering::Relaxed);
    if found.is_null() {
        let first = libc::dl_iterate_phdr as *const c_void;
        found = symbol_in_list(c"dl_iterate_phdr", first, is_libc).unwrap_or(first).cast_mut();
        FOUND.store(found, Ordering::Relaxed);
    }
    // SAFETY: both are functions of this type.
    unsafe { function(found) }.unwrap_or(libc::dl_iterate_phdr)
}

/// Calls the visit for an object. Ends the walk of dl_iterate_phdr if the visit returns true.
unsafe extern "C" fn visit_object<F: FnMut(&Object<'_>) -> bool>(
    info: *mut libc::dl_phdr_info,
    _: usize,
    visit: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr's contract: `info`, its path and the program headers are valid; `visit` is what it was
    // given.
    let (visit, object) = unsafe {
        let info = &*info;
        let headers = core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let path = CStr::from_ptr(info.dlpi_name).to_bytes();
        (&mut *visit.cast::<F>(), Object { path, headers, bias: info.dlpi_addr as usize })
    };
    c_int::from(visit(&object))
}

/// Defines a function that calls the C library's of another name, or returns `$none` where that is not loaded. Its
/// symbol, which `build.rs` of `neap-preload` names, is not exported.
macro_rules! in_place_of {
    ($name:literal, $symbol:literal, $own:ident($($a:ident: $t:ty),*) -> $r:ty, $none:expr) => {
        unsafe extern "C" fn $own($($a: $t),*) -> $r {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            type Function = Option<unsafe extern "C" fn($($t),*) -> $r>;
            // SAFETY: the function of this name has this type, and null stands for none; as the caller promises.
            unsafe { core::mem::transmute::<*mut c_void, Function>(find($name, &FOUND)).map_or($none, |f| f($($a),*)) }
        }
        core::arch::global_asm!(
            concat!(".hidden ", $symbol),
            concat!(".globl ", $symbol),
            concat!(".set ", $symbol, ", {own}"),
            own = sym $own,
        );
    };
}

/// The function that a child of `clone` runs.
pub type Child = extern "C" fn(*mut c_void) -> c_int;
/// The type of the C library's `clone` and `__clone`.
pub type Clone = unsafe extern "C" fn(
    Option<Child>,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// glibc's `__clone`, or musl's `clone` with its result changed to that of musl's `__clone`.
unsafe extern "C" fn other_clone(
    f: Option<Child>,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent: *mut c_void,
    tls: *mut c_void,
    child: *mut c_void,
) -> c_int {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let is_musl = musl::is_here();
    let found = find(if is_musl { c"clone" } else { c"__clone" }, &FOUND);
    // SAFETY: both functions have this type; as the caller promises.
    let Some(clone) = (unsafe { function::<Clone>(found) }) else { return -libc::ENOSYS };
    // SAFETY: as the caller promises.
    let result = unsafe { clone(f, stack, flags, arg, parent, tls, child) };
    if result < 0 && is_musl { -errno::get() } else { result }
}

core::arch::global_asm!(
    ".hidden neap___clone",
    ".globl neap___clone",
    ".set neap___clone, {own}",
    own = sym other_clone,
);

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Handler = Option<unsafe extern "C" fn()>;
type AtEnd = Option<unsafe extern "C" fn(*mut c_void)>;

in_place_of!(c"dlclose", "neap_dlclose", dlclose(handle: *mut c_void) -> c_int, -1);
in_place_of!(
    c"dlvsym", "neap_dlvsym",
    dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void, null_mut()
);
in_place_of!(
    c"pthread_atfork", "neap_pthread_atfork",
    pthread_atfork(before: Handler, parent: Handler, child: Handler) -> c_int, libc::ENOSYS
);
in_place_of!(
    c"pthread_create", "neap_pthread_create",
    pthread_create(thread: *mut pthread_t, how: *const pthread_attr_t, start: Start, with: *mut c_void) -> c_int,
    libc::ENOSYS
);
in_place_of!(
    c"pthread_join", "neap_pthread_join",
    pthread_join(thread: pthread_t, result: *mut *mut c_void) -> c_int, libc::ENOSYS
);
in_place_of!(
    c"pthread_key_create", "neap_pthread_key_create",
    pthread_key_create(key: *mut pthread_key_t, at_end: AtEnd) -> c_int, libc::ENOSYS
);
in_place_of!(
    c"pthread_key_delete", "neap_pthread_key_delete", pthread_key_delete(key: pthread_key_t) -> c_int, libc::ENOSYS
);
in_place_of!(
    c"pthread_setspecific", "neap_pthread_setspecific",
    pthread_setspecific(key: pthread_key_t, value: *const c_void) -> c_int, libc::ENOSYS
);
