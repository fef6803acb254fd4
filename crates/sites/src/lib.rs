//! The file in which a process under neap records its allocations for an outside reader: its layout, its parser, and
//! the unwinder that finds the callers.
//!
//! When the option `sites` names a directory, `libneap.so` creates one file in it for each process image (`PID.N`, N
//! from 0, the first name that is free) and maps it shared: a [`Header`], then [`CAPACITY`] slots of [`ENTRY_BYTES`]
//! bytes, a ring. A forked child makes a file of its own when it allocates. All values are in the byte order of the
//! machine.
//!
//! **The ring.** A writer claims the number of its entry by one addition to [`Header::head`], and writes the entry into
//! the slot `number % CAPACITY`. It does not wait for readers: what is not read in time is overwritten. An entry begins
//! with a check over its number and all its words ([`Entry::decode`]), which distinguishes a complete entry from one
//! that is being written, was overwritten, or is a mixture of two, without synchronisation between writer and reader.
//! [`Cursor`] reads a ring while it is being written, and counts what it lost.
//!
//! | file | holds |
//! |---|---|
//! | `lib.rs` | the layout |
//! | `entry.rs` | one entry, as words |
//! | `cursor.rs` | the reader's place in a ring |
//! | `unwind.rs` | from an instruction to its caller, by the tables of `.eh_frame` |
//!
//! Everything is pure: nothing allocates, and nothing panics, whatever the bytes are. May depend on nothing.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod cursor;
mod entry;
pub mod unwind;

pub use cursor::{Cursor, Ring};
pub use entry::{ENTRY_BYTES, Entry, FRAMES, WORDS};

use core::fmt;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// First eight bytes of the file: `neapsit\0`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"neapsit\0");
/// Version of the layout; a reader refuses any other.
pub const VERSION: u32 = 1;
/// Bytes before the first slot.
pub const HEADER_BYTES: usize = 4096;
/// Number of slots.
pub const CAPACITY: u64 = 1 << 15;
/// Bytes of a file: 8 MiB and the header. Unwritten parts take no memory.
pub const FILE_BYTES: usize = HEADER_BYTES + CAPACITY as usize * ENTRY_BYTES;

const _: () = assert!(CAPACITY.is_power_of_two(), "a slot is found with a mask");
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES, "the header is as long as its place");

/// The beginning of the file.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`], written last when the file is set up.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// The process that writes it, by its number in its own pid namespace.
    pub pid: AtomicU32,
    /// Mean bytes between two recorded allocations; 1: all are recorded.
    pub interval: AtomicU64,
    /// Number of claimed entries.
    pub head: AtomicU64,
    /// Allocations that were not recorded because there was no memory for the file.
    pub lost: AtomicU64,
}

/// The values of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// See [`Header::pid`].
    pub pid: u32,
    /// See [`Header::interval`].
    pub interval: u64,
    /// See [`Header::head`].
    pub head: u64,
    /// See [`Header::lost`].
    pub lost: u64,
}

/// Why bytes are no valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Not such a file, or one that is not set up yet.
    Foreign,
    /// A layout of another version.
    Version(u32),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("not a file of allocation sites"),
            Self::Version(version) => write!(f, "allocation sites of version {version}"),
        }
    }
}

impl core::error::Error for Unreadable {}

impl Head {
    /// Reads the beginning of a file.
    pub fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        let word = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let half = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        if word(offset_of!(Header, magic)) != Some(MAGIC) {
            return Err(Unreadable::Foreign);
        }
        match half(offset_of!(Header, version)) {
            Some(VERSION) => {}
            version => return Err(version.map_or(Unreadable::Foreign, Unreadable::Version)),
        }
        let head = || {
            Some(Self {
                pid: half(offset_of!(Header, pid))?,
                interval: word(offset_of!(Header, interval))?,
                head: word(offset_of!(Header, head))?,
                lost: word(offset_of!(Header, lost))?,
            })
        };
        head().ok_or(Unreadable::Foreign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn header() -> Vec<u8> {
        let mut bytes = vec![0; size_of::<Header>()];
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[12..16].copy_from_slice(&7u32.to_ne_bytes());
        for (at, value) in [(16, 512u64), (24, 40_000), (32, 3)] {
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    /// Catches values that come from another field, and other files that are accepted.
    #[test]
    fn headers() {
        assert_eq!(Head::parse(&header()), Ok(Head { pid: 7, interval: 512, head: 40_000, lost: 3 }));
        for end in 0..size_of::<Header>() {
            assert_eq!(Head::parse(&header()[..end]), Err(Unreadable::Foreign), "{end}");
        }
        let mut newer = header();
        newer[8] = 9;
        assert_eq!(Head::parse(&newer), Err(Unreadable::Version(9)));
        assert_eq!(Head::parse(&[0; 64]), Err(Unreadable::Foreign));
    }

    /// Catches fuzzing seeds that the target rejects.
    #[test]
    fn seeds_of_the_fuzzer() {
        let seed = |name: &str| {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/sites").join(name);
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        assert!(Head::parse(&seed("header")).is_ok());
        let bytes = seed("tables");
        let tables = unwind::Tables { start: 0x1000, bytes: &bytes, header: 0x1000 };
        assert!((0..0x1000).any(|ip| tables.row(ip).is_some()));
    }
}
