//! Finds the callers of malloc: the frames of the calling thread's stack, from outside of this library on.
//!
//! Callers are found by the tables of `.eh_frame`. Those of this library are looked up at the first use; those of other
//! objects come from the C library's `_dl_find_object`. Neither takes a lock. In code without tables, callers are found
//! by frame pointers; callers of code that a signal has interrupted, by its registers. Only memory that is known to be
//! readable is read: the first thread's stack up to its arguments, and elsewhere OS pages that a system call has just
//! read.

use crate::arch;
use crate::observe::linker::{self, may_read};
use crate::observe::once::Lazily;
use crate::system::call;
use crate::system::call::READ_WRITE;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use neap_samples::{FRAMES, Module};
use neap_sites::unwind::{Frame, Row, Tables, by_frame_pointer};
use rustix::mm::MapFlags;

/// Limit of frames that are followed, including those of this library.
const MOST_FRAMES: usize = FRAMES + 16;
/// Limit of bytes up from the stack pointer that are read.
const REACH: u64 = 8 << 20;
/// Longest distance from a stack pointer in the first thread's stack to the stack's end. Nothing else lies this near
/// below the end.
const FIRST_REACH: u64 = 64 << 20;
/// Number of rows that are kept, by instruction.
const ROWS: usize = 2048;

/// What [`callers`] needs.
#[derive(Debug)]
struct Known {
    /// The tables of this library; `None` where it is part of the program: then they are found as those of others.
    tables: Option<Tables<'static>>,
    /// The addresses of this library's code; empty where it is part of the program.
    code: Range<u64>,
    /// `_dl_find_object`, if the C library has it.
    find_object: Option<FindObject>,
    /// An address at the end of the first thread's stack; 0: not known.
    stack_end: u64,
    /// The packed row of an instruction, and the row combined (by XOR) with the instruction and the number of its
    /// object. So a pair is recognised as invalid if two threads wrote one word each, or if its code was unloaded.
    rows: &'static [[AtomicU64; 2]; ROWS],
}

static KNOWN: Lazily<Known> = Lazily::new();

/// What [`callers`] needs, found now where it is not known yet. `None` where there is no memory, or another thread is
/// about to find it.
fn known() -> Option<&'static Known> {
    KNOWN.get_or_make(|| {
        let (tables, code) = linker::own().map_or((None, 0..0), |(tables, code)| (Some(tables), code));
        let len = size_of::<[[AtomicU64; 2]; ROWS]>();
        let rows = call::fresh(0, len, READ_WRITE, MapFlags::PRIVATE)?;
        // SAFETY: the C library's function of this name has this type. The mapping is new, zeroed, and never unmapped.
        let (find_object, rows) = unsafe {
            let found = linker::symbol_of_libc(c"_dl_find_object");
            (core::mem::transmute::<*const c_void, Option<FindObject>>(found), &*rows.cast())
        };
        // The name of the program lies at the end of the first thread's stack, behind all that is read here.
        let stack_end = call::auxiliary(libc::AT_EXECFN) as u64 & !7;
        Some(Known { tables, code, find_object, stack_end, rows })
    })
}

/// Prepares [`callers`]. False if there is no memory.
pub fn start() -> bool {
    known().is_some()
}

/// Populates the memory that [`callers`] writes to at random places, so that these writes are no page faults in a
/// trace. To be called again in a child.
pub fn populate_rows() {
    if let Some(known) = known() {
        let rows = core::ptr::from_ref(known.rows);
        let _ = call::populate(rows.cast_mut().cast(), size_of_val(known.rows));
    }
}

/// Passes the callers to `push`, from outside of this library on, until it returns false.
#[inline(never)]
pub fn callers(push: &mut dyn FnMut(u64) -> bool) {
    follow(arch::frame(), push);
}

/// Passes the instruction of a frame of the calling thread, which a signal has interrupted, to `push`, and its callers
/// as [`callers`] does.
#[inline(never)]
pub fn interrupted(frame: Frame, push: &mut dyn FnMut(u64) -> bool) {
    let own = known().is_some_and(|known| known.code.contains(&frame.ip));
    if own || push(frame.ip) {
        follow(frame, push);
    }
}

