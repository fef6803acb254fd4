//! The watch mode of all heaps (`watch.rs`), and how a heap adopts it.

use crate::Os;
use crate::blocks::Blocks;
use crate::blocks::heap::Mine;
use crate::blocks::watch::{Reason, Watch};
use crate::system::sync::Ordering;

impl<O: Os> Blocks<O> {
    /// Returns the watch mode that all heaps are to adopt.
    #[inline]
    pub fn watch(&self) -> Watch {
        const SAMPLES: u8 = Reason::Samples as u8;
        // Relaxed, here and below: a heap that sees a change late follows at its next slow path.
        match self.watched.load(Ordering::Relaxed) & !(Reason::Marks as u8) {
            0 => Watch::Nothing,
            SAMPLES => Watch::Samples,
            _ if self.watches_everything() => Watch::Everything,
            _ => Watch::Allocations,
        }
    }

    /// Whether heaps have no caches, so that a free block has no tag.
    #[inline]
    pub(crate) fn watches_everything(&self) -> bool {
        const OTHERS: u8 = Reason::Samples as u8 | Reason::Sites as u8 | Reason::Marks as u8;
        self.watched.load(Ordering::Relaxed) & !OTHERS != 0
    }

    /// Whether there is this reason to watch.
    #[inline]
    pub fn has_reason(&self, reason: Reason) -> bool {
        self.watched.load(Ordering::Relaxed) & reason as u8 != 0
    }

    /// Adds a reason to watch, or removes it. Heaps follow at their next slow path, or in a handshake.
    pub fn set_reason(&self, reason: Reason, on: bool) {
        if on {
            self.watched.fetch_or(reason as u8, Ordering::Relaxed);
        } else {
            self.watched.fetch_and(!(reason as u8), Ordering::Relaxed);
        }
    }

    /// Makes a heap adopt the watch mode. It must not be one that was borrowed for a call.
    #[cold]
    pub(crate) fn update_watch(&self, heap: Mine<'_>) {
        let new = self.watch();
        // In the mode `Everything` it has no caches, otherwise it has.
        if new == Watch::Everything {
            self.drop_caches_of(heap);
        } else {
            if heap.watch.get() == Watch::Everything {
                heap.set_cached(true);
            }
            heap.set_fast(new == Watch::Nothing);
        }
        heap.watch.set(new);
        heap.sampler.stop();
    }

    /// Whether there is any reason to watch.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed) != 0
    }

    /// Whether calls on this heap have to be checked: they are watched, or were and the heap has not followed yet.
    #[inline(always)]
    pub fn is_watched_at(&self, heap: Mine<'_>) -> bool {
        self.watched.load(Ordering::Relaxed) | heap.watch.get() as u8 != 0
    }
}
