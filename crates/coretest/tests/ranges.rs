//! The free ranges against a model that knows the state of each chunk: any order of taking, freeing, growing and
//! purging, in a long arena and in many short ones.

use neap_core::CHUNK;
use neap_core::chunk::{Kind, RECORD_BYTES, Record, State};
use neap_core::pages::age;
use neap_core::pages::space::Space;
use neap_core::range::Ranges;
use neap_core::sync::Ordering;
use neap_coretest::{Config, Fake};
use std::collections::BTreeMap;

/// The state of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    /// The test's.
    Taken,
    /// Put aside for the purger.
    Dropped,
    /// Free since this age; [`age::NONE`]: clean.
    Free(u8),
}

/// The address of the first record, and the number of chunks.
type Range = (usize, usize);

const RECORD: usize = RECORD_BYTES;
/// Clean ranges of at least this many chunks start at a multiple of 2 MiB.
const LONG: usize = (64 << 20) / CHUNK;

struct Test {
    space: Box<Space<Fake>>,
    ranges: Box<Ranges>,
    /// By the addresses of their records.
    chunks: BTreeMap<usize, Is>,
    held: Vec<Range>,
    random: u64,
    /// Whether there is one arena with room for all.
    is_long: bool,
}

fn at(record: usize) -> Record {
    // SAFETY: the tests use records that came from the ranges.
    unsafe { Record::from_address(record) }
}

/// The records of a range.
fn records((c, len): Range) -> impl Iterator<Item = usize> {
    (0..len).map(move |i| c + i * RECORD)
}

impl Test {
    fn new(config: Config) -> Self {
        let (random, is_long) = (config.seed, config.address_limit.is_none());
        let (space, ranges) = (Box::new(Space::new(Fake::new(config))), Box::new(Ranges::new()));
        space.map.set_up(&space.os);
        Test { space, ranges, chunks: BTreeMap::new(), held: Vec::new(), random, is_long }
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % n
    }

    /// A length: mostly few chunks.
    fn length(&mut self) -> usize {
        match self.below(12) {
            0 => 1 + self.below(300),
            1 => 30 + self.below(12),
            _ => 1 + self.below(9),
        }
    }

    fn set(&mut self, range: Range, is: Is) {
        records(range).for_each(|c| _ = self.chunks.insert(c, is));
    }

    /// Maximal runs of free chunks of one state, clean or dirty.
    fn free(&self, dirty: bool) -> Vec<Range> {
        let mut found: Vec<Range> = Vec::new();
        for (&c, &is) in &self.chunks {
            if matches!(is, Is::Free(since) if (since != age::NONE) == dirty) {
                match found.last_mut() {
                    Some((start, len)) if *start + *len * RECORD == c => *len += 1,
                    _ => found.push((c, 1)),
                }
            }
        }
        found
    }

    /// Adds what the frontier skipped to the model: it is free and clean.
    fn notice_skipped(&mut self) {
        for i in 0.. {
            let Some((first, used)) = self.space.arenas.used(self.ranges.lock(), i) else { return };
            for c in records((first.address(), used)) {
                self.chunks.entry(c).or_insert(Is::Free(age::NONE));
            }
        }
    }

