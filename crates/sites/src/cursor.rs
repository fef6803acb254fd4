//! The reader's position in a ring that is being written.

use crate::{CAPACITY, ENTRY_BYTES, Entry, Head, WORDS};

/// Number of entries that are read at once.
const RUN: u64 = 64;
/// Limit on missing entries behind the reader's position: one for each thread that was interrupted while writing.
const MISSING: usize = 64;

/// The source of a ring.
pub trait Ring {
    /// The current header.
    fn head(&mut self) -> Option<Head>;

    /// Copies slots from `first` on, as many as `bytes` has room for; false if they cannot be read.
    fn slots(&mut self, first: u64, bytes: &mut [u8]) -> bool;
}

/// A position in a ring. Invariant: each entry below `next` was handed out, or is in `missing`, or is counted in
/// `lost`.
#[derive(Clone, Debug)]
pub struct Cursor {
    next: u64,
    missing: [u64; MISSING],
    count: usize,
    lost: u64,
}

impl Default for Cursor {
    fn default() -> Self {
        Self { next: 0, missing: [0; MISSING], count: 0, lost: 0 }
    }
}

impl Cursor {
    /// Entries that were overwritten before they were read, or never completed.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Entries that were claimed and are not complete yet.
    pub fn missing(&self) -> u64 {
        self.count as u64
    }

    /// Hands out new entries, roughly in order of time. `last`: nothing more will be written.
    pub fn read(&mut self, ring: &mut dyn Ring, last: bool, each: &mut dyn FnMut(&Entry)) {
        let mut bytes = [0; RUN as usize * ENTRY_BYTES];
        let missing = self.missing;
        let count = core::mem::take(&mut self.count);
        for &number in missing.iter().take(count) {
            self.slots(ring, number, 1, &mut bytes, each);
        }
        let Some(head) = ring.head() else { return };
        self.skip_to(head.head.saturating_sub(CAPACITY));
        while self.next < head.head {
            let (first, rest) = (self.next, head.head - self.next);
            // Up to the end of the ring, where the slots continue at its beginning.
            let run = rest.min(RUN).min(CAPACITY - first % CAPACITY);
            self.next += run;
            if !self.slots(ring, first, run, &mut bytes, each) {
                break;
            }
        }
        if let Some(now) = ring.head() {
            self.forget_below(now.head.saturating_sub(CAPACITY));
        }
        if last {
            self.lost = self.lost.saturating_add(self.count as u64);
            self.count = 0;
        }
    }

    /// The entries before this number were overwritten.
    fn skip_to(&mut self, number: u64) {
        if number > self.next {
            self.lost = self.lost.saturating_add(number - self.next);
            self.next = number;
        }
    }

    /// Missing entries that were overwritten will never arrive.
    fn forget_below(&mut self, number: u64) {
        let mut kept = 0;
        for i in 0..self.count.min(MISSING) {
            if self.missing[i] >= number {
                self.missing[kept] = self.missing[i];
                kept += 1;
            } else {
                self.lost = self.lost.saturating_add(1);
            }
        }
        self.count = kept;
    }

    fn slots(
        &mut self,
        ring: &mut dyn Ring,
        first: u64,
        run: u64,
        bytes: &mut [u8],
        each: &mut dyn FnMut(&Entry),
    ) -> bool {
        let bytes = &mut bytes[..run as usize * ENTRY_BYTES];
        let read = ring.slots(first % CAPACITY, bytes);
        for (slot, number) in bytes.as_chunks::<ENTRY_BYTES>().0.iter().zip(first..) {
            let mut words = [0; WORDS];
            for (word, bytes) in words.iter_mut().zip(slot.as_chunks().0) {
                *word = u64::from_ne_bytes(*bytes);
            }
            match Entry::decode(number, &words).filter(|_| read) {
                Some(entry) => each(&entry),
                None => self.miss(number),
            }
        }
        read
    }

    fn miss(&mut self, number: u64) {
        match self.missing.get_mut(self.count) {
            Some(place) => {
                *place = number;
                self.count += 1;
            }
            None => self.lost = self.lost.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    struct Memory {
        head: u64,
        slots: Vec<u8>,
    }

    impl Memory {
        fn new() -> Self {
            Self { head: 0, slots: vec![0; CAPACITY as usize * ENTRY_BYTES] }
        }

        fn write(&mut self, number: u64) {
            let (words, _) = Entry::new(number, number << 12, 100).encode(number);
            let at = (number % CAPACITY) as usize * ENTRY_BYTES;
            for (i, word) in words.iter().enumerate() {
                self.slots[at + i * 8..][..8].copy_from_slice(&word.to_ne_bytes());
            }
        }
    }

    impl Ring for Memory {
        fn head(&mut self) -> Option<Head> {
            Some(Head { pid: 1, interval: 1, head: self.head, lost: 0 })
        }

        fn slots(&mut self, first: u64, bytes: &mut [u8]) -> bool {
            let at = first as usize * ENTRY_BYTES;
            let found = self.slots.get(at..at + bytes.len());
            found.map(|found| bytes.copy_from_slice(found)).is_some()
        }
    }

    fn read(cursor: &mut Cursor, memory: &mut Memory, last: bool) -> Vec<u64> {
        let mut seen = Vec::new();
        cursor.read(memory, last, &mut |entry| seen.push(entry.time));
        seen
    }

    /// Catches entries that are lost, doubled or out of order where the ring wraps around, and overwritten ones that
    /// are not counted.
    #[test]
    fn laps() {
        let (mut memory, mut cursor) = (Memory::new(), Cursor::default());
        let mut expected = 0;
        for run in [0, 1, 63, 64, 65, CAPACITY - 1, CAPACITY] {
            (memory.head..memory.head + run).for_each(|number| memory.write(number));
            memory.head += run;
            let seen = read(&mut cursor, &mut memory, false);
            assert_eq!(seen, (expected..expected + run).collect::<Vec<_>>());
            expected += run;
        }
        assert_eq!(cursor.lost(), 0);
        (memory.head..memory.head + CAPACITY + 9).for_each(|number| memory.write(number));
        memory.head += CAPACITY + 9;
        assert_eq!(read(&mut cursor, &mut memory, true).len() as u64, CAPACITY);
        assert_eq!(cursor.lost(), 9);
    }

    /// Catches entries that are given up because their writer was interrupted, and those that never arrive and are not
    /// counted.
    #[test]
    fn late_entries() {
        let (mut memory, mut cursor) = (Memory::new(), Cursor::default());
        memory.head = 10;
        (0..10).filter(|number| number % 3 != 0).for_each(|number| memory.write(number));
        assert_eq!(read(&mut cursor, &mut memory, false), [1, 2, 4, 5, 7, 8]);
        memory.write(3);
        assert_eq!(read(&mut cursor, &mut memory, false), [3]);
        memory.write(9);
        assert_eq!(read(&mut cursor, &mut memory, true), [9]);
        assert_eq!(cursor.lost(), 2);
        // More of them than the limit.
        memory.head = 500;
        assert_eq!(read(&mut cursor, &mut memory, true), [0; 0]);
        assert_eq!(cursor.lost(), 2 + 490);
    }

    /// Catches a reader that never ends, or panics, on a garbage head.
    #[test]
    fn garbage() {
        let (mut memory, mut cursor) = (Memory::new(), Cursor::default());
        memory.head = u64::MAX;
        assert_eq!(read(&mut cursor, &mut memory, true), [0; 0]);
        memory.head = 3;
        assert_eq!(read(&mut cursor, &mut memory, true), [0; 0]);
        assert_eq!(cursor.lost(), u64::MAX);
    }
}
