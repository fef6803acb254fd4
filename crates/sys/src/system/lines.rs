//! Reads the kernel's text files: lines, numbers, and what /proc/self/status says of the process. Nothing is allocated,
//! and no file stays open.

use core::ffi::CStr;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// Bytes that are read at a time from /proc/self. Few, because the stack may be short. All lines that matter fit,
/// except that of the groups.
const PIECE: usize = 256;

/// The lines of a text. `source` reads it: it fills the front of a buffer and returns how many bytes it wrote, 0 at the
/// end.
///
/// The bytes `buffer[start..end]` are read and not returned yet.
pub struct Lines<'b, S> {
    source: S,
    start: usize,
    end: usize,
    /// Whether the next piece is the rest of a line that was longer than the buffer.
    is_rest: bool,
    buffer: &'b mut [u8],
}

impl<'b, S: FnMut(&mut [u8]) -> usize> Lines<'b, S> {
    /// All lines, from the first on.
    pub fn new(buffer: &'b mut [u8], source: S) -> Self {
        Lines { source, start: 0, end: 0, is_rest: false, buffer }
    }

    /// The next line, without its end. Of a line longer than the buffer, only the front.
    #[expect(clippy::should_implement_trait, reason = "a line is borrowed from the buffer")]
    pub fn next(&mut self) -> Option<&[u8]> {
        loop {
            let (from, to, is_rest) = self.next_place()?;
            if !is_rest {
                return self.buffer.get(from..to);
            }
        }
    }

    /// The next line, or a piece of a long one, and whether it is the rest of one.
    fn next_piece(&mut self) -> Option<(&[u8], bool)> {
        let (from, to, is_rest) = self.next_place()?;
        Some((self.buffer.get(from..to)?, is_rest))
    }

    /// The place in the buffer of the bytes up to the end of the line, of the file, or of the full buffer; and whether
    /// they are the rest of a line.
    fn next_place(&mut self) -> Option<(usize, usize, bool)> {
        loop {
            let ready = self.buffer.get(self.start..self.end)?;
            if let Some(len) = ready.iter().position(|&b| b == b'\n') {
                let from = self.start;
                self.start += len + 1;
                return Some((from, from + len, core::mem::replace(&mut self.is_rest, false)));
            }
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            let room = self.buffer.get_mut(self.end..).unwrap_or_default();
            let len = if room.is_empty() { 0 } else { (self.source)(room).min(room.len()) };
            if len == 0 {
                // A line that is too long, or at the end of the file one without an end.
                let end = core::mem::replace(&mut self.end, 0);
                return (end > 0).then(|| (0, end, core::mem::replace(&mut self.is_rest, true)));
            }
            self.end += len;
        }
    }
}

/// Calls `f` with each line that starts with one of `names`, of the text that `read` reads. A line longer than
/// [`PIECE`] comes in pieces.
fn each_line(read: impl FnMut(&mut [u8]) -> usize, names: &[&[u8]], mut f: impl FnMut(&[u8])) {
    let (mut buffer, mut wanted) = ([0; PIECE], false);
    let mut lines = Lines::new(&mut buffer, read);
    while let Some((piece, is_rest)) = lines.next_piece() {
        wanted = if is_rest { wanted } else { names.iter().any(|name| piece.starts_with(name)) };
        if wanted {
            f(piece);
        }
    }
}

/// `each_line` of a file.
///
/// # Errors
/// It cannot be read, see [`is_passing`].
pub fn each_line_of(path: &CStr, names: &[&[u8]], f: impl FnMut(&[u8])) -> Result<(), Errno> {
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut result = Ok(());
    let read = |buffer: &mut [u8]| {
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *buffer));
        read.unwrap_or_else(|error| {
            result = Err(error);
            0
        })
    };
    each_line(read, names, f);
    result
}

