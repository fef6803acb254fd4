//! Ages: since when the free memory of a chunk waits for its next use, in one byte for each chunk.
//!
//! | age | meaning |
//! |---|---|
//! | 0 | nothing waits here: the chunk is in use, or its free memory is with the system |
//! | 1 to 254 | the epoch in which memory of this chunk was last freed |
//! | 255 | the system knows of it: it takes it when it wants to (MADV_FREE), or refused to (the program locked it) |
//!
//! Every chunk of a dirty free range has an age, and every slab to which blocks came back since its free OS pages were
//! purged. The epoch goes on by one with each [`crate::Allocator::tick`]; ages of the same epoch wait equally long.

use crate::pages::arena::{Arenas, UnderLock};
use crate::pages::chunk::{Record, State};
use crate::system::sync::AtomicU8;

/// Nothing waits.
pub const NONE: u8 = 0;
/// The system knows of it.
pub const LAZY: u8 = 255;
/// The first epoch.
pub const FIRST: u8 = 1;
const LAST: u8 = 254;

/// Free memory waits for so many ticks: what was freed just before one waits a tick less than the delay, at most.
pub(crate) const DELAY_TICKS: u8 = 5;
/// Ticks are at least so many milliseconds apart.
const SHORTEST_TICK: u32 = 10;

/// Milliseconds from one tick to the next, where free memory waits for `delay`.
pub(crate) fn tick_length(delay: u32) -> u32 {
    (delay / u32::from(DELAY_TICKS)).max(SHORTEST_TICK)
}

/// The epoch after `epoch`.
pub const fn next(epoch: u8) -> u8 {
    if epoch == LAST { FIRST } else { epoch + 1 }
}

/// Epochs from `age` to `now`, both epochs; any number if one is not. What nobody looked at for 254 epochs looks young
/// again, and waits once more.
pub const fn passed(age: u8, now: u8) -> u8 {
    if now >= age { now - age } else { LAST.wrapping_sub(age).wrapping_add(now) }
}

/// State of a free range of that age.
pub const fn state(age: u8) -> State {
    if age == NONE { State::Clean } else { State::Dirty }
}

/// Sets the ages of `len` chunks of the caller's, from `c` on.
pub fn set(arenas: &Arenas, _: &UnderLock, c: Record, len: usize, age: u8) {
    // SAFETY: the entries of committed chunks; the lock is held, under which alone they are written but those of slabs.
    unsafe { arenas.ages(c).write_bytes(age, len) }
}

/// The ages of `len` chunks of a free range, or of the caller's, from `c` on.
pub(crate) fn ages<'a>(arenas: &Arenas, _: &'a UnderLock, c: Record, len: usize) -> &'a [u8] {
    // SAFETY: as above: none of them is a slab's, so they do not change while the lock is held.
    unsafe { core::slice::from_raw_parts(arenas.ages(c), len) }
}

/// The age of any chunk.
#[inline]
pub fn of(arenas: &Arenas, c: Record) -> &AtomicU8 {
    // SAFETY: the entry of a committed chunk; tables are never unmapped.
    unsafe { AtomicU8::from_ptr(arenas.ages(c)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an epoch that steps on a value with a meaning, or a count that is wrong where epochs wrap.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic without pointers, in loops that are long to Miri")]
    fn epochs_wrap() {
        let mut epoch = FIRST;
        for _ in 0..1000 {
            let mut later = epoch;
            for n in 0..254 {
                assert!(later != NONE && later != LAZY);
                assert_eq!(passed(epoch, later), n);
                later = next(later);
            }
            assert_eq!(later, epoch);
            epoch = next(epoch);
        }
    }
}
