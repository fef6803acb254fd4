//! Radix trees from OS pages to records, as in jemalloc and tcmalloc: a root of pointers in the data of a library, below
//! it nodes of pointers, and leaves of one or two words for each page.
//!
//! Such a tree is found without symbols: a pointer belongs to the root if it leads to a leaf, a word of the leaf leads
//! to a record, and the record states exactly the page number that follows from the places in all levels.

use crate::data::read;
use crate::{Mapping, Memory};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Limit on pointers that are tried as nodes.
const TRIED: u32 = 20_000;
/// Limit on the elements of one node that lead nowhere, and on old ones: of a heap whose slabs are nearly all free, most
/// elements are old.
const ELEMENTS: u32 = 64;
const OLD: u32 = 1 << 16;
/// Bytes of the first read of a node, of each further one, and of all reads to find a leaf. Most pointers lead to other
/// memory, which a few elements show.
const FIRST: u64 = 1 << 10;
const PIECE: u64 = 16 << 10;
const MOST: u64 = 256 << 20;

/// A tree.
#[derive(Debug)]
pub struct Tree {
    /// Bits of a page number by which each level is indexed, those of the root first and of the leaves last.
    pub levels: &'static [u32],
    /// Words of an element of a leaf: 1 or 2. Those of other levels are pointers.
    pub words: u64,
    /// Alignment of a node's address.
    pub aligned: u64,
}

/// The words of an element of a leaf; the second is 0 if there is only one.
pub type Element = (u64, u64);

/// What an element of a leaf leads to.
pub enum Led {
    /// Nothing: its page belongs to no record now.
    Empty,
    /// To no record.
    Astray,
    /// To a record that does not agree with the element: the element is an old one. A node with such elements is likely one.
    Old,
    /// To a record with this page number.
    Page(u64),
}

impl Tree {
    /// Bytes of the root.
    pub fn root_bytes(&self) -> u64 {
        8 << self.levels[0]
    }

    /// Bytes of a node of a level.
    pub fn node_bytes(&self, level: usize) -> u64 {
        let words = if level + 1 == self.levels.len() { self.words } else { 1 };
        (8 * words) << self.levels[level]
    }

    /// Bits of a page number below those of a level.
    fn below(&self, level: usize) -> u32 {
        self.levels[level + 1..].iter().sum()
    }

    /// The address of the root in the data at `range`. `lead` says what an element of a leaf leads to.
    pub fn find(
        &self,
        memory: &dyn Memory,
        mappings: &[Mapping],
        range: &Range<u64>,
        lead: &dyn Fn(Element) -> Led,
    ) -> Option<u64> {
        let mut search = Search { tree: self, memory, mappings, lead, bytes: 0 };
        let (mut runs, mut tried, mut numbers) = (Vec::new(), 0, HashMap::new());
        memory.resident(range.clone(), &mut runs);
        for run in runs {
            for (at, node) in words(memory, run.range.start.max(range.start)..run.range.end.min(range.end)) {
                if !self.is_node(mappings, node) {
                    continue;
                }
                tried += 1;
                if tried > TRIED || search.bytes > MOST {
                    return None;
                }
                if let Some(number) = *numbers.entry(node).or_insert_with(|| search.number(1, node))
                    && let Some(root) = at.checked_sub(8 * (number >> self.below(0)))
                    && root >= range.start
                    && root + self.root_bytes() <= range.end
                {
                    return Some(root);
                }
            }
        }
        None
    }

    fn is_node(&self, mappings: &[Mapping], node: u64) -> bool {
        node != 0 && node.is_multiple_of(self.aligned) && is_anonymous(mappings, node)
    }

    /// Calls `see` with each node below the root and with each element of a leaf. Elements that equal the one before
    /// are left out. A node counts once: further pointers to it are left out.
    pub fn each(&self, memory: &dyn Memory, mappings: &[Mapping], root: u64, see: &mut dyn FnMut(Seen)) {
        self.nodes(memory, mappings, (0, root, 0), &mut HashSet::new(), see);
    }

