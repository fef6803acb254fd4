//! A limit on address space (RLIMIT_AS) that the program sets while it runs. What neap has reserved would count, so that
//! the kernel refused every mapping from then on: it is given back at once.

use crate::global::NEAP;
use crate::{arch, purger, space, status, thread};
use core::ffi::c_uint;
use neap_core::Os;

/// A limit of the process that is in force (RLIMIT_AS, ...). `None` where there is none, or the system does not tell: a
/// filter may refuse the question, for which the call of rustix has no answer.
pub fn current(resource: c_uint) -> Option<u64> {
    let mut limit = [libc::RLIM_INFINITY; 2];
    let at = (&raw mut limit).expose_provenance();
    // SAFETY: no limit is set; the kernel writes two words.
    let done = unsafe { arch::syscall(libc::SYS_prlimit64 as usize, [0, resource as usize, 0, at, 0, 0]) };
    (done == 0).then_some(limit[0]).filter(|&limit| limit != libc::RLIM_INFINITY)
}

/// Whether a file of so many bytes would bring SIGXFSZ.
pub fn is_too_long(bytes: usize) -> bool {
    current(libc::RLIMIT_FSIZE).is_some_and(|most| most < bytes as u64)
}

/// Whether prlimit means the calling process by this number.
pub fn is_own(number: libc::pid_t) -> bool {
    number == 0 || NEAP.os.process() == Some(number.cast_unsigned())
}

/// The process has set itself a limit on address space. Nothing in a nested call: what is reserved goes back when more
/// is needed.
#[cold]
pub fn address_limit_set() {
    // The child of a vfork has limits of its own, but its parent's memory.
    if status::is_forbidden() || !space::is_owner(status::process()) {
        return;
    }
    if thread::in_call(|_| NEAP.give_reservations_back()) != Some(true) {
        return;
    }
    purger::without_helper(|| {
        thread::in_call(|_| {
            if status::threads() == Some(1) {
                // SAFETY: this is the only thread, and it is in no other call.
                unsafe { NEAP.give_map_back() };
            }
        });
    });
}
