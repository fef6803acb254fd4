//! The address space: the system, what users chose, the arenas, and the page map over them.

use crate::Os;
use crate::pages::arena::Arenas;
use crate::pages::page_map::PageMap;
use crate::system::policy::Policy;
use crate::system::sync::{AtomicUsize, Ordering};

/// What ranges of chunks are cut from.
#[derive(Debug)]
pub struct Space<O: Os> {
    /// From address to size class.
    pub map: PageMap,
    /// The system.
    pub os: O,
    /// What users chose.
    pub policy: Policy,
    page_size: AtomicUsize,
    /// The address ranges that memory comes from.
    pub arenas: Arenas,
}

impl<O: Os> Space<O> {
    /// Nothing is reserved yet.
    pub const fn new(os: O) -> Self {
        Space { map: PageMap::new(), os, policy: Policy::new(), page_size: AtomicUsize::new(0), arenas: Arenas::new() }
    }

    /// First use: asks the system for the size of its pages.
    pub(crate) fn look_up_page_size(&self) {
        self.page_size.store(self.os.page_size(), Ordering::Relaxed);
    }

    /// Bytes of an OS page; 0 before the first use.
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
