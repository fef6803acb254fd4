//! Observing: how much memory is where, and whether every structure is as its documentation says.

pub mod census;
pub mod publish;
pub mod publisher;
pub mod resident;
pub mod valid;

use crate::Os;
use crate::back::Back;
use crate::observe::publisher::Publisher;
use core::ops::Deref;

/// An allocator that can be observed.
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
    /// Nothing to be seen yet.
    pub const fn new(os: O) -> Self {
        Observed { back: Back::new(os), publisher: Publisher::new() }
    }
}
