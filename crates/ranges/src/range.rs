//! A range that was allocated, and how it is allocated.

use crate::advice::{self, Advice};
use crate::error::Error;
use crate::kernel;
use crate::maps;
use crate::named::{self, Named};
use crate::populate::{self, Access};
use crate::prefault::{Incomplete, Prefault, Progress};
use crate::resident::{self, Resident};
use crate::segment;
use crate::settings::{self, Transparent};
use core::ffi::CStr;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{ControlFlow, Deref, DerefMut};
use core::ptr::NonNull;
use rustix::fd::AsRawFd;
use rustix::io::Errno;

/// Pages that a range is made of. Sizes are in bytes, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// OS pages, and no larger ones.
    Small,
    /// Transparent huge pages of at least this size: of 2 MiB, or smaller ones (mTHP, Linux 6.8). The kernel may split
    /// them later.
    Transparent(usize),
    /// Pages of this size from a pool of the machine (hugetlb).
    Hugetlb(usize),
}

impl Pages {
    /// Bytes of one of them.
    pub fn size(self) -> usize {
        match self {
            Pages::Small => kernel::page_size(),
            Pages::Transparent(size) | Pages::Hugetlb(size) => size,
        }
    }

    /// The next smaller pages, for a request for pages of `requested` bytes.
    fn smaller(self, requested: usize) -> Pages {
        match self {
            // The smallest mTHP has four OS pages.
            Pages::Transparent(size) if size > 4 * kernel::page_size() => Pages::Transparent(size / 2),
            Pages::Small | Pages::Transparent(_) => Pages::Small,
            Pages::Hugetlb(size) if size > SMALLEST_HUGETLB => Pages::Hugetlb(size / 2),
            Pages::Hugetlb(_) if requested <= kernel::page_size() => Pages::Small,
            Pages::Hugetlb(_) => Pages::Transparent(kernel::pmd_size().min(requested)),
        }
    }

    fn are_possible(self) -> bool {
        let page = kernel::page_size();
        match self {
            Pages::Small => true,
            Pages::Transparent(size) => size.is_power_of_two() && size > page && size <= MOST,
            Pages::Hugetlb(size) => size.is_power_of_two() && size >= SMALLEST_HUGETLB.min(page) && size <= MOST,
        }
    }
}

/// No processor has smaller pages in a pool.
const SMALLEST_HUGETLB: usize = 64 << 10;
/// No processor has larger pages.
const MOST: usize = 16 << 30;

/// What is requested.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pages: Pages,
    strict: bool,
    lazy: bool,
}

impl Request {
    /// A range in these pages. If the kernel cannot give them, it gets the next smaller ones, down to OS pages, see
    /// [`Range::why_smaller`].
    pub const fn new(pages: Pages) -> Request {
        Request { pages, strict: false, lazy: false }
    }

    /// An error instead of other pages. Transparent huge pages are populated at once, because the kernel decides only
    /// then.
    #[must_use]
    pub const fn strict(self) -> Request {
        Request { strict: true, ..self }
    }

    /// Pages of a pool are only reserved, and populated when they are touched or prefaulted. Without this they are
    /// populated at once: if a limit of a cgroup or a memory policy forbids them, that is an error, where a later touch
    /// would be SIGBUS.
    #[must_use]
    pub const fn lazy(self) -> Request {
        Request { lazy: true, ..self }
    }

    /// A range of at least `bytes`, in whole pages; all bytes are 0. The child of a fork does not have it, and must not
    /// drop it: another mapping of the child may be at its addresses.
    ///
    /// # Errors
    /// Why it failed.
    pub fn allocate(self, bytes: usize) -> Result<Range, Error> {
        Ok(Range { memory: self.memory(bytes, libc::MAP_PRIVATE)?, kind: PhantomData })
    }

    /// A range of at least `bytes` that is shared with the children that are forked later; all bytes are 0.
    ///
    /// # Errors
    /// Why it failed.
    pub fn allocate_shared(self, bytes: usize) -> Result<Range<Shared>, Error> {
        Ok(Range { memory: self.memory(bytes, libc::MAP_SHARED)?, kind: PhantomData })
    }

