//! Reading of the kernel's files: bare system calls, buffers of fixed size, no descriptor that stays open.

use core::ffi::CStr;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read};

/// Bytes of the longest path. cgroups of container managers have some 250; what is longer is cut to the cgroup around
/// it that fits, see [`Path::push_groups`].
pub(super) const ROOM: usize = 512;

/// Room in front of a path and behind it: the root of a test, a file name and the NUL.
const MARGIN: usize = 256;

/// Bytes of a line that are looked at, and of a read; a path fits as well. Lines of mountinfo may be as long as their
/// options; those of cgroups are short. What is needed of memory.stat and /proc/meminfo comes with one read.
pub(super) const LINE: usize = 1024;

const _: () = assert!(ROOM + MARGIN <= LINE, "a path is put together where lines are read");

/// A path, `len <= ROOM` bytes without NUL.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    len: usize,
    bytes: [u8; ROOM],
}

impl Path {
    /// No path.
    pub(super) const fn new() -> Path {
        Path { len: 0, bytes: [0; ROOM] }
    }

    /// Makes it no path.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// The bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.front(self.len)
    }

    /// The first `len` bytes.
    pub(super) fn front(&self, len: usize) -> &[u8] {
        self.bytes.get(..len.min(self.len)).unwrap_or_default()
    }

    /// Adds one byte. False if there is no room.
    pub(super) fn push(&mut self, byte: u8) -> bool {
        let Some(place) = self.bytes.get_mut(self.len) else { return false };
        *place = byte;
        self.len += 1;
        true
    }

    /// Adds all bytes, or none. False if there is no room.
    pub(super) fn extend(&mut self, bytes: impl Iterator<Item = u8>) -> bool {
        let old = self.len;
        for byte in bytes {
            if !self.push(byte) {
                self.len = old;
                return false;
            }
        }
        true
    }

    /// Adds a path of cgroups that is empty or starts with `/`; where it does not fit, as many of its cgroups from the
    /// outermost on as do.
    pub(super) fn push_groups(&mut self, mut groups: &[u8]) {
        while !self.extend(groups.iter().copied()) {
            groups = parent(groups);
        }
    }
}

/// Room for what is read.
#[derive(Debug)]
pub(super) struct Buffers {
    pub line: [u8; LINE],
    /// The cgroup of the process, and where a mount lies.
    pub own: Path,
    pub point: Path,
}

impl Buffers {
    /// Room.
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
    /// What stands before every path.
    pub root: &'a [u8],
}

impl Files<'_> {
    /// Opens a file, whose path is put together in `path`.
    fn open(self, dir: &[u8], name: &[u8], path: &mut [u8]) -> Option<OwnedFd> {
        let mut len = 0;
        for part in [self.root, dir, b"/", name, b"\0"] {
            path.get_mut(len..)?.get_mut(..part.len())?.copy_from_slice(part);
            len += part.len();
        }
        let path = CStr::from_bytes_with_nul(path.get(..len)?).ok()?;
        // NONBLOCK: what lies there may be anything, also a pipe on which a reader would wait.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        openat(CWD, path, flags, Mode::empty()).ok()
    }

    /// The start of a short file.
    pub(super) fn read<'b>(self, dir: &[u8], name: &[u8], buffer: &'b mut [u8; 64]) -> Option<&'b [u8]> {
        let file = self.open(dir, name, &mut [0; ROOM + MARGIN])?;
        let len = read_some(&file, buffer)?;
        buffer.get(..len)
    }

    /// The lines of a file of any length, in `buffer`.
    pub(super) fn lines<'b>(
        self,
        dir: &[u8],
        name: &[u8],
        buffer: &'b mut [u8; LINE],
    ) -> Option<Lines<'b, impl FnMut(&mut [u8]) -> usize + use<>>> {
        let file = self.open(dir, name, buffer)?;
        Some(Lines::new(buffer, move |buffer: &mut [u8]| read_some(&file, buffer).unwrap_or(0)))
    }
}

