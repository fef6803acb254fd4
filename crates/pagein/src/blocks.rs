//! The blocks of neap's heap in a running program: reads the records of its arenas through `/proc/PID/mem`.
//!
//! A record is found by arithmetic from any address of its chunk (crates/core, `arena.rs`), so one read of 64 bytes
//! finds the block at an address of a slab. For a large block, records are read backwards until one says where the
//! block begins. The records are those at the time of the read, some milliseconds after the fault.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use neap_core::chunk::{Kind, RECORD_BYTES, Seen};
use neap_core::pages::layout::ARENA_ALIGN;
use neap_core::{CHUNK, class};
use neap_trace::track::HeapBlock;

/// Number of records that one read covers when the beginning of a large block is searched.
const RUN: u64 = 64;
/// Chunks at the front of an arena in which no block can begin: records and other tables lie there.
const CHUNKS: u64 = (ARENA_ALIGN / CHUNK) as u64;

/// What is known of the heaps of processes.
#[derive(Default)]
pub struct Blocks {
    processes: HashMap<u32, Known>,
}

/// What is known of one process; kept only briefly, because blocks come and go.
#[derive(Default)]
struct Known {
    memory: Option<File>,
    records: HashMap<u64, Option<Seen>>,
    large: Option<HeapBlock>,
}

impl Blocks {
    /// The block at an address, which lies in an arena of that process.
    pub fn find(&mut self, pid: u32, address: u64) -> Option<HeapBlock> {
        self.processes.entry(pid).or_default().find(pid, address)
    }

    /// Forgets what was read.
    pub fn forget(&mut self) {
        self.processes.clear();
    }
}

impl Known {
    fn find(&mut self, pid: u32, address: u64) -> Option<HeapBlock> {
        if let Some(large) = self.large.filter(|large| address.wrapping_sub(large.address) < large.size) {
            return Some(large);
        }
        let (base, chunk) = (address & !(ARENA_ALIGN as u64 - 1), address & !(CHUNK as u64 - 1));
        let index = (chunk - base) / CHUNK as u64;
        if self.memory.is_none() {
            self.memory = File::open(format!("/proc/{}/mem", neap_process::living(pid))).ok();
        }
        let memory = self.memory.as_ref()?;
        let seen = *self.records.entry(chunk).or_insert_with(|| record(memory, base, index));
        match seen?.kind {
            Kind::SLAB => {
                let size = u64::from(*class::SIZE.get(usize::from(seen?.class))?);
                let offset = (address - chunk).checked_div(size)? * size;
                // The rest behind the last block belongs to no block.
                (offset + size <= CHUNK as u64).then_some(HeapBlock { address: chunk + offset, size })
            }
            _ => {
                self.large = large(memory, base, index).filter(|large| address - large.address < large.size);
                self.large
            }
        }
    }
}

fn record(memory: &File, base: u64, index: u64) -> Option<Seen> {
    let mut bytes = [0; RECORD_BYTES];
    memory.read_exact_at(&mut bytes, base + index * RECORD_BYTES as u64).ok()?;
    Some(Seen::from(&bytes))
}

/// The large block that a chunk belongs to: the first record backwards that describes something.
fn large(memory: &File, base: u64, index: u64) -> Option<HeapBlock> {
    if index >= CHUNKS {
        return None;
    }
    let mut bytes = [0; RUN as usize * RECORD_BYTES];
    let mut behind = index + 1;
    while behind > 0 {
        let first = behind.saturating_sub(RUN);
        let run = &mut bytes[..(behind - first) as usize * RECORD_BYTES];
        memory.read_exact_at(run, base + first * RECORD_BYTES as u64).ok()?;
        for (at, record) in run.as_chunks().0.iter().enumerate().rev() {
            let seen = Seen::from(record);
            let block = HeapBlock { address: base + (first + at as u64) * CHUNK as u64, size: seen.bytes };
            match seen.kind {
                Kind::NONE => {}
                Kind::LARGE | Kind::REENTRANT => return Some(block),
                _ => return None,
            }
        }
        behind = first;
    }
    None
}
