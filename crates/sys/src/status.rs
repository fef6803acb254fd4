//! What the process is allowed to do, from /proc: whether a seccomp filter watches its calls, and whose it is.
//!
//! A filter may end the process for a call that it does not know. So neap makes unusual calls (anything but mmap,
//! munmap, mremap, mprotect, madvise, futex) only after a look here. A filter that the program was started with lets
//! those pass that every other program makes ([`is_hostile`]); those that few make are left out ([`is_filtered`]). One that
//! the program gives itself may do anything: neap has to hear of it before (`forbid`; the preload library has the
//! functions by which programs do it, and says so by [`watch`]), and it waits for threads that have looked ([`Asking`]).

use crate::global::NEAP;
use crate::{arch, space};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use neap_core::fork::Patience;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// Bytes that are read at a time: the stack may be short. The lines that matter fit, but that of the groups.
const PIECE: usize = 256;

/// Calls `f` with each line of what `read` reads that starts with one of `names`; with a longer line than [`PIECE`] in
/// pieces. `None` if it cannot be read.
fn each_line(
    mut read: impl FnMut(&mut [u8]) -> Option<usize>,
    names: &[&[u8]],
    mut f: impl FnMut(&[u8]),
) -> Option<()> {
    let mut buffer = [0; PIECE];
    // Bytes that are read and not shown yet, and whether the line that they begin in is wanted, once that is known.
    let (mut len, mut wanted) = (0, None);
    loop {
        let more = read(&mut buffer[len..])?;
        len += more;
        let mut at = 0;
        while at < len {
            let rest = &buffer[at..len];
            let line = rest.iter().position(|&b| b == b'\n').map(|end| &rest[..=end]);
            if line.is_none() && more > 0 && (at > 0 || len < PIECE) {
                // Its end may come with the next read.
                break;
            }
            let piece = line.unwrap_or(rest);
            if *wanted.get_or_insert_with(|| names.iter().any(|name| piece.starts_with(name))) {
                f(piece);
            }
            if line.is_some() {
                wanted = None;
            }
            at += piece.len();
        }
        buffer.copy_within(at..len, 0);
        len -= at;
        if more == 0 {
            return Some(());
        }
    }
}

/// [`each_line`] of a file.
fn each_line_of(path: &core::ffi::CStr, names: &[&[u8]], f: impl FnMut(&[u8])) -> Result<(), Errno> {
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut error = Errno::IO;
    let read = |buffer: &mut [u8]| {
        loop {
            match rustix::io::read(&file, &mut *buffer) {
                Err(Errno::INTR) => {}
                result => return result.map_err(|e| error = e).ok(),
            }
        }
    };
    each_line(read, names, f).ok_or(error)
}

/// Whether an error says nothing of what the process may do: it has no room for another file at present, say. What failed
/// so may work the next time.
pub fn is_passing(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::INTR)
}

/// The number at the start of `text`, behind spaces.
fn number(text: &[u8]) -> Option<usize> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// The number behind `name` at the start of a line of a file.
fn number_behind(path: &core::ffi::CStr, name: &[u8]) -> Option<usize> {
    let mut found = None;
    each_line_of(path, &[name], |line| found = found.or_else(|| number(line.strip_prefix(name)?))).ok()?;
    found
}

/// OS pages of all mappings of the process, as RLIMIT_AS counts them; `None` if that cannot be told.
pub fn mapped_pages() -> Option<usize> {
    number_behind(c"/proc/self/statm", b"")
}

/// Threads of the process; `None` if that cannot be told.
pub fn threads() -> Option<usize> {
    number_behind(c"/proc/self/status", b"Threads:")
}

const FILTER: &[&[u8]] = &[b"Seccomp:"];

/// Whether the line of a filter says that none is there.
fn is_unfiltered(line: &[u8]) -> bool {
    line.trim_ascii_end().ends_with(b"\t0")
}