    /// A range of at least `bytes` in a file of hugetlbfs that processes of this user share by its name. The first
    /// process makes the file, the others get the same file, and the last one that drops its range removes it. If a
    /// crash left a file, the next process that opens the name removes it, or [`named::sweep`]. If `bytes` is 0, the
    /// file must be in use, and the range is as long as the file.
    ///
    /// The pages must be those of a pool; the range never gets others. A new file is 0 everywhere. A child of a fork
    /// that goes on using the range must open it itself; otherwise the name disappears when its parent drops the range.
    ///
    /// # Errors
    /// - [`Error::NoMount`], [`Error::NotAllowed`]: no hugetlbfs, or none where this process may write; the file is
    ///   another user's.
    /// - [`Error::PoolShort`], [`Error::Limit`]: see [`Request::allocate`].
    /// - [`Error::NotFound`], [`Error::Mismatch`]: no process has it; it has another length.
    /// - [`Error::BadValue`]: other pages, or a name that is empty, longer than 100 bytes, or has a slash.
    pub fn open(self, name: impl AsRef<[u8]>, bytes: usize) -> Result<Range<Shared>, Error> {
        let (size, bytes) =
            self.of_pool(bytes.max(1)).map(|(size, whole)| (size, if bytes == 0 { 0 } else { whole }))?;
        let path = named::path_of(name.as_ref(), size)?;
        let (named, mut memory) = named::open(&path, bytes, |named| {
            let mapped = kernel::map_file(named.bytes, libc::MAP_SHARED, named.file.as_raw_fd());
            self.populated(mapped.map_err(|error| hugetlb_error(error, size, named.bytes))?, named.bytes)
        })?;
        memory.named = Some(named);
        Ok(Range { memory, kind: PhantomData })
    }

    /// A range of at least `bytes` in a SysV segment (SHM_HUGETLB), which other processes can attach by its number
    /// ([`Range::attach`]) as long as some process has it. It disappears with the last of them, however that ends. The
    /// pages must be those of a pool; the range never gets others.
    ///
    /// # Errors
    /// - [`Error::NotAllowed`]: this takes CAP_IPC_LOCK, or the group of /proc/sys/vm/hugetlb_shm_group.
    /// - [`Error::PoolShort`], [`Error::NoSuchPages`], [`Error::BadValue`].
    /// - [`Error::Limit`]: kernel.shmmax, kernel.shmall or kernel.shmmni.
    pub fn segment(self, bytes: usize) -> Result<Range<Shared>, Error> {
        let (size, bytes) = self.of_pool(bytes)?;
        let (id, start) = segment::make(bytes, size)?;
        let mut memory = self.populated(start, bytes)?;
        memory.segment = Some(id);
        Ok(Range { memory, kind: PhantomData })
    }

    /// Page size and whole length of a range that can be in pages of a pool only.
    fn of_pool(self, bytes: usize) -> Result<(usize, usize), Error> {
        match self.pages {
            Pages::Hugetlb(size) => Ok((size, self.whole(bytes)?)),
            _ => Err(Error::BadValue),
        }
    }

    /// The memory of a new mapping in pages of a pool, populated unless it is to be lazy.
    fn populated(self, start: *mut u8, bytes: usize) -> Result<Memory, Error> {
        let memory = Memory::new(start, bytes, self.pages)?;
        if !self.lazy {
            memory.populate_reserved()?;
        }
        Ok(memory)
    }

    /// `bytes` in whole pages.
    fn whole(self, bytes: usize) -> Result<usize, Error> {
        if bytes == 0 || bytes > isize::MAX as usize - MOST || !self.pages.are_possible() {
            return Err(Error::BadValue);
        }
        Ok(bytes.next_multiple_of(self.pages.size()))
    }

    fn memory(self, bytes: usize, flags: i32) -> Result<Memory, Error> {
        self.whole(bytes)?;
        let (mut pages, mut why) = (self.pages, None);
        loop {
            let bytes = bytes.next_multiple_of(pages.size());
            match self.try_pages(pages, bytes, flags) {
                Ok((mut memory, doubt)) => {
                    memory.why_smaller = why.or(doubt);
                    return Ok(memory);
                }
                Err(error) if self.strict || pages == Pages::Small => return Err(error),
                Err(error) => why = why.or(Some(error)),
            }
            pages = pages.smaller(self.pages.size());
        }
    }

