//! The memory of a process, read from outside without stopping it.

use crate::sys;
use neap_heaps::{Memory, Run, Unreadable};
use neap_process::pagemap::{self, Region};
use neap_survey::Fuel;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Words of the page map in one read.
const PIECE: u64 = 1 << 12;
/// Bits of an entry: in memory.
pub const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// It is of a file, or shared memory.
pub const FILE: u64 = 1 << 61;
/// No other process maps it (Linux 4.2).
pub const EXCLUSIVE: u64 = 1 << 56;

/// The memory of a process.
pub struct Process {
    pid: u32,
    pagemap: File,
    /// Whether the kernel has PAGEMAP_SCAN (Linux 6.7).
    scans: bool,
    page: u64,
    /// Whether anything of it is swapped out: if not, what seems to be is a mark of userfaultfd.
    swaps: bool,
    /// Its memory as a file, if it shares some with another process since a fork.
    file: Option<File>,
    /// The limits of time and bytes.
    pub fuel: Arc<Fuel>,
}

impl Process {
    /// The memory of process `pid`; fails if this user may not read it.
    pub fn open(pid: u32, fuel: &Arc<Fuel>) -> io::Result<Self> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let scans = pagemap::can_scan(&pagemap);
        let status = neap_process::text(format!("/proc/{pid}/status")).unwrap_or_default();
        let swaps = neap_process::value(&status, "VmSwap") != Some(0);
        Ok(Process { pid, pagemap, scans, page: sys::page_size(), swaps, file: None, fuel: Arc::clone(fuel) })
    }

    /// The same for a process that shares memory since a fork. process_vm_readv would make the kernel copy each OS page
    /// that it reads (since Linux 5.19 it pins them): the process would grow because it is looked at. Reading the file is
    /// slower.
    pub fn open_forked(pid: u32, fuel: &Arc<Fuel>) -> io::Result<Self> {
        Ok(Process { file: Some(File::open(format!("/proc/{pid}/mem"))?), ..Self::open(pid, fuel)? })
    }

    /// The regions of a range that are resident or swapped out, in order, without the kernel's zero page.
    pub fn regions(&self, range: Range<u64>) -> Vec<Region> {
        let mut found: Vec<Region> = Vec::new();
        let mut at = range.start & !(self.page - 1);
        let end = range.end.checked_next_multiple_of(self.page).unwrap_or(range.end);
        while at < end && self.fuel.take(0) {
            let next = match self.scans {
                true => pagemap::scan(&self.pagemap, at..end).map(|(regions, walked)| {
                    let is_memory = |region: &Region| !region.zero && (self.swaps || !region.swapped);
                    for region in regions.into_iter().filter(is_memory) {
                        let is_next = |last: &&mut Region| {
                            (last.range.end, last.swapped, last.huge)
                                == (region.range.start, region.swapped, region.huge)
                        };
                        match found.last_mut().filter(is_next) {
                            // A scan ended within it.
                            Some(last) => last.range.end = region.range.end,
                            None => found.push(region),
                        }
                    }
                    walked
                }),
                false => self.words(at..end, &mut found),
            };
            match next {
                Ok(next) if next > at => at = next,
                _ => break,
            }
        }
        found
    }

    /// The same from the page map, for older kernels. It includes the zero page, which the entries do not distinguish.
    fn words(&self, range: Range<u64>, found: &mut Vec<Region>) -> io::Result<u64> {
        let first = range.start / self.page;
        let count = (range.end / self.page - first).min(PIECE);
        let mut bytes = vec![0; 8 * count as usize];
        self.pagemap.read_exact_at(&mut bytes, 8 * first)?;
        for (at, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let word = u64::from_ne_bytes(*word);
            if word & PRESENT == 0 && (word & SWAPPED == 0 || !self.swaps) {
                continue;
            }
            let (start, swapped) = ((first + at as u64) * self.page, word & PRESENT == 0);
            match found.last_mut().filter(|last| last.range.end == start && last.swapped == swapped) {
                Some(last) => last.range.end += self.page,
                None => found.push(Region { range: start..start + self.page, swapped, huge: false, zero: false }),
            }
        }
        Ok((first + count) * self.page)
    }

    /// The parts of a range, in order, that are resident, of no file, and that no other process maps.
    pub fn own(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut start = range.start & !(self.page - 1);
        let page = self.page;
        // What cannot be read is left out.
        let _ = self.entries(range, |entry| {
            if entry & (PRESENT | FILE | EXCLUSIVE) == PRESENT | EXCLUSIVE {
                match found.last_mut().filter(|last| last.end == start) {
                    Some(last) => last.end += page,
                    None => found.push(start..start + page),
                }
            }
            start += page;
        });
        found
    }

    /// Calls `of` with the entry of each OS page of a range in the page map, in order.
    pub fn entries(&self, range: Range<u64>, mut of: impl FnMut(u64)) -> io::Result<()> {
        let (mut at, end) = (range.start / self.page, range.end / self.page);
        let mut bytes = Vec::new();
        while at < end && self.fuel.take(0) {
            let count = (end - at).min(PIECE);
            bytes.resize(8 * count as usize, 0);
            self.pagemap.read_exact_at(&mut bytes, 8 * at)?;
            bytes.as_chunks::<8>().0.iter().for_each(|entry| of(u64::from_ne_bytes(*entry)));
            at += count;
        }
        Ok(())
    }

    /// Resident bytes of a range.
    pub fn resident_bytes(&self, range: Range<u64>) -> u64 {
        self.regions(range)
            .iter()
            .filter(|region| !region.swapped)
            .map(|region| region.range.end - region.range.start)
            .sum()
    }

    /// Copies memory; false if not all of it could be read.
    pub fn copy(&self, address: u64, into: &mut [u8]) -> bool {
        self.fuel.take(into.len() as u64)
            && match &self.file {
                Some(file) => file.read_exact_at(into, address).is_ok(),
                None => sys::read_memory(self.pid, address, into).is_ok_and(|got| got == into.len()),
            }
    }

    /// Copies `length` bytes from each address, one after the other; what cannot be read is zeros.
    pub fn copy_each(&self, addresses: &[u64], length: usize, into: &mut Vec<u8>) {
        into.clear();
        into.resize(addresses.len() * length, 0);
        if !self.fuel.take(into.len() as u64) {
            return;
        }
        match &self.file {
            Some(file) => {
                for (address, part) in addresses.iter().zip(into.chunks_exact_mut(length)) {
                    if file.read_exact_at(part, *address).is_err() {
                        part.fill(0);
                    }
                }
            }
            None => sys::read_each(self.pid, addresses, length, into),
        }
    }
}

