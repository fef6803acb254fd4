//! Advice on a range that the program has.

use crate::error::Error;
use crate::kernel::{self, page_size};
use rustix::io::Errno;

/// What the kernel is advised to do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum Advice {
    /// Transparent huge pages from the next fault on, where the settings say `madvise` or `always`.
    Huge = 1,
    /// OS pages from the next fault on.
    NoHuge = 2,
    /// Puts resident memory into huge pages now, whatever `enabled` says (Linux 6.1). [`Error::NotHuge`] if there is no
    /// contiguous memory for all of it.
    Collapse = 3,
    /// Not needed soon: the kernel takes it first when memory is short (Linux 5.4).
    Cold = 4,
    /// Not needed for long: goes to swap or its file now (Linux 5.4).
    PageOut = 5,
    /// No longer needed: the memory goes back at once. Private memory reads as 0 afterwards, a mapped file as the
    /// file; memory that is shared keeps its contents.
    Free = 6,
}

/// The kernel's number (Linux 6.1); the crate libc has no name for it with musl.
const MADV_COLLAPSE: libc::c_int = 25;

impl Advice {
    /// The advice of this number.
    pub fn from_number(number: u32) -> Option<Advice> {
        [Advice::Huge, Advice::NoHuge, Advice::Collapse, Advice::Cold, Advice::PageOut, Advice::Free]
            .into_iter()
            .find(|advice| *advice as u32 == number)
    }

    fn number(self) -> libc::c_int {
        match self {
            Advice::Huge => libc::MADV_HUGEPAGE,
            Advice::NoHuge => libc::MADV_NOHUGEPAGE,
            Advice::Collapse => MADV_COLLAPSE,
            Advice::Cold => libc::MADV_COLD,
            Advice::PageOut => libc::MADV_PAGEOUT,
            Advice::Free => libc::MADV_DONTNEED,
        }
    }
}

/// Gives advice on the OS pages that are completely in a range; does nothing if there are none.
///
/// # Errors
/// - [`Error::Inaccessible`]: a part is not mapped.
/// - [`Error::NotHuge`]: see [`Advice::Collapse`].
/// - [`Error::Unsupported`]: the kernel does not have this advice, or not for mappings of this kind. For example, a
///   range to be freed may not begin inside a hugetlb page.
///
/// # Safety
/// For [`Advice::Free`], nothing may rely on the contents of the range, and no reference to it may be in use. Other
/// advice is safe for any addresses.
pub unsafe fn advise(start: *mut u8, bytes: usize, advice: Advice) -> Result<(), Error> {
    let page = page_size();
    let before = start.addr().wrapping_neg() & (page - 1);
    let whole = bytes.saturating_sub(before) & !(page - 1);
    if whole == 0 {
        return Ok(());
    }
    let first = start.wrapping_add(before);
    // SAFETY: as the caller promises.
    match unsafe { kernel::advise(first, whole, advice.number()) } {
        Ok(()) => Ok(()),
        Err(Errno::NOMEM) if kernel::resident(first, whole, |_| ()) == Err(Errno::NOMEM) => Err(Error::Inaccessible),
        // Pages that are just in use elsewhere, and no memory.
        Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) if advice == Advice::Collapse => Err(Error::NotHuge),
        Err(error) => Err(error.into()),
    }
}
