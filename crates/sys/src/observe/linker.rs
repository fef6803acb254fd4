//! Reads what the linker and the dynamic linker left in memory: program headers, tables for unwinding, build ids, and
//! the symbols of the C library. It calls no function of the C library, as these take locks.

use crate::arch;
use crate::system::call;
use crate::system::filter::Asking;
use core::ffi::{CStr, c_char, c_void};
use core::ops::Range;
use neap_sites::unwind::Tables;

/// Bytes at the front of an object that are always mapped.
const FRONT: usize = 4096;
/// Longest distance from the front of the C library to a function.
const FARTHEST: usize = 8 << 20;
/// Limit on the bytes of a segment of notes that are read.
const NOTES: usize = 4096;

unsafe extern "C" {
    /// The front of the object that this code is part of: the linker defines it.
    #[link_name = "__ehdr_start"]
    static FRONT_OF_OBJECT: u8;
}

/// The program headers of the object whose file header is at `start`, of which `length` bytes are mapped.
///
/// # Safety
/// The object must be mapped and stay so.
pub unsafe fn headers(start: *const u8, length: usize) -> Option<&'static [libc::Elf64_Phdr]> {
    if length < size_of::<libc::Elf64_Ehdr>() {
        return None;
    }
    // SAFETY: `length` bytes are mapped. They begin with the file header, unless the magic differs; it says where the
    // program headers are.
    unsafe {
        let header = start.cast::<libc::Elf64_Ehdr>().read_unaligned();
        let (offset, count) = (header.e_phoff as usize, usize::from(header.e_phnum));
        let end = offset.checked_add(count * size_of::<libc::Elf64_Phdr>())?;
        let good = header.e_ident.starts_with(b"\x7fELF") && offset.is_multiple_of(8) && end <= FRONT.min(length);
        good.then(|| core::slice::from_raw_parts(start.add(offset).cast::<libc::Elf64_Phdr>(), count))
    }
}

/// The tables at `tables` of an object, with the segment that they lie in.
///
/// # Safety
/// The headers must be those of an object that is mapped and stays so, `bias` its load bias.
pub unsafe fn tables_in(headers: &[libc::Elf64_Phdr], bias: usize, tables: usize) -> Option<Tables<'static>> {
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

/// The segment of an object that has the code at an address, as it is mapped: first address, end address, file offset.
/// Zeros if there is none.
pub fn code_at(headers: &[libc::Elf64_Phdr], bias: usize, at: u64) -> [u64; 3] {
    let start = |header: &libc::Elf64_Phdr| (bias as u64).wrapping_add(header.p_vaddr);
    let has =
        |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && at.wrapping_sub(start(header)) < header.p_memsz;
    headers.iter().find(has).map_or([0; 3], |header| {
        let start = start(header);
        // Whole OS pages are mapped.
        let before = start % call::page_size() as u64;
        [start - before, start.wrapping_add(header.p_memsz), header.p_offset.saturating_sub(before)]
    })
}

/// The build id of an object.
///
/// # Safety
/// The headers must be those of an object that is mapped and stays so, `bias` its load bias.
pub unsafe fn build_id(headers: &[libc::Elf64_Phdr], bias: usize) -> Option<&'static [u8]> {
    const BUILD_ID: u32 = 3;
    for header in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
        let (start, length) = (bias.wrapping_add(header.p_vaddr as usize), (header.p_filesz as usize).min(NOTES));
        let loaded = headers.iter().any(|load| {
            let offset = header.p_vaddr.wrapping_sub(load.p_vaddr);
            load.p_type == libc::PT_LOAD
                && load.p_flags & libc::PF_R != 0
                && offset.saturating_add(length as u64) <= load.p_filesz
        });
        if !loaded {
            continue;
        }
        // SAFETY: it lies in a segment that is mapped readable.
        let mut rest: &[u8] = unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(start), length) };
        let align = if header.p_align == 8 { 8 } else { 4 };
        while let Some((words, behind)) = rest.split_first_chunk::<12>() {
            let word = |at: usize| u32::from_ne_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
            let (name, bytes) = (word(0) as usize, word(4) as usize);
            let text = (12 + name).next_multiple_of(align) - 12;
            let Some(value) = behind.get(text..).and_then(|behind| behind.get(..bytes)) else { break };
            if word(8) == BUILD_ID && behind.starts_with(b"GNU\0") {
                return Some(value);
            }
            let Some(next) = rest.get(12 + text + bytes.next_multiple_of(align)..) else { break };
            rest = next;
        }
    }
    None
}

