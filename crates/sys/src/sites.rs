//! Records where blocks are allocated, for a reader outside (layout: crates/sites; option `sites`).
//!
//! While it is on, every malloc takes its slow path ([`Reason::Sites`]), which comes here with the new block. What is
//! recorded goes into a ring in a shared mapping: one addition claims a slot, so there is no lock, nothing is allocated,
//! and a handler may interrupt it anywhere and record its own blocks. The memory of the file is taken in steps by
//! MADV_POPULATE_WRITE, which fails where a store would bring SIGBUS, and is no fault in a trace.
//!
//! **Callers** are found by the tables of `.eh_frame`, of this library and, where the C library tells where they are
//! (`_dl_find_object`, which takes no lock), of all others; else by frame pointers. Of the stack only what is known to be
//! there is read: the first thread's up to its arguments, and elsewhere OS pages that a system call has just read.
//!
//! **Fork.** The mapping is not copied (MADV_DONTFORK), and the pointer to it lies in memory that the kernel wipes
//! (`Space`): the child makes a file of its own when it allocates.

use crate::global::{NEAP, usable_size};
use crate::path::{Name, Path};
use crate::space::{Space, is_guest, space};
use crate::status::{self, Asking, Filter};
use crate::{arch, limits, watch};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::fmt::Write;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use neap_core::misuse::Call;
use neap_core::sample::by_chance;
use neap_core::watch::Reason;
use neap_sites::unwind::{Frame, Row, Tables, by_frame_pointer};
use neap_sites::{CAPACITY, ENTRY_BYTES, Entry, FILE_BYTES, HEADER_BYTES, Header, MAGIC, VERSION};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::mm::{self, MapFlags, ProtFlags};

/// Slots whose memory is taken at once.
const STEP: u64 = CAPACITY / 64;
const STEP_BYTES: usize = STEP as usize * ENTRY_BYTES;
/// `Space::sites_full`: no more memory is taken.
const FULL: u32 = 1;
/// Frames that are followed at most, those of the library among them.
const MOST_FRAMES: usize = neap_sites::FRAMES + 16;
/// How far up from the stack pointer a stack is followed.
const REACH: u64 = 8 << 20;
/// How far the end of the first thread's stack is at most: nothing else lies so near below it.
const FIRST_REACH: u64 = 64 << 20;
/// Rows that are remembered, by instruction.
const ROWS: usize = 2048;
const ROWS_BYTES: usize = ROWS * size_of::<[AtomicU64; 2]>();

/// Bytes between two recorded allocations in the mean; 0: nothing is recorded.
static INTERVAL: AtomicU64 = AtomicU64::new(0);
/// The state of the random numbers.
static RANDOM: AtomicU64 = AtomicU64::new(0);
/// The end of the first thread's stack, as far as it is known.
static STACK_END: AtomicU64 = AtomicU64::new(0);
/// `_dl_find_object`, or null.
static FIND_OBJECT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// [`ROWS`] pairs: the packed row of an instruction, and that combined with the instruction, so that a pair that was
/// mixed of two is seen.
static KNOWN: AtomicPtr<[AtomicU64; 2]> = AtomicPtr::new(core::ptr::null_mut());
/// Where this library's code lies.
static CODE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// What is written by [`start`] alone, before it sets [`INTERVAL`].
struct Once<T>(UnsafeCell<T>);

// SAFETY: see there; from then on it is only read.
unsafe impl<T> Sync for Once<T> {}

/// The directory of the files.
static DIRECTORY: Once<Path> = Once(UnsafeCell::new(Path::new()));
/// The tables of this library: where they are found without asking.
static OWN: Once<Option<Tables<'static>>> = Once(UnsafeCell::new(None));

