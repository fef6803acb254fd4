//! Where arenas are reserved, how long they are, and whether a limit on address space leaves little room.

use crate::Os;
use crate::pages::layout::{ARENA_ALIGN, ARENA_SHIFT};
use core::ops::Range;

/// Less address space than that is little beside the reservation of an arena.
pub(crate) const LITTLE: usize = ARENA_ALIGN / 8;

/// Whether reservations leave little room below a limit on address space.
pub(crate) fn is_pressed<O: Os>(os: &O) -> bool {
    os.looks_for_limits() && os.address_limit().is_some_and(|left| left < LITTLE)
}

/// Length of an arena where address space is limited: most of it is left to the program's own mappings.
pub(crate) fn share<O: Os>(os: &O, need: usize) -> usize {
    let share = os.address_limit().unwrap_or(ARENA_ALIGN) / 8;
    1 << share.clamp(need, ARENA_ALIGN).ilog2()
}

/// Reserves `len` bytes at a random multiple of [`ARENA_ALIGN`], where the system would have arenas, unless the place is
/// taken: the front of a long arena may have been given back, so that the system has room there.
pub(crate) fn reserve<O: Os>(os: &O, len: usize, is_taken: impl Fn(usize) -> bool) -> Option<usize> {
    // The later tries lie between 1 and 8 TiB: some environments (valgrind) leave no more than that to a program.
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
        // No place is better than another where a limit is in the way.
        if attempt == 0 && os.address_limit().is_some_and(|left| left < len) {
            return None;
        }
    }
    None
}
