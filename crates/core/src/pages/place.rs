//! Chooses where arenas are reserved and how long they are, and checks whether a limit on address space leaves little
//! room.

use crate::Os;
use crate::pages::layout::{ARENA_ALIGN, ARENA_SHIFT};
use core::ops::Range;

/// Bytes of address space: a limit that leaves less is near, and reservations go back.
pub(crate) const LITTLE: usize = ARENA_ALIGN / 8;

/// Whether little address space is left below a limit on it.
pub(crate) fn is_pressed<O: Os>(os: &O) -> bool {
    os.looks_for_limits() && os.address_limit().is_some_and(|left| left < LITTLE)
}

/// Length of an arena where address space is limited: an eighth of what is left, so that most stays for the program's
/// own mappings, but at least `need`.
pub(crate) fn share<O: Os>(os: &O, need: usize) -> usize {
    let share = os.address_limit().unwrap_or(ARENA_ALIGN) / 8;
    1 << share.clamp(need, ARENA_ALIGN).ilog2()
}

/// Reserves `len` bytes at a random multiple of [`ARENA_ALIGN`] among [`Os::places`]. Skips a slot for which
/// `is_taken`: an arena lies there, although the system may have room in parts of it that were given back.
pub(crate) fn reserve<O: Os>(os: &O, len: usize, is_taken: impl Fn(usize) -> bool) -> Option<usize> {
    // Later attempts use addresses between 1 and 8 TiB: some environments (valgrind) leave a program no others.
    const LOW: Range<usize> = 16..128;
    let places = os.places();
    let places = places.start.div_ceil(ARENA_ALIGN)..places.end >> ARENA_SHIFT;
    for attempt in 0..64 {
        let slots = if attempt < 16 && !places.is_empty() { &places } else { &LOW };
        let slot = slots.start + (os.random() as usize) % slots.len();
        if is_taken(slot) {
            continue;
        }
        if let Some(p) = os.reserve(slot << ARENA_SHIFT, len) {
            return Some(p.expose_provenance());
        }
        // If a limit is the reason, other places would be refused as well.
        if attempt == 0 && os.address_limit().is_some_and(|left| left < len) {
            return None;
        }
    }
    None
}
