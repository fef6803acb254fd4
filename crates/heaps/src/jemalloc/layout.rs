//! How builds of jemalloc differ: versions in where a record has its fields, configurations in the bits of addresses and
//! of pages. `configure` takes the bits of addresses from the processor of the builder unless it is told: 48 or 57.

use crate::radix::{Element, Tree};
use crate::window::word;

/// Where a record has its bits of blocks.
pub const BITS: usize = 64;
/// The most bytes of a record.
pub const RECORD: usize = BITS + 1024;

/// Where a version has its fields: shifts in the first word of a record, and the mask of the state.
#[derive(Debug)]
pub struct Layout {
    pub name: &'static str,
    state: (u32, u64),
    class: u32,
    free: u32,
    /// Bits of a leaf's packed element below the pointer that are flags; where there is room, they include the state.
    flags: u64,
}

pub static LAYOUTS: [Layout; 3] = [
    Layout { name: "jemalloc 5.3", state: (17, 7), class: 20, free: 28, flags: 0x7f },
    Layout { name: NEWER, state: (16, 3), class: 18, free: 26, flags: 0x3f },
    Layout { name: "jemalloc 5.0", state: (15, 3), class: 17, free: 25, flags: 0x3f },
];
/// The class of extents without blocks: the number of classes.
const NONE: std::ops::RangeInclusive<u64> = 228..=240;
/// Two versions with one layout: the newer has a setting with that name.
pub const NEWER: &str = "jemalloc 5.2";
pub const OLDER: &str = "jemalloc 5.1";
pub const SETTING: &[u8] = b"bin_shards";

/// What follows from the configuration. With 57 bits of addresses the pointer of a leaf's element has no room for the
/// rest, which is a second word.
#[derive(Debug)]
pub struct Shape {
    pub tree: Tree,
    /// Bits of an address within a page of jemalloc.
    pub page: u32,
}

/// The usual ones first. Bits of addresses without those of pages, divided by the number of levels; what remains goes to
/// the last levels.
pub static SHAPES: [Shape; 6] = [
    shape(&[18, 18], 1, 12),
    shape(&[15, 15, 15], 2, 12),
    shape(&[16, 16], 1, 16),
    shape(&[13, 14, 14], 2, 16),
    shape(&[17, 17], 1, 14),
    shape(&[14, 14, 15], 2, 14),
];

const fn shape(levels: &'static [u32], words: u64, page: u32) -> Shape {
    Shape { tree: Tree { levels, words, aligned: 64 }, page }
}

impl Shape {
    /// The most blocks of a slab.
    pub fn blocks(&self) -> u64 {
        1 << (self.page - 3)
    }

    /// Bytes of a record.
    pub fn record_bytes(&self) -> usize {
        BITS + self.blocks() as usize / 8
    }
}

/// A build.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    pub layout: &'static Layout,
    pub shape: &'static Shape,
}

impl Build {
    /// The address of the record that an element of a leaf points to; 0 for none.
    pub fn record(&self, (first, _): Element) -> u64 {
        if self.shape.tree.words == 1 { first & 0xffff_ffff_ffff & !self.layout.flags } else { first }
    }
}

/// The record of an extent.
#[derive(Clone, Copy)]
pub struct Record {
    /// The front of its first page.
    pub address: u64,
    /// Bytes from there to the first block of a large extent, which begins anywhere in the first page.
    pub shift: u64,
    pub size: u64,
    pub arena: u64,
    pub is_slab: bool,
    /// 0 active, 1 dirty, 2 muzzy, 3 retained.
    pub state: u64,
    pub class: u64,
    pub free: u64,
}

impl Record {
    pub fn parse(build: Build, bytes: &[u8]) -> Option<Record> {
        let Build { layout, shape } = build;
        let (bits, address, size) = (word(bytes, 0)?, word(bytes, 8)?, word(bytes, 16)?);
        let within = (1 << shape.page) - 1;
        let record = Record {
            address: address & !within,
            shift: address & within,
            size: size & !within,
            arena: bits & 0xfff,
            is_slab: bits >> 12 & 1 == 1,
            state: bits >> layout.state.0 & layout.state.1,
            class: bits >> layout.class & 0xff,
            free: bits >> layout.free & (2 * shape.blocks() - 1),
        };
        let Record { address, size, .. } = record;
        (size != 0 && size < 1 << 47 && address != 0 && address.checked_add(size)? < 1 << 47).then_some(record)
    }

    /// Whether it agrees with the element of a leaf that points to it.
    pub fn fits(&self, build: Build, (first, second): Element) -> bool {
        let has_state = build.layout.flags == 0x7f;
        let (class, is_slab, state) = match (build.shape.tree.words == 1, has_state) {
            (true, _) => (first >> 48, first & 1, first >> 2 & 7),
            (false, true) => (second >> 5 & 0xff, second & 1, second >> 2 & 7),
            (false, false) => (second & 0xffff_ffff, second >> 32 & 1, 0),
        };
        // An element keeps the class of its last block while the extent is free.
        let is_free = self.state != 0 && NONE.contains(&self.class) && !self.is_slab;
        let is_used = self.class == class && u64::from(self.is_slab) == is_slab;
        (is_free || is_used) && (!has_state || self.state == state)
    }
}

/// Bytes of a block of a size class.
pub fn class_size(class: u64) -> u64 {
    let Some(place) = class.checked_sub(1) else { return 8 };
    let (group, step) = (place / 4, place % 4 + 1);
    match group {
        0 => 16 * step,
        1..=40 => (64 << (group - 1)) + step * (16 << (group - 1)),
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::{SHAPES, class_size};

    /// Catches sizes of classes that differ from jemalloc's table.
    #[test]
    fn classes() {
        let sizes: Vec<u64> = (0..18).map(class_size).collect();
        assert_eq!(sizes, [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640]);
        assert_eq!(class_size(36), 16 << 10);
    }

    /// Catches levels that do not follow from the bits of addresses as in jemalloc's rtree.h.
    #[test]
    fn shapes() {
        for shape in &SHAPES {
            let bits = if shape.tree.words == 1 { 48 } else { 57 } - shape.page;
            let count = if bits <= 36 { 2 } else { 3 };
            let (each, more) = (bits / count, bits % count);
            let levels =
                if count == 2 { vec![each, each + more] } else { vec![each, each + more / 2, each + more - more / 2] };
            assert_eq!(shape.tree.levels, levels, "{shape:?}");
        }
    }
}