/// Which processes of this memory may make no unusual call: none (0); all, as there are filters or a thread asks for one,
/// whose number is in the upper half ([`ONE`]); or those of [`GUESTS`], which share the memory of another one ([`SOME`]).
static FORBIDDEN: AtomicU64 = AtomicU64::new(0);
const ONE: u64 = 1 << 32;
const SOME: u64 = 1;
/// The last ones that asked for a filter in the memory of another process (`vfork`). Most have ended, or run another program.
static GUESTS: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];
static NEXT_GUEST: AtomicU32 = AtomicU32::new(0);

/// Whether the process of this number is one of them.
fn is_forbidden_guest(process: u32) -> bool {
    // SeqCst: as `FORBIDDEN`.
    GUESTS.iter().any(|guest| guest.load(Ordering::SeqCst) == process)
}

/// A filter is in force, as far as this process knows. Until then it is not known what to leave out for good.
static IN_FORCE: AtomicBool = AtomicBool::new(false);

/// The process asks for a filter.
#[must_use]
#[derive(Debug)]
pub(crate) struct Asked {
    /// In the memory of another process, which has no filter: the number of the one that asks.
    guest: Option<u32>,
}

/// From now on unusual calls are forbidden to this process, and looks at files too, and none is under way unless it takes
/// more than [`LONGEST`]. To this one alone where the memory is that of another process (`vfork`).
pub(crate) fn forbid() -> Asked {
    // SeqCst, here and below: see `purger::start`.
    if space::is_guest(space::here()) {
        let guest = process();
        // Relaxed: a number that no other one gets for a while.
        let place = NEXT_GUEST.fetch_add(1, Ordering::Relaxed) as usize % GUESTS.len();
        GUESTS[place].store(guest, Ordering::SeqCst);
        FORBIDDEN.fetch_or(SOME, Ordering::SeqCst);
        return Asked { guest: Some(guest) };
    }
    FORBIDDEN.fetch_add(ONE, Ordering::SeqCst);
    // No thread is about to make a call that was not forbidden when it looked. A guest has one thread, this one.
    let mut patience = Patience::new(LONGEST);
    while is_under_way() && patience.wait(&NEAP.os) {}
    Asked { guest: None }
}

