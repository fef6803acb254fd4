//! A census: what is free, by size. Unlike `publish.rs` it looks at the record of each chunk, some thousands under
//! one hold of the lock, so it is for reports that somebody asks for. What other threads do meanwhile makes it a guess.

use crate::blocks::class::{self, CLASSES};
use crate::blocks::large_record;
use crate::blocks::slab_record::{self, clean_pages};
use crate::observe::Observed;
use crate::pages::chunk::{Kind, Record, State};
use crate::pages::range::Ranges;
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// Sizes of free ranges are told by powers of two: from `1 << i` chunks to less than twice as many.
pub const SIZES: usize = 24;
/// The last of them. A longer range would count there, but no arena has room for one.
const LONGEST: usize = SIZES - 1;
/// Chunks that are looked at under one hold of the lock.
const LOOK: usize = 4 * 1024;

/// Some things of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
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

/// What is free, by size.
#[derive(Clone, Copy, Debug)]
pub struct Census {
    /// Free blocks in slabs, by class, those that were never carved included.
    pub blocks: [u64; CLASSES],
    /// Free ranges that may hold memory, by the logarithm of their chunks.
    pub dirty: [Count; SIZES],
    /// What slabs have that is no block: behind the last one.
    pub tails: u64,
    /// Free ranges that hold no memory.
    pub clean: Count,
    /// Chunks of arenas that were ever used, in bytes.
    pub used: u64,
    /// Most bytes that were used or dirty at one time, of arenas.
    pub peak: u64,
    /// Most huge blocks at one time.
    pub most_huge: Count,
    /// What holds memory by neap's own books, see [`Observed::held`].
    pub held: u64,
}

impl Default for Census {
    fn default() -> Self {
        Self::new()
    }
}

impl Census {
    /// Nothing.
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

    /// Counts the chunk of `c`, which was used; returns how many chunks belong to it. What is another thread's slab or block
    /// changes meanwhile: each number is a guess.
    fn look(&mut self, r: &Ranges, c: Record, page: usize) -> usize {
        match c.kind() {
            Kind::SLAB => {
                let (class, (used, carved)) = (c.class_roughly(1), slab_record::seen(c));
                if class == 0 {
                    // Its owner is setting it up, and the kind is seen before the class.
                    return 1;
                }
                let clean = clean_pages(c).load(Ordering::Relaxed);
                let capacity = class::capacity(class);
                let free = u64::from(capacity.saturating_sub(used.saturating_sub(c.remote().counted())));
                self.blocks[class] += free;
                // Blocks were carved up to an OS page's end; of those OS pages some went back since.
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
    /// How much memory neap holds, by its own books: OS pages of slabs that were carved and did not go back, large blocks,
    /// free ranges that wait. Bookkeeping, huge blocks, and OS pages that the program left untouched in blocks are the
    /// difference to what the kernel counts.
    pub fn held(&self) -> u64 {
        let mut census = Census::new();
        self.take_census(&mut census);
        census.held
    }

    /// Counts what lies in the reentrant reserve.
    fn count_reentrant(&self, census: &mut Census) {
        let reentrant_reserve = &self.reentrant_blocks;
        for class in 1..CLASSES {
            for c in reentrant_reserve.slabs_of(class) {
                let (free, clean) = (c.remote().apart(), clean_pages(c).load(Ordering::Relaxed) != 0);
                let (free, size) = (u64::from(free), u64::from(class::SIZE[class]));
                census.blocks[class] += free;
                census.tails += CHUNK as u64 - u64::from(class::capacity(class)) * size;
                census.held += if clean { 0 } else { CHUNK as u64 };
            }
        }
        census.held += reentrant_reserve.large_bytes.load(Ordering::Relaxed) as u64;
        census.used += (self.arenas.reentrant_reserve.used.load(Ordering::Relaxed) * CHUNK) as u64;
    }

    /// Counts what is free, by size, into `census`, which is empty. In place, as a census has some kilobytes and the
    /// caller's stack may be short.
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
