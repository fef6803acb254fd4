//! The writable data of libraries and programs, in which allocators keep their roots.

use crate::{Mapping, Memory};
use std::ops::Range;

/// Bytes of one file's data that are searched.
const DATA: u64 = 64 << 20;

/// The writable data of each file: its mapping, and where the data is, with the zeros behind.
pub fn data(mappings: &[Mapping]) -> Vec<(&Mapping, Range<u64>)> {
    let mut data: Vec<(&Mapping, Range<u64>)> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.private && mapping.readable && mapping.writable) {
        let is_behind = |range: &Range<u64>| range.end == mapping.range.start;
        match data.last_mut() {
            Some((file, range)) if is_behind(range) && (mapping.name.is_none() || mapping.file() == file.file()) => {
                range.end = mapping.range.end.min(range.start + DATA);
            }
            _ if mapping.file().is_some() => {
                data.push((mapping, mapping.range.start..mapping.range.end.min(mapping.range.start + DATA)));
            }
            _ => {}
        }
    }
    data
}

/// What is resident of a range; zeros elsewhere.
pub fn read(memory: &dyn Memory, range: Range<u64>) -> Vec<u8> {
    let (mut bytes, mut runs) = (vec![0; (range.end - range.start) as usize], Vec::new());
    memory.resident(range.clone(), &mut runs);
    for run in runs {
        let (from, to) = (run.range.start.max(range.start), run.range.end.min(range.end));
        if from < to {
            let part = &mut bytes[(from - range.start) as usize..(to - range.start) as usize];
            if memory.read(from, part).is_err() {
                part.fill(0);
            }
        }
    }
    bytes
}
