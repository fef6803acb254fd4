//! Hardening (`harden=on`): errors of the program on the heap do less harm, and are seen earlier.
//!
//! Heaps have no caches then (`watch.rs`), so that nothing that guides the allocator lies in blocks: which are free is
//! said by bits out of line. On top of that
//! - a block is zeroed when it is freed, and ends the process if it is not zero any more when it is handed out again;
//! - a slab hands its free blocks out in random order, all of them from the beginning;
//! - the last OS page of a slab and the one behind a large block are inaccessible guards.
//!
//! Memory that was there before hardening began is used as before. Slabs are hardened from their first block on: such a
//! one *withholds* the blocks that reach into its last OS page, for good (`OwnSlab::withheld`; they count as used). A guard
//! is a mapping of its own, so there are at most `MOST_GUARDS`; beyond, the last OS page of a slab is only never used.
//!
//! Cost: no fast path, a memset for each free, a look at each block that is handed out, two system calls more for each
//! slab and each large block.

use crate::blocks::heap::Mine;
use crate::blocks::slab_record::{self, OwnSlab};
use crate::blocks::watch::Reason;
use crate::blocks::zero::{self, Habits};
use crate::blocks::{Blocks, class, misuse};
use crate::pages::chunk::Record;
use crate::system::random;
use crate::{CHUNK, Os};

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

    /// Hardens a new slab, `clean` or not, of which nothing is carved.
    #[cold]
    pub(crate) fn harden_slab(&self, slab: OwnSlab, clean: bool) {
        let page = self.page_size();
        let withheld = withheld(slab.class(), page);
        if withheld == class::capacity(slab.class()) {
            // OS pages are as long as chunks: no room for a guard.
            return;
        }
        let p = slab.chunk().start();
        // SAFETY: the chunk is committed, and the slab's owner's.
        unsafe {
            if !clean {
                p.write_bytes(0, CHUNK);
            }
            slab.carve_all(withheld, clean, page);
            slab.set_guarded(self.guards.guard(self, p.add(CHUNK - page)));
        }
    }

    /// Makes a slab's memory accessible again, before it is released. False if the system refuses.
    pub(crate) fn soften_slab(&self, slab: OwnSlab) -> bool {
        let last = slab.chunk().start().wrapping_add(CHUNK - self.page_size());
        // SAFETY: the guard is the slab's.
        if slab.is_guarded() && !unsafe { self.guards.unguard(self, last) } {
            return false;
        }
        slab.set_guarded(false);
        slab.set_hardened(None);
        true
    }

    /// A random free block of a hardened slab of the heap, all zero; does not return if it was written. True if no OS page of
    /// it holds memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_hardened(&self, heap: Mine<'_>, slab: OwnSlab) -> Option<(*mut u8, bool, u32)> {
        let mut state = heap.random.get();
        while state == 0 {
            state = self.os.random();
        }
        let random = random::next(&mut state);
        heap.random.set(state);
        let (p, clean) = slab.take_random(random, self.page_size())?;
        let class = slab.class();
        // Blocks with OS pages of their own are not looked at: those that were never touched would be read in.
        // SAFETY: the block is new, and the caller's.
        if !clean && class < class::FIRST_PAGED && !unsafe { zero::is_zeroed(p, class::SIZE[class] as usize) } {
            misuse::corrupted(self, p, class);
        }
        Some((p, clean, 0))
    }

    /// Zeroes a block that is being freed, if its slab is hardened.
    ///
    /// # Safety
    /// `p` must be a block of a slab of `class`, and the caller's.
    #[inline]
    pub(crate) unsafe fn wipe(&self, p: *mut u8, class: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            if slab_record::is_hardened(Record::at(p)) {
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
