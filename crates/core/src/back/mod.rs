//! Giving back: decides when free memory goes to the system. The purger, handshakes with other threads' heaps, holes in
//! slabs, memory limits, and trimming.
//!
//! `pages/release.rs` makes the system calls.

pub mod batch;
pub mod flight;
pub mod forks;
pub mod handshake;
pub mod helping;
pub mod hold;
mod measure;
pub mod pressure;
pub mod promote;
pub mod purge;
pub mod purger;
pub mod reentrant_blocks;
pub mod trim;
pub mod watching;

use crate::Os;
use crate::back::forks::Forks;
use crate::back::purger::Purger;
use crate::blocks::Blocks;
use core::ops::Deref;

/// The layer that gives memory back, on top of [`Blocks`]. `forks` comes first: each thread's first call writes to it,
/// and there it shares an OS page with the first fields of `Blocks`.
#[repr(C)]
#[derive(Debug)]
pub struct Back<O: Os> {
    /// Forks in progress, and the calls they wait for.
    pub(crate) forks: Forks,
    blocks: Blocks<O>,
    pub(crate) purger: Purger,
}

impl<O: Os> Deref for Back<O> {
    type Target = Blocks<O>;

    #[inline(always)]
    fn deref(&self) -> &Blocks<O> {
        &self.blocks
    }
}

impl<O: Os> Back<O> {
    /// See `Allocator::REQUEST_AT`.
    pub(crate) const REQUEST_AT: usize = core::mem::offset_of!(Self, blocks) + Blocks::<O>::REQUEST_AT;
    /// See `Allocator::READERS_AT`.
    pub(crate) const READERS_AT: usize = core::mem::offset_of!(Self, blocks) + Blocks::<O>::READERS_AT;

    /// Where an observer in another process finds the layer of blocks.
    pub(crate) const BLOCKS_AT: usize = core::mem::offset_of!(Self, blocks);

    /// A layer with no memory to give back yet.
    pub const fn new(os: O) -> Self {
        Back { blocks: Blocks::new(os), purger: Purger::new(), forks: Forks::new() }
    }
}
