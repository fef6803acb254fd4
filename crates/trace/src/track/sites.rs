//! Where the blocks of a heap were allocated, from the records of a process's allocator.
//!
//! A [`History`] has what is known about one image of a process: the newest allocation at each address, up to the
//! present time of the trace. Allocations come roughly in the order of time, from a file that is read periodically, and
//! wait in a queue until the trace reaches their time; so a fault finds what was allocated before it. A fault that
//! finds nothing stays *open*: its site is an allocation that arrives late, or the first one there after the fault. The
//! latter is right for memory that the allocator itself touched before it handed the block out.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::BlockId;

/// Limit on the addresses that are kept, over all processes: allocations at further ones are lost.
const MAX_PLACES: usize = 1 << 22;

/// A recorded allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// When, on the clock of the records.
    pub time: u64,
    /// The block.
    pub address: u64,
    /// Its usable bytes.
    pub size: u64,
    /// The return addresses, innermost first.
    pub frames: Vec<u64>,
}

/// A history, by its index in `Sites`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistoryId(usize);

/// The newest allocation at an address, which is the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Newest {
    /// The address after its last byte.
    end: u64,
    pub time: u64,
    /// Its index in [`Sites::frames`].
    pub frames: u32,
}

/// A fault that no allocation precedes.
#[derive(Clone, Copy, Debug)]
struct Open {
    block: BlockId,
    time: u64,
    /// Whether an allocation before it arrived after all.
    found: bool,
}

/// What is known of one image of a process.
#[derive(Debug, Default)]
struct History {
    queue: VecDeque<Allocation>,
    /// Shared with the children that have not changed it.
    places: Arc<BTreeMap<u64, Newest>>,
    open: BTreeMap<u64, Vec<Open>>,
    /// Whether the process executed another program, or ended.
    over: bool,
    /// Children and when they were forked, in that order: late arrivals may be theirs too.
    children: Vec<(HistoryId, u64)>,
}

/// A site that was found later for a block without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Late {
    pub block: BlockId,
    pub address: u64,
    pub size: u64,
    pub frames: u32,
}

/// The histories of all processes.
#[derive(Debug, Default)]
pub(super) struct Sites {
    histories: Vec<History>,
    /// Stacks, each once.
    frames: Vec<Arc<[u64]>>,
    known: HashMap<Arc<[u64]>, u32>,
    /// Number of addresses; those that children share are counted again when a child changes them.
    places: usize,
    /// Allocations that were dropped.
    lost: u64,
}

impl Sites {
    /// Adds the history of a new process; with that of its parent, up to that time.
    pub fn add(&mut self, time: u64, parent: Option<HistoryId>, late: &mut dyn FnMut(Late)) -> HistoryId {
        let mut history = History::default();
        if let Some(parent) = parent {
            self.advance(parent, time, late);
            history.places = Arc::clone(&self.histories[parent.0].places);
        }
        self.histories.push(history);
        let id = HistoryId(self.histories.len() - 1);
        if let Some(parent) = parent {
            self.histories[parent.0].children.push((id, time));
        }
        id
    }

    /// Adds an allocation, which takes effect when the trace reaches its time.
    pub fn push(&mut self, id: HistoryId, allocation: Allocation) {
        if let Some(history) = self.histories.get_mut(id.0) {
            history.queue.push_back(allocation);
        }
    }

    /// Marks the process as ended.
    pub fn end(&mut self, id: HistoryId) {
        self.histories[id.0].over = true;
    }

    /// Whether the process ended.
    pub fn is_over(&self, id: HistoryId) -> bool {
        self.histories.get(id.0).is_none_or(|history| history.over)
    }

    /// Number of allocations that were dropped because there were too many addresses.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// A stack.
    pub fn frames(&self, number: u32) -> Arc<[u64]> {
        self.frames.get(number as usize).map_or_else(|| Arc::new([]), Arc::clone)
    }

    /// Applies everything up to this time in all processes.
    pub fn advance_all(&mut self, time: u64, late: &mut dyn FnMut(Late)) {
        for id in (0..self.histories.len()).map(HistoryId) {
            self.advance(id, time, late);
            let history = &mut self.histories[id.0];
            if history.over && history.queue.is_empty() && !history.places.is_empty() && time != u64::MAX {
                self.places -= history.places.len().min(self.places);
                history.places = Arc::default();
            }
        }
    }

