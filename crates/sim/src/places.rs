//! Places in the core's source, and how often a run has been at each. A fault mostly shows only within a few steps, at
//! places that a run seldom reaches, so a scheduler that switches at each step with the same chance misses it.

use core::panic::Location;

/// Most places that are remembered: a multiple of what the core has.
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

    /// The run is at this place for the n-th time: n.
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

/// File, line and column, which are the same in each build of one source: four letters of a file's name tell it from others.
fn key(place: &Location<'_>) -> u64 {
    let name = place.file().as_bytes();
    let end = name.len() - 3;
    let letters = name[end - 4..end].iter().fold(0, |key, &letter| key << 8 | u64::from(letter));
    letters << 32 | u64::from(place.line()) << 8 | u64::from(place.column() & 0xFF)
}
