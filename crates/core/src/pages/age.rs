//! Ages: one byte for each chunk that says since when its free memory waits for its next use.
//!
//! | age | meaning |
//! |---|---|
//! | 0 | nothing waits: the chunk is in use, or its free memory has gone back to the system |
//! | 1 to 254 | the epoch in which memory of this chunk was last freed |
//! | 255 | the system may take it at any time (MADV_FREE), or refused to take it (the program locked it) |
//!
//! Invariant 15: every chunk of a dirty free range has an age, and a clean one has none. A slab has an age if blocks
//! came back to it since its holes were last purged. Each [`crate::Allocator::tick`] advances the epoch by one; chunks
//! of the same age have waited equally long.

use crate::pages::arena::{Arenas, UnderLock};
use crate::pages::chunk::{Record, State};
use crate::system::sync::AtomicU8;

/// Nothing waits.
pub const NONE: u8 = 0;
/// The system may take it at any time, or refused to take it.
pub const LAZY: u8 = 255;
/// The first epoch.
pub const FIRST: u8 = 1;
const LAST: u8 = 254;

/// Number of ticks that free memory waits. Memory freed just before a tick waits up to one tick less than the delay.
pub(crate) const DELAY_TICKS: u8 = 5;
/// Minimum time between two ticks, in milliseconds.
const SHORTEST_TICK: u32 = 10;

/// Time between two ticks, in milliseconds, where free memory waits for `delay` milliseconds.
pub(crate) fn tick_length(delay: u32) -> u32 {
    (delay / u32::from(DELAY_TICKS)).max(SHORTEST_TICK)
}

/// The epoch after `epoch`.
pub const fn next(epoch: u8) -> u8 {
    if epoch == LAST { FIRST } else { epoch + 1 }
}

/// Number of epochs from `age` to `now`; any number if one of them is no epoch. Memory that was not looked at for 254
/// epochs seems young again, and waits once more.
pub const fn passed(age: u8, now: u8) -> u8 {
    if now >= age { now - age } else { LAST.wrapping_sub(age).wrapping_add(now) }
}

/// The state of a free range of this age.
pub const fn state(age: u8) -> State {
    if age == NONE { State::Clean } else { State::Dirty }
}

/// Sets the ages of `len` chunks of the caller, from `c` on.
pub fn set(arenas: &Arenas, _: &UnderLock, c: Record, len: usize, age: u8) {
    // SAFETY: the entries of committed chunks. Except for slabs, they are written only under the lock, which
    // `UnderLock` proves is held.
    unsafe { arenas.ages(c).write_bytes(age, len) }
}

/// The ages of `len` chunks from `c` on, which are free or the caller's.
pub(crate) fn ages<'a>(arenas: &Arenas, _: &'a UnderLock, c: Record, len: usize) -> &'a [u8] {
    // SAFETY: the entries of committed chunks. None of them is a slab, so they change only under the lock, which
    // `UnderLock` proves is held.
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

    /// Catches an epoch that takes a reserved value, or a wrong count where epochs wrap around.
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
