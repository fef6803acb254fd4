//! A bit set from which any thread claims bits, and to which it gives them back, without a lock and without waiting.
//!
//! A thread claims a row of bits word by word. Where it finds one of them taken, it gives back the bits that it has
//! claimed, and tries a later row. So two threads that need the same bits may both go elsewhere, and neither waits.
//! Model-checked in `tests/loom`.

use crate::system::sync::{AtomicU64, Ordering};

/// Number of passes of a claim over all bits: other threads may have held some of them for a moment only.
const PASSES: usize = if cfg!(loom) { 1 } else { 4 };

/// `64 * WORDS` bits. A set bit is claimed.
#[derive(Debug)]
pub struct Claims<const WORDS: usize> {
    words: [AtomicU64; WORDS],
}

/// The part of bits `from..to` that lies in one word: its index, and the bits as a mask.
fn part(from: usize, to: usize) -> (usize, u64) {
    let (low, len) = (from % 64, (64 - from % 64).min(to - from));
    (from / 64, (u64::MAX >> (64 - len)) << low)
}

/// The parts of bits `from..to`: words, and the bits in each.
pub(crate) fn parts(mut from: usize, to: usize) -> impl Iterator<Item = (usize, u64)> {
    core::iter::from_fn(move || {
        let next = (from < to).then(|| part(from, to));
        from = (from / 64 + 1) * 64;
        next
    })
}

impl<const WORDS: usize> Claims<WORDS> {
    /// A set in which no bit is claimed.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Claims { words: [const { AtomicU64::new(0) }; WORDS] }
    }

    /// A set in which no bit is claimed.
    #[cfg(loom)]
    pub fn new() -> Self {
        Claims { words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Claims `n` bits in a row below `end`, the first at an index that is `skew` less than a multiple of `align`;
    /// returns that index. `None` if there is no such row, or if other threads took each one first.
    pub fn claim(&self, n: usize, align: usize, skew: usize, end: usize) -> Option<usize> {
        let aligned = |i: usize| (i + skew).next_multiple_of(align) - skew;
        for _ in 0..PASSES {
            let mut from = aligned(0);
            while from + n <= end {
                match self.try_claim(from, n) {
                    Ok(()) => return Some(from),
                    Err(free) => from = aligned(free),
                }
            }
        }
        None
    }

    /// Claims bits `from..from + n`; the error is the first index behind one that is taken.
    pub(crate) fn try_claim(&self, from: usize, n: usize) -> Result<(), usize> {
        let to = from + n;
        // Relaxed: a hint that saves claiming part of a row and giving it back; the `fetch_or` below decides.
        let busy = parts(from, to).find_map(|(w, mask)| behind(w, self.words[w].load(Ordering::Relaxed), mask));
        if let Some(index) = busy {
            return Err(index);
        }
        for (w, mask) in parts(from, to) {
            // Acquire pairs with the Release of `release`: what the last holder did comes before.
            let before = self.words[w].fetch_or(mask, Ordering::Acquire);
            if let Some(index) = behind(w, before, mask) {
                self.words[w].fetch_and(!(mask & !before), Ordering::Release);
                self.release(from, (w * 64).saturating_sub(from));
                return Err(index);
            }
        }
        Ok(())
    }

    /// Gives back bits `from..from + n`, which the caller has claimed.
    pub fn release(&self, from: usize, n: usize) {
        for (w, mask) in parts(from, from + n) {
            // Release: see `try_claim`.
            self.words[w].fetch_and(!mask, Ordering::Release);
        }
    }

    /// Whether bit `i` is claimed; a hint unless the caller has claimed it.
    pub fn is_claimed(&self, i: usize) -> bool {
        self.words[i / 64].load(Ordering::Relaxed) >> (i % 64) & 1 != 0
    }
}

/// If bits of `mask` are set in `word`: the index behind the last of them, and behind the set bits that follow it
/// without a gap.
fn behind(w: usize, word: u64, mask: u64) -> Option<usize> {
    let taken = word & mask;
    (taken != 0).then(|| {
        let last = 63 - taken.leading_zeros();
        w * 64 + (last + (word >> last).trailing_ones()) as usize
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Catches a row that overlaps another, lies at a wrong place, or is not found although it is free.
    #[test]
    fn rows_are_apart() {
        let claims = Claims::<4>::new();
        assert_eq!(claims.claim(3, 1, 0, 256), Some(0));
        assert_eq!(claims.claim(70, 1, 0, 256), Some(3), "over the border of words");
        assert_eq!(claims.claim(8, 8, 0, 256), Some(80));
        assert_eq!(claims.claim(8, 8, 3, 256), Some(93), "indexes that are 3 less than a multiple of 8");
        assert_eq!(claims.claim(8, 1, 0, 256), Some(101));
        assert_eq!(claims.claim(7, 1, 0, 256), Some(73), "a gap that just fits");
        assert_eq!(claims.claim(5, 1, 0, 256), Some(88));
        assert_eq!(claims.claim(148, 1, 0, 256), None);
        assert_eq!(claims.claim(147, 1, 0, 256), Some(109));
        claims.release(3, 70);
        assert_eq!(claims.claim(71, 1, 0, 256), None);
        assert_eq!(claims.claim(70, 1, 0, 256), Some(3));
        assert!((0..256).all(|i| claims.is_claimed(i)));
        claims.release(0, 256);
        assert!(!(0..256).any(|i| claims.is_claimed(i)));
        let singles: Vec<_> = (0..256).filter_map(|_| claims.claim(1, 1, 0, 200)).collect();
        assert_eq!(singles, (0..200).collect::<Vec<_>>());
    }
}
