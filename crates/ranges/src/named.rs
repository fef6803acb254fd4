//! Files of hugetlbfs that processes share by name, and that disappear with the last of them.
//!
//! Each process that has such a file open has a lock on it, of the kind that belongs to an open file (OFD) and ends
//! with it, however the process ends. The lock is shared; while the file is made it is exclusive, and the kernel
//! changes one into the other in one step. So a process that gets the exclusive lock at once knows that no other
//! process has the file: it is new, or a crash left it (then it is removed, and made again). The last process that
//! closes the file removes it.
//!
//! A file may be removed between the moments when another process opens and locks it. That process then sees that the
//! name has another file or none, and begins again.

use crate::error::Error;
use crate::kernel::{self, Text};
use crate::mounts::{self, Mount, NAME, PATH};
use core::ffi::{CStr, c_int};
use core::ops::ControlFlow;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;

/// The beginning of all names, so that files of others are left alone.
const PREFIX: &str = "neap-";

/// A file that this process has open, with a lock on it.
#[derive(Debug)]
pub struct Named {
    /// The file.
    pub file: OwnedFd,
    /// Its path.
    pub path: Text<PATH>,
    /// Its length.
    pub bytes: usize,
    /// Whether this process made it.
    pub is_new: bool,
}

impl Named {
    /// The file, which stays open and locked.
    pub fn into_file(self) -> OwnedFd {
        let named = core::mem::ManuallyDrop::new(self);
        // SAFETY: the file is moved out once, and the other fields need no end.
        unsafe { core::ptr::read(&raw const named.file) }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let is_alone = || lock(&self.file, libc::F_WRLCK, false) == Ok(());
        // Two processes that close the file at the same time would both fail while both hold their locks. So the lock
        // is given up first: the last process that does so finds no other lock.
        let is_last = is_alone() || (lock(&self.file, libc::F_UNLCK, false) == Ok(()) && is_alone());
        if is_last && is_at(&self.file, self.path.as_c()) {
            let _ = rustix::fs::unlinkat(CWD, self.path.as_c(), AtFlags::empty());
        }
    }
}

/// Locks all of a file, or changes the lock to another kind. Without `wait` it fails with `AGAIN` if another process
/// has a conflicting lock.
fn lock(file: &OwnedFd, kind: c_int, wait: bool) -> Result<(), Errno> {
    // SAFETY: all zero is a lock from the beginning to the end, of no process, as these locks want it.
    let mut lock: libc::flock64 = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    let operation = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    let arguments = [file.as_raw_fd() as usize, operation as usize, (&raw const lock).expose_provenance(), 0, 0, 0];
    // SAFETY: the kernel reads the structure.
    rustix::io::retry_on_intr(|| unsafe { kernel::syscall(libc::SYS_fcntl, arguments).map(drop) })
}

/// Whether the file is the one of this path.
fn is_at(file: &OwnedFd, path: &CStr) -> bool {
    let (Ok(own), Ok(named)) = (rustix::fs::fstat(file), rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW))
    else {
        return false;
    };
    (own.st_dev, own.st_ino) == (named.st_dev, named.st_ino)
}

/// Opens the file of this path, or makes it with `bytes`; `bytes` of 0: it must be in use. `ready` is called while no
/// other process can have a new file: its mapping is made there.
///
/// # Errors
/// See [`crate::range::Request::open`].
pub fn open<R>(
    path: &Text<PATH>,
    bytes: usize,
    ready: impl FnOnce(&Named) -> Result<R, Error>,
) -> Result<(Named, R), Error> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let flags = if bytes > 0 { flags | OFlags::CREATE } else { flags };
    loop {
        let file = match rustix::fs::openat(CWD, path.as_c(), flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::NOENT) => return Err(Error::NotFound),
            file => file?,
        };
        // Checked before this waits for the lock, which another user may hold for ever.
        if rustix::fs::fstat(&file)?.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Error::NotAllowed);
        }
        let is_alone = match lock(&file, libc::F_WRLCK, false) {
            Err(Errno::AGAIN | Errno::ACCESS) => {
                // Waits for the process that makes the file.
                lock(&file, libc::F_RDLCK, true)?;
                false
            }
            alone => alone.map(|()| true)?,
        };
        if !is_at(&file, path.as_c()) {
            continue;
        }
        let len = rustix::fs::fstat(&file)?.st_size as usize;
        if is_alone && (len > 0 || bytes == 0) {
            // A crash left it.
            rustix::fs::unlinkat(CWD, path.as_c(), AtFlags::empty())?;
            continue;
        }
        if !is_alone && len == 0 {
            // The process that made it has failed.
            continue;
        }
        let named = Named { file, path: *path, bytes: if is_alone { bytes } else { len }, is_new: is_alone };
        if is_alone {
            rustix::fs::ftruncate(&named.file, bytes as u64)?;
        } else if bytes > 0 && bytes != len {
            return Err(Error::Mismatch);
        }
        let result = ready(&named)?;
        if is_alone {
            lock(&named.file, libc::F_RDLCK, false)?;
        }
        return Ok((named, result));
    }
}

/// Where the file of this name lies, or would be made: in the first mount that has it, else in the first one where the
/// process may make it.
///
/// # Errors
/// - [`Error::BadValue`]: a name that is empty, too long, or has a slash or a zero byte.
/// - Those of [`mounts::path_of`].
pub fn path_of(name: &[u8], page_size: usize) -> Result<Text<PATH>, Error> {
    let name = core::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains(['/', '\0']));
    let name = name.filter(|name| name.len() + PREFIX.len() + 2 <= NAME).ok_or(Error::BadValue)?;
    let file = Text::<NAME>::new(format_args!("{PREFIX}{name}")).ok_or(Error::BadValue)?;
    let mut found = None;
    let mut first = Err(Error::NoMount);
    mounts::each(|mount| {
        if mount.page_size != page_size {
            return ControlFlow::Continue(());
        }
        let path = mount.path.joined(file.as_c());
        if rustix::fs::statat(&mount.folder, file.as_c(), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            found = path;
            return ControlFlow::Break(());
        }
        if first.is_err() {
            first = if mount.is_writable() { path.ok_or(Error::BadValue) } else { Err(Error::NotAllowed) };
        }
        ControlFlow::Continue(())
    })?;
    found.map_or(first, Ok)
}

/// Removes the files that no process has open, in all mounts, as far as the process may; returns how many.
pub fn sweep() -> usize {
    let mut count = 0;
    // Without a mount there is no file.
    let _ = mounts::each(|mount| {
        count += sweep_mount(&mount);
        ControlFlow::Continue(())
    });
    count
}

fn sweep_mount(mount: &Mount) -> usize {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::openat(&mount.folder, c".", flags, Mode::empty()) else { return 0 };
    let mut buffer = [core::mem::MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&folder, &mut buffer);
    let mut count = 0;
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if !name.to_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(file) = rustix::fs::openat(&folder, name, flags, Mode::empty()) else { continue };
        let is_at = || {
            let (own, named) =
                (rustix::fs::fstat(&file).ok()?, rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?);
            Some((own.st_dev, own.st_ino) == (named.st_dev, named.st_ino))
        };
        if lock(&file, libc::F_WRLCK, false) == Ok(()) && is_at() == Some(true) {
            count += usize::from(rustix::fs::unlinkat(&folder, name, AtFlags::empty()).is_ok());
        }
    }
    count
}