    /// The same from a node of a level on, whose first page is `first`.
    fn nodes(
        &self,
        memory: &dyn Memory,
        mappings: &[Mapping],
        (level, node, first): (usize, u64, u64),
        nodes: &mut HashSet<u64>,
        see: &mut dyn FnMut(Seen),
    ) {
        let Some(end) = node.checked_add(self.node_bytes(level)) else { return };
        let (mut runs, mut before) = (Vec::new(), (0, 0));
        memory.resident(node & !4095..end.checked_next_multiple_of(4096).unwrap_or(end), &mut runs);
        for run in runs {
            let part = run.range.start.max(node)..run.range.end.min(end);
            if level + 1 == self.levels.len() {
                for (at, element) in elements(memory, part, self.words) {
                    if element != before && element != (0, 0) {
                        see(Seen::Element { page: first + (at - node) / (8 * self.words), element });
                    }
                    before = element;
                }
                continue;
            }
            for (at, next) in words(memory, part) {
                if self.is_node(mappings, next) && nodes.insert(next) {
                    see(Seen::Node(next));
                    let first = first + (((at - node) / 8) << self.below(level));
                    self.nodes(memory, mappings, (level + 1, next, first), nodes, see);
                }
            }
        }
    }
}

/// A search for a tree.
struct Search<'a> {
    tree: &'a Tree,
    memory: &'a dyn Memory,
    mappings: &'a [Mapping],
    lead: &'a dyn Fn(Element) -> Led,
    /// Bytes that were read.
    bytes: u64,
}

impl Search<'_> {
    /// A page number to which a candidate for a node of a level leads. Its bits for the levels below the root are those
    /// of the places of the elements that lead to it.
    fn number(&mut self, level: usize, node: u64) -> Option<u64> {
        let (tree, mut runs, mut tried, mut old, mut length) = (self.tree, Vec::new(), 0, 0, FIRST);
        let is_leaf = level + 1 == tree.levels.len();
        let width = if is_leaf { tree.words } else { 1 };
        let end = node.checked_add(tree.node_bytes(level))?;
        self.memory.resident(node & !4095..end.checked_next_multiple_of(4096)?, &mut runs);
        for run in runs {
            let (mut from, stop) = (run.range.start.max(node), run.range.end.min(end));
            while from < stop {
                let range = from..stop.min(from + length);
                (from, length) = (range.end, PIECE);
                self.bytes += range.end - range.start;
                for (at, element) in elements(self.memory, range, width) {
                    let led = if is_leaf { (self.lead)(element) } else { self.next(level, element.0) };
                    match led {
                        Led::Empty => {}
                        Led::Page(number) if self.is_at(level, number, (at - node) / (8 * width)) => {
                            return Some(number);
                        }
                        Led::Page(_) | Led::Old => old += 1,
                        Led::Astray => tried += 1,
                    }
                    if tried == ELEMENTS || old == OLD || self.bytes > MOST {
                        return None;
                    }
                }
            }
        }
        None
    }

    fn next(&mut self, level: usize, node: u64) -> Led {
        if node == 0 {
            return Led::Empty;
        }
        let number = self.tree.is_node(self.mappings, node).then(|| self.number(level + 1, node)).flatten();
        number.map_or(Led::Astray, Led::Page)
    }

    /// Whether a page number belongs to a place in a node of a level, and to one in the root.
    fn is_at(&self, level: usize, number: u64, place: u64) -> bool {
        let mask = (1 << self.tree.levels[level]) - 1;
        number >> self.tree.below(level) & mask == place && number >> self.tree.below(0) < 1 << self.tree.levels[0]
    }
}

/// A node or an element of a leaf of a tree.
pub enum Seen {
    /// A node below the root, at that address.
    Node(u64),
    /// An element of a leaf.
    Element {
        /// Its page number.
        page: u64,
        /// Its words.
        element: Element,
    },
}

/// The elements of a leaf in a range, with their addresses.
fn elements(memory: &dyn Memory, range: Range<u64>, width: u64) -> impl Iterator<Item = (u64, Element)> {
    let (start, end) = (range.start, range.end.max(range.start));
    let (bytes, size) = (read(memory, start..end), 8 * width as usize);
    (0..bytes.len() / size).filter_map(move |number| {
        let second = if width > 1 { crate::window::word(&bytes, size * number + 8)? } else { 0 };
        let first = crate::window::word(&bytes, size * number)?;
        Some((start + (size * number) as u64, (first, second)))
    })
}

