//! Places in the core's source, and how often a run has been at each. Most faults show only within a few steps, at
//! places that a run rarely reaches, so a scheduler that switches at each step with the same probability misses them.

use core::panic::Location;

/// Limit on the places that are remembered: a multiple of what the core has.
const ROOM: usize = 4096;

/// The places of a run.
pub struct Places {
    /// Key of a place, 0 for none, and how often the run was there.
    seen: Box<[(u64, u32); ROOM]>,
}

impl Places {
    /// No place was seen.
    pub fn new() -> Self {
        Places { seen: Box::new([(0, 0); ROOM]) }
    }

    /// Counts a visit of this place; returns the number of visits.
    pub fn visit(&mut self, place: &Location<'_>) -> u32 {
        let key = key(place);
        let mut at = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52) as usize % ROOM;
        loop {
            let (known, times) = &mut self.seen[at];
            if *known == key || *known == 0 {
                *known = key;
                *times = times.saturating_add(1);
                return *times;
            }
            at = (at + 1) % ROOM;
        }
    }
}

impl Default for Places {
    fn default() -> Self {
        Self::new()
    }
}

/// File, line and column, which are the same in each build of one source: four letters of the file's name distinguish
/// it.
fn key(place: &Location<'_>) -> u64 {
    let name = place.file().as_bytes();
    let end = name.len() - 3;
    let letters = name[end - 4..end].iter().fold(0, |key, &letter| key << 8 | u64::from(letter));
    letters << 32 | u64::from(place.line()) << 8 | u64::from(place.column() & 0xFF)
}
