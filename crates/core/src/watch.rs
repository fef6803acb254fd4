//! Watching: heaps are told to let calls take their slow paths, where somebody counts, fills or samples blocks. The fast
//! paths of programs that nobody watches do not know of it.
//!
//! The wish stands in the allocator, and each heap remembers what it shows. Whoever changes the wish visits all heaps;
//! one that cannot be visited then (its thread is in a call, or the system has no barrier) follows at its next slow
//! path ([`Allocator::follow`]).

use crate::life::OWNED;
use crate::sync::{Ordering, peek};
use crate::{Allocator, Heap, Os};

/// What takes the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Watch {
    /// What has to.
    Nothing,
    /// Every malloc; caches and the fast path of free stay.
    Allocations,
    /// Every malloc and free: heaps have no caches.
    Everything,
}

/// Why heaps are watched. The numbers are bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Blocks are sampled: wants all allocations.
    Samples = 1,
    /// Each call is counted: wants everything, as the next ones.
    Counts = 2,
    /// Blocks are filled.
    Fill = 4,
    /// The user wants no caches.
    NoCaches = 8,
    /// There may be samples that live: wants nothing but a look at what is freed on slow paths.
    Marks = 16,
    /// Memory is hardened.
    Harden = 32,
    /// It is recorded where blocks are allocated: wants all allocations.
    Sites = 64,
}

/// Rounds of visits to heaps whose threads are in a call.
const ROUNDS: usize = 3;

impl<O: Os> Allocator<O> {
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

    /// Tells all heaps what they shall show. Called under no lock, by a thread whose own heap shows it already.
    pub fn tell_heaps(&self) {
        let mut rounds = 0;
        while rounds < ROUNDS && self.show_all() {
            rounds += 1;
        }
        self.settle();
    }

    /// Visits the heaps of threads that do not show what they shall; whether one of them still does not.
    fn show_all(&self) -> bool {
        let mut late = false;
        let mut heap = self.registry.with(&self.os, |r| r.all);
        while !heap.is_null() {
            // SAFETY: heaps are never unmapped, and `next` never changes; what a heap shows is read as a guess.
            unsafe {
                let shown = || peek(&raw const (*heap).watch, self.watch()) == self.watch();
                let seated = !(*heap).seat.load(Ordering::Relaxed).is_null();
                if seated && (*heap).state.load(Ordering::Relaxed) == OWNED && !shown() {
                    let show = |heap| self.show(heap);
                    self.with_batch(|_| self.visit(Heap::none(), &mut [heap], show));
                    late |= !shown();
                }
                heap = (*heap).next;
            }
        }
        late
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
                self.drop_caches_of(heap);
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
        self.settle();
    }

    /// The calling thread will be idle: its caches go back to the slabs, its large blocks to the free ranges, and the
    /// blocks that others freed come home. The memory then goes as the policy says.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    pub unsafe fn rest(&self, heap: *mut Heap) {
        // SAFETY: the heap is the caller's.
        unsafe { self.empty_heap(heap) };
        self.settle();
    }
}