/// Begins to record, in a new file in `directory`, allocations that are `interval` bytes apart in the mean. `stack_end` is
/// an address at the end of the calling thread's stack, or 0. False if there can be no file.
///
/// # Safety
/// To be called once, while the process has one thread; up to `stack_end` there must be nothing but its stack.
pub unsafe fn start(directory: &CStr, interval: u64, stack_end: usize) -> bool {
    // SAFETY: nobody reads these before `INTERVAL` is set, and nobody else writes them.
    let known = unsafe {
        *OWN.0.get() = own_tables();
        (*DIRECTORY.0.get()).append(directory.to_bytes()).is_ok() && (*OWN.0.get()).is_some()
    };
    // SAFETY: a fresh mapping, never unmapped.
    let rows = unsafe {
        mm::mmap_anonymous(core::ptr::null_mut(), ROWS_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let Some(space) = space().filter(|_| known) else { return false };
    let Ok(rows) = rows else { return false };
    // SAFETY: a look-up by name.
    let find_object = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND_OBJECT.store(find_object, Ordering::Relaxed);
    KNOWN.store(rows.cast(), Ordering::Relaxed);
    STACK_END.store(stack_end as u64 & !7, Ordering::Relaxed);
    // Relaxed, here and below: the process has one thread.
    RANDOM.store(neap_core::Os::random(&NEAP.os), Ordering::Relaxed);
    INTERVAL.store(interval.max(1), Ordering::Relaxed);
    if file(space).is_none() {
        INTERVAL.store(0, Ordering::Relaxed);
        return false;
    }
    watch::set(Reason::Sites, true);
    true
}

/// The bytes of an OS page, also before the first allocation.
fn page_size() -> usize {
    // SAFETY: getauxval only reads.
    unsafe { libc::getauxval(libc::AT_PAGESZ) as usize }
}

/// Bytes between two recorded allocations in the mean; 0: nothing is recorded.
pub fn interval() -> u64 {
    INTERVAL.load(Ordering::Relaxed)
}

/// The directory of the files; empty where nothing is recorded.
pub fn directory() -> &'static [u8] {
    if interval() == 0 {
        return b"";
    }
    // SAFETY: written before, see there.
    unsafe { &*DIRECTORY.0.get() }.bytes()
}

/// A new block: it is recorded, where that is on and the block is chosen. Called in slow paths, also of handlers.
#[inline]
pub fn allocated(p: *mut u8) {
    let interval = interval();
    if interval != 0 && !p.is_null() {
        record(p, interval);
    }
}

#[cold]
#[inline(never)]
fn record(p: *mut u8, interval: u64) {
    // SAFETY: the block is new, and the caller's.
    let size = unsafe { usable_size(p, Call::UsableSize) }.unwrap_or(0);
    if !by_chance(size, interval, random(interval)) {
        return;
    }
    let Some(space) = space() else { return };
    let Some(header) = file(space) else {
        space.sites_lost.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let number = header.head.fetch_add(1, Ordering::Relaxed);
    let slot = number % CAPACITY;
    if !has_memory(space, header, slot) {
        header.lost.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let mut entry = Entry::new(now(), p.addr() as u64, size as u64);
    callers(&mut entry);
    let (words, used) = entry.encode(number);
    let base = core::ptr::from_ref(header).cast::<u8>();
    for (i, &word) in words[..used].iter().enumerate() {
        // SAFETY: the slot is within the file, whose mapping is never unmapped, and it has memory.
        let place = unsafe { &*base.add(HEADER_BYTES + slot as usize * ENTRY_BYTES + i * 8).cast::<AtomicU64>() };
        // Relaxed: the check tells whether all words are there.
        place.store(word, Ordering::Relaxed);
    }
}

/// A random number (splitmix64), where one is needed.
fn random(interval: u64) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    if interval <= 1 {
        return 0;
    }
    let mut x = RANDOM.fetch_add(STEP, Ordering::Relaxed);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn now() -> u64 {
    let nanoseconds = |time: libc::timespec| {
        time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned())
    };
    crate::clock::read(libc::CLOCK_MONOTONIC).map_or(0, nanoseconds)
}

/// The process's own file, made where there is none yet. Where two want that at a time, one does, and the other's
/// allocation is lost.
fn file(space: &Space) -> Option<&'static Header> {
    // Acquire pairs with the Release below.
    let mut header = space.sites.load(Ordering::Acquire);
    if header.is_null() {
        if space.siteless.load(Ordering::Relaxed) || is_guest(space) || space.sites_making.swap(true, Ordering::Acquire)
        {
            return None;
        }
        header = space.sites.load(Ordering::Acquire);
        let _asking = Asking::begin();
        // Without room to look another allocation tries.
        let filter = status::filter();
        if header.is_null() && filter != Filter::Unknown {
            match new(space, filter == Filter::Yes) {
                Some(new) => {
                    header = core::ptr::from_ref(new).cast_mut();
                    space.sites.store(header, Ordering::Release);
                }
                None => space.siteless.store(true, Ordering::Relaxed),
            }
        }
        space.sites_making.store(false, Ordering::Release);
    }
    // SAFETY: the mapping is never unmapped, and all fields are atomic.
    unsafe { header.as_ref() }
}

fn new(space: &Space, filtered: bool) -> Option<&'static Header> {
    // A filter might end the process for such calls, also for the question of the limit.
    if filtered || limits::is_too_long(FILE_BYTES) {
        return None;
    }
    // SAFETY: written by `start` alone, before.
    let directory = unsafe { (*DIRECTORY.0.get()).open_directory()? };
    let pid = crate::status::process();
    for n in 0..1000 {
        let mut name = Name::new();
        write!(name, "{pid}.{n}").ok()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat(&directory, name.c_str()?, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(rustix::io::Errno::EXIST) => continue,
            Err(_) => return None,
        };
        rustix::fs::ftruncate(&file, FILE_BYTES as u64).ok()?;
        // SAFETY: a fresh shared mapping of the whole file, which goes if it would be copied.
        let p = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let p = mm::mmap(core::ptr::null_mut(), FILE_BYTES, access, MapFlags::SHARED, &file, 0).ok()?;
            if mm::madvise(p, FILE_BYTES, mm::Advice::LinuxDontFork).is_err() {
                let _ = mm::munmap(p, FILE_BYTES);
                return None;
            }
            p
        };
        let mut taken = populate(p, HEADER_BYTES + STEP_BYTES);
        // Before Linux 5.14: all of it at once.
        if taken == Err(rustix::io::Errno::INVAL) {
            taken = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES as u64);
            space.sites_steps.store(u64::MAX, Ordering::Relaxed);
        } else {
            space.sites_steps.store(1, Ordering::Relaxed);
        }
        if taken.is_err() {
            // SAFETY: nobody has seen the mapping.
            let _ = unsafe { mm::munmap(p, FILE_BYTES) };
            return None;
        }
        // These are written all over, which would be faults in the trace, and again in each child.
        let _ = populate(KNOWN.load(Ordering::Relaxed).cast(), ROWS_BYTES);
        // SAFETY: zeroed, shared, longer than a header and never unmapped; all fields are atomic.
        let header = unsafe { &*p.cast::<Header>() };
        header.version.store(VERSION, Ordering::Relaxed);
        header.pid.store(pid, Ordering::Relaxed);
        header.interval.store(interval(), Ordering::Relaxed);
        header.lost.store(space.sites_lost.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release: whoever sees the magic sees the rest.
        header.magic.store(MAGIC, Ordering::Release);
        return Some(header);
    }
    None
}

