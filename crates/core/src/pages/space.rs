//! The address space: the system, the settings of users, the arenas, and the page map.

use crate::Os;
use crate::pages::arena::Arenas;
use crate::pages::page_map::PageMap;
use crate::system::policy::Policy;
use crate::system::sync::{AtomicUsize, Ordering};

/// The address space that ranges of chunks are cut from.
#[derive(Debug)]
pub struct Space<O: Os> {
    /// Maps an address to a size class.
    pub map: PageMap,
    /// The system.
    pub os: O,
    /// The settings of users.
    pub policy: Policy,
    page_size: AtomicUsize,
    /// The reserved address ranges that chunks come from.
    pub arenas: Arenas,
}

impl<O: Os> Space<O> {
    /// Where an observer in another process finds the arenas.
    pub(crate) const ARENAS_AT: usize = core::mem::offset_of!(Self, arenas);

    /// An address space in which nothing is reserved yet.
    pub const fn new(os: O) -> Self {
        Space { map: PageMap::new(), os, policy: Policy::new(), page_size: AtomicUsize::new(0), arenas: Arenas::new() }
    }

    /// Reads the OS page size from the system, at the first use.
    pub(crate) fn look_up_page_size(&self) {
        self.page_size.store(self.os.page_size(), Ordering::Relaxed);
    }

    /// Size of an OS page in bytes; 0 before the first use.
    #[inline]
    pub fn page_size(&self) -> usize {
        self.page_size.load(Ordering::Relaxed)
    }

    /// `size` rounded up to whole OS pages.
    #[inline]
    pub(crate) fn whole_pages(&self, size: usize) -> usize {
        let page = self.page_size();
        (size + page - 1) & !(page - 1)
    }
}
