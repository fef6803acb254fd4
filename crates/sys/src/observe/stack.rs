//! Finds the callers of malloc: the frames of the calling thread's stack, from outside of this library on.
//!
//! Callers are found by the tables of `.eh_frame`. Those of this library are looked up at the start; those of others
//! come from the C library's `_dl_find_object`, which takes no lock. Where there are no tables, callers are found by
//! frame pointers. Only memory that is known to be readable is read: the first thread's stack up to its arguments, and
//! elsewhere OS pages that a system call has just read.

use crate::arch;
use crate::system::call;
use crate::system::filter::Asking;
use crate::system::map::{self, READ_WRITE};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use neap_sites::unwind::{Frame, Row, Tables, by_frame_pointer};
use neap_sites::{Entry, FRAMES};
use rustix::mm::MapFlags;

/// Limit of frames that are followed, with those of the library.
const MOST_FRAMES: usize = FRAMES + 16;
/// Limit of bytes up from the stack pointer that are read.
const REACH: u64 = 8 << 20;
/// Longest distance from a stack pointer in the first thread's stack to the stack's end. Nothing else lies this near
/// below the end.
const FIRST_REACH: u64 = 64 << 20;
/// Number of rows that are kept, by instruction.
const ROWS: usize = 2048;
const ROWS_BYTES: usize = ROWS * size_of::<[AtomicU64; 2]>();
/// Bytes at the front of an object that are always mapped.
const FRONT: usize = 4096;

/// An address at the end of the first thread's stack; 0: not known.
static STACK_END: AtomicU64 = AtomicU64::new(0);
/// `_dl_find_object`, or null.
static FIND_OBJECT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// [`ROWS`] pairs: the packed row of an instruction, and the row combined (by XOR) with the instruction. So a pair of
/// which two threads wrote one word each is recognised.
static KNOWN: AtomicPtr<[AtomicU64; 2]> = AtomicPtr::new(core::ptr::null_mut());
/// The first address of this library's code, and the one behind it.
static CODE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The tables of this library.
static OWN: Own = Own(UnsafeCell::new(None));

struct Own(UnsafeCell<Option<Tables<'static>>>);

// SAFETY: written by `start` alone, while the process has one thread; from then on it is only read.
unsafe impl Sync for Own {}

/// Prepares [`callers`]. `stack_end` is an address at the end of the calling thread's stack, or 0. False if this
/// library has no tables, or there is no memory.
///
/// # Safety
/// To be called once, while the process has one thread; up to `stack_end` there must be nothing but its stack.
pub unsafe fn start(stack_end: usize) -> bool {
    let Some(own) = own_tables() else { return false };
    // SAFETY: no other thread reads it now. The function is found by its name.
    let find_object = unsafe {
        *OWN.0.get() = Some(own);
        libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr())
    };
    let rows = map::fresh(0, ROWS_BYTES, READ_WRITE, MapFlags::PRIVATE);
    // Relaxed, here and below: the process has one thread.
    FIND_OBJECT.store(find_object, Ordering::Relaxed);
    KNOWN.store(rows.unwrap_or(core::ptr::null_mut()).cast(), Ordering::Relaxed);
    STACK_END.store(stack_end as u64 & !7, Ordering::Relaxed);
    rows.is_some()
}

/// The memory that [`callers`] writes to at random places. The caller populates it, so that these writes are no page
/// faults in a trace, also not in a child.
pub fn rows() -> (*mut u8, usize) {
    (KNOWN.load(Ordering::Relaxed).cast(), ROWS_BYTES)
}

/// Fills in the callers, from outside of this library on.
#[inline(never)]
pub fn callers(entry: &mut Entry) {
    let (ip, sp, bp) = arch::frame();
    let mut stack = Stack::new(sp);
    let mut frame = Frame { ip, sp, bp };
    let [first, end] = CODE.each_ref().map(|address| address.load(Ordering::Relaxed) as u64);
    let mut read = |address| stack.word(address);
    for depth in 0..MOST_FRAMES {
        // A return address can be that of the next function.
        let at = if depth == 0 { frame.ip } else { frame.ip.wrapping_sub(1) };
        let own = (first..end).contains(&at);
        let caller = match row(at, own) {
            Some(row) => row.caller(frame, &mut read),
            None if own => None,
            None => by_frame_pointer(frame, &mut read),
        };
        let Some(caller) = caller.filter(|caller| caller.ip != 0) else { return };
        frame = caller;
        if !(first..end).contains(&frame.ip.wrapping_sub(1)) && !entry.push(frame.ip) {
            return;
        }
    }
}

