//! The registry: lists all heaps. The state of each says which thread may use it.

use crate::Heap;
use crate::blocks::heap::Mine;

/// A thread owns the heap.
pub const OWNED: u32 = 0;
/// The heap has no thread; the lock of the registry guards it.
pub const ORPHAN: u32 = 1;
/// In the child of a fork, the heap of a thread of the parent that was in the middle of a call. It may be half changed,
/// and no thread uses it.
pub const LOST: u32 = 2;
/// The heap of a thread of the parent that was in no call at a fork, or of one that ended during a fork. It is whole,
/// and waits to be abandoned.
pub const LEFT: u32 = 3;
/// The common heap (`common.rs`), which never has a thread; the lock of the registry guards it.
pub const COMMON: u32 = 4;

/// All heaps. Used under the registry's lock.
#[derive(Debug)]
pub struct Registry {
    pub(crate) ready: bool,
    /// Every heap, newest first.
    pub(crate) all: *mut Heap,
    /// Heaps without a thread, newest first.
    pub(crate) orphans: *mut Heap,
    /// The common heap, or null.
    pub(crate) common: *mut Heap,
    /// Unused part of the current chunk of heaps, and number of heaps that fit into it.
    pub(crate) store: *mut u8,
    pub(crate) store_left: usize,
}

// SAFETY: heaps in the registry are reached under its lock.
unsafe impl Send for Registry {}

impl Registry {
    /// Where an observer in another process finds the newest heap.
    pub(crate) const NEWEST_AT: usize = core::mem::offset_of!(Self, all);

    /// A registry without heaps.
    pub const fn new() -> Self {
        Registry {
            ready: false,
            all: core::ptr::null_mut(),
            orphans: core::ptr::null_mut(),
            common: core::ptr::null_mut(),
            store: core::ptr::null_mut(),
            store_left: 0,
        }
    }

    /// Every heap, newest first.
    pub(crate) fn heaps(&self) -> impl Iterator<Item = &'static Heap> {
        all(self.all)
    }

    /// Returns the common heap, if there is one. It belongs to the holder of the lock.
    pub(crate) fn common(&self) -> Option<Mine<'_>> {
        // SAFETY: this lock guards the common heap.
        (!self.common.is_null()).then(|| unsafe { Mine::of(self.common) })
    }

    /// Returns the orphans, newest first. They belong to the holder of the lock.
    pub(crate) fn orphans(&self) -> impl Iterator<Item = Mine<'_>> {
        // SAFETY: heaps in this list are orphans, which this lock guards; links of heaps are heaps or null.
        let at = |heap: *mut Heap| (!heap.is_null()).then(|| unsafe { Mine::of(heap) });
        core::iter::successors(at(self.orphans), move |heap| at(heap.next_orphan.get()))
    }
}

/// Returns the heaps from `first` on. A thread that has the first sees the others without a lock: `next` is written
/// before a heap is published, and never changes.
pub(crate) fn all(first: *mut Heap) -> impl Iterator<Item = &'static Heap> {
    // SAFETY: heaps are never unmapped (invariant 3); links of heaps are heaps or null.
    let at = |heap: *mut Heap| unsafe { Heap::at(heap) };
    core::iter::successors(at(first), move |heap| at(heap.next.get()))
}
