//! The memory of a process for tests: `process_vm_readv` and `/proc/PID/pagemap`.
#![allow(dead_code)]

pub mod damaged;
pub mod info;
pub mod recording;

use neap_heaps::{Files, Mapping, Memory, Run, Unreadable};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

const PAGE: u64 = 4096;

/// A private mapping that may be read and written.
pub fn writable(range: Range<u64>, name: Option<&str>) -> Mapping {
    let name = name.map(str::to_string);
    Mapping { range, readable: true, writable: true, private: true, name, ..Mapping::default() }
}

/// The memory of a running process.
pub struct Process {
    pid: u32,
    pages: File,
    /// Its mappings when it was opened.
    pub mappings: Vec<Mapping>,
}

impl Process {
    /// Opens process `pid`.
    pub fn open(pid: u32) -> std::io::Result<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        Ok(Process {
            pid,
            pages: File::open(format!("/proc/{pid}/pagemap"))?,
            mappings: maps.lines().filter_map(mapping).collect(),
        })
    }
}

/// A line of `/proc/PID/maps`.
pub fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (range, flags, offset) = (fields.next()?, fields.next()?.as_bytes(), fields.next()?);
    let (start, end) = range.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let name = fields.nth(2).unwrap_or("").trim_start().trim_end_matches(" (deleted)");
    Some(Mapping {
        range: hex(start)?..hex(end)?,
        readable: flags.first() == Some(&b'r'),
        writable: flags.get(1) == Some(&b'w'),
        executable: flags.get(2) == Some(&b'x'),
        private: flags.get(3) == Some(&b'p'),
        offset: hex(offset)?,
        name: (!name.is_empty()).then(|| name.to_string()),
    })
}

impl Memory for Process {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let length = into.len();
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: length };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: length };
        // SAFETY: the kernel writes to `into` only, at most `length` bytes; the other address is of the other process.
        let read = unsafe { libc::process_vm_readv(self.pid as i32, &local, 1, &remote, 1, 0) };
        if read == length as isize { Ok(()) } else { Err(Unreadable) }
    }

    fn resident(&self, range: Range<u64>, into: &mut Vec<Run>) {
        let mut at = range.start;
        while at < range.end {
            let count = ((range.end - at) / PAGE).clamp(1, 1 << 16);
            let mut bytes = vec![0; 8 * count as usize];
            if self.pages.read_exact_at(&mut bytes, at / PAGE * 8).is_err() {
                return;
            }
            for word in bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)) {
                let (present, swapped) = (word >> 63 == 1, word >> 62 & 1 == 1);
                if present || swapped {
                    match into.last_mut() {
                        Some(run) if run.range.end == at && run.swapped == swapped => run.range.end += PAGE,
                        _ => into.push(Run { range: at..at + PAGE, swapped }),
                    }
                }
                at += PAGE;
            }
        }
    }
}

impl Files for Process {
    fn read(&self, mapping: &Mapping, offset: u64, into: &mut [u8]) -> usize {
        let Some(name) = mapping.file() else { return 0 };
        let root = format!("/proc/{}/root{name}", self.pid);
        let file = File::open(root).or_else(|_| File::open(name));
        file.and_then(|file| file.read_at(into, offset)).unwrap_or(0)
    }
}
