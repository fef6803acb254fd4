//! Which rows of mappings can be reused: memory that is mapped, unmapped and mapped again at one place, in any size, is
//! one row, so that programs that keep doing this do not fill the memory.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{Mapping, MappingId};

/// A number for the meaning of a mapping at one place. Mappings of different meaning may have the same number: [`same`]
/// distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Meaning(u64);

impl Meaning {
    /// The meaning of a row.
    pub fn of(row: &Mapping) -> Self {
        let mut hasher = DefaultHasher::new();
        (&row.kind, row.object, bias(row), row.protection, row.shared).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Whether two rows have the same meaning, wherever they begin and end.
pub fn same(one: &Mapping, other: &Mapping) -> bool {
    one.process == other.process
        && one.kind == other.kind
        && one.object == other.object
        && bias(one) == bias(other)
        && one.protection == other.protection
        && one.shared == other.shared
}

/// The difference between file positions and addresses; `None` where positions mean nothing.
fn bias(row: &Mapping) -> Option<u64> {
    (row.object.is_some() || row.offset != 0).then(|| row.start.wrapping_sub(row.offset))
}

/// Extends a row over a range of the same meaning.
pub fn widen(row: &mut Mapping, start: u64, end: u64) {
    if start < row.start {
        if bias(row).is_some() {
            row.offset = row.offset.wrapping_sub(row.start - start);
        }
        row.start = start;
    }
    row.end = row.end.max(end);
}

/// The rows of one image of a process, by meaning and place, mapped or not.
///
/// Invariant: ranges of one meaning do not overlap and are not empty.
#[derive(Default)]
pub struct Rows {
    /// Meaning and first address -> the address behind the last one, and the row.
    ranges: BTreeMap<(Meaning, u64), (u64, MappingId)>,
}

impl Rows {
    /// Removes what overlaps a range; returns the combined range, with its first row.
    pub fn take(&mut self, meaning: Meaning, start: u64, end: u64) -> Option<(u64, u64, MappingId)> {
        let mut met: Option<(u64, u64, MappingId)> = None;
        // Those that begin before `end`, from the last one backwards, until one ends before `start`.
        while let Some((&(is, low), &(high, id))) = self.ranges.range(..(meaning, end)).next_back() {
            if is != meaning || high <= start {
                break;
            }
            self.ranges.remove(&(meaning, low));
            let (_, behind, _) = met.unwrap_or((start, end, id));
            met = Some((low.min(start), high.max(behind), id));
        }
        met
    }

    /// Adds a range that overlaps no other of its meaning.
    pub fn put(&mut self, meaning: Meaning, start: u64, end: u64, id: MappingId) {
        self.ranges.insert((meaning, start), (end, id));
    }
}
