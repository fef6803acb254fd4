//! Option `prefault`: makes memory resident when the program starts: free memory of the allocator, or mappings of
//! files. The dynamic linker has mapped the program and its libraries by then.

use crate::{foreign, usage};
use core::fmt::Write;
use neap_core::text::Text;
use neap_options::{FILE, Id, Value, pattern};
use neap_ranges::populate::{Access, populate};
use neap_sys::global::{self, NEAP};
use neap_sys::lines::Lines;
use neap_sys::prefault::Prefaulted;
use neap_sys::{call, clock, thread};
use rustix::fs::{CWD, Mode, OFlags};

/// Bytes of a line of `/proc/self/maps`, with the longest path.
const LINE: usize = 4096 + 128;

/// Does what the value says, and notes what it cost.
pub fn run(value: Value<'_>) {
    let now = || clock::read(libc::CLOCK_MONOTONIC).unwrap_or_default();
    let (before, begun) = (faults(), now());
    let bytes = match value {
        Value::Bytes(bytes) => match heap(usize::try_from(bytes).unwrap_or(usize::MAX)) {
            0 => return refuse(value),
            bytes => bytes,
        },
        Value::Path(text) => {
            let wanted = text.strip_prefix(FILE.as_bytes()).unwrap_or(text);
            files(&|path| pattern::matches(wanted, path))
        }
        // The other word is `off`.
        Value::Word("all") => files(&|_| true),
        _ => return,
    };
    let microseconds = u64::try_from(now().saturating_sub(begun).as_micros()).unwrap_or(u64::MAX);
    NEAP.os.note_prefaulted(Prefaulted { bytes: bytes as u64, faults: faults().saturating_sub(before), microseconds });
}

/// Prefaults memory that malloc hands out next; returns how many bytes.
fn heap(bytes: usize) -> usize {
    // The allocator has its arena from its first call on.
    // SAFETY: a block of malloc's is freed once.
    unsafe { global::free(global::malloc(1), foreign::free) };
    thread::in_call(|_| NEAP.prefault(bytes)).unwrap_or(0)
}

/// Says on standard error that there is not enough memory.
fn refuse(value: Value<'_>) {
    let mut line = Text::<128>::new();
    let name = Id::Prefault.option().env;
    let _ = writeln!(line, "neap: {name}={value}: there is not as much memory left; nothing is prefaulted");
    call::write(libc::STDERR_FILENO, line.bytes());
}

/// Prefaults the mappings of files whose path is wanted; returns their bytes.
fn files(wanted: &dyn Fn(&[u8]) -> bool) -> usize {
    let Ok(maps) = rustix::fs::openat(CWD, c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return 0;
    };
    let mut buffer = [0u8; LINE];
    let read = |buffer: &mut [u8]| rustix::io::retry_on_intr(|| rustix::io::read(&maps, &mut *buffer)).unwrap_or(0);
    let (mut lines, mut done) = (Lines::new(&mut buffer, read), 0);
    while let Some(line) = lines.next() {
        let Some((start, end)) = mapping(line, wanted) else { continue };
        let bytes = end - start;
        // A mapping may end behind the end of its file. The call fails there, after it has made the rest resident.
        let _ = populate(core::ptr::with_exposed_provenance(start), bytes, Access::Read);
        done += bytes;
    }
    done
}

/// The addresses of a line of maps, `start-end rwxp offset device inode   path`, if it is a file that is wanted and can
/// be read. Devices are left alone.
fn mapping(line: &[u8], wanted: &dyn Fn(&[u8]) -> bool) -> Option<(usize, usize)> {
    let path = &line[line.iter().position(|&byte| byte == b'/')?..];
    let mut fields = line.split(|&byte| byte == b' ');
    let (addresses, access) = (fields.next()?, fields.next()?);
    if access.first() != Some(&b'r') || path.starts_with(b"/dev/") || !wanted(path) {
        return None;
    }
    let (start, end) = core::str::from_utf8(addresses).ok()?.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

/// The page faults of this thread so far.
fn faults() -> u64 {
    let usage = usage::of(libc::RUSAGE_THREAD);
    u64::try_from(usage.ru_minflt + usage.ru_majflt).unwrap_or(0)
}
