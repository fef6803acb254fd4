//! From the bytes of a page to its values.

use crate::{Counters, FILE_BYTES, Gauges, MAGIC, Syscall, is_readable};
use core::fmt;
use core::mem::offset_of;

/// Why bytes are no counters page that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Not the bytes of a counters page, or one that is not set up yet.
    Foreign,
    /// A layout of another major version, which is given.
    Version(u32),
    /// Its writer was in the middle of an update.
    Torn,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Foreign => f.write_str("not a counters page"),
            Unreadable::Version(v) => write!(f, "a counters page of version {}.{}", v >> 16, v & 0xffff),
            Unreadable::Torn => f.write_str("an update is under way"),
        }
    }
}

impl core::error::Error for Unreadable {}

/// The values of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Version of the writer's layout.
    pub version: u32,
    /// The process that writes the page; 0: unknown.
    pub pid: u32,
    /// Whether calls are counted, so that the next values mean something.
    pub exact: bool,
    /// Blocks handed out.
    pub blocks_allocated: u64,
    /// Bytes handed out.
    pub bytes_allocated: u64,
    /// Blocks freed.
    pub blocks_freed: u64,
    /// Bytes freed.
    pub bytes_freed: u64,
    /// Live blocks from before.
    pub blocks_inherited: u64,
    /// Bytes of those.
    pub bytes_inherited: u64,
    /// System calls by kind, in the order of [`Syscall::ALL`].
    pub syscalls: [u64; Syscall::ALL.len()],
    /// Updates of the gauges so far; at 0 all of them are 0.
    pub updates: u64,
    /// The gauges. Those that the writer does not know are 0.
    pub gauges: Gauges,
}

fn u32_at(page: &[u8; FILE_BYTES], at: usize) -> u32 {
    u32::from_ne_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
}

fn u64_at(page: &[u8; FILE_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&page[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

impl Snapshot {
    /// Reads a page that is no longer written, or two copies of one that is written: they were made one after the
    /// other, `before` and `page`, and agree where no update came between.
    pub fn parse(before: &[u8; FILE_BYTES], page: &[u8; FILE_BYTES]) -> Result<Self, Unreadable> {
        const SEQUENCE: usize = offset_of!(Counters, sequence);
        let snapshot = Self::parse_still(page)?;
        let gauges = offset_of!(Counters, gauges)..size_of::<Counters>();
        let agree = u64_at(before, SEQUENCE) == u64_at(page, SEQUENCE) && before[gauges.clone()] == page[gauges];
        if !agree || u64_at(page, SEQUENCE) % 2 == 1 {
            return Err(Unreadable::Torn);
        }
        Ok(snapshot)
    }

    /// Reads a page as it stands. Where its writer was stopped in the middle of an update, some gauges are newer than
    /// others.
    pub fn parse_still(page: &[u8; FILE_BYTES]) -> Result<Self, Unreadable> {
        if u64_at(page, offset_of!(Counters, magic)) != MAGIC {
            return Err(Unreadable::Foreign);
        }
        let version = u32_at(page, offset_of!(Counters, version));
        if !is_readable(version) {
            return Err(Unreadable::Version(version));
        }
        let size = u32_at(page, offset_of!(Counters, size)) as usize;
        let word = |at: usize| if at + 8 <= size { u64_at(page, at) } else { 0 };
        Ok(Snapshot {
            version,
            pid: u32_at(page, offset_of!(Counters, pid)),
            exact: u32_at(page, offset_of!(Counters, exact)) != 0,
            blocks_allocated: word(offset_of!(Counters, blocks_allocated)),
            bytes_allocated: word(offset_of!(Counters, bytes_allocated)),
            blocks_freed: word(offset_of!(Counters, blocks_freed)),
            bytes_freed: word(offset_of!(Counters, bytes_freed)),
            blocks_inherited: word(offset_of!(Counters, blocks_inherited)),
            bytes_inherited: word(offset_of!(Counters, bytes_inherited)),
            syscalls: core::array::from_fn(|i| word(offset_of!(Counters, syscalls) + 8 * i)),
            updates: word(offset_of!(Counters, sequence)) / 2,
            gauges: Gauges::from_words(core::array::from_fn(|i| word(offset_of!(Counters, gauges) + 8 * i))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MINOR, VERSION};

    fn page() -> [u8; FILE_BYTES] {
        let mut page = [0; FILE_BYTES];
        put32(&mut page, offset_of!(Counters, version), VERSION);
        put32(&mut page, offset_of!(Counters, pid), 41);
        put32(&mut page, offset_of!(Counters, size), size_of::<Counters>() as u32);
        put(&mut page, offset_of!(Counters, magic), MAGIC);
        put(&mut page, offset_of!(Counters, sequence), 6);
        for i in 0..Gauges::COUNT {
            put(&mut page, offset_of!(Counters, gauges) + 8 * i, 100 + i as u64);
        }
        page
    }

    fn put(page: &mut [u8], at: usize, value: u64) {
        page[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    fn put32(page: &mut [u8], at: usize, value: u32) {
        page[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    /// Catches values that come from another field.
    #[test]
    fn values_are_found() {
        let s = Snapshot::parse(&page(), &page()).unwrap();
        assert_eq!((s.pid, s.updates, s.exact), (41, 3, false));
        assert_eq!(s.gauges.updated, 100);
        assert_eq!(s.gauges.hugetlb, 99 + Gauges::COUNT as u64);
    }

    /// Catches a reader that mixes two updates.
    #[test]
    fn torn_pages_are_refused() {
        let mut later = page();
        put(&mut later, offset_of!(Counters, sequence), 8);
        assert_eq!(Snapshot::parse(&page(), &later), Err(Unreadable::Torn));
        put(&mut later, offset_of!(Counters, sequence), 7);
        assert_eq!(Snapshot::parse(&later, &later), Err(Unreadable::Torn));
        assert!(Snapshot::parse_still(&later).is_ok());
        let mut other = page();
        put(&mut other, offset_of!(Counters, gauges) + 8, 0);
        assert_eq!(Snapshot::parse(&page(), &other), Err(Unreadable::Torn));
    }

    /// Catches a reader that refuses pages with more fields, or takes what is not there for values.
    #[test]
    fn minor_versions_are_read() {
        let mut newer = page();
        put32(&mut newer, offset_of!(Counters, version), VERSION + 1);
        put32(&mut newer, offset_of!(Counters, size), size_of::<Counters>() as u32 + 64);
        assert!(Snapshot::parse(&newer, &newer).is_ok());
        let mut older = page();
        put32(&mut older, offset_of!(Counters, size), size_of::<Counters>() as u32 - 8);
        assert_eq!(Snapshot::parse(&older, &older).unwrap().gauges.hugetlb, 0);
        let mut other = page();
        put32(&mut other, offset_of!(Counters, version), VERSION - MINOR + (1 << 16));
        assert_eq!(Snapshot::parse(&other, &other), Err(Unreadable::Version(VERSION - MINOR + (1 << 16))));
        assert_eq!(Snapshot::parse_still(&[0; FILE_BYTES]), Err(Unreadable::Foreign));
    }
}