/// The tables of this library, and the addresses of its code; `None` where it is part of the program.
pub fn own() -> Option<(Tables<'static>, Range<u64>)> {
    // SAFETY: this library stays loaded.
    unsafe {
        let start = &raw const FRONT_OF_OBJECT;
        let headers = headers(start, FRONT)?;
        if call::auxiliary(libc::AT_PHDR) == headers.as_ptr().addr() {
            return None;
        }
        let first = headers.iter().find(|header| header.p_type == libc::PT_LOAD && header.p_offset == 0)?;
        let bias = start.addr().wrapping_sub(first.p_vaddr as usize);
        let code = headers.iter().find(|header| {
            let offset = (own as fn() -> _ as usize).wrapping_sub(bias.wrapping_add(header.p_vaddr as usize));
            header.p_type == libc::PT_LOAD && offset < header.p_memsz as usize
        })?;
        let first = bias.wrapping_add(code.p_vaddr as usize) as u64;
        let tables = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
        Some((tables_in(headers, bias, bias.wrapping_add(tables.p_vaddr as usize))?, first..first + code.p_memsz))
    }
}

/// The address of a symbol of the C library; null if the library has no such symbol, or is not found. Takes a system
/// call for each OS page between the front of the library and one of its functions.
pub fn symbol_of_libc(name: &CStr) -> *const c_void {
    // Either may belong to another library, which comes first in the search for symbols.
    let functions = [libc::getauxval as *const u8, libc::abort as *const u8];
    let found = functions.into_iter().find_map(|function| {
        // SAFETY: the front of an object that has the function, which stays loaded.
        unsafe {
            let front = front_before(function)?;
            symbol_in(headers(front, FRONT)?, front.expose_provenance(), name.to_bytes())
        }
    });
    found.unwrap_or(core::ptr::null())
}

/// [`call::is_readable`]; false if a filter may end the process for the call.
pub fn may_read(address: u64) -> bool {
    Asking::if_allowed().is_some_and(|_asking| call::is_readable(address))
}

/// The front of the object that has the function at `code`. The front lies before the code, and all between them is
/// mapped.
fn front_before(code: *const u8) -> Option<*const u8> {
    let mut page = code.map_addr(|address| address & !(FRONT - 1));
    for _ in 0..FARTHEST / FRONT {
        if !may_read(page.expose_provenance() as u64) {
            return None;
        }
        // SAFETY: the page is readable; a mapping of an object, as is what follows it up to the code.
        unsafe {
            if page.cast::<u32>().read().to_ne_bytes() == *b"\x7fELF" {
                let offset = (code.addr() - page.addr()) as u64;
                let is_code = |header: &libc::Elf64_Phdr| {
                    header.p_type == libc::PT_LOAD && offset.wrapping_sub(header.p_vaddr) < header.p_memsz
                };
                return headers(page, FRONT)?.iter().any(is_code).then_some(page);
            }
        }
        page = page.wrapping_sub(FRONT);
    }
    None
}

/// The address of a symbol that an object defines.
///
/// # Safety
/// The headers must be those of an object that is mapped and stays so, `bias` its load bias.
#[inline]
pub unsafe fn symbol_in(headers: &[libc::Elf64_Phdr], bias: usize, name: &[u8]) -> Option<*const c_void> {
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
    let section = core::ptr::with_exposed_provenance(bias.wrapping_add(dynamic.p_vaddr as usize));
    // SAFETY: as the caller promises.
    unsafe { symbol_by(section, bias, name) }
}

/// The value of a tag of a dynamic section.
///
/// # Safety
/// The section must be that of an object that is mapped.
pub unsafe fn value_of(section: *const [u64; 2], tag: u64) -> Option<usize> {
    // SAFETY: the section ends with the tag 0.
    let mut all = (0..).map(|i| unsafe { section.add(i).read() }).take_while(|entry| entry[0] != 0);
    all.find(|entry| entry[0] == tag).map(|entry| entry[1] as usize)
}