/// The words of a range, with their addresses.
fn words(memory: &dyn Memory, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let (start, end) = (range.start, range.end.max(range.start));
    let bytes = read(memory, start..end);
    (0..bytes.len() / 8).filter_map(move |number| {
        let word = crate::window::word(&bytes, 8 * number)?;
        Some((start + 8 * number as u64, word))
    })
}

/// Whether an address is in private memory without a file. The allocators' own records are in such memory, which may be
/// only reserved.
pub fn is_anonymous(mappings: &[Mapping], address: u64) -> bool {
    let after = mappings.partition_point(|mapping| mapping.range.start <= address);
    after
        .checked_sub(1)
        .and_then(|at| mappings.get(at))
        .is_some_and(|mapping| address < mapping.range.end && mapping.private && mapping.file().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Run, Unreadable};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Memory that is full of pointers to itself, and how much of it was read.
    struct Pointers(AtomicU64);

    impl Memory for Pointers {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
            self.0.fetch_add(into.len() as u64, Relaxed);
            for (word, at) in into.as_chunks_mut::<8>().0.iter_mut().zip((address..).step_by(8)) {
                *word = (START + (at % START) * 64 % BYTES).to_le_bytes();
            }
            Ok(())
        }

        fn resident(&self, range: Range<u64>, into: &mut Vec<Run>) {
            into.push(Run { range, swapped: false });
        }
    }

    const START: u64 = 1 << 40;
    const BYTES: u64 = 1 << 30;

    /// A leaf: most of its elements lead to other pages.
    struct Leaf(Vec<u64>);

    impl Memory for Leaf {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
            let first = ((address - START) / 8) as usize;
            for (number, word) in into.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *word = self.0.get(first + number).copied().unwrap_or(0).to_le_bytes();
            }
            Ok(())
        }

        fn resident(&self, range: Range<u64>, into: &mut Vec<Run>) {
            into.push(Run { range, swapped: false });
        }
    }

    /// Catches a tree that is not found because its first elements are old: their records are now of other pages, or of
    /// none that fits.
    #[test]
    fn old_elements_are_passed() {
        const TREE: Tree = Tree { levels: &[9, 9], words: 1, aligned: 64 };
        const ROOT: u64 = START;
        const LEAF: u64 = START + 8 * 512;
        let mappings = [Mapping { range: START..START + BYTES, private: true, ..Mapping::default() }];
        let find = |good: usize| {
            let mut words = vec![0; 1024];
            words[3] = LEAF;
            for at in 1..500 {
                words[512 + at] = if at % 2 == 0 { 1 << 20 } else { 1 << 21 };
            }
            words[512 + good] = (3 << 9 | good as u64) + (1 << 30);
            let lead = |(word, _): Element| match word {
                0 => Led::Empty,
                _ if word < 1 << 21 => Led::Page(word),
                _ if word < 1 << 30 => Led::Old,
                _ if word >= START => Led::Astray,
                _ => Led::Page(word - (1 << 30)),
            };
            TREE.find(&Leaf(words), &mappings, &(ROOT..ROOT + TREE.root_bytes()), &lead)
        };
        assert_eq!((find(2), find(400)), (Some(ROOT), Some(ROOT)));
    }

    /// Catches a search that uses up what may be read of a small process, as each of many pointers costs a large read.
    #[test]
    fn pointers_to_other_memory_are_cheap() {
        const TREE: Tree = Tree { levels: &[18, 18], words: 1, aligned: 64 };
        let mappings = [Mapping { range: START..START + BYTES, private: true, ..Mapping::default() }];
        let (memory, data) = (Pointers(AtomicU64::new(0)), START..START + TREE.root_bytes());
        let found = TREE.find(&memory, &mappings, &data, &|_| Led::Astray);
        let read = memory.0.load(Relaxed) - (data.end - data.start);
        assert_eq!(found, None);
        assert!(read <= u64::from(TRIED) * 1024, "{read}");
    }
}
