//! Guards: inaccessible OS pages behind hardened blocks (`harden.rs`). Each may split a mapping, so they are counted.

use crate::Os;
use crate::pages::Pages;
use crate::system::sync::{AtomicUsize, Ordering};

/// Guards of a process, at most: each may split a mapping in three, of which a process has 65,530.
const MOST_GUARDS: usize = 16_384;

/// Guards that there are.
#[derive(Debug, Default)]
pub struct Guards {
    count: AtomicUsize,
}

impl Guards {
    /// None.
    pub const fn new() -> Self {
        Guards { count: AtomicUsize::new(0) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Makes an OS page inaccessible; false if there are too many guards, or the system refuses.
    ///
    /// # Safety
    /// The OS page must be committed, the caller's, and not used.
    pub(crate) unsafe fn guard<O: Os>(&self, pages: &Pages<O>, p: *mut u8) -> bool {
        // Relaxed: a bound that may be passed by a few.
        if self.count() >= MOST_GUARDS {
            return false;
        }
        // SAFETY: as the caller promises.
        let done = unsafe { pages.os.guard(p, pages.page_size()) };
        self.count.fetch_add(usize::from(done), Ordering::Relaxed);
        done
    }

    /// Makes a guard an OS page like others.
    ///
    /// # Safety
    /// It must be a guard of the caller's.
    pub(crate) unsafe fn unguard<O: Os>(&self, pages: &Pages<O>, p: *mut u8) -> bool {
        // SAFETY: the OS page lies in an arena.
        let done = unsafe { pages.os.commit(p, pages.page_size()) };
        self.count.fetch_sub(usize::from(done), Ordering::Relaxed);
        done
    }
}
