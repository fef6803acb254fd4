//! Makes OS pages resident: MADV_POPULATE_READ and MADV_POPULATE_WRITE (Linux 5.14), else each is touched.
//!
//! The kernel touches them, not this process: if the kernel cannot serve a load or store of the process, that is a
//! signal, while a system call that reads or writes there returns EFAULT. Reading is done by a call that compares a
//! word (`neap_sys::call::is_readable`). Writing is done by FUTEX_WAKE_OP, which adds 0 to a word in one atomic step.
//! So the contents do not change, even if other threads write to them at the same time.

use crate::error::Error;
use crate::kernel::{self, page_size};
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use neap_sys::call;
use rustix::io::Errno;

/// What the range is populated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading: OS pages of private memory that were never written become the shared page of zeros, OS pages of
    /// files are read.
    Read,
    /// For writing: each OS page gets memory of its own.
    Write,
}

const UNKNOWN: u8 = 0;
const WORKS: u8 = 1;
const FAILS: u8 = 2;

/// Whether the kernel has the two kinds of advice.
fn is_supported() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    // Relaxed: all threads find the same.
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            // The OS page of a local variable is certainly mapped and writable.
            let place = 0u8;
            let page = (&raw const place).cast_mut().map_addr(|at| at & !(page_size() - 1));
            let works = call::populate(page, page_size()).is_ok();
            KNOWN.store(if works { WORKS } else { FAILS }, Ordering::Relaxed);
            works
        }
        known => known == WORKS,
    }
}

/// How often a call that a signal interrupted is made again.
const TRIES: u32 = 1000;

/// Makes the OS pages of a range resident; `start` and `bytes` are whole OS pages. No contents change, so any addresses
/// may be given.
///
/// # Errors
/// - [`Error::Inaccessible`]: a part is not mapped, does not permit this access, or is beyond the end of its file.
/// - [`Error::NoMemory`], [`Error::Poisoned`]: as they say.
/// - [`Error::Unsupported`]: a filter of system calls refuses all ways.
///
/// What comes before the error may be resident.
pub fn populate(start: *const u8, bytes: usize, access: Access) -> Result<(), Error> {
    if !is_supported() {
        return touch(start, bytes, access);
    }
    let advice = match access {
        Access::Read => libc::MADV_POPULATE_READ,
        Access::Write => libc::MADV_POPULATE_WRITE,
    };
    for _ in 0..TRIES {
        // SAFETY: no contents change.
        match unsafe { kernel::advise(start.cast_mut(), bytes, advice) } {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            // Not mapped, or out of memory.
            Err(Errno::NOMEM) if kernel::resident(start, bytes, |_| ()) == Err(Errno::NOMEM) => {
                return Err(Error::Inaccessible);
            }
            Err(Errno::INVAL) => return Err(Error::Inaccessible),
            // A filter of system calls that came later.
            Err(Errno::PERM | Errno::NOSYS | Errno::ACCESS) => return touch(start, bytes, access),
            Err(error) => return Err(error.into()),
        }
    }
    // Signals do not come as often: a filter of system calls refuses in this way.
    touch(start, bytes, access)
}

/// [`populate`] one OS page after the other: a range may have larger pages in part, or begin inside one.
fn touch(start: *const u8, bytes: usize, access: Access) -> Result<(), Error> {
    (0..bytes).step_by(page_size()).try_for_each(|at| {
        let word = start.wrapping_add(at).expose_provenance();
        match access {
            Access::Read if call::is_readable(word as u64) => Ok(()),
            Access::Read => Err(Error::Inaccessible),
            Access::Write => add_nothing(word),
        }
    })
}

/// Lets the kernel add 0 to the word at an address, which begins an OS page.
fn add_nothing(word: usize) -> Result<(), Error> {
    const ADD: usize = 1 << 28;
    // Threads that wait for the word are woken if it has this value. A program has to expect that of any futex.
    const COMPARED: usize = 0x5AB;
    let operation = (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as usize;
    // No thread waits for this one.
    let other = AtomicU32::new(0);
    let arguments = [other.as_ptr().expose_provenance(), operation, 0, 0, word, ADD | COMPARED];
    // SAFETY: the kernel adds 0 in one atomic step, which changes nothing, and checks the address.
    match unsafe { kernel::syscall(libc::SYS_futex, arguments) } {
        Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
