//! Which OS pages of a process hold memory: `/proc/PID/pagemap`, which has a word for each OS page of the address space.

use crate::Error;
use neap_core::CHUNK;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Words that are read at once.
const PIECE: u64 = 1 << 16;
/// In a word: the OS page holds memory.
const PRESENT: u64 = 1 << 63;

/// The OS pages of a process.
#[derive(Debug)]
pub struct Pages {
    map: File,
    /// Bytes of an OS page: a power of two, at most a chunk.
    pub size: u64,
}

impl Pages {
    /// Those of process `pid`.
    pub fn open(pid: u32) -> Result<Self, Error> {
        Ok(Pages { map: File::open(format!("/proc/{pid}/pagemap"))?, size: page_size() })
    }

    /// Whether each OS page of `range`, whole OS pages, holds memory.
    pub fn resident(&self, range: Range<u64>) -> Result<Vec<bool>, Error> {
        let mut all = Vec::with_capacity((range.end.saturating_sub(range.start) / self.size) as usize);
        let (mut at, end) = (range.start / self.size, range.end / self.size);
        while at < end {
            let mut bytes = vec![0; 8 * (end - at).min(PIECE) as usize];
            self.map.read_exact_at(&mut bytes, 8 * at)?;
            let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
            all.extend(words.map(|word| word & PRESENT != 0));
            at = range.start / self.size + all.len() as u64;
        }
        Ok(all)
    }

    /// How many bytes of `range` hold memory, in whole OS pages.
    pub fn held(&self, range: Range<u64>) -> Result<u64, Error> {
        let range = range.start & !(self.size - 1)..range.end.next_multiple_of(self.size);
        Ok(self.resident(range)?.into_iter().filter(|held| *held).count() as u64 * self.size)
    }
}

/// Bytes of an OS page: what the kernel tells each program at its start.
fn page_size() -> u64 {
    /// The kind of the entry, `AT_PAGESZ`.
    const PAGE_SIZE: u64 = 6;
    let entries = fs::read("/proc/self/auxv").unwrap_or_default();
    let words: Vec<u64> = entries.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let found = words.as_chunks::<2>().0.iter().find(|[kind, _]| *kind == PAGE_SIZE).map(|[_, value]| *value);
    found.filter(|&size| size.is_power_of_two() && size <= CHUNK as u64).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches pages that are found elsewhere than they are, and untouched ones that count.
    #[test]
    fn touched_pages_are_found() {
        let pages = Pages::open(std::process::id()).expect("this process");
        // A mapping of its own; two of its pages are touched.
        let block = vec![0u8; 64 << 20];
        let start = (block.as_ptr() as u64).next_multiple_of(pages.size);
        let before = pages.held(start..start + (1 << 20)).expect("pages");
        let mut block = block;
        let offset = (start - block.as_ptr() as u64) as usize;
        for page in [3, 7] {
            block[offset + page * pages.size as usize] = 1;
        }
        let found = pages.resident(start..start + 16 * pages.size).expect("pages");
        assert!(found[3] && found[7] && found.len() == 16, "{found:?}");
        // Less where the system gives huge pages, but never what nobody touched.
        assert!(before == 0 && pages.held(start..start + (1 << 20)).expect("pages") >= 2 * pages.size);
    }
}
