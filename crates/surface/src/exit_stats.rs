//! Option `stats`: when the process exits, it reports what it used and holds, on standard error or in a file. The words
//! are those of `neap run --summary`.
//!
//! The figures are those that `neap_stats_get` reads, so calls of malloc and free count nothing for this. Only the
//! destructor of the library writes: no signal handler does, and a process that ends by `_exit`, a signal or exec
//! reports nothing.

use crate::line::Line;
use crate::usage;
use core::ffi::CStr;
use core::fmt::{Display, Formatter, Result, Write};
use core::sync::atomic::Ordering;
use neap_control::options::STATS;
use neap_core::figures::Figures;
use neap_options::amount::{Bytes, Count};
use neap_options::{Id, Quoted, Value};
use neap_ranges::kernel;
use neap_sys::global::NEAP;
use neap_sys::once::AtStart;
use neap_sys::{call, filter, lines, program, thread};
use rustix::fd::{IntoRawFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

/// Lowest number for the copy of standard error: programs expect low numbers for their own files.
const COPY_FROM: RawFd = 250;

/// Standard error as it was at the start. With `exit` it is a copy, as many programs close theirs when they exit.
struct Kept {
    number: RawFd,
    /// The file; 0: there was none.
    identity: u64,
}

#[unsafe(link_section = ".sbss.neap")]
static STANDARD_ERROR: AtStart<Kept> = AtStart::new(Kept { number: 0, identity: 0 });

/// Notes where the report goes; false if it cannot go there.
///
/// # Safety
/// To be called once, while the process has one thread.
pub unsafe fn start(value: Value<'_>) -> bool {
    let own = call::by_number(libc::STDERR_FILENO);
    let (text, number) = match value {
        Value::Path(path) if has_folder(path) => (path, libc::STDERR_FILENO),
        Value::Path(_) => return false,
        Value::Word("exit") => {
            let copy = rustix::io::fcntl_dupfd_cloexec(own, COPY_FROM);
            (&b"exit"[..], copy.map_or(libc::STDERR_FILENO, IntoRawFd::into_raw_fd))
        }
        _ => return true,
    };
    let identity = call::identity(own);
    // SAFETY: as the caller promises.
    unsafe {
        STANDARD_ERROR.change(|kept| *kept = Kept { number, identity });
        STATS.change(|copy| copy.append(text))
    }
}

/// Whether the folder of a path exists.
fn has_folder(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let path = path.strip_suffix(name).unwrap_or_default();
    let mut folder = Line::new();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = |path: &CStr| openat(CWD, path, flags, Mode::empty()).is_ok();
    // A folder whose name has `%p` is checked when the file is opened.
    folder.append(path) && (path.contains(&b'%') || folder.c_str().is_some_and(opened))
}

/// Reports, if the option says so. A program that has given itself a filter of system calls reports nothing; nor does a
/// child that was made without fork handlers, which might wait for ever for a lock.
pub fn finish() {
    let target = STATS.get().bytes();
    if target.is_empty() || filter::is_forbidden() || !program::owns_memory() {
        return;
    }
    // A handler that ends the process in the middle of a call reports nothing.
    let Some(figures) = thread::in_call(|_| NEAP.figures()) else { return };
    let mut report = Line::new();
    let _ = write!(report, "{}", Report(&figures));
    call::without_signals_of_writes(|| {
        if target == b"exit" {
            return to_standard_error(report.bytes());
        }
        if let Err(error) = to_file(target, report.bytes()) {
            let mut line = Line::new();
            let (name, error) = (Id::Stats.option().env, error.raw_os_error());
            let _ = writeln!(line, "neap: {name}: the file cannot be written (error {error})");
            to_standard_error(line.bytes());
        }
    });
}

/// Writes to the file that was standard error at the start: by its copy or, where the program has closed that, by its
/// own number. A file that has either number now gets nothing.
fn to_standard_error(text: &[u8]) {
    let kept = STANDARD_ERROR.get();
    let is_it = |&number: &RawFd| kept.identity != 0 && call::identity(call::by_number(number)) == kept.identity;
    if let Some(number) = [kept.number, libc::STDERR_FILENO].into_iter().find(is_it) {
        call::write(number, text);
    }
}

/// Adds the text to the file in one write, so that reports of several processes do not mix.
fn to_file(path: &[u8], text: &[u8]) -> core::result::Result<(), Errno> {
    let mut name = Line::new();
    let mut process = Line::new();
    let _ = write!(process, "{}", call::process());
    let mut rest = path;
    while let Some(place) = rest.windows(2).position(|two| two == b"%p") {
        let (before, after) = rest.split_at_checked(place).unwrap_or_default();
        if !name.append(before) || !name.append(process.bytes()) {
            return Err(Errno::NAMETOOLONG);
        }
        rest = after.get(2..).unwrap_or_default();
    }
    let name = name.append(rest).then(|| name.c_str()).flatten().ok_or(Errno::NAMETOOLONG)?;
    // NONBLOCK: if the file is a pipe, this does not wait for a reader.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let file = openat(CWD, name, flags, mode)?;
    call::write_all(neap_sys::files::number(&file), text)
}

/// The report of the process.
struct Report<'a>(&'a Figures);

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (figures, usage) = (self.0, usage::of(libc::RUSAGE_SELF));
        let number = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
        writeln!(f, "neap: process {} ({})", call::process(), Quoted(name(&mut [0; 16])))?;
        // The kernel's unit is KiB.
        let peak = lines::peak_resident().map_or(number(usage.ru_maxrss) << 10, |peak| peak as u64);
        writeln!(f, "  peak resident  {}", Bytes(peak))?;
        let (minor, major) = (number(usage.ru_minflt), number(usage.ru_majflt));
        writeln!(f, "  faults         {} minor, {} major", Count(minor), Count(major))?;
        let amount = |f: &mut Formatter<'_>, label: &str, blocks, bytes| {
            let plural = if blocks == 1 { "" } else { "s" };
            writeln!(f, "  {label}{} block{plural}, {}", Count(blocks), Bytes(bytes))
        };
        // Relaxed: the numbers stand for themselves.
        if let Some(page) = NEAP.os.counters().filter(|page| page.exact.load(Ordering::Relaxed) != 0) {
            let read = |[blocks, bytes]: [&core::sync::atomic::AtomicU64; 2]| {
                (blocks.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
            };
            let (blocks, bytes) = read([&page.blocks_allocated, &page.bytes_allocated]);
            amount(f, "allocated      ", blocks, bytes)?;
            let (blocks, bytes) = read([&page.blocks_freed, &page.bytes_freed]);
            amount(f, "freed          ", blocks, bytes)?;
        }
        amount(f, "live at exit   ", figures.live_blocks, figures.live)?;
        writeln!(f, "  given back     {}", Bytes(figures.totals.purged))?;
        let (cleared, zero) = (Bytes(figures.totals.cleared), Bytes(figures.totals.skipped));
        writeln!(f, "  calloc         {cleared} cleared, {zero} known to be zero")
    }
}

/// The name of the calling thread: that of the program, in a process of one thread.
fn name(buffer: &mut [u8; 16]) -> &[u8] {
    let to = buffer.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes at most 16 bytes.
    let _ = unsafe { kernel::syscall(libc::SYS_prctl, [libc::PR_GET_NAME as usize, to, 0, 0, 0, 0]) };
    buffer.split(|&byte| byte == 0).next().unwrap_or_default()
}
