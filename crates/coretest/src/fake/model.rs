//! A model of the address space that a fake system has handed out: pieces that do not overlap, each with one kind of
//! access.

use std::collections::BTreeMap;

/// The permitted uses of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None until it is committed.
    Reserved,
    /// Reading zeros; writing once it is committed.
    Zeros,
    /// Reading and writing; it lies in a reservation.
    Committed,
    /// Reading and writing; it is a mapping for a huge block, or the part of one that is left.
    Mapped,
    /// None for ever: another thread may have mapped something there.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    end: usize,
    access: Access,
    /// Number of the call that made it: a range never spans pieces of two calls.
    origin: u64,
}

/// All pieces by start. Invariant: they do not overlap, and neighbours differ in access or origin.
#[derive(Debug, Default)]
pub struct Model {
    pieces: BTreeMap<usize, Piece>,
    origins: u64,
    taken: usize,
}

impl Model {
    /// Number of bytes in all pieces.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Number of bytes of all pieces with this access.
    pub fn bytes(&self, access: Access) -> usize {
        self.pieces.iter().filter(|(_, piece)| piece.access == access).map(|(from, piece)| piece.end - from).sum()
    }

    /// Every piece as `(from, to)`.
    pub fn all(&self) -> impl Iterator<Item = (usize, usize)> {
        self.pieces.iter().map(|(&from, piece)| (from, piece.end))
    }

    /// Every piece that can be written, as `(from, to)`.
    pub fn writable(&self) -> impl Iterator<Item = (usize, usize)> {
        let writable = |piece: &Piece| matches!(piece.access, Access::Committed | Access::Mapped);
        self.pieces.iter().filter(move |(_, piece)| writable(piece)).map(|(&from, piece)| (from, piece.end))
    }

    /// The piece that `address` lies in.
    fn at(&self, address: usize) -> Option<(usize, Piece)> {
        let (&start, &piece) = self.pieces.range(..=address).next_back()?;
        (piece.end > address).then_some((start, piece))
    }

    /// Adds a new reservation or mapping.
    pub fn add(&mut self, from: usize, len: usize, access: Access) {
        let next = self.pieces.range(from..).next();
        let free = self.at(from).is_none() && next.is_none_or(|(&start, _)| start >= from + len);
        assert!(free, "the kernel handed out {from:#x} (+ {len:#x}) twice");
        self.origins += 1;
        self.pieces.insert(from, Piece { end: from + len, access, origin: self.origins });
        self.taken += len;
    }

    /// Whether the whole range was handed out with this access.
    pub fn is(&self, from: usize, len: usize, access: Access) -> bool {
        let mut address = from;
        while address < from + len {
            match self.at(address) {
                Some((_, piece)) if piece.access == access => address = piece.end,
                _ => return false,
            }
        }
        true
    }

    /// Panics unless the whole range has one origin, and an access of `allowed`.
    pub fn require(&self, what: &str, from: usize, len: usize, allowed: &[Access]) {
        let (mut address, mut origin) = (from, None);
        while address < from + len {
            let Some((_, piece)) = self.at(address) else {
                panic!("{what}({from:#x}, {len:#x}): nothing was handed out at {address:#x}");
            };
            assert!(
                allowed.contains(&piece.access),
                "{what}({from:#x}, {len:#x}): {:?} at {address:#x}, not {allowed:?}",
                piece.access
            );
            assert!(
                origin.is_none_or(|o| o == piece.origin),
                "{what}({from:#x}, {len:#x}): crosses from one reservation to the next at {address:#x}"
            );
            origin = Some(piece.origin);
            address = piece.end;
        }
    }

    /// Panics unless the range is a mapping for a huge block, or the tail of one.
    pub fn require_mapping(&self, what: &str, from: usize, len: usize) {
        self.require(what, from, len, &[Access::Mapped]);
        let end = self.at(from).map(|(_, piece)| piece.end);
        assert_eq!(end, Some(from + len), "{what}({from:#x}, {len:#x}): not up to the mapping's end");
    }

    /// Panics unless the range is exactly a mapping for a huge block.
    pub fn require_whole_mapping(&self, what: &str, from: usize, len: usize) {
        self.require_mapping(what, from, len);
        let start = self.at(from).map(|(start, _)| start);
        assert_eq!(start, Some(from), "{what}({from:#x}, {len:#x}): not the mapping's start");
    }

    /// Cuts the piece around `address` in two.
    fn cut(&mut self, address: usize) {
        if let Some((start, piece)) = self.at(address)
            && start < address
        {
            self.pieces.insert(start, Piece { end: address, ..piece });
            self.pieces.insert(address, piece);
        }
    }

    /// Sets the access of a range, all of which was handed out.
    pub fn set(&mut self, from: usize, len: usize, access: Access) {
        let to = from + len;
        self.cut(from);
        self.cut(to);
        for (_, piece) in self.pieces.range_mut(from..to) {
            piece.access = access;
        }
        // Join equal neighbours again: those inside, and those at both ends.
        let starts: Vec<usize> = self.pieces.range(from..=to).map(|(&start, _)| start).collect();
        for start in starts {
            let Some((&before, &left)) = self.pieces.range(..start).next_back() else { continue };
            let right = self.pieces[&start];
            if left.end == start && left.access == right.access && left.origin == right.origin {
                self.pieces.remove(&start);
                self.pieces.insert(before, Piece { end: right.end, ..left });
            }
        }
    }

    /// Removes a range, all of which was handed out.
    pub fn remove(&mut self, from: usize, len: usize) {
        self.cut(from);
        self.cut(from + len);
        let starts: Vec<usize> = self.pieces.range(from..from + len).map(|(&start, _)| start).collect();
        for start in starts {
            self.pieces.remove(&start);
        }
        self.taken -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a model that loses pieces when they are cut, joined or removed.
    #[test]
    fn cuts_and_joins() {
        let mut m = Model::default();
        m.add(0x1000, 0x8000, Access::Reserved);
        m.set(0x2000, 0x2000, Access::Committed);
        assert_eq!(m.all().count(), 3);
        m.set(0x4000, 0x1000, Access::Committed);
        assert_eq!(m.all().collect::<Vec<_>>(), [(0x1000, 0x2000), (0x2000, 0x5000), (0x5000, 0x9000)]);
        m.require("test", 0x2000, 0x3000, &[Access::Committed]);
        m.set(0x1000, 0x8000, Access::Committed);
        assert_eq!(m.all().count(), 1);
        m.remove(0x8000, 0x1000);
        assert_eq!((m.taken(), m.all().next()), (0x7000, Some((0x1000, 0x8000))));
    }

    /// Catches a check that accepts a range with memory that was never handed out.
    #[test]
    #[should_panic(expected = "nothing was handed out")]
    fn refuses_a_gap() {
        let mut m = Model::default();
        m.add(0x1000, 0x1000, Access::Committed);
        m.require("test", 0x1000, 0x2000, &[Access::Committed]);
    }

    /// Catches a check that accepts a commit across the border of two reservations.
    #[test]
    #[should_panic(expected = "crosses")]
    fn refuses_two_reservations() {
        let mut m = Model::default();
        m.add(0x1000, 0x1000, Access::Reserved);
        m.add(0x2000, 0x1000, Access::Reserved);
        m.require("test", 0x1000, 0x2000, &[Access::Reserved]);
    }
}
