//! Blocks of neap's heap, and where they were allocated.

use super::block_rows::{BlockKey, HeapBlock};
use super::sites::{Allocation, HistoryId, Late};
use super::{Tracker, World};
use crate::perf::record::Sample;
use crate::{Block, BlockId, MappingId, MappingKind, ProcessId, SiteSummary, StackId};

/// The alignment of neap's arenas.
const ARENA_ALIGN: u64 = 1 << 36;

impl Tracker {
    /// From now on, looks for files of sites in this directory.
    pub fn expect_sites(&mut self, directory: &[u8]) {
        self.sites_directory = Some(directory.to_owned());
    }

    /// Returns the files of sites that were mapped since the last call, and the histories they belong to.
    pub fn take_site_files(&mut self) -> Vec<(HistoryId, Vec<u8>)> {
        std::mem::take(&mut self.site_files)
    }

    /// Whether the process ended or executed another program: then its file is complete.
    pub fn is_over(&self, history: HistoryId) -> bool {
        self.sites.is_over(history)
    }

    /// Adds an allocation of a process, on the clock of the records.
    pub fn allocation(&mut self, history: HistoryId, allocation: Allocation) {
        self.sites.push(history, allocation);
    }

    /// Records how many allocations are missing so far, and how many bytes lie between two recorded ones.
    pub fn note_sites(&mut self, lost: u64, interval: u64) {
        (self.sites_lost, self.sites_interval) = (lost, interval);
    }

    /// Declares that all records and allocations up to this time were added.
    pub fn settle_sites(&mut self, time: u64) {
        let mut late = Vec::new();
        self.sites.advance_all(time, &mut |found| late.push(found));
        self.complete(&late);
    }

    /// Fills in the sites of blocks that had none.
    pub(super) fn complete(&mut self, late: &[Late]) {
        for found in late {
            let Some(process) = self.blocks.process(found.block) else { continue };
            let site = self.site(process, found.frames);
            self.tables.blocks[found.block] = Block { address: found.address, size: found.size, site };
            self.blocks.forget(found.block);
        }
    }

    pub(super) fn site_summary(&self) -> Option<SiteSummary> {
        self.sites_directory.as_ref()?;
        let mut summary = SiteSummary {
            lost: self.sites_lost + self.sites.lost(),
            interval: self.sites_interval.max(1),
            ..SiteSummary::default()
        };
        self.blocks.add_faults(&self.tables.blocks, &mut summary);
        Some(summary)
    }

    /// The block of neap's heap that was accessed.
    pub(super) fn block(&mut self, sample: &Sample, mapping: MappingId, world: &mut dyn World) -> Option<BlockId> {
        let process = self.processes.get(&sample.pid).filter(|process| process.neap)?;
        // Arenas are anonymous memory, with nothing before them in their aligned range of addresses.
        let base = sample.address & !(ARENA_ALIGN - 1);
        let first = process.space.find(base).map(|id| &self.tables.mappings[id])?;
        if first.start != base || self.tables.mappings[mapping].kind != MappingKind::Anonymous {
            return None;
        }
        let (id, history) = (process.id, process.history);
        let seen = world.block(sample.pid, sample.address);
        let Some(history) = history else { return self.block_row((id, seen?, 0), None) };
        let mut late = Vec::new();
        let found = self.sites.find(history, self.now, sample.address, &mut |found| late.push(found));
        self.complete(&late);
        // Where not all allocations are recorded, another block may have replaced this one.
        let sampled = self.sites_interval > 1;
        let stale = |start: u64| seen.is_some_and(|seen| sampled && start.wrapping_sub(seen.address) >= seen.size);
        if let Some((address, size, newest)) = found.filter(|&(start, ..)| !stale(start)) {
            let site = self.site(id, newest.frames);
            return self.block_row((id, HeapBlock { address, size }, newest.time), site);
        }
        // Without a size until an allocation provides it.
        let block = seen.unwrap_or(HeapBlock { address: sample.address, size: 0 });
        let number = self.block_row((id, block, 0), None)?;
        self.sites.open(history, self.now, sample.address, number);
        Some(number)
    }

    /// Returns the row of a block, for one more fault.
    fn block_row(&mut self, key: BlockKey, site: Option<StackId>) -> Option<BlockId> {
        self.blocks.count(&mut self.tables.blocks, key, site)
    }

    /// The stack of an allocation, as a path in the tree; `None` if it has no frames.
    fn site(&mut self, process: ProcessId, frames: u32) -> Option<StackId> {
        if let Some(&known) = self.site_stacks.get(&(process, frames)) {
            return known;
        }
        let mut parent = None;
        for &address in self.sites.frames(frames).iter().rev() {
            // A return address is that of the instruction after the call, which may be in the next function.
            let address = address.wrapping_sub(1);
            let mapping = self.mapping_of(process, address);
            parent = Some(self.stack_node(parent, address, mapping));
        }
        self.site_stacks.insert((process, frames), parent);
        parent
    }

    /// The mapping of an address in an image of a process, which may have ended.
    fn mapping_of(&self, process: ProcessId, address: u64) -> Option<MappingId> {
        let live = self.tables.processes.get(process).and_then(|row| self.processes.get(&row.pid));
        if let Some(live) = live.filter(|live| live.id == process) {
            return live.space.find(address);
        }
        let mut image = Some(process);
        while let Some(current) = image {
            let mut rows = self.tables.mappings.iter().rev().filter(|(_, row)| row.process == current);
            let found = rows.find(|(_, row)| (row.start..row.end).contains(&address));
            if let Some((id, _)) = found {
                return Some(id);
            }
            let row = &self.tables.processes[current];
            image = row.parent.filter(|_| row.image == 0);
        }
        None
    }

    /// Whether one of the processes runs on neap, so that its blocks must be requested soon.
    pub fn wants_blocks(&self) -> bool {
        self.processes.values().any(|process| process.neap)
    }
}
