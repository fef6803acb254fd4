//! The writable data of libraries and programs, in which allocators keep their roots.

use crate::{Files, Mapping, Memory};
use std::ops::Range;

/// Limit on the bytes of one file's data that are searched.
const DATA: u64 = 64 << 20;

/// The writable data of each file: its mapping, and the range of the data, including the zeros after it (.bss).
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

/// The contents of a range, with zeros where it is not resident. Empty if no more may be read.
pub fn read(memory: &dyn Memory, range: Range<u64>) -> Vec<u8> {
    if memory.is_over() {
        return Vec::new();
    }
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

/// Whether the file behind `mapping` contains `text`, such as an allocator's name in its messages; also true if the
/// file cannot be read. So the data of most files need no search by structure, which reads far more.
pub fn mentions(files: &dyn Files, mapping: &Mapping, text: &[u8]) -> bool {
    !matches!(files.find(mapping, text), Ok(None))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::memory::PIECE;

    /// A file with these bytes.
    pub struct File(pub Vec<u8>);

    impl Files for File {
        fn read(&self, _: &Mapping, offset: u64, into: &mut [u8]) -> usize {
            let rest = self.0.get(offset as usize..).unwrap_or_default();
            let length = rest.len().min(into.len());
            into[..length].copy_from_slice(&rest[..length]);
            length
        }
    }

    /// Catches a text that is missed at the border of two pieces or at the end, and files that are read without end.
    #[test]
    fn texts_are_found_wherever_they_are() {
        for at in [0, PIECE - 3, PIECE, 2 * PIECE - 8, 2 * PIECE - 4, 3 * PIECE - 8] {
            let mut file = vec![0; 3 * PIECE];
            assert!(!mentions(&File(file.clone()), &Mapping::default(), b"jemalloc"));
            file[at..at + 8].copy_from_slice(b"jemalloc");
            let file = File(file);
            assert!(mentions(&file, &Mapping::default(), b"jemalloc"), "at {at}");
            assert_eq!(file.find(&Mapping::default(), b"jemalloc"), Ok(Some(at as u64)));
        }
        assert!(!mentions(&File(b"short".to_vec()), &Mapping::default(), b"jemalloc"));
        assert!(mentions(&File(Vec::new()), &Mapping::default(), b"jemalloc"), "a file that cannot be read");
    }
}
