//! The rows of blocks of neap's heap.

use std::collections::HashMap;

use crate::{Block, BlockId, Id, ProcessId, SiteSummary, StackId, Table};

/// Limit on the blocks that are kept, some 100 bytes each: faults in further blocks have none.
const MAX_BLOCKS: usize = 1 << 20;

/// A block of neap's heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeapBlock {
    /// Its address.
    pub address: u64,
    /// Its usable bytes.
    pub size: u64,
}

/// A block of an image of a process, and when it was allocated; 0 where that is not known.
pub(super) type BlockKey = (ProcessId, HeapBlock, u64);

/// What is known of a block besides its row.
#[derive(Clone, Copy)]
struct State {
    key: BlockKey,
    faults: u32,
}

/// Finds the row of a block.
///
/// Invariant: there is a state for each row of the table of blocks.
#[derive(Default)]
pub(super) struct BlockRows {
    known: HashMap<BlockKey, BlockId>,
    states: Vec<State>,
}

impl BlockRows {
    /// Returns the row of a block, for one more fault; `None` where there is no room for it.
    pub(super) fn count(
        &mut self,
        table: &mut Table<BlockId, Block>,
        key: BlockKey,
        site: Option<StackId>,
    ) -> Option<BlockId> {
        let number = match self.known.get(&key) {
            Some(&known) => known,
            None if table.len() >= MAX_BLOCKS => return None,
            None => {
                let (_, HeapBlock { address, size }, _) = key;
                let number = table.push(Block { address, size, site });
                self.states.push(State { key, faults: 0 });
                self.known.insert(key, number);
                number
            }
        };
        self.states[number.index()].faults += 1;
        Some(number)
    }

    /// The process of a block.
    pub(super) fn process(&self, block: BlockId) -> Option<ProcessId> {
        self.states.get(block.index()).map(|state| state.key.0)
    }

    /// The row gets another address and size: the next fault there is in another block.
    pub(super) fn forget(&mut self, block: BlockId) {
        if let Some(state) = self.states.get(block.index()) {
            self.known.remove(&state.key);
        }
    }

    /// Adds the faults of all blocks to the summary, by what is known of their sites.
    pub(super) fn add_faults(&self, table: &Table<BlockId, Block>, summary: &mut SiteSummary) {
        for ((_, row), state) in table.iter().zip(&self.states) {
            let count = match row.site {
                Some(_) => &mut summary.with_site,
                None if row.size == 0 => &mut summary.in_no_block,
                None => &mut summary.without_site,
            };
            *count += u64::from(state.faults);
        }
    }
}
