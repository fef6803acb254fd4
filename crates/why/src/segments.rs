//! How much memory behind the data of a program or library is the file's own (.bss): by the sizes in its program headers.
//! What the kernel has placed right behind it, or has joined with it to one mapping, is something else.
//!
//! ```text
//! typedef struct { uint32_t p_type, p_flags; uint64_t p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align; } Elf64_Phdr;
//! ```
//!
//! A segment whose `p_memsz` is larger than its `p_filesz` goes on in memory without a file. Where it was loaded follows
//! from a mapping of its contents, which must be where this segment has them; so a file that is only mapped as data has
//! no .bss.

use crate::files::Files;
use crate::heaps::listed;
use crate::memory::Process;
use neap_account::seen::{Bss, Mapping, Piece, Seen};
use neap_heaps::Files as _;
use std::ops::Range;

/// The front of a file with its program headers.
const FRONT: usize = 4096;
const LOAD: u32 = 1;

/// Adds what the program headers of all files say.
pub fn read(seen: &mut Seen, memory: &Process) {
    let files = Files::new(seen.pid, &seen.mappings, &memory.fuel);
    let mut found: Vec<Bss> = Vec::new();
    let is_loaded = |of: &&Mapping| of.inode != 0 && !of.shared && of.offset == 0 && of.name.starts_with('/');
    for first in seen.mappings.iter().filter(is_loaded) {
        let Some(front) = front(first, &files, memory) else { continue };
        for range in behind(&loads(&front), first, &seen.mappings) {
            found.extend(pieces(&range, &seen.mappings, memory).map(|piece| Bss { file: first.name.clone(), piece }));
        }
    }
    found.sort_by_key(|of| of.piece.range.start);
    found.dedup_by(|next, last| next.piece.range.start < last.piece.range.end);
    seen.bss = Some(found);
}

/// The front of the file that is mapped at `first`: from the file, or, if that cannot be opened any more, from memory.
fn front(first: &Mapping, files: &Files, memory: &Process) -> Option<Vec<u8>> {
    let mut front = vec![0; FRONT];
    let got = files.read(&listed(first), 0, &mut front);
    if got >= 64 {
        front.truncate(got);
        return Some(front);
    }
    // Only if it is resident: reading makes it so.
    let range = first.range.start..first.range.start + FRONT as u64;
    (first.read && memory.resident_bytes(range) > 0 && memory.copy(first.range.start, &mut front)).then_some(front)
}

/// A part of a file that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    offset: u64,
    address: u64,
    /// Bytes in the file, and in memory.
    in_file: u64,
    in_memory: u64,
}

