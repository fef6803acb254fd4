//! Hardening (`harden=on`): makes a program's memory errors do less harm, and detects them earlier.
//!
//! Heaps then have no caches (`watch.rs`), so the allocator relies on no data in blocks: bits out of line say which
//! blocks are free. In addition
//! - a block is zeroed when it is freed, and the process ends if the block is no longer zero when it is handed out
//!   again;
//! - a slab hands its free blocks out in random order, all of them from the beginning;
//! - the last OS page of a slab, and the OS page after a large block, are inaccessible guards.
//!
//! Memory from before hardening began is used as before. A slab is hardened from its first block on. It *withholds* the
//! blocks that reach into its last OS page, permanently (`OwnSlab::withheld`; they count as used). A guard is a mapping
//! of its own, so there are at most `MOST_GUARDS`; beyond that, the last OS page of a slab is not a guard, only never
//! used.
//!
//! Cost: no fast path, a memset for each free, a check of each block that is handed out, two more system calls for each
//! slab and each large block.

use crate::blocks::free_block::Free;
use crate::blocks::given::Small;
use crate::blocks::heap::Mine;
use crate::blocks::slab_record::{self, OwnSlab};
use crate::blocks::watch::Reason;
use crate::blocks::{Blocks, class, misuse};
use crate::system::random;
use crate::{CHUNK, Os};

/// Number of blocks of a slab of `class` that reach into its last OS page.
fn withheld(class: usize, page: usize) -> u32 {
    class::capacity(class) - ((CHUNK - page) / class::SIZE[class] as usize) as u32
}

impl<O: Os> Blocks<O> {
    /// Hardens new slabs and large blocks from now on. Heaps drop their caches when they adopt the watch mode.
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
            // An OS page is as long as a chunk, so there is no room for a guard.
            return;
        }
        let bytes = slab.bytes();
        if !clean {
            bytes.clear();
        }
        slab.carve_all(withheld, clean, page);
        slab.set_guarded(self.guards.guard(self, bytes.part(CHUNK - page, CHUNK)));
    }

    /// Makes all of a slab accessible again, before it is released. False if the system refuses.
    pub(crate) fn soften_slab(&self, slab: OwnSlab) -> bool {
        let last = slab.bytes().part(CHUNK - self.page_size(), CHUNK);
        if slab.is_guarded() && !self.guards.unguard(self, last) {
            return false;
        }
        slab.set_guarded(false);
        slab.set_hardened(None);
        true
    }

    /// Takes a random free block of a hardened slab of the heap; ends the process if the block is not zero. Returns it,
    /// whether it was known to be zero without a look, and 0: clean OS pages of hardened slabs are not counted.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_hardened(&self, heap: Mine<'_>, slab: OwnSlab) -> Option<(Free, bool, u32)> {
        let mut state = heap.random.get();
        while state == 0 {
            state = self.os.random();
        }
        let random = random::next(&mut state);
        heap.random.set(state);
        let (block, clean) = slab.take_random(random, self.page_size())?;
        let class = slab.class();
        // Blocks with OS pages of their own are not checked: that would bring OS pages into memory that were never
        // touched.
        if !clean && class < class::FIRST_PAGED && !Small::new(block, class).bytes().is_zero() {
            misuse::corrupted(self, block.start(), class);
        }
        Some((block, clean, 0))
    }

    /// Zeroes a block that is being freed, if its slab is hardened.
    #[inline]
    pub(crate) fn wipe(&self, small: Small) {
        if slab_record::is_hardened(small.record()) {
            self.habits.clear_block(self, small.bytes(), small.class());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a block that reaches into the guard, and one that is withheld without need.
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
