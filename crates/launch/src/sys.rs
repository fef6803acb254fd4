//! The system calls that the standard library lacks, in safe form.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libc::{c_int, c_ulong};

use crate::error::{Error, cannot_print};
use crate::fit::fit;

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn check(result: c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The user and group of this process.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Real user.
    pub uid: u32,
    /// Effective user.
    pub euid: u32,
    /// Real group.
    pub gid: u32,
    /// Effective group.
    pub egid: u32,
}

impl Identity {
    /// The identity of this process.
    pub fn current() -> Self {
        // SAFETY: the four calls take nothing and cannot fail.
        unsafe { Self { uid: libc::getuid(), euid: libc::geteuid(), gid: libc::getgid(), egid: libc::getegid() } }
    }

    /// Whether real and effective ids are the same.
    pub fn is_plain(self) -> bool {
        self.uid == self.euid && self.gid == self.egid
    }
}

/// How the file system of a path is mounted.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountFlags {
    /// No program or library can be loaded from it.
    pub noexec: bool,
    /// Set-id bits and file capabilities have no effect.
    pub nosuid: bool,
}

/// The mount flags for `path`.
pub fn mount_flags(path: &Path) -> io::Result<MountFlags> {
    let path = c_path(path)?;
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is a C string and the buffer has room for the structure.
    check(unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) })?;
    // SAFETY: statvfs succeeded, so it filled in the structure.
    let flags = unsafe { stat.assume_init() }.f_flag;
    Ok(MountFlags { noexec: flags & libc::ST_NOEXEC != 0, nosuid: flags & libc::ST_NOSUID != 0 })
}

/// Whether this process, as its effective user, may execute the file.
pub fn may_execute(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path is a C string.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) })
}

/// An extended attribute of a file, cut to the buffer.
pub fn attribute<'b>(path: &Path, name: &CStr, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    let path = c_path(path)?;
    // SAFETY: both names are C strings, and the buffer is writable for its length.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    match usize::try_from(length) {
        Ok(length) => Ok(&buffer[..length]),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Whether this process has given up gaining privileges by execve.
pub fn no_new_privs() -> bool {
    const UNUSED: c_ulong = 0;
    // SAFETY: PR_GET_NO_NEW_PRIVS takes no pointers; the unused arguments must be and are zero.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, UNUSED, UNUSED, UNUSED, UNUSED) == 1 }
}

/// Whether this process leads its session, so that it gets the terminal's hang-up.
pub fn is_session_leader() -> bool {
    // SAFETY: neither call takes a pointer.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Keeps this process from writing a core file.
pub fn leave_no_core() {
    // SAFETY: PR_SET_DUMPABLE takes a number.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0 as c_ulong) };
}

/// Makes the kernel kill this process when the thread that forked it ends.
pub fn die_with_parent() {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as c_ulong) };
}

/// Opens closed standard descriptors, so that no file that neap opens gets their numbers: output for standard output
/// would be written into it. The replacements can be neither read nor written, and are closed again in the program that
/// neap starts.
pub fn keep_standard_descriptors() {
    for (number, flags) in [(0, libc::O_WRONLY), (1, libc::O_RDONLY), (2, libc::O_RDONLY)] {
        // SAFETY: F_GETFD takes no further argument.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
            // The lowest free number: this one, because those below are open by now.
            // SAFETY: the path is a C string.
            unsafe { libc::open(c"/dev/null".as_ptr(), flags | libc::O_CLOEXEC) };
        }
    }
}

/// Standard output, for whole texts. The standard library's version reports success if it is closed.
pub fn standard_output() -> io::Result<File> {
    let own = io::stdout().as_fd().try_clone_to_owned()?;
    // SAFETY: F_GETFL takes no further argument.
    let flags = unsafe { libc::fcntl(own.as_raw_fd(), libc::F_GETFL) };
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Err(io::Error::from_raw_os_error(libc::EBADF)),
        _ => Ok(own.into()),
    }
}

/// Writes a text to standard output. A closed pipe is no failure. Returns the exit status of the command.
pub fn print(text: &[u8]) -> Result<u8, Error> {
    match standard_output().and_then(|mut out| out.write_all(text)) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(cannot_print(&error)),
        _ => Ok(0),
    }
}

/// Prints a text; if standard output is a terminal, in lines that fit its width.
pub fn print_fitted(text: &str) -> Result<u8, Error> {
    match width_of(libc::STDOUT_FILENO) {
        Some(width) => print(fit(text, width).as_bytes()),
        None => print(text.as_bytes()),
    }
}

/// Calls `what` with SIGXFSZ ignored: a file that grows beyond the limit (RLIMIT_FSIZE) is then an error instead of a
/// signal.
pub fn with_size_errors<T>(what: impl FnOnce() -> T) -> T {
    // SAFETY: signal takes numbers, and what it returned before. neap has one thread.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let done = what();
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGXFSZ, before) };
    done
}

/// The path in /proc of an open file of this process.
pub fn name_in_proc(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Gives a file without a name its path.
pub fn link(file: &File, path: &Path) -> io::Result<()> {
    let (from, to) = (c_path(&name_in_proc(file))?, c_path(path)?);
    // SAFETY: both paths are C strings.
    check(unsafe { libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) })
}

/// Allocates the bytes of a file on its file system, so that a full disk is an error here and not a signal in a process
/// that maps the file. The file must also be open for reading: some file systems require that.
pub fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: posix_fallocate takes numbers; it returns the error.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Waits until one of the descriptors is ready, or for about this time.
pub fn poll(descriptors: &mut [libc::pollfd], time: Duration) -> io::Result<()> {
    // Rounded up, or the caller would wait for the rest again and again.
    let milliseconds = c_int::try_from(time.as_millis() + 1).unwrap_or(c_int::MAX);
    // SAFETY: the list is valid for its length, and the kernel writes its entries' last fields alone.
    match check(unsafe { libc::poll(descriptors.as_mut_ptr(), descriptors.len() as libc::nfds_t, milliseconds) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Raises the limit on open files to the maximum for this process; returns it.
pub fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls are given a valid structure.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let most = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &most) == 0 { most.rlim_cur } else { limit.rlim_cur }
    }
}

/// The size of an OS page.
pub fn page_size() -> usize {
    // SAFETY: sysconf takes a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The page faults of this process so far, minor and major.
pub fn faults_of_this_process() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the buffer has room for the structure, of which zero is a value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_minflt + usage.ru_majflt).unwrap_or(0)
}

/// The width of the terminal on standard output or standard error; `None` where neither is one.
pub fn terminal_width() -> Option<usize> {
    [libc::STDOUT_FILENO, libc::STDERR_FILENO].into_iter().find_map(width_of)
}

/// The width of a terminal; `None` where the descriptor is no terminal.
pub fn width_of(descriptor: c_int) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one such structure.
    let result = unsafe { libc::ioctl(descriptor, libc::TIOCGWINSZ, &raw mut size) };
    (result == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}
