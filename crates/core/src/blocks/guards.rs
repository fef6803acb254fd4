//! Guards: makes OS pages inaccessible at the end of hardened slabs and after large blocks (`harden.rs`). Each may
//! split a mapping, so their number is limited.

use crate::Os;
use crate::pages::Pages;
use crate::system::sync::{AtomicUsize, Ordering};

/// Maximum number of guards of a process: each may split a mapping in three, and a process may have 65,530 mappings.
const MOST_GUARDS: usize = 16_384;

/// The guards of the process.
#[derive(Debug, Default)]
pub struct Guards {
    count: AtomicUsize,
}

impl Guards {
    /// No guards.
    pub const fn new() -> Self {
        Guards { count: AtomicUsize::new(0) }
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Makes an OS page inaccessible; false if there are too many guards, or the system refuses.
    ///
    /// # Safety
    /// The OS page must be committed, the caller's, and not used.
    pub(crate) unsafe fn guard<O: Os>(&self, pages: &Pages<O>, p: *mut u8) -> bool {
        // Relaxed: the limit may be exceeded by a few.
        if self.count() >= MOST_GUARDS {
            return false;
        }
        // SAFETY: as the caller promises.
        let done = unsafe { pages.os.guard(p, pages.page_size()) };
        self.count.fetch_add(usize::from(done), Ordering::Relaxed);
        done
    }

    /// Makes a guard accessible again. False if the system refuses.
    ///
    /// # Safety
    /// It must be a guard of the caller's.
    pub(crate) unsafe fn unguard<O: Os>(&self, pages: &Pages<O>, p: *mut u8) -> bool {
        // SAFETY: a guard is an OS page of an arena.
        let done = unsafe { pages.os.commit(p, pages.page_size()) };
        self.count.fetch_sub(usize::from(done), Ordering::Relaxed);
        done
    }
}
