//! Watching: heaps are told to let calls take their slow paths, where somebody counts, fills or samples blocks. The fast
//! paths of programs that nobody watches do not know of it.
//!
//! The wish stands in the allocator, and each heap remembers what it shows. Whoever changes the wish visits all heaps;
//! one that cannot be visited then (its thread is in a call, or the system has no barrier) follows at its next slow
//! path (`Blocks::follow`).

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
