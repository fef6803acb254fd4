//! The one allocator of the process, on Linux. The functions that the port calls back are passed in here.

use crate::helper::thread;
use crate::linux::Linux;
use core::ops::Deref;
use neap_core::Allocator;
use neap_core::helper::Leave;

/// The allocator, so placed that all of it which a program's first block writes lies on two OS pages.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Placed {
    _before: [u8; 1024],
    allocator: Allocator<Linux>,
}

impl Deref for Placed {
    type Target = Allocator<Linux>;

    #[inline(always)]
    fn deref(&self) -> &Allocator<Linux> {
        &self.allocator
    }
}

/// The allocator.
pub static NEAP: Placed =
    Placed { _before: [0; 1024], allocator: Allocator::new(Linux { helper, policy: || &NEAP.policy }) };

/// What the helper thread runs.
#[cold]
extern "C" fn helper(again: u32) -> Leave {
    thread::live(again != 0, || NEAP.help())
}
