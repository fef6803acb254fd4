//! Hostile memory: a walk of its heaps must end, and its figures must add up.
//!
//! The first byte chooses a recorded heap, and the others are damage to it (`crates/heaps/tests/support/damaged.rs`).
//! Or it chooses none: then the others are a small process, a file with data and anonymous memory behind it. Words that
//! name an offset in 64 KiB become addresses, so that the fuzzer can build pointers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neap_heaps::{Memory, NoFiles, Run, Unreadable, find};
use std::ops::Range;
use std::sync::LazyLock;
use support::damaged::{Damaged, recordings, words};
use support::recording::Recording;

#[path = "../../crates/heaps/tests/support/mod.rs"]
mod support;

/// The address of the data; the heap follows.
const DATA: u64 = 0x7000_0000_0000;
const DATA_BYTES: u64 = 0x2000;
const PAGE: u64 = 4096;

struct Bytes(Vec<u8>);

impl Memory for Bytes {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let start = usize::try_from(address.checked_sub(DATA).ok_or(Unreadable)?).map_err(|_| Unreadable)?;
        let end = start.checked_add(into.len()).ok_or(Unreadable)?;
        into.copy_from_slice(self.0.get(start..end).ok_or(Unreadable)?);
        Ok(())
    }

    fn resident(&self, range: Range<u64>, into: &mut Vec<Run>) {
        assert!(range.start.is_multiple_of(PAGE) && range.start <= range.end, "{range:x?}");
        let (start, end) = (range.start.max(DATA), range.end.min(DATA + self.0.len() as u64));
        if start < end {
            into.push(Run { range: start..end, swapped: false });
        }
    }
}

static RECORDED: LazyLock<Vec<(Recording, Vec<(u64, u64)>)>> = LazyLock::new(|| {
    let with_words = |recording: Recording| (recording.clone(), words(&recording));
    recordings().into_iter().map(|(_, recording)| with_words(recording)).collect()
});

fuzz_target!(|bytes: &[u8]| {
    let Some((which, rest)) = bytes.split_first() else { return };
    match RECORDED.get(usize::from(*which) % (RECORDED.len() + 1)) {
        Some((recording, words)) => drop(Damaged::new(recording, words, rest).walk()),
        None => small(rest),
    }
});

/// The bytes are a whole process.
fn small(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(PAGE as usize).max(0x4000), 0);
    let length = bytes.len() as u64;
    for word in bytes.as_chunks_mut::<8>().0 {
        if word[2..] == [0, 0, 0, 0, 0, 0x70] {
            *word = (DATA + u64::from(u16::from_le_bytes([word[0], word[1]]))).to_le_bytes();
        }
    }
    let mappings = [
        support::writable(DATA..DATA + DATA_BYTES, Some("/lib/libc.so.6")),
        support::writable(DATA + DATA_BYTES..DATA + length, Some("[heap]")),
    ];
    for heap in find(&Bytes(bytes), &mappings, &NoFiles) {
        for part in &heap.parts {
            let held: u64 = part.ranges.iter().map(|range| range.end - range.start).sum();
            assert!(part.bytes <= held && part.resident_bytes <= part.bytes, "{part:?}");
        }
    }
}
