//! Hardening (`harden=on`): errors of the program on the heap do less harm, and are seen earlier.
//!
//! Heaps have no caches then (`watch.rs`), so that nothing that guides the allocator lies in blocks: which are free is
//! said by bits out of line. On top of that
//! - a block is zeroed when it is freed, and ends the process if it is not zero any more when it is handed out again;
//! - a slab hands its free blocks out in random order, all of them from the beginning;
//! - the last OS page of a slab and the one behind a large block are inaccessible guards.
//!
//! Memory that was there before hardening began is used as before. Slabs are hardened from their first block on: such a
//! one *withholds* the blocks that reach into its last OS page, for good ([`Chunk::withheld`]; they count as used). A guard
//! is a mapping of its own, so there are at most `MOST_GUARDS`; beyond, the last OS page of a slab is only never used.
//!
//! Cost: no fast path, a memset for each free, a look at each block that is handed out, two system calls more for each
//! slab and each large block.

use crate::blocks::habits::Habits;
use crate::blocks::watch::Reason;
use crate::blocks::{Blocks, class, habits, misuse, slab};
use crate::pages::chunk::Chunk;
use crate::pages::layout;
use crate::system::random;
use crate::{CHUNK, Heap, Os};

/// Blocks of a slab of `class` that reach into its last OS page.
fn withheld(class: usize, page: usize) -> u32 {
    class::capacity(class) - ((CHUNK - page) / class::SIZE[class] as usize) as u32
}

impl<O: Os> Blocks<O> {
    /// From now on new slabs and large blocks are hardened, and heaps lose their caches when they are told.
    pub fn harden(&self) {
        self.policy.set_harden(true);
        self.set_reason(Reason::Harden, true);
    }

    /// Whether the slab of `c` is hardened.
    ///
    /// # Safety
    /// `c` must be the record of a slab.
    #[inline]
    pub(crate) unsafe fn is_hardened(c: *const Chunk) -> bool {
        // SAFETY: the record is readable, and the field constant for a slab's life.
        unsafe { (*c).len != 0 }
    }

    /// Hardens a new slab, `clean` or not.
    ///
    /// # Safety
    /// The slab must be the caller's, and nothing of it carved.
    #[cold]
    pub(crate) unsafe fn harden_slab(&self, c: *mut Chunk, clean: bool) {
        // SAFETY: the slab is the caller's.
        unsafe {
            let page = self.page_size();
            let class = usize::from((*c).class);
            let withheld = withheld(class, page);
            if withheld == class::capacity(class) {
                // OS pages are as long as chunks: no room for a guard.
                return;
            }
            if !clean {
                layout::chunk(c).write_bytes(0, CHUNK);
            }
            slab::carve_all(c, withheld, clean, page);
            Chunk::set_apart(c, self.guards.guard(self, layout::chunk(c).add(CHUNK - page)));
        }
    }

    /// Makes a slab's memory accessible again, before it is released. False if the system refuses.
    ///
    /// # Safety
    /// The slab must be the caller's.
    pub(crate) unsafe fn soften_slab(&self, c: *mut Chunk) -> bool {
        // SAFETY: the slab is the caller's; its last OS page is committed.
        unsafe {
            if Chunk::is_apart(c) && !self.guards.unguard(self, layout::chunk(c).add(CHUNK - self.page_size())) {
                return false;
            }
            Chunk::set_apart(c, false);
            (*c).len = 0;
        }
        true
    }

    /// A random free block of a hardened slab, all zero; does not return if it was written. True if no OS page of it
    /// holds memory.
    ///
    /// # Safety
    /// The heap and the slab must be the caller's.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn take_hardened(&self, heap: *mut Heap, c: *mut Chunk) -> Option<(*mut u8, bool)> {
        // SAFETY: the heap and the slab are the caller's; the block is new.
        unsafe {
            let state = &mut (*heap).random;
            while *state == 0 {
                *state = self.os.random();
            }
            let (p, clean) = slab::take_random(c, random::next(state), self.page_size())?;
            let class = usize::from((*c).class);
            // Blocks with OS pages of their own are not looked at: those that nobody touched would be read in.
            if !clean && class < class::FIRST_PAGED && !habits::is_zeroed(p, class::SIZE[class] as usize) {
                misuse::corrupted(self, p, class);
            }
            Some((p, clean))
        }
    }

    /// Zeroes a block that is being freed, if its slab is hardened.
    ///
    /// # Safety
    /// `p` must be a block of a slab of `class`, and the caller's.
    #[inline]
    pub(crate) unsafe fn wipe(&self, p: *mut u8, class: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            if Self::is_hardened(layout::record(p)) {
                Habits::clear_block(self, p, class::SIZE[class] as usize, class);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a block that reaches into the guard, and one too many that is withheld.
    #[test]
    fn withheld_blocks() {
        for page in [4096, 16384] {
            for class in 1..class::CLASSES {
                let size = class::SIZE[class] as usize;
                let left = (class::capacity(class) - withheld(class, page)) as usize;
                assert!(left > 0 && left * size <= CHUNK - page && (left + 1) * size > CHUNK - page, "{size}");
            }
        }
        assert!((1..class::CLASSES).all(|class| withheld(class, CHUNK) == class::capacity(class)));
    }
}
