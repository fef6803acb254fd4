//! A range that was allocated, and how it is allocated.

use crate::advice::{self, Advice};
use crate::error::Error;
use crate::kernel;
use crate::populate::{self, Access};
use crate::prefault::{Incomplete, Prefault, Progress};
use crate::resident::{self, Resident};
use crate::settings::{self, Transparent};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{ControlFlow, Deref, DerefMut};
use core::ptr::NonNull;
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

    /// The next smaller ones.
    fn smaller(self) -> Pages {
        match self {
            // The smallest has four OS pages.
            Pages::Transparent(size) if size > 4 * kernel::page_size() => Pages::Transparent(size / 2),
            Pages::Small | Pages::Transparent(_) => Pages::Small,
            Pages::Hugetlb(size) if size > SMALLEST_HUGETLB => Pages::Hugetlb(size / 2),
            Pages::Hugetlb(_) => Pages::Transparent(kernel::pmd_size()),
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
    /// A range in such pages. Where the kernel has none it gets the next smaller ones, down to OS pages, see
    /// [`Range::why_smaller`].
    pub const fn new(pages: Pages) -> Request {
        Request { pages, strict: false, lazy: false }
    }

    /// No other pages: an error instead. Transparent huge pages are populated at once, as the kernel decides only then.
    #[must_use]
    pub const fn strict(self) -> Request {
        Request { strict: true, ..self }
    }

    /// Pages of a pool are reserved only, and come when they are touched or prefaulted. Without this they are populated
    /// at once: a limit of a cgroup or a memory policy that forbids them is an error then, and SIGBUS when they are
    /// touched later.
    #[must_use]
    pub const fn lazy(self) -> Request {
        Request { lazy: true, ..self }
    }

    /// A range of at least `bytes`, in whole pages; all bytes are 0. The child of a fork does not have it.
    ///
    /// # Errors
    /// Why there is none.
    pub fn allocate(self, bytes: usize) -> Result<Range, Error> {
        Ok(Range { memory: self.memory(bytes, libc::MAP_PRIVATE)?, kind: PhantomData })
    }

    /// A range of at least `bytes` that is shared with the children that are forked later; all bytes are 0.
    ///
    /// # Errors
    /// Why there is none.
    pub fn allocate_shared(self, bytes: usize) -> Result<Range<Shared>, Error> {
        Ok(Range { memory: self.memory(bytes, libc::MAP_SHARED)?, kind: PhantomData })
    }

    fn memory(self, bytes: usize, flags: i32) -> Result<Memory, Error> {
        if bytes == 0 || bytes > isize::MAX as usize - MOST || !self.pages.are_possible() {
            return Err(Error::BadValue);
        }
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
            pages = pages.smaller();
        }
    }

    /// Also returns why such pages are not certain.
    fn try_pages(self, pages: Pages, bytes: usize, flags: i32) -> Result<(Memory, Option<Error>), Error> {
        let memory = |start: *mut u8| {
            let start = NonNull::new(start).ok_or(Error::NoMemory)?;
            let memory = Memory { start, bytes, pages, why_smaller: None };
            if flags & libc::MAP_SHARED == 0 {
                // A page of a pool that parent and child share copies itself when it is written, and is SIGBUS where the
                // pool has no other one.
                // SAFETY: the range is new; its contents stay.
                unsafe { kernel::advise(start.as_ptr(), bytes, libc::MADV_DONTFORK)? };
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
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference to it outlives it.
        unsafe { kernel::unmap(self.start.as_ptr(), self.bytes) };
    }
}

impl Memory {
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
        each(&|huge| populate::populate(huge, page, page, Access::Write))?;
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

/// Memory that other processes may have too, so there is no reference to it.
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

    /// What it is made of.
    pub fn pages(&self) -> Pages {
        self.memory.pages
    }

    /// Why it has smaller pages than were requested; [`Error::NotKnown`]: it may have. `None`: it has the pages that
    /// were requested.
    pub fn why_smaller(&self) -> Option<Error> {
        self.memory.why_smaller
    }

    /// [`Prefault::run`] of the whole range.
    ///
    /// # Errors
    /// As that.
    pub fn prefault(&self, how: Prefault) -> Result<(), Incomplete> {
        how.run(self.as_ptr(), self.bytes())
    }

    /// [`Prefault::run_with`] of the whole range.
    ///
    /// # Errors
    /// As that.
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
        // SAFETY: bytes of 0 are as good as others; a private range is borrowed by the caller alone, and of a shared one
        // there are no references.
        unsafe { advice::advise(self.as_ptr(), self.bytes(), advice) }
    }

    /// The parts of the range, for callers that keep them themselves.
    pub fn into_parts(self) -> Parts {
        let memory = core::mem::ManuallyDrop::new(self.memory);
        Parts {
            start: memory.start.as_ptr(),
            bytes: memory.bytes,
            pages: memory.pages,
            why_smaller: memory.why_smaller,
        }
    }

    /// The range of these parts.
    ///
    /// # Safety
    /// They must be those of one [`Range::into_parts`] of a range of this kind, and used once.
    pub unsafe fn from_parts(parts: Parts) -> Option<Self> {
        let Parts { start, bytes, pages, why_smaller } = parts;
        let start = NonNull::new(start)?;
        Some(Range { memory: Memory { start, bytes, pages, why_smaller }, kind: PhantomData })
    }
}

/// What a range is made of, without its end. See [`Range::into_parts`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "see the methods of `Range`")]
pub struct Parts {
    pub start: *mut u8,
    pub bytes: usize,
    pub pages: Pages,
    pub why_smaller: Option<Error>,
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
