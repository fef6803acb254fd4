//! Radix trees from OS pages to records, as in jemalloc and tcmalloc: a root of pointers in the data of a library, and
//! leaves of words.
//!
//! Such a tree is found without symbols: a pointer belongs to the root if it leads to a leaf, a word of the leaf leads
//! to a record, and the record states exactly the page number that follows from the places in root and leaf.

use crate::data::read;
use crate::{Mapping, Memory};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Limit on pointers that are tried as leaves.
const TRIED: u32 = 20_000;
/// Limit on words of a leaf that are tried.
const WORDS: u32 = 64;
/// Bytes of one read, and of all reads, to find a leaf.
const PIECE: usize = 16 << 10;
const MOST: u64 = 256 << 20;

/// A tree of two levels.
pub struct Tree {
    /// Pointers in the root: a power of two.
    pub root: u64,
    /// Words in a leaf: a power of two.
    pub leaf: u64,
    /// Alignment of a leaf's address.
    pub aligned: u64,
}

impl Tree {
    /// The address of the root in the data at `range`. `page` returns the page number in the record of a leaf's word.
    pub fn find(
        &self,
        memory: &dyn Memory,
        mappings: &[Mapping],
        range: &Range<u64>,
        page: &dyn Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let (mut runs, mut tried, mut bytes, mut places) = (Vec::new(), 0, 0, HashMap::new());
        memory.resident(range.clone(), &mut runs);
        for run in runs {
            for (at, leaf) in words(memory, run.range.start.max(range.start)..run.range.end.min(range.end)) {
                if !self.is_leaf(mappings, leaf) {
                    continue;
                }
                tried += 1;
                if tried > TRIED || bytes > MOST {
                    return None;
                }
                if let Some(place) = *places.entry(leaf).or_insert_with(|| self.place(memory, leaf, page, &mut bytes))
                    && let Some(root) = at.checked_sub(8 * place).filter(|root| *root >= range.start)
                    && root + 8 * self.root <= range.end
                {
                    return Some(root);
                }
            }
        }
        None
    }

    fn is_leaf(&self, mappings: &[Mapping], leaf: u64) -> bool {
        leaf != 0 && leaf.is_multiple_of(self.aligned) && is_anonymous(mappings, leaf)
    }

    /// The index in the root of a candidate for a leaf. `bytes` counts what is read.
    fn place(&self, memory: &dyn Memory, leaf: u64, page: &dyn Fn(u64) -> Option<u64>, bytes: &mut u64) -> Option<u64> {
        let (mut runs, mut tried) = (Vec::new(), 0);
        let end = leaf.checked_add(8 * self.leaf)?;
        memory.resident(leaf & !4095..end.checked_next_multiple_of(4096)?, &mut runs);
        for run in runs {
            let (first, stop) = (run.range.start.max(leaf), run.range.end.min(end));
            for piece in (first..stop).step_by(PIECE) {
                let range = piece..stop.min(piece + PIECE as u64);
                *bytes += range.end - range.start;
                for (at, word) in words(memory, range) {
                    if word == 0 {
                        continue;
                    }
                    if let Some(number) = page(word).filter(|number| number % self.leaf == (at - leaf) / 8) {
                        return Some(number / self.leaf).filter(|place| *place < self.root);
                    }
                    tried += 1;
                    if tried == WORDS {
                        return None;
                    }
                }
            }
        }
        None
    }

    /// Calls `see` with each leaf and with each word in it. Words that equal the one before are left out. A leaf counts
    /// once: further pointers to it are left out.
    pub fn each(&self, memory: &dyn Memory, mappings: &[Mapping], root: u64, see: &mut dyn FnMut(Seen)) {
        let (mut runs, mut leaves) = (Vec::new(), HashSet::new());
        let end = root + 8 * self.root;
        memory.resident(root & !4095..end.next_multiple_of(4096), &mut runs);
        for run in runs {
            for (at, leaf) in words(memory, run.range.start.max(root)..run.range.end.min(end)) {
                if !self.is_leaf(mappings, leaf) || !leaves.insert(leaf) {
                    continue;
                }
                see(Seen::Leaf(leaf));
                self.words(memory, leaf, (at - root) / 8 * self.leaf, see);
            }
        }
    }

    fn words(&self, memory: &dyn Memory, leaf: u64, first: u64, see: &mut dyn FnMut(Seen)) {
        let Some(end) = leaf.checked_add(8 * self.leaf) else { return };
        let (mut runs, mut before) = (Vec::new(), 0);
        memory.resident(leaf & !4095..end.next_multiple_of(4096), &mut runs);
        for run in runs {
            for (at, word) in words(memory, run.range.start.max(leaf)..run.range.end.min(end)) {
                if word != before && word != 0 {
                    see(Seen::Word { page: first + (at - leaf) / 8, word });
                }
                before = word;
            }
        }
    }
}

/// A leaf or a word of a tree.
pub enum Seen {
    /// A leaf, at that address.
    Leaf(u64),
    /// A word of a leaf.
    Word {
        /// Its page number.
        page: u64,
        /// The word.
        word: u64,
    },
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
