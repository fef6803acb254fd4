//! Decides whether an unusual system call may be made: a seccomp filter may end the process for a call that it does not
//! list.
//!
//! Unusual calls are all except mmap, munmap, mremap, mprotect, futex, and madvise without advice about huge pages.
//! neap makes them only after a check here.
//! - A filter that the program was started with allows or refuses the calls that most programs make ([`hostile`]).
//!   Calls that few programs make are left out under it ([`filter`]).
//! - A filter that the program sets may do anything, so neap must know before it takes effect (`forbid`). The preload
//!   library has the functions by which programs set filters, and says so by [`watch`]. The filter then waits for
//!   threads that have already checked ([`Asking`]).

use crate::system::call::{self, process};
use crate::system::{lines, wait};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Which of the processes that use this memory must make no unusual call. 0: none. The upper half counts filters, and
/// threads that set one now ([`ONE`] each): if it is above 0, all of them. Otherwise [`SOME`]: those in [`GUESTS`],
/// which share the memory of another process.
static FORBIDDEN: AtomicU64 = AtomicU64::new(0);
const ONE: u64 = 1 << 32;
const SOME: u64 = 1;
/// The last guests (children of `vfork`) that requested a filter. Most have ended, or run another program.
static GUESTS: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];
static NEXT_GUEST: AtomicU32 = AtomicU32::new(0);

/// Whether the process of this number is one of [`GUESTS`].
fn is_forbidden_guest(process: u32) -> bool {
    // SeqCst: as `FORBIDDEN`.
    GUESTS.iter().any(|guest| guest.load(Ordering::SeqCst) == process)
}

/// Whether a filter is in force, as far as this process knows. Until then a call that is left out may be tried again
/// later.
static IN_FORCE: AtomicBool = AtomicBool::new(false);

/// A request for a filter that the system has not answered yet.
#[must_use]
#[derive(Debug)]
pub(crate) struct Asked {
    /// The number of the process that requests it, if it is a guest; the owner of the memory then gets no filter.
    guest: Option<u32>,
}

/// Forbids unusual calls to this process, reading of files included. When this returns, none is being made, unless one
/// takes longer than [`LONGEST`]. Where the process is a guest in the memory of another one (`vfork`), they are
/// forbidden to it alone.
pub(crate) fn forbid(is_guest: bool) -> Asked {
    // SeqCst, here and below: see `Asking::begin`.
    if is_guest {
        let guest = process();
        // Relaxed: only the number matters, which no other guest gets for a while.
        let place = NEXT_GUEST.fetch_add(1, Ordering::Relaxed) as usize % GUESTS.len();
        GUESTS[place].store(guest, Ordering::SeqCst);
        FORBIDDEN.fetch_or(SOME, Ordering::SeqCst);
        return Asked { guest: Some(guest) };
    }
    FORBIDDEN.fetch_add(ONE, Ordering::SeqCst);
    // Waits for threads that checked before. (A guest need not: it has one thread, this one.)
    let (mut waited, mut step) = (0, 100);
    while is_under_way() && waited < LONGEST {
        wait::pause(step);
        waited += step;
        step = (step * 4).min(1000);
    }
    Asked { guest: None }
}

