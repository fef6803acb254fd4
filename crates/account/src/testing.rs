//! Shared by tests.

use crate::seen::{Figures, Mapping};

/// A private mapping that may be read and written, all of it resident and its own.
pub fn mapping(start: u64, bytes: u64, name: &str) -> Mapping {
    let figures = Figures { rss: bytes, pss: bytes, private_dirty: bytes, anonymous: bytes, ..Figures::default() };
    let inode = u64::from(name.starts_with('/'));
    Mapping {
        range: start..start + bytes,
        read: true,
        write: true,
        name: name.to_owned(),
        inode,
        figures,
        ..Mapping::default()
    }
}
