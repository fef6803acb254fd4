//! The options. To add one: a line in `Id`, an entry here, a section in docs/options.md; the compiler and the tests
//! name every other place.

use crate::{Id, Kind, Opt};

/// Most bytes of a size: all addresses that a program has.
const ALL: u64 = 128 << 40;
/// Least memory limit: a process needs about so much to start. Refuses `limit=512`, meant as megabytes, and 0.
const LEAST_LIMIT: u64 = 1 << 20;
const HOUR: u32 = 60 * 60 * 1000;

/// Every option of neap.
pub const TABLE: &[Opt] = &[
    Opt {
        id: Id::Counters,
        name: "counters",
        env: "NEAP_COUNTERS",
        kind: Kind::Directory,
        default: "",
        doc: "Count blocks, bytes and system calls, in a file for each process in this directory (slower; used by neap run --summary).",
        start_only: true,
    },
    Opt {
        id: Id::Foreign,
        name: "foreign",
        env: "NEAP_FOREIGN",
        kind: Kind::Choice(&["pass", "abort"]),
        default: "pass",
        doc: "What free does with a block of another allocator: pass it on to the C library where it is plausibly one of its blocks, or abort.",
        start_only: false,
    },
    Opt {
        id: Id::Purge,
        name: "purge",
        env: "NEAP_PURGE",
        kind: Kind::Choice(&["decay", "eager", "lazy", "never"]),
        default: "decay",
        doc: "When free memory goes back to the system: when it was not used again for purge_delay (decay), at once (eager), as decay but the system takes it only when it is short of memory (lazy), or only when the program asks (never).",
        start_only: false,
    },
    Opt {
        id: Id::PurgeDelay,
        name: "purge_delay",
        env: "NEAP_PURGE_DELAY",
        kind: Kind::Duration { min: 0, max: HOUR },
        default: "500ms",
        doc: "How long free memory waits for its next use before it goes back.",
        start_only: false,
    },
    Opt {
        id: Id::PurgeBytes,
        name: "purge_bytes",
        env: "NEAP_PURGE_BYTES",
        kind: Kind::Size { words: &["auto"], min: 0, max: ALL },
        default: "auto",
        doc: "How much free memory waits at most; what is more goes back before its time. auto is a quarter of the memory limit.",
        start_only: false,
    },
    Opt {
        id: Id::Zero,
        name: "zero",
        env: "NEAP_ZERO",
        kind: Kind::Choice(&["resident", "always"]),
        default: "resident",
        doc: "What calloc clears of memory that is used again: only the OS pages that may hold something (resident), or all of it (always).",
        start_only: false,
    },
    Opt {
        id: Id::MmapThreshold,
        name: "mmap_threshold",
        env: "NEAP_MMAP_THRESHOLD",
        kind: Kind::Size { words: &["none"], min: 0, max: ALL },
        default: "none",
        doc: "Blocks of at least so many bytes go back to the system as soon as they are freed.",
        start_only: false,
    },
    Opt {
        id: Id::Limit,
        name: "limit",
        env: "NEAP_LIMIT",
        kind: Kind::Size { words: &["auto", "off"], min: LEAST_LIMIT, max: ALL },
        default: "auto",
        doc: "Which memory limit counts: that of the container or the machine, for which no allocation fails (auto), none (off), or a size for this process, beyond which allocations fail.",
        start_only: false,
    },
    Opt {
        id: Id::Harden,
        name: "harden",
        env: "NEAP_HARDEN",
        kind: Kind::Choice(&["off", "on"]),
        default: "off",
        doc: "Whether errors on the heap are made harmless or seen where that costs time: zeroed frees, random places, guard pages, no free lists.",
        start_only: true,
    },
    Opt {
        id: Id::Sites,
        name: "sites",
        env: "NEAP_SITES",
        kind: Kind::Directory,
        default: "",
        doc: "Record where blocks are allocated, in a file for each process in this directory (slower; used by neap pagein --sites).",
        start_only: true,
    },
    Opt {
        id: Id::SitesInterval,
        name: "sites_interval",
        env: "NEAP_SITES_INTERVAL",
        kind: Kind::Size { words: &[], min: 1, max: ALL },
        default: "1",
        doc: "The sampling interval of sites: so many bytes lie between two recorded allocations in the mean; 1: all are recorded.",
        start_only: true,
    },
];

// An entry in the wrong place: order TABLE as `Id` is.
const _: () = {
    let mut i = 0;
    while i < TABLE.len() {
        assert!(TABLE[i].id as usize == i);
        i += 1;
    }
    assert!(TABLE.len() == Id::SitesInterval as usize + 1, "name the last of `Id` here");
};

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Value;
    use std::vec::Vec;

    /// Catches a variable that cannot be guessed from the name, and names that shells do not take.
    #[test]
    fn names_and_variables_agree() {
        for opt in TABLE {
            assert_eq!(opt.env, std::format!("NEAP_{}", opt.name.to_ascii_uppercase()));
            assert!(opt.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", opt.name);
            assert_eq!(Opt::by_name(opt.name).map(|found| found.id), Some(opt.id));
            assert_eq!(opt.id.option().name, opt.name);
        }
        assert!(Opt::by_name("").is_none() && Opt::by_name("Purge").is_none());
    }

    /// Catches two options of one name, of which the second could never be set.
    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = TABLE.iter().map(|opt| opt.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
    }

    /// Catches a default that the option itself refuses.
    #[test]
    fn defaults_are_accepted() {
        for opt in TABLE {
            let value = opt.parse(opt.default.as_bytes());
            assert!(value.is_some() || opt.default.is_empty() && opt.kind == Kind::Directory, "{}", opt.name);
        }
    }

    /// Catches ranges that are empty, words that look like numbers, and documentation without an end.
    #[test]
    fn entries_make_sense() {
        for opt in TABLE {
            assert!(opt.doc.ends_with('.'), "{}", opt.name);
            let words = match opt.kind {
                Kind::Choice(words) => words,
                Kind::Size { words, min, max } => {
                    assert!(min < max, "{}", opt.name);
                    words
                }
                Kind::Duration { min, max } => {
                    assert!(min < max, "{}", opt.name);
                    &[]
                }
                Kind::Directory => &[],
            };
            for word in words {
                assert!(word.bytes().all(|b| b.is_ascii_lowercase()), "{word}");
                assert_eq!(opt.parse(word.as_bytes()), Some(Value::Word(word)));
            }
        }
    }
}
