//! libneap_instrument.so: records the calls of a program that is compiled with `-finstrument-functions`.
//!
//! `neap order trace` preloads it. The compiler makes each function call `__cyg_profile_func_enter`, which counts in a
//! table that the program shares with neap (`record.rs`). The table uses open addressing, with one slot for each pair
//! of a function and a place that calls it. One compare-and-swap takes a slot, which is never given up. So threads and
//! signal handlers need no lock, and a killed program leaves its counts. No call allocates. From the C library it uses
//! `syscall`, errno, and the memory functions that compilers call.
//!
//! | what happens | what the library does |
//! |---|---|
//! | the program starts | the constructor opens the record, and finds the target in `/proc/self/maps` |
//! | a library is loaded later | the first call from an unknown mapping finds it in the same way |
//! | fork | the child finds `State` wiped by the kernel: it records nothing, unless neap follows |
//! | exec | the constructor finds the record's owner: the same process goes on, another one records nothing |
//!
//! May depend on the C library.
// The development build unwinds and takes the panic handler of `std`.
#![cfg_attr(panic = "abort", no_std)]
#[cfg(not(any(panic = "abort", debug_assertions)))]
compile_error!("a release build needs panic = \"abort\", as in the workspace's profile");

mod maps;
mod record;
mod sys;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use record::{Header, Slot};
use sys::{Errno, call, map, now, process};

/// Limit on the slots that are tried for a call.
const TRIES: u64 = 64;
/// Limit on the mappings without the target that are remembered.
const OTHERS: usize = 256;

/// The state that a call needs: on an OS page of its own, which the kernel wipes in the child of a fork.
#[repr(C, align(64))]
struct State {
    /// The beginning of the target's code.
    start: AtomicUsize,
    /// Its bytes; 0 where nothing is recorded.
    length: AtomicUsize,
    /// The table.
    table: AtomicPtr<Slot>,
    /// The number of its slots minus one.
    mask: AtomicU64,
    /// Whether this process made the OS page.
    own: AtomicBool,
    /// Whether a call is looking for the target.
    looking: AtomicBool,
}

/// Null until the record is open. The OS page stays mapped.
static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());
/// Null until the record is open. The mapping stays.
static HEADER: AtomicPtr<Header> = AtomicPtr::new(ptr::null_mut());
/// When the program began.
static BEGAN: AtomicU64 = AtomicU64::new(0);
/// Mappings without the target: beginnings and ends. A pair is written once, by the thread that got its index.
static OTHER: [[AtomicUsize; 2]; OTHERS] = [const { [const { AtomicUsize::new(0) }; 2] }; OTHERS];
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// Called when a function is entered: `function`, as the compiler names it, called from the place before `caller`. The
/// return address of this call lies in the function that was really entered, which may be a clone of the named one, or
/// contain it inlined.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn __cyg_profile_func_enter(_function: *const c_void, _caller: *const c_void) {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {}", sym enter)
}

/// The same for processors on which only the compiler's name of the entered function is used.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
extern "C" fn __cyg_profile_func_enter(function: *const c_void, caller: *const c_void) {
    enter(function, caller, function.wrapping_byte_add(1));
}

/// Called when a function is left.
#[unsafe(no_mangle)]
extern "C" fn __cyg_profile_func_exit(_function: *const c_void, _caller: *const c_void) {}

extern "C" fn enter(function: *const c_void, caller: *const c_void, inside: *const c_void) {
    // SAFETY: it is null, or points to a page that stays mapped.
    let Some(state) = (unsafe { STATE.load(Acquire).as_ref() }) else { return };
    // Pairs with the store in `begin`: with this length, the others are there.
    let length = state.length.load(Acquire);
    let start = state.start.load(Relaxed);
    let offset = |address: *const c_void| {
        let offset = address.addr().wrapping_sub(start);
        if offset < length { offset as u32 } else { 0 }
    };
    let at = offset(inside);
    if at == 0 {
        if outside(inside.addr(), state) {
            enter(function, caller, inside);
        }
        return;
    }
    let key = u64::from(at) << 32 | u64::from(offset(caller));
    let mask = state.mask.load(Relaxed);
    let first = hash(key);
    for step in 0..TRIES {
        let place = (first.wrapping_add(step) & mask) as usize;
        // SAFETY: the table has one slot more than the mask, and stays mapped.
        let slot = unsafe { &*state.table.load(Relaxed).add(place) };
        let found = slot.key.load(Relaxed);
        if found == key || (found == 0 && take(slot, key, offset(function))) {
            slot.count.store(slot.count.load(Relaxed) + 1, Relaxed);
            return;
        }
    }
    if let Some(header) = header() {
        header.dropped.fetch_add(1, Relaxed);
    }
}