/// Passes the callers of a frame to `push`, as [`callers`] does. Inlined: if this were the last call of `callers`, it
/// might replace the frame that it starts from.
#[inline(always)]
fn follow(mut frame: Frame, push: &mut dyn FnMut(u64) -> bool) {
    let Some(known) = known() else { return };
    let mut stack = Stack::new(frame.sp, known.stack_end);
    let mut object = Object::NONE;
    let mut read = |address| stack.word(address);
    for depth in 0..MOST_FRAMES {
        // A return address can be that of the next function.
        let at = if depth == 0 { frame.ip } else { frame.ip.wrapping_sub(1) };
        let own = known.code.contains(&at);
        let caller = match known.row(at, own, &mut object) {
            Some(row) => row.caller(frame, &mut read),
            None if own => None,
            None => by_frame_pointer(frame, &mut read),
        };
        let Some(caller) = caller.filter(|caller| caller.ip != 0) else { return };
        frame = caller;
        if !known.code.contains(&frame.ip.wrapping_sub(1)) && !push(frame.ip) {
            return;
        }
    }
}

/// The path of the object that has the code at `at` now, and the link-time address of that code. `None` where there is
/// none, or the C library cannot say. The program itself has no path. The code may be on no stack, so this first checks
/// that what it reads is mapped; an object that another thread unloads at this moment may still be unmapped in between.
pub fn object_at(at: u64) -> Option<(&'static [u8], u64)> {
    let found = find(known()?.find_object?, at)?;
    let entry = found.link_map.expose_provenance() as u64;
    if !may_read(entry) || !may_read(entry + 8) {
        return None;
    }
    // SAFETY: both words of the link map were readable just now. The second is the path.
    let (bias, path) = unsafe { (*found.link_map, found.link_map.add(1).cast::<*const c_char>().read()) };
    let readable = !path.is_null() && may_read(path.expose_provenance() as u64 & !7);
    // SAFETY: the string is the dynamic linker's, and its first byte was readable just now.
    let path = if readable { unsafe { CStr::from_ptr(path) }.to_bytes() } else { &[] };
    Some((path, at.wrapping_sub(bias as u64)))
}

