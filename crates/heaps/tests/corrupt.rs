//! Recorded heaps with random damage: a walk always comes to an end, and its figures add up.

mod support;

use neap_heaps::{Memory, Run, Unreadable};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::recording::Recording;

/// Damaged copies of each recording, unless time runs out.
const CASES: u64 = 1000;
/// The longest that one may take: a debug build on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
/// For all of one recording.
const ALL: Duration = Duration::from_secs(20);

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

/// A recording with words that are replaced when they are read, and with OS pages that go away.
struct Damaged<'r> {
    recording: &'r Recording,
    words: Vec<(u64, u64)>,
    gone: Vec<u64>,
}

impl Memory for Damaged<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let end = address.checked_add(into.len() as u64).ok_or(Unreadable)?;
        if self.gone.iter().any(|page| *page < end && address < page + 4096) {
            return Err(Unreadable);
        }
        self.recording.read(address, into)?;
        for (at, word) in &self.words {
            for (byte, place) in word.to_le_bytes().into_iter().zip(*at..) {
                if (address..end).contains(&place) {
                    into[(place - address) as usize] = byte;
                }
            }
        }
        Ok(())
    }

    fn resident(&self, range: Range<u64>, into: &mut Vec<Run>) {
        self.recording.resident(range, into);
    }
}

/// Addresses where damage hurts: words that are sizes or pointers of the recording.
fn words(recording: &Recording) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for (run, bytes) in &recording.runs {
        for (number, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            if word != 0 && word != 0x5a5a_5a5a_5a5a_5a5a {
                all.push((run.range.start + 8 * number as u64, word));
            }
        }
    }
    all
}

/// Catches walks of damaged heaps that hang, panic, or count bytes that are not there.
#[test]
fn damaged_heaps() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("fixtures").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        let recording = Recording::read(&path).expect("a recording");
        let (words, start) = (words(&recording), Instant::now());
        let mut done = 0;
        for case in 0..CASES {
            let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (case + 1).wrapping_mul(0x2545_f491_4f6c_dd1d));
            let mut damaged = Damaged { recording: &recording, words: Vec::new(), gone: Vec::new() };
            let most = 1 << random.below(8);
            for _ in 0..1 + random.below(most) {
                let (at, word) = words[random.below(words.len() as u64) as usize];
                let other = words[random.below(words.len() as u64) as usize];
                damaged.words.push((
                    at,
                    match random.below(6) {
                        0 => random.next(),
                        1 => 0,
                        2 => word ^ (1 << random.below(64)),
                        3 => word.wrapping_add(random.below(64)).wrapping_sub(32),
                        4 => u64::MAX - random.below(64),
                        _ => other.1,
                    },
                ));
            }
            for _ in 0..random.below(3) {
                damaged.gone.push(words[random.below(words.len() as u64) as usize].0 & !4095);
            }
            let one = Instant::now();
            for heap in neap_heaps::find(&damaged, &recording.mappings, &recording) {
                for part in &heap.parts {
                    let bytes: u64 = part.ranges.iter().map(|range| range.end - range.start).sum();
                    assert!(part.resident_bytes <= part.bytes, "{path:?} case {case}: {part:?}");
                    assert!(part.bytes <= bytes, "{path:?} case {case}: {part:?}");
                    assert!(part.ranges.is_sorted_by(|a, b| a.end <= b.start), "{path:?} case {case}: {part:?}");
                }
            }
            assert!(one.elapsed() < LIMIT, "{path:?} case {case}: {:?}", one.elapsed());
            done += 1;
            if start.elapsed() > ALL {
                break;
            }
        }
        println!("{path:?}: {done} cases in {:?}", start.elapsed());
        assert!(done >= 20, "{path:?}: only {done} cases in {ALL:?}");
    }
}
