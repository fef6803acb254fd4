//! Learns from the system that memory is short, by the protocol that systemd has for services
//! (<https://systemd.io/PRESSURE>): MEMORY_PRESSURE_WATCH names a file, and MEMORY_PRESSURE_WRITE has what is to be
//! written into it, in Base64. The file is
//! - a file of the kernel's pressure stall information: POLLPRI says that tasks waited for memory longer than what was
//!   written there allows;
//! - a FIFO or a socket of the file system: what comes is read and discarded, and says the same.
//!
//! Only the helper watches it, in its own table of files. So the program does not see the file and cannot close it, and
//! children and executed programs do not inherit it. If the helper has no such table (under a filter that the program
//! was started with), nothing is watched.
//!
//! While it watches, the helper waits for files instead of a futex. Other threads wake it by a signal, which is blocked
//! in it and which it reads from a file (signalfd). No handler of the program can run for that. The file also reports a
//! signal that was sent to the process and that all threads block. That signal is the program's, and stays: the helper
//! takes the signal only if one is pending for the helper itself (SigPnd of /proc/PID/status), because the kernel
//! delivers that one first.

use crate::arch;
use crate::observe::once::AtStart;
use crate::system::call::{self, Plain, plain};
use crate::system::clock;
use crate::system::filter::Asking;
use crate::system::lines;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
use neap_core::text::Text;
use neap_core::time::passed;
use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// The variable with the path of the file.
pub const WATCH: &str = "MEMORY_PRESSURE_WATCH";
/// The variable with the bytes that neap writes to the file.
pub const WRITE: &str = "MEMORY_PRESSURE_WRITE";

/// Milliseconds after a report during which the file is not watched, so that a file that reports all the time costs
/// little.
const PAUSE_MS: u64 = 500;
/// Most bytes that are discarded at a time.
const DISCARDED: usize = 256 << 10;
/// The signal that wakes the helper: one that programs ignore, or expect at any time, should it ever reach another
/// thread.
const SIGNAL: libc::c_int = libc::SIGURG;
/// As a mask.
const SIGNALS: u64 = 1 << (SIGNAL - 1);
/// Longest sleep, in milliseconds, while such a signal of the program's is pending: it keeps the signalfd readable, so
/// the helper cannot be woken by it.
const NAP_MS: u32 = 50;

/// A copy of the variables, because a program may overwrite its environment.
struct Chosen {
    /// The path; empty: nothing is to be watched.
    path: Text<1024>,
    write: Text<128>,
}

// In a section apart from the data that each start writes, because it is long.
#[unsafe(link_section = ".sbss.neap")]
static CHOSEN: AtStart<Chosen> = AtStart::new(Chosen { path: Text::new(), write: Text::new() });

/// Notes the values of the variables. False if the protocol does not allow them; then nothing is watched.
///
/// # Safety
/// To be called once, while the process has one thread.
pub unsafe fn choose(path: &[u8], write: &[u8]) -> bool {
    if path == b"/dev/null" {
        return true;
    }
    // SAFETY: as the caller promises.
    unsafe {
        CHOSEN.change(|chosen| {
            path.starts_with(b"/") && decode(write, |byte| chosen.write.push(byte)) && chosen.path.append(path)
        })
    }
}

/// Decodes Base64. False if the text is not Base64, or `take` refuses a byte.
fn decode(text: &[u8], mut take: impl FnMut(u8) -> bool) -> bool {
    if !text.len().is_multiple_of(4) {
        return false;
    }
    let digits = text.strip_suffix(b"=").unwrap_or(text);
    let digits = digits.strip_suffix(b"=").unwrap_or(digits);
    let mut bits = 0u32;
    for (i, &digit) in digits.iter().enumerate() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return false,
        };
        bits = bits << 6 | u32::from(value);
        // Of four digits, the first completes no byte, each other one does.
        if !i.is_multiple_of(4) && !take((bits >> (6 - 2 * (i % 4))) as u8) {
            return false;
        }
    }
    true
}

