//! How many OS pages of a binary a program touches, and how many it would touch if functions and data were packed.
//!
//! A function that was entered counts with all its bytes. A function or an object takes its size, rounded up to its
//! alignment: the largest power of two that divides its address, at most 64 bytes and at most that of its section.
//! Windows are computed from link-time addresses: those in a process differ unless it is loaded at a multiple of 64
//! KiB.

use std::collections::{BTreeMap, BTreeSet};

use crate::binary::{Binary, Kind, PAGE, pages};
use crate::trace::Trace;

/// Number of OS pages in the aligned window that the kernel by default maps around a fault that reads a file.
pub const WINDOW: u64 = 16;

/// Bytes that a program touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Their kind.
    pub kind: Kind,
    /// Link-time address of the first.
    pub address: u64,
    /// Their number.
    pub size: u64,
    /// In bytes, a power of two.
    pub align: u64,
    /// Whether they are written.
    pub write: bool,
}

/// The figures of one kind, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// OS pages that are touched.
    pub pages: u64,
    /// Faults if each OS page causes one.
    pub faults: u64,
    /// Faults if the kernel maps a window around each one that reads a file.
    pub faults_around: u64,
}

/// The figures of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Functions and objects.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
    /// In the binary as it is.
    pub now: Layout,
    /// If they were adjacent.
    pub packed: Layout,
}

/// What a program touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// By kind; kinds without pieces are missing.
    pub kinds: BTreeMap<Kind, Line>,
    /// The sum. An OS page with two kinds counts for both.
    pub total: Line,
    /// Functions and data of the trace that lie in no section of the binary.
    pub outside: u64,
}

impl Estimate {
    /// From a trace of this build.
    pub fn of(trace: &Trace, binary: &Binary) -> Self {
        // A function without a size (`.init`) has code all the same.
        let functions = trace.functions.iter().map(|function| (function.address, function.size.max(1), false));
        let data = trace.data.iter().map(|data| (data.address, data.size, data.write));
        let (mut pieces, mut outside) = (Vec::new(), 0);
        for (address, size, write) in functions.chain(data) {
            match binary.section_at(address) {
                None => outside += 1,
                Some(section) => {
                    let align = (1 << address.trailing_zeros().min(6)).min(section.align);
                    pieces.push(Piece { kind: section.kind, address, size, align, write });
                }
            }
        }
        Self { outside, ..Self::of_pieces(&pieces) }
    }

    /// From pieces.
    pub fn of_pieces(pieces: &[Piece]) -> Self {
        let mut estimate = Self::default();
        for kind in Kind::ALL {
            let of_kind: Vec<&Piece> = pieces.iter().filter(|piece| piece.kind == kind && piece.size > 0).collect();
            if of_kind.is_empty() {
                continue;
            }
            let line = line(kind, &of_kind);
            estimate.total.add(&line);
            estimate.kinds.insert(kind, line);
        }
        estimate
    }
}

fn line(kind: Kind, pieces: &[&Piece]) -> Line {
    let (mut written, mut read) = (BTreeSet::new(), BTreeSet::new());
    // In the best order, written data is apart from data that is only read.
    let (mut packed_written, mut packed_read) = (0, 0);
    for piece in pieces {
        let (set, packed) =
            if piece.write { (&mut written, &mut packed_written) } else { (&mut read, &mut packed_read) };
        set.extend(pages(piece.address, piece.size));
        *packed += piece.size.next_multiple_of(piece.align);
    }
    read.retain(|page| !written.contains(page));
    let windows: BTreeSet<u64> = read.iter().map(|page| page / WINDOW).collect();
    let now = layout(kind, written.len() as u64, read.len() as u64, windows.len() as u64);
    let all = (packed_written + packed_read).div_ceil(PAGE);
    let written = packed_written.div_ceil(PAGE);
    let read = all.saturating_sub(written);
    let packed = layout(kind, written, read, read.div_ceil(WINDOW));
    Line { pieces: pieces.len() as u64, bytes: pieces.iter().map(|piece| piece.size).sum(), now, packed }
}

/// Each written OS page of a file becomes a copy of its own, without fault-around; so does a zero page, read or
/// written.
fn layout(kind: Kind, written: u64, read: u64, windows: u64) -> Layout {
    let pages = written + read;
    let around = if kind == Kind::Bss { pages } else { written + windows };
    Layout { pages, faults: pages, faults_around: around }
}

impl Line {
    fn add(&mut self, other: &Line) {
        self.pieces += other.pieces;
        self.bytes += other.bytes;
        for (own, other) in [(&mut self.now, other.now), (&mut self.packed, other.packed)] {
            own.pages += other.pages;
            own.faults += other.faults;
            own.faults_around += other.faults_around;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(kind: Kind, page: u64, size: u64, write: bool) -> Piece {
        Piece { kind, address: page * PAGE, size, align: 16, write }
    }

    /// Catches OS pages that are counted twice or not at all, and windows that are not aligned.
    #[test]
    fn arithmetic() {
        let layout = |pages, faults_around| Layout { pages, faults: pages, faults_around };
        for (pieces, now, packed) in [
            (vec![], layout(0, 0), layout(0, 0)),
            (vec![piece(Kind::Text, 3, 100, false)], layout(1, 1), layout(1, 1)),
            (vec![piece(Kind::Text, 3, 2 * PAGE + 1, false)], layout(3, 1), layout(3, 1)),
            ((0..40).map(|n| piece(Kind::Text, 2 * n, 100, false)).collect(), layout(40, 5), layout(2, 1)),
            ((0..40).map(|n| piece(Kind::Bss, 2 * n, 100, false)).collect(), layout(40, 40), layout(2, 2)),
            ((0..40).map(|n| piece(Kind::Data, 2 * n, 100, true)).collect(), layout(40, 40), layout(2, 2)),
            (vec![piece(Kind::Text, 15, PAGE + 1, false)], layout(2, 2), layout(2, 1)),
            (vec![piece(Kind::Data, 1, 8, false), piece(Kind::Data, 1, 8, true)], layout(1, 1), layout(1, 1)),
            (vec![piece(Kind::Text, 1, 8, false), piece(Kind::Data, 9, 8, true)], layout(2, 2), layout(2, 2)),
        ] {
            let total = Estimate::of_pieces(&pieces).total;
            assert_eq!((total.now, total.packed), (now, packed), "{pieces:?}");
        }
    }
}
