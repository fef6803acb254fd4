//! The perf map of a process: names of code that it compiled itself, as Python (`-X perf`), node (`--perf-basic-prof`)
//! and JVMs write it to `/tmp/perf-PID.map`. PID is the number that the process has for itself.

use crate::{file, living, numbers};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Limit on the bytes of a map that are read.
const MOST: u64 = 1 << 30;

/// The text of the perf map of process `pid`, which may have ended; empty if there is none.
///
/// Any user may write to `/tmp`: a file of neither root, this user, nor (while it runs) the process's user is not
/// trusted. Then the result is its path.
pub fn read(pid: u32) -> Result<Vec<u8>, PathBuf> {
    let (via, inner) = (living(pid), numbers(pid).last().copied().unwrap_or(pid));
    // In a container `/tmp` is another folder. A process that has ended has none.
    let own = PathBuf::from(format!("/proc/{via}/root/tmp/perf-{inner}.map"));
    let user = fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid()).ok();
    read_first(&[own, PathBuf::from(format!("/tmp/perf-{pid}.map"))], user)
}

fn read_first(paths: &[PathBuf], user: Option<u32>) -> Result<Vec<u8>, PathBuf> {
    let Some((path, file)) = paths.iter().find_map(|path| Some((path, file::regular_unlinked(path).ok()?))) else {
        return Ok(Vec::new());
    };
    contents(&file, user).ok_or_else(|| shown(path))
}

fn contents(file: &File, user: Option<u32>) -> Option<Vec<u8>> {
    let owner = file.metadata().ok()?.uid();
    // SAFETY: the call has no preconditions.
    let own = unsafe { libc::geteuid() };
    let mut text = Vec::new();
    file.take(MOST).read_to_end(&mut text).ok().filter(|_| [Some(0), Some(own), user].contains(&Some(owner)))?;
    Some(text)
}

/// The path as the process names it.
fn shown(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    Path::new("/tmp").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a map of another user that is trusted, one that is not found, and one that is reached through a link.
    #[test]
    fn maps_of_others_are_not_trusted() {
        let folder = std::env::temp_dir().join(format!("neap-perf-map-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (map, link) = (folder.join("perf-7.map"), folder.join("perf-8.map"));
        fs::write(&map, "1000 10 py::main").expect("a file");
        std::os::unix::fs::symlink(&map, &link).expect("a link");
        let paths = [folder.join("none"), map.clone()];
        assert_eq!(read_first(&paths, None).expect("it is ours"), b"1000 10 py::main");
        assert_eq!(read_first(&[link], None), Ok(Vec::new()));
        if std::os::unix::fs::chown(&map, Some(12_345), None).is_ok() {
            assert_eq!(read_first(&paths, None), Err(PathBuf::from("/tmp/perf-7.map")));
            assert!(read_first(&paths, Some(12_345)).is_ok());
        }
        fs::remove_dir_all(&folder).expect("a folder");
    }
}