/// Takes memory for a part of a mapping.
fn populate(p: *mut c_void, bytes: usize) -> rustix::io::Result<()> {
    // SAFETY: the range is in a mapping of this module's, and keeps its contents.
    unsafe { mm::madvise(p, bytes, mm::Advice::LinuxPopulateWrite) }
}

/// Whether there is memory for a slot; it is taken if not.
fn has_memory(space: &Space, header: &'static Header, slot: u64) -> bool {
    let step = slot / STEP;
    // Relaxed: memory that is there stays.
    if space.sites_steps.load(Ordering::Relaxed) & 1 << step != 0 {
        return true;
    }
    let _asking = Asking::begin();
    if space.sites_full.load(Ordering::Relaxed) == FULL || status::is_forbidden() {
        return false;
    }
    let base = core::ptr::from_ref(header).cast_mut().cast::<u8>();
    let start = base.wrapping_add(HEADER_BYTES + step as usize * STEP_BYTES);
    // The slots begin at a page of 4 KiB; where pages are longer, at the page around that.
    let aligned = start.map_addr(|address| address & !(page_size() - 1));
    if populate(aligned.cast(), STEP_BYTES + (start.addr() - aligned.addr())).is_err() {
        space.sites_full.store(FULL, Ordering::Relaxed);
        return false;
    }
    space.sites_steps.fetch_or(1 << step, Ordering::Relaxed);
    true
}

/// Fills in the callers, from outside of this library on.
#[inline(never)]
fn callers(entry: &mut Entry) {
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

/// How the caller of the code at `at` is found.
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
    // SAFETY: an object that is on the stack stays loaded. Its first page is mapped, and has its header unless the magic
    // differs; that tells where the program headers are.
    unsafe {
        let length = found.end.addr() - found.start.addr();
        if length < size_of::<libc::Elf64_Ehdr>() {
            return None;
        }
        let header = found.start.cast::<libc::Elf64_Ehdr>().read();
        let (offset, count) = (header.e_phoff as usize, usize::from(header.e_phnum));
        if !header.e_ident.starts_with(b"\x7fELF")
            || !offset.is_multiple_of(8)
            || offset.checked_add(count * size_of::<libc::Elf64_Phdr>())? > HEADER_BYTES
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

/// The tables of this library, and where its code lies; none where it is part of the program.
fn own_tables() -> Option<Tables<'static>> {
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, result: *mut c_void) -> c_int {
        let own = (record as fn(*mut u8, u64)) as usize;
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
            let program = libc::getauxval(libc::AT_PHDR) as usize == (*info).dlpi_phdr.addr();
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

/// The stack of the calling thread, as far as it may be read.
struct Stack {
    first: u64,
    /// Up to there everything is readable; 0 where that is not known.
    end: u64,
    /// The OS page that was last seen to be readable.
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
            is_readable(address).then_some(())?;
            self.page = address / PAGE;
        }
        // SAFETY: the address is aligned, and its page is readable: the thread's own stack, which nobody unmaps.
        Some(unsafe { core::ptr::with_exposed_provenance::<u64>(address as usize).read_volatile() })
    }
}

/// Whether the 8 bytes at an address can be read: a system call that looks at them, and then refuses an operation that does
/// not exist. False where a filter may punish the question.
pub fn is_readable(address: u64) -> bool {
    const NO_SUCH_OPERATION: usize = usize::MAX;
    let _asking = Asking::begin();
    if status::is_forbidden() {
        return false;
    }
    // SAFETY: the call reads 8 bytes, and changes nothing.
    let result =
        unsafe { arch::syscall(libc::SYS_rt_sigprocmask as usize, [NO_SUCH_OPERATION, address as usize, 0, 8, 0, 0]) };
    result == -(libc::EINVAL as isize)
}
