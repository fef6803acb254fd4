//! Actions that remedies may propose, and the trials that proved them.
//!
//! **The rule.** A remedy with bytes names an [`Action`]; an action without a trial is never printed ([`is_proven`]). A
//! trial is one program in which the action was promised some bytes and then taken: its row has both figures, and the
//! date. A test keeps the rows honest: what was given back is within a tenth of what was promised, or in the range that
//! was.
//!
//! A new remedy: add its action here, a trial to `tests/builds/remedies.rs`, and run `cargo xtask remedies`, which writes
//! the rows. Where that cannot try it, a row by hand.

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
    /// A JVM calls it every second.
    TrimsOfJava = "jvm-trim-interval";
    /// No caches of threads in glibc.
    NoThreadCaches = "glibc-tcache";
    /// Starts the program on neap.
    OnNeap = "neap-run";
    /// jemalloc gives back at once.
    JemallocDecay = "jemalloc-decay";
    /// mimalloc gives back at once.
    MimallocPurge = "mimalloc-purge";
    /// mimalloc without huge pages.
    MimallocNoHuge = "mimalloc-no-huge";
    /// pyarrow has its pool give back what is free.
    PyarrowRelease = "pyarrow-release";
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

/// The rows of all trials. `cargo xtask remedies` writes them here and to `docs/remedies.md`.
const ROWS: &str = include_str!("../trials.md");

/// Whether an action may be printed: it is in a trial.
pub fn is_proven(action: Action) -> bool {
    action == Action::Look || ROWS.lines().any(|row| name(row) == action.name())
}

/// The action of a row: the word between the first two backquotes.
fn name(row: &str) -> &str {
    row.split('`').nth(1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a row's program gave back what was promised: within a tenth, or in the range that was.
    fn holds(row: &str) -> Option<bool> {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, _, _, _, promised, gave, date, _] = cells[..] else { return None };
        let (least, most) = promised.split_once(" to ").unwrap_or((promised, promised));
        let (least, most, gave): (f64, f64, f64) = (least.parse().ok()?, most.parse().ok()?, gave.parse().ok()?);
        let is_near = (least * 0.9..=most * 1.1).contains(&gave);
        // An exact promise is one figure.
        Some(date.len() == 10 && is_near && (least < most || gave > 0.0))
    }

    /// Catches an action that can be printed without a trial, a trial that did not hold, and a document without its row.
    #[test]
    fn all_actions_have_trials_that_hold() {
        let document = include_str!("../../../docs/remedies.md");
        for action in Action::ALL {
            assert!(is_proven(*action), "{}: no trial", action.name());
        }
        for row in ROWS.lines() {
            assert!(Action::ALL.iter().any(|action| action.name() == name(row)), "no such action: {row}");
            assert_eq!(holds(row), Some(true), "{row}");
            assert!(document.contains(row), "docs/remedies.md lacks this row:\n{row}");
        }
        let rows = document.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, ROWS.lines().count(), "docs/remedies.md has rows without a trial");
    }

    /// Catches a promise that was not kept and counts as one.
    #[test]
    fn promises_are_kept() {
        let of = |promised: &str, gave| holds(&format!("| `x` | b | p | {promised} | {gave} | 2026-11-28 |"));
        for (promised, gave) in [("300.0", "290.0"), ("0.0 to 142.0", "48.0"), ("0.0 to 10.0", "0.0")] {
            assert_eq!(of(promised, gave), Some(true));
        }
        for (promised, gave) in [("308.0", "0.0"), ("142.0", "96.0"), ("10.0 to 20.0", "40.0"), ("0.0", "0.0")] {
            assert_eq!(of(promised, gave), Some(false));
        }
        assert_eq!(holds("| `x` | b | p | 1.0 | 1.0 |"), None);
    }
}
