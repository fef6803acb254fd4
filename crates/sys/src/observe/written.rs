//! Profiles that this process writes about itself, for pprof, from the file of samples (`neap_samples::pprof`).
//!
//! Nothing is allocated from the heap, and no lock is taken, so a signal handler may write a profile wherever it
//! interrupted its thread. The work uses a separate mapping, which is removed at the end.

use crate::arch;
use crate::observe::files::{self, Directory};
use crate::observe::profile::Kept;
use crate::system::call::{self, READ_WRITE};
use crate::system::clock;
use crate::system::filter::{self, Asking, Filter};
use core::ffi::c_void;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering};
use neap_core::text::Text;
use neap_samples::pprof::{self, Kind, Time};
use neap_samples::{Table, View, Word, words};
use rustix::fd::RawFd;
use rustix::io::Errno;
use rustix::mm::{self, MapFlags};

/// Why a profile was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// No samples were ever taken in this process.
    NoSamples,
    /// There is no memory for the work.
    NoMemory,
    /// The sink refused bytes.
    Refused,
    /// The file took no more: the system's reason.
    File(Errno),
}

/// Memory that ends with this value.
#[derive(Debug)]
struct Scratch {
    start: *mut u8,
    bytes: usize,
}

impl Scratch {
    /// At least `bytes` zeroed bytes.
    fn new(bytes: usize) -> Option<Self> {
        let bytes = bytes.next_multiple_of(call::page_size());
        let start = call::fresh(0, bytes, READ_WRITE, MapFlags::PRIVATE)?;
        Some(Scratch { start, bytes })
    }

    /// The memory as words.
    fn words(&mut self) -> &mut [u64] {
        // SAFETY: the mapping is zeroed, as long, and this value's alone.
        unsafe { core::slice::from_raw_parts_mut(self.start.cast(), self.bytes / 8) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The kernel may have joined the mapping with its neighbours. Removing it then takes one mapping more, which
        // the limit on mappings may not allow. In that case the addresses stay, and the memory goes back.
        // SAFETY: the mapping is this value's alone.
        unsafe {
            if mm::munmap(self.start.cast(), self.bytes).is_err() {
                let _ = mm::madvise(self.start.cast(), self.bytes, mm::Advice::LinuxDontNeed);
            }
        }
    }
}

fn nanoseconds(clock: libc::clockid_t) -> u64 {
    clock::read(clock).map_or(0, |now| now.as_nanos() as u64)
}

/// Writes a profile to `sink`, which returns false when it takes no more.
pub fn write(kept: &Kept, kind: Kind, sink: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Unwritten> {
    let table: Table<'_> = kept.existing().ok_or(Unwritten::NoSamples)?;
    let used = table.header(Word::Frames).load(Ordering::Relaxed);
    let (file, set) = (words(0), pprof::scratch(used));
    let mut scratch = Scratch::new((file + set) * 8).ok_or(Unwritten::NoMemory)?;
    let (copy, set) = scratch.words().split_at_mut_checked(file).ok_or(Unwritten::NoMemory)?;
    table.copy(copy);
    let view = View::of(copy).map_err(|_| Unwritten::NoSamples)?;
    let time = Time { now: nanoseconds(libc::CLOCK_MONOTONIC), date: nanoseconds(libc::CLOCK_REALTIME) };
    if pprof::write(&view, kind, time, set, sink) { Ok(()) } else { Err(Unwritten::Refused) }
}

/// Writes a profile to an open file. A reader that has gone away is an error, and no SIGPIPE; a limit of file sizes is
/// one, and no SIGXFSZ.
pub fn write_to(kept: &Kept, kind: Kind, file: RawFd) -> Result<(), Unwritten> {
    let mut why = None;
    let done = call::without_signals_of_writes(|| {
        write(kept, kind, &mut |bytes| match call::write_all(file, bytes) {
            Ok(()) => true,
            Err(error) => {
                why = Some(error);
                false
            }
        })
    });
    done.map_err(|unwritten| why.map_or(unwritten, Unwritten::File))
}

/// The process in which a handler writes a profile now; 0: none. A child of fork has a copy, which names its parent.
static WRITER: AtomicU32 = AtomicU32::new(0);
/// Bytes of the stack on which a handler works: that of the program may be short.
const STACK: usize = 64 << 10;

/// Writes a profile into a new file `PID.N.pb` of `directory`, from a signal handler. If that fails, a line on standard
/// error says why. A signal that comes meanwhile does nothing.
pub fn by_signal(kept: &Kept, directory: &Directory) {
    let own = call::process();
    // Acquire pairs with the Release below: one handler runs after the other.
    let writer = WRITER.load(Ordering::Relaxed);
    if writer == own || WRITER.compare_exchange(writer, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    let mut work = Work { kept, directory, done: Err(Unwritten::NoMemory) };
    if let Some(stack) = Scratch::new(STACK) {
        // SAFETY: the end of a mapping that is this function's alone and longer than `in_file` needs; `work` is the
        // argument that `in_file` expects.
        unsafe { arch::call_on(stack.start.add(stack.bytes), in_file, (&raw mut work).cast()) };
    }
    WRITER.store(0, Ordering::Release);
    let Err(why) = work.done else { return };
    let mut line = Text::<192>::new();
    let _ = match why {
        Unwritten::NoSamples => writeln!(line, "neap: profile_signal: no samples are kept, so there is no profile"),
        Unwritten::NoMemory => writeln!(line, "neap: profile_signal: there is no memory to write a profile"),
        Unwritten::Refused => writeln!(line, "neap: profile_signal: the program's filter forbids new files"),
        Unwritten::File(Errno::NOSPC | Errno::DQUOT) => {
            writeln!(line, "neap: profile_signal: no profile was written: the disk is full")
        }
        Unwritten::File(Errno::MFILE | Errno::NFILE) => {
            writeln!(line, "neap: profile_signal: no profile was written: there is no room for another open file")
        }
        Unwritten::File(error) => {
            writeln!(line, "neap: profile_signal: no profile was written: error {}", error.raw_os_error())
        }
    };
    let _ = call::without_signals_of_writes(|| call::write_all(libc::STDERR_FILENO, line.bytes()));
}

/// The argument of [`in_file`], and its result.
struct Work<'a> {
    kept: &'a Kept,
    directory: &'a Directory,
    done: Result<(), Unwritten>,
}

/// Does the work of [`by_signal`].
///
/// # Safety
/// `work` must point to a [`Work`] that nothing else uses now.
unsafe extern "C" fn in_file(work: *mut c_void) {
    // SAFETY: as the caller promises.
    let work = unsafe { &mut *work.cast::<Work<'_>>() };
    let asking = Asking::if_allowed();
    work.done = match asking.as_ref().map(|_| filter::filter()) {
        // Unknown: no file descriptor is free. Making the file fails then, with that error.
        Some(Filter::No | Filter::Unknown) => {
            let write = |file: &_| write_to(work.kept, Kind::Heap, files::number(file));
            work.directory.create_named(".pb", write).unwrap_or_else(|error| Err(Unwritten::File(error)))
        }
        Some(Filter::Yes) | None => Err(Unwritten::Refused),
    };
}
