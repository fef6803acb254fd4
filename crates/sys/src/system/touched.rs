//! Asks the kernel which OS pages hold memory, through /proc/self/pagemap.
//!
//! The file is opened for the first query and kept open, because opening takes five times as long as a query. It
//! belongs to the address space in which it was opened. So its number ([`Kept`]) is in memory that the child of a fork
//! does not get (`space.rs`). The child closes the file that it inherited ([`forked`]). A child that was made without
//! the C library's fork replaces the file at its first query. If a thread opens the file just while another one forks,
//! the child has a file that is never closed.
//!
//! The file is close-on-exec. It has no low number, because a program may rely on getting those; if the limit of open
//! files is too low for that, the file is opened for each query. A program may close the file all the same, and open
//! that of another process under its number. neap notices this: the file's position, which queries do not use, is a
//! random number ([`is_same`]).
//!
//! # Limits
//!
//! A process that is restored from a checkpoint page by page, as it needs them (userfaultfd), has OS pages that are not
//! zero, although the kernel does not have them yet. neap notices this because the restored file is another one with
//! the same position; from then on it makes no query. A process that made none before the checkpoint cannot notice:
//! such programs need the option `zero=always`.
//!
//! A query is PAGEMAP_SCAN (Linux 6.7; half a microsecond and up, for any length), else a read of the entries (eight
//! bytes for each OS page). There is no answer without /proc, or if a seccomp filter may end the process for the query.

use crate::system::call::{by_number, identity};
use crate::system::filter::{self, Filter};
use crate::system::probe::SCAN;
use crate::system::scan::{self, HUGE, PRESENT, Region, SWAPPED, Wanted, ZERO_PAGE};
use crate::system::{call, clock, lines, random};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use neap_core::os::{Run, Touched};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, SeekFrom};
use rustix::io::{DupFlags, Errno};
use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};

/// Not opened yet, or wiped.
const UNKNOWN: i32 = 0;
/// No query is answered, now or later.
const NONE: i32 = -1;
/// The file is opened for each query.
const EACH: i32 = -2;
/// Lowest number of the file. It is below 64, the length of the kernel's first table of files: a longer table can take
/// milliseconds to make.
const LOWEST: i32 = 48;
/// How often the file is opened again after the program closed it.
const REOPENS: u32 = 16;

/// The file that is kept open; all zero before the first query.
#[derive(Debug)]
pub struct Kept {
    /// The file's number plus 1, or why there is none.
    file: AtomicI32,
    /// How often the file was opened again.
    reopened: AtomicU32,
    /// The file's identity, see `call::identity`; 0: not known.
    identity: AtomicU64,
    /// The file's position; 0: not known.
    mark: AtomicU64,
    /// When the file's identity was last compared.
    checked: AtomicU64,
}

impl Kept {
    /// No file is open yet.
    pub const fn new() -> Kept {
        Kept {
            file: AtomicI32::new(UNKNOWN),
            reopened: AtomicU32::new(0),
            identity: AtomicU64::new(0),
            mark: AtomicU64::new(0),
            checked: AtomicU64::new(0),
        }
    }
}

/// Limit of regions in one query.
const REGIONS: usize = 16;

/// A copy for the child of a fork, which does not get [`Kept`]; number 0: no file.
static LAST: Kept = Kept::new();

/// Which OS pages are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Those that may be other than zero, see `Os::touched`.
    NotZero,
    /// Those that are resident, and not in huge pages. Without PAGEMAP_SCAN there is no answer.
    InSmallPages,
}

/// See `Os::touched`; OS pages have `page` bytes. `is_guest`: whether the process is a guest of the owner of `known`.
pub fn touched(
    known: &Kept,
    is_guest: impl Fn() -> bool,
    p: *mut u8,
    len: usize,
    page: usize,
    runs: &mut [Run],
) -> Option<Touched> {
    ask(known, is_guest, p, len, page, runs, Question::NotZero)
}

