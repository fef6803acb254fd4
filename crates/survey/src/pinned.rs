//! Fragmentation: which stacks keep OS pages from going back to the system although their blocks do not fill them.
//!
//! **What is known.** The process's own records say exactly which blocks of each OS page are live, but not which code
//! allocated them. The samples say that for some blocks, each with the bytes for which it stands.
//!
//! **The rule.** An OS page with live blocks is *pinned*: they keep it from going back. Its other bytes are divided
//! among its live blocks in proportion to the bytes that each has on it. So a block on an OS page of which `live` bytes
//! are live and `rest` are not pins `rest / live` bytes for each of its own: its *density*. Blocks of one size class on
//! OS pages of about the same density (within a factor of two) are a [`Stratum`]. How much a stratum pins is known
//! exactly, and is divided among the samples in it in proportion to the bytes that they stand for there:
//!
//! ```text
//! pinned(stack) = sum over strata of   stratum.pinned * (bytes of the stack's samples in it / bytes of all samples in it)
//! ```
//!
//! A stratum without a sample is [`Attributed::unknown`]. Where samples began late, blocks from before are in strata
//! too: then a stratum gives its samples only the part that they stand for, `bytes of all samples / stratum.live`, at
//! most all of it.
//!
//! **Where a sample is.** A sampled small block has its own OS pages, so it pins no memory of others. It counts at the
//! place that it would have without the sample, which is in its record; it counts as live there, even if that place is
//! free or has gone back.
//!
//! **The equation.** `resident - live == sum of pinned + unknown + waiting + cached + samples + records`, all of it by
//! the records and the kernel's page table, so that it does not depend on what was sampled.

use std::collections::BTreeMap;

/// A group of similar OS pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The size class of the blocks; 0 for large blocks.
    pub class: u8,
    /// The binary logarithm of the density, in parts of 4096.
    pub density: u8,
}

impl Key {
    /// The group of blocks of `class` on OS pages of which `live` bytes (not 0) are live and `rest` are not; `None` if
    /// nothing is pinned.
    pub fn new(class: u8, live: u64, rest: u64) -> Option<Self> {
        let density = (rest << 12).checked_div(live)?.max(1).ilog2() as u8;
        (rest > 0).then_some(Key { class, density })
    }
}

/// Similar OS pages, with their live blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stratum {
    /// Bytes that are live.
    pub live: u64,
    /// Bytes that are not live and cannot go back.
    pub pinned: u64,
    /// Samples: their stack, and the bytes that they stand for here.
    pub samples: Vec<(u32, f64)>,
}

/// The resident OS pages of a heap, by what keeps them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// All resident bytes.
    pub resident: u64,
    /// Bytes of live blocks on them.
    pub live: u64,
    /// Bytes of live blocks on other OS pages: the program has not touched them, or they are swapped out.
    pub untouched: u64,
    /// OS pages with live blocks, without these.
    pub strata: BTreeMap<Key, Stratum>,
    /// OS pages without a block in use: they wait to go back to the system.
    pub waiting: u64,
    /// OS pages without a live block, of which a thread's cache has some.
    pub cached: u64,
    /// Memory beside samples of small blocks, each of which has a chunk of its own: it was left by earlier blocks
    /// there.
    pub samples: u64,
    /// Records: side tables, heaps.
    pub records: u64,
    /// Number of samples of small blocks, and the bytes of their own OS pages, which `live` includes.
    pub moved: (u64, u64),
    /// Part of `live`: in blocks of at least [`Tally::LARGE`] bytes.
    pub large: u64,
}

/// How much each stack pins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributed {
    /// Bytes by stack.
    pub stacks: BTreeMap<u32, u64>,
    /// Bytes that no sample explains.
    pub unknown: u64,
}

impl Tally {
    /// A program may leave a part of a block of this size untouched.
    pub const LARGE: u64 = 64 << 10;

    /// Adds OS pages with `live` bytes of live blocks of `class` and `rest` others.
    pub fn add_pinned(&mut self, class: u8, live: u64, rest: u64) {
        self.live += live;
        if let Some(key) = Key::new(class, live, rest) {
            let stratum = self.strata.entry(key).or_default();
            stratum.live += live;
            stratum.pinned += rest;
        }
    }

