//! What the caller provides: memory, the list of mappings, and the files in them.

use memchr::memmem::Finder;
use std::ops::Range;

/// Memory of a process, or a recording of it.
pub trait Memory: Sync {
    /// Copies memory: all of it, or none.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable>;

    /// Appends the parts of `range` (whole OS pages) that hold memory, in order, without overlaps. What the process never
    /// touched or gave back is left out; the kernel's page of zeros is too. An implementation that cannot tell appends
    /// nothing.
    fn resident(&self, range: Range<u64>, into: &mut Vec<Run>);

    /// Whether no more is to be read, because the caller has set a limit: reads fail from then on, and walks end soon.
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
    /// The last column, without ` (deleted)`; none where that is empty.
    pub name: Option<String>,
}

impl Mapping {
    /// The path of the file that is mapped; none if the mapping is anonymous.
    pub fn file(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| name.starts_with('/'))
    }

    /// Whether it is private anonymous memory that the program may write, stacks of the kernel's making left out.
    pub fn is_anonymous(&self) -> bool {
        let is_anonymous = |name: &str| name.starts_with("[anon:") || name == "[heap]";
        self.private && self.readable && self.writable && self.name.as_deref().is_none_or(is_anonymous)
    }
}

/// The files that are mapped: read instead of the memory of the process, which is not to grow by being looked at.
pub trait Files {
    /// Copies bytes of the file behind `mapping`, from `offset` in the file on; how many there were.
    fn read(&self, mapping: &Mapping, offset: u64, into: &mut [u8]) -> usize;

    /// The first place of `text` in the file, if it has it. An implementation may remember answers, because processes
    /// share files.
    fn find(&self, mapping: &Mapping, text: &[u8]) -> Result<Option<u64>, Unreadable> {
        find(self, mapping, text)
    }
}

/// Bytes of a file that are read at once.
pub(crate) const PIECE: usize = 1 << 20;

/// The first place of `text` in the file behind `mapping`.
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
        // The text may lie across the end of a piece.
        at += (bytes.len() - text.len() + 1) as u64;
    }
}

/// Where the files cannot be read: heaps are found by structure alone, and versions are not named.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _: &Mapping, _: u64, _: &mut [u8]) -> usize {
        0
    }
}