    fn take(&mut self, clean: bool) {
        let (len, align) = (self.length(), if self.below(6) == 0 { 1 << self.below(6) } else { 1 });
        let (fresh, before) = (self.ranges.fresh_chunks, self.chunks.len());
        let Test { space, ranges, .. } = self;
        let taken = if clean { ranges.take_clean(space, len, align) } else { ranges.take(space, len, align * CHUNK) };
        // There is a list for each length below 32, and four for each doubling above.
        let need = len + align - 1;
        let sure = |rows: Vec<Range>| rows.iter().any(|row| row.1 >= need + if need < 32 { 0 } else { need / 4 + 1 });
        let Some(taken) = taken else {
            assert!(!sure(self.free(false)), "{len} clean chunks are free");
            return assert!(clean || !sure(self.free(true)), "{len} dirty chunks are free");
        };
        assert!(taken.first.start().addr().is_multiple_of(align * CHUNK));
        let all = taken.is_clean();
        assert!(!all || clean || !sure(self.free(true)), "{len} dirty chunks are free, and were not taken");
        let known = records((taken.first.address(), len)).all(|c| self.chunks.contains_key(&c));
        assert!(!all || known || !sure(self.free(false)), "{len} clean chunks are free, and were not taken");
        assert!(all || !clean);
        for (i, c) in records((taken.first.address(), len)).enumerate() {
            let dirty = (taken.dirty.0..taken.dirty.1).contains(&i);
            match self.chunks.get(&c) {
                None => assert!(!dirty, "never used"),
                Some(Is::Free(since)) => assert_eq!(*since != age::NONE, dirty, "chunk {i} of {len}"),
                Some(other) => panic!("chunk {i} of {len} is {other:?}"),
            }
        }
        let dirty = taken.dirty.1 - taken.dirty.0;
        assert_eq!(self.ranges.fresh_chunks - fresh, len - dirty, "what was clean");
        self.set((taken.first.address(), len), Is::Taken);
        self.notice_skipped();
        // The arena grew by no more than that.
        assert!(self.chunks.len() <= before + len + align.max(LONG));
        self.held.push((taken.first.address(), len));
    }

    /// Takes any range of the test out of its list.
    fn any_held(&mut self) -> Option<Range> {
        let n = self.held.len();
        (n > 0).then(|| self.below(n)).map(|i| self.held.swap_remove(i))
    }

    fn give(&mut self, range: Range, since: u8) {
        self.ranges.give(&self.space.arenas, at(range.0), range.1, since);
        self.set(range, Is::Free(since));
    }

    /// Frees all or a part of a range.
    fn give_some(&mut self) {
        let Some((c, len)) = self.any_held() else { return };
        let (from, since) = (if self.below(3) == 0 { self.below(len) } else { 0 }, self.any_age());
        if from > 0 {
            self.held.push((c, from));
        }
        self.give((c + from * RECORD, len - from), since);
    }

    fn any_age(&mut self) -> u8 {
        match self.below(8) {
            0 | 1 => age::NONE,
            2 => age::LAZY,
            n => age::FIRST + n as u8,
        }
    }

    fn extend(&mut self) {
        let Some((c, len)) = self.any_held() else { return };
        let (more, after) = (self.length(), c + len * RECORD);
        // The chunks behind it in the model, up to the first that is not free; the frontier lies behind the last one.
        let known = |c: &usize| self.chunks.get(c).copied();
        let behind: Vec<usize> = (0..more).map(|i| after + i * RECORD).collect();
        let free: Vec<bool> = behind.iter().map_while(known).map(|is| matches!(is, Is::Free(_))).collect();
        let all_free = free.iter().all(|&free| free);
        let dirty = behind.iter().filter_map(known).filter(|is| matches!(is, Is::Free(since) if *since != age::NONE));
        let clean = more - dirty.count();
        let copied = clean > len / 4 && self.free(true).iter().any(|row| row.1 >= len + more);
        let pieces = 1 + behind
            .windows(2)
            .filter(|pair| {
                known(&pair[0]).is_some_and(|is| {
                    known(&pair[1]).is_some_and(|next| (is == Is::Free(age::NONE)) != (next == Is::Free(age::NONE)))
                })
            })
            .count();
        let Test { space, ranges, .. } = self;
        if ranges.extend(space, at(after), more, len) {
            assert!(all_free && !(copied && len + more < 32), "{more} chunks behind {len}: {free:?}");
            self.set((c, len + more), Is::Taken);
            self.held.push((c, len + more));
        } else {
            let at_end = free.len() < more;
            assert!(!all_free || copied || pieces >= 4 || (at_end && !self.is_long), "the next {more} are free");
            self.held.push((c, len));
        }
    }

