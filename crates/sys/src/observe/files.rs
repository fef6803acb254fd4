//! Files that a process makes for readers outside: their directory, how they are made, and how they are mapped.

use crate::observe::once::AtStart;
use crate::system::call;
use crate::system::call::READ_WRITE;
use core::ffi::CStr;
use core::fmt::Write;
use neap_core::text::Text;
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags};

/// Limit of files in a directory whose names begin with this process's number. Earlier images of the process and
/// earlier processes of its number may have left some.
const MOST: u32 = 1000;

/// A directory that is chosen once. Its path is a copy, because a program may overwrite its environment.
#[derive(Debug)]
pub struct Directory {
    path: AtStart<Text<4096>>,
}

impl Directory {
    /// No directory is chosen yet.
    pub const fn new() -> Self {
        Directory { path: AtStart::new(Text::new()) }
    }

    /// Chooses it; false if the path is too long.
    ///
    /// # Safety
    /// To be called once, while the process has one thread.
    pub unsafe fn set(&self, path: &CStr) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.path.change(|text| text.append(path.to_bytes())) }
    }

    /// Its path; empty before it is chosen.
    pub fn bytes(&self) -> &[u8] {
        self.path.get().bytes()
    }

    /// Makes a file in it, named PID.N with the first N that is free, and returns what `make` makes of the file. If
    /// `make` fails, the file is removed.
    pub fn create<T>(&self, make: impl FnOnce(&OwnedFd) -> Option<T>) -> Option<T> {
        self.create_named("", |file| make(file).ok_or(())).ok()?.ok()
    }

    /// The same, with `ending` at the end of the name. Also returns why there is no file.
    pub fn create_named<T, E>(
        &self,
        ending: &str,
        make: impl FnOnce(&OwnedFd) -> Result<T, E>,
    ) -> Result<Result<T, E>, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = self.path.get().c_str().ok_or(Errno::NAMETOOLONG)?;
        let directory = openat(CWD, path, flags, Mode::empty())?;
        let pid = call::process();
        for n in 0..MOST {
            let mut name = Text::<32>::new();
            write!(name, "{pid}.{n}{ending}").map_err(|_| Errno::NAMETOOLONG)?;
            let name = name.c_str().ok_or(Errno::NAMETOOLONG)?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = match openat(&directory, name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => file,
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(error),
            };
            let made = make(&file);
            if made.is_err() {
                let _ = unlinkat(&directory, name, AtFlags::empty());
            }
            return Ok(made);
        }
        Err(Errno::EXIST)
    }
}

/// The number of an open file.
pub fn number(file: &OwnedFd) -> RawFd {
    file.as_raw_fd()
}

/// A memory file of `len` zeroed bytes, which has all its memory; `None` if the system refuses.
pub fn memory_file(name: &CStr, len: usize) -> Option<OwnedFd> {
    if call::is_too_long(len) {
        return None;
    }
    // Kernels from 6.3 on log a warning unless the file is marked as one that will not be executed.
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC))
        .ok()?;
    // Not ftruncate: where memory is short fallocate fails; after ftruncate the first store would raise SIGBUS. Signals
    // are blocked, because one would end the call (EINTR), and the page would have no name.
    call::without_signals(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64)).ok()?;
    Some(file)
}

/// A shared mapping of the front of a file, or of no file. With `own` the child of a fork does not get it.
pub fn map(file: Option<&OwnedFd>, len: usize, own: bool) -> Option<*mut u8> {
    // SAFETY: a fresh mapping, which is removed if the child of a fork would get it.
    unsafe {
        let p = match file {
            Some(file) => mm::mmap(core::ptr::null_mut(), len, READ_WRITE, MapFlags::SHARED, file, 0).ok()?,
            None => call::fresh(0, len, READ_WRITE, MapFlags::SHARED)?.cast(),
        };
        if own && mm::madvise(p, len, mm::Advice::LinuxDontFork).is_err() {
            let _ = mm::munmap(p, len);
            return None;
        }
        Some(p.cast())
    }
}