/// The watched file and the file of the signal, as numbers in the helper's table; -1: none. Changed by the helper
/// alone.
static FILE: AtomicI32 = AtomicI32::new(-1);
static WAKER: AtomicI32 = AtomicI32::new(-1);
/// The event that ppoll reports of the file when memory is short.
static EVENT: AtomicI32 = AtomicI32::new(0);
/// Whether the helper waits for files, or is about to.
static RESTS: AtomicBool = AtomicBool::new(false);
/// The time of the last report, after which there is a pause, by the coarse clock.
static REPORTED: AtomicU64 = AtomicU64::new(0);

/// Whether the helper watches for memory pressure.
pub fn is_watched() -> bool {
    // Relaxed, here and below: a helper reads what it wrote itself; other threads need no more than a hint.
    FILE.load(Ordering::Relaxed) >= 0
}

/// To be called in the child of a fork, which has no helper.
pub(super) fn forked() {
    FILE.store(-1, Ordering::Relaxed);
    RESTS.store(false, Ordering::Relaxed);
}

/// The helper's first step: opens the file. `own`: the helper has a table of files of its own.
pub(super) fn begin(own: bool) {
    // A child that was made without fork handlers has its parent's numbers.
    forked();
    let Chosen { path, write } = CHOSEN.get();
    if path.bytes().is_empty() || !own {
        return;
    }
    let Some((file, event)) = path.c_str().and_then(open) else { return };
    if !write.bytes().is_empty() && !call::write(file.as_raw_fd(), write.bytes()) {
        return;
    }
    if event == libc::POLLIN {
        // A FIFO gives back what was just written.
        discard(file.as_raw_fd());
    }
    let Some(waker) = waker() else { return };
    EVENT.store(event.into(), Ordering::Relaxed);
    WAKER.store(waker.into_raw_fd(), Ordering::Relaxed);
    FILE.store(file.into_raw_fd(), Ordering::Relaxed);
}

/// Opens the file; also returns what ppoll reports of it where memory is short.
fn open(path: &CStr) -> Option<(OwnedFd, i16)> {
    let kind = FileType::from_raw_mode(rustix::fs::stat(path).ok()?.st_mode);
    // A FIFO too is opened for reading and writing: without a writer it would report its end all the time.
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match kind {
        FileType::RegularFile => Some((rustix::fs::open(path, flags, Mode::empty()).ok()?, libc::POLLPRI)),
        FileType::Fifo => Some((rustix::fs::open(path, flags, Mode::empty()).ok()?, libc::POLLIN)),
        FileType::Socket => Some((connect(path)?, libc::POLLIN)),
        _ => None,
    }
}

/// A file of a system call that makes one.
///
/// # Safety
/// The call must make a file, and use no memory that is not the caller's.
unsafe fn file_of(number: libc::c_long, arguments: [usize; 6]) -> Option<OwnedFd> {
    // SAFETY: as the caller promises.
    let result = unsafe { arch::syscall(number as usize, arguments) };
    // SAFETY: the number is that of a new file, which no other code knows.
    (!arch::is_error(result)).then(|| unsafe { OwnedFd::from_raw_fd(result as RawFd) })
}

/// A stream that is connected to the socket of this path.
fn connect(path: &CStr) -> Option<OwnedFd> {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let path = path.to_bytes_with_nul();
    address
        .sun_path
        .get_mut(..path.len())?
        .iter_mut()
        .zip(path)
        .for_each(|(to, &from)| *to = libc::c_char::from_ne_bytes([from]));
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call makes a file, and is given no memory.
    let file = unsafe { file_of(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0]) }?;
    let (number, at) = (file.as_raw_fd() as usize, (&raw const address).expose_provenance());
    // SAFETY: the kernel reads the address.
    let result = unsafe { arch::syscall(libc::SYS_connect as usize, [number, at, size_of_val(&address), 0, 0, 0]) };
    (!arch::is_error(result)).then_some(file)
}

