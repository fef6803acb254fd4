//! Observing: reports how much memory is where, and checks every structure against its documentation.

pub mod census;
pub mod outside;
pub mod publish;
pub mod publisher;
pub mod resident;
pub mod valid;

use crate::Os;
use crate::back::Back;
use crate::blocks::Blocks;
use crate::observe::publisher::Publisher;
use core::ops::Deref;

/// The layer that observes, on top of [`Back`].
#[derive(Debug)]
pub struct Observed<O: Os> {
    back: Back<O>,
    pub(crate) publisher: Publisher,
}

impl<O: Os> Deref for Observed<O> {
    type Target = Back<O>;

    #[inline(always)]
    fn deref(&self) -> &Back<O> {
        &self.back
    }
}

impl<O: Os> Observed<O> {
    /// See `Allocator::REQUEST_AT`.
    pub(crate) const REQUEST_AT: usize = core::mem::offset_of!(Self, back) + Back::<O>::REQUEST_AT;
    /// See `Allocator::READERS_AT`.
    pub(crate) const READERS_AT: usize = core::mem::offset_of!(Self, back) + Back::<O>::READERS_AT;

    /// See [`outside::Places`].
    pub(crate) const PLACES: outside::Places = {
        let blocks = core::mem::offset_of!(Self, back) + Back::<O>::BLOCKS_AT;
        let [arenas, heaps, huge] = Blocks::<O>::SEEN_AT;
        outside::Places { arenas: blocks + arenas, heaps: blocks + heaps, huge: blocks + huge }
    };

    /// A layer with nothing to observe yet.
    pub const fn new(os: O) -> Self {
        Observed { back: Back::new(os), publisher: Publisher::new() }
    }
}
