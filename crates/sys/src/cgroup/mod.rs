//! How much memory this process may use together with others: of its cgroup (v1 and v2), or of the machine. What is
//! read and what it costs is in docs/containers.md.
//!
//! - `parse`: the kernel's text formats, pure;
//! - `files`: opening and reading, in pieces;
//! - `groups`: which cgroups limit the process, and what they say;
//! - `saved`: what was found, kept between calls.
//!
//! All of it runs inside the allocator: nothing here allocates, waits, touches errno or panics, and the stack stays
//! under 8 KiB.

mod files;
mod groups;
mod parse;
mod saved;
#[cfg(test)]
mod tests;

use files::Files;
use groups::{Groups, machine};
use neap_core::os::Memory;
use saved::{Known, Saved};

/// Limits are looked for again after so many milliseconds, and whether the process was moved: soon enough for somebody
/// who changes them, and a hundredth of a percent of the time of one processor.
const SURVEY_MS: u64 = 1000;

/// The table of mounts is read again after so many milliseconds. It may be long, and programs whose cgroups are mounted
/// anew while they run are rare.
const LOCATE_MS: u64 = 60_000;

/// [`neap_core::Os::memory`], at the time `now` in milliseconds.
#[cold]
pub(crate) fn memory(now: u64) -> Option<Memory> {
    // All zero, so it costs nothing in the file, and no OS page before the first call.
    static PROBE: Probe = Probe::new();
    PROBE.memory(Files { root: b"" }, now)
}

/// Tells the memory that a process shares with others.
#[derive(Debug)]
struct Probe {
    saved: Saved,
}

impl Probe {
    /// Not yet asked for anything.
    const fn new() -> Probe {
        Probe { saved: Saved::new() }
    }

    fn memory(&self, files: Files, now: u64) -> Option<Memory> {
        let groups = match self.saved.load().filter(|k| now.saturating_sub(k.surveyed) < SURVEY_MS) {
            Some(known) if known.groups.count == 0 => return machine(files),
            Some(known) => match known.groups.memory(files) {
                Some(memory) => return Some(memory),
                // A cgroup is gone: the process was moved, or its cgroups are mounted elsewhere.
                None => self.look(files, now, None),
            },
            None => self.look_again(files, now),
        };
        groups.memory(files).or_else(|| machine(files))
    }

    /// Looks for limits; for the mount only if that was long ago.
    #[inline(never)]
    fn look_again(&self, files: Files, now: u64) -> Groups {
        let known = self.saved.load().filter(|k| now.saturating_sub(k.located) < LOCATE_MS);
        self.look(files, now, known.as_ref())
    }

    /// Looks for limits, and keeps what was found. In a function of its own, so that its buffers are off the stack
    /// when the files of the cgroups are read.
    #[inline(never)]
    fn look(&self, files: Files, now: u64, known: Option<&Known>) -> Groups {
        let groups = Groups::find(files, known.map(|k| &k.groups));
        self.saved.store(&Known { surveyed: now, located: known.map_or(now, |k| k.located), groups });
        groups
    }
}
