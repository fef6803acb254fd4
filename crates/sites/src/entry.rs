//! One recorded allocation, as words of a slot.
//!
//! | word | |
//! |---|---|
//! | 0 | check over the number of the entry and the words that follow |
//! | 1 | time, CLOCK_MONOTONIC in nanoseconds |
//! | 2 | address |
//! | 3 | usable size, and in the top byte the number of frames |
//! | 4.. | return addresses, innermost first |

/// Words of a slot.
pub const WORDS: usize = 32;
/// Bytes of a slot.
pub const ENTRY_BYTES: usize = WORDS * 8;
/// Limit on the return addresses of an entry.
pub const FRAMES: usize = WORDS - FIXED;

/// Words before the frames.
const FIXED: usize = 4;
/// The bit position of the number of frames in its word.
const COUNT: u32 = 56;

/// A recorded allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it was handed out: CLOCK_MONOTONIC, in nanoseconds.
    pub time: u64,
    /// The block.
    pub address: u64,
    /// Its usable bytes.
    pub size: u64,
    frames: [u64; FRAMES],
    count: usize,
}

impl Entry {
    /// An entry without frames.
    pub const fn new(time: u64, address: u64, size: u64) -> Self {
        Self { time, address, size: size & ((1 << COUNT) - 1), frames: [0; FRAMES], count: 0 }
    }

    /// Adds the next caller outwards; false if there is no room.
    pub fn push(&mut self, frame: u64) -> bool {
        let Some(place) = self.frames.get_mut(self.count) else { return false };
        *place = frame;
        self.count += 1;
        true
    }

    /// The return addresses: of the caller of malloc, of its caller, and so on.
    pub fn frames(&self) -> &[u64] {
        self.frames.get(..self.count).unwrap_or(&self.frames)
    }

    /// The words of the entry with this number, and how many of them are used.
    pub fn encode(&self, number: u64) -> ([u64; WORDS], usize) {
        let mut words = [0; WORDS];
        words[1] = self.time;
        words[2] = self.address;
        words[3] = self.size | (self.count as u64) << COUNT;
        words[FIXED..].copy_from_slice(&self.frames);
        let used = FIXED + self.frames().len();
        words[0] = check(number, &words[1..used]);
        (words, used)
    }

    /// The entry with this number; `None` if some of the words are not its own.
    pub fn decode(number: u64, words: &[u64; WORDS]) -> Option<Self> {
        let count = (words[3] >> COUNT) as usize;
        let used = words.get(1..FIXED + count)?;
        if check(number, used) != words[0] {
            return None;
        }
        let mut entry = Self::new(words[1], words[2], words[3]);
        entry.frames[..count].copy_from_slice(words.get(FIXED..FIXED + count)?);
        entry.count = count;
        Some(entry)
    }
}

/// A checksum that no other entry and no mixture of two has, except by chance; never 0.
fn check(number: u64, words: &[u64]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    words.iter().fold(number.wrapping_mul(ODD) ^ ODD, |sum, word| (sum.rotate_left(23) ^ word).wrapping_mul(ODD)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a word that is not kept or not checked, and an entry of another lap.
    #[test]
    fn what_goes_in_comes_out() {
        for count in [0, 1, 5, FRAMES] {
            let mut entry = Entry::new(5, 0x7000_0000_1000, 4096);
            assert!((0..count).all(|i| entry.push(0x40_0000 + i as u64)));
            assert_eq!(entry.frames().len(), count);
            let (words, used) = entry.encode(77);
            assert_eq!(Entry::decode(77, &words), Some(entry));
            assert_eq!(Entry::decode(77 + crate::CAPACITY, &words), None);
            for at in 0..used {
                for bit in 0..64 {
                    let mut torn = words;
                    torn[at] ^= 1 << bit;
                    assert_eq!(Entry::decode(77, &torn), None, "{at} {bit}");
                }
            }
        }
        let mut full = Entry::new(u64::MAX, u64::MAX, u64::MAX);
        while full.push(u64::MAX) {}
        assert_eq!(Entry::decode(0, &full.encode(0).0), Some(full));
        assert_eq!(Entry::decode(0, &[0; WORDS]), None, "a slot that was never written");
        assert_eq!(Entry::decode(0, &[u64::MAX; WORDS]), None);
    }
}