impl Asked {
    /// Notes the result: the filter is `in_force`, or was refused. A refused one no longer forbids calls.
    pub(crate) fn answered(self, in_force: bool) {
        if !in_force {
            // SeqCst: before unusual calls are allowed again, see `is_under_way`.
            REFUSED.store(true, Ordering::SeqCst);
        }
        match (self.guest, in_force) {
            // Relaxed: a thread that does not see it yet leaves a call out, and checks again later.
            (None, true) => IN_FORCE.store(true, Ordering::Relaxed),
            (None, false) => {
                FORBIDDEN.fetch_sub(ONE, Ordering::SeqCst);
            }
            (Some(_), true) => {}
            (Some(guest), false) => {
                // Frees one place, as an earlier filter of the process may have another. It fails if another process
                // has taken the place by now.
                let free =
                    |place: &AtomicU32| place.compare_exchange(guest, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok();
                let _ = GUESTS.iter().any(free);
            }
        }
    }
}

/// Number of [`Asking`] that began while unusual calls were allowed: their threads may make some.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
/// Number of [`Asking`] that began while the calls were forbidden. A filter need not wait for them, unless the calls
/// have been allowed since because an earlier filter was refused. They are counted apart, because in a busy process
/// there are some at any time.
static LATE: AtomicU32 = AtomicU32::new(0);
/// Whether a filter was ever refused.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// Longest time, in microseconds, that a filter waits for threads with an [`Asking`]. Only a stopped thread needs
/// longer, and a guest that was killed meanwhile leaves its count behind.
const LONGEST: u32 = 1_000_000;

/// Whether a thread may be about to make a call that was allowed when it checked.
fn is_under_way() -> bool {
    // SeqCst, in this order: an `Asking` is counted in `LATE` before it leaves `UNDER_WAY`.
    UNDER_WAY.load(Ordering::SeqCst) != 0 || (REFUSED.load(Ordering::SeqCst) && LATE.load(Ordering::SeqCst) != 0)
}

/// A thread that holds this may make unusual calls if [`is_forbidden`] is false: a filter comes into force only after
/// it is dropped.
#[derive(Debug)]
pub struct Asking {
    counted: &'static AtomicU32,
}

impl Asking {
    /// For the calling thread.
    pub fn begin() -> Asking {
        // SeqCst, as in `is_forbidden` and `forbid`: this thread finds the calls forbidden, or `forbid` finds its
        // count.
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
        // The count may be 0: in the child of a fork in a handler that interrupted this thread.
        let _ = self.counted.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

/// To be called in the child of a fork, which has its parent's filter, and memory of its own.
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

/// The number of the calling process; `None` where even getpid is forbidden, because a filter is or may be in force.
pub fn known_process() -> Option<u32> {
    let _asking = Asking::begin();
    (FORBIDDEN.load(Ordering::SeqCst) < ONE).then(process)
}

/// Whether unusual calls are forbidden to this process: it has set a filter, or sets one now. This costs one load,
/// unless a guest in this memory has set one, so it may be called often. (Then getpid says which process this is: the
/// filter of a guest must allow that call too.)
#[inline]
pub fn is_forbidden() -> bool {
    match FORBIDDEN.load(Ordering::SeqCst) {
        0 => false,
        ONE.. => true,
        _ => is_forbidden_guest(process()),
    }
}

/// What is known of a filter where calls are forbidden.
fn forbidden() -> Filter {
    if IN_FORCE.load(Ordering::Relaxed) { Filter::Yes } else { Filter::Unknown }
}

/// Whether neap gets notice before the program gives itself a filter.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Notes that `forbid` will be called before the program gives itself a filter.
pub fn watch() {
    WATCHED.store(true, Ordering::Relaxed);
}

/// Whether neap gets notice of filters that the program gives itself, so that it need not check for them.
pub fn is_watched() -> bool {
    WATCHED.load(Ordering::Relaxed)
}

/// What is known of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// No filter watches the calling thread.
    No,
    /// There is one, or the process cannot find out: calls that few programs make are left out.
    Yes,
    /// No file descriptor is free, or the process sets a filter just now: those calls are left out for now, and the
    /// next check tries again.
    Unknown,
}

/// Whether a filter may end the process for calls that most programs make: opening and reading files, starting threads,
/// membarrier. A filter that the program was started with (most containers have one) allows or refuses those. One of
/// the program's own may do anything.
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

/// [`filter`], but finds out by another call where that is unknown: never [`Filter::Unknown`].
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

    /// Catches a filter that comes into force while a thread makes unusual calls, where that thread began while they
    /// were forbidden for another filter, which was then refused.
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
