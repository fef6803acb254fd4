//! A limit on address space (RLIMIT_AS) that the program sets while it runs. What neap has reserved would count, so that
//! the kernel refused every mapping from then on: it is given back at once.

use crate::global::NEAP;
use crate::{purger, space, status, thread};

/// Whether prlimit means the calling process by this number.
pub fn is_own(number: libc::pid_t) -> bool {
    number == 0 || number.cast_unsigned() == status::process()
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