/// The row of the tables that says how to find the caller of the code at `at`.
fn row(at: u64, own: bool) -> Option<Row> {
    let rows = KNOWN.load(Ordering::Relaxed);
    let index = (at ^ at >> 11) as usize % ROWS;
    // SAFETY: there are as many pairs, never unmapped.
    let [packed, combined] = unsafe { &*rows.add(index) };
    // Relaxed: a pair that is mixed of two does not combine to the instruction.
    let (row, sum) = (packed.load(Ordering::Relaxed), combined.load(Ordering::Relaxed));
    if row != 0 && row ^ sum == at {
        return Some(Row::unpack(row));
    }
    // SAFETY: written by `start` alone, before.
    let tables = if own { unsafe { *OWN.0.get() } } else { other_tables(at) };
    let row = tables?.row(at)?;
    packed.store(row.pack(), Ordering::Relaxed);
    combined.store(row.pack() ^ at, Ordering::Relaxed);
    Some(row)
}

/// The C library's `struct dl_find_object`, with room for what it may add.
#[repr(C)]
struct Found {
    flags: u64,
    start: *const u8,
    end: *const u8,
    /// Begins with the address that is added to those that the object states.
    link_map: *const usize,
    tables: *const u8,
    reserved: [u64; 16],
}

/// The tables of the object at an address.
fn other_tables(at: u64) -> Option<Tables<'static>> {
    let find = FIND_OBJECT.load(Ordering::Relaxed);
    if find.is_null() {
        return None;
    }
    let mut found = Found {
        flags: 0,
        start: core::ptr::null(),
        end: core::ptr::null(),
        link_map: core::ptr::null(),
        tables: core::ptr::null(),
        reserved: [0; 16],
    };
    // SAFETY: the C library's function has this type, and takes any address.
    let known = unsafe {
        let find = core::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void, *mut Found) -> c_int>(find);
        find(core::ptr::with_exposed_provenance_mut(at as usize), &raw mut found) == 0
    };
    if !known || found.tables.is_null() || found.link_map.is_null() {
        return None;
    }
    // SAFETY: an object that is on the stack stays loaded. Its first page is mapped, and has the file header unless the
    // magic differs. The header says where the program headers are.
    unsafe {
        let length = found.end.addr() - found.start.addr();
        if length < size_of::<libc::Elf64_Ehdr>() {
            return None;
        }
        let header = found.start.cast::<libc::Elf64_Ehdr>().read();
        let (offset, count) = (header.e_phoff as usize, usize::from(header.e_phnum));
        if !header.e_ident.starts_with(b"\x7fELF")
            || !offset.is_multiple_of(8)
            || offset.checked_add(count * size_of::<libc::Elf64_Phdr>())? > FRONT
        {
            return None;
        }
        let headers = core::slice::from_raw_parts(found.start.add(offset).cast::<libc::Elf64_Phdr>(), count);
        tables_in(headers, *found.link_map, found.tables.addr())
    }
}

/// The tables at `tables` of an object, with the segment that they lie in.
///
/// # Safety
/// The headers must be those of an object that is mapped and stays so, `bias` what is added to its addresses.
unsafe fn tables_in(headers: &[libc::Elf64_Phdr], bias: usize, tables: usize) -> Option<Tables<'static>> {
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_R != 0) {
        let start = bias.wrapping_add(header.p_vaddr as usize);
        let length = header.p_filesz as usize;
        if tables.wrapping_sub(start) < length {
            // SAFETY: a segment that is mapped readable.
            let bytes = unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(start), length) };
            return Some(Tables { start: start as u64, bytes, header: tables as u64 });
        }
    }
    None
}

/// The tables of this library; none where it is part of the program. Also stores where its code lies.
fn own_tables() -> Option<Tables<'static>> {
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, result: *mut c_void) -> c_int {
        let own = (callers as fn(&mut Entry)) as usize;
        // SAFETY: the C library passes a description of an object that is loaded, and what `own_tables` gave it.
        unsafe {
            let (bias, count) = ((*info).dlpi_addr as usize, usize::from((*info).dlpi_phnum));
            let headers = core::slice::from_raw_parts((*info).dlpi_phdr, count);
            let code = headers.iter().find(|header| {
                let offset = own.wrapping_sub(bias.wrapping_add(header.p_vaddr as usize));
                header.p_type == libc::PT_LOAD && offset < header.p_memsz as usize
            });
            let Some(code) = code else { return 0 };
            let start = bias.wrapping_add(code.p_vaddr as usize);
            CODE[0].store(start, Ordering::Relaxed);
            CODE[1].store(start + code.p_memsz as usize, Ordering::Relaxed);
            let program = call::auxiliary(libc::AT_PHDR) == (*info).dlpi_phdr.addr();
            let tables = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME).filter(|_| !program);
            *result.cast::<Option<Tables<'static>>>() =
                tables.and_then(|tables| tables_in(headers, bias, bias.wrapping_add(tables.p_vaddr as usize)));
            1
        }
    }
    let mut result: Option<Tables<'static>> = None;
    // SAFETY: the function gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut result).cast()) };
    result
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
    fn new(sp: u64) -> Self {
        let end = STACK_END.load(Ordering::Relaxed);
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

/// [`call::is_readable`]; false where a filter may end the process for the question.
pub fn may_read(address: u64) -> bool {
    Asking::if_allowed().is_some_and(|_asking| call::is_readable(address))
}
