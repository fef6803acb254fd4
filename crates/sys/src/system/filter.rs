//! May an unusual system call be made? A seccomp filter may end the process for a call that it does not know.
//!
//! So neap makes unusual calls (anything but mmap, munmap, mremap, mprotect, madvise, futex) only after a look here. A
//! filter that the program was started with lets those pass that every other program makes ([`hostile`]); those that
//! few make are left out ([`filter`]). One that the program gives itself may do anything: neap has to hear of it before
//! (`forbid`; the preload library has the functions by which programs do it, and says so by [`watch`]), and it waits
//! for threads that have looked ([`Asking`]).

use crate::system::call::{self, process};
use crate::system::{lines, wait};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Which processes of this memory may make no unusual call: none (0); all, as there are filters or a thread asks for
/// one, whose number is in the upper half ([`ONE`]); or those of [`GUESTS`], which share the memory of another one
/// ([`SOME`]).
static FORBIDDEN: AtomicU64 = AtomicU64::new(0);
const ONE: u64 = 1 << 32;
const SOME: u64 = 1;
/// The last ones that asked for a filter in the memory of another process (`vfork`). Most have ended, or run another
/// program.
static GUESTS: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];
static NEXT_GUEST: AtomicU32 = AtomicU32::new(0);

/// Whether the process of this number is one of them.
fn is_forbidden_guest(process: u32) -> bool {
    // SeqCst: as `FORBIDDEN`.
    GUESTS.iter().any(|guest| guest.load(Ordering::SeqCst) == process)
}

/// A filter is in force, as far as this process knows. Until then it is not known what to leave out for good.
static IN_FORCE: AtomicBool = AtomicBool::new(false);

/// The process asks for a filter.
#[must_use]
#[derive(Debug)]
pub(crate) struct Asked {
    /// In the memory of another process, which has no filter: the number of the one that asks.
    guest: Option<u32>,
}

/// From now on unusual calls are forbidden to this process, and looks at files too, and none is under way unless it
/// takes more than [`LONGEST`]. To this one alone where it is a guest in the memory of another process (`vfork`).
pub(crate) fn forbid(is_guest: bool) -> Asked {
    // SeqCst, here and below: see `Asking::begin`.
    if is_guest {
        let guest = process();
        // Relaxed: a number that no other one gets for a while.
        let place = NEXT_GUEST.fetch_add(1, Ordering::Relaxed) as usize % GUESTS.len();
        GUESTS[place].store(guest, Ordering::SeqCst);
        FORBIDDEN.fetch_or(SOME, Ordering::SeqCst);
        return Asked { guest: Some(guest) };
    }
    FORBIDDEN.fetch_add(ONE, Ordering::SeqCst);
    // No thread is about to make a call that was not forbidden when it looked. A guest has one thread, this one.
    let (mut waited, mut step) = (0, 100);
    while is_under_way() && waited < LONGEST {
        wait::pause(step);
        waited += step;
        step = (step * 4).min(1000);
    }
    Asked { guest: None }
}

impl Asked {
    /// The filter is `in_force`, or was refused: then calls are forbidden only for other ones.
    pub(crate) fn answered(self, in_force: bool) {
        if !in_force {
            // SeqCst: before unusual calls are allowed again, see `is_under_way`.
            REFUSED.store(true, Ordering::SeqCst);
        }
        match (self.guest, in_force) {
            // Relaxed: who does not see it yet leaves a call out, and looks again.
            (None, true) => IN_FORCE.store(true, Ordering::Relaxed),
            (None, false) => {
                FORBIDDEN.fetch_sub(ONE, Ordering::SeqCst);
            }
            (Some(_), true) => {}
            (Some(guest), false) => {
                // One place: it may have a filter already. Failure: it is another process's by now.
                let free =
                    |place: &AtomicU32| place.compare_exchange(guest, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok();
                let _ = GUESTS.iter().any(free);
            }
        }
    }
}

/// Stretches in which a thread may make unusual calls that were not forbidden when it began.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
/// Stretches that began when the calls were forbidden: a filter need not wait for them, unless the calls have been
/// allowed since, as an earlier filter was refused. They are apart, as in a busy process one or the other is under way
/// at any time.
static LATE: AtomicU32 = AtomicU32::new(0);
/// A filter was refused.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// Microseconds that a filter waits for them at most. Only a thread that is stopped needs longer, and a child on its
/// parent's memory (`vfork`) that was killed in one leaves it behind.
const LONGEST: u32 = 1_000_000;

/// Whether a thread may be about to make a call that was not forbidden when it looked.
fn is_under_way() -> bool {
    // SeqCst, in this order: a stretch is counted in the second before it leaves the first.
    UNDER_WAY.load(Ordering::SeqCst) != 0 || (REFUSED.load(Ordering::SeqCst) && LATE.load(Ordering::SeqCst) != 0)
}

/// A thread that holds this may make unusual calls, where [`is_forbidden`] says that they are not forbidden: a filter
/// comes into force when it is dropped.
#[derive(Debug)]
pub struct Asking {
    counted: &'static AtomicU32,
}

impl Asking {
    /// For the calling thread.
    pub fn begin() -> Asking {
        // SeqCst, as in `is_forbidden` and `forbid`: this thread sees that they are forbidden, or is seen.
        UNDER_WAY.fetch_add(1, Ordering::SeqCst);
        let asking = Asking { counted: &UNDER_WAY };
        if is_forbidden() {
            LATE.fetch_add(1, Ordering::SeqCst);
            drop(asking);
            return Asking { counted: &LATE };
        }
        asking
    }

