//! Makes all threads of the process pass a memory barrier, by membarrier(2), private and expedited.

use crate::system::call::{Plain, plain};
use crate::system::probe::BARRIER;

/// MEMBARRIER_CMD_PRIVATE_EXPEDITED and MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED of include/uapi/linux/membarrier.h.
const EXPEDITED: usize = 1 << 3;
const REGISTER: usize = 1 << 4;

/// See `Os::prepare_barrier`. The first call registers the process. The kernel waits until all processors have noticed,
/// which takes 10 ms where there are several threads.
pub fn prepare() -> bool {
    if BARRIER.known().is_none() && BARRIER.is_usable() {
        let done = plain(Plain::Membarrier, [REGISTER, 0]);
        // A lack of memory proves nothing: it is tried again.
        if done != -(libc::ENOMEM as isize) {
            BARRIER.note(done == 0);
        }
    }
    BARRIER.works()
}

/// See `Os::barrier`.
pub fn all_threads() -> bool {
    prepare() && plain(Plain::Membarrier, [EXPEDITED, 0]) == 0
}