impl Memory for Process {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        if self.copy(address, into) { Ok(()) } else { Err(Unreadable) }
    }

    fn resident(&self, range: Range<u64>, into: &mut Vec<Run>) {
        for region in self.regions(range) {
            match into.last_mut().filter(|last| last.range.end == region.range.start && last.swapped == region.swapped)
            {
                Some(last) => last.range.end = region.range.end,
                None => into.push(Run { range: region.range, swapped: region.swapped }),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.fuel.is_over()
    }

    fn page_size(&self) -> u64 {
        self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a scan and a page map that disagree, pages that count although they were only read, and memory that is
    /// not copied.
    #[test]
    fn this_process_is_read() {
        let fuel = Arc::new(Fuel::new(std::time::Duration::from_secs(100), 2));
        let mut process = Process::open(std::process::id(), &fuel).expect("this process");
        let page = process.page as usize;
        // A mapping, because malloc may return memory that was used before.
        let length = 64 * page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which no other code uses; it stays until this process ends.
        let block = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            std::slice::from_raw_parts_mut(at.cast::<u8>(), length)
        };
        for at in [3, 4, 9] {
            block[at * page] = at as u8;
        }
        let base = block.as_ptr() as u64;
        let range = base..base + 16 * page as u64;
        let scanned = process.resident_bytes(range.clone());
        let mut byte = [0];
        assert!(process.copy(base + 9 * page as u64, &mut byte) && byte == [9]);
        assert!(!process.copy(8, &mut byte));
        if process.scans {
            assert_eq!(scanned, 3 * page as u64);
            let runs: Vec<Range<u64>> = process.regions(range.clone()).into_iter().map(|region| region.range).collect();
            process.scans = false;
            let words: Vec<Range<u64>> = process.regions(range).into_iter().map(|region| region.range).collect();
            assert_eq!(runs, words);
        }
        // The two bytes are all that was written.
        let mut runs = Vec::new();
        process.resident(base..base + page as u64 * 16, &mut runs);
        assert!(!runs.is_empty() && !process.is_over());
        runs.clear();
        assert!(process.read(base + 9 * page as u64, &mut byte).is_err() && process.is_over());
        process.resident(base..base + page as u64 * 16, &mut runs);
        assert!(runs.is_empty());
    }
}