    /// Does what the purger does: takes a part of a dirty range, and returns it clean.
    fn purge(&mut self) {
        let rows = self.free(true);
        if rows.is_empty() {
            return;
        }
        let (c, len) = rows[self.below(rows.len())];
        let from = self.below(len);
        let to = from + 1 + self.below(len - from);
        let any = at(c + self.below(len) * RECORD);
        assert_eq!(self.ranges.start_of(any), at(c));
        self.ranges.take_out(&self.space.arenas, at(c), from, to);
        let range = (c + from * RECORD, to - from);
        self.set(range, Is::Taken);
        self.check();
        let since = if self.below(4) == 0 { age::LAZY } else { age::NONE };
        self.give(range, since);
    }

    fn put_aside(&mut self) {
        let Some(range) = self.any_held() else { return };
        self.ranges.drop_chunks(at(range.0), range.1);
        self.set(range, Is::Dropped);
    }

    fn take_aside(&mut self) {
        let most = 1 + self.below(12);
        let Some((c, len)) = self.ranges.take_dropped(most) else {
            return assert!(self.chunks.values().all(|is| *is != Is::Dropped));
        };
        assert!((1..=most).contains(&len));
        assert!(records((c.address(), len)).all(|c| self.chunks[&c] == Is::Dropped));
        self.set((c.address(), len), Is::Taken);
        self.give((c.address(), len), age::NONE);
    }

    /// Compares all records, ages and sums with the model.
    fn check(&self) {
        let count = |which: fn(&Is) -> bool| self.chunks.values().filter(|is| which(is)).count();
        let (clean, free) = (count(|is| *is == Is::Free(age::NONE)), count(|is| matches!(is, Is::Free(_))));
        let (lazy, aside) = (count(|is| *is == Is::Free(age::LAZY)), count(|is| *is == Is::Dropped));
        let taken = self.chunks.len() - free;
        assert_eq!(self.ranges.free_chunks, [clean, free - clean]);
        assert_eq!((self.ranges.taken_chunks(), self.ranges.footprint()), (taken, taken + free - clean));
        assert_eq!((self.ranges.lazy_chunks, self.ranges.waiting()), (lazy, free - clean - lazy + aside));
        for dirty in [false, true] {
            for (c, len) in self.free(dirty) {
                let (first, last) = (at(c), at(c).after(len - 1));
                let state = if dirty { State::Dirty } else { State::Clean };
                assert_eq!((first.kind(), self.ranges.look_at(first)), (Kind::FREE, (len, state)));
                assert_eq!(self.ranges.look_at(last).0, len);
                assert_eq!(last.kind(), if len == 1 { Kind::FREE } else { Kind::FREE_END });
                assert!((1..len.max(2) - 1).all(|i| first.after(i).kind() == Kind::NONE));
            }
        }
        for (&c, &is) in &self.chunks {
            let age = age::of(&self.space.arenas, at(c)).load(Ordering::Relaxed);
            match is {
                Is::Free(since) => assert_eq!(age, since),
                Is::Taken | Is::Dropped => assert_eq!(age, age::NONE, "nothing waits there"),
            }
            if is == Is::Taken {
                assert_eq!(at(c).kind(), Kind::NONE);
            }
        }
        assert!(self.ranges.is_valid());
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.below(16) {
                0..6 => self.take(false),
                6 => self.take(true),
                7..12 => self.give_some(),
                12 => self.extend(),
                13 => self.purge(),
                14 => self.put_aside(),
                _ => self.take_aside(),
            }
            self.check();
        }
    }
}

/// Catches ranges that overlap, are not joined, count as clean although they are not, are not found although they are
/// free, or lose the age since which they wait.
#[test]
fn ranges_are_as_the_model_says() {
    for seed in 1..5 {
        let mut test = Test::new(Config { seed, ..Config::default() });
        test.run(400);
        assert!(test.chunks.len() > 100);
    }
}

/// Catches a range that reaches from one arena into the next, or beyond the end of one.
#[test]
fn short_arenas() {
    for seed in 1..5 {
        let mut test = Test::new(Config { seed, address_limit: Some((2 << 30) + (256 << 20)), ..Config::default() });
        test.run(400);
        assert!(test.space.arenas.used(test.ranges.lock(), 2).is_some(), "three arenas at least");
    }
}

