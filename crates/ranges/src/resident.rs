//! Which pages a range really has: resident bytes, by the size of pages.
//!
//! | source | says | since |
//! |---|---|---|
//! | PAGEMAP_SCAN | what is resident, swapped out, the page of zeros, mapped by huge entries | Linux 6.7 |
//! | /proc/self/pagemap | the same without huge entries, which smaps has for whole mappings | |
//! | mincore | what is resident | without /proc, and without a seccomp filter |
//! | pagemap with kpageflags | the sizes of other contiguous pages (mTHP) | with CAP_SYS_ADMIN |
//!
//! Pages of hugetlb are known by the page size of their mapping (`maps`).
//!
//! An entry of the page table may hold a mark instead of a page: a guard (MADV_GUARD_INSTALL), or one of userfaultfd. The
//! kernel reports marks as swapped out, and from Linux 6.15 on it says which are guards.

use crate::error::Error;
use crate::kernel::{self, page_size, pmd_size};
use crate::maps::{self, Mapping};
use core::sync::atomic::{AtomicBool, Ordering};
use neap_sys::lines;
use neap_sys::scan::{self, GUARD, HUGE, PRESENT, Region, SWAPPED, Wanted, ZERO_PAGE};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// Page sizes that are distinguished: an OS page times two to the power of 0 to 23.
pub const ORDERS: usize = 24;

/// Which interface of the kernel answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Source {
    /// PAGEMAP_SCAN.
    Scan = 1,
    /// /proc/self/pagemap, and /proc/self/smaps for huge entries: mappings that are only partly in the range are not
    /// counted.
    Entries = 2,
    /// mincore: resident or not.
    Mincore = 3,
}

/// What a range holds, in bytes. Pages that are only partly in the range count with that part.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resident {
    /// Bytes of this structure that are filled in.
    pub size: usize,
    /// The number of a [`Source`].
    pub source: u32,
    /// Whether sizes between an OS page and a huge page are known (1): only with CAP_SYS_ADMIN. If not, such pages
    /// count as OS pages in `by_order`.
    pub folios_known: u32,
    /// Bytes of the range, in whole OS pages.
    pub bytes: u64,
    /// Memory that is resident.
    pub resident: u64,
    /// What is swapped out: at most what the kernel counts as swapped out for the whole process.
    pub swapped: u64,
    /// What is mapped to the shared page of zeros, and holds no memory.
    pub zero: u64,
    /// Of `resident`: what is mapped by entries of a huge page or more, one entry of the TLB for each.
    pub huge: u64,
    /// Of `resident`: pages from pools (hugetlb).
    pub hugetlb: u64,
    /// `resident` by the size of contiguous pages: element 0 is OS pages, element 9 pages of 2 MiB where an OS page has
    /// 4 KiB.
    pub by_order: [u64; ORDERS],
}

impl Resident {
    fn new(bytes: usize) -> Resident {
        Resident {
            size: size_of::<Resident>(),
            source: Source::Mincore as u32,
            folios_known: 0,
            bytes: bytes as u64,
            resident: 0,
            swapped: 0,
            zero: 0,
            huge: 0,
            hugetlb: 0,
            by_order: [0; ORDERS],
        }
    }

    /// Bytes in pages of `size` bytes.
    pub fn in_pages_of(&self, size: usize) -> u64 {
        self.by_order.get(order(size)).copied().unwrap_or(0)
    }

    /// Without marks that look as if they were swapped out.
    fn without_marks(self) -> Resident {
        let most = if self.swapped > 0 { lines::swapped() } else { None };
        Resident { swapped: most.map_or(self.swapped, |most| self.swapped.min(most as u64)), ..self }
    }

    fn add(&mut self, bytes: usize, page_size: usize) {
        self.resident += bytes as u64;
        self.by_order[order(page_size).min(ORDERS - 1)] += bytes as u64;
    }
}

/// The place of a page size in [`Resident::by_order`].
fn order(size: usize) -> usize {
    (size / page_size()).max(1).ilog2() as usize
}