    /// Adds a sample that stands for `bytes` on such OS pages.
    pub fn add_sample(&mut self, class: u8, live: u64, rest: u64, stack: u32, bytes: f64) {
        if let Some(key) = Key::new(class, live, rest) {
            self.strata.entry(key).or_default().samples.push((stack, bytes));
        }
    }

    /// Bytes that live blocks pin.
    pub fn pinned(&self) -> u64 {
        self.strata.values().map(|stratum| stratum.pinned).sum()
    }

    /// Resident bytes that are not live. Holds the equation.
    pub fn idle(&self) -> u64 {
        self.pinned() + self.waiting + self.cached + self.samples + self.records
    }

    /// Divides what is pinned among the stacks of the samples. `late`: blocks from before the first sample exist too.
    pub fn attributed(&self, late: bool) -> Attributed {
        let mut stacks: BTreeMap<u32, f64> = BTreeMap::new();
        for stratum in self.strata.values() {
            let sampled: f64 = stratum.samples.iter().map(|(_, bytes)| bytes).sum();
            let whole = if late { sampled.max(stratum.live as f64) } else { sampled };
            for (stack, bytes) in stratum.samples.iter().filter(|(_, bytes)| *bytes > 0.0) {
                *stacks.entry(*stack).or_default() += stratum.pinned as f64 * bytes / whole;
            }
        }
        // Rounded down, so that the rest counts as unknown.
        let stacks: BTreeMap<u32, u64> = stacks.into_iter().map(|(stack, bytes)| (stack, bytes as u64)).collect();
        let unknown = self.pinned().saturating_sub(stacks.values().sum());
        Attributed { stacks, unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a stack that is blamed for OS pages that its blocks fill, in the size class of one that fills none.
    #[test]
    fn the_sparse_one_is_found() {
        let mut tally = Tally::default();
        // Stack 1 fills its OS pages; stack 2 has a block of 64 bytes on each of as many. Each sample stands for 64
        // KiB.
        for _ in 0..1024 {
            tally.add_pinned(4, 4096 - 64, 64);
            tally.add_pinned(4, 64, 4096 - 64);
        }
        (0..60).for_each(|_| tally.add_sample(4, 4096 - 128, 128, 1, 65536.0));
        tally.add_sample(4, 64, 4096 - 64, 2, 65536.0);
        let attributed = tally.attributed(false);
        assert_eq!(
            (attributed.stacks[&2], attributed.unknown),
            (1024 * (4096 - 64), 1024 * 64 - attributed.stacks.get(&1).unwrap_or(&0))
        );
        assert_eq!(tally.pinned(), attributed.stacks.values().sum::<u64>() + attributed.unknown);
    }

    /// Catches samples of a process that was asked late which are blamed for earlier blocks; and samples that get more
    /// than there is where chance has given them too much weight.
    #[test]
    fn late_samples_get_their_part() {
        let mut tally = Tally::default();
        tally.add_pinned(9, 1000, 3000);
        tally.add_sample(9, 1000, 3000, 5, 250.0);
        assert_eq!(tally.attributed(true), Attributed { stacks: [(5, 750)].into(), unknown: 2250 });
        assert_eq!(tally.attributed(false), Attributed { stacks: [(5, 3000)].into(), unknown: 0 });
        tally.add_sample(9, 1000, 3000, 6, 1750.0);
        assert_eq!(tally.attributed(true), Attributed { stacks: [(5, 375), (6, 2625)].into(), unknown: 0 });
    }

    /// Catches full OS pages that count, and different densities in one stratum.
    #[test]
    fn densities() {
        assert_eq!(Key::new(1, 4096, 0), None);
        assert_eq!(Key::new(1, 0, 4096), None);
        let density = |live, rest| Key::new(1, live, rest).expect("pinned").density;
        assert!(density(4095, 1) < density(2048, 2048) && density(2048, 2048) + 5 < density(32, 4064));
        assert_eq!(density(1000, 1000), density(1000, 1900));
    }
}
