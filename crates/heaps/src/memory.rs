//! What the caller provides: memory, the list of mappings, and the files in them.

use memchr::memmem::Finder;
use std::ops::Range;

/// Memory of a process, or a recording of it.
pub trait Memory: Sync {
    /// Copies memory: all of it, or none.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable>;

    /// Appends the parts of `range` (whole OS pages) that are resident or swapped out, in order, without overlaps and
    /// without the kernel's zero page. An implementation that does not know appends nothing.
    fn resident(&self, range: Range<u64>, into: &mut Vec<Run>);

    /// Whether the caller's limit is reached: from then on reads fail, and walks end soon.
    fn is_over(&self) -> bool {
        false
    }

    /// Bytes of an OS page: a power of two.
    fn page_size(&self) -> u64 {
        4096
    }
}

/// OS pages in the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where: whole OS pages.
    pub range: Range<u64>,
    /// Whether they are swapped out instead of resident.
    pub swapped: bool,
}

/// No memory at that address, or the process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// A mapping of a process, as a line of `/proc/PID/maps` states it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Where.
    pub range: Range<u64>,
    /// `r`.
    pub readable: bool,
    /// `w`.
    pub writable: bool,
    /// `x`.
    pub executable: bool,
    /// `p` instead of `s`.
    pub private: bool,
    /// Offset in the file.
    pub offset: u64,
    /// The last column, without ` (deleted)`; none if that is empty.
    pub name: Option<String>,
}

impl Mapping {
    /// The path of the file that is mapped; none if the mapping is anonymous.
    pub fn file(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| name.starts_with('/'))
    }

    /// Whether it is private anonymous memory that the program may write, except the kernel's `[stack]`.
    pub fn is_anonymous(&self) -> bool {
        let is_anonymous = |name: &str| name.starts_with("[anon:") || name == "[heap]";
        self.private && self.readable && self.writable && self.name.as_deref().is_none_or(is_anonymous)
    }
}

/// The mapped files. They are read instead of the process's memory, which would grow by being read.
pub trait Files {
    /// Copies bytes of the file behind `mapping`, from `offset` in the file on; returns their number.
    fn read(&self, mapping: &Mapping, offset: u64, into: &mut [u8]) -> usize;

    /// The first position of `text` in the file, if it contains it. An implementation may cache answers, because
    /// processes share files.
    fn find(&self, mapping: &Mapping, text: &[u8]) -> Result<Option<u64>, Unreadable> {
        find(self, mapping, text)
    }
}

/// Bytes of one read of a file.
pub(crate) const PIECE: usize = 1 << 20;

/// The first position of `text` in the file behind `mapping`.
pub fn find<F: Files + ?Sized>(files: &F, mapping: &Mapping, text: &[u8]) -> Result<Option<u64>, Unreadable> {
    let (mut piece, mut at) = (vec![0; PIECE], 0);
    let finder = Finder::new(text);
    loop {
        let got = files.read(mapping, at, &mut piece).min(PIECE);
        let bytes = &piece[..got];
        if at == 0 && bytes.is_empty() {
            return Err(Unreadable);
        }
        if let Some(place) = finder.find(bytes) {
            return Ok(Some(at + place as u64));
        }
        if bytes.len() < text.len() {
            return Ok(None);
        }
        // The text may cross the end of a piece.
        at += (bytes.len() - text.len() + 1) as u64;
    }
}

/// No files can be read: heaps are found by structure alone, and without their versions.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _: &Mapping, _: u64, _: &mut [u8]) -> usize {
        0
    }
}