/// Calls `f` with the addresses of each mapping of the process.
///
/// # Errors
/// The file cannot be read.
pub fn each_mapping(mut f: impl FnMut(usize, usize)) -> Result<(), Errno> {
    let number = |text: &[u8]| usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok();
    let mut is_rest = false;
    each_line_of(c"/proc/self/maps", &[b""], |piece| {
        let is_front = !core::mem::replace(&mut is_rest, piece.len() == PIECE);
        let mut ends = piece.split(|&b| matches!(b, b'-' | b' ')).map(number);
        if is_front && let (Some(Some(start)), Some(Some(end))) = (ends.next(), ends.next()) {
            f(start, end);
        }
    })
}

/// Whether a call that failed with this error may succeed later: because no file descriptor is free now, say.
pub fn is_passing(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::INTR)
}

/// The decimal number at the start of `text`, up to its end or a space. `None` if there is none, or it is too large.
pub fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, rest) = text.split_at_checked(digits)?;
    if number.is_empty() || rest.first().is_some_and(|b| !b.is_ascii_whitespace()) {
        return None;
    }
    number.iter().try_fold(0u64, |n, b| n.checked_mul(10)?.checked_add(u64::from(b - b'0')))
}

/// The bytes of a path of the mount table: a backslash and three octal digits stand for one byte.
pub fn unescape(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut text = text;
    core::iter::from_fn(move || {
        let (byte, rest) = match *text {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ref rest @ ..] => {
                (((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'), rest)
            }
            [byte, ref rest @ ..] => (byte, rest),
            [] => return None,
        };
        text = rest;
        Some(byte)
    })
}

/// The number behind `name` at the start of a line of a file.
fn number_behind(path: &CStr, name: &[u8]) -> Option<usize> {
    let mut found = None;
    let add = |line: &[u8]| found = found.or_else(|| number(line.strip_prefix(name)?.trim_ascii_start()));
    each_line_of(path, &[name], add).ok()?;
    found.and_then(|number| number.try_into().ok())
}

/// OS pages of all mappings of the process, as RLIMIT_AS counts them; `None` if that is not known.
pub fn mapped_pages() -> Option<usize> {
    number_behind(c"/proc/self/statm", b"")
}

/// Threads of the process; `None` if that is not known.
pub fn threads() -> Option<usize> {
    number_behind(c"/proc/self/status", THREADS)
}

/// The most bytes of the process's memory that were resident at a time, since it became this program; `None` if that is
/// not known. getrusage also counts the memory that a program before this one had in the process, or (with vfork and
/// posix_spawn) in its parent.
pub fn peak_resident() -> Option<usize> {
    number_behind(c"/proc/self/status", b"VmHWM:").map(|kib| kib << 10)
}

/// Bytes of the process's private memory that are swapped out; `None` if that is not known.
pub fn swapped() -> Option<usize> {
    number_behind(c"/proc/self/status", b"VmSwap:").map(|kib| kib << 10)
}

const STATE: &[u8] = b"State:";
const THREADS: &[u8] = b"Threads:";
const SECCOMP: &[u8] = b"Seccomp:";
/// Names of the lines with the process's users, groups and capabilities, its filter, the state of its first thread, and
/// the number of threads.
const PROCESS: &[&[u8]] =
    &[STATE, THREADS, b"Uid:", b"Gid:", b"Groups:", b"CapEff:", b"CapPrm:", b"NoNewPrivs:", SECCOMP];

/// FNV-1a, from its offset basis on.
const BASIS: u64 = 0xCBF2_9CE4_8422_2325;

/// A hash of a sequence of bytes, of which `hash` covers an earlier part.
fn digest(hash: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(hash, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}

/// A hash of a sequence of bytes.
pub fn digest_of(bytes: impl IntoIterator<Item = u8>) -> u64 {
    digest(BASIS, bytes)
}

/// Whether the line about filters says that there is none.
fn is_unfiltered(line: &[u8]) -> bool {
    line.trim_ascii_end().ends_with(b"\t0")
}

/// Whether the calling thread is known to have no seccomp filter. A kernel without seccomp has no such line.
///
/// # Errors
/// The file cannot be read.
pub fn has_no_filter() -> Result<bool, Errno> {
    let mut unfiltered = true;
    each_line_of(c"/proc/thread-self/status", &[SECCOMP], |line| unfiltered &= is_unfiltered(line))?;
    Ok(unfiltered)
}

/// The pending signals, as a mask, that were sent to the calling thread itself.
///
/// # Errors
/// The file cannot be read.
pub fn waiting_signals() -> Result<u64, Errno> {
    const NAME: &[u8] = b"SigPnd:";
    let mut mask = 0;
    each_line_of(c"/proc/thread-self/status", &[NAME], |line| {
        let digits = line.get(NAME.len()..).unwrap_or_default().trim_ascii();
        mask = core::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
    })?;
    Ok(mask)
}

/// What [`look`] found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// A hash that changes when the process's first thread gets other users, groups or capabilities, or a filter.
    pub credentials: u64,
    /// Whether the first thread has ended, and one other is left.
    pub one_is_left: bool,
}

impl Look {
    const NEW: Look = Look { credentials: BASIS, one_is_left: false };

    /// A line of /proc/self/status, in its order: the state comes before the number of threads.
    fn add(&mut self, line: &[u8]) {
        if let Some(state) = line.strip_prefix(STATE) {
            self.one_is_left = state.trim_ascii().starts_with(b"Z");
        } else if let Some(threads) = line.strip_prefix(THREADS) {
            // The first thread counts until its process is waited for.
            self.one_is_left &= number(threads.trim_ascii()) == Some(2);
        } else {
            self.credentials = digest(self.credentials, line.iter().copied());
        }
    }
}

/// Reads what /proc/self/status says of the process.
///
/// # Errors
/// It cannot be read, see [`is_passing`].
pub fn look() -> Result<Look, Errno> {
    let mut look = Look::NEW;
    each_line_of(c"/proc/self/status", PROCESS, |line| look.add(line))?;
    Ok(look)
}

/// The exit status of the process's first thread, which has ended.
pub fn status_of_first() -> Option<u8> {
    // The status is the last number of the line, in the form of `wait`. The line comes in pieces.
    let mut last = 0u32;
    let add = |piece: &[u8]| {
        for &b in piece.trim_ascii_end() {
            last = if b.is_ascii_digit() { last.wrapping_mul(10).wrapping_add(u32::from(b - b'0')) } else { 0 };
        }
    };
    each_line_of(c"/proc/self/stat", &[b""], add).ok()?;
    Some((last >> 8) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"Name:\tx\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t0 \nVmRSS:\t 100 kB\nSeccomp:\t0\n";

    fn replaced(from: &str, to: &str) -> std::vec::Vec<u8> {
        std::str::from_utf8(TEXT).unwrap().replace(from, to).into_bytes()
    }

    /// The hash of the credentials in `text`, read `step` bytes at a time, and whether it says that there is no filter.
    fn read(text: &[u8], step: usize) -> (u64, bool) {
        let (mut hash, mut unfiltered) = (BASIS, true);
        for pass in 0..2 {
            let mut left = text;
            let reader = |buffer: &mut [u8]| {
                let n = left.len().min(step).min(buffer.len());
                buffer[..n].copy_from_slice(&left[..n]);
                left = &left[n..];
                n
            };
            if pass == 0 {
                let mut look = Look::NEW;
                each_line(reader, PROCESS, |line| look.add(line));
                hash = look.credentials;
            } else {
                each_line(reader, &[SECCOMP], |line| unfiltered &= is_unfiltered(line));
            }
        }
        (hash, unfiltered)
    }

    /// Catches a filter that is missed, also behind a line of many groups, and wherever reads end.
    #[test]
    fn sees_filters() {
        let groups = std::format!("Groups:\t{}", "1234567 ".repeat(10_000));
        for step in [1, 7, 255, 256, 4096] {
            let unfiltered = |from, to| read(&replaced(from, to), step).1;
            assert!(unfiltered("", "") && read(b"Name:\tx\n", step).1);
            assert!(!unfiltered("Seccomp:\t0", "Seccomp:\t2"));
            assert!(!unfiltered("Seccomp:\t0", "Seccomp:\t10"));
            assert!(!read(b"Seccomp:", step).1);
            assert!(unfiltered("Groups:\t0 ", &groups));
            let many = std::format!("{groups}\nSeccomp:\t2\nX:");
            assert!(!unfiltered("Groups:\t0 ", &many));
        }
    }

    /// Catches a change of user that is missed, and a change of something else that is reported.
    #[test]
    fn sees_other_users() {
        let hash = |from, to| read(&replaced(from, to), 4096).0;
        let same = hash("", "");
        assert_ne!(same, hash("Uid:\t0", "Uid:\t1"));
        assert_ne!(same, hash("Groups:\t0", "Groups:\t0 7"));
        assert_ne!(same, hash("Seccomp:\t0", "Seccomp:\t2"));
        assert_eq!(same, hash("100 kB", "200 kB"));
        assert_eq!(same, read(TEXT, 3).0);
        assert!(look().is_ok() && look() == look());
    }

    /// Catches a count that is read wrong, by which a limit is missed, or memory is refused without need.
    #[test]
    fn counts_mappings_and_threads() {
        let before = mapped_pages().unwrap();
        assert!(threads().unwrap() >= 1);
        const LEN: usize = 1 << 40;
        // SAFETY: a fresh, unused mapping.
        unsafe {
            use rustix::mm::{self, MapFlags, ProtFlags};
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let p = mm::mmap_anonymous(core::ptr::null_mut(), LEN, ProtFlags::empty(), flags).unwrap();
            assert!(mapped_pages().unwrap() > before + LEN / 65536 / 2);
            mm::munmap(p, LEN).unwrap();
        }
    }

    fn lines(text: &[u8], step: usize) -> std::vec::Vec<std::vec::Vec<u8>> {
        let mut left = text;
        let mut room = [0; PIECE];
        let mut lines = Lines::new(&mut room, |buffer: &mut [u8]| {
            let n = left.len().min(step).min(buffer.len());
            buffer[..n].copy_from_slice(&left[..n]);
            left = &left[n..];
            n
        });
        let mut all = std::vec::Vec::new();
        while let Some(line) = lines.next() {
            all.push(line.to_vec());
        }
        all
    }

    /// Catches a line that is torn, lost or doubled where two reads meet.
    #[test]
    fn pieces_make_no_difference() {
        let text = b"first\n\nthird line\nlast without end";
        let want: std::vec::Vec<&[u8]> = std::vec![b"first", b"", b"third line", b"last without end"];
        for step in 1..=text.len() {
            assert_eq!(lines(text, step), want, "{step} bytes a read");
        }
        assert!(lines(b"", 1).is_empty());
        assert_eq!(lines(b"\n", 1), [b""]);
    }

    /// Catches the rest of a long line that is taken for another line, and a reader that never ends.
    #[test]
    fn long_lines_are_cut() {
        for len in [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7] {
            let mut text = b"before\n".to_vec();
            text.extend(std::iter::repeat_n(b'x', len));
            text.extend(b"\nbehind\n");
            for step in [1, 7, 1000, PIECE, usize::MAX] {
                let all = lines(&text, step);
                assert_eq!(all.len(), 3, "{len} bytes, {step} a read");
                assert_eq!((all[0].as_slice(), all[2].as_slice()), (&b"before"[..], &b"behind"[..]));
                assert_eq!(all[1], std::vec![b'x'; len.min(PIECE)], "{len} bytes, {step} a read");
            }
        }
    }

    /// Catches a number that is cut, wraps, or is taken from a word.
    #[test]
    fn numbers() {
        for (text, n) in [
            (&b"0\n"[..], Some(0)),
            (b"42", Some(42)),
            (b"9223372036854771712\n", Some(9_223_372_036_854_771_712)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"18446744073709551616", None),
            (b"99999999999999999999999", None),
            (b"max\n", None),
            (b"-1", None),
            (b"12x", None),
            (b"", None),
            (b"\n", None),
        ] {
            assert_eq!(number(text), n, "{text:?}");
        }
    }
}
