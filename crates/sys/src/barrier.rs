//! A memory barrier in all threads of the process: membarrier(2), private and expedited (Linux 4.14).

use crate::{arch, status};
use core::sync::atomic::{AtomicU32, Ordering};

const UNKNOWN: u32 = 0;
const WORKS: u32 = 1;
const FAILS: u32 = 2;
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// MEMBARRIER_CMD_PRIVATE_EXPEDITED and MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED of include/uapi/linux/membarrier.h.
const EXPEDITED: usize = 1 << 3;
const REGISTER: usize = 1 << 4;

fn membarrier(command: usize) -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { arch::syscall(libc::SYS_membarrier as usize, [command, 0, 0, 0, 0, 0]) == 0 }
}

/// See `Os::barrier`. The first call registers the process, which can take milliseconds where it has many threads.
pub fn all_threads() -> bool {
    match STATE.load(Ordering::Relaxed) {
        WORKS => !status::is_forbidden() && membarrier(EXPEDITED),
        UNKNOWN => {
            let works = !status::is_hostile() && membarrier(REGISTER) && membarrier(EXPEDITED);
            STATE.store(if works { WORKS } else { FAILS }, Ordering::Relaxed);
            works
        }
        _ => false,
    }
}
