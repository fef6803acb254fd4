//! Reads the kernel's files: bare system calls, buffers of fixed size, no file stays open.

use crate::system::lines::{Lines, number};
use neap_core::text::Text;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read};

/// Bytes of the longest path. Paths of container managers have some 250. A longer path is cut to that of an outer
/// cgroup that fits, see [`push_groups`].
pub(super) const ROOM: usize = 512;

/// Room in front of a path and behind it: the root of a test, a file name and the NUL.
const MARGIN: usize = 256;

/// Bytes of a read, and limit of bytes of a line that are examined. Lines of mountinfo may be long by their options,
/// but those of cgroups are short. One read of memory.stat and of /proc/meminfo has all that is needed.
pub(super) const LINE: usize = 1024;

/// The path of a directory, without a file name.
pub(super) type Path = Text<{ ROOM + 1 }>;

/// Adds a path of cgroups that is empty or starts with `/`. Where it does not fit, inner cgroups are left out.
pub(super) fn push_groups(path: &mut Path, mut groups: &[u8]) {
    while !path.append(groups) {
        groups = parent(groups);
    }
}

/// Buffers for what is read.
#[derive(Debug)]
pub(super) struct Buffers {
    pub line: [u8; LINE],
    /// The cgroup of the process, and where a mount lies.
    pub own: Path,
    pub point: Path,
}

impl Buffers {
    /// Empty buffers.
    pub(super) const fn new() -> Buffers {
        Buffers { line: [0; LINE], own: Path::new(), point: Path::new() }
    }
}

/// The path without its last component; empty where there is none.
pub(super) fn parent(path: &[u8]) -> &[u8] {
    let cut = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
    path.get(..cut).unwrap_or_default()
}

/// The files of the system; of a tree of fixtures in tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files<'a> {
    /// Prefix of every path.
    pub root: &'a [u8],
}

impl Files<'_> {
    #[inline(never)]
    fn open(self, dir: &[u8], name: &[u8]) -> Option<OwnedFd> {
        let mut path = Text::<{ ROOM + MARGIN }>::new();
        let fits = [self.root, dir, b"/", name].into_iter().all(|part| path.append(part));
        let path = path.c_str().filter(|_| fits)?;
        // NONBLOCK: the file may be of any kind, also a pipe on which a reader would wait.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        openat(CWD, path, flags, Mode::empty()).ok()
    }

    /// The start of a short file.
    pub(super) fn read<'b>(self, dir: &[u8], name: &[u8], buffer: &'b mut [u8; 64]) -> Option<&'b [u8]> {
        let file = self.open(dir, name)?;
        let len = read_some(&file, buffer)?;
        buffer.get(..len)
    }

    /// The number at the start of a file.
    pub(super) fn number(self, dir: &[u8], name: &[u8]) -> Option<u64> {
        self.read(dir, name, &mut [0; 64]).and_then(number)
    }

    /// The lines of a file of any length, in `buffer`.
    pub(super) fn lines<'b>(
        self,
        dir: &[u8],
        name: &[u8],
        buffer: &'b mut [u8; LINE],
    ) -> Option<Lines<'b, impl FnMut(&mut [u8]) -> usize + use<>>> {
        let file = self.open(dir, name)?;
        Some(Lines::new(buffer, move |buffer: &mut [u8]| read_some(&file, buffer).unwrap_or(0)))
    }
}

/// One read; 0 bytes at the end. `None` where it fails.
fn read_some(file: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    // Signals do not interrupt reads of the kernel's files, but may interrupt those of a container's own file systems.
    // A storm of signals must not keep an allocating thread here.
    for _ in 0..4 {
        match read(file, &mut *buffer) {
            Ok(n) => return Some(n),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a path that is cut within a name, which may be another cgroup's.
    #[test]
    fn paths_that_do_not_fit_are_cut_between_names() {
        let mut path = Path::new();
        assert!(path.append(b"/sys/fs/cgroup"));
        let deep: Vec<u8> = (0..100).flat_map(|i| format!("/group{i:02}").into_bytes()).collect();
        push_groups(&mut path, &deep);
        let groups = (ROOM - 14) / 8;
        assert_eq!(path.bytes(), [b"/sys/fs/cgroup", &deep[..groups * 8]].concat());

        let mut path = Path::new();
        push_groups(&mut path, &[b'/'; ROOM + 1]);
        assert_eq!(path.bytes().len(), ROOM);
        assert!(!path.push(b'x'));
    }

    /// Catches a panic or a wait where there is no file that can be read.
    #[test]
    fn what_is_no_file_reads_as_nothing() {
        let files = Files { root: b"" };
        let mut buffer = [0; 64];
        assert_eq!(files.read(b"/proc", b"no such file", &mut buffer), None);
        assert_eq!(files.read(b"/proc", b"self", &mut buffer), None, "a directory");
        assert_eq!(files.read(&[b'x'; ROOM], &[b'y'; MARGIN], &mut buffer), None, "too long");
        assert_eq!(files.read(b"/proc", b"self/\0stat", &mut buffer), None, "a NUL inside");
        let mut room = [0; LINE];
        assert!(files.lines(b"/proc/self", b"mountinfo", &mut room).is_some_and(|mut l| l.next().is_some()));
    }
}
