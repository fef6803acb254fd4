//! A token for memory that only its holder uses.

use crate::system::os::Run;

/// Committed memory that only the holder uses now: of a new block, of a block that is being freed, or of a slab of the
/// holder's. Having it proves that. So the holder may write to it, ask the system about it, and purge it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owned {
    start: *mut u8,
    len: usize,
}

impl Owned {
    /// Returns a token for `len` bytes at `start`.
    ///
    /// # Safety
    /// What the type proves must be true for as long as the token is used.
    #[inline(always)]
    pub(crate) unsafe fn of(start: *mut u8, len: usize) -> Self {
        Owned { start, len }
    }

    /// Returns the address of its first byte.
    #[inline(always)]
    pub(crate) fn start(self) -> *mut u8 {
        self.start
    }

    /// Returns its length in bytes.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Returns its bytes `from..to`, as far as it has them.
    #[inline]
    pub(crate) fn part(self, from: usize, to: usize) -> Owned {
        let to = to.min(self.len);
        let from = from.min(to);
        Owned { start: self.start.wrapping_add(from), len: to - from }
    }

    /// Returns the part of it that is `run`, which must lie in it.
    pub(crate) fn run(self, run: Run) -> Owned {
        let from = run.start.addr() - self.start.addr();
        self.part(from, from + run.len)
    }

    /// Fills it with zeroes.
    #[inline]
    pub(crate) fn clear(self) {
        // SAFETY: `Owned` proves that the bytes are committed and that only the holder uses them.
        unsafe { self.start.write_bytes(0, self.len) };
    }

    /// Writes a zero to each OS page of it. All of its bytes must be zero.
    pub(crate) fn touch(self, page: usize) {
        for at in (0..self.len).step_by(page) {
            // SAFETY: `Owned` proves that the bytes are committed and that only the holder uses them. Volatile, as the
            // write changes nothing that the compiler knows of.
            unsafe { self.start.add(at).write_volatile(0) };
        }
    }

    /// Whether all of its bytes are zero. Its start must be aligned for words.
    pub(crate) fn is_zero(self) -> bool {
        debug_assert!(self.start.cast::<u64>().is_aligned());
        // Checks pairs of cache lines, one branch for sixteen words, then the words and bytes that are left.
        // SAFETY: `Owned` proves that the bytes are committed and that only the holder uses them; the start is aligned.
        let (words, bytes) = unsafe {
            let words = core::slice::from_raw_parts(self.start.cast::<u64>(), self.len / 8);
            (words, core::slice::from_raw_parts(self.start.add(self.len / 8 * 8), self.len % 8))
        };
        let (pairs, words) = words.as_chunks::<16>();
        pairs.iter().all(|pair| pair.iter().fold(0, |all, word| all | word) == 0)
            && words.iter().all(|&w| w == 0)
            && bytes.iter().all(|&b| b == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a byte that is not checked, or one too many that is, wherever the length ends.
    #[test]
    fn each_byte_counts() {
        let mut block = [0u64; 24];
        let p = block.as_mut_ptr().cast::<u8>();
        for len in if cfg!(miri) { 60..80 } else { 0..180 } {
            for at in 0..=len {
                // SAFETY: the block has `len` bytes, and one more.
                unsafe {
                    p.add(at).write(1);
                    assert_eq!(Owned::of(p, len).is_zero(), at == len, "byte {at} of {len}");
                    p.add(at).write(0);
                }
            }
        }
    }

    /// Catches a part that reaches beyond the whole.
    #[test]
    fn parts_stay_inside() {
        let mut block = [1u8; 8];
        // SAFETY: the bytes are this test's.
        let whole = unsafe { Owned::of(block.as_mut_ptr(), 8) };
        for (from, to, start, len) in [(0, 8, 0, 8), (2, 4, 2, 2), (6, 20, 6, 2), (9, 12, 8, 0), (5, 3, 3, 0)] {
            let part = whole.part(from, to);
            assert_eq!((part.start().addr() - whole.start().addr(), part.len()), (start, len), "{from}..{to}");
        }
        whole.part(3, 5).clear();
        assert_eq!(block, [1, 1, 1, 0, 0, 1, 1, 1]);
    }
}
