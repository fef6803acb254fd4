//! Recorded heaps with damage, which is described by bytes: those of a random generator, or those of the fuzzer.

use super::recording::Recording;
use neap_heaps::{Heap, Memory, Run, Unreadable};
use std::ops::Range;
use std::path::PathBuf;

/// Limit on damages of one copy.
const MOST: usize = 128;

/// All recordings, by name.
pub fn recordings() -> Vec<(PathBuf, Recording)> {
    // The fuzz targets are another package.
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folders = [package.join("tests/fixtures"), package.join("../crates/heaps/tests/fixtures")];
    let folder = folders.into_iter().find(|folder| folder.is_dir()).expect("fixtures");
    let entries = std::fs::read_dir(folder).expect("fixtures");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    // Not this one: its structures are not walked, and it is large.
    paths.retain(|path| !path.ends_with("tcmalloc-google.heap"));
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), Recording::read(&path).expect("a recording"))).collect()
}

/// Words whose damage matters, with their values: sizes and pointers of the recording.
pub fn words(recording: &Recording) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for (run, bytes) in &recording.runs {
        for (number, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            // The recorded programs fill their blocks with 0x5a.
            if word != 0 && word != 0x5a5a_5a5a_5a5a_5a5a {
                all.push((run.range.start + 8 * number as u64, word));
            }
        }
    }
    all
}

/// A recording with words that are replaced when they are read, and with OS pages that disappear.
pub struct Damaged<'r> {
    recording: &'r Recording,
    words: Vec<(u64, u64)>,
    gone: Vec<u64>,
}

impl<'r> Damaged<'r> {
    /// The damage that `bytes` describe: each is a byte for its kind, three for the place, and what the kind needs.
    /// `words` are those of the recording.
    pub fn new(recording: &'r Recording, words: &[(u64, u64)], bytes: &[u8]) -> Self {
        let mut damaged = Damaged { recording, words: Vec::new(), gone: Vec::new() };
        let mut bytes = bytes.iter().copied();
        let number = |bytes: &mut dyn Iterator<Item = u8>, length: usize| {
            bytes.take(length).enumerate().fold(0, |all, (at, byte)| all | u64::from(byte) << (8 * at))
        };
        while damaged.words.len() + damaged.gone.len() < MOST {
            let Some(kind) = bytes.next() else { break };
            let place = |bytes: &mut dyn Iterator<Item = u8>| words[number(bytes, 3) as usize % words.len()];
            let (at, word) = place(&mut bytes);
            let word = match kind % 8 {
                0 => number(&mut bytes, 8),
                1 => 0,
                2 => word ^ 1 << (number(&mut bytes, 1) % 64),
                3 => word.wrapping_add(number(&mut bytes, 1)).wrapping_sub(128),
                4 => u64::MAX - number(&mut bytes, 1),
                5 => place(&mut bytes).1,
                6 => place(&mut bytes).0,
                _ => {
                    damaged.gone.push(at & !4095);
                    continue;
                }
            };
            damaged.words.push((at, word));
        }
        damaged
    }

    /// Walks it, and checks that the figures add up.
    pub fn walk(&self) -> Vec<Heap> {
        let heaps = neap_heaps::find(self, &self.recording.mappings, self.recording);
        for part in heaps.iter().flat_map(|heap| &heap.parts) {
            let held: u64 = part.ranges.iter().map(|range| range.end - range.start).sum();
            assert!(part.bytes <= held && part.resident_bytes <= part.bytes, "{part:?}");
            assert!(part.ranges.is_sorted_by(|a, b| a.end <= b.start), "{part:?}");
        }
        heaps
    }
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