fn hash(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// Takes an empty slot. False if another thread took it first, with another key.
#[cold]
fn take(slot: &Slot, key: u64, function: u32) -> bool {
    if let Err(other) = slot.key.compare_exchange(0, key, Relaxed, Relaxed) {
        return other == key;
    }
    let Some(header) = header() else { return true };
    slot.function.store(function, Relaxed);
    slot.first.store(now(), Relaxed);
    slot.order.store(header.used.fetch_add(1, Relaxed) as u32 + 1, Relaxed);
    true
}

/// Handles a call from code that is not known to be the target's. Returns whether it is now.
#[cold]
fn outside(address: usize, state: &State) -> bool {
    let Some(header) = header() else { return false };
    let known = KNOWN.load(Acquire).min(OTHERS);
    let within = |pair: &[AtomicUsize; 2]| (pair[0].load(Relaxed)..pair[1].load(Relaxed)).contains(&address);
    if known == OTHERS || OTHER[..known].iter().any(within) {
        return false;
    }
    let copied = !state.own.load(Relaxed);
    if copied && header.follow == 0 || state.looking.swap(true, Acquire) {
        return false;
    }
    look(header, state, Some(address));
    state.looking.store(false, Release);
    let (start, length) = (state.start.load(Relaxed), state.length.load(Relaxed));
    (start + 1..start + length).contains(&address)
}

/// Looks for the target. A mapping without it that the call came from is remembered. Leaves errno alone.
fn look(header: &Header, state: &State, address: Option<usize>) {
    let errno = Errno::keep();
    let found = maps::find(header, address);
    match found {
        Ok(maps::Found { target: Some(target), .. }) if target.end - target.start <= u32::MAX as usize => {
            let own = process();
            let owner = header.owner.compare_exchange(0, own, Relaxed, Relaxed).unwrap_or_else(|owner| owner);
            if owner == 0 {
                header.began.store(BEGAN.load(Relaxed), Relaxed);
                header.offset.store(target.offset, Relaxed);
            }
            if owner == 0 || owner == own || header.follow != 0 {
                begin(header, state, &target);
            }
        }
        Ok(_) => {}
        Err(error) => header.failed.store(error as u32, Relaxed),
    }
    if let Ok(maps::Found { other: Some((start, end)), .. }) = found {
        let known = KNOWN.load(Relaxed);
        if let Some(pair) = OTHER.get(known) {
            pair[0].store(start, Relaxed);
            pair[1].store(end, Relaxed);
        }
        // Pairs with the load in `outside`.
        KNOWN.store(known + 1, Release);
    }
    errno.restore();
}

fn begin(header: &Header, state: &State, target: &maps::Mapping) {
    let table = ptr::from_ref(header).wrapping_byte_add(record::TABLE_AT).cast_mut().cast();
    state.length.store(0, Relaxed);
    state.table.store(table, Relaxed);
    state.mask.store(header.slots - 1, Relaxed);
    state.start.store(target.start, Relaxed);
    // Pairs with the load in `enter`.
    state.length.store(target.end - target.start, Release);
}

fn header() -> Option<&'static Header> {
    // SAFETY: it is null, or points to a header in a mapping that stays.
    unsafe { HEADER.load(Acquire).as_ref() }
}

/// glibc and musl pass the arguments of `main` to constructors.
extern "C" fn start(_count: c_int, _arguments: *const *const c_char, environment: *const *const c_char) {
    let errno = Errno::keep();
    BEGAN.store(now(), Relaxed);
    if let Some(path) = variable(environment)
        && let Some(header) = open(path)
    {
        let owner = header.owner.load(Relaxed);
        if owner == 0 || owner == process() || header.follow != 0 {
            prepare(header);
        }
    }
    errno.restore();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// The value of the variable with the record's path.
fn variable(mut environment: *const *const c_char) -> Option<&'static CStr> {
    loop {
        // SAFETY: the list ends with null, and this is not behind its end.
        let text = unsafe { *environment };
        if text.is_null() {
            return None;
        }
        // SAFETY: each of the list is a C string. The program may change it later, but this is its first constructor.
        let bytes = unsafe { CStr::from_ptr(text) }.to_bytes_with_nul();
        if let Some(value) = bytes.strip_prefix(record::VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
            return CStr::from_bytes_with_nul(value).ok();
        }
        environment = environment.wrapping_add(1);
    }
}

/// Maps the record.
fn open(path: &CStr) -> Option<&'static Header> {
    const END: usize = libc::SEEK_END as usize;
    let (at, flags) = (libc::AT_FDCWD as usize, (libc::O_RDWR | libc::O_CLOEXEC) as usize);
    let file = call(libc::SYS_openat, [at, path.as_ptr().expose_provenance(), flags]).ok()?;
    let size = call(libc::SYS_lseek, [file, 0, END]).ok().filter(|&size| size >= record::TABLE_AT);
    let mapped = size.and_then(|size| map(size, libc::MAP_SHARED, file).ok());
    let _ = call(libc::SYS_close, [file]);
    // SAFETY: the mapping is that long, page-aligned, and stays; all fields are integers, and those that change are
    // atomic.
    let header = unsafe { &*mapped?.cast::<Header>() };
    let whole = header.magic == record::MAGIC
        && header.slots.is_power_of_two()
        && header.path_length as usize <= record::PATH
        && size == usize::try_from(record::size(header.slots)).ok();
    whole.then_some(header)
}

/// Makes the OS page of the state, and looks for the target.
fn prepare(header: &'static Header) {
    const SIZE: usize = size_of::<State>();
    let wipe = |page: *mut c_void| {
        call(libc::SYS_madvise, [page.expose_provenance(), SIZE, libc::MADV_WIPEONFORK as usize]).map(|_| page)
    };
    match map(SIZE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, usize::MAX).and_then(wipe) {
        Ok(page) => {
            HEADER.store(ptr::from_ref(header).cast_mut(), Release);
            // SAFETY: the mapping is large and aligned enough, and zeros are values of atomic integers and booleans.
            let state = unsafe { &*page.cast::<State>() };
            state.own.store(true, Relaxed);
            look(header, state, None);
            STATE.store(page.cast(), Release);
        }
        Err(error) => header.failed.store(error as u32, Relaxed),
    }
}

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: abort takes nothing.
    unsafe { libc::abort() }
}

// Precompiled parts of `core` name this symbol in their unwind tables. Nothing here unwinds, so it is never called.
#[cfg(panic = "abort")]
core::arch::global_asm!(".hidden rust_eh_personality", ".globl rust_eh_personality", ".set rust_eh_personality, 0",);
