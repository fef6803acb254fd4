//! Where hugetlbfs is mounted, by the size of pages, from the mount table.

use crate::error::Error;
use crate::kernel::Text;
use core::ops::ControlFlow;
use neap_sys::lines::{self, Lines};
use rustix::fd::OwnedFd;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};

/// Bytes of the longest path of a file, its final zero included. Mounts with longer paths are left out.
pub const PATH: usize = 256;
/// Bytes that a file's name may add to that of its mount.
pub const NAME: usize = 112;

/// f_type of hugetlbfs, in include/uapi/linux/magic.h.
const HUGETLBFS: u64 = 0x9584_58F6;

/// A mount.
pub struct Mount {
    /// Its path.
    pub path: Text<PATH>,
    /// Its folder (O_PATH).
    pub folder: OwnedFd,
    /// Bytes of a page.
    pub page_size: usize,
}

impl Mount {
    /// The mount at a path of the mount table. `None` if another file system hides it, or it is out of reach.
    fn at(path: Text<PATH>) -> Option<Mount> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, path.as_c(), flags, Mode::empty()).ok()?;
        let info = rustix::fs::fstatfs(&folder).ok()?;
        let is_it = info.f_type.cast_unsigned() & 0xFFFF_FFFF == HUGETLBFS;
        is_it.then_some(Mount { path, folder, page_size: usize::try_from(info.f_bsize).ok()? })
    }

    /// Whether the process may make files there: the mount is not read-only, and the folder's mode allows it.
    pub fn is_writable(&self) -> bool {
        rustix::fs::accessat(&self.folder, c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    }
}

/// Calls `each` for the mounts of hugetlbfs, in the order of the mount table, until it breaks off.
///
/// # Errors
/// The table cannot be read.
pub fn each(mut each: impl FnMut(Mount) -> ControlFlow<()>) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let table = rustix::fs::openat(CWD, c"/proc/self/mounts", flags, Mode::empty()).map_err(|_| Error::NoMount)?;
    // Only the front of a longer line is read, which has the path if that is short enough to be used.
    let mut buffer = [0u8; 2048];
    let read = |buffer: &mut [u8]| rustix::io::retry_on_intr(|| rustix::io::read(&table, &mut *buffer)).unwrap_or(0);
    let mut lines = Lines::new(&mut buffer, read);
    while let Some(line) = lines.next() {
        if let Some(mount) = path(line).and_then(Mount::at)
            && each(mount).is_break()
        {
            break;
        }
    }
    Ok(())
}

/// The path in a line of the mount table, if that is of hugetlbfs.
fn path(line: &[u8]) -> Option<Text<PATH>> {
    let mut words = line.split(|&b| b == b' ');
    let path = words.nth(1)?;
    if words.next()? != b"hugetlbfs" {
        return None;
    }
    let mut bytes = [0u8; PATH - NAME];
    let mut len = 0;
    for byte in lines::unescape(path) {
        *bytes.get_mut(len)? = byte;
        len += 1;
    }
    Text::of(&bytes[..len])
}

/// The path of the first mount with pages of `page_size` bytes where the process may make files.
///
/// # Errors
/// - [`Error::NoMount`]: there is no such mount, or no mount table.
/// - [`Error::NotAllowed`]: there are some, and all are read-only or forbidden.
pub fn path_of(page_size: usize) -> Result<Text<PATH>, Error> {
    let mut found = Err(Error::NoMount);
    each(|mount| {
        if mount.page_size != page_size {
            return ControlFlow::Continue(());
        }
        if !mount.is_writable() {
            found = Err(Error::NotAllowed);
            return ControlFlow::Continue(());
        }
        found = Ok(mount.path);
        ControlFlow::Break(())
    })?;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a path with a space that is not found, and another file system that is taken for this one.
    #[test]
    fn lines_of_the_table() {
        let path = |line: &[u8]| path(line).map(|path| path.as_c().to_bytes().to_vec());
        assert_eq!(path(b"none /dev/hugepages hugetlbfs rw,pagesize=2M 0 0"), Some(b"/dev/hugepages".to_vec()));
        assert_eq!(path(b"a\\040b /m\\040n\\134 hugetlbfs rw 0 0"), Some(b"/m n\\".to_vec()));
        assert_eq!(path(b"hugetlbfs /tmp tmpfs rw 0 0"), None);
        assert_eq!(path(b"none /a\\04 hugetlbfs"), Some(b"/a\\04".to_vec()));
        assert_eq!(path(b""), None);
        let long = [b"none /", &[b'x'; PATH][..], b" hugetlbfs rw 0 0"].concat();
        assert_eq!(path(&long), None);
    }
}
