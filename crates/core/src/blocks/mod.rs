//! Blocks: what malloc returns. Slabs of small blocks and the heaps that cache them, large blocks, huge blocks, and the
//! blocks of reentrant calls.
//!
//! This layer takes its memory from `pages`, and notes there what waits. It does not decide when that goes back.

pub mod apart;
pub mod bins;
pub mod cached_large;
pub mod class;
pub mod common;
pub mod flow;
pub mod free_block;
pub(crate) mod given;
pub mod grow;
pub mod guards;
pub mod harden;
pub mod heap;
pub mod holes;
pub mod huge;
pub mod large;
pub mod large_cache;
pub mod large_record;
pub mod lives;
pub mod marks;
pub mod misuse;
pub mod realloc;
pub mod reentrant;
pub mod reentrant_blocks;
pub mod registry;
pub(crate) mod returned;
pub mod sampler;
pub mod slab;
pub mod slab_record;
pub mod watch;
pub mod watching;
pub mod zero;

use crate::Os;
use crate::blocks::flow::Flow;
use crate::blocks::guards::Guards;
use crate::blocks::huge::Huge;
use crate::blocks::reentrant_blocks::ReentrantBlocks;
use crate::blocks::registry::Registry;
use crate::blocks::returned::Returned;
use crate::blocks::zero::Habits;
use crate::pages::Pages;
use crate::pages::chunk::{Chunk, Kind, Record};
use crate::system::lock::Locked;
use crate::system::remote::Pending;
use crate::system::sync::{AtomicBool, AtomicU8, AtomicUsize};
use core::ops::Deref;

/// The error for an address that is no block of neap's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign;

/// The layer of blocks, on top of [`Pages`].
#[derive(Debug)]
pub struct Blocks<O: Os> {
    pages: Pages<O>,
    pub(crate) registry: Locked<Registry>,
    /// Number of heaps, without the common heap.
    pub(crate) heaps: AtomicUsize,
    /// Number of orphans at present; a hint.
    pub(crate) orphans: AtomicUsize,
    /// True if there are heaps in the state [`registry::LEFT`].
    pub(crate) left: AtomicBool,
    /// Counts blocks of reentrant calls, and frees by threads without a heap.
    pub(crate) stray: Flow,
    /// Number of large blocks that are apart, see `apart.rs`.
    pub(crate) apart: AtomicUsize,
    /// Memory of blocks that were moved and freed.
    pub(crate) returned: Returned,
    pub(crate) habits: Habits,
    /// Inaccessible OS pages, see `harden.rs`.
    pub guards: Guards,
    /// Reasons why heaps are watched: a bit for each [`crate::blocks::watch::Reason`].
    pub(crate) watched: AtomicU8,
    /// Mean bytes between two samples; 0: no samples.
    pub(crate) sample_interval: AtomicUsize,
    pub(crate) huge: Huge,
    /// Slabs and large blocks of reentrant calls.
    pub(crate) reentrant_blocks: ReentrantBlocks,
    /// Large blocks that reentrant calls freed, see `reentrant.rs`.
    pub(crate) deferred: Pending<Chunk>,
}

impl<O: Os> Deref for Blocks<O> {
    type Target = Pages<O>;

    #[inline(always)]
    fn deref(&self) -> &Pages<O> {
        &self.pages
    }
}

impl<O: Os> Blocks<O> {
    /// See `Allocator::REQUEST_AT`.
    pub(crate) const REQUEST_AT: usize = core::mem::offset_of!(Self, pages) + Pages::<O>::REQUEST_AT;
    /// See `Allocator::READERS_AT`.
    pub(crate) const READERS_AT: usize = core::mem::offset_of!(Self, pages) + Pages::<O>::READERS_AT;

    /// Where an observer in another process finds the arenas, the newest heap, and the huge blocks.
    pub(crate) const SEEN_AT: [usize; 3] = [
        core::mem::offset_of!(Self, pages) + Pages::<O>::ARENAS_AT,
        core::mem::offset_of!(Self, registry) + Locked::<Registry>::VALUE_AT + Registry::NEWEST_AT,
        core::mem::offset_of!(Self, huge),
    ];

    /// A layer without blocks.
    pub const fn new(os: O) -> Self {
        Blocks {
            pages: Pages::new(os),
            registry: Locked::new(Registry::new()),
            heaps: AtomicUsize::new(0),
            orphans: AtomicUsize::new(0),
            left: AtomicBool::new(false),
            stray: Flow::new(),
            apart: AtomicUsize::new(0),
            returned: Returned::new(),
            habits: Habits::new(),
            guards: Guards::new(),
            watched: AtomicU8::new(0),
            sample_interval: AtomicUsize::new(0),
            huge: Huge::new(),
            reentrant_blocks: ReentrantBlocks::new(),
            deferred: Pending::new(),
        }
    }

    /// Returns the class of the slab at `p`, also if the page map is missing.
    #[inline]
    pub(crate) fn small_class(&self, p: *const u8) -> Option<usize> {
        let class = self.map.class(p);
        if class != 0 {
            return Some(class);
        }
        if self.map.is_complete() {
            return None;
        }
        // The record of a live block's slab does not change.
        self.arenas.record(p).filter(|c| c.kind() == Kind::SLAB).map(Record::class)
    }
}
