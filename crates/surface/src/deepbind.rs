//! dlopen with RTLD_DEEPBIND: makes such a library use the program's malloc, like all other libraries.
//!
//! The library's symbols are looked up in the libraries that it needs before they are looked up in the program. So its
//! free would be the C library's, while its blocks come from the program, or from the C library (strdup), whose malloc
//! is neap's. PHP opens its extensions in this way. Before the first such dlopen, [`redirect`] changes the C library's
//! symbol table: malloc and related functions get the addresses that they have in the program. A library that defines
//! or needs another malloc keeps that.

use crate::lookup::{self, Scope};
use crate::once::Once;
use crate::{foreign, older};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};
use neap_sys::global::NEAP;
use neap_sys::{arch, errno, musl};
use rustix::mm::{self, MprotectFlags};

/// The C library's functions that allocate, free or describe blocks, and those that control or report on its malloc.
const NAMES: [&CStr; 27] = [
    c"malloc",
    c"free",
    c"calloc",
    c"realloc",
    c"reallocarray",
    c"memalign",
    c"aligned_alloc",
    c"posix_memalign",
    c"valloc",
    c"pvalloc",
    c"cfree",
    c"malloc_usable_size",
    c"free_sized",
    c"free_aligned_sized",
    c"__libc_malloc",
    c"__libc_free",
    c"__libc_calloc",
    c"__libc_realloc",
    c"__libc_memalign",
    c"__libc_valloc",
    c"__libc_pvalloc",
    c"mallopt",
    c"malloc_trim",
    c"mallinfo",
    c"mallinfo2",
    c"malloc_info",
    c"malloc_stats",
];

static REDIRECTED: Once = Once::new();

/// What neap does before each dlopen. Returns null, so that the C library's dlopen comes next.
extern "C" fn before(_: *const c_char, flags: c_int) -> *mut c_void {
    if flags & libc::RTLD_DEEPBIND != 0 && !musl::is_here() && !REDIRECTED.is_done() {
        errno::kept(|| {
            REDIRECTED.run(&mut || {
                if !redirect() {
                    // The library will use the C library's malloc.
                    foreign::start_malloc();
                }
            });
        });
    }
    core::ptr::null_mut()
}

arch::forward! {
    /// POSIX: opens a library.
    ///
    /// # Safety
    /// As the call itself.
    pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void, before, lookup::dlopen
}

/// Gives the [`NAMES`] in the C library's symbol table the addresses that they have in the program. If that is
/// impossible, nothing changes, and the result is false.
fn redirect() -> bool {
    let own = lookup::symbol(Scope(lookup::libc()), c"malloc");
    // If another malloc comes first, nothing is changed: its library may look up its next malloc in the C library, and
    // must not find itself. The linker binds `libc::malloc` to neap's function (-Bsymbolic-functions).
    let is_neap = lookup::symbol(Scope::ALL, c"malloc") == libc::malloc as *mut c_void;
    let Some(table) = (is_neap && !own.is_null()).then(|| Table::around(own)).flatten() else { return false };
    // Blocks of the C library's malloc go to its own functions, which can be found by name only before the change.
    foreign::find();
    let mut changes = [None::<(&AtomicU64, u64)>; NAMES.len() * 2];
    let mut places = changes.iter_mut();
    for name in NAMES {
        let address = lookup::symbol(Scope::ALL, name);
        if address.is_null() {
            continue;
        }
        table.each(name, |value| {
            if let Some(place) = places.next() {
                *place = Some((value, address.addr().wrapping_sub(table.bias) as u64));
            }
        });
    }
    let changes = || changes.iter().flatten();
    let at = |(value, _): &(&AtomicU64, u64)| core::ptr::from_ref(*value).addr();
    let (Some(first), Some(last)) = (changes().map(at).min(), changes().map(at).max()) else { return false };
    let page = NEAP.page_size().max(4096);
    let start = first & !(page - 1);
    let pages = core::ptr::without_provenance_mut::<c_void>(start);
    let protect = |flags| {
        // SAFETY: whole OS pages of the C library's symbol table; they stay readable, and executable if they were.
        unsafe { mm::mprotect(pages, (last + 8 - start).next_multiple_of(page), flags) }
    };
    if protect(table.access | MprotectFlags::WRITE).is_err() {
        return false;
    }
    // Relaxed: a look-up in another thread finds either function, as before.
    changes().for_each(|(value, new)| value.store(*new, Ordering::Relaxed));
    // If the system refuses, the OS pages stay writable.
    let _ = protect(table.access);
    true
}

