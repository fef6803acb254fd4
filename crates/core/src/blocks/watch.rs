//! Watching: makes calls take their slow paths while blocks are counted, filled or sampled. The fast paths of a program
//! that is not watched do not check for it.
//!
//! The allocator has the reasons for watching (`Blocks::watched`), and each heap remembers the mode that it adopted. A
//! thread that changes the reasons makes a handshake with all heaps. A heap that cannot be reached then (its thread is
//! in a call, or the system has no barrier) follows at its next slow path (`Allocator::follow`).

/// Watch mode: which calls take the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Watch {
    /// Only calls that the fast path cannot serve.
    Nothing,
    /// Every malloc, which counts bytes until the next sample; caches and the fast path of free stay.
    Samples,
    /// The same, where blocks are watched for another reason too, so that samples are chosen by chance.
    Allocations,
    /// Every malloc and free: heaps have no caches.
    Everything,
}

/// Reasons why heaps are watched. The numbers are bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Blocks are sampled: needs [`Watch::Samples`].
    Samples = 1,
    /// Each call is counted: needs [`Watch::Everything`], as do the next two.
    Counts = 2,
    /// Blocks are filled.
    Fill = 4,
    /// The user disabled caches.
    NoCaches = 8,
    /// There may be live samples: needs no mode, only a check of what slow paths free.
    Marks = 16,
    /// Memory is hardened: needs [`Watch::Everything`].
    Harden = 32,
    /// Allocation sites are recorded: needs [`Watch::Allocations`].
    Sites = 64,
    /// Each block is a sample, and lies where it would lie otherwise: needs [`Watch::Everything`].
    Exact = 128,
}
