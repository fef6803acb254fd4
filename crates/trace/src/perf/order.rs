//! Puts the records of several rings in order.

use super::record::Record;

/// Holds records back until no earlier one can come.
///
/// Each ring is in order, but rings are read one after another. A reader that has read all rings once after the record
/// with time t existed has seen all records up to t. So records up to the latest time of the previous round can be
/// handed out.
#[derive(Debug, Default)]
pub struct Order {
    /// Records that may have to wait for an earlier one.
    waiting: Vec<Record>,
    /// The latest time of the rounds before the current one.
    settled: u64,
    /// The latest time of all.
    latest: u64,
    /// The latest time that was handed out.
    left: u64,
    /// Records that arrived after a later one was handed out.
    late: u64,
}

impl Order {
    /// Adds a record of the current round.
    pub fn push(&mut self, record: Record) {
        self.latest = self.latest.max(record.time);
        if record.time < self.left {
            self.late += 1;
        }
        self.waiting.push(record);
    }

    /// Ends a round, in which every ring was read; hands out the settled records, in order.
    pub fn end_round(&mut self, each: impl FnMut(Record)) {
        let limit = self.settled;
        self.settled = self.latest;
        self.release(limit, each);
    }

    /// Hands out all remaining records.
    pub fn finish(&mut self, each: impl FnMut(Record)) {
        self.release(u64::MAX, each);
    }

    /// Number of records that were handed out of order.
    pub fn late(&self) -> u64 {
        self.late
    }

    fn release(&mut self, limit: u64, each: impl FnMut(Record)) {
        // A stable sort: records of one ring with the same time keep their order. Sorted runs cost little.
        self.waiting.sort_by_key(|record| record.time);
        let count = self.waiting.partition_point(|record| record.time <= limit);
        if let Some(last) = count.checked_sub(1).and_then(|last| self.waiting.get(last)) {
            self.left = self.left.max(last.time);
        }
        self.waiting.drain(..count).for_each(each);
    }
}
