//! A memory barrier in all threads of the process: membarrier(2), private and expedited (Linux 4.14).

use crate::arch;
use crate::status::{self, Filter};
use core::sync::atomic::{AtomicU32, Ordering};

const UNKNOWN: u32 = 0;
const WORKS: u32 = 1;
const FAILS: u32 = 2;
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// MEMBARRIER_CMD_PRIVATE_EXPEDITED and MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED of include/uapi/linux/membarrier.h.
const EXPEDITED: usize = 1 << 3;
const REGISTER: usize = 1 << 4;

fn membarrier(command: usize) -> isize {
    // SAFETY: the call takes no pointers.
    unsafe { arch::syscall(libc::SYS_membarrier as usize, [command, 0, 0, 0, 0, 0]) }
}

/// See `Os::prepare_barrier`. The first call registers the process: the kernel waits until all processors have taken note,
/// 10 ms where there are several threads.
pub fn prepare() -> bool {
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let done = match status::hostile() {
            Filter::No => membarrier(REGISTER),
            Filter::Yes => -(libc::EPERM as isize),
            Filter::Unknown => -(libc::ENOMEM as isize),
        };
        // Short of memory: it is tried again.
        if done != -(libc::ENOMEM as isize) {
            STATE.store(if done == 0 { WORKS } else { FAILS }, Ordering::Relaxed);
        }
    }
    works()
}

/// Whether there is one, as far as is known.
#[inline]
pub fn works() -> bool {
    STATE.load(Ordering::Relaxed) == WORKS && !status::is_forbidden()
}

/// See `Os::barrier`.
pub fn all_threads() -> bool {
    prepare() && membarrier(EXPEDITED) == 0
}
