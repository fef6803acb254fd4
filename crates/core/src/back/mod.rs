//! Giving back: when free memory goes to the system. The purger, visits to the heaps of other threads, holes in slabs,
//! memory limits, and trimming.
//!
//! This layer decides when; `pages/release.rs` makes the calls.

pub mod batch;
pub mod flight;
pub mod forks;
pub mod handshake;
pub mod helping;
pub mod hold;
pub mod pressure;
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

/// What gives memory back.
#[derive(Debug)]
pub struct Back<O: Os> {
    blocks: Blocks<O>,
    pub(crate) purger: Purger,
    /// Forks that are under way.
    pub(crate) forks: Forks,
}

impl<O: Os> Deref for Back<O> {
    type Target = Blocks<O>;

    #[inline(always)]
    fn deref(&self) -> &Blocks<O> {
        &self.blocks
    }
}

impl<O: Os> Back<O> {
    /// Nothing waits yet.
    pub const fn new(os: O) -> Self {
        Back { blocks: Blocks::new(os), purger: Purger::new(), forks: Forks::new() }
    }
}