/// Catches long ranges that share a page table with what lies before them, and short ones that are aligned and so leave
/// gaps.
#[test]
fn long_ranges_start_at_huge_pages() {
    let mut test = Test::new(Config::default());
    let mut take = |len: usize| {
        let Test { space, ranges, .. } = &mut test;
        let taken = ranges.take(space, len, CHUNK).expect("addresses");
        taken.first.start().addr()
    };
    let first = take(1);
    assert_eq!(take(3), first + CHUNK);
    assert_eq!(take(LONG - 1), first + 4 * CHUNK, "no gap");
    let long = take(LONG);
    assert!(long.is_multiple_of(2 << 20) && long > first);
    assert_eq!(take(5), first + (3 + LONG) * CHUNK, "in the gap");
}

/// Catches free memory that is not used although a block could be made of it and clean memory beside it, and blocks
/// that are made so where less than an eighth is free.
#[test]
fn ranges_join_their_clean_neighbours() {
    let take = |test: &mut Test, len: usize| {
        let Test { space, ranges, .. } = test;
        let taken = ranges.take(space, len, CHUNK).expect("addresses");
        (taken.first, taken.dirty)
    };
    let give = |test: &mut Test, c, len, since| {
        test.ranges.give(&test.space.arenas, c, len, since);
    };
    for (len, joined) in [(32, true), (39, true), (40, false)] {
        let mut test = Test::new(Config::default());
        let (c, _) = take(&mut test, 4);
        give(&mut test, c, 4, age::FIRST);
        let (first, dirty) = take(&mut test, len);
        assert_eq!((first == c, dirty), (joined, (0, if joined { 4 } else { 0 })), "4 of {len} chunks are free");
    }
    // The neighbour in front has exactly the missing chunks.
    let mut test = Test::new(Config::default());
    let (c, _) = take(&mut test, 8);
    let (behind, _) = take(&mut test, 1);
    assert_eq!(behind, c.after(8));
    give(&mut test, c, 4, age::NONE);
    give(&mut test, c.after(4), 4, age::FIRST);
    assert_eq!(take(&mut test, 8), (c, (4, 8)));
}

/// Catches an aligned hole that is not reused, alone or with the clean chunks on one side, and aligned chunks that are
/// taken from elsewhere or are not aligned.
#[test]
fn aligned_ranges_come_from_aligned_holes() {
    const ALIGN: usize = 32;
    let take = |test: &mut Test, len: usize, align: usize| {
        let Test { space, ranges, .. } = test;
        let taken = ranges.take(space, len, align * CHUNK).expect("addresses");
        assert!(taken.first.start().addr().is_multiple_of(align * CHUNK));
        (taken.first, taken.dirty)
    };
    // Free chunks before the hole, in the hole and behind it, and the requested chunks.
    let cases = [(0, 32, 0, 32), (0, 40, 0, 32), (0, 32, 8, 40), (32, 32, 0, 40), (32, 40, 32, 96), (16, 48, 0, 32)];
    for (before, len, behind, wanted) in cases {
        let mut test = Test::new(Config::default());
        let all = before + len + behind;
        let (edge, _) = take(&mut test, 2 * ALIGN, ALIGN);
        let (c, _) = take(&mut test, all + 1, 1);
        assert_eq!(c, edge.after(2 * ALIGN), "in a row");
        let mut give = |c, len, since| {
            if len > 0 {
                test.ranges.give(&test.space.arenas, c, len, since);
            }
        };
        give(c, before, age::NONE);
        give(c.after(before), len, age::FIRST);
        give(c.after(before + len), behind, age::NONE);
        let (first, dirty) = take(&mut test, wanted, ALIGN);
        let from = before.next_multiple_of(ALIGN);
        let from = if from + wanted > all { 0 } else { from };
        assert_eq!(first, c.after(from), "{wanted} chunks of {before}, {len} and {behind}");
        let start = before.saturating_sub(from);
        assert_eq!(dirty, (start, (before + len - from).min(wanted)));
        assert!(test.ranges.is_valid());
    }
}