/// Runs `f` with the object whose code is at a return address of the calling thread's stack; `None` where there is
/// none, or the C library cannot say.
pub fn with_module<R>(at: u64, f: impl FnOnce(&Module<'_>) -> R) -> Option<R> {
    let found = find(known()?.find_object?, at)?;
    // SAFETY: an object that is on the stack stays loaded, with its link map, whose second word is its path. Its first
    // OS page is mapped.
    unsafe {
        let path = found.link_map.add(1).cast::<*const c_char>().read();
        let path = if path.is_null() { &[] } else { CStr::from_ptr(path).to_bytes() };
        let headers = linker::headers(found.start, found.end.addr() - found.start.addr());
        let bias = *found.link_map;
        let build = headers.and_then(|headers| linker::build_id(headers, bias)).unwrap_or(&[]);
        let code = headers.map_or([0; 3], |headers| linker::code_at(headers, bias, at));
        let (start, end) = (found.start.addr() as u64, found.end.addr() as u64);
        Some(f(&Module { start, end, bias: bias as u64, code, build, path }))
    }
}

impl Known {
    /// The row of the tables that says how to find the caller of the code at `at`. `object` is that of the frame
    /// before, and then of this one.
    fn row(&self, at: u64, own: bool, object: &mut Object) -> Option<Row> {
        if !own && !object.range.contains(&at) {
            *object = Object::at(self.find_object?, at)?;
        }
        let (tables, number) = if own { (self.tables?, 0) } else { (object.tables?, object.number) };
        let [packed, combined] = &self.rows[(at ^ at >> 11) as usize % ROWS];
        // Relaxed: a pair of words from two stores does not combine to the instruction.
        let (row, sum) = (packed.load(Ordering::Relaxed), combined.load(Ordering::Relaxed));
        if row != 0 && row ^ sum == at ^ number {
            return Some(Row::unpack(row));
        }
        let row = tables.row(at)?;
        packed.store(row.pack(), Ordering::Relaxed);
        combined.store(row.pack() ^ at ^ number, Ordering::Relaxed);
        Some(row)
    }
}

/// An object that has code on the stack.
struct Object {
    /// Its addresses.
    range: Range<u64>,
    /// A number that stands for it: another one for an object that was loaded in its place, if that has a build id.
    number: u64,
    tables: Option<Tables<'static>>,
}

impl Object {
    const NONE: Object = Object { range: 0..0, number: 0, tables: None };

    /// The object that has the code at an address; `None` if there is none.
    fn at(find_object: FindObject, at: u64) -> Option<Object> {
        let found = find(find_object, at)?;
        let (start, end) = (found.start.addr(), found.end.addr());
        // SAFETY: an object that is on the stack stays loaded, with its link map. Its first OS page is mapped.
        let (tables, build) = unsafe {
            let (headers, bias) = (linker::headers(found.start, end - start), *found.link_map);
            let with_tables = headers.filter(|_| !found.tables.is_null());
            let tables = with_tables.and_then(|headers| linker::tables_in(headers, bias, found.tables.addr()));
            (tables, headers.and_then(|headers| linker::build_id(headers, bias)).unwrap_or(&[]))
        };
        let places = [start, end, found.tables.addr(), found.link_map.addr()].map(|place| place as u64);
        let sum = |sum: u64, word: u64| (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let number = places.into_iter().fold(0, sum);
        let number = build.iter().fold(number, |number, &byte| sum(number, byte.into()));
        Some(Object { range: start as u64..end as u64, number, tables })
    }
}

/// The C library's `struct dl_find_object`, with room for what it may add.
#[repr(C)]
struct Found {
    flags: u64,
    start: *const u8,
    end: *const u8,
    /// Begins with the load bias.
    link_map: *const usize,
    tables: *const u8,
    reserved: [u64; 16],
}

/// The C library's `_dl_find_object`: returns 0 where an object is at the address.
type FindObject = unsafe extern "C" fn(*mut c_void, *mut Found) -> c_int;

/// What the C library knows of the object at an address.
fn find(find_object: FindObject, at: u64) -> Option<Found> {
    let mut found = Found {
        flags: 0,
        start: core::ptr::null(),
        end: core::ptr::null(),
        link_map: core::ptr::null(),
        tables: core::ptr::null(),
        reserved: [0; 16],
    };
    // SAFETY: the function takes any address, and writes to `found`.
    let result = unsafe { find_object(core::ptr::with_exposed_provenance_mut(at as usize), &raw mut found) };
    (result == 0 && !found.link_map.is_null()).then_some(found)
}

/// Reads the stack of the calling thread.
struct Stack {
    first: u64,
    /// All is readable up to this address; 0 where that is not known.
    end: u64,
    /// The last OS page that was found readable.
    page: u64,
}

/// The shortest OS page.
const PAGE: u64 = 4096;

impl Stack {
    fn new(sp: u64, end: u64) -> Self {
        let known = end.wrapping_sub(sp) < FIRST_REACH;
        Self { first: sp, end: if known { end } else { 0 }, page: sp / PAGE }
    }

    /// The word at an address of the stack.
    fn word(&mut self, address: u64) -> Option<u64> {
        if !address.is_multiple_of(8) || address.wrapping_sub(self.first) >= REACH {
            return None;
        }
        if self.end != 0 {
            (address < self.end).then_some(())?;
        } else if address / PAGE != self.page {
            may_read(address).then_some(())?;
            self.page = address / PAGE;
        }
        // SAFETY: the address is aligned, and its page is readable: the thread's own stack, which is not unmapped.
        Some(unsafe { core::ptr::with_exposed_provenance::<u64>(address as usize).read_volatile() })
    }
}
