//! Which pages of a process are in memory, and their sizes: `/proc/PID/pagemap`, through the ioctl PAGEMAP_SCAN (Linux
//! 6.7), otherwise by reading it; and for root `/proc/kpageflags`, which has a word for each OS page of the machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use neap_process::pagemap::{self, Region};

/// The bit of an entry for a page in memory.
const PRESENT: u64 = 1 << 63;
/// The bits of an entry's frame number.
const FRAME: u64 = (1 << 55) - 1;
/// Flags of kpageflags: the first part of a page that is larger than an OS page, and any other part.
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
/// Entries that are read at once.
const ENTRIES: usize = 8192;
/// OS pages in a 2 MiB page: no transparent one has more.
const MOST: u64 = 512;

/// A range of addresses that is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first address.
    pub start: u64,
    /// The address behind the last one.
    pub end: u64,
    /// Whether each entry of the page table maps a whole huge page; false also if that is unknown.
    pub huge: bool,
}

/// The page tables of a process.
pub struct Pages {
    pagemap: File,
    flags: Option<File>,
    os_page: u64,
    scans: bool,
    /// The last entries of kpageflags that were read: the first index, and the words.
    window: (u64, Vec<u64>),
}

impl Pages {
    /// Opens those of a process. With `scans` false it does not use PAGEMAP_SCAN.
    pub fn open(pid: u32, os_page: u64, scans: bool) -> io::Result<Pages> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let flags = File::open("/proc/kpageflags").ok();
        let scans = scans && pagemap::can_scan(&pagemap);
        Ok(Pages { pagemap, flags, os_page, scans, window: (0, Vec::new()) })
    }

    /// Whether it is known which runs are huge.
    pub fn knows_huge(&self) -> bool {
        self.scans
    }

    /// The runs in memory between two addresses, without the shared zero page.
    pub fn runs(&self, start: u64, end: u64) -> io::Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        let mut add = |run: Run| match runs.last_mut() {
            Some(last) if last.end == run.start && last.huge == run.huge => last.end = run.end,
            _ => runs.push(run),
        };
        if self.scans {
            let mut from = start;
            while from < end {
                let (regions, walked) = pagemap::scan(&self.pagemap, from..end)?;
                for Region { range, huge, .. } in regions.into_iter().filter(|found| !found.zero && !found.swapped) {
                    add(Run { start: range.start, end: range.end, huge });
                }
                from = walked.max(from + self.os_page);
            }
        } else {
            self.entries(start, end, |address, entry| {
                if entry & PRESENT != 0 {
                    add(Run { start: address, end: address + self.os_page, huge: false });
                }
            })?;
        }
        Ok(runs)
    }

    /// The guards in a range (MADV_GUARD_INSTALL).
    pub fn guards(&self, range: Range<u64>) -> Vec<Range<u64>> {
        if self.scans { pagemap::guards(&self.pagemap, range) } else { Vec::new() }
    }

    /// Calls `each` with the address and the entry of each OS page in the range.
    fn entries(&self, start: u64, end: u64, mut each: impl FnMut(u64, u64)) -> io::Result<()> {
        let mut buffer = vec![0u8; ENTRIES * 8];
        let mut from = start;
        while from < end {
            let wanted = usize::try_from((end - from) / self.os_page).unwrap_or(ENTRIES).min(ENTRIES);
            let read = self.pagemap.read_at(&mut buffer[..wanted * 8], from / self.os_page * 8)? / 8;
            if read == 0 {
                break;
            }
            for entry in buffer[..read * 8].chunks_exact(8) {
                each(from, u64::from_ne_bytes(entry.try_into().unwrap_or_default()));
                from += self.os_page;
            }
        }
        Ok(())
    }

    /// Bytes of a run by the size of their pages; `None` if that is unknown, as it is to all but root.
    pub fn sizes(&mut self, run: Run) -> Option<BTreeMap<u64, u64>> {
        self.flags.as_ref()?;
        let mut frames = Vec::new();
        self.entries(run.start, run.end, |_, entry| {
            if entry & PRESENT != 0 {
                frames.push(entry & FRAME);
            }
        })
        .ok()?;
        // Without the privilege to see them, frame numbers are 0. Or the process has freed all of them meanwhile.
        if !frames.is_empty() && frames.iter().all(|&frame| frame == 0) {
            return None;
        }
        let mut sizes = BTreeMap::new();
        // The page that the last frame was a part of.
        let mut known = (0, 0);
        for (i, &frame) in frames.iter().enumerate() {
            if !(known.0..known.0 + known.1).contains(&frame) {
                let ahead = frames[i..].iter().zip(frame..).take_while(|(other, next)| *other == next).count();
                known = self.page_of(frame, ahead as u64)?;
            }
            *sizes.entry(known.1 * self.os_page).or_insert(0) += self.os_page;
        }
        Some(sizes)
    }

    /// The page that a frame belongs to: its first frame, and its number of frames. The next `ahead` frames will be
    /// requested too.
    fn page_of(&mut self, frame: u64, ahead: u64) -> Option<(u64, u64)> {
        if self.flags_of(frame, ahead)? & (HEAD | TAIL) == 0 {
            return Some((frame, 1));
        }
        // The parts of a page are adjacent and aligned to its size.
        let area = frame & !(MOST - 1);
        let mut first = frame;
        while first > area && self.flags_of(first, ahead)? & TAIL != 0 {
            self.read_window(area, MOST)?;
            first -= 1;
        }
        self.read_window(area, MOST)?;
        let mut end = first + 1;
        while end < area + MOST && self.flags_of(end, 1).is_some_and(|flags| flags & TAIL != 0) {
            end += 1;
        }
        Some((first, end - first))
    }

    fn flags_of(&mut self, frame: u64, ahead: u64) -> Option<u64> {
        if frame.checked_sub(self.window.0).is_none_or(|place| place >= self.window.1.len() as u64) {
            self.read_window(frame, ahead.clamp(1, MOST))?;
        }
        self.window.1.get(usize::try_from(frame - self.window.0).ok()?).copied()
    }

    fn read_window(&mut self, first: u64, frames: u64) -> Option<()> {
        if self.window.0 == first && self.window.1.len() as u64 == frames {
            return Some(());
        }
        let mut bytes = vec![0u8; usize::try_from(frames).ok()? * 8];
        let read = self.flags.as_ref()?.read_at(&mut bytes, first * 8).ok()? / 8 * 8;
        let words = bytes[..read].chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        self.window = (first, words.collect());
        Some(())
    }
}