/// One read; 0 bytes at the end. `None` where it fails.
fn read_some(file: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    // Files of the kernel are not interrupted, those of a container's own file systems may be. A storm of signals
    // must not keep an allocating thread here.
    for _ in 0..4 {
        match read(file, &mut *buffer) {
            Ok(n) => return Some(n),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    None
}

/// The lines of what `source` reads: it fills the front of a buffer and says how many bytes it wrote, 0 at the end.
///
/// The bytes `buffer[start..end]` are read and not handed out yet.
pub(super) struct Lines<'b, S> {
    source: S,
    start: usize,
    end: usize,
    /// The rest of a line that was too long is still to come.
    rest: bool,
    buffer: &'b mut [u8; LINE],
}

impl<'b, S: FnMut(&mut [u8]) -> usize> Lines<'b, S> {
    /// All lines, from the first on.
    pub(super) fn new(buffer: &'b mut [u8; LINE], source: S) -> Self {
        Lines { source, start: 0, end: 0, rest: false, buffer }
    }

    /// The next line, without its end; of a line longer than the buffer only the front.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        loop {
            let (from, to) = self.next_piece()?;
            let ended = self.buffer.get(to) == Some(&b'\n') && to < self.end;
            // At the end of the file a line may have no end.
            self.start = if ended { to + 1 } else { to };
            let is_rest = core::mem::replace(&mut self.rest, !ended);
            if !is_rest {
                return self.buffer.get(from..to);
            }
        }
    }

    /// Where the bytes up to the end of the line, of the file, or of the full buffer lie.
    fn next_piece(&mut self) -> Option<(usize, usize)> {
        loop {
            let ready = self.buffer.get(self.start..self.end)?;
            if let Some(len) = ready.iter().position(|&b| b == b'\n') {
                return Some((self.start, self.start + len));
            }
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            let room = self.buffer.get_mut(self.end..).unwrap_or_default();
            let len = if room.is_empty() { 0 } else { (self.source)(room).min(room.len()) };
            if len == 0 {
                return (self.end > 0).then_some((0, self.end));
            }
            self.end += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], step: usize) -> Vec<Vec<u8>> {
        let mut left = text;
        let mut room = [0; LINE];
        let mut lines = Lines::new(&mut room, |buffer: &mut [u8]| {
            let n = left.len().min(step).min(buffer.len());
            buffer[..n].copy_from_slice(&left[..n]);
            left = &left[n..];
            n
        });
        let mut all = Vec::new();
        while let Some(line) = lines.next() {
            all.push(line.to_vec());
        }
        all
    }

    /// Catches a line that is torn, lost or doubled where two reads meet.
    #[test]
    fn pieces_make_no_difference() {
        let text = b"first\n\nthird line\nlast without end";
        let want: Vec<&[u8]> = vec![b"first", b"", b"third line", b"last without end"];
        for step in 1..=text.len() {
            assert_eq!(lines(text, step), want, "{step} bytes a read");
        }
        assert!(lines(b"", 1).is_empty());
        assert_eq!(lines(b"\n", 1), [b""]);
    }

    /// Catches the rest of a long line that is taken for lines of its own, and a reader that never ends.
    #[test]
    fn long_lines_are_cut() {
        for len in [LINE - 1, LINE, LINE + 1, 3 * LINE, 3 * LINE + 7] {
            let mut text = b"before\n".to_vec();
            text.extend(std::iter::repeat_n(b'x', len));
            text.extend(b"\nbehind\n");
            for step in [1, 7, 1000, LINE, usize::MAX] {
                let all = lines(&text, step);
                assert_eq!(all.len(), 3, "{len} bytes, {step} a read");
                assert_eq!((all[0].as_slice(), all[2].as_slice()), (&b"before"[..], &b"behind"[..]));
                assert_eq!(all[1], vec![b'x'; len.min(LINE)], "{len} bytes, {step} a read");
            }
        }
    }

    /// Catches a path that is cut within a name: another cgroup may have it.
    #[test]
    fn paths_that_do_not_fit_are_cut_between_names() {
        let mut path = Path::new();
        assert!(path.extend(b"/sys/fs/cgroup".iter().copied()));
        let deep: Vec<u8> = (0..100).flat_map(|i| format!("/group{i:02}").into_bytes()).collect();
        path.push_groups(&deep);
        let groups = (ROOM - 14) / 8;
        assert_eq!(path.as_bytes(), [b"/sys/fs/cgroup", &deep[..groups * 8]].concat());

        let mut path = Path::new();
        path.push_groups(&[b'/'; ROOM + 1]);
        assert_eq!(path.as_bytes().len(), ROOM);
        assert!(!path.push(b'x'));
    }

    /// Catches a panic or a wait on what is no file that can be read.
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
