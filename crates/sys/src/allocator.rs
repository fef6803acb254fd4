//! The one allocator of the process, on Linux. The functions that the port calls back are passed in here.

use crate::helper::thread;
use crate::linux::Linux;
use neap_core::Allocator;
use neap_core::helper::Leave;

/// The allocator.
pub static NEAP: Allocator<Linux> = Allocator::new(Linux { helper, policy: || &NEAP.policy });

/// What the helper thread runs.
#[cold]
extern "C" fn helper(again: u32) -> Leave {
    thread::live(again != 0, || NEAP.help())
}
