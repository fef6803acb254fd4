//! userfaultfd in safe form: only what turns fault-around off.
//!
//! The kernel maps the pages around a fault only where no userfaultfd handles single pages. A mapping that is
//! registered for write protection is such a place, even if no page of it is ever protected. With
//! `UFFD_FEATURE_WP_ASYNC` (Linux 6.7) mappings of every kind can be registered, and no fault needs an answer.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, c_ulong, pid_t};

/// Flags of the system call: close on exec, and faults of user mode only, which needs no privilege.
pub const FLAGS: u64 = libc::O_CLOEXEC as u64 | 1;

/// `UFFDIO_API`, `UFFDIO_REGISTER`.
const API: c_ulong = 0xc018_aa3f;
const REGISTER: c_ulong = 0xc020_aa00;

/// A userfaultfd; its registrations end when this is closed.
pub struct Userfaultfd(OwnedFd);

impl Userfaultfd {
    /// Makes one for this process, to find out whether that is permitted.
    pub fn probe() -> io::Result<()> {
        // SAFETY: the call takes a number.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, FLAGS) };
        Self::new(owned(fd as c_int)?).map(|_| ())
    }

    /// Copies the descriptor that a stopped process has under this number.
    pub fn of(pid: pid_t, number: u64) -> io::Result<Self> {
        // SAFETY: both calls take numbers.
        let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as c_int)?;
        // SAFETY: as above.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number as c_int, 0) };
        Self::new(owned(fd as c_int)?)
    }

    /// ```text
    /// struct uffdio_api { __u64 api, features, ioctls; };
    /// ```
    fn new(fd: OwnedFd) -> io::Result<Self> {
        const VERSION: u64 = 0xaa;
        const WP_ASYNC: u64 = 1 << 15;
        let mut argument = [VERSION, WP_ASYNC, 0];
        // SAFETY: UFFDIO_API reads and writes a structure of that size.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), API, argument.as_mut_ptr()) })?;
        Ok(Self(fd))
    }

    /// Registers a range of mapped, whole pages of the process.
    ///
    /// ```text
    /// struct uffdio_register { __u64 start, len, mode, ioctls; };
    /// ```
    pub fn register(&self, start: u64, end: u64) -> io::Result<()> {
        const MODE_WP: u64 = 1 << 1;
        let mut argument = [start, end - start, MODE_WP, 0];
        // SAFETY: UFFDIO_REGISTER reads and writes a structure of that size; it changes no memory of neap's, as the
        // addresses are those of the process that made the descriptor.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), REGISTER, argument.as_mut_ptr()) })
    }
}

fn owned(fd: c_int) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: the call succeeded, so the descriptor is open, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
