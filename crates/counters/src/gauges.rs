//! The gauges: how much memory is where. One table says their names, units and order; docs/counters.md says how exact
//! each is.

use crate::Counters;
use core::sync::atomic::{Ordering, fence};

/// Unit of a gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// A number of things or events.
    Count,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// A code, explained with the gauge.
    Code,
}

impl Unit {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Count => "count",
            Unit::Milliseconds => "milliseconds",
            Unit::Microseconds => "microseconds",
            Unit::Code => "code",
        }
    }
}

/// What the table says of a gauge.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name, as in [`Gauges`].
    pub name: &'static str,
    /// Unit.
    pub unit: Unit,
}

macro_rules! gauges {
    ($($(#[doc = $doc:literal])* $name:ident: $unit:ident,)*) => {
        /// The gauges at one moment. The order is that of the page: new ones go to the end, and raise
        /// [`MINOR`](crate::MINOR).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Gauges {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Gauges {
            /// Every gauge, in the order of the page.
            pub const TABLE: &[Row] = &[$(Row { name: stringify!($name), unit: Unit::$unit },)*];
            /// How many there are.
            pub const COUNT: usize = Self::TABLE.len();

            /// The values, in the order of the page.
            pub const fn words(&self) -> [u64; Self::COUNT] {
                [$(self.$name,)*]
            }

            /// From values in the order of the page.
            pub const fn from_words(words: [u64; Self::COUNT]) -> Self {
                let [$($name,)*] = words;
                Gauges { $($name,)* }
            }
        }
    };
}

gauges! {
    /// Clock of the last update: milliseconds of CLOCK_MONOTONIC.
    updated: Milliseconds,
    /// Ticks of the purger so far.
    ticks: Count,
    /// What gives memory back: 0 nothing, because nothing waits; 1 a helper thread; 2 the threads that free memory.
    purger: Code,
    /// Policy in force (option `purge`): 0 decay, 1 eager, 2 lazy, 3 never.
    policy: Code,
    /// How long free memory waits at most (option `purge_delay`).
    purge_delay: Milliseconds,
    /// How much free memory waits at most (option `purge_bytes`); the largest number stands for `auto`.
    purge_bytes: Bytes,
    /// The limit that was chosen (option `limit`): 0 off, the largest number stands for `auto`.
    limit: Bytes,
    /// The memory limit that was last read; 0: none, or not read yet.
    memory_limit: Bytes,
    /// How much of it was used then, by all processes that share it.
    memory_used: Bytes,
    /// Bytes of an OS page.
    page_size: Bytes,
    /// Blocks that the program holds.
    live_blocks: Count,
    /// Their usable bytes.
    live_bytes: Bytes,
    /// Free blocks in the caches of threads.
    cached_blocks: Count,
    /// Their bytes.
    cached_bytes: Bytes,
    /// Free chunks that wait to go back to the system.
    dirty_bytes: Bytes,
    /// Free chunks that the system may take when it needs memory (`purge=lazy`), or refused to take.
    lazy_bytes: Bytes,
    /// Free chunks that hold no memory: addresses.
    clean_bytes: Bytes,
    /// Chunks that are slabs: small blocks, live, cached and free.
    slab_bytes: Bytes,
    /// What of them is neither live nor cached. Part of it holds memory, part never did or was purged.
    slab_free_bytes: Bytes,
    /// Large blocks; they are among the live ones.
    large_blocks: Count,
    /// Their usable bytes.
    large_bytes: Bytes,
    /// Huge blocks; they are among the live ones.
    huge_blocks: Count,
    /// Their usable bytes.
    huge_bytes: Bytes,
    /// Heaps: as many as threads allocated at one time.
    heaps: Count,
    /// Given back to the system so far.
    purged_bytes: Bytes,
    /// System calls that gave it back.
    purge_calls: Count,
    /// Bytes that calloc cleared so far.
    cleared_bytes: Bytes,
    /// Bytes that calloc did not have to clear so far, because they were known to be zero.
    skipped_bytes: Bytes,
    /// What calloc clears (option `zero`): 0 resident, 1 always.
    zero: Code,
    /// From which size on blocks go back when they are freed (option `mmap_threshold`); the largest number stands for
    /// `none`.
    mmap_threshold: Bytes,
    /// What becomes of blocks of another allocator (option `foreign`): 0 pass, 1 abort.
    foreign: Code,
    /// Who chose each option's value: three bits each, in the order of the options table.
    origins: Code,
    /// Most bytes of arenas that were in use or waited at one time.
    peak_bytes: Bytes,
    /// Whether memory is hardened (option `harden`): 0 off, 1 on.
    harden: Code,
    /// Bytes of what waits that are held, because the program took as much again soon after it went back.
    held_bytes: Bytes,
    /// Which memory gets huge pages (option `huge`): 0 off, 1 adaptive, 2 advised, 3 thp, 4 always, 5 hugetlb.
    huge: Code,
    /// Made resident at the start (option `prefault`).
    prefault_bytes: Bytes,
    /// Page faults that this made.
    prefault_faults: Count,
    /// The time that it took.
    prefault_microseconds: Microseconds,
    /// What happens when the pool of huge pages has no more (option `hugetlb`): 0 fallback, 1 strict.
    hugetlb: Code,
}

impl Counters {
    /// Updates the gauges. For one thread at a time.
    pub fn set_gauges(&self, gauges: &Gauges) {
        let sequence = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(sequence, Ordering::Relaxed);
        // Release: a reader that sees a new value sees the odd number, or a later one.
        fence(Ordering::Release);
        for (to, from) in self.gauges.iter().zip(gauges.words()) {
            to.store(from, Ordering::Relaxed);
        }
        // Release: a reader that sees the even number sees all values.
        self.sequence.store(sequence + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    /// Catches a gauge that the page of docs does not explain, or with another unit.
    #[test]
    fn every_gauge_is_documented() {
        let doc = include_str!("../../../docs/counters.md");
        for row in Gauges::TABLE {
            let line: String = std::format!("| `{}` | {} |", row.name, row.unit.name());
            assert!(doc.contains(&line), "docs/counters.md has no row {line}");
        }
    }

    /// Catches words in another order than names.
    #[test]
    fn words_come_back() {
        let words = core::array::from_fn(|i| i as u64 + 1);
        let gauges = Gauges::from_words(words);
        assert_eq!(gauges.words(), words);
        assert_eq!((gauges.updated, gauges.hugetlb), (1, Gauges::COUNT as u64));
    }

    /// Catches an update after one that a fork or a kill cut off, which leaves the number odd.
    #[test]
    fn the_sequence_ends_even() {
        let page = Counters::new();
        page.sequence.store(7, Ordering::Relaxed);
        page.set_gauges(&Gauges { live_bytes: 5, ..Gauges::default() });
        assert_eq!(page.sequence.load(Ordering::Relaxed), 8);
        page.set_gauges(&Gauges::default());
        assert_eq!(page.sequence.load(Ordering::Relaxed), 10);
    }
}
