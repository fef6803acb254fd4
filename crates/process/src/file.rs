//! Opens files that a process has mapped, without harm. A path may now lead to anything, for example a FIFO that waits
//! for a writer, or a device that acts when it is opened.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Which file a line of `/proc/PID/maps` names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// Its inode.
    pub inode: u64,
}

/// Opens the file that process `pid` has mapped at `range`: the very file where that is allowed, else what `path`, which
/// is the kernel's name for it, leads to for the process or here, or its executable: if it is the same file. Only
/// regular files are opened. `pid` may be the number of any thread whose files can be seen, see [`crate::living`].
pub fn open(pid: u32, range: &Range<u64>, path: &str, identity: Identity) -> io::Result<File> {
    let same = |path: String| regular(path.as_ref(), Some(identity));
    // Needs a privilege.
    regular(map_file(pid, range).as_ref(), None)
        .or_else(|_| same(format!("/proc/{pid}/root{path}")))
        // The kernel prints paths from the reader's root: after a chroot the process has another.
        .or_else(|_| same(path.to_owned()))
        .or_else(|_| same(format!("/proc/{pid}/exe")))
}

/// The link to the file that a process has mapped at `range`; only those with a privilege may follow it.
pub fn map_file(pid: u32, range: &Range<u64>) -> String {
    format!("/proc/{pid}/map_files/{:x}-{:x}", range.start, range.end)
}

/// Opens a regular file, without doing anything to what else may be there.
pub fn regular(path: &Path, identity: Option<Identity>) -> io::Result<File> {
    regular_with(path, identity, 0)
}

/// The same, but not through a link at the end of the path.
pub fn regular_unlinked(path: &Path) -> io::Result<File> {
    regular_with(path, None, libc::O_NOFOLLOW)
}

fn regular_with(path: &Path, identity: Option<Identity>, flags: i32) -> io::Result<File> {
    // O_PATH only locates the file, and does nothing to what is there.
    let place = File::options().read(true).custom_flags(libc::O_PATH | flags).open(path)?;
    let metadata = place.metadata()?;
    if !metadata.is_file() || identity.is_some_and(|identity| !identity.is_of(&metadata)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

impl Identity {
    fn is_of(self, metadata: &fs::Metadata) -> bool {
        let device = metadata.dev();
        let major = ((device >> 8 & 0xfff) | (device >> 32 & !0xfff)) as u32;
        let minor = ((device & 0xff) | (device >> 12 & !0xff)) as u32;
        // btrfs and overlayfs have devices without a major number, and report another device for mapped files.
        let is_alike = (major, minor) == self.device || major == 0 || self.device.0 == 0;
        self.inode == metadata.ino() && is_alike
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Catches FIFOs and devices that are opened, other files of that path, and files that are not opened.
    #[test]
    fn only_the_file_itself() {
        let folder = std::env::temp_dir().join(format!("neap-mapped-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (file, fifo) = (folder.join("file"), folder.join("fifo"));
        fs::write(&file, "x").expect("a file");
        let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo(1)");
        assert!(made.success());
        let metadata = fs::metadata(&file).expect("a file");
        let device = metadata.dev();
        let device = ((device >> 8 & 0xfff) as u32, ((device & 0xff) | (device >> 12 & !0xff)) as u32);
        let identity = Identity { device, inode: metadata.ino() };
        let open = |path: &std::path::Path, identity| {
            open(std::process::id(), &(1..2), path.to_str().expect("UTF-8"), identity).is_ok()
        };
        assert!(open(&file, identity));
        assert!(!open(&file, Identity { inode: identity.inode + 1, ..identity }));
        let inode = fs::metadata(&fifo).expect("a FIFO").ino();
        assert!(!open(&fifo, Identity { inode, ..identity }));
        let zero = fs::metadata("/dev/zero").expect("a device").ino();
        assert!(!open("/dev/zero".as_ref(), Identity { device: (0, 0), inode: zero }));
        let link = folder.join("link");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        assert!(regular(&link, None).is_ok() && regular_unlinked(&link).is_err() && regular_unlinked(&file).is_ok());
        fs::remove_dir_all(&folder).expect("a folder");
    }
}
