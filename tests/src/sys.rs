//! The few system calls that std lacks: signals, limits, unnamed files, temporary folders.
//!
//! Uses `libc` only. A build of the whole workspace also makes libneap.so, which has no std, and cargo unites the
//! features of the crates that both use: `tempfile`, or `rustix` with its defaults, would break that build.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A signal's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(i32);

impl Signal {
    /// SIGABRT.
    pub const ABORT: Signal = Signal(libc::SIGABRT);
    /// SIGHUP.
    pub const HUP: Signal = Signal(libc::SIGHUP);
    /// SIGINT.
    pub const INT: Signal = Signal(libc::SIGINT);
    /// SIGKILL.
    pub const KILL: Signal = Signal(libc::SIGKILL);
    /// SIGQUIT.
    pub const QUIT: Signal = Signal(libc::SIGQUIT);
    /// SIGTERM.
    pub const TERM: Signal = Signal(libc::SIGTERM);

    /// The number, as in `ExitStatusExt`.
    pub fn as_raw(self) -> i32 {
        self.0
    }
}

fn result(status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// A process id that names one process: above 1, and not negative as a pid_t.
fn one(pid: u32) -> Result<i32> {
    i32::try_from(pid).ok().filter(|&pid| pid > 1).ok_or_else(|| Error::from_raw_os_error(libc::ESRCH))
}

/// Sends `signal` to the process `pid`.
pub fn kill(pid: u32, signal: Signal) -> Result<()> {
    let pid = one(pid)?;
    // SAFETY: kill takes no pointers.
    result(unsafe { libc::kill(pid, signal.0) })
}

/// Sends `signal` to the process group that `leader` leads.
pub fn kill_group(leader: u32, signal: Signal) -> Result<()> {
    let leader = one(leader)?;
    // SAFETY: kill takes no pointers.
    result(unsafe { libc::kill(-leader, signal.0) })
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    // SAFETY: geteuid only reads.
    unsafe { libc::geteuid() == 0 }
}

/// Keeps this process and its children from writing core files.
pub fn no_core_files() -> Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is only read.
    result(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) })
}

/// An unnamed file, gone with its last descriptor. On disk where possible: a file in memory cannot be written while the
/// tests use up all the memory that the kernel promises.
pub fn unnamed_file() -> Result<File> {
    let on_disk = File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).open(crate::target_dir());
    if on_disk.is_ok() {
        return on_disk;
    }
    // SAFETY: the name is a string with its zero; the descriptor is new and belongs to the file.
    unsafe {
        let descriptor = libc::memfd_create(c"neap-test".as_ptr(), libc::MFD_CLOEXEC);
        if descriptor < 0 { Err(Error::last_os_error()) } else { Ok(File::from_raw_fd(descriptor)) }
    }
}

/// A new folder below the system's folder for temporary files, removed with its contents when this is dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes the folder; its name starts with `prefix`, and only this user has access.
    pub fn new(prefix: &str) -> Result<Self> {
        Self::below(&std::env::temp_dir(), prefix)
    }

    /// The same below another folder.
    pub fn below(folder: &Path, prefix: &str) -> Result<Self> {
        let template = folder.join(format!("{prefix}XXXXXX"));
        let name = CString::new(template.as_os_str().as_bytes())?.into_raw();
        // SAFETY: mkdtemp changes six letters of the string in place; the string is taken back whole.
        let (made, name) = unsafe { (!libc::mkdtemp(name).is_null(), CString::from_raw(name)) };
        if !made {
            return Err(Error::last_os_error());
        }
        Ok(TempDir(PathBuf::from(std::ffi::OsString::from_vec(name.into_bytes()))))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of `name` in it.
    pub fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.0.join(name.as_ref())
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A failure is harmless: the system cleans its folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
