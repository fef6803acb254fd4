//! Which OS pages of a process are resident: `/proc/PID/pagemap`, which has a word for each OS page of the address
//! space.

use crate::process::Memory;
use crate::{Error, Fuel};
use neap_core::CHUNK;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Words that are read at once.
const PIECE: u64 = 1 << 16;
/// In a word: the OS page holds memory.
const PRESENT: u64 = 1 << 63;
/// In a word: the OS page is mapped exactly once, in one process.
const ALONE: u64 = 1 << 56;
/// In a word: it is swapped out.
const SWAPPED: u64 = 1 << 62;

/// The OS pages of a process.
#[derive(Debug)]
pub struct Pages {
    map: File,
    /// What reads may cost, where that is limited.
    fuel: Option<Arc<Fuel>>,
    /// Bytes of an OS page: a power of two, at most a chunk.
    pub size: u64,
}

impl Pages {
    /// Those of process `pid`.
    pub fn open(pid: u32, fuel: Option<Arc<Fuel>>) -> Result<Self, Error> {
        Ok(Pages { map: File::open(format!("/proc/{pid}/pagemap"))?, fuel, size: page_size() })
    }

    /// Whether all of a range was touched: then a read changes nothing, and waits only for swap.
    pub fn are_touched(&self, at: u64, length: usize) -> bool {
        let end = at.checked_add(length as u64).and_then(|end| end.checked_next_multiple_of(self.size));
        let Some(end) = end else { return false };
        self.are(PRESENT | SWAPPED, at & !(self.size - 1)..end).is_ok_and(|pages| pages.iter().all(|touched| *touched))
    }

    /// Whether each OS page of `range`, whole OS pages, holds memory.
    pub fn resident(&self, range: Range<u64>) -> Result<Vec<bool>, Error> {
        self.are(PRESENT, range)
    }

    /// Copies memory. Parts that the process never touched are not read, because that would map the zero page.
    pub fn copy(&self, memory: &Memory, at: u64, length: usize) -> Result<Vec<u8>, Error> {
        let whole = at.checked_add(length as u64).and_then(|end| end.checked_next_multiple_of(self.size));
        // No process has memory at the end of the address space.
        let whole = whole.ok_or(Error::Gone)?;
        let (mut bytes, end) = (vec![0; length], at + length as u64);
        let first = at & !(self.size - 1);
        let touched = self.are(PRESENT | SWAPPED, first..whole)?;
        let mut from = 0;
        for run in touched.chunk_by(|a, b| a == b) {
            let to = from + run.len() as u64;
            if run[0] {
                let (start, stop) = ((first + from * self.size).max(at), (first + to * self.size).min(end));
                let part = &mut bytes[(start - at) as usize..(stop - at) as usize];
                memory.read(start, part).map_err(|_| Error::Gone)?;
            }
            from = to;
        }
        Ok(bytes)
    }

    /// Whether one of the `bits` is set for each OS page.
    fn are(&self, bits: u64, range: Range<u64>) -> Result<Vec<bool>, Error> {
        let mut all = Vec::with_capacity((range.end.saturating_sub(range.start) / self.size) as usize);
        let (mut at, end) = (range.start / self.size, range.end / self.size);
        while at < end {
            if self.fuel.as_ref().is_some_and(|fuel| !fuel.take(0)) {
                return Err(Error::Gone);
            }
            let mut bytes = vec![0; 8 * (end - at).min(PIECE) as usize];
            // An ended process has nothing to read.
            self.map.read_exact_at(&mut bytes, 8 * at).map_err(|_| Error::Gone)?;
            let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
            all.extend(words.map(|word| word & bits != 0));
            at = range.start / self.size + all.len() as u64;
        }
        Ok(all)
    }

    /// The resident bytes of memory that the process may have read but never written, such as side tables: the kernel's
    /// zero page does not count. Pages that are shared with other processes after a fork are recognised by their
    /// contents.
    pub fn written(&self, memory: &Memory, range: Range<u64>) -> Result<u64, Error> {
        let range = range.start & !(self.size - 1)..range.end.next_multiple_of(self.size);
        let (present, alone) = (self.resident(range.clone())?, self.are(ALONE, range.clone())?);
        let mut held = 0;
        let all = range.step_by(self.size as usize).zip(present.into_iter().zip(alone));
        for (page, (_, alone)) in all.filter(|(_, (present, _))| *present) {
            let is_written = alone || self.copy(memory, page, self.size as usize)?.iter().any(|&byte| byte != 0);
            held += if is_written { self.size } else { 0 };
        }
        Ok(held)
    }

    /// The resident bytes of `range`, in whole OS pages. The range may be long.
    pub fn held(&self, range: Range<u64>) -> Result<u64, Error> {
        let (mut at, end) = (range.start & !(self.size - 1), range.end);
        let mut held = 0;
        while at < end {
            let to = at.saturating_add(PIECE * self.size).min(end.checked_next_multiple_of(self.size).unwrap_or(end));
            held += self.resident(at..to)?.into_iter().filter(|held| *held).count() as u64 * self.size;
            at = to;
        }
        Ok(held)
    }
}

/// The size of an OS page, which the kernel passes to each program.
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

    /// Catches resident OS pages at wrong addresses, untouched ones that count, and ones that become resident because
    /// they are copied.
    #[test]
    fn touched_pages_are_found() {
        let pages = Pages::open(std::process::id(), None).expect("this process");
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
        let memory = Memory::open(std::process::id()).expect("this process");
        let copy = pages.copy(&memory, start + 5, 8 * pages.size as usize).expect("a copy");
        let set: Vec<usize> = (0..copy.len()).filter(|&at| copy[at] != 0).collect();
        assert_eq!(set, [3, 7].map(|page| page * pages.size as usize - 5));
        assert_eq!(pages.resident(start..start + 16 * pages.size).expect("pages"), found);
        // A page that was read is the kernel's page of zeros.
        let zeros: u64 = block[offset..][..4 * pages.size as usize].iter().map(|&byte| u64::from(byte)).sum();
        assert_eq!(zeros, 1);
        let held = pages.written(&memory, start..start + 16 * pages.size).expect("pages");
        assert!(held == 2 * pages.size || found == [true; 16], "{held}");
        // Less where the system gives huge pages, but never what was not touched.
        assert!(before == 0 && pages.held(start..start + (1 << 20)).expect("pages") >= 2 * pages.size);
    }
}