impl Asked {
    /// The filter is `in_force`, or was refused: then calls are forbidden only for other ones.
    pub(crate) fn answered(self, in_force: bool) {
        if !in_force {
            // SeqCst: before unusual calls are allowed again, see `is_under_way`.
            REFUSED.store(true, Ordering::SeqCst);
        }
        match (self.guest, in_force) {
            // Relaxed: who does not see it yet leaves a call out, and looks again.
            (None, true) => IN_FORCE.store(true, Ordering::Relaxed),
            (None, false) => {
                FORBIDDEN.fetch_sub(ONE, Ordering::SeqCst);
            }
            (Some(_), true) => {}
            (Some(guest), false) => {
                // One place: it may have a filter already. Failure: it is another process's by now.
                let free =
                    |place: &AtomicU32| place.compare_exchange(guest, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok();
                let _ = GUESTS.iter().any(free);
            }
        }
    }
}

/// Stretches in which a thread may make unusual calls that were not forbidden when it began.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
/// Stretches that began when the calls were forbidden: a filter need not wait for them, unless the calls have been allowed
/// since, as an earlier filter was refused. They are apart, as in a busy process one or the other is under way at any time.
static LATE: AtomicU32 = AtomicU32::new(0);
/// A filter was refused.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// Microseconds that a filter waits for them at most. Only a thread that is stopped needs longer, and a child on its
/// parent's memory (`vfork`) that was killed in one leaves it behind.
const LONGEST: u32 = 1_000_000;

/// Whether a thread may be about to make a call that was not forbidden when it looked.
fn is_under_way() -> bool {
    // SeqCst, in this order: a stretch is counted in the second before it leaves the first.
    UNDER_WAY.load(Ordering::SeqCst) != 0 || (REFUSED.load(Ordering::SeqCst) && LATE.load(Ordering::SeqCst) != 0)
}

/// A thread that holds this may make unusual calls, where [`is_forbidden`] says that they are not forbidden: a filter
/// comes into force when it is dropped.
#[derive(Debug)]
pub struct Asking {
    counted: &'static AtomicU32,
}

impl Asking {
    /// For the calling thread.
    pub fn begin() -> Asking {
        // SeqCst, as in `is_forbidden` and `forbid`: this thread sees that they are forbidden, or is seen.
        UNDER_WAY.fetch_add(1, Ordering::SeqCst);
        let asking = Asking { counted: &UNDER_WAY };
        if is_forbidden() {
            LATE.fetch_add(1, Ordering::SeqCst);
            drop(asking);
            return Asking { counted: &LATE };
        }
        asking
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // In the child of a fork in a handler that interrupted this thread here, it is counted no more.
        let _ = self.counted.try_update(Ordering::SeqCst, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

/// The number of the calling process.
pub fn process() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// In the child of a fork, which has its parent's filter, and memory of its own.
pub fn forked() {
    // Relaxed, here and below: one thread.
    UNDER_WAY.store(0, Ordering::Relaxed);
    LATE.store(0, Ordering::Relaxed);
    let who = FORBIDDEN.load(Ordering::Relaxed);
    if who != 0 && who < ONE {
        let parents = rustix::process::getppid()
            .is_some_and(|parent| is_forbidden_guest(parent.as_raw_nonzero().get().cast_unsigned()));
        FORBIDDEN.store(if parents { ONE } else { 0 }, Ordering::Relaxed);
        IN_FORCE.store(parents, Ordering::Relaxed);
    }
    GUESTS.iter().for_each(|guest| guest.store(0, Ordering::Relaxed));
}

/// Whether not even the number of the process may be asked for: [`is_forbidden`], but where it is known to be needed.
pub fn is_process_hidden() -> bool {
    FORBIDDEN.load(Ordering::SeqCst) >= ONE
}

/// Whether the process has asked for a filter. One load, but for one that had a child which did so in its memory: for calls
/// that would be made often.
#[inline]
pub fn is_forbidden() -> bool {
    match FORBIDDEN.load(Ordering::SeqCst) {
        0 => false,
        ONE.. => true,
        _ => is_forbidden_guest(process()),
    }
}

/// What is known where calls are forbidden.
fn forbidden() -> Filter {
    if IN_FORCE.load(Ordering::Relaxed) { Filter::Yes } else { Filter::Unknown }
}

/// The program cannot give itself a filter without our hearing of it.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// From now on `forbid` is called before the program gives itself a filter.
pub fn watch() {
    WATCHED.store(true, Ordering::Relaxed);
}

/// Whether a harmless question is allowed that few programs ask, without a look at files: where we would hear of a filter,
/// or would have seen it by now.
#[inline]
pub fn may_ask() -> bool {
    !is_forbidden() && (WATCHED.load(Ordering::Relaxed) || crate::barrier::works())
}

/// Whether a filter of the program's own is known to be there or not, without a look.
pub fn is_watched() -> bool {
    WATCHED.load(Ordering::Relaxed)
}

/// What is known of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// None watches the calling thread.
    No,
    /// There is one, or the process cannot tell: calls that few programs make are better left out.
    Yes,
    /// The process has no room to look, or asks for a filter just now: those calls are left out now, and it is looked again
    /// at the next one.
    Unknown,
}

/// Whether a filter might punish calls that other programs make every day: to open a file and to ask it something, to
/// start a thread, membarrier. A filter that the program was started with (most containers have one) lets those pass, or
/// refuses them; one of its own may do anything.
pub fn hostile() -> Filter {
    match (WATCHED.load(Ordering::Relaxed), is_forbidden()) {
        (_, true) => forbidden(),
        (true, false) => Filter::No,
        (false, false) => filter(),
    }
}

/// Whether a filter is [`hostile`], or may be.
pub fn is_hostile() -> bool {
    hostile() != Filter::No
}

/// Whether a seccomp filter watches the calling thread.
pub fn filter() -> Filter {
    if is_forbidden() {
        return forbidden();
    }
    // A kernel without seccomp has no such line.
    let mut unfiltered = true;
    match each_line_of(c"/proc/thread-self/status", FILTER, |line| unfiltered &= is_unfiltered(line)) {
        Ok(()) if unfiltered => Filter::No,
        Err(error) if is_passing(error) => Filter::Unknown,
        _ => Filter::Yes,
    }
}

/// [`filter`] where the process has no room for another open file: by a call that few filters know.
pub fn filter_without_files() -> Filter {
    // SAFETY: the call takes no pointers.
    let mode = unsafe { arch::syscall(libc::SYS_prctl as usize, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) };
    // An error may be a filter's answer, also that of a kernel without seccomp, which does not know the question.
    if mode == 0 { Filter::No } else { Filter::Yes }
}

/// Whether a seccomp filter watches the calling thread, or may.
pub fn is_filtered() -> bool {
    filter() != Filter::No
}

const STATE: &[u8] = b"State:";
const THREADS: &[u8] = b"Threads:";
/// What says whose the process is, and whether it is filtered; whether its first thread has ended, and how many there are.
const PROCESS: &[&[u8]] =
    &[STATE, THREADS, b"Uid:", b"Gid:", b"Groups:", b"CapEff:", b"CapPrm:", b"NoNewPrivs:", b"Seccomp:"];

/// FNV-1a, from its offset basis on.
const BASIS: u64 = 0xCBF2_9CE4_8422_2325;

fn digest(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}

/// A number that tells one sequence of bytes from another.
pub fn digest_of(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(BASIS, |hash, b| digest(hash, &[b]))
}

/// What [`look`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// A number that changes when the process's first thread gets other users, groups or capabilities, or a filter.
    pub credentials: u64,
    /// The first thread has ended, and one is left.
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
            self.one_is_left &= number(threads) == Some(2);
        } else {
            self.credentials = digest(self.credentials, line);
        }
    }
}