/// [`touched`] for any question.
pub fn ask(
    known: &Kept,
    is_guest: impl Fn() -> bool,
    p: *mut u8,
    len: usize,
    page: usize,
    runs: &mut [Run],
    question: Question,
) -> Option<Touched> {
    if filter::is_forbidden() {
        return None;
    }
    let mut each = false;
    loop {
        let number = if each { EACH } else { number(known, &is_guest)? };
        let own = if number == EACH { Some(open().ok()?) } else { None };
        let file = own.as_ref().map_or_else(|| by_number(number - 1), OwnedFd::as_fd);
        let same = if own.is_some() { Same::Yes } else { is_same(file, known) };
        let result = match same {
            Same::Yes if SCAN.known() == Some(false) && question != Question::NotZero => return None,
            Same::Yes if SCAN.known() == Some(false) => read(file, p, len, page, runs),
            Same::Yes => scan(file, p, len, runs, question),
            Same::No => Err(Errno::BADF),
            Same::Restored => {
                known.file.store(NONE, Ordering::Release);
                return None;
            }
        };
        match result {
            Ok(touched) => return Some(touched),
            Err(Errno::NOTTY) if SCAN.known() != Some(false) && is_pagemap(file, known, page) => SCAN.note(false),
            Err(_) if number == EACH => return None,
            // No file descriptor is free now.
            Err(error) if lines::is_passing(error) => return None,
            // The file is the kept one, and the system refuses the query.
            Err(error) if !matches!(error, Errno::BADF | Errno::NOTTY) => {
                let _ = known.file.compare_exchange(number, NONE, Ordering::AcqRel, Ordering::Relaxed);
                return None;
            }
            // In this guest the number is not that of the owner's file.
            Err(_) if is_guest() => each = true,
            Err(_) => {
                // The program has closed the file; another file may have its number now.
                let next = if known.reopened.fetch_add(1, Ordering::Relaxed) < REOPENS { UNKNOWN } else { NONE };
                // Another thread may find the next file before its identity is stored; an identity of 0 equals any.
                known.identity.store(0, Ordering::Release);
                let _ = known.file.compare_exchange(number, next, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

/// The file's number plus 1, opened where it is not yet, or [`EACH`].
fn number(known: &Kept, is_guest: impl Fn() -> bool) -> Option<i32> {
    // Acquire pairs with the Release by which it was stored: the file's position is known.
    let number = known.file.load(Ordering::Acquire);
    if number != UNKNOWN {
        return (number != NONE).then_some(number);
    }
    if is_guest() {
        return Some(EACH);
    }
    let opened = match filter::hostile() {
        Filter::No => open_to_keep(known),
        Filter::Yes => Err(Errno::PERM),
        Filter::Unknown => return None,
    };
    let new = match &opened {
        Ok(file) => file.as_ref().map_or(EACH, |file| file.as_raw_fd() + 1),
        // No file descriptor is free now.
        Err(error) if lines::is_passing(*error) => return None,
        Err(_) => NONE,
    };
    match known.file.compare_exchange(UNKNOWN, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            if let Ok(Some(file)) = opened {
                let identity = identity(&file);
                // Release pairs with the Acquire in `is_same`.
                known.identity.store(identity, Ordering::Release);
                // Relaxed, here and below: for the child of a fork.
                LAST.identity.store(identity, Ordering::Relaxed);
                LAST.mark.store(known.mark.load(Ordering::Relaxed), Ordering::Relaxed);
                LAST.file.store(file.into_raw_fd() + 1, Ordering::Relaxed);
            }
            (new != NONE).then_some(new)
        }
        // Another thread was first; this thread's file is closed.
        Err(first) => (first != NONE && first != UNKNOWN).then_some(first),
    }
}

fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, c"/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the file, with what [`is_same`] needs; `None` where it can have no high number.
fn open_to_keep(known: &Kept) -> Result<Option<OwnedFd>, Errno> {
    let low = open()?;
    let inherited = LAST.file.swap(0, Ordering::Relaxed);
    let file = if inherited != 0 && is_inherited(inherited) {
        // SAFETY: the file is neap's own, inherited from the parent (`is_inherited`).
        let mut number = unsafe { OwnedFd::from_raw_fd(inherited - 1) };
        rustix::io::dup3(&low, &mut number, DupFlags::CLOEXEC)?;
        number
    } else {
        match rustix::io::fcntl_dupfd_cloexec(&low, LOWEST) {
            Ok(file) => file,
            // The limit of open files is not above `LOWEST`.
            Err(Errno::INVAL) => return Ok(None),
            Err(e) => return Err(e),
        }
    };
    let mark = random::RANDOM.next() >> 2;
    rustix::fs::seek(&file, SeekFrom::Start(mark))?;
    // Where two threads do this at a time, both files get the first one's mark.
    if known.mark.compare_exchange(0, mark, Ordering::AcqRel, Ordering::Acquire).is_err() {
        rustix::fs::seek(&file, SeekFrom::Start(known.mark.load(Ordering::Acquire)))?;
    }
    Ok(Some(file))
}

/// Whether the file of this number plus 1 is the one that the parent had. Both identity and position must be the same,
/// as the program may have opened another pagemap of the same process.
fn is_inherited(number: i32) -> bool {
    let file = by_number(number - 1);
    // Relaxed: stored before the fork.
    let (wanted, mark) = (LAST.identity.load(Ordering::Relaxed), LAST.mark.load(Ordering::Relaxed));
    rustix::fs::seek(file, SeekFrom::Current(0)) == Ok(mark) && wanted != 0 && identity(file) == wanted
}

/// To be called in the child of a fork, which has one thread: closes the file of its parent.
pub fn forked() {
    let number = LAST.file.swap(0, Ordering::Relaxed);
    if number != 0 && !filter::is_forbidden() && is_inherited(number) {
        // SAFETY: the file is neap's own.
        drop(unsafe { OwnedFd::from_raw_fd(number - 1) });
    }
}

/// What [`is_same`] found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Same {
    Yes,
    No,
    /// Another file with the same position: the process was restored from a checkpoint.
    Restored,
}

/// Whether `file` is the one that was opened. Its position is compared each time, its identity at each tick of the
/// clock.
fn is_same(file: BorrowedFd<'_>, known: &Kept) -> Same {
    if rustix::fs::seek(file, SeekFrom::Current(0)) != Ok(known.mark.load(Ordering::Relaxed)) {
        return Same::No;
    }
    let now = clock::coarse_milliseconds();
    if known.checked.swap(now, Ordering::Relaxed) == now {
        return Same::Yes;
    }
    let wanted = known.identity.load(Ordering::Acquire);
    if wanted == 0 || identity(file) == wanted { Same::Yes } else { Same::Restored }
}

/// Whether `file` is still the pagemap, of this process's addresses: it must show memory at `known`, which was written
/// to, and nothing on either side of an OS page that is written now. An emulator may pass on the file of its own
/// process, in which the program's memory may have other addresses (qemu's option -B).
fn is_pagemap(file: BorrowedFd<'_>, known: &Kept, page: usize) -> bool {
    let shows = |p: *mut u8, len: usize| {
        let mut runs = [Run::EMPTY; 2];
        let found = read(file, p, len, page, &mut runs).ok()?;
        (found.runs == 1 && found.looked == len).then(|| (runs[0].start.addr() - p.addr(), runs[0].len))
    };
    let written = core::ptr::from_ref(known).cast_mut().cast::<u8>().map_addr(|at| at & !(page - 1));
    if shows(written, page) != Some((0, page)) {
        return false;
    }
    // Inaccessible memory has no OS pages, whatever sizes of pages the system prefers.
    let Some(p) = call::fresh(0, 3 * page, ProtFlags::empty(), MapFlags::PRIVATE) else { return false };
    // SAFETY: the mapping is new, and three OS pages long.
    unsafe {
        let middle = p.add(page);
        let opened = mm::mprotect(middle.cast(), page, MprotectFlags::READ | MprotectFlags::WRITE).is_ok();
        if opened {
            middle.write_volatile(1);
        }
        let shown = opened && shows(p, 3 * page) == Some((page, page));
        let _ = mm::munmap(p.cast(), 3 * page);
        shown
    }
}

/// Makes a query by PAGEMAP_SCAN.
fn scan(file: BorrowedFd<'_>, p: *mut u8, len: usize, runs: &mut [Run], question: Question) -> Result<Touched, Errno> {
    let mut regions = [Region::EMPTY; REGIONS];
    let without = match question {
        Question::NotZero => ZERO_PAGE,
        Question::InSmallPages => ZERO_PAGE | SWAPPED | HUGE,
    };
    let wanted = Wanted { without, returned: PRESENT | SWAPPED };
    let most = runs.len().min(REGIONS);
    let (count, looked) = scan::scan(file, p.addr()..p.addr() + len, wanted, &mut regions[..most])?;
    for (run, region) in runs.iter_mut().zip(&regions[..count]) {
        let start = region.start as usize;
        *run = Run { start: p.wrapping_add(start - p.addr()), len: region.end as usize - start };
    }
    Ok(Touched { runs: count, looked: looked - p.addr() })
}

/// Makes a query by the entries of the file.
fn read(file: BorrowedFd<'_>, p: *mut u8, len: usize, page: usize, runs: &mut [Run]) -> Result<Touched, Errno> {
    const PRESENT_OR_SWAPPED: u64 = 3 << 62;
    // 1 KiB, because no call may take more than 2 KiB of stack.
    let mut entries = [0u8; 1024];
    let (mut looked, mut count) = (0, 0);
    while looked < len {
        let most = ((len - looked) / page * 8).min(entries.len());
        let offset = (p.addr() + looked) / page * 8;
        let got = rustix::io::pread(file, &mut entries[..most], offset as u64)?;
        let (entries, _) = entries[..got].as_chunks::<8>();
        if entries.is_empty() {
            return Err(Errno::IO);
        }
        for &entry in entries {
            if u64::from_ne_bytes(entry) & PRESENT_OR_SWAPPED != 0 {
                let start = p.wrapping_add(looked);
                if count > 0 && runs[count - 1].start.addr() + runs[count - 1].len == start.addr() {
                    runs[count - 1].len += page;
                } else if count == runs.len() {
                    return Ok(Touched { runs: count, looked });
                } else {
                    runs[count] = Run { start, len: page };
                    count += 1;
                }
            }
            looked += page;
        }
    }
    Ok(Touched { runs: count, looked })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Tests share the state of the address space.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// A mapping of 64 OS pages, of which some were written.
    fn mapping(written: &[usize]) -> *mut u8 {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping, written inside.
        unsafe {
            let p =
                mm::mmap_anonymous(core::ptr::null_mut(), 64 * PAGE, access, MapFlags::PRIVATE).unwrap().cast::<u8>();
            for &i in written {
                p.add(i * PAGE).write(1);
            }
            p
        }
    }

    fn found(p: *mut u8, runs: &[Run]) -> std::vec::Vec<(usize, usize)> {
        runs.iter().map(|r| ((r.start.addr() - p.addr()) / PAGE, r.len / PAGE)).collect()
    }

    /// Catches wrong runs, and a query that continues when the room for runs is used up, by both ways.
    #[test]
    fn finds_what_was_written() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        let (p, known) = (mapping(&[0, 1, 2, 10, 63]), Kept::new());
        // SAFETY: the mapping is 64 OS pages long.
        unsafe {
            // A page that was read but not written is the zero page.
            let _ = p.add(20 * PAGE).read_volatile();
            let mut runs = [Run::EMPTY; 8];
            let t = touched(&known, || false, p, 64 * PAGE, PAGE, &mut runs).unwrap();
            assert_eq!(t.looked, 64 * PAGE);
            if SCAN.known() != Some(false) {
                assert_eq!(found(p, &runs[..t.runs]), [(0, 3), (10, 1), (63, 1)]);
            }
            let t = touched(&known, || false, p, 64 * PAGE, PAGE, &mut runs[..1]).unwrap();
            assert_eq!(found(p, &runs[..1]), [(0, 3)]);
            assert!(t.looked >= 3 * PAGE && t.looked <= 10 * PAGE, "{t:?}");

            let file = open().unwrap();
            let t = read(rustix::fd::AsFd::as_fd(&file), p, 64 * PAGE, PAGE, &mut runs).unwrap();
            assert_eq!(found(p, &runs[..t.runs]), [(0, 3), (10, 1), (20, 1), (63, 1)]);
            let t = read(rustix::fd::AsFd::as_fd(&file), p, 64 * PAGE, PAGE, &mut runs[..2]).unwrap();
            assert_eq!((t.runs, t.looked), (2, 20 * PAGE));
        }
    }

    /// Catches a query of the wrong file after the program closed the kept one.
    #[test]
    fn notices_that_it_was_closed() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        let known = Kept::new();
        let p = mapping(&[3]);
        let mut runs = [Run::EMPTY; 8];
        // SAFETY: the mapping is 64 OS pages long; the file that is closed is the kept one.
        unsafe {
            assert_eq!(touched(&known, || false, p, 64 * PAGE, PAGE, &mut runs).unwrap().runs, 1);
            let file = known.file.load(Ordering::Relaxed) - 1;
            assert!(file >= LOWEST);
            libc::close(file);
            assert_eq!(touched(&known, || false, p, 64 * PAGE, PAGE, &mut runs).unwrap().runs, 1);
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
            let file = known.file.load(Ordering::Relaxed) - 1;
            libc::dup2(null, file);
            assert_eq!(touched(&known, || false, p, 64 * PAGE, PAGE, &mut runs).unwrap().runs, 1);
        }
    }

    /// Catches a query of another pagemap under the file's number, at once and not only after a while; and queries that
    /// continue after the process was restored, with a file of the same position.
    #[test]
    fn notices_another_of_its_kind() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        let known = Kept::new();
        let p = mapping(&[3]);
        let mut runs = [Run::EMPTY; 8];
        let path = std::format!("/proc/self/task/{}/pagemap\0", rustix::thread::gettid().as_raw_nonzero());
        // SAFETY: the mapping is 64 OS pages long; the file that is replaced is the kept one.
        unsafe {
            for round in 0..10 {
                assert_eq!(touched(&known, || false, p, 64 * PAGE, PAGE, &mut runs).unwrap().runs, 1);
                let file = known.file.load(Ordering::Relaxed) - 1;
                let other = libc::open(path.as_ptr().cast(), libc::O_RDONLY);
                if round == 9 {
                    // As it was restored.
                    libc::lseek(other, libc::lseek(file, 0, libc::SEEK_CUR), libc::SEEK_SET);
                    known.checked.store(0, Ordering::Relaxed);
                }
                libc::dup2(other, file);
                let found = touched(&known, || false, p, 64 * PAGE, PAGE, &mut runs);
                let now = known.file.load(Ordering::Relaxed) - 1;
                assert_eq!((found.is_none(), now != file), (round == 9, true));
            }
        }
    }

    /// Catches a file of the program's that is closed as if it were the inherited one: another pagemap of the same
    /// process has the same identity.
    #[test]
    fn what_is_inherited_has_the_mark() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        let known = Kept::new();
        let p = mapping(&[3]);
        assert_eq!(touched(&known, || false, p, 64 * PAGE, PAGE, &mut [Run::EMPTY; 8]).unwrap().runs, 1);
        let kept = known.file.load(Ordering::Relaxed);
        assert!(is_inherited(kept));
        let other = open().unwrap();
        assert_eq!(identity(&other), LAST.identity.load(Ordering::Relaxed));
        assert!(!is_inherited(other.as_raw_fd() + 1));
    }
}
