//! Actions that remedies may propose, and the trials that proved them.
//!
//! **The rule.** A remedy with bytes names an [`Action`]; an action without a trial is never printed ([`is_proven`]). A
//! trial is one program in which the action was promised some bytes and then taken: its row has both figures. A test
//! keeps the rows honest: what was given back is within a tenth of what was promised, or in the range that was.
//!
//! A new remedy: try it, add its action here, and a row for each build that was tried. `docs/remedies.md` has the rows.

use serde::{Serialize, Serializer};

macro_rules! actions {
    ($($(#[doc = $doc:literal])* $name:ident = $word:literal;)*) => {
        /// What a remedy does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Action {
            $($(#[doc = $doc])* $name,)*
        }

        impl Action {
            /// All actions.
            pub const ALL: &[Action] = &[$(Action::$name,)*];

            /// The word in JSON and documents.
            pub const fn name(self) -> &'static str {
                match self { $(Action::$name => $word,)* }
            }
        }
    };
}

actions! {
    /// Shows more, and gives nothing back: it has no bytes, so it needs no trial.
    Look = "look";
    /// Calls glibc's `malloc_trim` in the running process.
    Trim = "malloc-trim";
    /// Has a JVM call it.
    TrimOfJava = "jvm-trim";
    /// Two arenas of glibc.
    TwoArenas = "glibc-arenas";
    /// No caches of threads in glibc.
    NoThreadCaches = "glibc-tcache";
    /// Starts the program on neap.
    OnNeap = "neap-run";
    /// jemalloc gives back at once.
    JemallocDecay = "jemalloc-decay";
    /// mimalloc gives back at once.
    MimallocPurge = "mimalloc-purge";
    /// tcmalloc of gperftools gives back at once.
    TcmallocDecommit = "tcmalloc-decommit";
    /// neap without huge pages.
    NeapNoHuge = "neap-no-huge";
    /// numpy without huge pages.
    NumpyNoHuge = "numpy-no-huge";
    /// The program without huge pages (prctl PR_SET_THP_DISABLE).
    NoHuge = "no-huge";
    /// Threads give unused stacks back.
    Stacks = "stacks";
    /// Locks memory when it is first used.
    LockOnFault = "lock-on-fault";
    /// The kernel drops what it can of a cgroup.
    Reclaim = "cgroup-reclaim";
    /// Removes a file in memory.
    RemoveFile = "remove-file";
    /// Removes a System V segment.
    RemoveSegment = "remove-segment";
}

impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A trial of an action.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// What was done.
    pub action: Action,
    /// The build of the allocator, runtime or kernel.
    pub build: &'static str,
    /// What the program had done.
    pub program: &'static str,
    /// What was promised, in MiB: least and most.
    pub promised: (f64, f64),
    /// What it gave back, in MiB.
    pub gave: f64,
}

/// The trials of an action.
pub fn of(action: Action) -> impl Iterator<Item = &'static Trial> {
    TRIALS.iter().filter(move |trial| trial.action == action)
}

/// Whether an action may be printed.
pub fn is_proven(action: Action) -> bool {
    action == Action::Look || of(action).next().is_some()
}

impl Trial {
    /// Whether it gave back what was promised.
    pub fn holds(&self) -> bool {
        let (least, most) = self.promised;
        let is_near = (least * 0.9..=most * 1.1).contains(&self.gave);
        // An exact promise is one figure.
        is_near && (least < most || self.gave > 0.0)
    }

    /// Its row in `docs/remedies.md`.
    pub fn row(&self) -> String {
        let (least, most) = self.promised;
        let promised = if least < most { format!("{least:.1} to {most:.1}") } else { format!("{most:.1}") };
        format!("| `{}` | {} | {} | {promised} | {:.1} |", self.action.name(), self.build, self.program, self.gave)
    }
}

const fn exact(action: Action, build: &'static str, program: &'static str, promised: f64, gave: f64) -> Trial {
    Trial { action, build, program, promised: (promised, promised), gave }
}