/// What the OS pages hold that overlap a range.
///
/// # Errors
/// - [`Error::BadValue`]: the range has no bytes.
/// - [`Error::Inaccessible`]: without /proc, where a part is not mapped. With it, such parts hold nothing.
/// - Why a file of /proc could not be opened, where a filter may end the process for mincore.
pub fn of(start: *const u8, bytes: usize) -> Result<Resident, Error> {
    let page = page_size();
    let first = start.addr() & !(page - 1);
    let end = start.addr().checked_add(bytes).and_then(|end| end.checked_next_multiple_of(page));
    let end = end.filter(|_| bytes > 0).ok_or(Error::BadValue)?;
    let mut result = Resident::new(end - first);
    let by_proc = open(c"/proc/self/pagemap").and_then(|pagemap| {
        let mut look = Look { pagemap, flags: Flags::open(), out: Resident::new(end - first), failed: None };
        maps::each(first, end, |mapping| look.mapping(mapping, first, end))?;
        look.failed.map_or(Ok(look.out.without_marks()), Err)
    });
    let failed = match by_proc {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let known = kernel::resident(start.wrapping_sub(start.addr() - first), end - first, |resident| {
        if resident {
            result.add(page, page);
        }
    });
    match known {
        Ok(()) => Ok(result),
        Err(Errno::NOSYS) => Err(failed.into()),
        Err(error) => Err(error.into()),
    }
}

fn open(path: &core::ffi::CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

const RETURNED: u64 = PRESENT | SWAPPED | ZERO_PAGE | HUGE;

/// Whether the kernel is asked for guards: until it refuses.
static HAS_GUARDS: AtomicBool = AtomicBool::new(true);

/// One query about a range, and its result so far.
struct Look {
    pagemap: OwnedFd,
    flags: Option<Flags>,
    out: Resident,
    failed: Option<Errno>,
}

impl Look {
    /// Counts the part of a mapping that lies in `first..end`.
    fn mapping(&mut self, mapping: Mapping, first: usize, end: usize) {
        let (from, to) = (mapping.start.max(first), mapping.end.min(end));
        let page = mapping.page_size.max(page_size());
        let done = match self.scan(from, to, page) {
            // An older kernel, or a filter.
            Err(Errno::NOTTY | Errno::INVAL | Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
                self.entries(mapping, from, to, page)
            }
            done => done,
        };
        if let Err(error) = done {
            self.failed = Some(error);
        }
    }

    /// Counts by PAGEMAP_SCAN.
    fn scan(&mut self, from: usize, to: usize, page: usize) -> Result<(), Errno> {
        let mut at = from;
        while at < to {
            let mut regions = [Region::EMPTY; 64];
            // Relaxed: it protects no other memory.
            let guard = if HAS_GUARDS.load(Ordering::Relaxed) { GUARD } else { 0 };
            let wanted = Wanted { without: 0, returned: RETURNED | guard };
            let (count, looked) = match scan::scan(self.pagemap.as_fd(), at..to, wanted, &mut regions) {
                Err(Errno::INVAL) if guard != 0 => {
                    HAS_GUARDS.store(false, Ordering::Relaxed);
                    continue;
                }
                found => found?,
            };
            self.out.source = Source::Scan as u32;
            for region in regions.iter().take(count) {
                self.region(region.start as usize, region.end as usize, region.categories, page);
            }
            at = looked.max(at + page_size());
        }
        Ok(())
    }

    fn region(&mut self, from: usize, to: usize, categories: u64, page: usize) {
        let bytes = to - from;
        if categories & GUARD != 0 {
            // It holds nothing.
        } else if categories & SWAPPED != 0 {
            self.out.swapped += bytes as u64;
        } else if categories & ZERO_PAGE != 0 {
            self.out.zero += bytes as u64;
        } else if page > page_size() {
            self.hugetlb(bytes, page);
        } else if categories & HUGE != 0 {
            self.out.add(bytes, pmd_size());
            self.out.huge += bytes as u64;
        } else {
            self.folios(from, to);
        }
    }

    fn hugetlb(&mut self, bytes: usize, page: usize) {
        self.out.add(bytes, page);
        self.out.hugetlb += bytes as u64;
        if page >= pmd_size() {
            self.out.huge += bytes as u64;
        }
    }

    /// Counts by the entries of /proc/self/pagemap, and by what smaps says of a whole mapping.
    fn entries(&mut self, mapping: Mapping, from: usize, to: usize, page: usize) -> Result<(), Errno> {
        self.out.source = Source::Entries as u32;
        let mut small = 0;
        entries(&self.pagemap, from, to, |entry| {
            if entry & ENTRY_GUARD != 0 {
                // It holds nothing.
            } else if entry & ENTRY_SWAPPED != 0 {
                self.out.swapped += page_size() as u64;
            } else if entry & ENTRY_PRESENT != 0 {
                match (page > page_size(), &mut self.flags) {
                    (true, _) => {
                        self.out.add(page_size(), page);
                        self.out.hugetlb += page_size() as u64;
                        self.out.huge += if page >= pmd_size() { page_size() as u64 } else { 0 };
                    }
                    (false, Some(flags)) if flags.is_zero(entry) => self.out.zero += page_size() as u64,
                    (false, Some(flags)) => {
                        let size = flags.folio(entry);
                        self.out.add(page_size(), size);
                    }
                    (false, None) => small += page_size(),
                }
            }
        })?;
        self.out.folios_known = u32::from(self.flags.is_some());
        let mut huge = 0;
        if (from, to) == (mapping.start, mapping.end) && page == page_size() {
            huge = match mapping.huge {
                Some(huge) => huge,
                None => {
                    let mut found = 0;
                    maps::read(from, to, |mapping| found = mapping.huge.unwrap_or(0))?;
                    found
                }
            };
        }
        self.out.huge += huge as u64;
        let huge = huge.min(small);
        self.out.add(huge, pmd_size());
        self.out.add(small - huge, page_size());
        Ok(())
    }

    /// Adds resident OS pages that no huge entry maps.
    fn folios(&mut self, from: usize, to: usize) {
        let Some(flags) = &mut self.flags else { return self.out.add(to - from, page_size()) };
        let out = &mut self.out;
        let known = entries(&self.pagemap, from, to, |entry| {
            // It may have gone back since the scan.
            if entry & ENTRY_PRESENT != 0 {
                out.add(page_size(), flags.folio(entry));
            }
        });
        out.folios_known = u32::from(known.is_ok());
    }
}

const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
/// Linux 6.15.
const ENTRY_GUARD: u64 = 1 << 58;
/// The number of the page frame; 0 without the right to know it.
const ENTRY_FRAME: u64 = (1 << 55) - 1;

/// Calls `each` with the entry of each OS page.
fn entries(pagemap: &OwnedFd, from: usize, to: usize, mut each: impl FnMut(u64)) -> Result<(), Errno> {
    let mut buffer = [0u8; 4096];
    let mut at = from;
    while at < to {
        let most = ((to - at) / page_size() * 8).min(buffer.len());
        let got = rustix::io::pread(pagemap, &mut buffer[..most], (at / page_size() * 8) as u64)?;
        let (words, _) = buffer[..got].as_chunks::<8>();
        if words.is_empty() {
            return Err(Errno::IO);
        }
        for word in words {
            each(u64::from_ne_bytes(*word));
            at += page_size();
        }
    }
    Ok(())
}

/// /proc/kpageflags, for processes that may read it.
struct Flags {
    file: OwnedFd,
    /// The folio that was found last: its first frame, and how many it has.
    last: (u64, u64),
}

const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;
const ZERO: u64 = 1 << 24;

impl Flags {
    fn open() -> Option<Flags> {
        let flags = Flags { file: open(c"/proc/kpageflags").ok()?, last: (0, 0) };
        // Without CAP_SYS_ADMIN the entries have no numbers of frames.
        let page = (&raw const flags).addr() & !(page_size() - 1);
        let mut frame = 0;
        entries(&open(c"/proc/self/pagemap").ok()?, page, page + page_size(), |e| frame = e & ENTRY_FRAME).ok()?;
        (frame != 0).then_some(flags)
    }

    fn read(&self, frame: u64) -> u64 {
        let mut word = [0u8; 8];
        match rustix::io::pread(&self.file, &mut word, frame * 8) {
            Ok(8) => u64::from_ne_bytes(word),
            _ => 0,
        }
    }

    fn is_zero(&self, entry: u64) -> bool {
        self.read(entry & ENTRY_FRAME) & ZERO != 0
    }

    /// Bytes of the contiguous page that the OS page of an entry is part of.
    fn folio(&mut self, entry: u64) -> usize {
        let frame = entry & ENTRY_FRAME;
        let (first, count) = self.last;
        if !(first..first + count).contains(&frame) {
            self.last = self.find(frame);
        }
        self.last.1 as usize * page_size()
    }

    /// First frame and length of the folio with this frame.
    fn find(&self, frame: u64) -> (u64, u64) {
        let mut head = frame;
        let mut flags = self.read(head);
        while flags & COMPOUND_TAIL != 0 && head > 0 {
            head -= 1;
            flags = self.read(head);
        }
        if flags & COMPOUND_HEAD == 0 {
            return (frame, 1);
        }
        let mut count = 1;
        while self.read(head + count) & COMPOUND_TAIL != 0 {
            count += 1;
        }
        (head, count)
    }
}