/// The dynamic symbols of an object, with the hash table by which they are found.
struct Table {
    bias: usize,
    /// The protection of the segment with the symbols.
    access: MprotectFlags,
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    hash: *const u32,
}

/// Tags of the dynamic section (ELF).
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const STT_FUNC: u8 = 2;
/// The flags of a segment that has code.
const EXECUTED: u32 = libc::PF_R | libc::PF_X;

/// What [`found`] looks for, and what it finds.
struct Search {
    inside: usize,
    table: Option<Table>,
}

/// Ends the walk of dl_iterate_phdr at the object that has the address.
unsafe extern "C" fn found(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr's contract: `info` and the program headers are valid; `search` is what it was given.
    let (search, info) = unsafe { (&mut *search.cast::<Search>(), &*info) };
    // SAFETY: as above.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let bias = info.dlpi_addr as usize;
    let holder = |address: usize| {
        headers.iter().find(|header| {
            let offset = address.wrapping_sub(bias.wrapping_add(header.p_vaddr as usize));
            header.p_type == libc::PT_LOAD && offset < header.p_memsz as usize
        })
    };
    if holder(search.inside).is_none() {
        return 0;
    }
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
    // SAFETY: the object's dynamic section, which ends with the tag 0, and whose addresses the C library has made
    // absolute.
    search.table = dynamic.and_then(|dynamic| unsafe {
        let section = core::ptr::with_exposed_provenance::<[usize; 2]>(bias.wrapping_add(dynamic.p_vaddr as usize));
        let entry = |tag| {
            let entry = (0..).map(|n| *section.add(n)).take_while(|entry| entry[0] != 0).find(|entry| entry[0] == tag);
            entry.map(|[_, address]| address).filter(|address| holder(*address).is_some())
        };
        let symbols = entry(DT_SYMTAB)?;
        // Many C libraries have their tables and their code in one segment. A segment that is writable is left alone.
        let access = match holder(symbols)?.p_flags {
            libc::PF_R => MprotectFlags::READ,
            EXECUTED => MprotectFlags::READ.union(MprotectFlags::EXEC),
            _ => return None,
        };
        Some(Table {
            bias,
            access,
            symbols: core::ptr::with_exposed_provenance(symbols),
            strings: core::ptr::with_exposed_provenance(entry(DT_STRTAB)?),
            hash: core::ptr::with_exposed_provenance(entry(DT_GNU_HASH)?),
        })
    });
    1
}

impl Table {
    /// The table of the object that has this address.
    fn around(address: *mut c_void) -> Option<Table> {
        let mut search = Search { inside: address.addr(), table: None };
        // SAFETY: the function gets what it expects.
        unsafe { older::iterate()(Some(found), (&raw mut search).cast()) };
        search.table
    }

    /// Calls `f` with the value of each function of this name: one for each version.
    fn each(&self, name: &CStr, mut f: impl FnMut(&'static AtomicU64)) {
        let hash =
            name.to_bytes().iter().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: the layout of DT_GNU_HASH: four words, a filter of 64-bit words, the first symbol of each bucket, and
        // the hash of each symbol from `first` on, odd for the last of a bucket. The C library is never unloaded.
        unsafe {
            let [buckets, first, filter, _] = *self.hash.cast::<[u32; 4]>();
            let heads = self.hash.add(4 + filter as usize * 2);
            let hashes = heads.add(buckets as usize);
            let mut n = *heads.add((hash % buckets) as usize);
            while n >= first {
                let (other, symbol) = (*hashes.add((n - first) as usize), self.symbols.add(n as usize));
                let same =
                    other | 1 == hash | 1 && CStr::from_ptr(self.strings.add((*symbol).st_name as usize)) == name;
                if same && (*symbol).st_shndx != 0 && (*symbol).st_info & 15 == STT_FUNC {
                    f(&*(&raw const (*symbol).st_value).cast::<AtomicU64>());
                }
                if other & 1 != 0 {
                    break;
                }
                n += 1;
            }
        }
    }
}