/// At most so many: neap cannot tell how many.
const fn most(action: Action, build: &'static str, program: &'static str, promised: f64, gave: f64) -> Trial {
    Trial { action, build, program, promised: (0.0, promised), gave }
}

/// All trials. Each program frees most of its memory, or has written only a part of it, and is then idle.
#[rustfmt::skip]
const TRIALS: &[Trial] = &[
    exact(Action::Trim, "glibc 2.36 (Debian 12)", "16 threads, each frees 16 MiB below a live block", 251.8, 251.8),
    exact(Action::TrimOfJava, "OpenJDK 17.0.15 on glibc 2.36", "16 threads drop direct buffers of 20 kB, then a collection", 133.2, 133.0),
    most(Action::TwoArenas, "glibc 2.36 (Debian 12)", "32 threads, each frees all but its last block", 142.0, 142.4),
    exact(Action::NoThreadCaches, "glibc 2.36 (Debian 12)", "400 threads, each with full caches", 91.6, 91.5),
    exact(Action::OnNeap, "glibc 2.36 (Debian 12)", "400 MiB in blocks of 4 KiB, 80 % freed", 321.2, 320.2),
    exact(Action::JemallocDecay, "jemalloc 5.3.0 (Debian 12)", "400 MiB in blocks of 4 KiB, 80 % freed", 319.9, 319.9),
    exact(Action::MimallocPurge, "mimalloc 2.0.9 (Debian 12)", "400 MiB in blocks of 4 KiB, 80 % freed", 320.0, 319.9),
    exact(Action::TcmallocDecommit, "gperftools 2.10 (Debian 12)", "400 MiB in blocks of 4 KiB, 80 % freed", 308.1, 308.1),
    most(Action::NeapNoHuge, "neap, NEAP_HUGE=always", "a numpy array of 256 MiB, one byte written of each 64 KiB", 243.4, 243.4),
    most(Action::NumpyNoHuge, "numpy 2.4.6 on glibc 2.36", "an array of 256 MiB, one byte written of each 64 KiB", 238.1, 238.1),
    most(Action::NoHuge, "Linux 6.18, MADV_HUGEPAGE", "64 KiB written of each 2 MiB of 64 MiB", 62.0, 61.9),
    exact(Action::Stacks, "glibc 2.36 (Debian 12)", "32 threads that used 2 MiB of their stacks once", 64.0, 63.3),
    most(Action::LockOnFault, "Linux 6.18", "64 MiB locked, 8 MiB written", 56.0, 55.8),
    exact(Action::Reclaim, "Linux 6.18, cgroup v1", "100 huge pages, freed but for one OS page of each", 199.6, 199.8),
    exact(Action::RemoveFile, "Linux 6.18, cgroup v1", "a file of 64 MiB on /dev/shm", 64.0, 64.0),
    exact(Action::RemoveSegment, "Linux 6.18, cgroup v1", "a segment of 64 MiB, left by a process that ended", 64.0, 64.3),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an action that can be printed without a trial, a trial that did not hold, and a document without its row.
    #[test]
    fn all_actions_have_trials_that_hold() {
        let document = include_str!("../../../docs/remedies.md");
        for action in Action::ALL {
            assert!(is_proven(*action), "{}: no trial", action.name());
        }
        for trial in TRIALS {
            assert!(trial.holds(), "{}", trial.row());
            assert!(document.contains(&trial.row()), "docs/remedies.md lacks this row:\n{}", trial.row());
        }
        let rows = document.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, TRIALS.len(), "docs/remedies.md has rows without a trial");
    }

    /// Catches a promise that was not kept and counts as one.
    #[test]
    fn promises_are_kept() {
        let of = |promised, gave| Trial { action: Action::Look, build: "", program: "", promised, gave }.holds();
        assert!(of((300.0, 300.0), 290.0) && of((0.0, 142.0), 48.0) && of((0.0, 10.0), 0.0));
        assert!(
            !of((308.0, 308.0), 0.0) && !of((142.0, 142.0), 96.0) && !of((10.0, 20.0), 40.0) && !of((0.0, 0.0), 0.0)
        );
    }
}