/// Looks at the process.
///
/// # Errors
/// That cannot be done, see [`is_passing`].
pub fn look() -> Result<Look, Errno> {
    let mut look = Look::NEW;
    each_line_of(c"/proc/self/status", PROCESS, |line| look.add(line))?;
    Ok(look)
}

/// The exit status of the process's first thread, which has ended.
pub fn status_of_first() -> Option<u8> {
    // The last number of the line, as for `wait`; the line comes in pieces.
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

    /// What is hashed of `text`, read `step` bytes at a time, and whether it says that no filter is there.
    fn read(text: &[u8], step: usize) -> (u64, bool) {
        let (mut hash, mut unfiltered) = (BASIS, true);
        for pass in 0..2 {
            let mut left = text;
            let reader = |buffer: &mut [u8]| {
                let n = left.len().min(step).min(buffer.len());
                buffer[..n].copy_from_slice(&left[..n]);
                left = &left[n..];
                Some(n)
            };
            if pass == 0 {
                let mut look = Look::NEW;
                each_line(reader, PROCESS, |line| look.add(line)).unwrap();
                hash = look.credentials;
            } else {
                each_line(reader, FILTER, |line| unfiltered &= is_unfiltered(line)).unwrap();
            }
        }
        (hash, unfiltered)
    }

    /// Catches a filter that is overlooked, also behind a line of many groups, and wherever reads end.
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

    /// Catches a change of user that is overlooked, and a change of something else that is not.
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

    /// Catches numbers that are read wrong: a limit would be missed, or memory refused without need.
    #[test]
    fn counts_mappings_and_threads() {
        assert_eq!(number(b"1234 56\n"), Some(1234));
        assert_eq!(number(b"\t7"), Some(7));
        assert_eq!(number(b"x"), None);
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

    /// Catches a filter that comes into force while a thread makes unusual calls: one that began when they were forbidden, for
    /// a filter that was refused then.
    #[test]
    fn a_filter_waits_for_those_that_were_allowed_again() {
        // SAFETY: the child, of one thread, changes only itself.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                UNDER_WAY.store(0, Ordering::SeqCst);
                let asked = forbid();
                let late = Asking::begin();
                let before = (is_forbidden(), is_under_way());
                asked.answered(false);
                let then = (is_forbidden(), is_under_way());
                drop(late);
                let good = before == (true, false) && then == (false, true) && !is_under_way();
                libc::_exit(i32::from(!good));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
    }
}
