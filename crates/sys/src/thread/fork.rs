//! The handlers that run before and after a fork of the program. `neap_core::fork` says what holds between them.

use crate::allocator::NEAP;
use crate::arch::{self, Entered};
use crate::helper::thread as helper;
use crate::musl;
use crate::observe::profile;
use crate::slot;
use crate::system::{cgroup, filter, space};
use core::sync::atomic::{AtomicBool, Ordering};
use neap_core::fork::Begin;

static FORK_HANDLERS: AtomicBool = AtomicBool::new(false);

/// Registers the fork handlers, once. If the C library has no memory for them, the next thread tries again.
pub fn watch_fork() {
    if !FORK_HANDLERS.swap(true, Ordering::AcqRel) {
        if let Some(process) = filter::known_process() {
            space::note_owner(process);
        }
        // SAFETY: the handlers stay as long as the object of this code, which is not unloaded (`observe/loaded.rs`).
        let refused = unsafe { musl::register_fork_handlers(Some(before_fork), Some(in_parent), Some(in_child)) };
        if refused != 0 {
            FORK_HANDLERS.store(false, Ordering::Release);
        }
    }
}

/// What a fork adds to the count of the slot, unless it is in a reentrant call: then it adds 1.
const FORK: u32 = 1 << 16;

/// From here to [`in_parent`] or [`in_child`] all calls of all threads are reentrant, and no lock is held. A fork in a
/// handler that interrupted a call (also this function) leaves the locks alone, because the call may hold them.
unsafe extern "C" fn before_fork() {
    let mut patience = NEAP.fork_patience();
    while let Some(entered) = arch::enter() {
        let begin = NEAP.fork_begin(arch::slot(), slot::forks().load(Ordering::Relaxed) >= FORK, &mut patience);
        if begin == Begin::Ready {
            slot::forks().fetch_add(FORK, Ordering::Relaxed);
        }
        entered.leave();
        match begin {
            Begin::Ready => return,
            Begin::Refused => break,
            // This wait is outside of the call, because the other fork waits for this thread.
            Begin::Later => {
                patience.wait(&NEAP.os);
            }
        }
    }
    slot::forks().fetch_add(1, Ordering::Relaxed);
}

/// Whether the fork that ends now was in a reentrant call; removes it from the count. Such forks end in the reverse
/// order of their beginnings.
fn was_reentrant() -> bool {
    let reentrant = !slot::forks().load(Ordering::Relaxed).is_multiple_of(FORK);
    slot::forks().fetch_sub(if reentrant { 1 } else { FORK }, Ordering::Relaxed);
    reentrant
}

/// Runs `f` while the slot is marked as in a call, also where it is marked already.
fn in_marked_slot(f: impl FnOnce()) {
    let entered = arch::enter();
    f();
    let _ = entered.map(Entered::leave);
}

unsafe extern "C" fn in_parent() {
    if !was_reentrant() {
        in_marked_slot(|| NEAP.fork_parent());
    }
}

#[cold]
unsafe extern "C" fn in_child() {
    profile::forked(&NEAP.control);
    let helped = helper::forked();
    let reentrant = was_reentrant();
    let inner = slot::forks().load(Ordering::Relaxed) / FORK;
    if reentrant {
        NEAP.fork_child_reentrant(arch::slot(), inner, !helped);
    } else {
        in_marked_slot(|| {
            // Must precede the start of a helper.
            cgroup::forked();
            NEAP.fork_child(arch::slot(), inner);
        });
    }
    if NEAP.is_stranded() {
        // An interrupted call goes on with the heap that it has. The next call finds no heap.
        slot::set_heap(slot::gone());
    }
}
