//! What the process is allowed to do, from /proc: whether a seccomp filter watches its calls, and whose it is.
//!
//! A filter may end the process for a call that it does not know. So neap makes unusual calls (anything but mmap,
//! munmap, mremap, mprotect, madvise, futex) only after a look here. A filter that the program was started with lets
//! those pass that every other program makes ([`is_hostile`]); those that few make are left out ([`is_filtered`]). One that
//! the program gives itself may do anything: neap has to hear of it before (`forbid`; the preload library has the
//! functions by which programs do it, and says so by [`watch`]).

use core::sync::atomic::{AtomicBool, Ordering};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};

/// Most bytes of a status file; it has about 1,500.
const MOST: usize = 4096;

fn open(path: &core::ffi::CStr) -> Option<OwnedFd> {
    rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Calls `f` with the text of a status file; `None` if it cannot be read.
fn with_status<R>(path: &core::ffi::CStr, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let file = open(path)?;
    let mut text = [0; MOST];
    let mut len = 0;
    while len < MOST {
        match rustix::io::read(&file, &mut text[len..]).ok()? {
            0 => break,
            n => len += n,
        }
    }
    Some(f(&text[..len]))
}

/// The lines of a status file that start with one of `names`.
fn lines<'a>(text: &'a [u8], names: &'a [&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
    text.split(|&b| b == b'\n').filter(move |line| names.iter().any(|name| line.starts_with(name)))
}

/// The number at the start of `text`, behind spaces.
fn number(text: &[u8]) -> Option<usize> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// OS pages of all mappings of the process, as RLIMIT_AS counts them; `None` if that cannot be told.
pub fn mapped_pages() -> Option<usize> {
    with_status(c"/proc/self/statm", number)?
}

/// Threads of the process; `None` if that cannot be told.
pub fn threads() -> Option<usize> {
    const NAME: &[u8] = b"Threads:";
    with_status(c"/proc/self/status", |text| number(lines(text, &[NAME]).next()?.strip_prefix(NAME)?))?
}

/// Whether `text` says that no filter is there.
fn is_unfiltered(text: &[u8]) -> bool {
    // A kernel without seccomp has no such line.
    lines(text, &[b"Seccomp:"]).all(|line| line.trim_ascii_end().ends_with(b"\t0"))
}

/// See [`forbid`].
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// From now on unusual calls are forbidden to this process, and looks at files too.
pub(crate) fn forbid() {
    // SeqCst: see `purger::start`.
    FORBIDDEN.store(true, Ordering::SeqCst);
}

/// Whether the process has asked for a filter. One load: for calls that would be made often.
#[inline]
pub fn is_forbidden() -> bool {
    FORBIDDEN.load(Ordering::SeqCst)
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

/// Whether a filter might punish calls that other programs make every day: to open a file and to ask it something, to
/// start a thread, membarrier. A filter that the program was started with (most containers have one) lets those pass, or
/// refuses them; one of its own may do anything.
pub fn is_hostile() -> bool {
    if WATCHED.load(Ordering::Relaxed) { is_forbidden() } else { is_filtered() }
}

/// Whether a seccomp filter watches the calling thread, or nobody can tell: then calls that few programs make are better
/// left out.
pub fn is_filtered() -> bool {
    is_forbidden() || !with_status(c"/proc/thread-self/status", is_unfiltered).unwrap_or(false)
}

/// FNV-1a over what says whose the process is, and whether it is filtered.
fn digest(text: &[u8]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    for line in lines(text, &[b"Uid:", b"Gid:", b"Groups:", b"CapEff:", b"CapPrm:", b"NoNewPrivs:", b"Seccomp:"]) {
        for &b in line {
            hash = (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3);
        }
    }
    hash
}

/// A number that changes when the process's first thread gets other users, groups or capabilities, or a filter. `None`
/// if nobody can tell.
pub fn credentials() -> Option<u64> {
    with_status(c"/proc/self/status", digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"Name:\tx\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t0 \nVmRSS:\t 100 kB\nSeccomp:\t0\n";

    fn replaced(from: &str, to: &str) -> std::vec::Vec<u8> {
        std::str::from_utf8(TEXT).unwrap().replace(from, to).into_bytes()
    }

    /// Catches a filter that is overlooked.
    #[test]
    fn sees_filters() {
        assert!(is_unfiltered(TEXT));
        assert!(is_unfiltered(b"Name:\tx\n"));
        assert!(!is_unfiltered(&replaced("Seccomp:\t0", "Seccomp:\t2")));
        assert!(!is_unfiltered(&replaced("Seccomp:\t0", "Seccomp:\t10")));
        assert!(!is_unfiltered(b"Seccomp:"));
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
        // SAFETY: a fresh mapping that nobody uses.
        unsafe {
            use rustix::mm::{self, MapFlags, ProtFlags};
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let p = mm::mmap_anonymous(core::ptr::null_mut(), LEN, ProtFlags::empty(), flags).unwrap();
            assert!(mapped_pages().unwrap() > before + LEN / 65536 / 2);
            mm::munmap(p, LEN).unwrap();
        }
    }

    /// Catches a change of user that is overlooked, and a change of something else that is not.
    #[test]
    fn sees_other_users() {
        assert_ne!(digest(TEXT), digest(&replaced("Uid:\t0", "Uid:\t1")));
        assert_ne!(digest(TEXT), digest(&replaced("Groups:\t0", "Groups:\t0 7")));
        assert_ne!(digest(TEXT), digest(&replaced("Seccomp:\t0", "Seccomp:\t2")));
        assert_eq!(digest(TEXT), digest(&replaced("100 kB", "200 kB")));
        assert!(credentials().is_some() && credentials() == credentials());
    }
}
