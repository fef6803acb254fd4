//! How much memory this process may use together with others: of its cgroup (v1 and v2), or of the machine. What is
//! read and what it costs is in docs/containers.md.
//!
//! - `parse`: the kernel's text formats, pure;
//! - `files`: opening and reading, in pieces;
//! - `groups`: which cgroups limit the process, and what they say;
//!
//! All of it runs inside the allocator: nothing here allocates, waits, touches errno or panics. Buffers are static, as the
//! caller may have a stack of 16 KiB: one thread looks at a time, and the others get its last answer.

mod files;
mod groups;
mod parse;
#[cfg(test)]
mod tests;

use crate::space::{is_guest, settle};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use files::{Buffers, Files};
use groups::{Groups, machine};
use neap_core::os::Memory;

/// Limits are looked for again after so many milliseconds, and whether the process was moved: soon enough for somebody
/// who changes them, and a hundredth of a percent of the time of one processor.
const SURVEY_MS: u64 = 1000;

/// The table of mounts is read again after so many milliseconds. It may be long, and programs whose cgroups are mounted
/// anew while they run are rare.
const LOCATE_MS: u64 = 60_000;

// All zero, so it costs nothing in the file, and no OS page before the first call.
static PROBE: Probe = Probe::new();

/// [`neap_core::Os::memory`], at the time `now` in milliseconds.
#[cold]
pub(crate) fn memory(now: u64) -> Option<Memory> {
    // A child on its parent's memory may be killed in the middle of a look, and the parent would never look again.
    if is_guest(settle()) {
        return last();
    }
    PROBE.memory(Files { root: b"" }, now, crate::status::process())
}

/// The last answer of [`memory`], without a look.
pub(crate) fn last() -> Option<Memory> {
    PROBE.last.get()
}

/// In the child of a fork that interrupted no call: another thread may have been looking in the parent. (A fork in a
/// handler that interrupts a call leaves it alone: without other threads the interrupted look goes on in the child, and
/// else the child never looks again.)
pub(crate) fn forked() {
    PROBE.forked();
}

/// Tells the memory that a process shares with others.
#[derive(Debug)]
struct Probe {
    /// The process of which a thread looks; 0: none does.
    looking: AtomicU32,
    view: UnsafeCell<View>,
    last: Last,
}

// SAFETY: `view` is used by the thread that set `looking`.
unsafe impl Sync for Probe {}

impl Probe {
    /// Not yet asked for anything.
    const fn new() -> Probe {
        Probe { looking: AtomicU32::new(0), view: UnsafeCell::new(View::NEW), last: Last::new() }
    }

    fn memory(&self, files: Files, now: u64, process: u32) -> Option<Memory> {
        // Acquire pairs with the Release below: what the last thread that looked wrote is seen.
        let take = |from| self.looking.compare_exchange(from, process, Ordering::Acquire, Ordering::Relaxed);
        let left = match take(0) {
            Ok(_) => false,
            // Another process: this one is its child, made without fork handlers while a thread looked there.
            Err(other) if other != process && take(other).is_ok() => true,
            Err(_) => return self.last.get(),
        };
        // SAFETY: no other thread of this process looks, so the view is this thread's.
        let memory = unsafe {
            // What was being changed means nothing.
            (*self.view.get()).found &= !left;
            (*self.view.get()).memory(files, now)
        };
        self.last.set(memory);
        self.looking.store(0, Ordering::Release);
        memory
    }

    fn forked(&self) {
        // Relaxed, twice: there is one thread.
        if self.looking.load(Ordering::Relaxed) != 0 {
            // What a thread that is gone was changing means nothing.
            // SAFETY: there is one thread, and it is not in the middle of a look, which is a part of a call.
            unsafe { (*self.view.get()).found = false };
            self.looking.store(0, Ordering::Relaxed);
        }
    }
}

/// The last answer, in words of which each is a guess: two threads may mix theirs. A limit of 0 is none.
#[derive(Debug)]
struct Last {
    limit: AtomicUsize,
    used: AtomicUsize,
    stalled: AtomicBool,
}

impl Last {
    const fn new() -> Last {
        Last { limit: AtomicUsize::new(0), used: AtomicUsize::new(0), stalled: AtomicBool::new(false) }
    }

    // Relaxed, here and below: see above.
    fn get(&self) -> Option<Memory> {
        let limit = self.limit.load(Ordering::Relaxed);
        let (used, stalled) = (self.used.load(Ordering::Relaxed), self.stalled.load(Ordering::Relaxed));
        (limit > 0).then_some(Memory { limit, used, stalled })
    }

    fn set(&self, memory: Option<Memory>) {
        let memory = memory.unwrap_or(Memory { limit: 0, used: 0, stalled: false });
        self.limit.store(memory.limit, Ordering::Relaxed);
        self.used.store(memory.used, Ordering::Relaxed);
        self.stalled.store(memory.stalled, Ordering::Relaxed);
    }
}

/// What was found, and since when.
#[derive(Debug)]
struct View {
    /// The rest means something.
    found: bool,
    /// When limits were last looked for, by [`neap_core::Os::clock`].
    surveyed: u64,
    /// When the table of mounts was last read.
    located: u64,
    groups: Groups,
    buffers: Buffers,
}

impl View {
    const NEW: View = View { found: false, surveyed: 0, located: 0, groups: Groups::NONE, buffers: Buffers::new() };

    fn memory(&mut self, files: Files, now: u64) -> Option<Memory> {
        if !self.found || now.saturating_sub(self.surveyed) >= SURVEY_MS {
            let keep = self.found && now.saturating_sub(self.located) < LOCATE_MS;
            self.look(files, now, keep);
        } else if self.groups.count > 0 {
            let memory = self.groups.memory(files, &mut self.buffers);
            if memory.is_some() {
                return memory;
            }
            // A cgroup is gone: the process was moved, or its cgroups are mounted elsewhere.
            self.look(files, now, false);
        }
        self.groups.memory(files, &mut self.buffers).or_else(|| machine(files, &mut self.buffers))
    }

    /// Looks for limits; for the mount only where it does not `keep` what was found.
    fn look(&mut self, files: Files, now: u64, keep: bool) {
        self.groups.find(files, &mut self.buffers, keep);
        self.surveyed = now;
        if !keep {
            self.located = now;
        }
        self.found = true;
    }
}
