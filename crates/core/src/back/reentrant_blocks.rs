//! Gives the memory of free blocks of reentrant calls back (`blocks/reentrant_blocks.rs`).

use crate::Os;
use crate::back::Back;
use crate::back::batch::Work;
use crate::blocks::reentrant_blocks::ReentrantBlocks;
use crate::blocks::{class, misuse};
use crate::pages::owned::Owned;
use crate::system::remote::DoubleFree;
use crate::system::sync::Ordering;

impl<O: Os> Back<O> {
    /// Gives back the memory of slabs of the reentrant reserve in which no block is used. Returns the bytes, and adds
    /// those that held memory to `held`. Under the batch lock, so that a fork finds no block on its way.
    pub(crate) fn purge_reentrant(&self, work: &mut Work, mut held: Option<&mut usize>) -> usize {
        let reentrant_blocks = &self.reentrant_blocks;
        if reentrant_blocks.slab_count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let slabs = (1..class::CLASSES).flat_map(|class| reentrant_blocks.slabs_of(class));
        let mut purge = |memory: Owned| {
            let before = if held.is_some() { self.held_by(memory, &mut work.touched) } else { 0 };
            let done = self.release(memory);
            if let Some(held) = held.as_mut().filter(|_| done) {
                **held += before;
            }
            done
        };
        let masks = work.punch.holes[0].room();
        let purge = |c| match ReentrantBlocks::purge_slab(c, masks, &mut purge) {
            Ok(bytes) => bytes,
            Err(DoubleFree) => misuse::double_free_seen_late(self, c),
        };
        slabs.map(purge).sum()
    }
}
