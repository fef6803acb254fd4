//! Finds the callers of malloc: the frames of the calling thread's stack, from outside of this library on.
//!
//! Callers are found by the tables of `.eh_frame`. Those of this library are looked up at the start; those of others
//! come from the C library's `_dl_find_object`, which takes no lock. Where there are no tables, callers are found by
//! frame pointers. Only memory that is known to be readable is read: the first thread's stack up to its arguments, and
//! elsewhere OS pages that a system call has just read.

use crate::arch;
use crate::observe::once::AtStart;
use crate::system::call;
use crate::system::call::READ_WRITE;
use crate::system::filter::Asking;
use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
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
/// Bytes at the front of an object that are always mapped.
const FRONT: usize = 4096;

/// What [`callers`] needs, found at the start.
#[derive(Debug)]
struct Known {
    /// The tables of this library.
    tables: Tables<'static>,
    /// The addresses of this library's code.
    code: Range<u64>,
    /// `_dl_find_object`, if the C library has it.
    find_object: Option<FindObject>,
    /// An address at the end of the first thread's stack; 0: not known.
    stack_end: u64,
    /// The packed row of an instruction, and the row combined (by XOR) with the instruction. So a pair of which two
    /// threads wrote one word each is recognised.
    rows: &'static [[AtomicU64; 2]; ROWS],
}

static KNOWN: AtStart<Option<Known>> = AtStart::new(None);

/// Prepares [`callers`]. `stack_end` is an address at the end of the calling thread's stack, or 0. False if this
/// library has no tables, or there is no memory.
///
/// # Safety
/// To be called once, while the process has one thread; up to `stack_end` there must be nothing but its stack.
pub unsafe fn start(stack_end: usize) -> bool {
    let Some((tables, code)) = own_tables() else { return false };
    let Some(rows) = call::fresh(0, size_of::<[[AtomicU64; 2]; ROWS]>(), READ_WRITE, MapFlags::PRIVATE) else {
        return false;
    };
    // SAFETY: the C library's function of this name has this type. The mapping is new, zeroed, and never unmapped.
    // There is one thread, as the caller promises.
    unsafe {
        let find_object = libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr());
        let find_object = core::mem::transmute::<*mut c_void, Option<FindObject>>(find_object);
        let stack_end = stack_end as u64 & !7;
        KNOWN.change(|known| *known = Some(Known { tables, code, find_object, stack_end, rows: &*rows.cast() }));
    }
    true
}

/// Populates the memory that [`callers`] writes to at random places, so that these writes are no page faults in a
/// trace. To be called again in a child.
pub fn populate_rows() {
    if let Some(known) = KNOWN.get() {
        let rows = core::ptr::from_ref(known.rows);
        let _ = call::populate(rows.cast_mut().cast(), size_of_val(known.rows));
    }
}

/// Fills in the callers, from outside of this library on.
#[inline(never)]
pub fn callers(entry: &mut Entry) {
    let (ip, sp, bp) = arch::frame();
    let Some(known) = KNOWN.get() else { return };
    let mut stack = Stack::new(sp, known.stack_end);
    let mut frame = Frame { ip, sp, bp };
    let mut read = |address| stack.word(address);
    for depth in 0..MOST_FRAMES {
        // A return address can be that of the next function.
        let at = if depth == 0 { frame.ip } else { frame.ip.wrapping_sub(1) };
        let own = known.code.contains(&at);
        let caller = match known.row(at, own) {
            Some(row) => row.caller(frame, &mut read),
            None if own => None,
            None => by_frame_pointer(frame, &mut read),
        };
        let Some(caller) = caller.filter(|caller| caller.ip != 0) else { return };
        frame = caller;
        if !known.code.contains(&frame.ip.wrapping_sub(1)) && !entry.push(frame.ip) {
            return;
        }
    }
}

impl Known {
    /// The row of the tables that says how to find the caller of the code at `at`.
    fn row(&self, at: u64, own: bool) -> Option<Row> {
        let [packed, combined] = &self.rows[(at ^ at >> 11) as usize % ROWS];
        // Relaxed: a pair that is mixed of two does not combine to the instruction.
        let (row, sum) = (packed.load(Ordering::Relaxed), combined.load(Ordering::Relaxed));
        if row != 0 && row ^ sum == at {
            return Some(Row::unpack(row));
        }
        let tables = if own { self.tables } else { other_tables(self.find_object?, at)? };
        let row = tables.row(at)?;
        packed.store(row.pack(), Ordering::Relaxed);
        combined.store(row.pack() ^ at, Ordering::Relaxed);
        Some(row)
    }
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

/// The C library's `_dl_find_object`: returns 0 where an object is at the address.
type FindObject = unsafe extern "C" fn(*mut c_void, *mut Found) -> c_int;

/// The tables of the object at an address.
fn other_tables(find_object: FindObject, at: u64) -> Option<Tables<'static>> {
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
    if result != 0 || found.tables.is_null() || found.link_map.is_null() {
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

/// The tables of this library, and the addresses of its code; `None` where it is part of the program.
fn own_tables() -> Option<(Tables<'static>, Range<u64>)> {
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
            let code = start as u64..start as u64 + code.p_memsz;
            let program = call::auxiliary(libc::AT_PHDR) == (*info).dlpi_phdr.addr();
            let tables = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME).filter(|_| !program);
            let tables = tables.and_then(|tables| tables_in(headers, bias, bias.wrapping_add(tables.p_vaddr as usize)));
            *result.cast::<Option<(Tables<'static>, Range<u64>)>>() = tables.zip(Some(code));
            1
        }
    }
    let mut result = None::<(Tables<'static>, Range<u64>)>;
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

/// [`call::is_readable`]; false where a filter may end the process for the question.
pub fn may_read(address: u64) -> bool {
    Asking::if_allowed().is_some_and(|_asking| call::is_readable(address))
}