/// The file from which the helper takes the signal that wakes it.
fn waker() -> Option<OwnedFd> {
    let signals = SIGNALS;
    let (at, flags) = ((&raw const signals).expose_provenance(), libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
    // SAFETY: the call makes a file, and reads the set of eight bytes.
    unsafe { file_of(libc::SYS_signalfd4, [usize::MAX, at, size_of_val(&signals), flags as usize, 0, 0]) }
}

/// See `Threads::rest`. Called by a helper that watches.
pub(crate) fn rest(word: &AtomicU32, value: u32, milliseconds: u32) -> bool {
    let [file, waker] = [&FILE, &WAKER].map(|number| number.load(Ordering::Relaxed));
    let event = EVENT.load(Ordering::Relaxed) as i16;
    let pause = PAUSE_MS.saturating_sub(passed(clock::coarse_milliseconds(), REPORTED.load(Ordering::Relaxed)));
    // SeqCst, and the fence: this thread sees the changed word, or the thread that changed it sees that this one rests.
    RESTS.store(true, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let mut asked = [waker, file].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    asked[1].events = event;
    let mut is_over = false;
    if word.load(Ordering::SeqCst) == value {
        let (files, most) = if pause > 0 { (1, milliseconds.min(pause as u32)) } else { (2, milliseconds) };
        call::wait_for_files(&mut asked[..files], most);
        if asked[0].revents != 0 {
            match lines::waiting_signals() {
                Ok(own) if own & SIGNALS != 0 => take_one(waker),
                Ok(_) if asked[1].revents != 0 => {}
                Ok(_) => call::wait_for_files(&mut asked[1..files], most.min(NAP_MS)),
                Err(_) => is_over = true,
            }
        }
    }
    RESTS.store(false, Ordering::SeqCst);
    let reported = asked[1].revents;
    let is_short = reported & event != 0;
    // A file that is at its end, or broken, would report that all the time.
    is_over |= reported & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0
        || (is_short && event == libc::POLLIN && !discard(file));
    if is_over {
        for number in [&FILE, &WAKER] {
            let number = number.swap(-1, Ordering::Relaxed);
            // SAFETY: the helper's own files, which it does not use again.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
    if is_short {
        REPORTED.store(clock::coarse_milliseconds(), Ordering::Relaxed);
    }
    is_short
}

/// Takes one signal.
fn take_one(waker: RawFd) {
    let mut signal = [0; size_of::<libc::signalfd_siginfo>()];
    let _ = rustix::io::read(call::by_number(waker), &mut signal);
}

/// Reads what there is, and discards it. False at the end of the file, or where it cannot be read.
fn discard(file: RawFd) -> bool {
    let (mut piece, mut left) = ([0; 512], DISCARDED);
    loop {
        match rustix::io::read(call::by_number(file), &mut piece) {
            Ok(0) => return false,
            Ok(_) if left == 0 => return true,
            Ok(n) => left = left.saturating_sub(n),
            Err(error) => return error == Errno::AGAIN,
        }
    }
}

/// See `Threads::rouse`: wakes a helper that waits for files. `helper` is its thread.
pub(crate) fn end_rest(helper: &AtomicU32) {
    // As in `rest`.
    fence(Ordering::SeqCst);
    if RESTS.load(Ordering::SeqCst)
        && let Some(_asking) = Asking::if_allowed()
    {
        // If that helper has ended, no thread has its number, or a later one has it: see [`SIGNAL`].
        plain(Plain::Tgkill, [call::process() as usize, helper.load(Ordering::Relaxed) as usize, SIGNAL as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches bytes that are decoded to others, and texts that are no Base64 and are taken for it.
    #[test]
    fn base64() {
        let decoded = |text: &[u8]| {
            let mut bytes = Vec::new();
            let all = decode(text, |byte| {
                bytes.push(byte);
                true
            });
            all.then_some(bytes)
        };
        assert_eq!(decoded(b"c29tZSAyMDAwMDAgMjAwMDAwMAA=").as_deref(), Some(&b"some 200000 2000000\0"[..]));
        assert_eq!(decoded(b"+/8A").as_deref(), Some(&[0xFB, 0xFF, 0][..]));
        assert_eq!(decoded(b"").as_deref(), Some(&[][..]));
        for wrong in [&b"c29"[..], b"c29t ", b"c2?t", b"=c2t"] {
            assert_eq!(decoded(wrong), None, "{wrong:?}");
        }
    }
}