    /// Makes the memory in these pages. Also returns why it is not certain that they are such pages.
    fn try_pages(self, pages: Pages, bytes: usize, flags: i32) -> Result<(Memory, Option<Error>), Error> {
        let memory = |start: *mut u8| {
            let memory = Memory::new(start, bytes, pages)?;
            if flags & libc::MAP_SHARED == 0 {
                // When parent and child share a page of a pool, a write copies it, and raises SIGBUS if the pool has no
                // page for the copy.
                // SAFETY: the range is new; its contents stay.
                unsafe { kernel::advise(start, bytes, libc::MADV_DONTFORK)? };
            }
            Ok::<_, Error>(memory)
        };
        match pages {
            Pages::Small => {
                let memory = memory(kernel::map(bytes, flags)?)?;
                // A kernel without huge pages refuses, and needs no such advice.
                let _ = memory.advise(Advice::NoHuge);
                Ok((memory, None))
            }
            Pages::Transparent(size) => {
                let doubt = match settings::transparent(size, flags & libc::MAP_SHARED != 0) {
                    Transparent::On => None,
                    Transparent::NotKnown => Some(Error::NotKnown),
                    Transparent::Off => return Err(Error::HugeOff),
                    Transparent::None => return Err(Error::NoSuchPages),
                };
                let memory = memory(kernel::map_aligned(bytes, size, flags)?)?;
                memory.advise(Advice::Huge).map_err(|_| Error::NoSuchPages)?;
                if self.strict {
                    memory.populate_transparent(size)?;
                }
                Ok((memory, doubt.filter(|_| !self.strict)))
            }
            Pages::Hugetlb(size) => {
                let size_flag = size.trailing_zeros().cast_signed() << libc::MAP_HUGE_SHIFT;
                let mapped = kernel::map(bytes, flags | libc::MAP_HUGETLB | size_flag);
                let memory = memory(mapped.map_err(|error| hugetlb_error(error, size, bytes))?)?;
                if !self.lazy {
                    memory.populate_reserved()?;
                }
                Ok((memory, None))
            }
        }
    }
}

/// Why there is no mapping in pages of a pool.
fn hugetlb_error(error: Errno, size: usize, bytes: usize) -> Error {
    match error {
        Errno::NOMEM if settings::available(size).is_some_and(|pages| pages >= bytes / size) => Error::Limit,
        Errno::NOMEM => Error::PoolShort,
        Errno::INVAL | Errno::NOENT | Errno::NODEV | Errno::NOSYS => Error::NoSuchPages,
        other => other.into(),
    }
}

/// The mapping of a range, which it owns.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    pages: Pages,
    why_smaller: Option<Error>,
    /// Its file of hugetlbfs, closed after it is unmapped.
    named: Option<Named>,
    /// The number of its segment.
    segment: Option<i32>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference to it outlives it.
        unsafe { kernel::unmap(self.start.as_ptr(), self.bytes) };
    }
}

impl Memory {
    fn new(start: *mut u8, bytes: usize, pages: Pages) -> Result<Memory, Error> {
        let start = NonNull::new(start).ok_or(Error::NoMemory)?;
        Ok(Memory { start, bytes, pages, why_smaller: None, named: None, segment: None })
    }

    fn advise(&self, advice: Advice) -> Result<(), Error> {
        // SAFETY: the range is this value's own; the two kinds of advice that are given here change no contents.
        unsafe { advice::advise(self.start.as_ptr(), self.bytes, advice) }
    }

    /// Populates a fresh range and checks that it got pages of `size` bytes: each is touched once, and then all OS
    /// pages must be resident.
    fn populate_transparent(&self, size: usize) -> Result<(), Error> {
        let (start, page) = (self.start.as_ptr(), kernel::page_size());
        let each = |f: &dyn Fn(*mut u8) -> Result<(), Error>| {
            (0..self.bytes).step_by(size).try_for_each(|at| f(start.wrapping_add(at)))
        };
        each(&|huge| populate::populate(huge, page, Access::Write))?;
        if self.is_resident() {
            return Ok(());
        }
        // The kernel collects memory for a collapse, which it does not do for a fault, depending on the settings.
        if size == kernel::pmd_size() {
            // SAFETY: contents stay.
            each(&|huge| unsafe { advice::advise(huge, size, Advice::Collapse) }).map_err(|_| Error::NotHuge)?;
        }
        if self.is_resident() { Ok(()) } else { Err(Error::NotHuge) }
    }

    fn is_resident(&self) -> bool {
        let mut all = true;
        kernel::resident(self.start.as_ptr(), self.bytes, |resident| all &= resident).is_ok() && all
    }

    /// Populates a fresh range of a pool, whose pages are reserved.
    fn populate_reserved(&self) -> Result<(), Error> {
        let populated = Prefault::write().run(self.start.as_ptr(), self.bytes);
        populated.map_err(|incomplete| match incomplete.error {
            // The pages are there, and the kernel would send SIGBUS.
            Error::Inaccessible => Error::Limit,
            error => error,
        })
    }
}

/// Memory of this process alone, as a slice of bytes.
#[derive(Clone, Copy, Debug)]
pub enum Private {}

/// Memory that other processes may have too, so there are no references to it.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

/// A range in pages of a chosen size, which it gives back when it is dropped. A private one is a slice of bytes.
pub struct Range<K = Private> {
    memory: Memory,
    kind: PhantomData<K>,
}

// SAFETY: the range owns its memory, which is plain bytes, and no thread of its own uses it.
unsafe impl<K> Send for Range<K> {}
// SAFETY: as above; a shared reference to it only reads, or calls the system.
unsafe impl<K> Sync for Range<K> {}

