//! Recordings of processes: `NAME.heap` is a gzip of sections, each a line `NAME LENGTH` and the bytes.
//!
//! - `maps`: `/proc/PID/maps`, of `pagemap` and memory only what a program may write.
//! - `truth`: what the process reported about its own heap.
//! - `file PATH`: lines of a file that show a version.
//! - `pages`: for each run of OS pages two words (start, end with 1 added if swapped), then its bytes if resident.

use super::{Process, mapping};
use neap_heaps::{Files, Mapping, Memory, Run, Unreadable};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;

/// Texts that show an allocator, its version or the name of its settings.
const TEXTS: [&[u8]; 6] =
    [b"GNU C Library", b"tcmalloc_region_", b"mimalloc: warning: ", b"jemalloc", b"bin_shards", b"_MALLOC_CONF\0"];

/// A process as it was at one moment.
#[derive(Clone, Default)]
pub struct Recording {
    /// Its mappings.
    pub mappings: Vec<Mapping>,
    /// What it reported about its own heap.
    pub truth: String,
    /// Lines of files, by path.
    files: BTreeMap<String, Vec<u8>>,
    /// OS pages in order, and their bytes.
    pub runs: Vec<(Run, Vec<u8>)>,
}

impl Recording {
    /// Records a process, which should be at rest.
    pub fn of(process: &Process, truth: &str) -> Recording {
        let mut recording =
            Recording { mappings: process.mappings.clone(), truth: truth.to_string(), ..Recording::default() };
        for mapping in process.mappings.iter().filter(|mapping| mapping.private && mapping.writable) {
            let mut runs = Vec::new();
            if mapping.name.as_deref().is_some_and(|name| name.starts_with("[stack")) {
                continue;
            }
            process.resident(mapping.range.clone(), &mut runs);
            for run in runs {
                let mut bytes = vec![0; if run.swapped { 0 } else { (run.range.end - run.range.start) as usize }];
                Memory::read(process, run.range.start, &mut bytes).expect("memory that is resident");
                recording.runs.push((run, bytes));
            }
        }
        for mapping in process.mappings.iter() {
            let Some(name) = mapping.file().filter(|name| !recording.files.contains_key(*name)) else { continue };
            let mut bytes = vec![0; 64 << 20];
            let length = Files::read(process, mapping, 0, &mut bytes);
            for text in TEXTS {
                if let Some(at) = bytes[..length].windows(text.len()).position(|window| window == text) {
                    // Names are between zeros.
                    let start = bytes[..at].iter().rposition(|byte| *byte == 0).unwrap_or(0);
                    let line = bytes[start..length.min(at + 200)].split(|byte| *byte == b'\n').next();
                    let all = recording.files.entry(name.to_string()).or_default();
                    all.extend(line.unwrap_or_default());
                    all.push(0);
                }
            }
        }
        recording
    }

    /// Writes it.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut all = Vec::new();
        let mut section = |name: &str, bytes: &[u8]| {
            all.extend(format!("{name} {}\n", bytes.len()).into_bytes());
            all.extend(bytes);
        };
        let flag = |is: bool, sign: char| if is { sign } else { '-' };
        let line = |mapping: &Mapping| {
            format!(
                "{:x}-{:x} {}{}{}{} {:x} 00:00 0 {}\n",
                mapping.range.start,
                mapping.range.end,
                flag(mapping.readable, 'r'),
                flag(mapping.writable, 'w'),
                flag(mapping.executable, 'x'),
                if mapping.private { 'p' } else { 's' },
                mapping.offset,
                mapping.name.as_deref().unwrap_or("")
            )
        };
        section("maps", self.mappings.iter().map(line).collect::<String>().as_bytes());
        section("truth", self.truth.as_bytes());
        for (path, bytes) in &self.files {
            section(&format!("file {path}"), bytes);
        }
        let mut pages = Vec::new();
        for (run, bytes) in &self.runs {
            pages.extend(run.range.start.to_le_bytes());
            pages.extend((run.range.end + u64::from(run.swapped)).to_le_bytes());
            pages.extend(bytes);
        }
        section("pages", &pages);
        let mut zip = flate2::write::GzEncoder::new(std::fs::File::create(path)?, flate2::Compression::best());
        zip.write_all(&all)?;
        zip.finish()?.flush()
    }

    /// Reads it.
    pub fn read(path: &Path) -> std::io::Result<Recording> {
        let (mut all, mut recording) = (Vec::new(), Recording::default());
        flate2::read::GzDecoder::new(std::fs::File::open(path)?).read_to_end(&mut all)?;
        let mut rest = &all[..];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let head = String::from_utf8_lossy(&rest[..end]).to_string();
            let (name, length) = head.rsplit_once(' ').expect("a section");
            let length: usize = length.parse().expect("a length");
            let bytes = &rest[end + 1..end + 1 + length];
            let text = || String::from_utf8_lossy(bytes).to_string();
            match name.split_once(' ').unwrap_or((name, "")) {
                ("maps", _) => recording.mappings = text().lines().filter_map(mapping).collect(),
                ("truth", _) => recording.truth = text(),
                ("file", path) => {
                    recording.files.insert(path.to_string(), bytes.to_vec());
                }
                _ => recording.runs = pages(bytes),
            }
            rest = &rest[end + 1 + length..];
        }
        Ok(recording)
    }
}

fn pages(mut bytes: &[u8]) -> Vec<(Run, Vec<u8>)> {
    let mut runs = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(16) {
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("a word"));
        let (start, end) = (word(0), word(8));
        let run = Run { range: start..end & !1, swapped: end & 1 == 1 };
        let length = if run.swapped { 0 } else { (run.range.end - start) as usize };
        runs.push((run, rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    runs
}

impl Memory for Recording {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let (mut at, mut into) = (address, into);
        while !into.is_empty() {
            let number = self.runs.partition_point(|(run, _)| run.range.end <= at);
            let (run, bytes) = self.runs.get(number).filter(|(run, _)| run.range.start <= at).ok_or(Unreadable)?;
            let bytes = bytes.get((at - run.range.start) as usize..).ok_or(Unreadable)?;
            let length = bytes.len().min(into.len());
            if length == 0 {
                return Err(Unreadable);
            }
            let (now, later) = into.split_at_mut(length);
            now.copy_from_slice(&bytes[..length]);
            (at, into) = (at + length as u64, later);
        }
        Ok(())
    }

    fn resident(&self, range: Range<u64>, into: &mut Vec<Run>) {
        let first = self.runs.partition_point(|(run, _)| run.range.end <= range.start);
        for (run, _) in self.runs[first..].iter().take_while(|(run, _)| run.range.start < range.end) {
            let part = run.range.start.max(range.start)..run.range.end.min(range.end);
            into.push(Run { range: part, swapped: run.swapped });
        }
    }
}

impl Files for Recording {
    fn read(&self, mapping: &Mapping, offset: u64, into: &mut [u8]) -> usize {
        let bytes = mapping.file().and_then(|name| self.files.get(name)?.get(offset as usize..));
        bytes.map_or(0, |bytes| {
            let length = bytes.len().min(into.len());
            into[..length].copy_from_slice(&bytes[..length]);
            length
        })
    }
}