    /// The newest allocation at an address of a process at this time.
    pub fn find(
        &mut self,
        id: HistoryId,
        time: u64,
        address: u64,
        late: &mut dyn FnMut(Late),
    ) -> Option<(u64, u64, Newest)> {
        self.advance(id, time, late);
        let (&start, &newest) = self.histories[id.0].places.range(..=address).next_back()?;
        (address < newest.end).then_some((start, newest.end - start, newest))
    }

    /// Records a fault at this address and time that found no allocation.
    pub fn open(&mut self, id: HistoryId, time: u64, address: u64, block: BlockId) {
        self.histories[id.0].open.entry(address).or_default().push(Open { block, time, found: false });
    }

    fn advance(&mut self, id: HistoryId, time: u64, late: &mut dyn FnMut(Late)) {
        // Threads write one after the other, roughly in order of time: a thread that was interrupted writes a little
        // late.
        while self.histories[id.0].queue.front().is_some_and(|next| next.time <= time) {
            if let Some(next) = self.histories[id.0].queue.pop_front() {
                self.happen(id, &next, late);
            }
        }
    }

    fn happen(&mut self, id: HistoryId, new: &Allocation, late: &mut dyn FnMut(Late)) {
        let end = new.address.saturating_add(new.size.max(1));
        let frames = self.number(&new.frames);
        let history = &mut self.histories[id.0];
        let heirs = history.children.iter().rev().take_while(|(_, forked)| *forked >= new.time);
        let heirs: Vec<HistoryId> = heirs.map(|&(child, _)| child).collect();
        for child in heirs {
            self.happen(child, new, late);
        }
        let history = &mut self.histories[id.0];
        close(&mut history.open, new, end, frames, late);
        let before = history.places.len();
        let places = Arc::make_mut(&mut history.places);
        // A late arrival does not replace what came after it.
        let mut there =
            places.range(..end).rev().take_while(|(start, old)| **start >= new.address || old.end > new.address);
        if there.any(|(_, old)| old.end > new.address && old.time > new.time) {
            return;
        }
        let covered = places.range(..end).next_back().filter(|(_, old)| old.end > new.address).is_some();
        if covered {
            let mut gone: Vec<u64> = places.range(new.address..end).map(|(&start, _)| start).collect();
            gone.extend(
                places
                    .range(..new.address)
                    .next_back()
                    .filter(|(_, old)| old.end > new.address)
                    .map(|(&start, _)| start),
            );
            for start in gone {
                places.remove(&start);
            }
        } else if self.places >= MAX_PLACES {
            self.lost += 1;
            return;
        }
        places.insert(new.address, Newest { end, time: new.time, frames });
        self.places = (self.places + places.len()).saturating_sub(before);
    }

    fn number(&mut self, frames: &[u64]) -> u32 {
        if let Some(&known) = self.known.get(frames) {
            return known;
        }
        let frames: Arc<[u64]> = frames.into();
        let number = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        self.frames.push(Arc::clone(&frames));
        self.known.insert(frames, number);
        number
    }
}

