//! What glibc's controls do there and in neap, for docs/controls.md. Apart from the controls, because the library needs
//! no texts.

use crate::glibc::Control;

/// What one control does, in words.
#[derive(Clone, Copy, Debug)]
pub struct Texts {
    /// glibc's default.
    pub default: &'static str,
    /// What it does in glibc.
    pub glibc: &'static str,
    /// What it does in neap.
    pub neap: &'static str,
}

/// By tunable.
static TEXTS: &[(&str, Texts)] = &[
    (
        "trim_threshold",
        Texts {
            default: "128 KiB, then twice the dynamic mmap threshold",
            glibc: "When a block is freed, free memory at the top of the heap beyond this many bytes goes back; -1: never.",
            neap: "The option `purge_bytes`: free memory beyond this many bytes goes back at once, the rest after `purge_delay`. -1: `purge=never`.",
        },
    ),
    (
        "mmap_threshold",
        Texts {
            default: "128 KiB, grows up to 32 MiB",
            glibc: "Blocks of at least this many bytes are mappings of their own, and go back when they are freed.",
            neap: "The option `mmap_threshold`: they go back when they are freed. -1: `none`.",
        },
    ),
    (
        "mmap_max",
        Texts {
            default: "65536",
            glibc: "Limit on blocks that are mappings of their own; 0: no blocks are.",
            neap: "0: `mmap_threshold=none`, until it is raised again. Other numbers do nothing, because in neap these blocks are not mappings of their own.",
        },
    ),
    (
        "top_pad",
        Texts {
            default: "128 KiB",
            glibc: "How many bytes more than needed the heap grows by, and how many stay when it shrinks.",
            neap: "Nothing: neap grows in steps of 1.5 MiB, from the third on of 16 MiB and more, so a pad gains nothing; `purge_delay` and `purge_bytes` decide what stays when memory is freed.",
        },
    ),
    (
        "perturb",
        Texts {
            default: "0",
            glibc: "Freed blocks are filled with the lowest byte of the number, new ones (not calloc's) with its complement; 0: off.",
            neap: "The same, for all usable bytes of freed blocks. Threads have no caches while it is on, so calls are slower.",
        },
    ),
    (
        "check",
        Texts {
            default: "3",
            glibc: "Until 2.26, what happens at an error: bit 0 reports it, bit 1 ends the process. Since then glibc always does both.",
            neap: "2 (and 6): an error ends the process without a message. All other numbers: with one line. A process with a damaged heap never goes on.",
        },
    ),
    (
        "arena_test",
        Texts {
            default: "8 on 64 bits",
            glibc: "How many arenas there may be before their number is limited.",
            neap: "Nothing: there is one set of arenas for all threads, so there is no number to limit.",
        },
    ),
    (
        "arena_max",
        Texts {
            default: "8 for each processor",
            glibc: "Limit on arenas; set to save memory.",
            neap: "Nothing: all threads share one set of arenas, as with 1 in glibc, but do not wait for each other. Each thread has 3 KiB and its caches, which go back when it is idle.",
        },
    ),
    (
        "mxfast",
        Texts {
            default: "128",
            glibc: "Longest blocks that fast bins keep, at most 160; 0: none.",
            neap: "Nothing: neap has no such bins. The tunable `tcache_count=0` turns the caches of threads off.",
        },
    ),
    (
        "tcache_count",
        Texts {
            default: "7",
            glibc: "Limit on blocks of a size in a thread's cache; 0: no caches.",
            neap: "0: no caches. Other numbers do nothing.",
        },
    ),
    ("tcache_max", Texts { default: "1032", glibc: "Longest blocks in a thread's cache.", neap: "Nothing." }),
    (
        "tcache_unsorted_limit",
        Texts {
            default: "0, without limit",
            glibc: "Limit on blocks that are searched to fill a thread's cache.",
            neap: "Nothing.",
        },
    ),
    (
        "hugetlb",
        Texts {
            default: "0",
            glibc: "1: madvise for huge pages, 2: huge pages from hugetlb.",
            neap: "Nothing: the option `huge` decides about huge pages.",
        },
    ),
];

impl Control {
    /// What it does, in words; `None` if that is missing.
    pub fn texts(&self) -> Option<&'static Texts> {
        TEXTS.iter().find(|(tunable, _)| *tunable == self.tunable).map(|(_, texts)| texts)
    }
}
