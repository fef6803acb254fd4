//! Finds the control block of a process, through the ELF note of the object that contains neap.

use crate::Error;
use crate::process::{Front, Memory, fronts};
use crate::resident::Pages;
use neap_process::file as mapped;
use neap_samples::control::{CONTROL_MAGIC, CONTROL_VERSION, Control, NOTE_NAME, NOTE_TYPE};
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

/// Limit on the size of a segment of notes.
const NOTES: u64 = 64 << 10;
/// Limit on the program headers of an object.
const HEADERS: u16 = 128;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;

/// The address of the control block.
pub fn control(pid: u32, memory: &Memory) -> Result<u64, Error> {
    let (mut version, pages) = (None, Pages::open(pid, memory.fuel.clone())?);
    for front in fronts(pid)? {
        let Some(block) = note(pid, memory, &pages, &front) else { continue };
        let word = |at: usize| {
            let at = block.wrapping_add(at as u64);
            pages.are_touched(at, 8).then(|| memory.word(at).ok()).flatten()
        };
        if word(offset_of!(Control, magic)) != Some(CONTROL_MAGIC) {
            continue;
        }
        match word(offset_of!(Control, version)) {
            Some(CONTROL_VERSION) => return Ok(block),
            other => version = other,
        }
    }
    Err(version.map_or(Error::NoNeap, Error::Version))
}

/// The address in the note of an object.
fn note(pid: u32, memory: &Memory, pages: &Pages, front: &Front) -> Option<u64> {
    let (start, mut header) = (front.range.start, [0; 64]);
    // Parts of the file that the process never touched are read from the file, so that they do not become resident.
    let file = std::cell::OnceCell::new();
    let read = |at: u64, offset: u64, bytes: &mut [u8]| {
        if pages.are_touched(at, bytes.len()) {
            return memory.read(at, bytes).ok();
        }
        if memory.fuel.as_ref().is_some_and(|fuel| !fuel.take(bytes.len() as u64)) {
            return None;
        }
        let file = file.get_or_init(|| mapped::open(pid, &front.range, &front.path, front.identity).ok());
        file.as_ref()?.read_exact_at(bytes, offset).ok()
    };
    read(start, 0, &mut header)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (offset, count) = (u64::from_le_bytes(part(&header, 32)?), u16::from_le_bytes(part(&header, 56)?));
    let mut headers = vec![0; usize::from(count.min(HEADERS)) * 56];
    read(start.checked_add(offset)?, offset, &mut headers)?;
    let headers: Vec<Segment> = headers.chunks_exact(56).filter_map(Segment::parse).collect();
    let first = headers.iter().find(|segment| segment.kind == PT_LOAD)?;
    let bias = start.wrapping_sub(first.address & !0xfff);
    headers.iter().filter(|segment| segment.kind == PT_NOTE).find_map(|segment| {
        let at = bias.wrapping_add(segment.address);
        let mut bytes = vec![0; segment.length.min(NOTES) as usize];
        read(at, segment.offset, &mut bytes)?;
        let (place, distance) = distance(&bytes, if segment.align == 8 { 8 } else { 4 })?;
        Some(at.wrapping_add(place as u64).wrapping_add(distance))
    })
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    length: u64,
    align: u64,
}

impl Segment {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at| part(bytes, at).map(u64::from_le_bytes);
        let kind = u32::from_le_bytes(part(bytes, 0)?);
        Some(Segment { kind, offset: word(8)?, address: word(16)?, length: word(32)?, align: word(48)? })
    }
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The offset of the value of neap's note in these notes, and the value.
fn distance(notes: &[u8], align: usize) -> Option<(usize, u64)> {
    let mut at = 0usize;
    loop {
        let word = |place: usize| part(notes, place).map(|bytes| u32::from_le_bytes(bytes) as usize);
        let (name, value, kind) = (word(at)?, word(at + 4)?, word(at + 8)?);
        let begin = at.checked_add(12)?.checked_add(name)?.checked_next_multiple_of(align)?;
        let named = notes.get(at + 12..)?.starts_with(NOTE_NAME) && name == NOTE_NAME.len() + 1;
        if named && kind == NOTE_TYPE as usize && value == 8 {
            return Some((begin, u64::from_le_bytes(part(notes, begin)?)));
        }
        at = begin.checked_add(value)?.checked_next_multiple_of(align)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8], kind: u32, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, value.len() as u32, kind] {
            bytes.extend(word.to_le_bytes());
        }
        for part in [name, value] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    /// Catches a note that is not found behind others, one of another owner, and notes without an end.
    #[test]
    fn notes() {
        let mut bytes = entry(b"GNU\0", 3, &[7; 20]);
        bytes.extend(entry(b"stapsdt\0", 1, &[9; 8]));
        let begin = bytes.len() + 20;
        bytes.extend(entry(b"neap\0", NOTE_TYPE, &(-8i64).to_le_bytes()));
        assert_eq!(distance(&bytes, 4), Some((begin, -8i64 as u64)));
        for end in 0..bytes.len() {
            assert_eq!(distance(&bytes[..end], 4), None);
        }
        assert_eq!(distance(&entry(b"neap\0", 2, &[0; 8]), 4), None);
        assert_eq!(distance(&[0xff; 64], 4), None);
    }
}
