//! The mappings of a process at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::MappingId;

/// Addresses and their mappings. Cheap to clone, as fork requires; copied when one side changes.
///
/// Invariant: ranges do not overlap and are not empty.
#[derive(Clone, Default)]
pub struct Space {
    /// First address -> the address behind the last one, and the mapping.
    ranges: Arc<BTreeMap<u64, (u64, MappingId)>>,
}

impl Space {
    /// The mapping of an address.
    pub fn find(&self, address: u64) -> Option<MappingId> {
        self.find_range(address).map(|(_, id)| id)
    }

    /// The mapping of an address, and where its range ends.
    pub fn find_range(&self, address: u64) -> Option<(u64, MappingId)> {
        let (_, &(end, id)) = self.ranges.range(..=address).next_back()?;
        (address < end).then_some((end, id))
    }

    /// Whether no other mapping is in a range.
    pub fn is_only(&self, start: u64, end: u64, id: MappingId) -> bool {
        let before = self.find(start);
        before.is_none_or(|before| before == id) && self.ranges.range(start..end).all(|(_, &(_, other))| other == id)
    }

    /// The mapping that ends exactly at an address.
    pub fn ending_at(&self, address: u64) -> Option<MappingId> {
        let (_, &(end, id)) = self.ranges.range(..address).next_back()?;
        (end == address).then_some(id)
    }

    /// The first mapping above an unmapped address, and where it begins.
    pub fn above(&self, address: u64) -> Option<(u64, MappingId)> {
        self.ranges.range(address..).next().map(|(&start, &(_, id))| (start, id))
    }

    /// Maps a range; replaces what was there before. Returns the mappings that are gone completely.
    pub fn map(&mut self, start: u64, end: u64, id: MappingId) -> Vec<MappingId> {
        let gone = self.unmap(start, end);
        if start < end {
            Arc::make_mut(&mut self.ranges).insert(start, (end, id));
        }
        gone
    }

    /// Unmaps a range. Returns the mappings that are gone completely.
    pub fn unmap(&mut self, start: u64, end: u64) -> Vec<MappingId> {
        let mut gone = Vec::new();
        if start >= end {
            return gone;
        }
        let ranges = Arc::make_mut(&mut self.ranges);
        if let Some((&low, &(high, old))) = ranges.range(..start).next_back()
            && high > start
        {
            ranges.insert(low, (start, old));
            if high > end {
                ranges.insert(end, (high, old));
            }
        }
        while let Some((&low, &(high, old))) = ranges.range(start..end).next() {
            ranges.remove(&low);
            if high > end {
                ranges.insert(end, (high, old));
            } else {
                gone.push(old);
            }
        }
        gone
    }

    /// Whether this space alone owns the ranges: then a change does not copy them.
    #[cfg(test)]
    pub fn is_own(&self) -> bool {
        Arc::strong_count(&self.ranges) == 1
    }

    /// All ranges, for tests.
    #[cfg(test)]
    pub fn ranges(&self) -> Vec<(u64, u64, MappingId)> {
        self.ranges.iter().map(|(&start, &(end, id))| (start, end, id)).collect()
    }
}
