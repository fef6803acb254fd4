//! A census: counts free memory by size. Unlike `publish.rs` it reads the record of each chunk, some thousands under
//! one hold of the lock, so it is for reports on request. Approximate, because other threads may allocate and free
//! meanwhile.

use crate::blocks::class::{self, CLASSES};
use crate::blocks::large_record;
use crate::blocks::slab_record::{self, clean_pages};
use crate::observe::Observed;
use crate::pages::chunk::{Kind, Record, State};
use crate::pages::range::Ranges;
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// Number of size groups of free ranges: group `i` has ranges from `1 << i` chunks to less than twice as many.
pub const SIZES: usize = 24;
/// The last group. It would also count longer ranges, but no arena has room for one.
const LONGEST: usize = SIZES - 1;
/// Number of chunks that are read under one hold of the lock.
const LOOK: usize = 4 * 1024;

/// Number and bytes of ranges, or of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Their number.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, count: u64, bytes: u64) {
        self.count += count;
        self.bytes += bytes;
    }
}

/// Free memory, by size.
#[derive(Clone, Copy, Debug)]
pub struct Census {
    /// Free blocks in slabs, by class, including blocks that were never carved.
    pub blocks: [u64; CLASSES],
    /// Free ranges that may hold memory, by the base-2 logarithm of their length in chunks.
    pub dirty: [Count; SIZES],
    /// Bytes of slabs after their last block.
    pub tails: u64,
    /// Free ranges that hold no memory.
    pub clean: Count,
    /// Bytes of arena chunks that were ever used.
    pub used: u64,
    /// Maximum bytes of arenas that were used or dirty at one time.
    pub peak: u64,
    /// Maximum number of huge blocks at one time, and maximum bytes.
    pub most_huge: Count,
    /// Bytes that hold memory by neap's own counts, see [`Observed::held`].
    pub held: u64,
}

impl Census {
    /// An empty census.
    pub const fn new() -> Self {
        const NONE: Count = Count { count: 0, bytes: 0 };
        Census {
            blocks: [0; CLASSES],
            dirty: [NONE; SIZES],
            tails: 0,
            clean: NONE,
            used: 0,
            peak: 0,
            most_huge: NONE,
            held: 0,
        }
    }

    /// Counts the chunk of `c`, which was used at some time; returns the number of chunks that belong to it.
    /// Approximate for slabs and blocks of other threads, which change meanwhile.
    fn look(&mut self, r: &Ranges, c: Record, page: usize) -> usize {
        match c.kind() {
            Kind::SLAB => {
                let (class, (used, carved)) = (c.class_roughly(1), slab_record::seen(c));
                if class == 0 {
                    // Its owner is setting it up: the kind is visible before the class.
                    return 1;
                }
                let clean = clean_pages(c).load(Ordering::Relaxed);
                let capacity = class::capacity(class);
                let free = u64::from(capacity.saturating_sub(used.saturating_sub(c.remote().counted())));
                self.blocks[class] += free;
                // Blocks are carved up to the end of an OS page; some of those OS pages have gone back since.
                let carved = (carved as usize * class::SIZE[class] as usize).div_ceil(page).min(CHUNK / page);
                let back = (u32::from(clean) & ((1 << carved) - 1)).count_ones() as usize;
                self.held += ((carved - back) * page) as u64;
                self.tails += CHUNK as u64 - u64::from(capacity) * u64::from(class::SIZE[class]);
                1
            }
            Kind::FREE | Kind::DROPPED => {
                let (len, state) = r.look_at(c);
                let bytes = (len * CHUNK) as u64;
                if state == State::Dirty || c.kind() == Kind::DROPPED {
                    self.dirty[(len.max(1).ilog2() as usize).min(LONGEST)].add(1, bytes);
                    self.held += bytes;
                } else {
                    self.clean.add(1, bytes);
                }
                len.max(1)
            }
            Kind::LARGE | Kind::CACHED | Kind::DEFERRED => {
                self.held += large_record::bytes(c) as u64;
                large_record::len_roughly(c, 1).max(1)
            }
            _ => 1,
        }
    }
}

impl<O: Os> Observed<O> {
    /// Returns how much memory neap holds by its own counts: carved OS pages of slabs that did not go back, large
    /// blocks, and waiting free ranges. The kernel's count differs by bookkeeping, huge blocks, and OS pages in blocks
    /// that the program never touched.
    pub fn held(&self) -> u64 {
        let mut census = Census::new();
        self.take_census(&mut census);
        census.held
    }

    /// Counts the blocks in the reentrant reserve.
    fn count_reentrant(&self, census: &mut Census) {
        let reentrant_blocks = &self.reentrant_blocks;
        for class in 1..CLASSES {
            for c in reentrant_blocks.slabs_of(class) {
                let (free, clean) = (c.remote().apart(), clean_pages(c).load(Ordering::Relaxed) != 0);
                let (free, size) = (u64::from(free), u64::from(class::SIZE[class]));
                census.blocks[class] += free;
                census.tails += CHUNK as u64 - u64::from(class::capacity(class)) * size;
                census.held += if clean { 0 } else { CHUNK as u64 };
            }
        }
        census.held += reentrant_blocks.large_bytes.load(Ordering::Relaxed) as u64;
        census.used += (self.arenas.reentrant_reserve.used.load(Ordering::Relaxed) * CHUNK) as u64;
    }

    /// Counts free memory by size into `census`, which must be empty. The caller provides it, as a census has some
    /// kilobytes and the caller's stack may be small.
    pub fn take_census(&self, census: &mut Census) {
        let (mut arena, mut index) = (0, 0);
        loop {
            let more = self.ranges.with(&self.os, |r| {
                census.peak = (r.peak_chunks * CHUNK) as u64;
                let Some((first, used)) = self.arenas.used(r.lock(), arena) else { return false };
                let end = index + LOOK;
                while index < used.min(end) {
                    index += census.look(r, first.after(index), self.page_size());
                }
                if index >= used {
                    census.used += (used * CHUNK) as u64;
                    (arena, index) = (arena + 1, 0);
                }
                true
            });
            if !more {
                break;
            }
        }
        self.count_reentrant(census);
        let (count, bytes) = self.huge.most();
        census.most_huge = Count { count: count as u64, bytes: bytes as u64 };
    }
}