/// The address of a symbol of an object that was loaded at the start and whose path `is_meant` accepts. If `guess` lies
/// in such an object, it is the answer. Walks the list that glibc's dynamic linker keeps for debuggers, whose beginning
/// does not change; takes no lock, and calls no function of the C library. `None` with musl.
pub fn symbol_in_list(name: &CStr, guess: *const c_void, is_meant: impl Fn(&[u8]) -> bool) -> Option<*const c_void> {
    /// An object of the list (`struct link_map`).
    #[repr(C)]
    struct Object {
        bias: usize,
        path: *const c_char,
        section: *const [u64; 2],
        next: *const Object,
    }
    let debug = arch::weak!("_r_debug").cast::<*const Object>();
    if debug.is_null() {
        return None;
    }
    // SAFETY: `struct r_debug`, whose second word is the list. Objects that were loaded at the start stay, with their
    // paths and dynamic sections.
    unsafe {
        let mut next = debug.add(1).read();
        while !next.is_null() {
            let object = &*next;
            if is_meant(CStr::from_ptr(object.path).to_bytes()) {
                // An object's code lies in front of its dynamic section. This reads none of its tables.
                if (object.bias..object.section.addr()).contains(&guess.addr()) {
                    return Some(guess);
                }
                if let Some(found) = symbol_by(object.section, object.bias, name.to_bytes()) {
                    return Some(found);
                }
            }
            next = object.next;
        }
    }
    None
}

/// [`symbol_in`] for the object that has this dynamic section.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn symbol_by(section: *const [u64; 2], bias: usize, name: &[u8]) -> Option<*const c_void> {
    const GNU_HASH: u64 = 0x6fff_fef5;
    const STRINGS: u64 = 5;
    const SYMBOLS: u64 = 6;
    // SAFETY: the object's own tables say where they are and how long.
    unsafe {
        let at = |address: usize| core::ptr::with_exposed_provenance::<u8>(address);
        let entry = |tag: u64| {
            let value = value_of(section, tag)?;
            // The dynamic linker has added the bias already, unless the section cannot be written.
            Some(at(if value < bias { bias + value } else { value }))
        };
        let (hash, strings) = (entry(GNU_HASH)?.cast::<u32>(), entry(STRINGS)?);
        let symbols = entry(SYMBOLS)?.cast::<libc::Elf64_Sym>();
        let [buckets, first, bloom] = [0, 1, 2].map(|i| hash.add(i).read() as usize);
        if buckets == 0 {
            return None;
        }
        let wanted = name.iter().fold(5381u32, |sum, &byte| sum.wrapping_mul(33).wrapping_add(u32::from(byte)));
        let bucket = hash.add(4 + 2 * bloom);
        let chain = bucket.add(buckets);
        let mut number = bucket.add(wanted as usize % buckets).read() as usize;
        while number >= first {
            let of_symbol = chain.add(number - first).read();
            let symbol = symbols.add(number).read();
            let text = CStr::from_ptr(strings.add(symbol.st_name as usize).cast());
            if of_symbol | 1 == wanted | 1 && symbol.st_shndx != 0 && text.to_bytes() == name {
                return Some(at(bias.wrapping_add(symbol.st_value as usize)).cast());
            }
            if of_symbol & 1 != 0 {
                break;
            }
            number += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a symbol that is not found, or another one's address.
    #[test]
    fn symbols_of_the_c_library() {
        // SAFETY: a name.
        let wanted = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        assert_eq!(symbol_of_libc(c"_dl_find_object"), wanted.cast_const());
        assert!(symbol_of_libc(c"_dl_find_objects").is_null());
    }

    /// Catches notes that are read at the wrong place: the build id is the one that the file says.
    #[test]
    fn build_ids() {
        // SAFETY: the test program stays mapped.
        let headers = unsafe { headers(&raw const FRONT_OF_OBJECT, FRONT) }.unwrap();
        let bias = (&raw const FRONT_OF_OBJECT).addr();
        // SAFETY: as above.
        let Some(id) = (unsafe { build_id(headers, bias) }) else { return println!("SKIPPED: built without an id") };
        let file = std::fs::read("/proc/self/exe").unwrap();
        assert!(id.len() == 20 && file.windows(20).any(|bytes| bytes == id), "{id:x?}");
    }
}