impl<K> Range<K> {
    /// Its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.start.as_ptr()
    }

    /// Its bytes: whole pages.
    pub fn bytes(&self) -> usize {
        self.memory.bytes
    }

    /// Its pages.
    pub fn pages(&self) -> Pages {
        self.memory.pages
    }

    /// Why it has smaller pages than requested; [`Error::NotKnown`]: it may have smaller ones. `None`: it has the
    /// requested pages.
    pub fn why_smaller(&self) -> Option<Error> {
        self.memory.why_smaller
    }

    /// [`Prefault::run`] of the whole range.
    ///
    /// # Errors
    /// As [`Prefault::run`].
    pub fn prefault(&self, how: Prefault) -> Result<(), Incomplete> {
        how.run(self.as_ptr(), self.bytes())
    }

    /// [`Prefault::run_with`] of the whole range.
    ///
    /// # Errors
    /// As [`Prefault::run_with`].
    pub fn prefault_with(
        &self,
        how: Prefault,
        progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), Incomplete> {
        how.run_with(self.as_ptr(), self.bytes(), progress)
    }

    /// What the range holds, by the size of pages.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn resident(&self) -> Result<Resident, Error> {
        resident::of(self.as_ptr(), self.bytes())
    }

    /// Advises the whole range.
    ///
    /// # Errors
    /// See [`Advice`].
    pub fn advise(&mut self, advice: Advice) -> Result<(), Error> {
        // SAFETY: any bytes are valid contents, also 0; a private range is borrowed mutably, and to a shared one there
        // are no references.
        unsafe { advice::advise(self.as_ptr(), self.bytes(), advice) }
    }

    /// The parts of the range, for callers that keep them themselves.
    pub fn into_parts(self) -> Parts {
        let mut memory = core::mem::ManuallyDrop::new(self.memory);
        Parts {
            start: memory.start.as_ptr(),
            bytes: memory.bytes,
            pages: memory.pages,
            why_smaller: memory.why_smaller,
            named: memory.named.take(),
            segment: memory.segment,
        }
    }

    /// The range of these parts.
    ///
    /// # Safety
    /// They must be those of one [`Range::into_parts`] of a range of this kind, and used once.
    pub unsafe fn from_parts(parts: Parts) -> Option<Self> {
        let Parts { start, bytes, pages, why_smaller, named, segment } = parts;
        let start = NonNull::new(start)?;
        Some(Range { memory: Memory { start, bytes, pages, why_smaller, named, segment }, kind: PhantomData })
    }
}

impl Range<Shared> {
    /// Attaches the segment of this number, which another process has made ([`Request::segment`]).
    ///
    /// # Errors
    /// - [`Error::NotFound`]: no process has it.
    /// - [`Error::NotAllowed`]: it is another user's.
    /// - [`Error::NoMemory`]: there is no address space.
    pub fn attach(id: i32) -> Result<Range<Shared>, Error> {
        let bytes = segment::bytes(id)?;
        let start = segment::attach(id)?;
        let size = maps::page_size_at(start).unwrap_or(kernel::page_size());
        let pages = if size > kernel::page_size() { Pages::Hugetlb(size) } else { Pages::Small };
        let mut memory = Memory::new(start, bytes.next_multiple_of(size), pages)?;
        memory.segment = Some(id);
        Ok(Range { memory, kind: PhantomData })
    }

    /// The number of its segment, by which other processes attach it.
    pub fn segment(&self) -> Option<i32> {
        self.memory.segment
    }

    /// Whether this process made its file: it is 0 everywhere as far as no other process has written.
    pub fn is_new(&self) -> bool {
        self.memory.named.as_ref().is_some_and(|named| named.is_new)
    }

    /// The path of its file.
    pub fn path(&self) -> Option<&CStr> {
        self.memory.named.as_ref().map(|named| named.path.as_c())
    }
}

/// What a range is made of, without a destructor. See [`Range::into_parts`].
#[derive(Debug)]
#[expect(missing_docs, reason = "see the methods of `Range`")]
pub struct Parts {
    pub start: *mut u8,
    pub bytes: usize,
    pub pages: Pages,
    pub why_smaller: Option<Error>,
    pub named: Option<Named>,
    pub segment: Option<i32>,
}

impl Deref for Range<Private> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped as long as it lives, all its bytes have values, and only a unique reference to it
        // allows to change them.
        unsafe { core::slice::from_raw_parts(self.as_ptr(), self.bytes()) }
    }
}

impl DerefMut for Range<Private> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the range is borrowed uniquely.
        unsafe { core::slice::from_raw_parts_mut(self.as_ptr(), self.bytes()) }
    }
}

impl<K> fmt::Debug for Range<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}
