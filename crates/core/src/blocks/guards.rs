//! Guards: makes OS pages inaccessible at the end of hardened slabs and after large blocks (`harden.rs`). Each may
//! split a mapping, so their number is limited.

use crate::Os;
use crate::pages::Pages;
use crate::pages::owned::Owned;
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

    /// Makes an OS page inaccessible; false if there are too many guards, or the system refuses. Its holder does not
    /// touch it until [`Guards::unguard`].
    pub(crate) fn guard<O: Os>(&self, pages: &Pages<O>, page: Owned) -> bool {
        // Relaxed: the limit may be exceeded by a few.
        if self.count() >= MOST_GUARDS {
            return false;
        }
        // SAFETY: the OS page is the holder's.
        let done = unsafe { pages.os.guard(page.start(), page.len()) };
        self.count.fetch_add(usize::from(done), Ordering::Relaxed);
        done
    }

    /// Makes a guard accessible again. False if the system refuses.
    pub(crate) fn unguard<O: Os>(&self, pages: &Pages<O>, guard: Owned) -> bool {
        // SAFETY: the OS page is the holder's.
        let done = unsafe { pages.os.commit(guard.start(), guard.len()) };
        self.count.fetch_sub(usize::from(done), Ordering::Relaxed);
        done
    }
}