    /// [`Asking::begin`]; `None` where unusual calls are forbidden.
    pub fn if_allowed() -> Option<Asking> {
        let asking = Asking::begin();
        if is_forbidden() { None } else { Some(asking) }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // In the child of a fork in a handler that interrupted this thread here, it is counted no more.
        let _ = self.counted.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

/// In the child of a fork, which has its parent's filter, and memory of its own.
pub fn forked() {
    // Relaxed, here and below: one thread.
    UNDER_WAY.store(0, Ordering::Relaxed);
    LATE.store(0, Ordering::Relaxed);
    let who = FORBIDDEN.load(Ordering::Relaxed);
    if who != 0 && who < ONE {
        let parents = rustix::process::getppid()
            .is_some_and(|parent| is_forbidden_guest(parent.as_raw_nonzero().get().cast_unsigned()));
        FORBIDDEN.store(if parents { ONE } else { 0 }, Ordering::Relaxed);
        IN_FORCE.store(parents, Ordering::Relaxed);
    }
    GUESTS.iter().for_each(|guest| guest.store(0, Ordering::Relaxed));
}

/// The number of the calling process; `None` where not even that may be asked for, as a filter is or may be in force.
pub fn known_process() -> Option<u32> {
    let _asking = Asking::begin();
    (FORBIDDEN.load(Ordering::SeqCst) < ONE).then(process)
}

/// Whether the process has asked for a filter. One load, but for one that had a child which did so in its memory: for
/// calls that would be made often.
#[inline]
pub fn is_forbidden() -> bool {
    match FORBIDDEN.load(Ordering::SeqCst) {
        0 => false,
        ONE.. => true,
        _ => is_forbidden_guest(process()),
    }
}

/// What is known where calls are forbidden.
fn forbidden() -> Filter {
    if IN_FORCE.load(Ordering::Relaxed) { Filter::Yes } else { Filter::Unknown }
}

/// The program cannot give itself a filter without our hearing of it.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// From now on `forbid` is called before the program gives itself a filter.
pub fn watch() {
    WATCHED.store(true, Ordering::Relaxed);
}

/// Whether a filter of the program's own is known to be there or not, without a look.
pub fn is_watched() -> bool {
    WATCHED.load(Ordering::Relaxed)
}

/// What is known of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// None watches the calling thread.
    No,
    /// There is one, or the process cannot tell: calls that few programs make are better left out.
    Yes,
    /// The process has no room to look, or asks for a filter just now: those calls are left out now, and it is looked
    /// again at the next one.
    Unknown,
}

/// Whether a filter might punish calls that other programs make every day: to open a file and to ask it something, to
/// start a thread, membarrier. A filter that the program was started with (most containers have one) lets those pass,
/// or refuses them; one of its own may do anything.
pub fn hostile() -> Filter {
    match (WATCHED.load(Ordering::Relaxed), is_forbidden()) {
        (_, true) => forbidden(),
        (true, false) => Filter::No,
        (false, false) => filter(),
    }
}

/// Whether a filter is [`hostile`], or may be.
pub fn is_hostile() -> bool {
    hostile() != Filter::No
}

/// Whether a seccomp filter watches the calling thread.
pub fn filter() -> Filter {
    if is_forbidden() {
        return forbidden();
    }
    match lines::has_no_filter() {
        Ok(true) => Filter::No,
        Err(error) if lines::is_passing(error) => Filter::Unknown,
        _ => Filter::Yes,
    }
}

/// [`filter`], also where the process has no room for another open file.
pub fn filter_for_sure() -> Filter {
    match filter() {
        Filter::Unknown if call::has_no_filter() => Filter::No,
        Filter::Unknown => Filter::Yes,
        known => known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a filter that comes into force while a thread makes unusual calls: one that began when they were
    /// forbidden, for a filter that was refused then.
    #[test]
    fn a_filter_waits_for_those_that_were_allowed_again() {
        // SAFETY: the child, of one thread, changes only itself.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                UNDER_WAY.store(0, Ordering::SeqCst);
                let asked = forbid(false);
                let late = Asking::begin();
                let before = (is_forbidden(), is_under_way());
                asked.answered(false);
                let then = (is_forbidden(), is_under_way());
                drop(late);
                let good = before == (true, false) && then == (false, true) && !is_under_way();
                libc::_exit(i32::from(!good));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
    }
}