/// The loaded segments in a file's front; none if it is no ELF file of this kind.
fn loads(front: &[u8]) -> Vec<Load> {
    let word = |at: usize| Some(u64::from_le_bytes(*front.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_le_bytes(*front.get(at..)?.first_chunk()?));
    let kind = |at: usize| Some(u32::from_le_bytes(*front.get(at..)?.first_chunk()?));
    if !front.starts_with(b"\x7fELF\x02\x01") {
        return Vec::new();
    }
    let (Some(table), Some(size), Some(count)) = (word(32), half(54), half(56)) else { return Vec::new() };
    let header = |number: u16| {
        let at = usize::try_from(table).ok()?.checked_add(usize::from(size) * usize::from(number))?;
        let field = |from: usize| word(at.checked_add(from)?);
        let load = Load { offset: field(8)?, address: field(16)?, in_file: field(32)?, in_memory: field(40)? };
        (kind(at)? == LOAD).then_some(load)
    };
    (0..count).filter_map(header).collect()
}

fn down(address: u64) -> u64 {
    address & !(crate::sys::page_size() - 1)
}

fn up(address: u64) -> u64 {
    down(address.saturating_add(crate::sys::page_size() - 1))
}

/// Where the segments of a file go on beyond its contents, if it was loaded with its begin at `first`.
fn behind(loads: &[Load], first: &Mapping, mappings: &[Mapping]) -> Vec<Range<u64>> {
    let Some(begin) = loads.iter().find(|load| down(load.offset) == 0 && load.in_file > 0) else { return Vec::new() };
    let base = first.range.start.wrapping_sub(down(begin.address));
    // Whether the file's contents are where this segment has them; the last OS page, because parts of the front may have
    // been protected or replaced.
    let is_there = |load: &Load| {
        let end = up(load.address.saturating_add(load.in_file)).wrapping_add(base);
        let of = &mappings[mappings.partition_point(|mapping| mapping.range.end < end).min(mappings.len() - 1)];
        let ends_at = of.offset.wrapping_add(end.wrapping_sub(of.range.start));
        of.range.start < end
            && (of.inode, of.device, of.shared) == (first.inode, first.device, false)
            && ends_at
                == down(load.offset).wrapping_add(up(load.address.saturating_add(load.in_file)) - down(load.address))
    };
    let mut found = Vec::new();
    for (at, load) in loads.iter().enumerate().filter(|(_, load)| load.in_memory > load.in_file) {
        // A segment without contents is placed by the one before it.
        let shown = if load.in_file > 0 { Some(load) } else { loads[..at].iter().rfind(|load| load.in_file > 0) };
        let start = if load.in_file > 0 { up(load.address.saturating_add(load.in_file)) } else { down(load.address) };
        let end = up(load.address.saturating_add(load.in_memory));
        if shown.is_some_and(is_there) && start < end {
            found.push(start.wrapping_add(base)..end.wrapping_add(base));
        }
    }
    found
}

/// The parts of a range that are private memory without a file, with their resident bytes.
fn pieces<'a>(
    range: &'a Range<u64>,
    mappings: &'a [Mapping],
    memory: &'a Process,
) -> impl Iterator<Item = Piece> + use<'a> {
    let first = mappings.partition_point(|mapping| mapping.range.end <= range.start);
    let inside = mappings[first..].iter().take_while(|mapping| mapping.range.start < range.end);
    inside.filter(|mapping| mapping.inode == 0 && !mapping.shared).map(|mapping| {
        let part = range.start.max(mapping.range.start)..range.end.min(mapping.range.end);
        let resident = if part == mapping.range { mapping.figures.rss } else { memory.resident_bytes(part.clone()) };
        Piece { range: part, resident }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(start: u64, bytes: u64, offset: u64) -> Mapping {
        Mapping { range: start..start + bytes, offset, inode: 7, name: "/lib/x.so".into(), ..Mapping::default() }
    }

    fn load(offset: u64, address: u64, in_file: u64, in_memory: u64) -> Load {
        Load { offset, address, in_file, in_memory }
    }

    fn is(found: Vec<Range<u64>>, one: Range<u64>) -> bool {
        matches!(&found[..], [of] if *of == one)
    }

    /// Catches memory behind a library's data that counts as its .bss although its sizes say otherwise, a file that is
    /// mapped as data and gets a .bss, and segments without contents.
    #[test]
    fn sizes_decide() {
        let base = 0x7f00_0000_0000;
        let loads = [load(0, 0, 0x1800, 0x1800), load(0x1e00, 0x2e00, 0x300, 0x3000)];
        let mappings = [file(base, 0x2000, 0), file(base + 0x2000, 0x2000, 0x1000)];
        // The contents end at 0x3100, in the OS page that ends at 0x4000; the memory ends at 0x5e00.
        let mappings = [mappings[0].clone(), Mapping { range: base + 0x2000..base + 0x4000, ..mappings[1].clone() }];
        assert!(is(behind(&loads, &mappings[0], &mappings), base + 0x4000..base + 0x6000));
        let small = [loads[0], load(0x1e00, 0x2e00, 0x300, 0x400)];
        assert_eq!(behind(&small, &mappings[0], &mappings), []);
        // The whole file as data: the segment's contents are elsewhere.
        let data = [file(base, 0x4000, 0)];
        assert_eq!(behind(&loads, &data[0], &data), []);
        let empty = [loads[0], load(0x1e00, 0x2e00, 0x300, 0x300), load(0x2100, 0x6000, 0, 0x1800)];
        assert!(is(behind(&empty, &mappings[0], &mappings), base + 0x6000..base + 0x8000));
        // A program at fixed addresses.
        let fixed = loads.map(|load| Load { address: load.address + 0x40_0000, ..load });
        let at = [file(0x40_0000, 0x2000, 0), file(0x40_2000, 0x2000, 0x1000)];
        assert!(is(behind(&fixed, &at[0], &at), 0x40_4000..0x40_6000));
    }

    /// Catches headers that are not found, and damaged ones that are trusted.
    #[test]
    fn headers_are_read() {
        let own = std::fs::read("/proc/self/exe").expect("this program");
        let found = loads(&own[..FRONT]);
        assert!(found.len() >= 2 && found.iter().any(|load| load.in_memory > load.in_file), "{found:?}");
        assert_eq!(loads(b"\x7fELF\x02\x01"), []);
        let mut damaged = own[..FRONT].to_vec();
        damaged[32..40].fill(0xff);
        assert_eq!(loads(&damaged), []);
        damaged[32..40].copy_from_slice(&64u64.to_le_bytes());
        damaged[64..].fill(0xff);
        assert!(behind(&loads(&damaged), &file(0x1000, 0x1000, 0), &[file(0x1000, 0x1000, 0)]).is_empty());
    }
}