/// Answers the faults that wait for an allocation in this range. One before the fault may be followed by a newer one
/// that is also before it; the first one after the fault ends the wait.
fn close(open: &mut BTreeMap<u64, Vec<Open>>, new: &Allocation, end: u64, frames: u32, late: &mut dyn FnMut(Late)) {
    if open.is_empty() {
        return;
    }
    let mut done = Vec::new();
    for (&address, faults) in open.range_mut(new.address..end) {
        faults.retain_mut(|fault| {
            let before = new.time <= fault.time;
            if before || !fault.found {
                late(Late { block: fault.block, address: new.address, size: new.size, frames });
            }
            fault.found = true;
            before
        });
        if faults.is_empty() {
            done.push(address);
        }
    }
    for address in done {
        open.remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Id;

    fn at(time: u64, address: u64, size: u64) -> Allocation {
        Allocation { time, address, size, frames: vec![time] }
    }

    fn find(sites: &mut Sites, id: HistoryId, time: u64, address: u64) -> Option<(u64, u64)> {
        let found = sites.find(id, time, address, &mut |_| {});
        found.map(|(start, _, newest)| (start, newest.time))
    }

    /// Catches blocks that are found before they were allocated, after others replaced them, or outside of their bytes.
    #[test]
    fn the_newest_before_a_fault() {
        let mut sites = Sites::default();
        let id = sites.add(0, None, &mut |_| {});
        for new in [at(10, 1000, 100), at(20, 1100, 100), at(30, 1000, 50), at(40, 900, 1000), at(50, 1500, 0)] {
            sites.push(id, new);
        }
        assert_eq!(find(&mut sites, id, 9, 1000), None);
        assert_eq!(find(&mut sites, id, 10, 1099), Some((1000, 10)));
        assert_eq!(find(&mut sites, id, 20, 1100), Some((1100, 20)));
        assert_eq!(find(&mut sites, id, 30, 1049), Some((1000, 30)));
        assert_eq!(find(&mut sites, id, 31, 1050), None);
        assert_eq!(find(&mut sites, id, 31, 1199), Some((1100, 20)));
        assert_eq!(find(&mut sites, id, 45, 1100), Some((900, 40)));
        assert_eq!(find(&mut sites, id, 45, 1900), None);
        assert_eq!(find(&mut sites, id, 50, 1500), Some((1500, 50)));
        assert_eq!(sites.places, 1);
    }

    /// Catches a child that sees what its parent allocated after the fork, or the other way round.
    #[test]
    fn children_inherit() {
        let mut sites = Sites::default();
        let parent = sites.add(0, None, &mut |_| {});
        sites.push(parent, at(10, 1000, 100));
        sites.push(parent, at(30, 1000, 100));
        let child = sites.add(20, Some(parent), &mut |_| {});
        sites.push(child, at(40, 2000, 100));
        assert_eq!(find(&mut sites, child, 50, 1000), Some((1000, 10)));
        assert_eq!(find(&mut sites, parent, 50, 1000), Some((1000, 30)));
        assert_eq!(find(&mut sites, parent, 50, 2000), None);
        sites.end(child);
        sites.advance_all(60, &mut |_| {});
        assert!(sites.is_over(child) && !sites.is_over(parent));
        assert_eq!(find(&mut sites, child, 70, 1000), None);
    }

    /// Catches a child that lacks its parent's allocations that arrive only after the fork was seen.
    #[test]
    fn late_inheritance() {
        let mut sites = Sites::default();
        let parent = sites.add(0, None, &mut |_| {});
        let child = sites.add(20, Some(parent), &mut |_| {});
        let grandchild = sites.add(25, Some(child), &mut |_| {});
        let mut found = Vec::new();
        sites.open(child, 30, 1000, BlockId::from_index(0));
        sites.open(grandchild, 30, 1000, BlockId::from_index(1));
        sites.push(child, at(28, 2000, 10));
        assert_eq!(find(&mut sites, child, 30, 2000), Some((2000, 28)));
        for new in [at(10, 1000, 100), at(15, 1990, 100), at(40, 1000, 100)] {
            sites.push(parent, new);
        }
        sites.advance_all(u64::MAX, &mut |late| found.push((late.block.index(), late.address)));
        assert_eq!(found.iter().filter(|late| **late == (0, 1000)).count(), 1);
        assert_eq!(found.iter().filter(|late| **late == (1, 1000)).count(), 1);
        assert_eq!(find(&mut sites, child, 50, 2000), Some((2000, 28)));
        assert_eq!(find(&mut sites, grandchild, 50, 2000), Some((1990, 15)));
        assert_eq!(find(&mut sites, parent, 50, 1000), Some((1000, 40)));
    }

    /// Catches faults whose allocation arrives late, or is the next one, and that get a later one instead.
    #[test]
    fn open_faults() {
        let mut sites = Sites::default();
        let id = sites.add(0, None, &mut |_| {});
        let mut found = Vec::new();
        let block = BlockId::from_index;
        for (time, address, number) in [(100, 1000, 0), (100, 1050, 1), (100, 5000, 2), (10, 1000, 3)] {
            sites.open(id, time, address, block(number));
        }
        for new in [at(50, 1000, 100), at(60, 1000, 60), at(110, 1000, 100), at(120, 1000, 100), at(130, 4096, 4096)] {
            sites.push(id, new);
        }
        sites.advance_all(u64::MAX, &mut |late| found.push((late.block.index(), sites_time(late))));
        fn sites_time(late: Late) -> u32 {
            late.frames
        }
        // The numbers of stacks are those of the allocations, in order.
        let last = |number| found.iter().rev().find(|(block, _)| *block == number).map(|(_, frames)| *frames);
        assert_eq!((last(0), last(1), last(2), last(3)), (Some(1), Some(1), Some(4), Some(0)));
        assert!(sites.histories[0].open.is_empty());
    }
}
