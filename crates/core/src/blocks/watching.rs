//! What heaps show to those who watch calls (`watch.rs`), and how a heap follows.

use crate::blocks::Blocks;
use crate::blocks::watch::{Reason, Watch};
use crate::system::sync::Ordering;
use crate::{Heap, Os};

impl<O: Os> Blocks<O> {
    /// What all heaps shall show.
    #[inline]
    pub fn watch(&self) -> Watch {
        // Relaxed, here and below: a heap that follows late does so at its next slow path.
        match self.watched.load(Ordering::Relaxed) & !(Reason::Marks as u8) {
            0 => Watch::Nothing,
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

    /// Adds a reason to watch, or takes it away. Heaps follow at their next slow path, or when they are told.
    pub fn set_reason(&self, reason: Reason, on: bool) {
        if on {
            self.watched.fetch_or(reason as u8, Ordering::Relaxed);
        } else {
            self.watched.fetch_and(!(reason as u8), Ordering::Relaxed);
        }
    }

    /// Brings a heap to what heaps shall show.
    ///
    /// # Safety
    /// The heap must be the caller's, and not one that was borrowed for a call.
    #[cold]
    pub(crate) unsafe fn show(&self, heap: *mut Heap) {
        let new = self.watch();
        // SAFETY: the heap is the caller's. It has no caches where it shows everything, and else it has.
        unsafe {
            let old = (*heap).watch;
            if new == Watch::Everything {
                self.drop_caches(heap);
            } else {
                if old == Watch::Everything {
                    Heap::set_cached(heap, true);
                }
                Heap::set_fast(heap, new == Watch::Nothing);
            }
            (*heap).watch = new;
        }
    }

    /// Whether there is any reason to watch.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed) != 0
    }

    /// Whether calls on this heap have to be looked at: somebody watches, or did and the heap has not followed yet.
    ///
    /// # Safety
    /// The heap must be the caller's.
    #[inline]
    pub unsafe fn is_watched_at(&self, heap: *mut Heap) -> bool {
        // SAFETY: the heap is the caller's.
        self.watched.load(Ordering::Relaxed) | unsafe { (*heap).watch } as u8 != 0
    }

    /// Brings a heap to what heaps shall show, if it has not followed yet. Under no lock, and not between a fast path that
    /// failed and what comes after it.
    ///
    /// # Safety
    /// The heap must be the caller's, and not one that was borrowed for a call.
    pub unsafe fn follow(&self, heap: *mut Heap) {
        // SAFETY: the heap is the caller's.
        unsafe {
            if (*heap).watch != self.watch() {
                self.show(heap);
            }
        }
    }
}
