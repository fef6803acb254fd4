//! Recorded heaps with random damage: a walk always comes to an end, and its figures add up.

mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::damaged::{Damaged, recordings, words};

/// Damaged copies of each recording, unless time runs out.
const CASES: u64 = 300;
/// Time limit of one, for a debug build on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
/// Time limit of all copies of one recording.
const ALL: Duration = Duration::from_secs(5);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// Catches walks of damaged heaps that hang, panic, or count bytes that are not there; and damage after which no heap
/// is found and so none walked.
#[test]
fn damaged_heaps() {
    for (path, recording) in recordings() {
        let (words, start) = (words(&recording), Instant::now());
        let (mut done, mut walked) = (0, 0);
        for case in 0..CASES {
            let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (case + 1).wrapping_mul(0x2545_f491_4f6c_dd1d));
            let most = 8 << random.below(8);
            let bytes: Vec<u8> = (0..8 + random.below(most)).map(|_| random.next() as u8).collect();
            let one = Instant::now();
            let heaps = Damaged::new(&recording, &words, &bytes).walk();
            assert!(one.elapsed() < LIMIT, "{path:?} case {case}: {:?}", one.elapsed());
            let is_split = heaps.iter().flat_map(|heap| &heap.parts).any(|part| part.split.is_some());
            walked += u64::from(is_split);
            done += 1;
            if start.elapsed() > ALL {
                break;
            }
        }
        println!("{path:?}: {done} cases, {walked} walked, in {:?}", start.elapsed());
        assert!(done >= 20, "{path:?}: only {done} cases in {ALL:?}");
        assert!(walked * 2 >= done, "{path:?}: of {done} cases only {walked} were walked");
    }
}

/// Catches what the fuzzer once found, and seeds that describe no damage. Each seed is tried on each recording.
#[test]
fn seeds_of_the_fuzzer() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/heaps");
    let entries = std::fs::read_dir(folder).expect("seeds");
    let seeds: Vec<Vec<u8>> =
        entries.map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a seed")).collect();
    assert!(seeds.len() >= 9, "{} seeds", seeds.len());
    for (path, recording) in recordings() {
        let words = words(&recording);
        for seed in &seeds {
            let one = Instant::now();
            Damaged::new(&recording, &words, seed.get(1..).unwrap_or_default()).walk();
            assert!(one.elapsed() < LIMIT, "{path:?}: {:?}", one.elapsed());
        }
    }
}
