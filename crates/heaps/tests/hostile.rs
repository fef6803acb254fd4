//! Memory that a program has arranged so that walks would take for ever: little of it is read, and only once.

mod support;

use neap_heaps::{Heap, Mapping, Memory, NoFiles, Run, Unreadable};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::writable;

const PAGE: u64 = 4096;
/// Where the data of a library is, and anonymous memory.
const DATA: u64 = 0x10_0000_0000;
const ANONYMOUS: u64 = 0x20_0000_0000;

/// Written OS pages; counts calls.
struct Fake {
    pages: BTreeMap<u64, Vec<u8>>,
    mappings: Vec<Mapping>,
    calls: AtomicUsize,
    /// Limit on the walk's calls; then the memory panics, or says that the limit is reached.
    most: usize,
    ends: bool,
}

impl Fake {
    fn new(data: u64, anonymous: u64, most: usize) -> Fake {
        let mappings = vec![
            writable(DATA..DATA + data, Some("/lib/library.so")),
            writable(ANONYMOUS..ANONYMOUS + anonymous, None),
        ];
        Fake { pages: BTreeMap::new(), mappings, calls: AtomicUsize::new(0), most, ends: false }
    }

    fn set(&mut self, at: u64, word: u64) {
        let page = self.pages.entry(at & !(PAGE - 1)).or_insert_with(|| vec![0; PAGE as usize]);
        let offset = (at % PAGE) as usize;
        page[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// An arena of glibc 2.27 to 2.42 without free chunks.
    fn arena(&mut self, at: u64, top: u64, next: u64, system: u64) {
        for bin in 0..127 {
            let place = at + 112 + 16 * bin;
            self.set(place, place - 16);
            self.set(place + 8, place - 16);
        }
        for (offset, word) in [(96, top), (2160, next), (2184, system)] {
            self.set(at + offset, word);
        }
    }

    fn walk(&self) -> Vec<Heap> {
        neap_heaps::find(self, &self.mappings, &NoFiles)
    }

    fn count(&self) -> bool {
        let is_left = self.calls.fetch_add(1, Ordering::Relaxed) < self.most;
        assert!(is_left || self.ends, "more than {} calls", self.most);
        is_left
    }
}

impl Memory for Fake {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        if !self.count() {
            return Err(Unreadable);
        }
        for (at, byte) in (address..).zip(into) {
            let page = self.pages.get(&(at & !(PAGE - 1))).ok_or(Unreadable)?;
            *byte = page[(at % PAGE) as usize];
        }
        Ok(())
    }

    fn resident(&self, range: Range<u64>, into: &mut Vec<Run>) {
        if !self.count() {
            return;
        }
        for at in self.pages.range(range).map(|(at, _)| *at) {
            match into.last_mut().filter(|last| last.range.end == at) {
                Some(last) => last.range.end += PAGE,
                None => into.push(Run { range: at..at + PAGE, swapped: false }),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.ends && self.calls.load(Ordering::Relaxed) >= self.most
    }
}

/// Catches a leaf that is read for each of the pointers to it: 2^18 may be the same.
#[test]
fn a_tree_with_one_leaf() {
    let mut fake = Fake::new(2 << 20, 4 << 20, 20_000);
    let (leaf, record, extent) = (ANONYMOUS, ANONYMOUS + (3 << 20), 0x4001_0000);
    fake.mappings.insert(0, Mapping { range: extent..extent + PAGE, ..fake.mappings[1].clone() });
    // Of the second class, like the words of the leaf.
    for (offset, word) in [(0, 1 << 20), (8, extent), (16, PAGE)] {
        fake.set(record + offset, word);
    }
    for place in 16..1024 {
        fake.set(leaf + 8 * place, (record + 128 * (place & 1)) | 1 << 48);
    }
    for place in 1..1 << 18 {
        fake.set(DATA + 8 * place, leaf);
    }
    let heaps = fake.walk();
    assert!(heaps.iter().any(|heap| heap.allocator == "jemalloc 5.3"), "{heaps:?}");
}

/// Catches areas of musl that are read repeatedly if one leads to itself.
#[test]
fn an_area_that_leads_to_itself() {
    let mut fake = Fake::new(PAGE, PAGE, 100);
    let (area, secret) = (ANONYMOUS, 0x1234_5678_9abc);
    for (offset, word) in [(0, secret), (8, 1), (56, area), (64, area)] {
        fake.set(DATA + offset, word);
    }
    fake.set(area, secret);
    fake.set(area + 8, area);
    let heaps = fake.walk();
    let musl = heaps.iter().find(|heap| heap.allocator == "musl").expect("it is found");
    assert_eq!(musl.doubts, ["some records could not be read"]);
}

/// Catches arenas of glibc whose ring does not close, and that are read up to a limit for each candidate for the main
/// arena.
#[test]
fn a_ring_that_does_not_close() {
    let mut fake = Fake::new(16 * PAGE, PAGE, 1000);
    let other = DATA + 15 * PAGE;
    for number in 0..10 {
        fake.arena(DATA + number * PAGE, ANONYMOUS, other, PAGE);
    }
    fake.arena(other, ANONYMOUS, other, PAGE);
    fake.walk();
}

/// Catches walks that go on after the limit: a heap of 1 TiB of which only the top was touched.
#[test]
fn nothing_is_left() {
    const TIB: u64 = 1 << 40;
    let mut fake = Fake::new(PAGE, TIB, 100);
    fake.ends = true;
    let top = ANONYMOUS + TIB - PAGE;
    fake.arena(DATA, top, DATA, TIB);
    fake.set(top + 8, PAGE | 1);
    let began = Instant::now();
    let heaps = fake.walk();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let unsure: u64 =
        heaps.iter().flat_map(|heap| &heap.parts).map(|part| part.split.as_ref().expect("a split").unsure.bytes).sum();
    assert!(unsure > TIB / 2, "{heaps:?}");
}
